"""Cross entropy of the next token directly from the hidden states, without the logits of all tokens in memory.

With a vocabulary of 50,000 the logits are the largest tensor of a step. They are computed in chunks of tokens, and the
gradients of a chunk are computed at once: nothing is computed twice, and nothing of size L x vocab is stored.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harken import machine
from harken.core import products
from harken.core.similarity import precise
from harken.data.batch import IGNORE

ChunkLoss = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]
CHUNK = {"cpu": 2**20, "cuda": 2**28}  # logits computed at a time: a processor's cache, or half a GiB of bfloat16


def linear_cross_entropy(
    h: Tensor, W: Tensor, targets: Tensor, vocab: int, *, bias: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The summed loss (with gradients) and -ln p of each target (without). h: N d, W: V d with V >= vocab, targets: N.

    The logit of a token is <w, h> plus its bias (vocab).

    The sum has label smoothing e: (1 - e) (-ln p of the target) + e (the mean of -ln p over the vocabulary).
    """
    if torch._C._are_functorch_transforms_active():  # stacked models are small, and so are their logits
        logits = precise(F.linear(h, W[:vocab], bias))
        losses = F.cross_entropy(logits.detach(), targets, ignore_index=IGNORE, reduction="none")
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
        return total, losses
    needs_grad = torch.is_grad_enabled()
    total, losses = _LinearCrossEntropy.apply(h, W, bias, targets, vocab, smoothing, needs_grad)  # type: ignore[no-untyped-call]
    return total, losses


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, targets: Tensor, vocab: int, smoothing: float, grad: bool
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype
        with torch.autocast(h.device.type, enabled=False):
            padded = None if b is None else F.pad(b.to(dtype), (0, len(W) - vocab))
            chunked = _training_on_cpu if grad and products.is_eager_float32(h.to(dtype)) else _chunked
            total, losses, *grads = chunked(h.to(dtype), W.to(dtype), padded, targets, vocab, smoothing, grad)
        pairs = zip(grads, (h, W, b), strict=True)
        gradients = (None if d is None or x is None else d[: len(x)].to(x.dtype) for d, x in pairs)
        ctx.save_for_backward(*gradients, h, W, b, targets)
        ctx.vocab, ctx.smoothing = vocab, smoothing
        ctx.mark_non_differentiable(losses)
        return total, losses

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        *grads, h, W, b, targets = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradients are differentiated again
            grads = _differentiable_gradients(h, W, b, targets, ctx.vocab, ctx.smoothing)
        # g is a scalar tensor: it does not change the dtype of the product
        return *(None if d is None else d * g for d in grads), None, None, None, None


def _differentiable_gradients(
    h: Tensor, W: Tensor, b: Tensor | None, targets: Tensor, vocab: int, smoothing: float
) -> list[Tensor | None]:
    """The gradients of the sum with respect to h, W and b, as functions of them."""
    p = F.linear(h, W[:vocab], b).softmax(1)
    target = F.one_hot(targets.clamp_min(0), vocab) * (1 - smoothing) + smoothing / vocab
    d_logits = (p - target) * (targets != IGNORE)[:, None]  # N vocab
    d_W = F.pad(d_logits.mT @ h, (0, 0, 0, len(W) - vocab))
    return [d_logits @ W[:vocab], d_W, None if b is None else d_logits.sum(0)]


