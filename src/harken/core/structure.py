"""Who may look at whom: a relation over (batch row b, query slot i, key slot j).

A causal mask, padding, packed documents, BigBird's pattern and a graph's adjacency are the same kind of thing.
They combine with & | ~ and are laid out late: as a mask, as a list of pairs, as blocks, or not at all.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor

# FlexAttention and its masks are kernels only when compiled; after 8 shapes a compiler would give up and lay all out
compiled = cache(lambda f: torch._dynamo.config.patch(recompile_limit=64)(torch.compile(f)))
Predicate = Callable[[Tensor, Tensor, Tensor], Tensor]  # b, i, j (broadcastable) -> True where i may look at j
Pairs = tuple[Tensor, Tensor]  # i, j: E each
Bias = Tensor | None  # H Lq Lk or B H Lq Lk
Listed = tuple[Tensor, Tensor, Tensor]  # i, j: E each, and whether the pair is allowed: B|1 E


@dataclass(frozen=True, eq=False)
class Structure:
    """A relation, not yet laid out. Slots are places in the row or in the memory, not positions in a document."""

    allows: Predicate
    name: str
    pairs: Pairs | None = None  # a list that holds every allowed pair, when there is one shorter than L x L
    reflexive: bool = False  # every query may look at its own slot, so no row is empty
    pointwise: bool = True  # the predicate is arithmetic on b, i, j, so a block kernel can carry it along
    slots: Tensor | None = None  # where the queries sit: Lq or B Lq; None: at the end of the keys
    plan: Any = None  # of blocks that hold every allowed pair: plan(B, L, device) gives Tiles; plan & structure

    def __and__(self, other: "Structure") -> "Structure":
        if self is FULL or other is FULL or self is other:
            return other if self is FULL else self
        a, b = self.pairs, other.pairs  # the shorter list will do
        pairs = a if b is None or (a is not None and len(a[0]) <= len(b[0])) else b
        plan = self.plan & other if self.plan else other.plan and other.plan & self
        return self._join(other, operator.and_, "&", pairs=pairs, plan=plan)

    def __or__(self, other: "Structure") -> "Structure":
        if self is FULL or other is FULL:
            return FULL
        pairs = None if self.pairs is None or other.pairs is None else _union(self.pairs, other.pairs)
        return self._join(other, operator.or_, "|", pairs=pairs)

    def _join(self, other: "Structure", how: Callable[[Any, Any], Any], sign: str, **rest: Any) -> "Structure":
        name, slots = f"({self.name} {sign} {other.name})", other.slots if self.slots is None else self.slots
        rest |= {"reflexive": how(self.reflexive, other.reflexive), "pointwise": self.pointwise and other.pointwise}
        return Structure(lambda *x: how(self.allows(*x), other.allows(*x)), name, slots=slots, **rest)

    def __invert__(self) -> "Structure":
        return Structure(lambda *x: ~self.allows(*x), f"~{self.name}", pointwise=self.pointwise, slots=self.slots)

    def __deepcopy__(self, memo: Any) -> "Structure":
        return self  # it never changes, and CAUSAL is known by its identity: a copied model takes the same routes

    def at(self, slots: Tensor) -> "Structure":
        """The same relation for queries that sit at these slots (Lq, or B Lq): decoding, or a few rows of a view."""
        return replace(self, slots=slots)

    def lay(self, B: int, Lq: int, Lk: int, device: torch.device, bias: Bias = None) -> "Layout":
        return Layout(self, B, Lq, Lk, device, bias)

    def mask(self, B: int, Lq: int, Lk: int, device: torch.device | None = None) -> Tensor:
        """B 1 Lq Lk (or broadcastable to it), True where i may look at j."""
        return self.lay(B, Lq, Lk, device or torch.device("cpu")).dense()[0]


class Layout:
    """A structure laid out for one shape, with the bias of its scores, once per forward: every layer reads the same."""

    def __init__(self, structure: Structure, B: int, Lq: int, Lk: int, device: torch.device, bias: Bias = None) -> None:
        self.structure, self.Lq, self.Lk, self.device, self.bias = structure, Lq, Lk, device, bias
        self.b = torch.arange(B, device=device).view(-1, 1, 1)
        self.slots = torch.arange(Lk - Lq, Lk, device=device) if structure.slots is None else structure.slots
        # a kernel's own flag may replace the mask, but only when the queries sit where the kernel thinks they do
        alike, last = Lq == Lk and structure.slots is None, structure is CAUSAL and Lq == 1  # the last sees all
        self.full = bias is None and (structure.allows is FULL.allows or last)
        self.causal = bias is None and structure is CAUSAL and Lq == Lk and not last
        self.pairs: Listed | None = None
        if structure.pairs is not None and alike:
            i, j = (t.to(device) for t in structure.pairs)
            self.pairs = i, j, structure.allows(self.b, i.view(1, 1, -1), j.view(1, 1, -1)).squeeze(1)
        self.tiles: Tiles | None = structure.plan(B, Lk, device) if structure.plan and alike and bias is None else None
        self._dense: tuple[Tensor, Tensor | None, Tensor] | None = None
        self._blocks: Any = None

    def rows(self, index: Tensor | slice = slice(None)) -> Tensor:
        """The mask of these query rows: B|1 1 len(index)|1 Lk."""
        slots, j = self.slots[..., index], torch.arange(self.Lk, device=self.device)
        return self.structure.allows(self.b, slots.view(-1, slots.shape[-1], 1), j.view(1, 1, -1)).unsqueeze(1)

    def shift(self, heads: Tensor | slice, i: Tensor, j: Tensor | slice = slice(None)) -> Tensor | None:
        """The bias of these heads for these pairs, or for whole rows i."""
        return None if self.bias is None else self.bias[..., heads, i, j]

    def dense(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """The mask, B|1 1 Lq|1 Lk; the rows that may look at nothing, None where there can be none; and what a kernel
        is given: there an empty row looks everywhere, so that nothing divides by 0, and the bias is in it."""
        if self._dense is None:
            mask, inside = self.rows(), self.structure.reflexive and self.Lq <= self.Lk
            empty = None if inside else ~mask.any(-1, keepdim=True)
            given = mask if empty is None else mask | empty
            self._dense = mask, empty, given if self.bias is None else self.bias.masked_fill(~given, -torch.inf)
        return self._dense

    def listed(self) -> Listed:
        if self.pairs is None:
            raise ValueError(f"{self.structure.name} lists no pairs; ask for rows, top or whole")
        return self.pairs

    def blocks(self) -> Any:
        """FlexAttention's block mask: blocks in which nobody may look at anybody are skipped, never stored."""
        from torch.nn.attention.flex_attention import create_block_mask

        allows, slots = self.structure.allows, self.slots

        def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return allows(b, slots[b, i] if slots.dim() == 2 else slots[i], j)

        if self._blocks is None and self.tiles is not None:
            self._blocks = self.tiles.blocks(mask_mod)
        elif self._blocks is None:
            B = len(self.rows(slice(1)))  # 1 where all rows of the batch are alike
            build: Any = create_block_mask if torch.compiler.is_compiling() else compiled(create_block_mask)
            self._blocks = build(mask_mod, B, None, self.Lq, self.Lk, str(self.device))
        return self._blocks


