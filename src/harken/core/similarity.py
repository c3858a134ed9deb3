"""Similarity functions sim(q, k) between a query and a key.

A similarity defines two steps: `project` transforms q and k once, `pair` scores one projected pair. It does not depend
on which pairs are scored: all pairs, the edges of a graph or a few rows. Matrices are one per key head; the query heads
of a group share the matrix of their key head.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

TINY = 1e-30  # lower bound of probabilities and kernel values, so that their logarithm is finite


class Similarity(nn.Module):
    """sim(q, k) = pair(*project(q, k)).

    >>> sim, q, k = Dot(), torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 3)
    >>> sim.pair(*sim.project(q[..., 0, :], k[..., 0, :])), sim.all_pairs(*sim.project(q, k)).shape
    (tensor([[3.]]), torch.Size([1, 1, 2, 4]))
    """

    is_dot = False  # True: pair is scale * <q, k>, so a fused kernel can compute it
    is_kernel = False  # True: pair is log <q, k> with <q, k> >= 0, so all pairs can be summed in linear time
    scale = 1.0

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Transform the queries and the keys: B H L D -> B H L D'."""
        return q, k

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        """Score of projected queries with one key each: ... D', ... D' -> ..., in float32 or higher."""
        raise NotImplementedError(f"{type(self).__name__} has no score for a pair; implement pair(q, k)")

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores of all projected queries and keys: B H Lq D', B H Lk D' -> B H Lq Lk."""
        return self.pair(q.unsqueeze(-2), k.unsqueeze(-3))


class Dot(Similarity):
    """<q, k>, the score of the memory network."""

    is_dot = True

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum(-1) * self.scale

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.scale


class ScaledDot(Dot):
    """<q, k> / sqrt(d_k). The variance of a score is 1 for every d_k."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(d_k)


class Bilinear(Dot):
    """q^T M k with one M per head."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__()
        self.M = nn.Parameter(torch.eye(d_k).repeat(heads, 1, 1) / math.sqrt(d_k))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _per_head(q, self.M), k


class Mahalanobis(Dot):
    """-||W q - W k||^2 with one W per head. ||W q||^2 is constant over j, so softmax removes it: a dot remains."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.eye(d_k).repeat(heads, 1, 1) / d_k**0.25)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _minus_distance(_per_head(q, self.W.mT), _per_head(k, self.W.mT))


class Gaussian(Dot):
    """Normalized Gaussian kernel exp(-||q - k||^2 / 2 width^2), computed as a dot with one extra feature."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.shrink = 1 / (width * math.sqrt(2))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _minus_distance(q * self.shrink, k * self.shrink)


class Kernel(Similarity):
    """Kernel weights a_j = f(q, k_j) / sum_j f(q, k_j) for a kernel f(q, k) >= 0: the score is log f."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return self.f(q, k).clamp_min(TINY).log()


def polynomial(degree: int = 2, c: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """Polynomial kernel (<q, k> + c)^degree for `Kernel`. Negative values count as 0.

    >>> polynomial(2)(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0]))
    tensor(16.)
    """
    return lambda q, k: ((q * k).sum(-1) + c) ** degree


class Projected(Similarity):
    """Base of similarities with one matrix per head for q and another for k."""

    def __init__(self, heads: int, d_k: int, width: int) -> None:
        super().__init__()
        self.W_q, self.W_k = (nn.Parameter(torch.randn(heads, d_k, width) / math.sqrt(d_k)) for _ in range(2))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _per_head(q, self.W_q), _per_head(k, self.W_k)


class Additive(Projected):
    """w . tanh(W_q q + W_k k): additive attention (Bahdanau 2014)."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__(heads, d_k, d_k)
        self.w = nn.Parameter(torch.randn(d_k) / math.sqrt(d_k))

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(q + k) @ self.w.to(q.dtype)


class Concat(Projected):
    """LeakyReLU(a . [q || k]): the attention of GAT. The dot splits into one term for q and one for k."""

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__(heads, d_k, 1)

    def pair(self, q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.leaky_relu(q + k, 0.2).squeeze(-1)


def precise(x: Tensor) -> Tensor:
    """x in float32 or higher precision.

    >>> precise(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def score(pair: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor) -> Tensor:
    """Scores in float32 or higher, also under autocast: in bfloat16 two scores near 60 that differ by 0.1 are equal.

    >>> score(Dot().pair, torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))
    tensor(3.)
    """
    with torch.autocast(q.device.type, enabled=False):
        return pair(precise(q), precise(k))


def _per_head(x: Tensor, W: Tensor) -> Tensor:
    """x: B H L D times W: heads D D', where H is a multiple of heads (query heads in groups)."""
    return (x.unflatten(-3, (len(W), -1)) @ W.unsqueeze(1)).flatten(-4, -3)


def _minus_distance(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """-||q - k||^2, up to a term that is constant over j, as the dot of two longer vectors."""
    return torch.cat([2 * q, -torch.ones_like(q[..., :1])], -1), torch.cat([k, k.square().sum(-1, keepdim=True)], -1)
