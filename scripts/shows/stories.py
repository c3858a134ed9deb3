"""Memory networks: several hops over the lines of a story."""

import torch

from harken.core import Dot, attend
from harken.models.memnet import MemNetSettings
from harken.settings import LabelOutputs

from . import EXACT, Seen, gap, show

OUTPUTS = LabelOutputs(20, 4, answer_ids=(1, 2, 3, 4))


def _inputs() -> dict[str, torch.Tensor]:
    return {"lines": torch.randint(1, 21, (2, 5, 4)), "question": torch.randint(1, 21, (2, 4))}


@show()
def hops() -> Seen:
    """Three times q <- softmax(q K^T) V, K and V a row for each line, then the MLP: the network by its own equation."""
    model, inputs = MemNetSettings(d=8).build(OUTPUTS), _inputs()
    K, V = model.write(inputs["lines"])
    q = model.embed(inputs["question"])[..., 16:].sum(-2)
    for _ in range(3):
        q = attend(q[:, None, None], K[:, None], V[:, None], Dot())[:, 0, 0]
    x = gap(model(**inputs, ages=torch.zeros(2, 5, dtype=torch.long)), model.W_y(model.mlp(q)))
    return Seen(x, "largest difference from three hops and an MLP", x < EXACT)


@show()
def written() -> Seen:
    """Memory is written and read differentiably: every line that was written has a gradient."""
    model, inputs = MemNetSettings(d=8).build(OUTPUTS), _inputs()
    lines = [model.write(inputs["lines"][:1, n : n + 1]).detach().requires_grad_() for n in range(5)]
    real = torch.ones(1, 5, dtype=torch.bool)
    model.read(torch.cat(lines, 2), inputs["question"][:1], torch.zeros(1, 5, dtype=torch.long), real).sum().backward()
    slopes = [float(line.grad.abs().sum()) for line in lines]
    return Seen(sum(slope > 0 for slope in slopes), "of 5 lines that were written have a gradient", min(slopes) > 0)
