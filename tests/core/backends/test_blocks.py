"""Block-sparse attention: the values and gradients of the dense mask, for any length, with no tensor of size L x L."""

import math

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    Additive,
    ScaledDot,
    Structure,
    attend,
    bigbird,
    explicit,
    keep,
    random_links,
    same,
    watching,
    window,
)
from harken.core.backends.blocks import _block_table, blockwise, per_document
from harken.core.backends.flex import block_mask
from harken.core.layers import BlockConfig, Stack
from harken.core.structure import BlockPass

CPU = torch.device("cpu")
B, H, KV, D, S, N = 2, 4, 2, 8, 4, 20  # blocks of 4 tokens, for texts of up to 80
W, G, R = 1, 1, 2
LINKS = set(zip(*(t.tolist() for t in random_links(N, R).pairs), strict=True))
BIRD = blockwise(bigbird(N, W, G, R), S)
CAUSAL_BIRD = blockwise(bigbird(N, W, G, R) & CAUSAL, S) & CAUSAL


def documents(L: int) -> tuple[Tensor, Tensor]:
    """Document index and position of each token: two rows, split at different tokens."""
    starts = torch.zeros(B, L, dtype=torch.long)
    for row, positions in enumerate(((3, 4, 30), (11, 50))):
        starts[row, [p for p in positions if p < L]] = 1
    doc = starts.cumsum(1)
    pos = torch.tensor([[sum(d == e for e in row[:i]) for i, d in enumerate(row)] for row in doc.tolist()])
    return doc, pos


