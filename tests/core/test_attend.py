"""One equation, four routes. The oracle is the equation, written as loops over single vectors in float64."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Bilinear,
    Concat,
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
    fused,
    hubs,
    keep,
    mix,
    polynomial,
    random_links,
    same,
    sparse,
    window,
)

CPU = torch.device("cpu")
B, H, KV, L, D, D_V = 2, 4, 2, 5, 2, 3  # grouped heads, and values wider than keys
REAL = [[True, True, True, True, True], [True, True, False, True, False]]
DOC = [[0, 0, 0, 1, 1], [0, 1, 1, 2, 2]]
PAIRS = [
    [0, 1],
    [0, 3],
    [1, 1],
    [2, 0],
    [2, 4],
    [4, 4],
    [4, 4],
    [4, 2],
]  # node 3 looks at nobody, one pair is there twice
real, doc, graph = torch.tensor(REAL), torch.tensor(DOC), edges(*torch.tensor(PAIRS).T, L)
EVERY_PAIR = edges(*torch.cartesian_prod(torch.arange(L), torch.arange(L)).T, L)
LINKS = set(zip(*(t.tolist() for t in random_links(L, 2).pairs), strict=True))

# who may look at whom, said once to harken and once in plain Python
Rule = Callable[[int, int, int], bool]
STRUCTURES: dict[str, tuple[Structure, Rule]] = {
    "full": (FULL, lambda b, i, j: True),
    "causal": (CAUSAL, lambda b, i, j: j <= i),
    "window": (window(1), lambda b, i, j: abs(i - j) <= 1),
    "window, listed": (bigbird(L, 1, 0, 0), lambda b, i, j: abs(i - j) <= 1),
    "hubs": (hubs(1), lambda b, i, j: i == 0 or j == 0),
    "random links": (random_links(L, 2), lambda b, i, j: (i, j) in LINKS),
    "bigbird": (bigbird(L, 1, 1, 2), lambda b, i, j: abs(i - j) <= 1 or i == 0 or j == 0 or (i, j) in LINKS),
    "keep": (keep(real), lambda b, i, j: REAL[b][j]),
    "same document": (same(doc), lambda b, i, j: DOC[b][i] == DOC[b][j]),
    "edges": (graph, lambda b, i, j: [i, j] in PAIRS),
    "causal & keep": (CAUSAL & keep(real), lambda b, i, j: j <= i and REAL[b][j]),
    "causal & same document": (CAUSAL & same(doc), lambda b, i, j: j <= i and DOC[b][i] == DOC[b][j]),
    "window | hubs": (window(1) | hubs(1), lambda b, i, j: abs(i - j) <= 1 or i == 0 or j == 0),
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


def by_hand(q: Tensor, k: Tensor, v: Tensor, score: Callable[[int, Tensor, Tensor], Tensor], rule: Rule) -> Tensor:
    """o_i = sum_j a_ij v_j, a_ij = exp(sim(q_i, k_j)) / sum over the allowed j' of exp(sim(q_i, k_j'))."""
    group, rows = q.shape[1] // k.shape[1], []
    for b, head, i in itertools.product(range(len(q)), range(q.shape[1]), range(q.shape[2])):
        h, o, total = head // group, torch.zeros(v.shape[-1], dtype=v.dtype), torch.zeros((), dtype=v.dtype)
        for j in range(k.shape[2]):
            if rule(b, i, j):
                weight = score(h, q[b, head, i], k[b, h, j]).exp()
                o, total = o + weight * v[b, h, j], total + weight
        rows.append(o / total if total > 0 else o)
    return torch.stack(rows).view(*q.shape[:-1], v.shape[-1])


def gradients(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    mixed = (o * torch.arange(o.numel(), dtype=o.dtype).cos().view_as(o)).sum()
    found = torch.autograd.grad(mixed, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_route_gives_the_numbers_and_gradients_of_the_loop(similarity: str, structure: str) -> None:
    make, score = SIMILARITIES[similarity]
    s, (relation, rule) = make().double(), STRUCTURES[structure]
    for p in s.parameters():
        p.data += 0.1 * torch.randn_like(p)
    q, k, v = tensors()
    inputs = [q, k, v, *s.parameters()]
    expected = by_hand(q, k, v, lambda h, q, k: score(s, h, q, k), rule)
    layout, listed = relation.lay(B, L, L, CPU), (relation & EVERY_PAIR).lay(B, L, L, CPU)
    projected = s.project(q, k)
    outputs = {
        "attend": attend(q, k, v, s, relation),
        "explicit": explicit(*projected, v, s, layout),
        "sparse": sparse(*projected, v, s, listed),
    }
    if s.is_dot:
        outputs["fused"] = fused(*projected, v, s, layout)
    wanted = gradients(expected, inputs)
    for route, o in outputs.items():
        torch.testing.assert_close(o, expected, rtol=1e-9, atol=1e-9, msg=lambda m, route=route: f"{route}: {m}")
        for got, want in zip(gradients(o, inputs), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8, msg=lambda m, route=route: f"{route}: {m}")


@pytest.mark.parametrize("per_row", [False, True], ids=["one bias", "a bias for each row of the batch"])
@pytest.mark.parametrize("structure", ["full", "causal", "keep", "bigbird & causal & keep", "edges"])
def test_a_bias_is_added_to_the_score_in_every_route(structure: str, per_row: bool) -> None:
    q, k, v = tensors()
    relation, rule = STRUCTURES[structure]
    bias = torch.randn(*((B,) if per_row else ()), H, L, L, dtype=torch.float64)
    s = ScaledDot(D)
    A = torch.zeros(B, H, L, L, dtype=torch.float64)
    for b, h, i in itertools.product(range(B), range(H), range(L)):
        at = [j for j in range(L) if rule(b, i, j)]
        if at:
            scores = [q[b, h, i].dot(k[b, h // 2, j]) / math.sqrt(D) + bias.expand(B, H, L, L)[b, h, i, j] for j in at]
            A[b, h, i, at] = torch.stack(scores).detach().softmax(0)
    expected = A @ v.detach().repeat_interleave(2, 1)
    layout, listed = relation.lay(B, L, L, CPU, bias), (relation & EVERY_PAIR).lay(B, L, L, CPU, bias)
    for o in (
        attend(q, k, v, s, relation, bias=bias),
        explicit(q, k, v, s, layout),
        fused(q, k, v, s, layout),
        sparse(q, k, v, s, listed),
    ):
        torch.testing.assert_close(o, expected)


@pytest.mark.parametrize("kv", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_it_equals_scaled_dot_product_attention(kv: int, causal: bool) -> None:
    q, k, v = tensors(kv=kv)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(attend(q, k, v, ScaledDot(D), CAUSAL if causal else FULL), expected)


@pytest.mark.parametrize(("Lq", "Lk"), [(1, 5), (3, 5), (5, 3)])
def test_causal_queries_sit_at_the_end_of_their_keys(Lq: int, Lk: int) -> None:
    q, k, v = tensors(Lq, Lk)
    expected = by_hand(q, k, v, lambda h, q, k: q.dot(k), lambda b, i, j: j <= i + Lk - Lq)
    with torch.autograd.set_detect_anomaly(True):
        o = attend(q, k, v, Dot(), CAUSAL)
        gradients(o, [q, k, v])
    torch.testing.assert_close(o, expected)


@pytest.mark.parametrize(
    ("similarity", "structure", "route"),
    [
        ("scaled dot", "full", "fused"),
        ("mahalanobis", "causal & keep", "fused"),
        ("additive", "causal", "explicit"),
        ("concat", "edges", "sparse"),
        ("scaled dot", "bigbird & causal & keep", "sparse"),
        ("scaled dot", "window, listed", "sparse"),
    ],
)
def test_the_cheapest_route_is_taken(
    similarity: str, structure: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = spy_on_routes(monkeypatch)
    attend(*tensors(), SIMILARITIES[similarity][0]().double(), STRUCTURES[structure][0])
    assert taken == [route]


def spy_on_routes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import importlib

    module, taken = importlib.import_module("harken.core.attend"), []
    for name in ("explicit", "fused", "sparse", "flex"):
        true = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, n=name, f=true, **k: taken.append(n) or f(*a, **k))
    return taken


NOBODY: dict[str, Structure] = {
    "nothing at all": ~FULL,
    "a padding row": keep(torch.tensor([[True] * L, [False] * L])),
    "isolated nodes": edges(torch.tensor([0, 1]), torch.tensor([1, 0]), L),
    "no edge": edges(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long), L),
    "the last word, looking only ahead": ~CAUSAL,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("route", ["explicit", "fused", "sparse", "attend"])
@pytest.mark.parametrize("case", NOBODY)
def test_a_query_that_may_look_at_nothing_gets_zero_with_finite_gradients(
    case: str, route: str, dtype: torch.dtype
) -> None:
    q, k, v = tensors(dtype=dtype)
    layout, listed = NOBODY[case].lay(B, L, L, CPU), (NOBODY[case] & EVERY_PAIR).lay(B, L, L, CPU)
    alone = ~layout.dense()[0].any(-1).expand(B, H, L)
    s = ScaledDot(D)
    routes = {
        "explicit": lambda: explicit(q, k, v, s, layout),
        "fused": lambda: fused(q, k, v, s, layout),
        "sparse": lambda: sparse(q, k, v, s, listed),
        "attend": lambda: attend(q, k, v, s, NOBODY[case]),
    }
    with torch.autograd.set_detect_anomaly(True):  # no nan on the way either
        o = routes[route]()
        to_q, to_k, to_v = torch.autograd.grad((30 * o.float()).square().sum(), (q, k, v))
    assert alone.any()
    assert (o[alone] == 0).all()
    assert o.dtype is dtype
    assert all(gradient.isfinite().all() for gradient in (to_q, to_k, to_v))
    assert (to_q[alone] == 0).all()


@pytest.mark.parametrize("similarity", [Dot(), Additive(KV, D).double()], ids=["dot", "additive"])
def test_an_empty_story_is_answered_with_zero(similarity: Similarity) -> None:
    q, k, v = tensors(3, 0)
    o = attend(q, k, v, similarity)
    assert o.shape == (B, H, 3, D_V)
    assert (o == 0).all()


# two scores that differ by less than half precision can tell apart: bf16 steps by 0.25 at 60, float16 ends at 65,504
CLOSE = {
    torch.bfloat16: (torch.tensor([8.0, 1.0]), torch.tensor([[7.5, 0.1], [7.5, 0.0], [7.5, 0.2]])),
    torch.float16: (torch.tensor([300.0, 1.0]), torch.tensor([[300.0, 0.1], [300.0, 0.0], [300.0, 0.2]])),
}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("route", ["explicit", "fused", "fused, masked", "sparse", "explicit, autocast"])
def test_in_half_precision_scores_and_softmax_are_still_float32(dtype: torch.dtype, route: str) -> None:
    query, keys = CLOSE[dtype]
    q, k = query.expand(1, 1, 3, 2).to(dtype), keys.expand(1, 1, 3, 2).to(dtype)
    v = torch.eye(3).expand(1, 1, 3, 3).to(dtype)  # so that o is A
    exact = (q.double() @ k.double().mT).softmax(-1)
    careless = (q @ k.mT).softmax(-1).double()
    every = edges(*torch.cartesian_prod(torch.arange(3), torch.arange(3)).T, 3).lay(1, 3, 3, CPU)
    full, masked = FULL.lay(1, 3, 3, CPU), (CAUSAL | ~CAUSAL).lay(1, 3, 3, CPU)
    with torch.autocast("cpu", dtype, enabled=route == "explicit, autocast"):
        o = {
            "explicit": lambda: explicit(q, k, v, Dot(), full),
            "explicit, autocast": lambda: explicit(q.float(), k.float(), v.float(), Dot(), full),
            "fused": lambda: fused(q, k, v, Dot(), full),
            "fused, masked": lambda: fused(q, k, v, Dot(), masked),
            "sparse": lambda: sparse(q, k, v, Dot(), every),
        }[route]()
    bound = 0.004  # half a step of bf16 below 1 is 0.002
    assert not (careless - exact).abs().max() < bound  # wrong or not a number
    assert (o.double() - exact).abs().max() < bound


def test_a_hub_adds_up_its_thousands_of_neighbours_in_bf16() -> None:
    n = 4096  # a running sum of 1/4096 in bf16 stands still at 1/16: the next step is too small for it
    q = torch.zeros(1, 1, n, 2, dtype=torch.bfloat16)
    o = attend(q, q, torch.ones_like(q), Dot(), bigbird(n, 0, 1, 0))
    torch.testing.assert_close(o, torch.ones_like(o), rtol=0, atol=0.01)


def test_the_lectures_mask_taken_literally_is_not_a_number_where_a_score_is_zero() -> None:
    scores, mask = torch.tensor([[0.7, 0.0]]), torch.tensor([[1.0, -math.inf]])
    assert (scores * mask).softmax(-1).isnan().any()


def test_the_lectures_mask_taken_literally_shows_the_word_it_should_hide() -> None:
    scores, mask = torch.tensor([[0.7, -0.2]]), torch.tensor([[1.0, -1e9]])  # -1e9: a computer's -inf that avoids nan
    assert (scores * mask).softmax(-1).tolist() == [[0.0, 1.0]]


def test_replacing_by_minus_infinity_hides_the_word_whatever_its_score() -> None:
    q, k = torch.tensor([[[[1.0], [1.0]]]]), torch.tensor([[[[0.7], [0.0]]]])
    for score in (-0.2, 0.0, 0.9):
        k[..., 1, 0] = score
        assert attend(q, k, torch.eye(2)[None, None], Dot(), CAUSAL)[0, 0, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("route", ["full", "additive", "edges"])
def test_dropout_leaves_the_expected_answer_as_it_is(route: str) -> None:
    q, k = torch.zeros(1, 1, 40, 4), torch.zeros(1, 1, 40, 4)
    every = edges(*torch.cartesian_prod(torch.arange(40), torch.arange(40)).T, 40)
    s = Additive(1, 4) if route == "additive" else Dot()
    o = attend(q, k, torch.ones(1, 1, 40, 300), s, every if route == "edges" else FULL, dropout=0.5)
    assert o.std() > 0.05
    assert abs(o.mean().item() - 1) < 0.05


def test_mixing_with_weights_of_the_degrees_is_a_graph_convolution() -> None:
    adjacency = (torch.rand(7, 7) < 0.4).float().triu(1)
    adjacency = adjacency + adjacency.T + torch.eye(7)
    i, j = adjacency.nonzero().T
    degree, x = adjacency.sum(1), torch.randn(7, 3)
    expected = torch.diag(degree**-0.5) @ adjacency @ torch.diag(degree**-0.5) @ x
    torch.testing.assert_close(mix((degree[i] * degree[j]).rsqrt(), x, i, j, 7), expected)


@pytest.mark.parametrize("kind", ["bigbird", "edges"])
def test_nothing_of_the_size_of_all_pairs_is_built_for_graphs_and_bigbird(largest, kind: str) -> None:
    n = 4096
    q, k, v = (torch.randn(1, 2, n, 4, requires_grad=True) for _ in range(3))
    with largest:
        i = torch.arange(n).repeat_interleave(4)
        structure = edges(i, (i * 7 + torch.arange(4 * n) % 4) % n, n) if kind == "edges" else bigbird(n) & CAUSAL
        attend(q, k, v, ScaledDot(4), structure).sum().backward()
    assert q.grad is not None
    assert largest.numel < n * n / 16
