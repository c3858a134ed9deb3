"""Attention structure: which query may attend to which key, as a relation over (batch row b, query slot i, key slot j).

A causal mask, padding, packed documents, BigBird's pattern and the adjacency of a graph are structures. They combine
with & | ~. A `Layout` is a structure for one batch shape: a mask, a list of pairs, blocks, or a flag of the kernel.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .steps import is_last_slot

Predicate = Callable[[Tensor, Tensor, Tensor], Tensor]  # b, i, j (broadcastable) -> True where i may attend to j
Pairs = tuple[Tensor, Tensor]  # i, j: E each
ScoreBias = Tensor | None  # H Lq Lk or B H Lq Lk


class BlockPlan(Protocol):
    """Blocks that contain every allowed pair (core/backends/blocks.py)."""

    def __and__(self, other: "Structure") -> "BlockPlan": ...
    def __call__(self, B: int, L: int, device: torch.device) -> "BlockPasses": ...


@dataclass(frozen=True, eq=False)
class Structure:
    """A relation that has no shape yet. A slot is an index into the row or the memory, not a document position.

    >>> structure = CAUSAL & ~window(0) | global_tokens(1)
    >>> structure.mask(1, 3, 3)[0, 0].int().tolist()
    [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    >>> structure.at_slots(torch.tensor([2])).layout(1, 1, 3, torch.device("cpu")).dense().allowed
    tensor([[[[ True,  True, False]]]])
    """

    allows: Predicate
    name: str
    pairs: Pairs | None = None  # a list that contains every allowed pair, where one shorter than L x L exists
    reflexive: bool = False  # every query may attend to its own slot, so no row is empty
    pointwise: bool = True  # the predicate is arithmetic on b, i, j, so a block kernel can evaluate it
    slots: Tensor | None = None  # slots of the queries: Lq or B Lq; None: the last slots of the keys
    block_plan: BlockPlan | None = None

    def __and__(self, other: "Structure") -> "Structure":
        if self is FULL or other is FULL or self is other:
            return other if self is FULL else self
        a, b = self.pairs, other.pairs  # the shorter list is enough
        pairs = a if b is None or (a is not None and len(a[0]) <= len(b[0])) else b
        plan = self.block_plan & other if self.block_plan else other.block_plan and other.block_plan & self
        return self._join(other, operator.and_, "&", pairs=pairs, block_plan=plan)

    def __or__(self, other: "Structure") -> "Structure":
        if self is FULL or other is FULL:
            return FULL
        pairs = None if self.pairs is None or other.pairs is None else _union(self.pairs, other.pairs)
        return self._join(other, operator.or_, "|", pairs=pairs)

    def _join(self, other: "Structure", join: Callable[[Any, Any], Any], sign: str, **fields: Any) -> "Structure":
        name, slots = f"({self.name} {sign} {other.name})", other.slots if self.slots is None else self.slots
        fields |= {"reflexive": join(self.reflexive, other.reflexive), "pointwise": self.pointwise and other.pointwise}
        return Structure(lambda *x: join(self.allows(*x), other.allows(*x)), name, slots=slots, **fields)

    def __invert__(self) -> "Structure":
        return Structure(lambda *x: ~self.allows(*x), f"~{self.name}", pointwise=self.pointwise, slots=self.slots)

    def __deepcopy__(self, memo: object) -> "Structure":
        return self  # immutable, and CAUSAL is compared by identity: a copied model uses the same backends

    def at_slots(self, slots: Tensor) -> "Structure":
        """The same relation for queries at these slots (Lq, or B Lq), as in decoding."""
        return replace(self, slots=slots)

    def layout(self, B: int, Lq: int, Lk: int, device: torch.device, bias: ScoreBias = None) -> "Layout":
        """The structure for one batch shape, with a bias of the scores."""
        return Layout(self, B, Lq, Lk, device, bias)

    def mask(self, B: int, Lq: int, Lk: int, device: torch.device | None = None) -> Tensor:
        """B 1 Lq Lk (or broadcastable to it), True where i may attend to j."""
        return self.layout(B, Lq, Lk, device or torch.device("cpu")).dense().allowed


class PairList(NamedTuple):
    """The listed pairs of a layout."""

    i: Tensor  # E
    j: Tensor  # E
    allowed: Tensor  # B|1 E


class DenseMask(NamedTuple):
    """The mask of a layout for all pairs."""

    allowed: Tensor  # B|1 1 Lq|1 Lk
    empty: Tensor | None  # queries without an allowed key, B|1 1 Lq|1 1; None: every query has one
    kernel: Tensor  # mask for a fused kernel: an empty query attends to all keys (no division by 0); includes the bias


class Layout:
    """A structure for one batch shape, with the bias of the scores. Computed once per forward, used by every layer.

    >>> layout = edges(torch.tensor([0, 1]), torch.tensor([0, 0]), 2).layout(1, 2, 2, torch.device("cpu"))
    >>> i = torch.tensor([1])
    >>> layout.mask_rows(i), layout.dense().allowed.shape, layout.bias_at(slice(None), i)
    (tensor([[[[ True, False]]]]), torch.Size([1, 1, 2, 2]), None)
    >>> layout.pair_list().j
    tensor([0, 0])
    """

    def __init__(
        self, structure: Structure, B: int, Lq: int, Lk: int, device: torch.device, bias: ScoreBias = None
    ) -> None:
        self.structure, self.Lq, self.Lk, self.device, self.bias = structure, Lq, Lk, device, bias
        self.b = torch.arange(B, device=device).view(-1, 1, 1)
        self.slots = torch.arange(Lk - Lq, Lk, device=device) if structure.slots is None else structure.slots
        # the flag of a kernel replaces the mask only if the queries are at the slots that the kernel assumes
        square = Lq == Lk and structure.slots is None
        last = structure.allows is CAUSAL.allows and Lq == 1 and is_last_slot(structure.slots, Lk)  # it sees all keys
        self.full = bias is None and (structure.allows is FULL.allows or last)
        self.causal = bias is None and structure is CAUSAL and Lq == Lk and not last
        self.pairs: PairList | None = None
        if structure.pairs is not None and square:
            i, j = (t.to(device) for t in structure.pairs)
            self.pairs = PairList(i, j, structure.allows(self.b, i.view(1, 1, -1), j.view(1, 1, -1)).squeeze(1))
        plan = structure.block_plan if square and bias is None else None
        self.block_passes: BlockPasses | None = plan(B, Lk, device) if plan else None
        self._dense: DenseMask | None = None
        self.flex_mask: Any = None  # cache of backends/flex.py

    def mask_rows(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Mask of these query rows: B|1 1 len(index)|1 Lk."""
        slots, j = self.slots[..., index], torch.arange(self.Lk, device=self.device)
        return self.structure.allows(self.b, slots.view(-1, slots.shape[-1], 1), j.view(1, 1, -1)).unsqueeze(1)

    def bias_at(self, heads: Tensor | slice, i: Tensor, j: Tensor | slice = slice(None)) -> Tensor | None:
        """Bias of these heads for the pairs (i, j), or for all keys of the rows i."""
        return None if self.bias is None else self.bias[..., heads, i, j]

    def dense(self) -> DenseMask:
        """The mask for all pairs, computed at the first call."""
        if self._dense is None:
            mask, never_empty = self.mask_rows(), self.structure.reflexive and self.Lq <= self.Lk
            empty = None if never_empty else ~mask.any(-1, keepdim=True)
            kernel = mask if empty is None else mask | empty
            kernel = kernel if self.bias is None else self.bias.masked_fill(~kernel, -torch.inf)
            self._dense = DenseMask(mask, empty, kernel)
        return self._dense

    def pair_list(self) -> PairList:
        """The listed pairs; an error for a structure without a list."""
        if self.pairs is None:
            raise ValueError(f"structure {self.structure.name} has no list of pairs; use rows, top or full instead")
        return self.pairs


class BlockPass(NamedTuple):
    """Query blocks that attend to the same number of key blocks: attention of M short texts."""

    queries: Tensor  # M: numbers of the query blocks
    keys: Tensor  # M K: the key blocks of each
    layout: Layout  # S queries, K S keys


@dataclass(frozen=True, eq=False)
class BlockPasses:
    """Block-sparse attention of one batch: N blocks of S slots, computed in passes."""

    slots: Tensor  # N S: indices into the flattened batch
    passes: list[BlockPass]
    inverse: Tensor  # B L: index of each slot in the concatenated outputs of the passes
    flex_mask: Callable[[Any], Any]  # mask_mod of FlexAttention -> its BlockMask


# i < 0: more queries than keys
FULL = Structure(lambda b, i, j: (i >= 0) | (j >= 0), "full", reflexive=True)
CAUSAL = Structure(lambda b, i, j: j <= i, "causal", reflexive=True)


def window(w: int) -> Structure:
    """Sliding window: |i - j| <= w.

    >>> window(1).mask(1, 3, 3)[0, 0].int().tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    return Structure(lambda b, i, j: (i - j).abs() <= w, f"window({w})", reflexive=True)


def global_tokens(g: int) -> Structure:
    """Global tokens of BigBird: the first g tokens attend to all tokens, and all tokens attend to them.

    >>> global_tokens(1).mask(1, 3, 3)[0, 0].int().tolist()
    [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    """
    return Structure(lambda b, i, j: (i < g) | (j < g), f"global_tokens({g})")


def random_links(L: int, r: int, seed: int = 0) -> Structure:
    """Each of L queries attends to r random keys j <= i. A hash draws them: a shorter text has the same links.

    >>> random_links(100, 2).mask(1, 100, 100).sum(-1).max()
    tensor(2)
    """

    def link(i: Tensor, n: int | Tensor) -> Tensor:
        x = (i * r + n + (seed % 2**31 << 32)) * 0x1E3779B97F4A7C15
        x = (x ^ (x >> 32)) * 0x3F58476D1CE4E5B9
        return (x ^ (x >> 29)) % (i.abs() + 1)

    def allows(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return reduce(operator.or_, (link(i, n) == j for n in range(r)), i + j < 0)  # avoids an L x L x r tensor

    i, n = torch.cartesian_prod(torch.arange(L), torch.arange(r)).unbind(-1)
    return Structure(allows, f"random({r})", _union((i, link(i, n))))


def bigbird(L: int, w: int = 3, g: int = 2, r: int = 3, seed: int = 0) -> Structure:
    """BigBird: window, global tokens and random links, listed as O(L (w + g + r)) pairs instead of L x L.

    >>> len(bigbird(1000, w=3, g=2, r=3).pairs[0]) < 1000 * 15
    True
    """
    i, step = torch.cartesian_prod(torch.arange(L), torch.arange(-w, w + 1)).unbind(-1)
    token, anchor = torch.cartesian_prod(torch.arange(L), torch.arange(min(g, L))).unbind(-1)
    pairs = _union((i, (i + step).clamp(0, L - 1)), (token, anchor), (anchor, token))
    return replace(window(w) | global_tokens(g), pairs=pairs) | random_links(L, r, seed)


def keep(real: Tensor) -> Structure:
    """Padding mask: only keys with real[b, j] are attended to. real: B Lk, False at padding.

    >>> keep(torch.tensor([[True, True, False]])).mask(1, 1, 3)[0, 0].tolist()
    [[True, True, False]]
    """
    return Structure(lambda b, i, j: real[b, j], "keep")


def same(doc: Tensor, source: Tensor | None = None) -> Structure:
    """Packed documents: i attends to j in the same document. doc: B L, document index; source: that of the keys.

    >>> same(torch.tensor([[0, 0, 1]])).mask(1, 3, 3)[0, 0].int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    keys = doc if source is None else source
    return Structure(lambda b, i, j: doc[b, i] == keys[b, j], "same", reflexive=source is None)


def edges(i: Tensor, j: Tensor, n: int) -> Structure:
    """Graph with n nodes: node i attends to node j along each edge (i, j).

    >>> edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 3).mask(1, 3, 3)[0, 0].int().tolist()
    [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    """
    pairs = _union((i, j))
    codes = torch.cat([pairs[0].new_tensor([-1 << 62]), pairs[0] * n + pairs[1]])  # sorted, never empty

    def allows(b: Tensor, a: Tensor, c: Tensor) -> Tensor:
        known, code = codes.to(a.device), (a * n + c).contiguous()
        return (c < n) & (known[torch.searchsorted(known, code).clamp(max=len(known) - 1)] == code)

    return Structure(allows, f"edges({len(pairs[0])})", pairs, pointwise=False)


def _union(*lists: Pairs) -> Pairs:
    """Union of lists of pairs without duplicates, sorted by i, then j."""
    i, j = (torch.cat(t).long() for t in zip(*lists, strict=True))
    codes = torch.unique(i << 31 | j)
    return codes >> 31, codes & (1 << 31) - 1