def cases(L: int) -> dict[str, Structure]:
    real, (doc, pos) = torch.arange(L) < torch.tensor([[max(1, L // 3)], [L]]), documents(L)
    return {
        "alone": BIRD,
        "causal": CAUSAL_BIRD,
        "padded": BIRD & keep(real),
        "causal, padded": keep(real) & CAUSAL_BIRD,
        "packed": per_document(BIRD, pos) & same(doc),
        "causal, packed": per_document(CAUSAL_BIRD, pos) & same(doc),
        "window only": blockwise(bigbird(N, 1, 0, 0), S) & window(3),
        "more global blocks than blocks": blockwise(bigbird(N, 0, N + 3, 0), S),
    }


def relation(name: str, L: int, b: int, i: int, j: int) -> bool:
    """The structure in plain Python."""
    doc, pos = documents(L)
    x, y = (int(pos[b, i]), int(pos[b, j])) if "packed" in name else (i, j)
    x, y = x // S, y // S
    return (
        (abs(x - y) <= W or x < G or y < G or (x, y) in LINKS)
        and not ("causal" in name and j > i)
        and not ("padded" in name and b == 0 and j >= max(1, L // 3))
        and not ("packed" in name and doc[b, i] != doc[b, j])
    )


@pytest.mark.parametrize("name", ["alone", "causal", "padded", "causal, padded", "packed", "causal, packed"])
def test_blocks_attend_to_window_global_and_random_blocks_of_their_document(name: str) -> None:
    L = 39
    mask = cases(L)[name].mask(B, L, L)[:, 0].expand(B, L, L)
    expected = [[[relation(name, L, b, i, j) for j in range(L)] for i in range(L)] for b in range(B)]
    assert mask.tolist() == expected


def tensors(L: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(B, h, L, D, dtype=torch.float64).to(dtype).requires_grad_() for h in (H, KV, KV)]


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(H // KV, 1) for x in (k, v))
    weights = (q @ k.mT / math.sqrt(D)).masked_fill(~mask, -torch.inf).exp()
    return weights @ v / weights.sum(-1, keepdim=True).clamp_min(1e-300)


@pytest.mark.parametrize("name", cases(1))
@pytest.mark.parametrize("L", [1, S, 39, 80])
def test_values_and_gradients_equal_the_dense_mask(name: str, L: int) -> None:
    layout = cases(L)[name].layout(B, L, L, CPU)
    assert layout.block_passes is not None
    exact = tensors(L, torch.float64)
    direction = torch.randn(B, H, L, D, dtype=torch.float64)
    expected = by_hand(*exact, layout.mask_rows().expand(B, 1, L, L))
    gradients = torch.autograd.grad((expected * direction).sum(), exact)
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in exact]
        o = attend(*inputs, ScaledDot(D), layout)
        torch.testing.assert_close(o, expected.to(dtype), rtol=0, atol=limit)
        for a, b in zip(torch.autograd.grad((o * direction.to(dtype)).sum(), inputs), gradients, strict=True):
            torch.testing.assert_close(a, b.to(dtype), rtol=0, atol=limit)


@pytest.mark.parametrize("name", cases(1))
@pytest.mark.parametrize("L", [S, 39, 80])
def test_the_mask_of_flex_attention_is_the_same_relation(name: str, L: int) -> None:
    structure = cases(L)[name]
    layout = structure.layout(B, L, L, CPU)
    flex_mask = block_mask(layout)
    b, i, j = torch.arange(B).view(-1, 1, 1), torch.arange(L).view(-1, 1), torch.arange(L)
    expected = layout.mask_rows()[:, 0].expand(B, L, L)
    assert (flex_mask.mask_mod(b, b, i, j).expand(B, L, L) == expected).all()
    if "packed" not in name:  # a CUDA kernel reads a table of blocks
        pattern = structure.block_plan
        block_layout, _ = pattern.cache[B, L, CPU]
        block_layout.table = _block_table(pattern)
        assert (block_layout.table_mask_mod(pattern.inside)(b, b, i, j).expand(B, L, L) == expected).all()
    assert flex_mask.to_dense().flatten().tolist() == expected.any(-1).any(-1).tolist()  # one block of 128 tokens


def test_passes_are_cached_except_with_padding() -> None:
    a, b = (CAUSAL_BIRD.layout(B, 39, 39, CPU) for _ in range(2))
    assert a.block_passes is b.block_passes
    assert block_mask(a) is block_mask(b)
    real = torch.arange(39) < torch.tensor([[7], [39]])
    first, second = (passes(BIRD & keep(mask), 39, B)[0].layout.dense().allowed for mask in (real, ~real))
    assert not torch.equal(first, second)


def test_blocks_support_similarities_without_a_fused_kernel() -> None:
    q, k, v = tensors(39, torch.float64)
    similarity = Additive(KV, D).double()
    layout = CAUSAL_BIRD.layout(B, 39, 39, CPU)
    expected = explicit(*similarity.project(q, k), v, similarity, layout)
    torch.testing.assert_close(attend(q, k, v, similarity, layout), expected)


def test_blocks_support_vmap() -> None:
    q, k, v = (torch.randn(3, B, H, 39, D) for _ in range(3))
    stacked = torch.func.vmap(lambda *x: attend(*x, ScaledDot(D), CAUSAL_BIRD))(q, k, v)
    single = [attend(*x, ScaledDot(D), CAUSAL_BIRD) for x in zip(q, k, v, strict=True)]
    torch.testing.assert_close(stacked, torch.stack(single), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_build_no_tensor_of_size_l_squared(largest, causal: bool) -> None:
    n, size = 8192, 16
    q, k, v = (torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3))
    pattern = bigbird(n // size, 1, 1, 2)
    structure = blockwise(pattern & CAUSAL, size) & CAUSAL if causal else blockwise(pattern, size)
    with largest:
        attend(q, k, v, ScaledDot(4), structure).sum().backward()
    assert q.grad is not None
    assert largest.numel < n * n / 32


def test_the_number_of_pairs_is_linear_in_the_length() -> None:
    structure = blockwise(bigbird(256, 1, 1, 2), 16)
    counts = [sum(p.layout.Lq * p.layout.Lk * len(p.queries) for p in passes(structure, L)) for L in (2048, 4096)]
    assert 1.9 < counts[1] / counts[0] < 2.1


def passes(structure: Structure, L: int, batch: int = 1) -> list[BlockPass]:
    block_passes = structure.layout(batch, L, L, CPU).block_passes
    assert block_passes is not None
    return block_passes.passes


def test_later_blocks_are_not_computed_in_causal_attention() -> None:
    sparse_pass, *global_passes = passes(CAUSAL_BIRD, 80)
    assert sparse_pass.keys.shape[1] == W + 1 + G + R  # earlier window, the block itself, global and random blocks
    assert not global_passes  # global blocks do not attend to later blocks


def test_a_union_with_blocks_has_no_block_plan() -> None:
    structure = BIRD | CAUSAL
    assert structure.block_plan is None  # the blocks of one operand are not sufficient
    assert torch.equal(structure.mask(1, 40, 40), BIRD.mask(1, 40, 40) | CAUSAL.mask(1, 40, 40))


def test_a_text_longer_than_the_block_pattern_raises_an_error() -> None:
    q, k, v = (torch.randn(1, 1, 81, 4) for _ in range(3))
    with pytest.raises(ValueError, match="a text has 81 tokens, but the block pattern ends at 80 tokens"):
        attend(q, k, v, ScaledDot(4), BIRD)


def test_blockwise_needs_a_list_of_pairs() -> None:
    with pytest.raises(ValueError, match="structure causal has no list of pairs, so it has no blocks to skip"):
        blockwise(CAUSAL, 4)


def test_a_view_of_blocks_has_the_rows_of_the_mask() -> None:
    stack, x = Stack(1, BlockConfig(16, 4)), torch.randn(B, 39, 16)
    with torch.no_grad(), watching(stack) as views:
        watched = stack(x, structure=CAUSAL_BIRD)
        rows = views["blocks.0.attention"].rows([0, 17, 38])
    assert torch.equal(watched, stack(x, structure=CAUSAL_BIRD))
    mask = CAUSAL_BIRD.mask(B, 39, 39)[:, :, [0, 17, 38]]
    torch.testing.assert_close(rows.sum(-1), torch.ones(B, 4, 3))
    assert torch.equal(rows > 0, mask.expand_as(rows))


@pytest.mark.parametrize("name", ["alone", "causal", "padded", "packed", "causal, packed"])
@pytest.mark.parametrize("size", [32, 64, 128, 48])
def test_the_block_mask_has_the_empty_and_the_full_blocks(name: str, size: int) -> None:
    L = 600  # 5 blocks of FlexAttention, the last one not full
    pattern, real = bigbird(-(-L // size), W, G, R), torch.arange(L) < torch.tensor([[400], [L]])
    doc = (torch.arange(L) >= torch.tensor([[200], [333]])).long()
    pos = torch.arange(L) - doc * torch.tensor([[200], [333]])
    structure = blockwise(pattern & CAUSAL, size) & CAUSAL if "causal" in name else blockwise(pattern, size)
    if "packed" in name:
        structure = per_document(structure, pos) & same(doc)
    elif "padded" in name:
        structure = structure & keep(real)
    blocks = block_mask(structure.layout(B, L, L, CPU))
    padded = torch.zeros(B, 640, 640, dtype=torch.bool)
    padded[:, :L, :L] = mask = structure.mask(B, L, L)[:, 0].expand(B, L, L)
    squares = padded.view(B, 5, 128, 5, 128).transpose(2, 3).flatten(3)
    assert torch.equal(blocks.to_dense()[:, 0].bool(), squares.any(-1))
    full = torch.zeros(B, 5, 5, dtype=torch.bool)
    for b, row in ((b, row) for b in range(B) for row in range(5)):
        full[b, row, blocks.full_kv_indices[b, 0, row, : blocks.full_kv_num_blocks[b, 0, row]].long()] = True
    assert torch.equal(full, squares.all(-1))
    i, j = torch.randint(L, (2, 50))
    assert torch.equal(blocks.mask_mod(torch.tensor(1), torch.tensor(0), i, j), mask[1, i, j])


@pytest.mark.process
def test_a_compiled_stack_gives_the_same_values_with_blocks() -> None:
    stack, x = Stack(2, BlockConfig(16, 4)), torch.randn(B, 39, 16)
    torch._dynamo.reset()
    fast = torch.compile(lambda x: stack(x, structure=CAUSAL_BIRD), backend="eager")
    torch.testing.assert_close(fast(x), stack(x, structure=CAUSAL_BIRD), rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["graph_break"]  # the passes are built outside the graph
    torch._dynamo.reset()
