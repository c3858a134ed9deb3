"""Memory networks: several hops over the lines of a story."""

import torch

from harken.core import Dot, attend
from harken.models.memnet import MemNetSettings
from harken.settings import LabelOutputs

from . import EXACT, Measurement, gap, show

OUTPUTS = LabelOutputs(20, 4, answer_ids=(1, 2, 3, 4))


def _inputs() -> dict[str, torch.Tensor]:
    return {"lines": torch.randint(1, 21, (2, 5, 4)), "question": torch.randint(1, 21, (2, 4))}


@show()
def hops() -> Measurement:
    """Three times q <- softmax(q K^T) V, K and V with one row per line, then the MLP: the model equals its equation."""
    model, inputs = MemNetSettings(d=8).build(OUTPUTS), _inputs()
    K, V = model.write(inputs["lines"])
    q = model.embed(inputs["question"])[..., 16:].sum(-2)
    for _ in range(3):
        q = attend(q[:, None, None], K[:, None], V[:, None], Dot())[:, 0, 0]
    x = gap(model(**inputs, ages=torch.zeros(2, 5, dtype=torch.long)), model.W_y(model.mlp(q)))
    return Measurement(x, "largest difference from three hops and an MLP", x < EXACT)


@show()
def written() -> Measurement:
    """Writing and reading are differentiable: every written line receives a gradient."""
    model, inputs = MemNetSettings(d=8).build(OUTPUTS), _inputs()
    lines = [model.write(inputs["lines"][:1, n : n + 1]).detach().requires_grad_() for n in range(5)]
    real = torch.ones(1, 5, dtype=torch.bool)
    model.read(torch.cat(lines, 2), inputs["question"][:1], torch.zeros(1, 5, dtype=torch.long), real).sum().backward()
    slopes = [float(line.grad.abs().sum()) for line in lines]
    return Measurement(sum(slope > 0 for slope in slopes), "of 5 written lines receive a gradient", min(slopes) > 0)
