"""Views compute weights on request. The oracle is the softmax over all pairs in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harken.core import (
    BACKENDS,
    CAUSAL,
    FULL,
    Additive,
    Alibi,
    Attention,
    BlockConfig,
    Concat,
    Dot,
    Editor,
    ScaledDot,
    Stack,
    Structure,
    View,
    attend,
    bigbird,
    edges,
    editing,
    keep,
    watching,
)

B, H, KV, L, D = 2, 4, 2, 300, 8  # more rows than a view computes at a time
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


def record(views: list[View]) -> Callable[..., None]:
    """A watcher that appends views to a list."""
    return lambda *attention: views.append(View(*attention))


def view_of(case: str, dtype: torch.dtype = torch.float64) -> tuple[View, Tensor]:
    """A view, and all weights A (B H L L): softmax(q k^T / sqrt(D) + bias) over the allowed pairs."""
    structure, alibi = CASES[case]
    q, k, v = (torch.randn(B, h, L, D, dtype=torch.float64).to(dtype) for h in (H, KV, KV))
    bias = Alibi(H).bias(torch.arange(L), torch.arange(L)).double() if alibi else None
    views: list[View] = []
    attend(q, k, v, ScaledDot(D), structure, bias=bias, watch=record(views))
    scores = q.double() @ k.double().repeat_interleave(H // KV, 1).mT / math.sqrt(D)
    scores = scores if bias is None else scores + bias
    A = scores.masked_fill(~structure.mask(B, L, L), -math.inf).softmax(-1).nan_to_num(0)
    return views[0], A


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_the_weights_of_the_oracle(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.rows([0, 299, 17]), A[:, :, [0, 299, 17]])


@pytest.mark.parametrize("case", CASES)
def test_rows_of_selected_heads_equal_the_weights_of_these_heads(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.rows([5, 6], heads=[3, 1]), A[:, [3, 1]][:, :, [5, 6]])


@pytest.mark.parametrize("case", CASES)
def test_full_equals_the_weights_of_the_oracle(case: str) -> None:
    view, A = view_of(case)
    torch.testing.assert_close(view.full(), A)


@pytest.mark.parametrize("case", CASES)
def test_top_returns_the_largest_weights_and_their_keys(case: str) -> None:
    view, A = view_of(case)
    weights, keys = view.top(5, heads=[2])
    torch.testing.assert_close(weights, A[:, [2]].sort(-1, descending=True).values[..., :5])
    torch.testing.assert_close(A[:, [2]].gather(-1, keys), weights)


@pytest.mark.parametrize("case", CASES)
def test_received_is_the_sum_of_the_weights_over_the_queries(case: str) -> None:
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


def test_edges_of_a_structure_without_pairs_raise_an_error_with_the_alternatives() -> None:
    with pytest.raises(ValueError, match="structure causal has no list of pairs; use rows, top or full instead"):
        view_of("causal")[0].edges()


def test_top_returns_at_most_all_keys() -> None:
    assert view_of("full")[0].top(10_000)[0].shape == (B, H, L, L)


def test_a_view_of_grouped_heads_with_additive_similarity_equals_the_weights() -> None:
    s = Additive(KV, D)
    q, k = torch.randn(B, H, 9, D), torch.randn(B, KV, 9, D)
    v = torch.eye(9).expand(B, KV, 9, 9)  # so that o is A
    views: list[View] = []
    o = attend(q, k, v, s, CAUSAL, watch=record(views))
    torch.testing.assert_close(views[0].rows([2, 8], heads=[1, 2]), o[:, [1, 2]][:, :, [2, 8]])


def test_a_view_of_half_precision_tensors_computes_weights_in_float32() -> None:
    view, A = view_of("causal", torch.bfloat16)
    torch.testing.assert_close(view.rows([100]).double(), A[:, :, [100]], rtol=1e-5, atol=1e-6)


def spy_on_backends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    for name, f in list(BACKENDS.items()):
        monkeypatch.setitem(BACKENDS, name, lambda *a, n=name, f=f, **k: calls.append(n) or f(*a, **k))
    return calls


@pytest.mark.parametrize("case", ["full", "causal", "bigbird & causal & keep", "edges"])
def test_a_watcher_changes_neither_the_backend_nor_a_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(B, H, L, D) for _ in range(3))
    calls, views = spy_on_backends(monkeypatch), []
    plain = attend(q, k, v, ScaledDot(D), CASES[case][0])
    watched = attend(q, k, v, ScaledDot(D), CASES[case][0], watch=record(views))
    assert calls[0] == calls[1] == views[0].backend.name
    assert torch.equal(plain, watched)
    assert len(views) == 1


def test_an_editor_selects_the_explicit_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(B, H, 9, D) for _ in range(3))
    calls = spy_on_backends(monkeypatch)
    edited = attend(q, k, v, ScaledDot(D), CAUSAL, watch=Editor(lambda A: A))
    assert calls == ["explicit"]
    torch.testing.assert_close(edited, attend(q, k, v, ScaledDot(D), CAUSAL))


def test_an_editor_can_ablate_one_head() -> None:
    model, x = Attention(32, 4), torch.randn(B, 9, 32)
    W_o = model.W_o.weight.clone()
    with torch.no_grad(), editing(model, "", lambda A: A * torch.tensor([1.0, 1, 0, 1]).view(1, 4, 1, 1)):
        ablated = model(x)
        model.W_o.weight[:, 16:24] = 0  # the output of head 2
    without_head = model(x)
    assert not torch.equal(W_o, model.W_o.weight)
    torch.testing.assert_close(ablated, without_head)


def test_a_view_of_sparse_attention_builds_no_tensor_of_size_l_squared(largest) -> None:
    n = 4096
    q, k, v = (torch.randn(1, 2, n, 4) for _ in range(3))
    views: list[View] = []
    with largest:
        attend(q, k, v, ScaledDot(4), bigbird(n), watch=record(views))
        views[0].rows([7])
        views[0].edges(heads=[1])
    assert largest.numel < n * n / 16


def test_summaries_of_all_rows_are_computed_in_blocks(largest) -> None:
    n = 2048
    q, k, v = (torch.randn(1, 1, n, 4) for _ in range(3))
    views: list[View] = []
    with largest:
        attend(q, k, v, ScaledDot(4), watch=record(views))  # the fused kernel stores no weights
        views[0].top(3)
        views[0].received()
        views[0].entropy()
    assert largest.numel <= n * n / 8


def model() -> Stack:
    return Stack(3, BlockConfig(16, 2))


def test_watching_records_a_view_for_each_attention() -> None:
    stack = model()
    with watching(stack) as views:
        stack(torch.randn(1, 5, 16))
    assert list(views) == ["blocks.0.attention", "blocks.1.attention", "blocks.2.attention"]


def test_watching_one_name_records_only_this_attention() -> None:
    stack = model()
    with watching(stack, "blocks.1.attention") as views:
        stack(torch.randn(1, 5, 16))
    assert list(views) == ["blocks.1.attention"]


def test_watchers_are_removed_after_an_exception() -> None:
    stack = model()
    with pytest.raises(ZeroDivisionError), watching(stack):
        raise ZeroDivisionError
    assert all(block.attention.watch is None for block in stack.blocks)


def test_watching_inside_editing_restores_the_editor() -> None:
    stack, x = model(), torch.randn(1, 5, 16)
    with torch.no_grad(), editing(stack, "blocks.0.attention", torch.zeros_like):
        before = stack(x)
        with watching(stack):
            pass
        assert torch.equal(stack(x), before)


@pytest.mark.parametrize("enter", [lambda m, n: watching(m, n), lambda m, n: editing(m, n, torch.zeros_like)])
@pytest.mark.parametrize("name", ["blocks.7.attention", "blocks.0.mlp"])
def test_an_unknown_attention_name_is_reported_with_the_known_names(enter, name: str) -> None:
    message = f"the model has no attention '{name}'; it has blocks.0.attention, blocks.1.attention, blocks.2.attention"
    with pytest.raises(ValueError, match=message), enter(model(), name):
        pass


def test_a_view_is_detached_from_the_autograd_graph() -> None:
    views: list[View] = []
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    attend(q, q, q, Concat(1, 4), watch=record(views))
    assert not views[0].full().requires_grad
    assert not views[0].q.requires_grad


def test_the_entropy_of_n_equal_weights_is_log_n() -> None:
    views: list[View] = []
    q = torch.zeros(1, 1, 6, 4)
    attend(q, q, q, Dot(), CAUSAL, watch=record(views))
    torch.testing.assert_close(views[0].entropy()[0, 0], torch.arange(1, 7).float().log())
