"""One equation, several backends. The oracle is the equation as loops over single vectors in float64."""

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core import (
    BACKENDS,
    CAUSAL,
    FULL,
    Additive,
    Bilinear,
    Concat,
    CosineKernel,
    Dot,
    Gaussian,
    Kernel,
    Latent,
    Mahalanobis,
    ScaledDot,
    Similarity,
    Structure,
    attend,
    bigbird,
    edges,
    explicit,
    global_tokens,
    keep,
    mix,
    polynomial,
    random_links,
    same,
    select_backend,
    window,
)
from harken.core.backends import blockwise, fused, linear, sparse

CPU = torch.device("cpu")
B, H, KV, L, D, D_V = 2, 4, 2, 5, 2, 3  # grouped heads, and values wider than keys
REAL = [[True, True, True, True, True], [True, True, False, True, False]]
DOC = [[0, 0, 0, 1, 1], [0, 1, 1, 2, 2]]
PAIRS = [[0, 1], [0, 3], [1, 1], [2, 0], [2, 4], [4, 4], [4, 4], [4, 2]]  # node 3 has no edge, one pair is duplicated
real, doc, graph = torch.tensor(REAL), torch.tensor(DOC), edges(*torch.tensor(PAIRS).T, L)
EVERY_PAIR = edges(*torch.cartesian_prod(torch.arange(L), torch.arange(L)).T, L)
LINKS = set(zip(*(t.tolist() for t in random_links(L, 2).pairs), strict=True))

# each structure, and the same relation in plain Python
Relation = Callable[[int, int, int], bool]
STRUCTURES: dict[str, tuple[Structure, Relation]] = {
    "full": (FULL, lambda b, i, j: True),
    "causal": (CAUSAL, lambda b, i, j: j <= i),
    "window": (window(1), lambda b, i, j: abs(i - j) <= 1),
    "window, listed": (bigbird(L, 1, 0, 0), lambda b, i, j: abs(i - j) <= 1),
    "global tokens": (global_tokens(1), lambda b, i, j: i == 0 or j == 0),
    "random links": (random_links(L, 2), lambda b, i, j: (i, j) in LINKS),
    "bigbird": (bigbird(L, 1, 1, 2), lambda b, i, j: abs(i - j) <= 1 or i == 0 or j == 0 or (i, j) in LINKS),
    "keep": (keep(real), lambda b, i, j: REAL[b][j]),
    "same document": (same(doc), lambda b, i, j: DOC[b][i] == DOC[b][j]),
    "edges": (graph, lambda b, i, j: [i, j] in PAIRS),
    "causal & keep": (CAUSAL & keep(real), lambda b, i, j: j <= i and REAL[b][j]),
    "causal & same document": (CAUSAL & same(doc), lambda b, i, j: j <= i and DOC[b][i] == DOC[b][j]),
    "window | global tokens": (window(1) | global_tokens(1), lambda b, i, j: abs(i - j) <= 1 or i == 0 or j == 0),
    "window & ~causal": (window(2) & ~CAUSAL, lambda b, i, j: abs(i - j) <= 2 and j > i),
    "~keep": (~keep(real), lambda b, i, j: not REAL[b][j]),
    "edges & causal": (graph & CAUSAL, lambda b, i, j: j <= i and [i, j] in PAIRS),
    "bigbird & causal & keep": (
        bigbird(L, 1, 1, 2) & CAUSAL & keep(real),
        lambda b, i, j: (abs(i - j) <= 1 or i == 0 or j == 0 or (i, j) in LINKS) and j <= i and REAL[b][j],
    ),
}

