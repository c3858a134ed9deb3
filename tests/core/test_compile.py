"""torch.compile takes the training step and the one-token step whole: one graph, and it stays one as the text grows."""

from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    Additive,
    Alibi,
    Learned,
    Memory,
    Positions,
    Rotary,
    ScaledDot,
    Sinusoid,
    Stack,
    Structure,
    Wiring,
    attend,
    bigbird,
    explicit,
    keep,
    same,
    window,
)

pytestmark = pytest.mark.process
B, L, d = 2, 8, 16


@pytest.fixture(autouse=True)
def a_second_graph_is_an_error() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


def compiled(f: Callable[..., Tensor], backend: str = "eager") -> Callable[..., Tensor]:
    return torch.compile(f, fullgraph=True, backend=backend)


BATCHES = [
    (torch.tensor([[0] * 3 + [1] * 5, [0] * 8]), torch.arange(L) < torch.tensor([[8], [6]])),
    (torch.tensor([[0] * 5 + [1] * 3, [0] * 4 + [1] * 4]), torch.arange(L) < torch.tensor([[3], [7]])),
]
BIGBIRD = bigbird(L, 1, 1, 1)
TWO_LAYERS = "llama, packed"  # the others have one, to be quick
TRAINING: dict[str, tuple[Positions, dict[str, object], Callable[[Tensor, Tensor], Structure]]] = {
    "sinusoid, causal": (Sinusoid(), {}, lambda doc, real: CAUSAL),
    "llama, packed": (
        Rotary(4),
        {"kv_heads": 2, "act": "swiglu", "rms": True, "bias": False},
        lambda doc, real: CAUSAL & same(doc),
    ),
    "learned, padded, post-norm": (Learned(L, d), {"norm": "post"}, lambda doc, real: keep(real)),
    "alibi, window": (Alibi(4), {"d_k": 3, "d_v": 6}, lambda doc, real: CAUSAL & window(2)),
    "additive": (Positions(), {"similarity": Additive}, lambda doc, real: CAUSAL & keep(real)),
    "bigbird, causal, padded": (Positions(), {}, lambda doc, real: BIGBIRD & CAUSAL & keep(real)),
}


