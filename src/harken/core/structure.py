"""Who may look at whom: a relation over (batch row b, query slot i, key slot j).

A causal mask, padding, packed documents, BigBird's pattern and a graph's adjacency are the same kind of thing.
They combine with & | ~ and are laid out late: as a mask, as a list of pairs, as blocks, or not at all.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Predicate = Callable[[Tensor, Tensor, Tensor], Tensor]  # b, i, j (broadcastable) -> True where i may look at j
Pairs = tuple[Tensor, Tensor]  # i, j: E each


@dataclass(frozen=True, eq=False)
class Structure:
    """A relation, not yet laid out. Slots are places in the row or in the memory, not positions in a document."""

    allows: Predicate
    name: str
    pairs: Pairs | None = None  # a list that holds every allowed pair, when there is one shorter than L x L
    reflexive: bool = False  # every query may look at its own slot, so no row is empty
    batched: bool = False  # the answer depends on b
    slots: Tensor | None = None  # where the queries sit: Lq or B Lq; None: at the end of the keys

    def __and__(self, other: "Structure") -> "Structure":
        if self is FULL or other is FULL or self is other:
            return other if self is FULL else self
        known = [s.pairs for s in (self, other) if s.pairs is not None]
        pairs = min(known, key=lambda p: len(p[0])) if known else None
        return self._join(other, operator.and_, "&", pairs, self.reflexive and other.reflexive)

    def __or__(self, other: "Structure") -> "Structure":
        if self is FULL or other is FULL:
            return FULL
        pairs = None if self.pairs is None or other.pairs is None else _union(self.pairs, other.pairs)
        return self._join(other, operator.or_, "|", pairs, self.reflexive or other.reflexive)

    def _join(
        self,
        other: "Structure",
        how: Callable[[Tensor, Tensor], Tensor],
        sign: str,
        pairs: Pairs | None,
        reflexive: bool,
    ) -> "Structure":
        def allows(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return how(self.allows(b, i, j), other.allows(b, i, j))

        slots = self.slots if self.slots is not None else other.slots
        name = f"({self.name} {sign} {other.name})"
        return Structure(allows, name, pairs, reflexive, self.batched or other.batched, slots)

    def __invert__(self) -> "Structure":
        return Structure(lambda b, i, j: ~self.allows(b, i, j), f"~{self.name}", None, False, self.batched, self.slots)

    def at(self, slots: Tensor) -> "Structure":
        """The same relation for queries that sit at these slots (Lq, or B Lq): decoding, or a few rows of a view."""
        return replace(self, slots=slots)

    def lay(self, B: int, Lq: int, Lk: int, device: torch.device) -> "Layout":
        return Layout(self, B, Lq, Lk, device)

    def mask(self, B: int, Lq: int, Lk: int, device: torch.device | None = None) -> Tensor:
        """B 1 Lq Lk (or broadcastable to it), True where i may look at j."""
        return Layout(self, B, Lq, Lk, device or torch.device("cpu")).mask

    def __repr__(self) -> str:
        return self.name


class Layout:
    """A structure laid out for one shape, once per forward: every layer reads the same mask."""

    def __init__(self, structure: Structure, B: int, Lq: int, Lk: int, device: torch.device) -> None:
        self.structure, self.B, self.Lq, self.Lk, self.device = structure, B, Lq, Lk, device
        # a kernel's own flag may replace the mask, but only when the queries sit where the kernel thinks they do
        last = structure is CAUSAL and Lq == 1  # one query at the end of its keys sees them all
        self.full = structure.allows is FULL.allows or last
        self.causal = structure is CAUSAL and Lq == Lk and not last
        self._mask: Tensor | None = None
        self._empty: Tensor | None = None
        self._pairs: tuple[Tensor, Tensor, Tensor] | None = None
        self._blocks: object = None

    def lay(self, B: int, Lq: int, Lk: int, device: torch.device) -> "Layout":
        """Already laid out: a layout stands wherever a structure may."""
        return self

    def slots(self) -> Tensor:
        """The slot of each query: Lq or B Lq."""
        given = self.structure.slots
        return torch.arange(self.Lk - self.Lq, self.Lk, device=self.device) if given is None else given

    def _allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """i and j: (B) x y -> B|1 x y."""
        b = torch.arange(self.B if self.structure.batched else 1, device=self.device)
        return self.structure.allows(b[:, None, None], i, j)

    @property
    def mask(self) -> Tensor:
        """B|1 1 Lq|1 Lk, True where i may look at j."""
        if self._mask is None:
            self._mask = self.rows()
        return self._mask

    def rows(self, index: Tensor | None = None) -> Tensor:
        """The mask of these query rows only: B|1 1 len(index) Lk."""
        slots = self.slots() if index is None else self.slots()[..., index]
        j = torch.arange(self.Lk, device=self.device)
        return self._allowed(slots[..., None].view(-1, slots.shape[-1], 1), j[None, None]).unsqueeze(1)

    @property
    def empty(self) -> Tensor | None:
        """The rows that may look at nothing, B|1 1 Lq|1 1; None where there can be none."""
        if self.structure.reflexive:
            return None
        if self._empty is None:
            self._empty = ~self.mask.any(-1, keepdim=True)
        return self._empty

    @property
    def pairs(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """i, j (E each) and whether each is allowed (B|1 E): graphs and BigBird, with nothing of size L x L."""
        if self.structure.pairs is None or self.Lq != self.Lk or self.structure.slots is not None:
            return None
        if self._pairs is None:
            i, j = (t.to(self.device) for t in self.structure.pairs)
            self._pairs = i, j, self._allowed(i[None, None], j[None, None]).squeeze(1)
        return self._pairs

    @property
    def blocks(self) -> object:
        """FlexAttention's block mask: blocks in which nobody may look at anybody are skipped, never stored."""
        if self._blocks is None:
            from torch.nn.attention.flex_attention import create_block_mask

            allows, slots = self.structure.allows, self.slots()

            def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return allows(b, slots[b, i] if slots.dim() == 2 else slots[i], j)

            B = self.B if self.structure.batched or slots.dim() == 2 else None
            # compiled, because the eager builder would lay out the whole L x L first
            eager = torch.compiler.is_compiling()
            self._blocks = create_block_mask(mask_mod, B, None, self.Lq, self.Lk, str(self.device), _compile=not eager)
        return self._blocks