# the score of one query and one key, for key head h
SIMILARITIES: dict[str, tuple[Callable[[], Similarity], Callable[..., Tensor]]] = {
    "dot": (Dot, lambda s, h, q, k: q.dot(k)),
    "scaled dot": (lambda: ScaledDot(D), lambda s, h, q, k: q.dot(k) / math.sqrt(2)),
    "bilinear": (lambda: Bilinear(KV, D), lambda s, h, q, k: q.dot(s.M[h].mv(k))),
    "mahalanobis": (lambda: Mahalanobis(KV, D), lambda s, h, q, k: -(s.W[h].mv(q) - s.W[h].mv(k)).pow(2).sum()),
    "gaussian": (lambda: Gaussian(2.0), lambda s, h, q, k: (-(q - k).pow(2).sum() / (2 * 2.0**2)).exp().log()),
    "polynomial": (lambda: Kernel(polynomial(2, 0.5)), lambda s, h, q, k: ((q.dot(k) + 0.5) ** 2).log()),
    "cosine kernel": (CosineKernel, lambda s, h, q, k: (1 + q.dot(k) / (q.norm() * k.norm())).log()),
    "latent": (
        lambda: Latent(KV, D, 4),
        lambda s, h, q, k: (q @ s.W_q[h]).softmax(0).dot((k @ s.W_k[h]).softmax(0)).log(),
    ),
    "additive": (lambda: Additive(KV, D), lambda s, h, q, k: s.w.dot((q @ s.W_q[h] + k @ s.W_k[h]).tanh())),
    "concat": (
        lambda: Concat(KV, D),
        lambda s, h, q, k: F.leaky_relu(torch.cat([s.W_q[h], s.W_k[h]])[:, 0].dot(torch.cat([q, k])), 0.2),
    ),
}


