"""BigBird: a word looks at its neighbours, at a few words that all look at, and at some drawn ones. For long texts.

Words look in blocks: if a block looks at another, all words of the one look at all of the other. Blocks are counted
from the start of a document, so that a text says the same alone, padded, packed, or word by word with a memory.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.core import CAUSAL, FULL, Layout, Structure, Tiles, bigbird
from harken.errors import BadSetting
from harken.settings import Part

BLOCK = 128  # FlexAttention's


class Reach(Part):
    """Who looks at whom, in families that may read long texts."""

    structure: Literal["full", "bigbird"] = Field(
        "full", description="who looks at whom: all at all; bigbird: blocks at near, hub and drawn ones, for long texts"
    )
    block_size: int = Field(64, ge=1, le=65536, description="bigbird: words in a block; 128 suits a GPU")
    window_blocks: int = Field(1, ge=0, le=1000, description="bigbird: blocks to each side that a block looks at")
    global_blocks: int = Field(1, ge=0, le=1000, description="bigbird: first blocks, which see all and are seen by all")
    random_blocks: int = Field(3, ge=0, le=1000, description="bigbird: drawn blocks before it that a block looks at")
    random_seed: int = Field(0, ge=0, description="bigbird: what they are drawn with")

    @property
    def packs(self) -> bool:
        """Whether several texts are laid into a row: with blocks each would be cut anew."""
        return self.structure == "full"

    @property
    def remark(self) -> str | None:
        """What is to be told before the training: blocks save nothing where each looks at all."""
        said: Any = self
        n, most = (
            -(-said.context // self.block_size),
            2 * self.window_blocks + 1 + self.global_blocks + self.random_blocks,
        )
        if self.structure == "full" or n > most:
            return None
        why = f"a text of model.context={said.context} has {n} blocks, and each looks at up to {most}"
        return f"model.structure=bigbird: {why}: nothing is saved; for longer texts set model.context"

    def reach(self, also: Structure = FULL) -> Structure:
        """The setting as a structure, for blocks that also keep to another one."""
        if self.structure == "full":
            return FULL
        said: Any = self
        if getattr(self, "positions", None) == "alibi":
            raise BadSetting("positions=alibi: its bias is a table of all pairs; with structure=bigbird take rotary")
        size = min(self.block_size, said.context)  # a larger one would be filled up with nothing
        n = -(-said.context // size)
        with torch.device("cpu"):  # a table, even where a model is built without its weights
            return tiled(
                bigbird(n, self.window_blocks, self.global_blocks, self.random_blocks, self.random_seed) & also, size
            )


def tiled(s: Structure, size: int) -> Structure:
    """The same relation between blocks of so many slots."""
    if s.pairs is None:
        raise ValueError(f"{s.name} lists no pairs, so it has no blocks to skip")
    allowed = s.allows(torch.zeros(1, dtype=torch.long), *s.pairs)
    i, j = (t[allowed] for t in s.pairs)
    degree = i.bincount()
    n, rank = len(degree), torch.arange(len(i)) - (degree.cumsum(0) - degree)[i]  # of j among those i looks at
    hubs = int((degree == n).cumprod(0).sum())
    near = torch.full((n, int(degree[hubs:].max()) if hubs < n else 1), -1)
    near[i[i >= hubs], rank[i >= hubs]] = j[i >= hubs]
    return replace(
        s,
        allows=lambda b, i, j: s.allows(b, i // size, j // size),
        name=f"{s.name} of {size}",
        pairs=None,
        plan=Plan(size, near, hubs),
    )


def within(s: Structure, pos: Tensor, memory: Any = None) -> Structure:
    """The same where documents are packed (pos: B L), with blocks counted from the start of each.

    In one document, and in a memory, slots and places are the same.
    """
    if not isinstance(s.plan, Plan) or pos.dim() == 1 or memory is not None:
        return s
    plan = replace(s.plan, places=pos, made={}, held=[])
    return replace(s, allows=lambda b, i, j: s.allows(b, pos[b, i], pos[b, j]), plan=plan)


@dataclass(frozen=True, eq=False)
class Plan:
    """Which blocks a block of a document looks at: those `near`, or all if it is one of the first `hubs`."""

    size: int  # S
    near: Tensor  # n K, -1: none
    hubs: int
    places: Tensor | None = None  # B L: where each slot stands in its document; None: at its own number
    inside: Structure = FULL  # what else holds between the words of two blocks
    made: dict[Any, tuple["Cuts", dict[Structure, Tiles]]] = field(default_factory=dict)  # of the last shapes
    held: list[Any] = field(default_factory=list)  # of those, what recorded steps read again and again
    lay: Any = field(default_factory=lambda: torch.compiler.disable(_laid))  # here, as it takes a second to import

    def __and__(self, other: Structure) -> "Plan":
        return replace(self, inside=self.inside & other)

    def __call__(self, B: int, L: int, device: torch.device) -> Tiles:
        tiles: Tiles = self.lay(self, B, L, device)
        return tiles


def recording(device: torch.device) -> bool:
    """Whether what is done now will be done again and again without being asked."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _laid(plan: Plan, B: int, L: int, device: torch.device) -> Tiles:
    """What holds for every batch of a shape is laid out once; not for inference, as no training may use its tensors."""
    key, inside, alone = (B, L, device), plan.inside, torch.is_inference_mode_enabled()
    with torch.inference_mode(False):
        if key not in plan.made:
            if len(plan.made) > 3:
                del plan.made[next(iter(plan.made))]  # the oldest
            plan.made[key] = Cuts(plan, *key), {}
        cuts, kept = plan.made[key]
        if recording(device):
            plan.held.append(plan.made[key])
        if alone or inside not in (FULL, CAUSAL):
            return cuts.under(inside)
        if inside not in kept:
            kept[inside] = cuts.under(inside)
        return kept[inside]