@dataclass(frozen=True, eq=False)
class Tiles:
    """Blocks of S slots, N in all rows together, and in passes: M of them, the K that each looks at, and a layout."""

    slots: Tensor  # N S: of the batch's slots, counted through its rows
    passes: list[tuple[Tensor, Tensor, Layout]]  # M, M K, of S queries and KS keys
    back: Tensor  # B L: where in the passes' answers, one below the other, a slot's own stands
    blocks: Callable[[Any], Any]  # FlexAttention's, for its question whether i may look at j


FULL = Structure(lambda b, i, j: (i >= 0) | (j >= 0), "full", reflexive=True)  # i < 0: more queries than keys
CAUSAL = Structure(lambda b, i, j: j <= i, "causal", reflexive=True)


def window(w: int) -> Structure:
    """Neighbours at distance w or less."""
    return Structure(lambda b, i, j: (i - j).abs() <= w, f"window({w})", reflexive=True)


def hubs(g: int) -> Structure:
    """The first g slots see all and are seen by all (BigBird's global tokens)."""
    return Structure(lambda b, i, j: (i < g) | (j < g), f"hubs({g})")


def random_links(L: int, r: int, seed: int = 0) -> Structure:
    """Each of L queries looks at r keys up to it, so that shorter texts have the same; drawn by a hash, not a table."""

    def link(i: Tensor, n: int | Tensor) -> Tensor:
        x = (i * r + n + (seed % 2**31 << 32)) * 0x1E3779B97F4A7C15
        x = (x ^ (x >> 32)) * 0x3F58476D1CE4E5B9
        return (x ^ (x >> 29)) % (i.abs() + 1)

    def allows(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return reduce(operator.or_, (link(i, n) == j for n in range(r)), i + j < 0)  # never a whole L x L x r

    i, n = torch.cartesian_prod(torch.arange(L), torch.arange(r)).unbind(-1)
    return Structure(allows, f"random({r})", _union((i, link(i, n))))


def bigbird(L: int, w: int = 3, g: int = 2, r: int = 3, seed: int = 0) -> Structure:
    """Window, hubs and random links together, listed: O(L (w + g + r)) pairs, not L x L."""
    i, step = torch.cartesian_prod(torch.arange(L), torch.arange(-w, w + 1)).unbind(-1)
    to, hub = torch.cartesian_prod(torch.arange(L), torch.arange(min(g, L))).unbind(-1)
    pairs = _union((i, (i + step).clamp(0, L - 1)), (to, hub), (hub, to))
    return replace(window(w) | hubs(g), pairs=pairs) | random_links(L, r, seed)


def keep(real: Tensor) -> Structure:
    """Only real tokens are looked at. real: B Lk, False at padding."""
    return Structure(lambda b, i, j: real[b, j], "keep")


def same(doc: Tensor, source: Tensor | None = None) -> Structure:
    """Only tokens of the same document see each other; or those of the source. B L: its index in a packed row."""
    keys, own = (doc, True) if source is None else (source, False)
    return Structure(lambda b, i, j: doc[b, i] == keys[b, j], "same", reflexive=own)


def edges(i: Tensor, j: Tensor, n: int) -> Structure:
    """A graph of n nodes: node i looks at node j."""
    listed = _union((i, j))
    codes = torch.cat([listed[0].new_tensor([-1 << 62]), listed[0] * n + listed[1]])  # sorted, and never empty

    def allows(b: Tensor, a: Tensor, c: Tensor) -> Tensor:
        known, code = codes.to(a.device), (a * n + c).contiguous()
        return (c < n) & (known[torch.searchsorted(known, code).clamp(max=len(known) - 1)] == code)

    return Structure(allows, f"edges({len(listed[0])})", listed, pointwise=False)


def _union(*lists: Pairs) -> Pairs:
    """A relation holds or does not: a pair that is named twice counts once. Sorted by i, then j."""
    i, j = (torch.cat(t).long() for t in zip(*lists, strict=True))
    codes = torch.unique(i << 31 | j)
    return codes >> 31, codes & (1 << 31) - 1