def training_step(case: str) -> tuple[Stack, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    positions, wiring, structure = TRAINING[case]
    stack = Stack(2 if case == TWO_LAYERS else 1, Wiring(d, 4, **wiring), positions)

    def loss(x: Tensor, doc: Tensor, real: Tensor) -> Tensor:
        pos = torch.arange(L)
        return stack(stack.positions.add(x, pos), structure=structure(doc, real), pos=pos).square().mean()

    return stack, loss


def check_training(case: str, backend: str) -> None:
    stack, loss = training_step(case)
    fast, weights = compiled(loss, backend), list(stack.parameters())
    for doc, real in BATCHES:  # a second batch of other documents is no reason for a second graph
        x = torch.randn(B, L, d)
        plain, quick = loss(x, doc, real), fast(x, doc, real)
        torch.testing.assert_close(quick, plain)
        for a, b in zip(*(torch.autograd.grad(o, weights) for o in (quick, plain)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", TRAINING)
def test_a_training_step_is_one_graph_with_the_same_numbers_and_gradients(case: str) -> None:
    check_training(case, "aot_eager" if case == "sinusoid, causal" else "eager")  # gradients by another road, once


def one_token_step(positions: Positions, structure: Structure = CAUSAL) -> tuple[Stack, Callable[..., Tensor]]:
    stack = Stack(1, Wiring(d, 4, kv_heads=2), positions).eval()

    def step(x: Tensor, pos: Tensor, memory: list[Memory]) -> Tensor:
        return stack(stack.positions.add(x, pos), structure=structure, pos=pos, memory=memory)

    return stack, step


def check_decoding(positions: Positions, backend: str, structure: Structure = CAUSAL) -> None:
    stack, step = one_token_step(positions, structure)
    x, pos = torch.randn(B, 3 + 10, d), torch.arange(3 + 10)
    with torch.no_grad():
        whole = stack(stack.positions.add(x, pos), structure=structure, pos=pos)
        memory = stack.memory(B, 16)
        step(x[:, :3], pos[:3], memory)
        fast = compiled(step, backend)
        steps = [fast(x[:, t : t + 1], pos[t : t + 1], memory) for t in range(3, 13)]
    torch.testing.assert_close(torch.cat(steps, 1), whole[:, 3:], rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "positions", [Sinusoid(), Learned(16, d), Rotary(4), Alibi(4)], ids=["sinusoid", "learned", "rotary", "alibi"]
)
def test_the_step_of_one_token_is_one_graph_for_ten_tokens(positions: Positions) -> None:
    check_decoding(positions, "eager")


def test_the_step_behind_a_window_is_one_graph_for_ten_tokens() -> None:
    check_decoding(Rotary(4), "eager", CAUSAL & window(3))


def test_the_step_of_one_token_is_generated_code() -> None:
    check_decoding(Rotary(4), "inductor")


def test_rows_at_different_places_step_in_one_graph() -> None:
    stack, step = one_token_step(Rotary(4))
    x, fast = torch.randn(B, 12, d), compiled(step)
    with torch.no_grad():
        whole = stack(x, structure=CAUSAL)
        memory = stack.memory(B, 16)
        step(x[:, :6], torch.arange(6), memory)  # row 1 is said to have read 2 words only
        for t in range(6):
            token = torch.stack([x[0, 6 + t], x[1, 2 + t]])[:, None]
            o = fast(token, torch.tensor([[6 + t], [2 + t]]), memory)
            torch.testing.assert_close(o[0, 0], whole[0, 6 + t], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(o[1, 0], whole[1, 2 + t], rtol=1e-4, atol=1e-5)


def test_translating_with_a_fixed_source_is_one_graph() -> None:
    stack = Stack(1, Wiring(d, 4, cross=True), Sinusoid()).eval()

    def step(x: Tensor, pos: Tensor, memory: list[Memory], source: list[Memory], real: Tensor) -> Tensor:
        x = stack.positions.add(x, pos)
        return stack(x, structure=CAUSAL, pos=pos, memory=memory, source=source, source_structure=keep(real))

    x, real, fast = torch.randn(B, 6, d), torch.arange(5) < torch.tensor([[5], [2]]), compiled(step)
    with torch.no_grad():
        source, memory, pos = stack.read(torch.randn(B, 5, d)), stack.memory(B, 8), torch.arange(6)
        read = {"source": source, "source_structure": keep(real)}
        whole = stack(stack.positions.add(x, pos), structure=CAUSAL, pos=pos, **read)
        steps = [fast(x[:, t : t + 1], pos[t : t + 1], memory, source, real) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # scores are computed in float32 on purpose
@pytest.mark.parametrize(("many", "route"), [(8, "explicit"), (40, "fused")])  # words
def test_a_compiled_attention_on_a_gpu_takes_the_equation_for_few_words_and_gives_its_numbers(
    many: int, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    given = [torch.randn(3, 2, L, 16) for L in (5, many, many)]
    real = torch.arange(many) < torch.tensor([[many], [3], [0]])  # the last may look at nothing
    each, module = [], import_module("harken.core.attend")
    other = {"explicit": "fused", "fused": "explicit"}[route]
    for device, call in (("cpu", explicit), ("cuda", compiled(attend, "inductor"))):
        if device == "cuda":
            monkeypatch.setattr(module, other, None)  # the route that is not taken
        x = [t.detach().to(device).requires_grad_() for t in given]
        layout = keep(real.to(device)).lay(3, 5, many, torch.device(device))
        o = call(*x, ScaledDot(16), layout)
        each.append([t.cpu() for t in (o.detach(), *torch.autograd.grad(o.square().sum(), x))])
    for mine, truth in zip(*reversed(each), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-3, atol=1e-3)
