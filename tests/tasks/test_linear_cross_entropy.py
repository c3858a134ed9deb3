"""The word scores' loss in chunks: smoothed, compiled, under reduced precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import machine
from harken.data.batch import IGNORE
from harken.tasks import linear_cross_entropy
from harken.tasks.linear_cross_entropy import linear_cross_entropy

N, D, VOCAB, ROWS = 30, 8, 60, 64  # ROWS: the vocabulary rounded up
SMOOTHING = [0.0, 0.1, 0.5]


def drawn(*, ragged: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, word vectors (float64, so that two ways to a number agree) and targets, some of them not asked."""
    draw = torch.Generator().manual_seed(0)
    h, W = (torch.randn(n, D, generator=draw, dtype=torch.float64).requires_grad_() for n in (N, ROWS))
    targets = torch.randint(VOCAB, (N,), generator=draw)
    if ragged:
        targets[5:9] = targets[20] = targets[-4:] = IGNORE
    return h, W, targets


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, N])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_the_smoothed_loss_and_its_gradients_are_those_of_torch(monkeypatch, smoothing, tokens, ragged):
    monkeypatch.setitem(linear_cross_entropy.CHUNK, "cpu", tokens * ROWS)
    h, W, targets = drawn(ragged=ragged)
    want = F.cross_entropy(h @ W[:VOCAB].mT, targets, label_smoothing=smoothing, ignore_index=IGNORE, reduction="sum")
    plain = F.cross_entropy(h @ W[:VOCAB].mT, targets, ignore_index=IGNORE, reduction="none")
    total, each = linear_cross_entropy(h, W, targets, VOCAB, smoothing=smoothing)
    torch.testing.assert_close(total, want)
    torch.testing.assert_close(each, plain)
    for mine, theirs in zip(*(torch.autograd.grad(3 * loss, (h, W)) for loss in (total, want)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_a_bias_counts_in_the_loss_and_is_learned(monkeypatch, smoothing):
    monkeypatch.setitem(linear_cross_entropy.CHUNK, "cpu", 7 * ROWS)
    h, W, targets = drawn(ragged=True)
    b = torch.linspace(-3, 3, VOCAB, dtype=torch.float64).requires_grad_()
    scores = h @ W[:VOCAB].mT + b
    want = F.cross_entropy(scores, targets, label_smoothing=smoothing, ignore_index=IGNORE, reduction="sum")
    total, each = linear_cross_entropy(h, W, targets, VOCAB, bias=b, smoothing=smoothing)
    torch.testing.assert_close(total, want)
    torch.testing.assert_close(each, F.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="none"))
    for mine, theirs in zip(*(torch.autograd.grad(3 * loss, (h, W, b)) for loss in (total, want)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_smoothed_loss_is_the_cross_entropy_with_the_smoothed_target():
    h, W, targets = drawn(ragged=False)
    target = torch.full((N, VOCAB), 0.1 / VOCAB, dtype=torch.float64)
    for n, word in enumerate(targets.tolist()):
        target[n, word] += 0.9
    by_hand = -(target * (h @ W[:VOCAB].mT).softmax(1).log()).sum()
    torch.testing.assert_close(linear_cross_entropy(h, W, targets, VOCAB, smoothing=0.1)[0], by_hand)


def test_without_gradients_the_smoothed_loss_is_the_same():
    h, W, targets = drawn(ragged=True)
    with torch.no_grad():
        judged = linear_cross_entropy(h, W, targets, VOCAB, smoothing=0.1)
    torch.testing.assert_close(judged, linear_cross_entropy(h, W, targets, VOCAB, smoothing=0.1), rtol=0, atol=0)


def test_the_graph_that_a_gpu_would_compile_gives_the_same_for_every_smoothing():
    fast = torch.compile(linear_cross_entropy._graded, backend="aot_eager", fullgraph=True)
    h, W, targets = (t.detach() for t in drawn(ragged=True))
    for smoothing in (0.1, None, 0.3):  # one after the other: training, judging, another training
        for learning in (True, False):
            given = (targets.clamp_min(0), targets != IGNORE, VOCAB, smoothing, torch.float64, learning)
            torch.testing.assert_close(fast(h @ W.mT, *given), linear_cross_entropy._graded(h @ W.mT, *given))


@pytest.mark.parametrize("why", [None, "there is no Python.h"])
def test_on_a_gpu_the_loss_is_compiled_where_the_machine_can(monkeypatch, why):
    monkeypatch.setattr(machine, "compile_problem", lambda device: why)
    monkeypatch.setattr(machine, "compile_enabled", True)
    linear_cross_entropy._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda f: "compiled")
    assert linear_cross_entropy._grader(torch.device("cuda")) == (linear_cross_entropy._graded if why else "compiled")
    linear_cross_entropy._compiled.cache_clear()


def test_under_autocast_the_gradients_are_those_of_float32_to_its_precision():
    torch.manual_seed(0)
    h, W, at = torch.randn(50, 16), torch.randn(64, 16), torch.randint(60, (50,))
    found = []
    for cast in (False, True):
        x, w = h.clone().requires_grad_(), W.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            total, each = linear_cross_entropy(x, w, at, 60)
        total.backward()
        assert (x.grad.dtype, w.grad.dtype, each.dtype) == (torch.float32,) * 3
        found.append((total.detach(), x.grad, w.grad))
    for plain, cast in zip(*found, strict=True):
        assert not torch.equal(plain, cast)
        torch.testing.assert_close(cast, plain, rtol=0.02, atol=0.05)