def tensors(*shape: int, kv: int = KV, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of B H Lq D, B kv Lk D, B kv Lk D_V for shape = (Lq, Lk)."""
    Lq, Lk = shape or (L, L)
    sizes = (B, H, Lq, D), (B, kv, Lk, D), (B, kv, Lk, D_V)
    q, k, v = (torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes)
    return q, k, v


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, score: Callable[[int, Tensor, Tensor], Tensor], relation: Relation
) -> Tensor:
    """o_i = sum_j a_ij v_j, a_ij = exp(sim(q_i, k_j)) / sum over the allowed j' of exp(sim(q_i, k_j'))."""
    group, rows = q.shape[1] // k.shape[1], []
    for b, head, i in itertools.product(range(len(q)), range(q.shape[1]), range(q.shape[2])):
        h, o, total = head // group, torch.zeros(v.shape[-1], dtype=v.dtype), torch.zeros((), dtype=v.dtype)
        for j in range(k.shape[2]):
            if relation(b, i, j):
                weight = score(h, q[b, head, i], k[b, h, j]).exp()
                o, total = o + weight * v[b, h, j], total + weight
        rows.append(o / total if total > 0 else o)
    return torch.stack(rows).view(*q.shape[:-1], v.shape[-1])


def gradients(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    loss = (o * torch.arange(o.numel(), dtype=o.dtype).cos().view_as(o)).sum()
    grads = torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_backend_has_the_values_and_gradients_of_the_loop(similarity: str, structure: str) -> None:
    make, score = SIMILARITIES[similarity]
    s, (tested, relation) = make().double(), STRUCTURES[structure]
    for p in s.parameters():
        p.data += 0.1 * torch.randn_like(p)
    q, k, v = tensors()
    inputs = [q, k, v, *s.parameters()]
    expected = by_hand(q, k, v, lambda h, q, k: score(s, h, q, k), relation)
    layout, listed = tested.layout(B, L, L, CPU), (tested & EVERY_PAIR).layout(B, L, L, CPU)
    projected = s.project(q, k)
    outputs = {
        "attend": attend(q, k, v, s, tested),
        "explicit": explicit(*projected, v, s, layout),
        "sparse": sparse(*projected, v, s, listed),
    }
    if s.is_dot:
        outputs["fused"] = fused(*projected, v, s, layout)
    if s.is_kernel and layout.full:
        outputs["linear"] = linear(*projected, v, s, layout)
    expected_grads = gradients(expected, inputs)
    for name, o in outputs.items():
        torch.testing.assert_close(o, expected, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")
        for grad, expected_grad in zip(gradients(o, inputs), expected_grads, strict=True):
            torch.testing.assert_close(
                grad, expected_grad, rtol=1e-8, atol=1e-8, msg=lambda m, name=name: f"{name}: {m}"
            )


@pytest.mark.parametrize("per_row", [False, True], ids=["one bias", "bias per batch row"])
@pytest.mark.parametrize("structure", ["full", "causal", "keep", "bigbird & causal & keep", "edges"])
def test_every_backend_adds_the_bias_to_the_scores(structure: str, per_row: bool) -> None:
    q, k, v = tensors()
    tested, relation = STRUCTURES[structure]
    bias = torch.randn(*((B,) if per_row else ()), H, L, L, dtype=torch.float64)
    s = ScaledDot(D)
    A = torch.zeros(B, H, L, L, dtype=torch.float64)
    for b, h, i in itertools.product(range(B), range(H), range(L)):
        keys = [j for j in range(L) if relation(b, i, j)]
        if keys:
            biases = bias.expand(B, H, L, L)[b, h, i]
            scores = [q[b, h, i].dot(k[b, h // 2, j]) / math.sqrt(D) + biases[j] for j in keys]
            A[b, h, i, keys] = torch.stack(scores).detach().softmax(0)
    expected = A @ v.detach().repeat_interleave(2, 1)
    layout, listed = tested.layout(B, L, L, CPU, bias), (tested & EVERY_PAIR).layout(B, L, L, CPU, bias)
    for o in (
        attend(q, k, v, s, tested, bias=bias),
        explicit(q, k, v, s, layout),
        fused(q, k, v, s, layout),
        sparse(q, k, v, s, listed),
    ):
        torch.testing.assert_close(o, expected)


@pytest.mark.parametrize("kv", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_attend_equals_scaled_dot_product_attention(kv: int, causal: bool) -> None:
    q, k, v = tensors(kv=kv)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(attend(q, k, v, ScaledDot(D), CAUSAL if causal else FULL), expected)


@pytest.mark.parametrize(("Lq", "Lk"), [(1, 5), (3, 5), (5, 3)])
def test_causal_queries_are_at_the_last_slots_of_the_keys(Lq: int, Lk: int) -> None:
    q, k, v = tensors(Lq, Lk)
    expected = by_hand(q, k, v, lambda h, q, k: q.dot(k), lambda b, i, j: j <= i + Lk - Lq)
    with torch.autograd.set_detect_anomaly(True):
        o = attend(q, k, v, Dot(), CAUSAL)
        gradients(o, [q, k, v])
    torch.testing.assert_close(o, expected)


@pytest.mark.parametrize(
    ("similarity", "structure", "backend"),
    [
        ("scaled dot", "full", "fused"),
        ("mahalanobis", "causal & keep", "fused"),
        ("additive", "causal", "explicit"),
        ("concat", "edges", "sparse"),
        ("scaled dot", "bigbird & causal & keep", "sparse"),
        ("scaled dot", "window, listed", "sparse"),
        ("cosine kernel", "full", "linear"),
        ("latent", "causal", "explicit"),
    ],
)
def test_attend_calls_the_selected_backend(
    similarity: str, structure: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name, f in list(BACKENDS.items()):
        monkeypatch.setitem(BACKENDS, name, lambda *a, n=name, f=f, **k: calls.append(n) or f(*a, **k))
    attend(*tensors(), SIMILARITIES[similarity][0]().double(), STRUCTURES[structure][0])
    assert calls == [backend]


# --- the choice of a backend, as a table ------------------------------------------------------------------------------

LONG, MEDIUM, SHORT = 4096, 512, 32
WINDOW, BLOCKS = CAUSAL & window(9), blockwise(bigbird(64, 1, 1, 1), 64)
GPU, COMPILED, EDITED, VMAP = {"cuda": True}, {"compiling": True}, {"edited": True}, {"vmap": True}
DOUBLE = {"dtype": torch.float64}
CHOICES = [  # structure, length, options -> backend, part of the reason
    (FULL, SHORT, {}, "fused", "dot product"),
    (WINDOW, LONG, {}, "fused", "dot product"),
    (FULL, SHORT, EDITED, "explicit", "edited"),
    (FULL, SHORT, {"similarity": Additive(1, 4)}, "explicit", "not a dot product"),
    (FULL, SHORT, VMAP, "explicit", "torch.func"),
    (FULL, SHORT, {"similarity": CosineKernel()}, "linear", "kernel with features"),
    (FULL, SHORT, VMAP | {"similarity": CosineKernel()}, "linear", "kernel with features"),
    (FULL, SHORT, {"similarity": CosineKernel(), "dropout": 0.1}, "explicit", "not a dot product"),
    (FULL, SHORT, {"similarity": CosineKernel(), "bias": True}, "explicit", "not a dot product"),
    (FULL, SHORT, EDITED | {"similarity": CosineKernel()}, "explicit", "edited"),
    (CAUSAL, SHORT, {"similarity": CosineKernel()}, "explicit", "not a dot product"),
    (graph, L, {}, "sparse", "lists its pairs"),
    (graph, L, {"similarity": CosineKernel()}, "sparse", "lists its pairs"),
    (graph, L, {"similarity": Concat(1, 4)}, "sparse", "lists its pairs"),
    (BLOCKS, MEDIUM, {}, "blocks", "block-sparse"),
    (BLOCKS, MEDIUM, VMAP, "blocks", "block-sparse"),
    (WINDOW, LONG, GPU, "flex", "long sequence"),
    (WINDOW, LONG - 1, GPU, "fused", "dot product"),
    (WINDOW, LONG, GPU | {"dropout": 0.1}, "fused", "dot product"),
    (WINDOW, LONG, GPU | {"similarity": Additive(1, 4)}, "explicit", "not a dot product"),
    (WINDOW, LONG, GPU | {"mode": True}, "fused", "dot product"),
    (WINDOW, LONG, GPU | {"bias": True}, "fused", "dot product"),
    (WINDOW, LONG, GPU | DOUBLE, "fused", "dot product"),
    (BLOCKS, MEDIUM, GPU | DOUBLE, "blocks", "block-sparse"),
    (CAUSAL, LONG, GPU, "fused", "dot product"),
    (FULL, LONG, GPU, "fused", "dot product"),
    (BLOCKS, MEDIUM, GPU, "flex", "long sequence"),
    (BLOCKS, MEDIUM - 64, GPU, "blocks", "block-sparse"),
    (BLOCKS, MEDIUM, GPU | {"dropout": 0.1}, "blocks", "block-sparse"),
    (WINDOW, MEDIUM, GPU | COMPILED, "flex", "long sequence"),
    (WINDOW, MEDIUM - 1, GPU | COMPILED, "fused", "dot product"),
    (WINDOW, SHORT, GPU | COMPILED, "explicit", "short sequence"),
    (WINDOW, SHORT + 1, GPU | COMPILED, "fused", "dot product"),
    (WINDOW, SHORT, COMPILED, "fused", "dot product"),
    (WINDOW, SHORT, GPU, "fused", "dot product"),
    (graph, L, GPU | COMPILED, "sparse", "lists its pairs"),
]


@pytest.mark.parametrize(
    ("structure", "length", "options", "name", "reason"),
    CHOICES,
    ids=lambda x: x.name if isinstance(x, Structure) else "",
)
def test_select_backend_returns_the_name_and_the_reason_of_the_table(
    structure: Structure, length: int, options: dict[str, Any], name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: "compiling" in options)
    monkeypatch.setattr(torch._C, "_are_functorch_transforms_active", lambda: "vmap" in options)
    monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", lambda: int("mode" in options))
    bias = torch.zeros(1, 1, 1) if "bias" in options else None
    q = SimpleNamespace(is_cuda="cuda" in options, dtype=options.get("dtype", torch.float32))
    layout = structure.layout(1, length, length, CPU, bias)
    similarity, edited = options.get("similarity", Dot()), "edited" in options
    choice = select_backend(q, similarity, layout, dropout=options.get("dropout", 0.0), edited=edited)
    assert choice.name == name
    assert reason in choice.reason
    assert str(choice) == f"{choice.name}: {choice.reason}"


def test_one_query_in_a_compiled_cuda_step_is_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layout = WINDOW.layout(1, 1, LONG, CPU)
    assert select_backend(SimpleNamespace(is_cuda=True, dtype=torch.float32), Dot(), layout).name == "explicit"


EMPTY_ROWS: dict[str, Structure] = {
    "no pair": ~FULL,
    "a padding row": keep(torch.tensor([[True] * L, [False] * L])),
    "isolated nodes": edges(torch.tensor([0, 1]), torch.tensor([1, 0]), L),
    "no edge": edges(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long), L),
    "the last token, with later keys only": ~CAUSAL,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["explicit", "fused", "sparse", "attend"])
@pytest.mark.parametrize("case", EMPTY_ROWS)
def test_a_query_without_an_allowed_key_gets_zero_with_finite_gradients(
    case: str, backend: str, dtype: torch.dtype
) -> None:
    q, k, v = tensors(dtype=dtype)
    layout, listed = EMPTY_ROWS[case].layout(B, L, L, CPU), (EMPTY_ROWS[case] & EVERY_PAIR).layout(B, L, L, CPU)
    empty = ~layout.dense().allowed.any(-1).expand(B, H, L)
    s = ScaledDot(D)
    outputs = {
        "explicit": lambda: explicit(q, k, v, s, layout),
        "fused": lambda: fused(q, k, v, s, layout),
        "sparse": lambda: sparse(q, k, v, s, listed),
        "attend": lambda: attend(q, k, v, s, EMPTY_ROWS[case]),
    }
    with torch.autograd.set_detect_anomaly(True):  # no nan in intermediate results
        o = outputs[backend]()
        grad_q, grad_k, grad_v = torch.autograd.grad((30 * o.float()).square().sum(), (q, k, v))
    assert empty.any()
    assert (o[empty] == 0).all()
    assert o.dtype is dtype
    assert all(gradient.isfinite().all() for gradient in (grad_q, grad_k, grad_v))
    assert (grad_q[empty] == 0).all()


@pytest.mark.parametrize("similarity", [Dot(), Additive(KV, D).double()], ids=["dot", "additive"])
def test_attention_to_an_empty_memory_is_zero(similarity: Similarity) -> None:
    q, k, v = tensors(3, 0)
    o = attend(q, k, v, similarity)
    assert o.shape == (B, H, 3, D_V)
    assert (o == 0).all()


# scores that differ by less than the resolution of half precision: bf16 has steps of 0.25 at 60, float16 ends at 65,504
CLOSE_SCORES = {
    torch.bfloat16: (torch.tensor([8.0, 1.0]), torch.tensor([[7.5, 0.1], [7.5, 0.0], [7.5, 0.2]])),
    torch.float16: (torch.tensor([300.0, 1.0]), torch.tensor([[300.0, 0.1], [300.0, 0.0], [300.0, 0.2]])),
}


@pytest.mark.parametrize("dtype", CLOSE_SCORES, ids=str)
@pytest.mark.parametrize("backend", ["explicit", "fused", "fused, masked", "sparse", "explicit, autocast"])
def test_scores_and_softmax_are_float32_for_half_precision_inputs(dtype: torch.dtype, backend: str) -> None:
    query, keys = CLOSE_SCORES[dtype]
    q, k = query.expand(1, 1, 3, 2).to(dtype), keys.expand(1, 1, 3, 2).to(dtype)
    v = torch.eye(3).expand(1, 1, 3, 3).to(dtype)  # so that o is A
    exact = (q.double() @ k.double().mT).softmax(-1)
    half = (q @ k.mT).softmax(-1).double()
    all_pairs = edges(*torch.cartesian_prod(torch.arange(3), torch.arange(3)).T, 3).layout(1, 3, 3, CPU)
    full, masked = FULL.layout(1, 3, 3, CPU), (CAUSAL | ~CAUSAL).layout(1, 3, 3, CPU)
    with torch.autocast("cpu", dtype, enabled=backend == "explicit, autocast"):
        o = {
            "explicit": lambda: explicit(q, k, v, Dot(), full),
            "explicit, autocast": lambda: explicit(q.float(), k.float(), v.float(), Dot(), full),
            "fused": lambda: fused(q, k, v, Dot(), full),
            "fused, masked": lambda: fused(q, k, v, Dot(), masked),
            "sparse": lambda: sparse(q, k, v, Dot(), all_pairs),
        }[backend]()
    bound = 0.004  # half the bf16 resolution below 1 is 0.002
    assert not (half - exact).abs().max() < bound  # wrong or nan
    assert (o.double() - exact).abs().max() < bound


def test_a_global_token_sums_thousands_of_keys_in_bf16_without_loss() -> None:
    n = 4096  # a running sum of 1/4096 in bf16 stays at 1/16: the next term is below its resolution
    q = torch.zeros(1, 1, n, 2, dtype=torch.bfloat16)
    o = attend(q, q, torch.ones_like(q), Dot(), bigbird(n, 0, 1, 0))
    torch.testing.assert_close(o, torch.ones_like(o), rtol=0, atol=0.01)


def test_multiplying_a_zero_score_by_minus_infinity_as_printed_is_nan() -> None:
    scores, mask = torch.tensor([[0.7, 0.0]]), torch.tensor([[1.0, -math.inf]])
    assert (scores * mask).softmax(-1).isnan().any()


def test_multiplying_a_negative_score_by_minus_infinity_as_printed_shows_the_masked_token() -> None:
    scores, mask = torch.tensor([[0.7, -0.2]]), torch.tensor([[1.0, -1e9]])  # -1e9: a finite -inf that avoids nan
    assert (scores * mask).softmax(-1).tolist() == [[0.0, 1.0]]


def test_replacing_a_score_by_minus_infinity_masks_every_token() -> None:
    q, k = torch.tensor([[[[1.0], [1.0]]]]), torch.tensor([[[[0.7], [0.0]]]])
    for score in (-0.2, 0.0, 0.9):
        k[..., 1, 0] = score
        assert attend(q, k, torch.eye(2)[None, None], Dot(), CAUSAL)[0, 0, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("case", ["full", "additive", "edges"])
def test_dropout_preserves_the_expected_output(case: str) -> None:
    q, k = torch.zeros(1, 1, 40, 4), torch.zeros(1, 1, 40, 4)
    all_pairs = edges(*torch.cartesian_prod(torch.arange(40), torch.arange(40)).T, 40)
    s = Additive(1, 4) if case == "additive" else Dot()
    o = attend(q, k, torch.ones(1, 1, 40, 300), s, all_pairs if case == "edges" else FULL, dropout=0.5)
    assert o.std() > 0.05
    assert abs(o.mean().item() - 1) < 0.05


def test_mix_with_degree_weights_is_a_graph_convolution() -> None:
    adjacency = (torch.rand(7, 7) < 0.4).float().triu(1)
    adjacency = adjacency + adjacency.T + torch.eye(7)
    i, j = adjacency.nonzero().T
    degree, x = adjacency.sum(1), torch.randn(7, 3)
    expected = torch.diag(degree**-0.5) @ adjacency @ torch.diag(degree**-0.5) @ x
    torch.testing.assert_close(mix((degree[i] * degree[j]).rsqrt(), x, i, j, 7), expected)


@pytest.mark.parametrize("kind", ["bigbird", "edges"])
def test_graphs_and_bigbird_build_no_tensor_of_size_l_squared(largest, kind: str) -> None:
    n = 4096
    q, k, v = (torch.randn(1, 2, n, 4, requires_grad=True) for _ in range(3))
    with largest:
        i = torch.arange(n).repeat_interleave(4)
        structure = edges(i, (i * 7 + torch.arange(4 * n) % 4) % n, n) if kind == "edges" else bigbird(n) & CAUSAL
        attend(q, k, v, ScaledDot(4), structure).sum().backward()
    assert q.grad is not None
    assert largest.numel < n * n / 16
