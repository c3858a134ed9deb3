"""Looking is free. The oracle is softmax over all pairs, written out in float64."""

import importlib
import math

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Alibi,
    Attention,
    Concat,
    Dot,
    Editor,
    ScaledDot,
    Stack,
    Structure,
    View,
    Wiring,
    attend,
    bigbird,
    edges,
    editing,
    keep,
    watching,
)

B, H, KV, L, D = 2, 4, 2, 300, 8  # longer than one block of rows
REAL = torch.arange(L).expand(B, L) < torch.tensor([[L], [170]])
GRAPH = edges(torch.arange(L).repeat(3), torch.cat([torch.arange(L) * 7 + n for n in (0, 11, 40)]) % L, L)
CASES: dict[str, tuple[Structure, bool]] = {
    "full": (FULL, False),
    "causal": (CAUSAL, False),
    "bigbird & causal & keep": (bigbird(L) & CAUSAL & keep(REAL), False),
    "edges": (GRAPH, False),
    "causal, alibi": (CAUSAL, True),
    "edges, alibi": (GRAPH, True),
}


def view_of(case: str, dtype: torch.dtype = torch.float64) -> tuple[View, Tensor]:
    """A view, and all its weights A (B H L L) written out: softmax(q k^T / sqrt(D) + bias) over the allowed pairs."""
    structure, alibi = CASES[case]
    q, k, v = (torch.randn(B, h, L, D, dtype=torch.float64).to(dtype) for h in (H, KV, KV))
    bias = Alibi(H).bias(torch.arange(L), torch.arange(L)).double() if alibi else None
    views: list[View] = []
    attend(q, k, v, ScaledDot(D), structure, bias=bias, watch=views.append)
    scores = q.double() @ k.double().repeat_interleave(H // KV, 1).mT / math.sqrt(D)
    scores = scores if bias is None else scores + bias
    A = scores.masked_fill(~structure.mask(B, L, L), -math.inf).softmax(-1).nan_to_num(0)
    return views[0], A


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_the_explicit_weights(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.rows([0, 299, 17]), A[:, :, [0, 299, 17]])


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_chosen_heads_are_those_heads(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.rows([5, 6], heads=[3, 1]), A[:, [3, 1]][:, :, [5, 6]])


@pytest.mark.parametrize("case", CASES)
def test_the_whole_equals_the_explicit_weights(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.whole(), A)


@pytest.mark.parametrize("case", CASES)
def test_top_finds_the_largest_weights_and_their_keys(case: str) -> None:
    view, A = view_of(case)
    weights, keys = view.top(5, heads=[2])
    torch.testing.assert_close(weights, A[:, [2]].sort(-1, descending=True).values[..., :5])
    torch.testing.assert_close(A[:, [2]].gather(-1, keys), weights)


@pytest.mark.parametrize("case", CASES)
def test_received_is_the_sum_over_the_queries(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.received(heads=[1, 3]), A[:, [1, 3]].sum(-2))


@pytest.mark.parametrize("case", CASES)
def test_entropy_is_minus_the_sum_of_a_log_a(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.entropy(), -(A * A.clamp_min(1e-300).log()).sum(-1))


@pytest.mark.parametrize("case", ["bigbird & causal & keep", "edges", "edges, alibi"])
def test_edges_are_the_weights_of_the_listed_pairs(case: str) -> None:
    view, A = view_of(case)
    i, j = CASES[case][0].pairs
    torch.testing.assert_close(view.edges(heads=[0, 3]), A[:, [0, 3]][:, :, i, j])


def test_a_structure_without_a_list_has_no_edges_and_says_what_to_ask_instead() -> None:
    with pytest.raises(ValueError, match="causal lists no pairs; ask for rows, top or whole"):
        view_of("causal")[0].edges()


def test_more_than_all_keys_cannot_be_asked_for() -> None:
    assert view_of("full")[0].top(10_000)[0].shape == (B, H, L, L)


def test_a_view_of_grouped_heads_with_a_similarity_of_their_own_is_explicit_too() -> None:
    s = Additive(KV, D)
    q, k = torch.randn(B, H, 9, D), torch.randn(B, KV, 9, D)
    v = torch.eye(9).expand(B, KV, 9, 9)  # so that o is A
    views: list[View] = []
    o = attend(q, k, v, s, CAUSAL, watch=views.append)
    torch.testing.assert_close(views[0].rows([2, 8], heads=[1, 2]), o[:, [1, 2]][:, :, [2, 8]])


def test_a_view_of_half_precision_tells_the_weights_in_float32() -> None:
    view, A = view_of("causal", torch.bfloat16)
    torch.testing.assert_close(view.rows([100]).double(), A[:, :, [100]], rtol=1e-5, atol=1e-6)


def spy_on_routes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    module, taken = importlib.import_module("harken.core.attend"), []
    for name in ("explicit", "fused", "sparse"):
        true = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, n=name, f=true, **k: taken.append(n) or f(*a, **k))
    return taken


