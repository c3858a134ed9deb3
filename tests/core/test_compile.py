"""torch.compile traces the training step and the decoding step as one graph, and no longer text needs another one."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from harken.core import (
    BACKENDS,
    CAUSAL,
    Additive,
    Alibi,
    BlockConfig,
    Learned,
    Memory,
    Positions,
    Rotary,
    ScaledDot,
    Sinusoid,
    Stack,
    Structure,
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
def recompilation_is_an_error() -> Iterator[None]:
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
TWO_LAYERS = "llama, packed"  # the other cases have one layer, for speed
TRAINING: dict[str, tuple[Positions, dict[str, object], Callable[[Tensor, Tensor], Structure]]] = {
    "sinusoid, causal": (Sinusoid(), {}, lambda doc, real: CAUSAL),
    "llama, packed": (
        Rotary(4),
        {"kv_heads": 2, "activation": "swiglu", "rms_norm": True, "bias": False},
        lambda doc, real: CAUSAL & same(doc),
    ),
    "learned, padded, post-norm": (Learned(L, d), {"norm": "post"}, lambda doc, real: keep(real)),
    "alibi, window": (Alibi(4), {"d_k": 3, "d_v": 6}, lambda doc, real: CAUSAL & window(2)),
    "additive": (Positions(), {"similarity": Additive}, lambda doc, real: CAUSAL & keep(real)),
    "bigbird, causal, padded": (Positions(), {}, lambda doc, real: BIGBIRD & CAUSAL & keep(real)),
}


def training_step(case: str) -> tuple[Stack, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    positions, config, structure = TRAINING[case]
    stack = Stack(2 if case == TWO_LAYERS else 1, BlockConfig(d, 4, **config), positions)

    def loss(x: Tensor, doc: Tensor, real: Tensor) -> Tensor:
        pos = torch.arange(L)
        return stack(stack.positions.add(x, pos), structure=structure(doc, real), pos=pos).square().mean()

    return stack, loss


def check_training(case: str, backend: str) -> None:
    stack, loss = training_step(case)
    fast, weights = compiled(loss, backend), list(stack.parameters())
    for doc, real in BATCHES:  # other documents must not cause a second graph
        x = torch.randn(B, L, d)
        eager, compiled_loss = loss(x, doc, real), fast(x, doc, real)
        torch.testing.assert_close(compiled_loss, eager)
        for a, b in zip(*(torch.autograd.grad(o, weights) for o in (compiled_loss, eager)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", TRAINING)
def test_a_training_step_is_one_graph_with_the_same_loss_and_gradients(case: str) -> None:
    check_training(case, "aot_eager" if case == "sinusoid, causal" else "eager")  # once with traced gradients


def one_token_step(positions: Positions, structure: Structure = CAUSAL) -> tuple[Stack, Callable[..., Tensor]]:
    stack = Stack(1, BlockConfig(d, 4, kv_heads=2), positions).eval()

    def step(x: Tensor, pos: Tensor, memory: list[Memory]) -> Tensor:
        return stack(stack.positions.add(x, pos), structure=structure, pos=pos, memory=memory)

    return stack, step


def check_decoding(positions: Positions, backend: str, structure: Structure = CAUSAL) -> None:
    stack, step = one_token_step(positions, structure)
    x, pos = torch.randn(B, 3 + 10, d), torch.arange(3 + 10)
    with torch.no_grad():
        one_pass = stack(stack.positions.add(x, pos), structure=structure, pos=pos)
        memory = stack.memory(B, 16)
        step(x[:, :3], pos[:3], memory)
        fast = compiled(step, backend)
        steps = [fast(x[:, t : t + 1], pos[t : t + 1], memory) for t in range(3, 13)]
    torch.testing.assert_close(torch.cat(steps, 1), one_pass[:, 3:], rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "positions", [Sinusoid(), Learned(16, d), Rotary(4), Alibi(4)], ids=["sinusoid", "learned", "rotary", "alibi"]
)
def test_the_decoding_step_is_one_graph_for_ten_tokens(positions: Positions) -> None:
    check_decoding(positions, "eager")


def test_the_decoding_step_with_a_window_is_one_graph_for_ten_tokens() -> None:
    check_decoding(Rotary(4), "eager", CAUSAL & window(3))


def test_the_decoding_step_compiles_with_inductor() -> None:
    check_decoding(Rotary(4), "inductor")


def test_rows_at_different_positions_decode_in_one_graph() -> None:
    stack, step = one_token_step(Rotary(4))
    x, fast = torch.randn(B, 12, d), compiled(step)
    with torch.no_grad():
        one_pass = stack(x, structure=CAUSAL)
        memory = stack.memory(B, 16)
        step(x[:, :6], torch.arange(6), memory)  # row 1 continues after 2 tokens
        for t in range(6):
            token = torch.stack([x[0, 6 + t], x[1, 2 + t]])[:, None]
            o = fast(token, torch.tensor([[6 + t], [2 + t]]), memory)
            torch.testing.assert_close(o[0, 0], one_pass[0, 6 + t], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(o[1, 0], one_pass[1, 2 + t], rtol=1e-4, atol=1e-5)


def test_decoding_with_a_fixed_source_is_one_graph() -> None:
    stack = Stack(1, BlockConfig(d, 4, cross=True), Sinusoid()).eval()

    def step(x: Tensor, pos: Tensor, memory: list[Memory], source: list[Memory], real: Tensor) -> Tensor:
        x = stack.positions.add(x, pos)
        return stack(x, structure=CAUSAL, pos=pos, memory=memory, source=source, source_structure=keep(real))

    x, real, fast = torch.randn(B, 6, d), torch.arange(5) < torch.tensor([[5], [2]]), compiled(step)
    with torch.no_grad():
        source, memory, pos = stack.source_memory(torch.randn(B, 5, d)), stack.memory(B, 8), torch.arange(6)
        cross = {"source": source, "source_structure": keep(real)}
        one_pass = stack(stack.positions.add(x, pos), structure=CAUSAL, pos=pos, **cross)
        steps = [fast(x[:, t : t + 1], pos[t : t + 1], memory, source, real) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), one_pass, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # scores are computed in float32 on purpose
@pytest.mark.parametrize(("length", "backend"), [(8, "explicit"), (40, "fused")])
def test_a_compiled_attention_on_a_gpu_uses_explicit_for_short_sequences(
    length: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(3, 2, L, 16) for L in (5, length, length)]
    real = torch.arange(length) < torch.tensor([[length], [3], [0]])  # the last row has no key
    outputs = []
    other = {"explicit": "fused", "fused": "explicit"}[backend]
    for device, call in (("cpu", explicit), ("cuda", compiled(attend, "inductor"))):
        if device == "cuda":
            monkeypatch.delitem(BACKENDS, other)  # an error if it is selected
        x = [t.detach().to(device).requires_grad_() for t in inputs]
        layout = keep(real.to(device)).layout(3, 5, length, torch.device(device))
        o = call(*x, ScaledDot(16), layout)
        outputs.append([t.cpu() for t in (o.detach(), *torch.autograd.grad(o.square().sum(), x))])
    for actual, expected in zip(*reversed(outputs), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
