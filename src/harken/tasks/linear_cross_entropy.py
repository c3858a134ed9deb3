"""-ln p of each next word, straight from the hidden states: the scores of all words are never held at once.

A vocabulary of 50,000 makes the word scores the largest tensor of a step. They are made a chunk of tokens at a time and
each chunk's gradients are taken while it is there, so nothing is computed twice and nothing of size L x vocab is kept.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harken import machine
from harken.core.similarity import precise
from harken.data.batch import IGNORE

Grader = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]
CHUNK = {"cpu": 2**21, "cuda": 2**28}  # scores made at a time: a processor's cache, or half a GiB of bfloat16


def word_loss(
    h: Tensor, W: Tensor, targets: Tensor, vocab: int, *, bias: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The summed loss (with gradients) and each token's -ln p (without). h: N d, W: V d with V >= vocab, targets: N.

    A score is <w, h>, and the word's bias (vocab) where there is one.

    Smoothing e is in the sum alone: there a token's loss is (1 - e) (-ln p of the word that came) + e (the mean of
    -ln p over all words), as if the word that came had been drawn from all words in a share e of the cases.
    """
    if torch._C._are_functorch_transforms_active():  # many models at once: they are small, and so are their scores
        scores = precise(F.linear(h, W[:vocab], bias))
        each = F.cross_entropy(scores.detach(), targets, ignore_index=IGNORE, reduction="none")
        how: Any = {"ignore_index": IGNORE, "reduction": "sum", "label_smoothing": smoothing}
        return F.cross_entropy(scores, targets, **how), each
    total, each = _WordLoss.apply(h, W, bias, targets, vocab, smoothing, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return total, each


class _WordLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, targets: Tensor, vocab: int, smoothing: float, learning: bool
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype
        with torch.autocast(h.device.type, enabled=False):
            padded = None if b is None else F.pad(b.to(dtype), (0, len(W) - vocab))
            total, each, *made = _losses(h.to(dtype), W.to(dtype), padded, targets, vocab, smoothing, learning)
        pairs = zip(made, (h, W, b), strict=True)
        ctx.save_for_backward(*(None if d is None or x is None else d[: len(x)].to(x.dtype) for d, x in pairs))
        ctx.mark_non_differentiable(each)
        return total, each

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        # g is one number: it does not change the precision of the others
        return *(None if d is None else d * g for d in ctx.saved_tensors), None, None, None, None


def _losses(
    h: Tensor, W: Tensor, b: Tensor | None, targets: Tensor, vocab: int, smoothing: float, learning: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The summed loss, each token's -ln p, and the gradients of the sum, chunk by chunk."""
    exact = torch.float32 if h.dtype in (torch.float16, torch.bfloat16) else h.dtype
    each = torch.empty(len(h), device=h.device, dtype=exact)
    spread: Tensor | float = 0.0
    dh, dW = (torch.empty_like(h), torch.zeros_like(W, dtype=exact)) if learning else (None, None)
    db = torch.zeros(len(W), device=W.device, dtype=exact) if learning and b is not None else None
    parts = -(-len(h) * len(W) // CHUNK.get(h.device.type, 2**24))
    real, step = targets != IGNORE, -(-len(h) // parts)
    grade = _grader(h.device)
    all_real = not h.is_cuda and bool(real.all())  # a GPU is not asked: the answer would have to be waited for
    share = smoothing or None  # a compiler takes a number that is 0 in judging for one that varies
    for start in range(0, len(h), step):
        part = slice(start, start + step)
        x, at, asked = h[part], targets[part].clamp_min(0), None if all_real else real[part]
        scores = x @ W.mT if b is None else torch.addmm(b, x, W.mT)
        each[part], means, p = grade(scores, at, asked, vocab, share, exact, learning)
        if means is not None:
            spread = spread + means.sum()
        if dh is not None and dW is not None and p is not None:
            torch.mm(p, W, out=dh[part])
            dW.addmm_(p.mT, x) if dW.dtype == x.dtype else dW.add_(p.mT @ x)
            if db is not None:
                db += p.sum(0, dtype=exact)
    total = (1 - smoothing) * each.sum() + smoothing * spread if smoothing else each.sum()
    return total, each, dh, dW, db


def _grader(device: torch.device) -> Grader:
    """The function below; on a GPU as two kernels instead of ten, where it may and can be compiled."""
    free = machine.compiling and not torch.are_deterministic_algorithms_enabled()
    return _compiled() if device.type == "cuda" and free else _graded


@cache
def _compiled() -> Grader:
    return _graded if machine.can_compile("cuda") else torch.compile(_graded)


def _graded(
    scores: Tensor,
    at: Tensor,
    asked: Tensor | None,
    vocab: int,
    smoothing: float | None,
    exact: torch.dtype,
    learning: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """-ln p of the words that came, its mean over all words (if that counts), and d loss / d score = p - target.

    The target is 1 for the word that came; smoothed by e it is 1 - e + e / vocab, and e / vocab for every other.
    """
    dtype, scores, rows = scores.dtype, scores.to(exact), torch.arange(len(at), device=at.device)
    scores[:, vocab:] = -torch.inf  # rows that only round the matrix up
    logs = scores.log_softmax(1)
    came = logs[rows, at]
    counts = 1 if asked is None else asked
    loss, means = -came * counts, None if smoothing is None else -logs[:, :vocab].mean(1) * counts
    if not learning:
        return loss, means, None
    p, target = logs.exp_(), 1.0
    if smoothing is not None:
        p[:, :vocab] -= smoothing / vocab
        target -= smoothing - smoothing / vocab
    p[rows, at] = came.exp() - target
    return loss, means, (p if asked is None else p * asked[:, None]).to(dtype)
