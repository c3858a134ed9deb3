"""Local minima, saddle points and ill-conditioned Hessians of the losses of networks."""

from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harken.analysis.landscape import Landscape, Objective, lanczos, landscape
from harken.training.optimizers import build_optimizer
from harken.training.settings import Train

from . import Measurement, show
from .training import small_trainer, train_steps

N, STEPS, BATCH = 128, 200, 8  # examples; SGD at the saddle point: steps and examples of a batch
SGD = Train(optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)


class Descent(NamedTuple):
    """A run of SGD from a saddle point: the losses on all examples and the weights after each step."""

    losses: list[float]
    weights: list[Tensor]


def saddle_data() -> tuple[Tensor, Tensor]:
    """Points of the plane, and a smooth function of them."""
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, (2 * x[:, :1]).tanh() + 0.5 * x[:, 1:].sin()


def saddle_network() -> nn.Sequential:
    """A network of two layers at a saddle point: it ignores its input and predicts the mean."""
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    first, last = network[0], network[2]
    with torch.no_grad():
        first.weight.zero_()
        first.bias.copy_(torch.tensor([-0.9, -0.3, 0.5, 1.1]))
        last.weight.zero_()
        last.bias.copy_(saddle_data()[1].mean(0))
    return network


def squared_error(x: Tensor, y: Tensor, network: nn.Module) -> Tensor:
    return (network(x) - y).square().mean()


def saddle_objective(network: nn.Module) -> Objective:
    return Objective(network, [partial(squared_error, *saddle_data())])


@cache
def descend(batch: int) -> Descent:
    """SGD from the saddle point with batches of this size; N examples are all: the gradient has no noise."""
    (x, y), network = saddle_data(), saddle_network()
    optimizer, generator = build_optimizer(network, SGD), torch.Generator().manual_seed(0)
    losses, weights = list[float](), list[Tensor]()
    for _ in range(STEPS):
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        losses.append(squared_error(x, y, network).item())
        rows = torch.randperm(N, generator=generator)[:batch]
        squared_error(x[rows], y[rows], network).backward()
        optimizer.step()
        optimizer.zero_grad()
    return Descent(losses, weights)


@show()
def saddle_point() -> Measurement:
    """SGD with small batches leaves a saddle point of a network of two layers; without noise it stays there."""
    at_saddle = landscape(saddle_objective(saddle_network()), grid=3)
    exact, noisy = descend(N).losses, descend(BATCH).losses
    left = next((n for n, loss in enumerate(noisy) if loss < 0.5 * noisy[0]), STEPS)
    words = (
        f"smallest eigenvalue of the Hessian where the gradient norm is {at_saddle.gradient_norm:.1g}; loss"
        f" {exact[0]:.3f}, halved after {left} steps of SGD with batches of {BATCH}, {exact[-1]:.3f} after {STEPS}"
        " steps without noise"
    )
    holds = at_saddle.gradient_norm < 1e-12 and at_saddle.smallest_eigenvalue < -0.1
    return Measurement(at_saddle.smallest_eigenvalue, words, holds and left < STEPS and exact[-1] > 0.99 * exact[0])


@show(slow=True)
def local_minima_of_a_network() -> Measurement:
    """Gradient descent on sin(2x) with two hidden units ends in different local minima, by the initial weights."""
    x = torch.linspace(-3, 3, 20, dtype=torch.float64)[:, None]

    def loss(network: nn.Module) -> Tensor:
        decay = sum((p.square().sum() for p in network.parameters()), torch.zeros(()))
        return squared_error(x, (2 * x).sin(), network) + 1e-3 * decay

    minima, norms, smallest = set[float](), list[float](), list[float]()
    for seed in range(6):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
        optimizer = torch.optim.LBFGS(
            network.parameters(), max_iter=2000, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
        )

        def backward(network: nn.Module = network, optimizer: torch.optim.Optimizer = optimizer) -> float:
            optimizer.zero_grad()
            (value := loss(network)).backward()
            return value.item()

        optimizer.step(backward)
        minimum = landscape(Objective(network, [loss]), grid=3)
        minima.add(round(minimum.loss, 3))
        norms.append(minimum.gradient_norm)
        smallest.append(minimum.smallest_eigenvalue)
    words = (
        f"local minima from 6 initial weights, with losses {', '.join(map(str, sorted(minima)))}; the gradient norm is"
        f" at most {max(norms):.0e} and the smallest eigenvalue of the Hessian {min(smallest):.1g}"
    )
    return Measurement(len(minima), words, len(minima) > 1 and max(norms) < 1e-4 and min(smallest) > 1e-4)


@cache
def trained_landscape(grid: int = 3) -> Landscape:
    """The landscape of a small language model after 80 steps, on two training batches."""
    with small_trainer() as trainer:
        train_steps(trainer, 80)
        return landscape(Objective.of_task(trainer.model, trainer.task, 2), grid=grid, steps=30)


@show(slow=True)
def loss_landscape() -> Measurement:
    """The loss around the weights of a trained language model: it rises along the directions of highest curvature."""
    trained = trained_landscape()
    rise = float(min(trained.losses[1, [0, 2]].min(), trained.losses[[0, 2], 1].min())) - trained.loss
    words = (
        f"largest eigenvalue of the Hessian of {trained.n_weights:,} weights after 80 steps, second"
        f" {trained.eigenvalues[1]:.3g}, smallest {trained.smallest_eigenvalue:.2g}; the loss {trained.loss:.3g} rises"
        f" by at least {rise:.2g} along both directions"
    )
    holds = rise > 0 and trained.eigenvalues[0] > 10 * abs(trained.smallest_eigenvalue)
    return Measurement(trained.eigenvalues[0], words, holds)


@show(slow=True)
def ill_conditioned() -> Measurement:
    """The Hessian of a trained language model is ill-conditioned: few directions have a large curvature."""
    with small_trainer() as trainer:
        train_steps(trainer, 80)
        objective = Objective.of_task(trainer.model, trainer.task, 1)
    start = torch.randn(len(objective.weights), dtype=torch.float64)
    spectrum = lanczos(partial(objective.hessian_product, objective.weights), start, steps=30)
    share = spectrum.coordinates[0] ** 2  # of each eigenvalue in a random vector: Lanczos quadrature
    small = 100 * float(share[abs(spectrum.values) < 0.01 * spectrum.values[0]].sum())
    words = (
        f"% of the {len(start):,} eigenvalues of the Hessian are below 1 % of the largest, {spectrum.values[0]:.3g}"
        " (estimate: Lanczos quadrature)"
    )
    return Measurement(small, words, small > 90)
