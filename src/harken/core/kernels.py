"""Kernel similarities with finite features: sim(q, k) = log f(q, k) with f(q, k) = <phi(q), phi(k)> >= 0."""

import torch
from torch import Tensor, nn

from .similarity import TINY, Projected, Similarity


class FeatureKernel(Similarity):
    """Kernel f(q, k) = <phi(q), phi(k)> >= 0 with finite features phi, computed by `project`: the score is log f.

    The weights are a_ij = f(q_i, k_j) / sum_j f(q_i, k_j), and the sums over j do not depend on i (backend `linear`).
    """

    is_kernel = True

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum(-1).clamp_min(TINY).log()

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).clamp_min(TINY).log()


class CosineKernel(FeatureKernel):
    """log(1 + cos(q, k)): phi(x) = (1, x / ||x||), the kernel of DIFFormer (Wu 2023)."""

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (torch.cat([torch.ones_like(x[..., :1]), nn.functional.normalize(x, dim=-1)], -1) for x in (q, k))
        return q, k


class Latent(FeatureKernel, Projected):
    """log sum_z p(z|q) p(z|k): the probability that query and key have the same latent class z."""

    def __init__(self, heads: int, d_k: int, classes: int = 8) -> None:
        super().__init__(heads, d_k, classes)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().project(q, k)
        return q.softmax(-1), k.softmax(-1)