class Cuts:
    """Documents cut into blocks. There are two passes, since hubs look at all of a document, and others at little."""

    def __init__(self, plan: Plan, B: int, L: int, device: torch.device) -> None:
        S, places = plan.size, torch.arange(L).expand(B, L) if plan.places is None else plan.places.cpu()
        if (most := int(places.max())) >= len(plan.near) * S:
            raise ValueError(f"a text has {most + 1} words, and blocks are laid out for {len(plan.near) * S}")
        place, slot = places.flatten(), torch.arange(B * L)
        first = ((place % S == 0) | (slot % L == 0)).nonzero()[:, 0]  # N: where each block begins
        n, row = place[first] // S, first // L  # N: its number in its document, and the row it stands in
        slots = first[:, None] + torch.arange(S)  # N S
        real = slots < torch.cat([first[1:], torch.tensor([B * L])])[:, None]  # a document's last block may be short
        slots = slots.where(real, first[:, None])
        self.slots, self.B, self.L = slots.to(device), B, L
        self.unit = math.gcd(S, BLOCK) if plan.places is None else 1  # a square of this side lies in one of a kernel's
        self.size = S
        # only a kernel of a GPU asks it; and here, since a recorded step may copy nothing from the CPU
        self.table = _table(plan).to(device) if device.type == "cuda" and plan.places is None else None
        self.passes, order = list[tuple[Tensor, Tensor, Tensor, list[Tensor]]](), list[Tensor]()
        every = torch.arange(most // S + 1).expand(len(plan.near), -1)
        for near, who in ((plan.near, n >= plan.hubs), (every, n < plan.hubs)):
            q = who.nonzero()[:, 0]  # M
            to = near[n[q]]  # M K
            at = ((q - n[q])[:, None] + to).clamp(0, len(n) - 1)
            there = (to >= 0) & (n[at] == to) & (row[at] == row[q, None])
            known = real[q, :, None] & (there[..., None] & real[at]).flatten(1)[:, None]  # M S KS
            where = [row[q].view(-1, 1, 1), slots[q, :, None] % L, slots[at].flatten(1)[:, None] % L]  # b, i, j
            order.append(q)
            if len(q):
                q, at, known, *where = (t.to(device) for t in (q, at, known, *where))
                self.passes.append((q, at, known, where))
        rows, back = torch.cat(order), torch.empty(B * L, dtype=torch.long)
        back[slots[rows][real[rows]]] = torch.arange(slots.numel()).view_as(slots)[real[rows]]
        self.back = back.view(B, L).to(device)

    def under(self, inside: Structure) -> Tiles:
        """With what holds inside the blocks."""
        masks = [known if inside is FULL else known & inside.allows(*where) for *_, known, where in self.passes]
        laid = [(q, at, _told(mask)) for mask, (q, at, *_) in zip(masks, self.passes, strict=True)]
        made = list[Any]()

        def blocks(mask_mod: Any) -> Any:
            if not made:
                made.append(self._blocks(masks, mask_mod if self.table is None else self._asked(inside)))
            return made[0]

        return Tiles(self.slots, laid, self.back, blocks)

    def _asked(self, inside: Structure) -> Any:
        """FlexAttention's question, answered by a table of the blocks: drawn ones would be drawn for each pair."""
        S, table = self.size, self.table
        assert table is not None

        def asked(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return table[i // S, j // S] & inside.allows(b, i, j)

        return asked

    def _blocks(self, masks: list[Tensor], mask_mod: Any) -> Any:
        """FlexAttention's block mask, by counts of the allowed pairs: where all are, the kernel need not ask."""
        from torch.nn.attention.flex_attention import BlockMask

        t, u = -(-self.L // BLOCK), self.unit
        count = torch.zeros(self.B * t * t, dtype=torch.long, device=self.back.device)
        for allowed, (*_, (b, i, j)) in zip(masks, self.passes, strict=True):
            small = allowed.unflatten(2, (-1, u)).unflatten(1, (-1, u)).sum((2, 4))  # of squares inside one block
            count.index_add_(0, ((b * t + i[:, ::u] // BLOCK) * t + j[..., ::u] // BLOCK).flatten(), small.flatten())
        count = count.view(self.B, 1, t, t)
        full = count == BLOCK**2
        (kv, of), (kv_full, of_full) = _listed((count > 0) & ~full), _listed(full)
        return BlockMask.from_kv_blocks(
            kv, of, kv_full, of_full, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(self.L, self.L)
        )


def _table(plan: Plan) -> Tensor:  # n n+1
    """Which blocks look at which."""
    n = len(plan.near)
    table = torch.zeros(n, n + 1, dtype=torch.bool).scatter_(1, plan.near.where(plan.near >= 0, n), True)
    table[: plan.hubs] = True
    return table


def _told(allowed: Tensor) -> Layout:  # M S KS
    M, S, KS = allowed.shape
    return Structure(lambda b, i, j: allowed, "blocks").lay(M, S, KS, allowed.device)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are set, and which they are, first."""
    return blocks.sum(-1).int(), blocks.int().argsort(dim=-1, descending=True, stable=True).int()
