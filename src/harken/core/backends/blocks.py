"""Backend `blocks`: block-sparse attention, as in BigBird, for long texts. No tensor has the size L x L.

If a block attends to another one, all its tokens attend to all tokens of the other. Blocks are counted from the start
of a document, so a text gives the same numbers alone, padded, packed or token by token with a memory.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core.attend import compute
from harken.core.similarity import Similarity
from harken.core.structure import CAUSAL, FULL, BlockPass, BlockPasses, Layout, Structure

FLEX_BLOCK = 128  # block size of FlexAttention
MAX_SHAPES = 4  # batch shapes kept in the cache of a pattern


def blocks(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """Attention of each query block to its key blocks: a batch of short sequences.

    >>> from harken.core import Dot, bigbird
    >>> q = torch.randn(1, 1, 64, 4)
    >>> layout = blockwise(bigbird(16, 1, 1, 1), 4).layout(1, 64, 64, q.device)
    >>> blocks(q, q, q, Dot(), layout).shape
    torch.Size([1, 1, 64, 4])
    """
    passes = layout.block_passes
    assert passes is not None
    outputs, (q, k, v) = [], (x.transpose(1, 2).flatten(0, 1)[passes.slots] for x in (q, k, v))  # N S H D
    for query_blocks, key_blocks, inner in passes.passes:
        gathered = (F.embedding(key_blocks, x.flatten(1)).unflatten(-1, x.shape[1:]).flatten(1, 2) for x in (k, v))
        queries, keys, values = (x.transpose(1, 2) for x in (q[query_blocks], *gathered))  # M H S D, M H' KS D
        outputs.append(compute(queries, keys, values, similarity, inner, dropout=dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[passes.inverse].transpose(1, 2)


def blockwise(s: Structure, block_size: int) -> Structure:
    """The same relation between blocks of `block_size` slots.

    >>> from harken.core import bigbird
    >>> blockwise(bigbird(3, w=0, g=0, r=0), 2).mask(1, 4, 4)[0, 0].int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    """
    if s.pairs is None:
        raise ValueError(f"structure {s.name} has no list of pairs, so it has no blocks to skip")
    allowed = s.allows(torch.zeros(1, dtype=torch.long), *s.pairs)
    i, j = (t[allowed] for t in s.pairs)
    degree = i.bincount()
    n, rank = len(degree), torch.arange(len(i)) - (degree.cumsum(0) - degree)[i]  # rank of j among the keys of i
    n_global = int((degree == n).cumprod(0).sum())
    neighbors = torch.full((n, int(degree[n_global:].max()) if n_global < n else 1), -1)
    neighbors[i[i >= n_global], rank[i >= n_global]] = j[i >= n_global]
    plan = BlockPattern(block_size, neighbors, n_global)
    blocked = replace(s, name=f"{s.name} of {block_size}", pairs=None, block_plan=plan)
    return replace(blocked, allows=lambda b, i, j: s.allows(b, i // block_size, j // block_size))


def per_document(s: Structure, pos: Tensor, memory: object = None) -> Structure:
    """A blockwise structure for packed documents (pos: B L), with blocks counted from the start of each document.

    Without packing (pos: L), and in a memory, slot and position are equal, so the structure does not change.

    >>> from harken.core import bigbird
    >>> diagonal = blockwise(bigbird(3, w=0, g=0, r=0), 2)
    >>> per_document(diagonal, torch.tensor([[0, 0, 1]])).mask(1, 3, 3)[0, 0].all()
    tensor(True)
    """
    if not isinstance(s.block_plan, BlockPattern) or pos.dim() == 1 or memory is not None:
        return s
    pattern = replace(s.block_plan, pos=pos, cache={}, captured=[])
    return replace(s, allows=lambda b, i, j: s.allows(b, pos[b, i], pos[b, j]), block_plan=pattern)


@dataclass(frozen=True, eq=False)
class BlockPattern:
    """Key blocks of each block of a document: its `neighbors`, or all for the first `n_global` blocks."""

    size: int  # S
    neighbors: Tensor  # n K, -1: none
    n_global: int
    pos: Tensor | None = None  # B L: document position of each slot; None: the slot itself
    inside: Structure = FULL  # further structure between the tokens of two blocks
    cache: dict[Any, tuple["BlockLayout", dict[Structure, BlockPasses]]] = field(default_factory=dict)
    captured: list[Any] = field(default_factory=list)  # cache entries that captured CUDA graphs read
    # a field, because importing the compiler takes a second
    build: Any = field(default_factory=lambda: torch.compiler.disable(_cached_passes))

    def __and__(self, other: Structure) -> "BlockPattern":
        return replace(self, inside=self.inside & other)

    def __call__(self, B: int, L: int, device: torch.device) -> BlockPasses:
        passes: BlockPasses = self.build(self, B, L, device)
        return passes


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _cached_passes(pattern: BlockPattern, B: int, L: int, device: torch.device) -> BlockPasses:
    """Passes for a batch shape. Full and causal ones are cached, except inference tensors: training cannot use them."""
    key, inside, inference = (B, L, device), pattern.inside, torch.is_inference_mode_enabled()
    with torch.inference_mode(False):
        if key not in pattern.cache:
            if len(pattern.cache) >= MAX_SHAPES:
                del pattern.cache[next(iter(pattern.cache))]  # the oldest
            pattern.cache[key] = BlockLayout(pattern, *key), {}
        layout, passes = pattern.cache[key]
        if is_capturing(device):
            pattern.captured.append(pattern.cache[key])
        if inference or inside not in (FULL, CAUSAL):
            return layout.passes_inside(inside)
        if inside not in passes:
            passes[inside] = layout.passes_inside(inside)
        return passes[inside]


class BlockLayout:
    """The documents of a batch, divided into blocks. Global blocks attend to all blocks, in a pass of their own."""

    def __init__(self, pattern: BlockPattern, B: int, L: int, device: torch.device) -> None:
        S, positions = pattern.size, torch.arange(L).expand(B, L) if pattern.pos is None else pattern.pos.cpu()
        if (last := int(positions.max())) >= len(pattern.neighbors) * S:
            limit = len(pattern.neighbors) * S
            raise ValueError(f"a text has {last + 1} tokens, but the block pattern ends at {limit} tokens")
        position, slot = positions.flatten(), torch.arange(B * L)
        first = ((position % S == 0) | (slot % L == 0)).nonzero()[:, 0]  # N: first slot of each block
        n, row = position[first] // S, first // L  # N: number of the block in its document, and its batch row
        slots = first[:, None] + torch.arange(S)  # N S
        real = slots < torch.cat([first[1:], torch.tensor([B * L])])[:, None]  # the last block may be shorter
        slots = slots.where(real, first[:, None])
        self.slots, self.B, self.L = slots.to(device), B, L
        # a square with this side lies in one block of FlexAttention
        self.unit = math.gcd(S, FLEX_BLOCK) if pattern.pos is None else 1
        self.size = S
        # only a CUDA kernel reads the table; built here, because CUDA graph capture allows no copy from the CPU
        self.table = _block_table(pattern).to(device) if device.type == "cuda" and pattern.pos is None else None
        self.passes, order = list[tuple[Tensor, Tensor, Tensor, list[Tensor]]](), list[Tensor]()
        all_blocks = torch.arange(last // S + 1).expand(len(pattern.neighbors), -1)
        for neighbors, chosen in ((pattern.neighbors, n >= pattern.n_global), (all_blocks, n < pattern.n_global)):
            q = chosen.nonzero()[:, 0]  # M
            numbers = neighbors[n[q]]  # M K: in the document
            keys = ((q - n[q])[:, None] + numbers).clamp(0, len(n) - 1)  # in the batch
            exists = (numbers >= 0) & (n[keys] == numbers) & (row[keys] == row[q, None])
            allowed = real[q, :, None] & (exists[..., None] & real[keys]).flatten(1)[:, None]  # M S KS
            pairs = [row[q].view(-1, 1, 1), slots[q, :, None] % L, slots[keys].flatten(1)[:, None] % L]  # b, i, j
            order.append(q)
            if len(q):
                q, keys, allowed, *pairs = (t.to(device) for t in (q, keys, allowed, *pairs))
                self.passes.append((q, keys, allowed, pairs))
        rows, inverse = torch.cat(order), torch.empty(B * L, dtype=torch.long)
        inverse[slots[rows][real[rows]]] = torch.arange(slots.numel()).view_as(slots)[real[rows]]
        self.inverse = inverse.view(B, L).to(device)

    def passes_inside(self, inside: Structure) -> BlockPasses:
        """The passes, with a further structure inside the blocks."""
        masks = [mask if inside is FULL else mask & inside.allows(*pairs) for *_, mask, pairs in self.passes]
        passes = [BlockPass(q, keys, _mask_layout(m)) for m, (q, keys, *_) in zip(masks, self.passes, strict=True)]
        cache = list[Any]()

        def flex_mask(mask_mod: Any) -> Any:
            if not cache:
                cache.append(self._flex_mask(masks, mask_mod if self.table is None else self.table_mask_mod(inside)))
            return cache[0]

        return BlockPasses(self.slots, passes, self.inverse, flex_mask)

    def table_mask_mod(self, inside: Structure) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """mask_mod of FlexAttention that reads a table of blocks: the predicate would hash the links of every pair."""
        S, table = self.size, self.table
        assert table is not None

        def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return table[i // S, j // S] & inside.allows(b, i, j)

        return mask_mod

    def _flex_mask(self, masks: list[Tensor], mask_mod: Any) -> Any:
        """BlockMask of FlexAttention from counts of allowed pairs: full blocks need no mask_mod."""
        from torch.nn.attention.flex_attention import BlockMask

        t, u = -(-self.L // FLEX_BLOCK), self.unit
        count = torch.zeros(self.B * t * t, dtype=torch.long, device=self.inverse.device)
        for allowed, (*_, (b, i, j)) in zip(masks, self.passes, strict=True):
            squares = allowed.unflatten(2, (-1, u)).unflatten(1, (-1, u)).sum((2, 4))
            index = (b * t + i[:, ::u] // FLEX_BLOCK) * t + j[..., ::u] // FLEX_BLOCK
            count.index_add_(0, index.flatten(), squares.flatten())
        count = count.view(self.B, 1, t, t)
        full = count == FLEX_BLOCK**2
        partial_blocks, full_blocks = _numbers_first((count > 0) & ~full), _numbers_first(full)
        return BlockMask.from_kv_blocks(
            *partial_blocks, *full_blocks, BLOCK_SIZE=FLEX_BLOCK, mask_mod=mask_mod, seq_lengths=(self.L, self.L)
        )


def _block_table(pattern: BlockPattern) -> Tensor:  # n n+1
    """True where a block attends to another one."""
    n = len(pattern.neighbors)
    columns = pattern.neighbors.where(pattern.neighbors >= 0, n)
    table = torch.zeros(n, n + 1, dtype=torch.bool).scatter_(1, columns, True)
    table[: pattern.n_global] = True
    return table


def _mask_layout(allowed: Tensor) -> Layout:  # M S KS
    M, S, KS = allowed.shape
    return Structure(lambda b, i, j: allowed, "blocks", pointwise=False).layout(M, S, KS, allowed.device)


def _numbers_first(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number of set blocks in each row, and their indices first."""
    return blocks.sum(-1).int(), blocks.int().argsort(dim=-1, descending=True, stable=True).int()