@pytest.mark.parametrize("case", ["full", "causal", "bigbird & causal & keep", "edges"])
def test_a_reading_watcher_changes_neither_the_route_nor_a_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(B, H, L, D) for _ in range(3))
    taken, views = spy_on_routes(monkeypatch), []
    alone = attend(q, k, v, ScaledDot(D), CASES[case][0])
    watched = attend(q, k, v, ScaledDot(D), CASES[case][0], watch=views.append)
    assert taken[0] == taken[1]
    assert torch.equal(alone, watched)
    assert len(views) == 1


def test_an_editing_watcher_takes_the_explicit_route(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(B, H, 9, D) for _ in range(3))
    taken = spy_on_routes(monkeypatch)
    same = attend(q, k, v, ScaledDot(D), CAUSAL, watch=Editor(lambda A: A))
    assert taken == ["explicit"]
    torch.testing.assert_close(same, attend(q, k, v, ScaledDot(D), CAUSAL))


def test_an_editing_watcher_ablates_one_head() -> None:
    model, x = Attention(32, 4), torch.randn(B, 9, 32)
    heads = model.W_o.weight.clone()
    with torch.no_grad(), editing(model, "", lambda A: A * torch.tensor([1.0, 1, 0, 1]).view(1, 4, 1, 1)):
        ablated = model(x)
        model.W_o.weight[:, 16:24] = 0  # what head 2 writes
    silenced = model(x)
    assert not torch.equal(heads, model.W_o.weight)
    torch.testing.assert_close(ablated, silenced)


def test_nothing_of_the_size_of_all_pairs_is_computed_unasked(largest) -> None:
    n = 4096
    q, k, v = (torch.randn(1, 2, n, 4) for _ in range(3))
    views: list[View] = []
    with largest:
        attend(q, k, v, ScaledDot(4), bigbird(n), watch=views.append)
        views[0].rows([7])
        views[0].edges(heads=[1])
    assert largest.numel < n * n / 16


def test_what_sums_up_the_whole_map_still_goes_block_by_block(largest) -> None:
    n = 2048
    q, k, v = (torch.randn(1, 1, n, 4) for _ in range(3))
    views: list[View] = []
    with largest:
        attend(q, k, v, ScaledDot(4), watch=views.append)  # the fused kernel keeps its blocks to itself
        views[0].top(3)
        views[0].received()
        views[0].entropy()
    assert largest.numel <= n * n / 8


def model() -> Stack:
    return Stack(3, Wiring(16, 2))


def test_watching_gives_a_view_for_each_attention() -> None:
    stack = model()
    with watching(stack) as views:
        stack(torch.randn(1, 5, 16))
    assert list(views) == ["blocks.0.look", "blocks.1.look", "blocks.2.look"]


def test_watching_one_name_leaves_the_others_alone() -> None:
    stack = model()
    with watching(stack, "blocks.1.look") as views:
        stack(torch.randn(1, 5, 16))
    assert list(views) == ["blocks.1.look"]


def test_after_watching_nobody_stands_there() -> None:
    stack = model()
    with pytest.raises(ZeroDivisionError), watching(stack):
        raise ZeroDivisionError
    assert all(block.look.watch is None for block in stack.blocks)


def test_watching_inside_editing_gives_the_place_back_to_the_editor() -> None:
    stack, x = model(), torch.randn(1, 5, 16)
    with torch.no_grad(), editing(stack, "blocks.0.look", torch.zeros_like):
        before = stack(x)
        with watching(stack):
            pass
        assert torch.equal(stack(x), before)


@pytest.mark.parametrize("enter", [lambda m, n: watching(m, n), lambda m, n: editing(m, n, torch.zeros_like)])
@pytest.mark.parametrize("name", ["blocks.7.look", "blocks.0.mlp"])
def test_a_name_that_is_no_attention_is_told_with_those_there_are(enter, name: str) -> None:
    message = f"no attention is called '{name}'; there are blocks.0.look, blocks.1.look, blocks.2.look"
    with pytest.raises(ValueError, match=message), enter(model(), name):
        pass


def test_a_view_does_not_keep_the_graph_of_the_forward() -> None:
    views: list[View] = []
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    attend(q, q, q, Concat(1, 4), watch=views.append)
    assert not views[0].whole().requires_grad
    assert not views[0].q.requires_grad


def test_equal_weights_have_the_entropy_of_their_number() -> None:
    views: list[View] = []
    q = torch.zeros(1, 1, 6, 4)
    attend(q, q, q, Dot(), CAUSAL, watch=views.append)
    torch.testing.assert_close(views[0].entropy()[0, 0], torch.arange(1, 7).float().log())