FULL = Structure(lambda b, i, j: (i >= 0) & (j >= 0), "full", reflexive=True)
CAUSAL = Structure(lambda b, i, j: j <= i, "causal", reflexive=True)


def window(w: int, L: int | None = None) -> Structure:
    """Neighbours at distance w or less. With the length L given, its pairs are listed: L (2w + 1), not L x L."""
    pairs = None
    if L is not None:
        j = torch.arange(L)[:, None] + torch.arange(-w, w + 1)
        inside = (j >= 0) & (j < L)
        pairs = inside.nonzero()[:, 0], j[inside]
    return Structure(lambda b, i, j: (i - j).abs() <= w, f"window({w})", pairs, reflexive=True)


def hubs(g: int, L: int | None = None) -> Structure:
    """The first g slots see all and are seen by all (BigBird's global tokens). Listed when L is given: 2 g L."""
    pairs = None
    if L is not None:
        to, hub = torch.arange(L).repeat(min(g, L)), torch.arange(min(g, L)).repeat_interleave(L)
        pairs = _union((to, hub), (hub, to))
    return Structure(lambda b, i, j: (i < g) | (j < g), f"hubs({g})", pairs)


def random_links(L: int, r: int, seed: int = 0) -> Structure:
    """Each of L queries looks at r keys, drawn once."""
    table = torch.randint(L, (L, r), generator=torch.Generator().manual_seed(seed))

    def allows(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        links = table.to(i.device)
        found = links[i, 0] == j
        for n in range(1, r):  # one comparison a link: never a whole L x L x r
            found = found | (links[i, n] == j)
        return found

    return Structure(allows, f"random({r})", _unique(torch.arange(L).repeat_interleave(r), table.flatten()))


def bigbird(L: int, w: int = 3, g: int = 2, r: int = 3, seed: int = 0) -> Structure:
    """Window, hubs and random links together, listed: O(L (w + g + r)) pairs."""
    return window(w, L) | hubs(g, L) | random_links(L, r, seed)


def keep(real: Tensor) -> Structure:
    """Only real tokens are looked at. real: B Lk, False at padding."""
    return Structure(lambda b, i, j: real[b, j], "keep", batched=True)


def same(doc: Tensor) -> Structure:
    """Only tokens of the same document see each other. doc: B L, the index of the document in a packed row."""
    return Structure(lambda b, i, j: doc[b, i] == doc[b, j], "same", reflexive=True, batched=True)


def edges(i: Tensor, j: Tensor, n: int) -> Structure:
    """A graph of n nodes: node i looks at node j."""
    listed = _unique(i, j)
    codes = listed[0] * n + listed[1]

    def allows(b: Tensor, a: Tensor, c: Tensor) -> Tensor:
        known, code = codes.to(a.device), (a * n + c).contiguous()
        return known[torch.searchsorted(known, code).clamp(max=len(known) - 1)] == code

    if not len(codes):
        return replace(~FULL, name="edges(0)", pairs=listed)
    return Structure(allows, f"edges({len(codes)})", listed)


def _unique(i: Tensor, j: Tensor) -> Pairs:
    """A relation holds or does not: a pair that is named twice counts once. Sorted by i, then j."""
    pairs = torch.unique(torch.stack([i, j]).long(), dim=1)
    return pairs[0], pairs[1]


def _union(a: Pairs, b: Pairs) -> Pairs:
    return _unique(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]]))
