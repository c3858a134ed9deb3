"""Attention block by block: the numbers and gradients of the dense mask, for any length, with nothing of size L x L."""

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
from harken.core.layers import Stack, Wiring
from harken.models.bigbird import _table, tiled, within

CPU = torch.device("cpu")
B, H, KV, D, S, N = 2, 4, 2, 8, 4, 20  # blocks of 4 words, for texts of 80 at most
W, G, R = 1, 1, 2
LINKS = set(zip(*(t.tolist() for t in random_links(N, R).pairs), strict=True))
BIRD = tiled(bigbird(N, W, G, R), S)
CAUSAL_BIRD = tiled(bigbird(N, W, G, R) & CAUSAL, S) & CAUSAL


def documents(L: int) -> tuple[Tensor, Tensor]:
    """Which document each word is of, and its place in it: two rows, cut at different words."""
    cuts = torch.zeros(B, L, dtype=torch.long)
    for row, places in enumerate(((3, 4, 30), (11, 50))):
        cuts[row, [p for p in places if p < L]] = 1
    doc = cuts.cumsum(1)
    pos = torch.tensor([[sum(d == e for e in row[:i]) for i, d in enumerate(row)] for row in doc.tolist()])
    return doc, pos


def cases(L: int) -> dict[str, Structure]:
    real, (doc, pos) = torch.arange(L) < torch.tensor([[max(1, L // 3)], [L]]), documents(L)
    return {
        "alone": BIRD,
        "causal": CAUSAL_BIRD,
        "padded": BIRD & keep(real),
        "causal, padded": keep(real) & CAUSAL_BIRD,
        "packed": within(BIRD, pos) & same(doc),
        "causal, packed": within(CAUSAL_BIRD, pos) & same(doc),
        "only neighbours": tiled(bigbird(N, 1, 0, 0), S) & window(3),
        "more hubs than blocks": tiled(bigbird(N, 0, N + 3, 0), S),
    }


def rule(name: str, L: int, b: int, i: int, j: int) -> bool:
    """Who may look at whom, said again in plain Python."""
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
def test_blocks_look_at_neighbours_hubs_and_links_of_their_own_document(name: str) -> None:
    L = 39
    mask = cases(L)[name].mask(B, L, L)[:, 0].expand(B, L, L)
    wanted = [[[rule(name, L, b, i, j) for j in range(L)] for i in range(L)] for b in range(B)]
    assert mask.tolist() == wanted


def tensors(L: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(B, h, L, D, dtype=torch.float64).to(dtype).requires_grad_() for h in (H, KV, KV)]


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(H // KV, 1) for x in (k, v))
    weights = (q @ k.mT / math.sqrt(D)).masked_fill(~mask, -torch.inf).exp()
    return weights @ v / weights.sum(-1, keepdim=True).clamp_min(1e-300)


@pytest.mark.parametrize("name", cases(1))
@pytest.mark.parametrize("L", [1, S, 39, 80])
def test_numbers_and_gradients_are_those_of_the_dense_mask(name: str, L: int) -> None:
    layout = cases(L)[name].lay(B, L, L, CPU)
    assert layout.tiles is not None
    exact = tensors(L, torch.float64)
    toward = torch.randn(B, H, L, D, dtype=torch.float64)
    wanted = by_hand(*exact, layout.rows().expand(B, 1, L, L))
    gradients = torch.autograd.grad((wanted * toward).sum(), exact)
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        given = [x.detach().to(dtype).requires_grad_() for x in exact]
        o = attend(*given, ScaledDot(D), layout)
        torch.testing.assert_close(o, wanted.to(dtype), rtol=0, atol=limit)
        for a, b in zip(torch.autograd.grad((o * toward.to(dtype)).sum(), given), gradients, strict=True):
            torch.testing.assert_close(a, b.to(dtype), rtol=0, atol=limit)


@pytest.mark.parametrize("name", cases(1))
@pytest.mark.parametrize("L", [S, 39, 80])
def test_the_kernel_of_a_gpu_is_told_the_same_relation(name: str, L: int) -> None:
    structure = cases(L)[name]
    layout = structure.lay(B, L, L, CPU)
    told = layout.blocks()
    b, i, j = torch.arange(B).view(-1, 1, 1), torch.arange(L).view(-1, 1), torch.arange(L)
    wanted = layout.rows()[:, 0].expand(B, L, L)
    assert (told.mask_mod(b, b, i, j).expand(B, L, L) == wanted).all()
    if "packed" not in name:  # there a GPU asks a table of the blocks
        cuts, _ = structure.plan.made[B, L, CPU]
        cuts.table = _table(structure.plan)
        assert (cuts._asked(structure.plan.inside)(b, b, i, j).expand(B, L, L) == wanted).all()
    assert told.to_dense().flatten().tolist() == wanted.any(-1).any(-1).tolist()  # one block of 128 words


def test_what_holds_for_every_batch_is_laid_out_once_and_padding_anew() -> None:
    a, b = (CAUSAL_BIRD.lay(B, 39, 39, CPU) for _ in range(2))
    assert a.tiles is b.tiles
    assert a.blocks() is b.blocks()
    real = torch.arange(39) < torch.tensor([[7], [39]])
    one, other = ((BIRD & keep(r)).lay(B, 39, 39, CPU) for r in (real, ~real))
    assert not torch.equal(one.tiles.passes[0][2].dense()[0], other.tiles.passes[0][2].dense()[0])


def test_a_similarity_without_a_kernel_takes_blocks_too() -> None:
    q, k, v = tensors(39, torch.float64)
    similarity = Additive(KV, D).double()
    layout = CAUSAL_BIRD.lay(B, 39, 39, CPU)
    wanted = explicit(*similarity.project(q, k), v, similarity, layout)
    torch.testing.assert_close(attend(q, k, v, similarity, layout), wanted)


def test_many_models_at_once_take_blocks_too() -> None:
    q, k, v = (torch.randn(3, B, H, 39, D) for _ in range(3))
    together = torch.func.vmap(lambda *x: attend(*x, ScaledDot(D), CAUSAL_BIRD))(q, k, v)
    each = [attend(*x, ScaledDot(D), CAUSAL_BIRD) for x in zip(q, k, v, strict=True)]
    torch.testing.assert_close(together, torch.stack(each), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_of_the_size_of_all_pairs_is_built(largest, causal: bool) -> None:
    n, size = 8192, 16
    q, k, v = (torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3))
    relation = bigbird(n // size, 1, 1, 2)
    structure = tiled(relation & CAUSAL, size) & CAUSAL if causal else tiled(relation, size)
    with largest:
        attend(q, k, v, ScaledDot(4), structure).sum().backward()
    assert q.grad is not None
    assert largest.numel < n * n / 32


def test_twice_the_words_are_twice_the_pairs() -> None:
    relation = tiled(bigbird(256, 1, 1, 2), 16)
    counts = [sum(layout.Lq * layout.Lk * len(who) for who, _, layout in tiles(relation, L)) for L in (2048, 4096)]
    assert 1.9 < counts[1] / counts[0] < 2.1


def tiles(structure: Structure, L: int) -> list:
    laid = structure.lay(1, L, L, CPU).tiles
    assert laid is not None
    return laid.passes


def test_causal_blocks_are_not_even_computed_where_they_lie_ahead() -> None:
    (_, at, _), *hubs = tiles(CAUSAL_BIRD, 80)
    assert at.shape[1] == W + 1 + G + R  # the block itself, those before it, hubs and links
    assert not hubs  # what comes later is not seen by them either


def test_an_or_with_blocks_is_the_relation_and_has_no_blocks() -> None:
    structure = BIRD | CAUSAL
    assert structure.plan is None  # its blocks would not be enough
    assert torch.equal(structure.mask(1, 40, 40), BIRD.mask(1, 40, 40) | CAUSAL.mask(1, 40, 40))


def test_a_text_beyond_the_blocks_is_refused() -> None:
    q, k, v = (torch.randn(1, 1, 81, 4) for _ in range(3))
    with pytest.raises(ValueError, match="81 words, and blocks are laid out for 80"):
        attend(q, k, v, ScaledDot(4), BIRD)


def test_a_relation_without_a_list_has_no_blocks() -> None:
    with pytest.raises(ValueError, match="causal lists no pairs"):
        tiled(CAUSAL, 4)


def test_weights_can_be_looked_at_row_by_row() -> None:
    stack, x = Stack(1, Wiring(16, 4)), torch.randn(B, 39, 16)
    with torch.no_grad(), watching(stack) as views:
        seen = stack(x, structure=CAUSAL_BIRD)
        rows = views["blocks.0.look"].rows([0, 17, 38])
    assert torch.equal(seen, stack(x, structure=CAUSAL_BIRD))
    mask = CAUSAL_BIRD.mask(B, 39, 39)[:, :, [0, 17, 38]]
    torch.testing.assert_close(rows.sum(-1), torch.ones(B, 4, 3))
    assert torch.equal(rows > 0, mask.expand_as(rows))


@pytest.mark.parametrize("name", ["alone", "causal", "padded", "packed", "causal, packed"])
@pytest.mark.parametrize("size", [32, 64, 128, 48])
def test_a_kernel_is_told_the_blocks_that_are_empty_and_those_that_are_full(name: str, size: int) -> None:
    L = 600  # 5 of a kernel's blocks, the last one not full
    relation, real = bigbird(-(-L // size), W, G, R), torch.arange(L) < torch.tensor([[400], [L]])
    doc = (torch.arange(L) >= torch.tensor([[200], [333]])).long()
    pos = torch.arange(L) - doc * torch.tensor([[200], [333]])
    own = tiled(relation & CAUSAL, size) & CAUSAL if "causal" in name else tiled(relation, size)
    structure = within(own, pos) & same(doc) if "packed" in name else own & keep(real) if "padded" in name else own
    blocks = structure.lay(B, L, L, CPU).blocks()
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
def test_a_compiled_model_says_the_same_in_blocks() -> None:
    stack, x = Stack(2, Wiring(16, 4)), torch.randn(B, 39, 16)
    torch._dynamo.reset()
    fast = torch.compile(lambda x: stack(x, structure=CAUSAL_BIRD), backend="eager")
    torch.testing.assert_close(fast(x), stack(x, structure=CAUSAL_BIRD), rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["graph_break"]  # the plan is made outside, so that a recording keeps it
    torch._dynamo.reset()
