"""The word scores' loss in chunks, under reduced precision."""

import torch

from harken.tasks.words import word_loss


def test_under_autocast_the_gradients_are_those_of_float32_to_its_precision():
    torch.manual_seed(0)
    h, W, at = torch.randn(50, 16), torch.randn(64, 16), torch.randint(60, (50,))
    found = []
    for cast in (False, True):
        x, w = h.clone().requires_grad_(), W.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            total, each = word_loss(x, w, at, 60)
        total.backward()
        assert (x.grad.dtype, w.grad.dtype, each.dtype) == (torch.float32,) * 3
        found.append((total.detach(), x.grad, w.grad))
    for plain, cast in zip(*found, strict=True):
        assert not torch.equal(plain, cast)
        torch.testing.assert_close(cast, plain, rtol=0.02, atol=0.05)
