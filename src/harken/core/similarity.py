"""How alike a query and a key are: sim(q, k).

Each similarity says two things: how q and k are projected, and how one projected pair is scored. Whether the
pairs are all pairs, the edges of a graph or a few rows of a view is not its business. Matrices are one per key
head; a group of query heads that shares a key head shares its matrix.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

TINY = 1e-30  # a probability or kernel value below this counts as this: its logarithm stays finite


class Similarity(nn.Module):
    """sim(q, k) = pair(*project(q, k))."""

    is_dot = False  # True: pair is scale * <q, k>, so a fused kernel may take over
    scale = 1.0

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:  # B H L D -> B H L D'
        return q, k

    def pair(self, q: Tensor, k: Tensor) -> Tensor:  # ... D', ... D' -> ...; in float32 at least
        raise NotImplementedError(f"{type(self).__name__} does not say how a pair is scored")

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:  # B H Lq D', B H Lk D' -> B H Lq Lk
        return self.pair(q.unsqueeze(-2), k.unsqueeze(-3))


class Dot(Similarity):
    """<q, k>: the memory network's word matching."""

    is_dot = True

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum(-1) * self.scale

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.scale


class ScaledDot(Dot):
    """<q, k> / sqrt(d_k): keeps the variance of a score at 1 whatever d_k is."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(d_k)


class Bilinear(Dot):
    """q^T M k, one M per head."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__()
        self.M = nn.Parameter(torch.eye(d_k).repeat(heads, 1, 1) / math.sqrt(d_k))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _per_head(q, self.M), k


class Mahalanobis(Dot):
    """-||W q - W k||^2, one W per head. ||W q||^2 is constant over j, so softmax drops it: what is left is a dot."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.eye(d_k).repeat(heads, 1, 1) / d_k**0.25)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _minus_distance(_per_head(q, self.W.mT), _per_head(k, self.W.mT))


class Gaussian(Dot):
    """The kernel exp(-||q - k||^2 / 2 width^2), normalised: also a dot with one extra feature."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.shrink = 1 / (width * math.sqrt(2))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _minus_distance(q * self.shrink, k * self.shrink)


class Kernel(Similarity):
    """Any kernel function f(q, k) >= 0 as weights: a_j = f(q, k_j) / sum_j f(q, k_j), so the score is log f."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return self.f(q, k).clamp_min(TINY).log()


def polynomial(degree: int = 2, c: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """The kernel (<q, k> + c)^degree, for Kernel. A negative value counts as nothing."""
    return lambda q, k: ((q * k).sum(-1) + c) ** degree


class Projected(Similarity):
    """A matrix per head for q, and another for k."""

    def __init__(self, heads: int, d_k: int, width: int) -> None:
        super().__init__()
        self.W_q, self.W_k = (nn.Parameter(torch.randn(heads, d_k, width) / math.sqrt(d_k)) for _ in range(2))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _per_head(q, self.W_q), _per_head(k, self.W_k)


class Latent(Projected):
    """log sum_z p(z|q) p(z|k): query and key are alike if they would name the same hidden cause z."""

    def __init__(self, heads: int, d_k: int, causes: int = 8) -> None:
        super().__init__(heads, d_k, causes)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().project(q, k)
        return q.softmax(-1), k.softmax(-1)

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum(-1).clamp_min(TINY).log()


class Additive(Projected):
    """w . tanh(W_q q + W_k k): the attention of the RNN translators (Bahdanau 2014)."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__(heads, d_k, d_k)
        self.w = nn.Parameter(torch.randn(d_k) / math.sqrt(d_k))

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(q + k) @ self.w.to(q.dtype)


class Concat(Projected):
    """LeakyReLU(a . [q || k]): the attention of GAT. The dot splits over the concatenation, so project first."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__(heads, d_k, 1)

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.leaky_relu(q + k, 0.2).squeeze(-1)


def precise(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _per_head(x: Tensor, W: Tensor) -> Tensor:
    """x: B H L D times W: heads D D', where H may be a multiple of heads (query heads in groups)."""
    return (x.unflatten(-3, (len(W), -1)) @ W.unsqueeze(1)).flatten(-4, -3)


def _minus_distance(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """-||q - k||^2 up to a term that is constant over j, as the dot of two longer vectors."""
    return torch.cat([2 * q, -torch.ones_like(q[..., :1])], -1), torch.cat([k, k.square().sum(-1, keepdim=True)], -1)
