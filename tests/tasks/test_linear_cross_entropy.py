"""Chunked cross entropy from hidden states: label smoothing, bias, compilation and reduced precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import machine
from harken.data.batch import IGNORE
from harken.tasks import linear_cross_entropy as module
from harken.tasks.linear_cross_entropy import linear_cross_entropy

N, D, VOCAB, ROWS = 30, 8, 60, 64  # ROWS: the padded vocabulary
SMOOTHING = [0.0, 0.1, 0.5]


def inputs(*, ragged: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Random hidden states and output embeddings in float64, and targets; `ragged` ignores some of them."""
    rng = torch.Generator().manual_seed(0)
    h, W = (torch.randn(n, D, generator=rng, dtype=torch.float64).requires_grad_() for n in (N, ROWS))
    targets = torch.randint(VOCAB, (N,), generator=rng)
    if ragged:
        targets[5:9] = targets[20] = targets[-4:] = IGNORE
    return h, W, targets


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, N])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_the_smoothed_loss_and_its_gradients_are_those_of_torch(monkeypatch, smoothing, tokens, ragged):
    monkeypatch.setitem(module.CHUNK, "cpu", tokens * ROWS)
    h, W, targets = inputs(ragged=ragged)
    expected = F.cross_entropy(
        h @ W[:VOCAB].mT, targets, label_smoothing=smoothing, ignore_index=IGNORE, reduction="sum"
    )
    plain = F.cross_entropy(h @ W[:VOCAB].mT, targets, ignore_index=IGNORE, reduction="none")
    total, losses = linear_cross_entropy(h, W, targets, VOCAB, smoothing=smoothing)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(losses, plain)
    for actual, reference in zip(*(torch.autograd.grad(3 * loss, (h, W)) for loss in (total, expected)), strict=True):
        torch.testing.assert_close(actual, reference)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_a_bias_changes_the_loss_and_has_a_gradient(monkeypatch, smoothing):
    monkeypatch.setitem(module.CHUNK, "cpu", 7 * ROWS)
    h, W, targets = inputs(ragged=True)
    b = torch.linspace(-3, 3, VOCAB, dtype=torch.float64).requires_grad_()
    scores = h @ W[:VOCAB].mT + b
    expected = F.cross_entropy(scores, targets, label_smoothing=smoothing, ignore_index=IGNORE, reduction="sum")
    total, losses = linear_cross_entropy(h, W, targets, VOCAB, bias=b, smoothing=smoothing)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(losses, F.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="none"))
    gradients = (torch.autograd.grad(3 * loss, (h, W, b)) for loss in (total, expected))
    for actual, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, reference)


def test_the_smoothed_loss_is_the_cross_entropy_with_the_smoothed_target():
    h, W, targets = inputs(ragged=False)
    target = torch.full((N, VOCAB), 0.1 / VOCAB, dtype=torch.float64)
    for n, word in enumerate(targets.tolist()):
        target[n, word] += 0.9
    expected = -(target * (h @ W[:VOCAB].mT).softmax(1).log()).sum()
    torch.testing.assert_close(linear_cross_entropy(h, W, targets, VOCAB, smoothing=0.1)[0], expected)


def test_without_gradients_the_smoothed_loss_is_the_same():
    h, W, targets = inputs(ragged=True)
    with torch.no_grad():
        without = linear_cross_entropy(h, W, targets, VOCAB, smoothing=0.1)
    torch.testing.assert_close(without, linear_cross_entropy(h, W, targets, VOCAB, smoothing=0.1), rtol=0, atol=0)


def test_the_compiled_graph_equals_the_eager_one_for_every_smoothing():
    compiled = torch.compile(module._chunk_loss, backend="aot_eager", fullgraph=True)
    h, W, targets = (t.detach() for t in inputs(ragged=True))
    for smoothing in (0.1, None, 0.3):  # in sequence, as in training, evaluation and another training
        for grad in (True, False):
            args = (targets.clamp_min(0), targets != IGNORE, VOCAB, smoothing, grad)
            torch.testing.assert_close(compiled(h @ W.mT, *args), module._chunk_loss(h @ W.mT, *args))


@pytest.mark.parametrize("problem", [None, "there is no Python.h"])
def test_on_a_gpu_the_loss_is_compiled_unless_compilation_is_impossible(monkeypatch, problem):
    monkeypatch.setattr(machine, "compile_problem", lambda device: problem)
    monkeypatch.setattr(machine, "compile_enabled", True)
    module._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda f: "compiled")
    assert module._chunk_loss_for(torch.device("cuda")) == (module._chunk_loss if problem else "compiled")
    module._compiled.cache_clear()


def test_gradients_under_autocast_approximate_those_of_float32():
    torch.manual_seed(0)
    h, W, targets = torch.randn(50, 16), torch.randn(64, 16), torch.randint(60, (50,))
    outputs = []
    for autocast in (False, True):
        x, w = h.clone().requires_grad_(), W.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            total, losses = linear_cross_entropy(x, w, targets, 60)
        total.backward()
        assert (x.grad.dtype, w.grad.dtype, losses.dtype) == (torch.float32,) * 3
        outputs.append((total.detach(), x.grad, w.grad))
    for plain, cast in zip(*outputs, strict=True):
        assert not torch.equal(plain, cast)
        torch.testing.assert_close(cast, plain, rtol=0.02, atol=0.05)