def _chunked(
    h: Tensor, W: Tensor, b: Tensor | None, targets: Tensor, vocab: int, smoothing: float, grad: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The summed loss, -ln p of each target, and the gradients of the sum, chunk by chunk."""
    exact = torch.float32 if h.dtype in (torch.float16, torch.bfloat16) else h.dtype
    losses = torch.empty(len(h), device=h.device, dtype=exact)
    uniform_loss: Tensor | float = 0.0
    dh, dW = (torch.empty_like(h), torch.zeros_like(W, dtype=exact)) if grad else (None, None)
    db = torch.zeros(len(W), device=W.device, dtype=exact) if grad and b is not None else None
    n_chunks = -(-len(h) * len(W) // CHUNK.get(h.device.type, 2**24))
    real, size = targets != IGNORE, -(-len(h) // n_chunks)
    chunk_loss = _chunk_loss_for(h.device)
    all_real = not h.is_cuda and bool(real.all())  # on a GPU reading it would synchronize
    e = smoothing or None  # None: a compiler would treat 0 as one of many values
    for start in range(0, len(h), size):
        chunk = slice(start, start + size)
        x, index, mask = h[chunk], targets[chunk].clamp_min(0), None if all_real else real[chunk]
        logits = F.linear(x, W, b)
        losses[chunk], means, p = chunk_loss(logits, index, mask, vocab, e, grad)
        if means is not None:
            uniform_loss = uniform_loss + means.sum()
        if dh is not None and dW is not None and p is not None:
            torch.mm(p, W, out=dh[chunk])
            dW.addmm_(p.mT, x) if dW.dtype == x.dtype else dW.add_(p.mT @ x)
            if db is not None:
                db += p.sum(0, dtype=exact)
    total = (1 - smoothing) * losses.sum() + smoothing * uniform_loss if smoothing else losses.sum()
    return total, losses, dh, dW, db


def _training_on_cpu(
    h: Tensor, W: Tensor, b: Tensor | None, targets: Tensor, vocab: int, smoothing: float, grad: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The same in float32 on a CPU, with fewer passes over the logits; rows without a target are left out.

    The gradient of a logit is p - (1 - e) [it is the target] - e / vocab. The last term has the same value for all
    logits, so it is subtracted from the products instead.
    """
    real, losses, dh = targets != IGNORE, torch.zeros(len(h)), torch.zeros_like(h)
    x, index = (h, targets) if real.all() else (h[real], targets[real])
    d_x, x_losses, uniform_loss = torch.empty_like(x), torch.empty(len(x)), torch.zeros(())
    dW, db = torch.zeros(W.shape[1], W.shape[0]), None if b is None else torch.zeros(len(W))  # dW: d V
    size = max(1, CHUNK["cpu"] // len(W))
    for start in range(0, len(x), size):
        chunk = slice(start, start + size)
        logits, at = products.times_transposed(x[chunk], W, b), index[chunk, None]
        logits[:, vocab:] = -torch.inf  # padding rows of W
        p = logits.softmax(1)
        normalizers = logits.amax(1) - p.amax(1).log()  # ln sum exp
        x_losses[chunk] = normalizers - logits.gather(1, at)[:, 0]
        if smoothing:
            uniform_loss += (normalizers - logits[:, :vocab].mean(1)).sum()
        p.scatter_add_(1, at, torch.full((len(p), 1), smoothing - 1))
        d_x[chunk] = products.times_transposed(p, W.mT)
        dW += products.times_transposed(x[chunk].mT.contiguous(), p.mT)
        if db is not None:
            db += p.sum(0)
    if smoothing:
        share = smoothing / vocab
        d_x -= share * W[:vocab].sum(0)
        dW[:, :vocab] -= share * x.sum(0)[:, None]
        if db is not None:
            db[:vocab] -= share * len(x)
    losses[real], dh[real] = x_losses, d_x
    return (1 - smoothing) * x_losses.sum() + smoothing * uniform_loss, losses, dh, dW.mT, db


def _chunk_loss_for(device: torch.device) -> ChunkLoss:
    """`_chunk_loss`; on a GPU compiled to two kernels instead of ten, where compilation is possible."""
    compiles = machine.compile_enabled and not torch.are_deterministic_algorithms_enabled()
    return _compiled() if device.type == "cuda" and compiles else _chunk_loss


@cache
def _compiled() -> ChunkLoss:
    return _chunk_loss if machine.compile_problem("cuda") else torch.compile(_chunk_loss)


def _chunk_loss(
    logits: Tensor, index: Tensor, mask: Tensor | None, vocab: int, smoothing: float | None, grad: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """-ln p of the targets, its mean over the vocabulary (with smoothing), and d loss / d logits = p - target.

    The target distribution is 1 for the target; smoothed by e it is 1 - e + e / vocab, and e / vocab elsewhere.
    """
    dtype, logits, rows = logits.dtype, precise(logits), torch.arange(len(index), device=index.device)
    logits[:, vocab:] = -torch.inf  # padding rows of W
    logs = logits.log_softmax(1)
    target_logs = logs[rows, index]
    weight = 1 if mask is None else mask
    loss, means = -target_logs * weight, None if smoothing is None else -logs[:, :vocab].mean(1) * weight
    if not grad:
        return loss, means, None
    p, target = logs.exp_(), 1.0
    if smoothing is not None:
        p[:, :vocab] -= smoothing / vocab
        target -= smoothing - smoothing / vocab
    p[rows, index] = target_logs.exp() - target
    return loss, means, (p if mask is None else p * mask[:, None]).to(dtype)
