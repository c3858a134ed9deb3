"""The attention equation: A = softmax(sim(q, k) + mask), o = A v.

`attend` computes it with one of the backends of core/backends, chosen by `select_backend`. All backends give the same
numbers. A query without an allowed key gets o = 0, with finite gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .similarity import Similarity, score
from .steps import is_short
from .structure import FULL, Layout, ScoreBias, Structure


def attention_weights(q: Tensor, k: Tensor, sim: Similarity, allowed: Tensor | None, bias: ScoreBias = None) -> Tensor:
    """A = softmax(sim(q, k) + mask) for projected q and k, 0 where not allowed (None: all are): B H Lq Lk.

    >>> from harken.core import CAUSAL, Dot
    >>> q = torch.zeros(1, 1, 3, 2)
    >>> attention_weights(q, q, Dot(), CAUSAL.mask(1, 3, 3))[0, 0, 1]
    tensor([0.5000, 0.5000, 0.0000])
    """
    groups = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # B H' (G Lq) D: query heads that share a key head
    scores = score(sim.all_pairs, groups, k).unflatten(2, (-1, q.shape[-2])).flatten(1, 2)  # B H Lq Lk
    scores = scores if bias is None else scores + bias
    if allowed is None:
        return scores.softmax(-1)
    # the lowest finite number instead of -inf keeps the gradient of an empty row finite
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0)


def weighted_values(A: Tensor, v: Tensor) -> Tensor:
    """o = A v: B H Lq Lk, B H' Lk D_v -> B H Lq D_v.

    >>> weighted_values(torch.eye(3).expand(1, 2, 3, 3), torch.ones(1, 1, 3, 4)).shape
    torch.Size([1, 2, 3, 4])
    """
    groups = A.unflatten(1, (v.shape[1], -1)).flatten(2, 3)  # B H' (G Lq) Lk
    return (groups @ v).unflatten(2, (-1, A.shape[-2])).flatten(1, 2)


# --- the same with the cheapest backend -------------------------------------------------------------------------------

EXPLICIT_MAX_LENGTH = 32  # up to this length a compiled step on a GPU (heads of 32) is faster explicit than fused
FLEX_MIN_LENGTH = 4096  # without torch.compile: below it, compiling each new shape costs more than a dense mask
FLEX_MIN_LENGTH_COMPILED = 512  # inside torch.compile, and for block-sparse structures

# (q, k, v, similarity, layout, *, dropout) -> o; filled by core/backends
BACKENDS: dict[str, Callable[..., Tensor]] = {}


class BackendChoice(NamedTuple):
    """Name of a backend and the reason for its choice."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Editor:
    """Watcher that replaces the weights A by f(A), as in head ablation."""

    f: Callable[[Tensor], Tensor]


Watcher = Callable[[Tensor, Tensor, Similarity, Layout], None] | Editor  # called with projected q and k


def select_backend(
    q: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0, edited: bool = False
) -> BackendChoice:
    """The cheapest backend that can compute this attention. The reasons are constants: torch.compile traces them.

    >>> from harken.core import CAUSAL, Dot
    >>> q = torch.zeros(1, 1, 3, 2)
    >>> print(select_backend(q, Dot(), CAUSAL.layout(1, 3, 3, q.device)))
    fused: the similarity is a dot product
    """
    compiling = torch.compiler.is_compiling()
    if edited:
        return BackendChoice("explicit", "the weights are edited")
    if dropout == 0 and similarity.is_dot and _flex_is_faster(q, layout, compiling):
        return BackendChoice("flex", "long sequence on a GPU with a mask that the fused kernel has no flag for")
    if layout.block_passes is not None:
        return BackendChoice("blocks", "the structure is block-sparse")
    if layout.pairs is not None:
        return BackendChoice("sparse", "the structure lists its pairs")
    if similarity.is_kernel and layout.full and dropout == 0:
        return BackendChoice("linear", "the similarity is a kernel with features, and every key is allowed")
    if not similarity.is_dot:
        return BackendChoice("explicit", "the similarity is not a dot product")
    if not compiling and torch._C._are_functorch_transforms_active():
        return BackendChoice("explicit", "torch.func transforms have no fused kernel")
    if compiling and q.is_cuda and (layout.Lq == 1 or max(layout.Lq, layout.Lk) <= EXPLICIT_MAX_LENGTH):
        return BackendChoice("explicit", "short sequence: torch.compile fuses the equation with its neighbors")
    if is_short(q, layout.Lq, layout.Lk):
        return BackendChoice("explicit", "few queries on a CPU: a product of all heads is faster than the kernel")
    return BackendChoice("fused", "the similarity is a dot product")


def _flex_is_faster(q: Tensor, layout: Layout, compiling: bool) -> bool:
    """On a GPU, for a mask that the fused kernel has no flag for, over more than a few blocks.

    In float64 second derivatives are computed (analysis.landscape), which FlexAttention does not have.
    """
    if not q.is_cuda or q.dtype == torch.float64:
        return False
    if layout.full or layout.causal or layout.bias is not None or not layout.structure.pointwise:
        return False
    if not compiling and torch._C._len_torch_dispatch_stack():  # a dispatch mode (FLOP counter) compiles nothing
        return False
    short = FLEX_MIN_LENGTH_COMPILED if compiling or layout.block_passes is not None else FLEX_MIN_LENGTH
    return min(layout.Lq, layout.Lk) >= short


def compute(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """Attention of projected q and k with the selected backend: B H Lq D_v."""
    backend = BACKENDS[select_backend(q, similarity, layout, dropout=dropout).name]
    return backend(q, k, v, similarity, layout, dropout=dropout)


def attend(
    q: Tensor,  # B H Lq D
    k: Tensor,  # B H' Lk D: H' divides H; a group of query heads shares a key head
    v: Tensor,  # B H' Lk D_v
    similarity: Similarity,
    structure: Structure | Layout = FULL,
    *,
    bias: ScoreBias = None,  # H Lq Lk or B H Lq Lk, added to the scores; a Layout has its own
    dropout: float = 0.0,
    watch: Watcher | None = None,
) -> Tensor:  # B H Lq D_v
    """Attention o = softmax(sim(q, k) + mask) v of the queries q over the memory (k, v).

    >>> from harken.core import CAUSAL, Dot
    >>> q = k = v = torch.eye(2).expand(1, 1, 2, 2)
    >>> attend(q, k, v, Dot(), CAUSAL)[0, 0]
    tensor([[1.0000, 0.0000],
            [0.2689, 0.7311]])
    """
    shape = q.shape[0], q.shape[-2], k.shape[-2]
    layout = structure if isinstance(structure, Layout) else structure.layout(*shape, q.device, bias)
    q, k = similarity.project(q, k)
    if isinstance(watch, Editor):
        return BACKENDS["explicit"](q, k, v, similarity, layout, dropout=dropout, edit=watch.f)
    if watch is not None:
        watch(q, k, similarity, layout)
    return compute(q, k, v, similarity, layout, dropout=dropout)
