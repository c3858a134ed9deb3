"""The loss around the weights of a model: curvature, and a plane through the weights.

The Hessian H of the loss is never built. A Hessian-vector product is a second backward pass, H v = d<g, v>/d theta with
the gradient g, and the Lanczos iteration finds the extreme eigenvalues of H from such products: at a minimum none is
negative, at a saddle point the smallest one is, and an ill-conditioned H has eigenvalues of very different size.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, Self, TypedDict, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from harken import machine
from harken.data.batch import Batch
from harken.errors import BadInput
from harken.tasks import BoundTask

Floats = npt.NDArray[np.float64]
Loss = Callable[[nn.Module], Tensor]  # of a model: a scalar
Directions = Literal["top", "extreme"]
N_TOP = 2  # largest eigenvalues, with their directions
MEMORY_SHARE = 0.5  # of the memory of the machine, for the Lanczos vectors
BREAKDOWN = 1e-10  # of the largest entry of T: the Krylov space is complete


class Objective:
    """The sum of some losses of a model as a function of one vector of weights, in float64 and without dropout.

    The losses are computed one after the other, so that memory holds one of them.
    """

    def __init__(self, model: nn.Module, losses: Sequence[Loss]) -> None:
        self.model, self.losses = copy.deepcopy(model).eval().double().requires_grad_(True), losses
        self.parameters = list(self.model.parameters())
        self.weights = parameters_to_vector(self.parameters).detach()  # n: those of the model

    @classmethod
    def of_task(cls, model: nn.Module, task: BoundTask, n_batches: int) -> Self:
        """The mean loss per target of a model on the first training batches."""
        if n_batches < 1:
            raise BadInput(f"batches={n_batches}: at least 1 is accepted")
        device = next(model.parameters()).device
        batches = [task.batch(0, n).to(device) for n in range(min(n_batches, task.steps))]
        n_targets = sum(batch.n_targets for batch in batches)

        def loss(batch: Batch, model: nn.Module) -> Tensor:
            return task.loss(model, replace(batch, reset_state=True)).total / n_targets  # a new recurrent state

        return cls(model, [partial(loss, batch) for batch in batches])

    def loss(self, weights: Tensor) -> float:
        return sum(float(loss.detach()) for loss in self._at(weights))

    def gradient(self, weights: Tensor) -> Tensor:  # n
        parts = (torch.autograd.grad(loss, self.parameters, materialize_grads=True) for loss in self._at(weights))
        return sum((parameters_to_vector(g) for g in parts), torch.zeros_like(weights))

    def hessian_product(self, weights: Tensor, v: Tensor) -> Tensor:  # n
        """H v at these weights."""
        product = torch.zeros_like(weights)
        for loss in self._at(weights):
            g = torch.autograd.grad(loss, self.parameters, create_graph=True, materialize_grads=True)
            if (slope := parameters_to_vector(g) @ v).requires_grad:  # <g, v>; constant if the loss is linear
                product += parameters_to_vector(torch.autograd.grad(slope, self.parameters, materialize_grads=True))
        return product

    def _at(self, weights: Tensor) -> Iterator[Tensor]:
        """Each loss at these weights, with kernels that have a second derivative: no fused attention, no cuDNN RNN."""
        vector_to_parameters(weights, self.parameters)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
            for loss in self.losses:
                yield loss(self.model)


# --- eigenvalues ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Approximate eigenpairs of a symmetric matrix from a Krylov space, by decreasing eigenvalue."""

    values: Floats  # m
    residuals: Floats  # m: |H u - lambda u|
    coordinates: Floats  # m m: column i is eigenvector i in the basis
    basis: Tensor  # m n, orthonormal

    def vector(self, i: int) -> Tensor:  # n
        """Unit eigenvector i, with a positive largest entry."""
        u = self.basis.mT @ torch.as_tensor(self.coordinates[:, i].copy(), device=self.basis.device)
        return u * u[u.abs().argmax()].sign() / u.norm()


def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, *, steps: int, n_top: int = N_TOP, tolerance: float = 1e-6
) -> Spectrum:
    """Eigenpairs of a symmetric matrix from its products, with full reorthogonalization.

    Stops when the largest `n_top` and the smallest are exact up to this fraction of the largest, or after `steps`.
    """
    n, diagonal, offdiagonal = len(start), list[float](), list[float]()
    steps = min(steps, n)
    basis = start.new_zeros(steps, n)
    q = start / start.norm()
    for m in range(1, steps + 1):
        basis[m - 1] = q
        w = product(q)
        diagonal.append(float(w @ q))
        beta = float((w := _orthogonalized(w, basis[:m])).norm())
        if beta <= BREAKDOWN * max(map(abs, diagonal)):  # an invariant subspace: continue with another one
            beta, w = 0.0, _orthogonalized(start.roll(m), basis[:m])
        values, coordinates = np.linalg.eigh(np.diag(diagonal) + np.diag(offdiagonal, 1) + np.diag(offdiagonal, -1))
        residuals = beta * np.abs(coordinates[-1])
        wanted = residuals[[0, *range(-min(n_top, m), 0)]]
        if m == steps or (m > n_top and beta and wanted.max() <= tolerance * np.abs(values).max()):
            break
        offdiagonal.append(beta)
        q = w / w.norm()
    return Spectrum(values[::-1], residuals[::-1], coordinates[:, ::-1], basis[:m])


def _orthogonalized(w: Tensor, basis: Tensor) -> Tensor:
    """The part of w that is orthogonal to an orthonormal basis; the second pass removes the rounding of the first."""
    for _ in range(2):
        w = w - basis.mT @ (basis @ w)
    return w


# --- the landscape ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss at the weights of a model and on a plane through them, and its curvature there."""

    loss: float
    gradient_norm: float
    eigenvalues: list[float]  # of the Hessian: the largest ones, by decreasing value
    smallest_eigenvalue: float
    residuals: list[float]  # |H u - lambda u| of `eigenvalues` and of the smallest
    directions: (
        Directions  # x and y are eigenvectors of the two largest eigenvalues, or of the largest and smallest one
    )
    curvatures: tuple[float, float]  # along x and y
    coordinates: Floats  # G: distances from the weights, in both directions
    losses: Floats  # G G: losses[row of y, column of x]
    batches: int
    weights: Tensor  # n, the center
    axes: Tensor  # 2 n: unit vectors along x and y

    @property
    def n_weights(self) -> int:
        return len(self.weights)

    def project(self, weights: Tensor) -> tuple[float, float]:
        """The point of the plane that is nearest to these weights."""
        x, y = (self.axes @ (weights - self.weights)).tolist()
        return x, y

    def __str__(self) -> str:
        largest = ", ".join(f"{value:.4g}" for value in self.eigenvalues)
        spectrum = f"eigenvalues of the Hessian: largest {largest}, smallest {self.smallest_eigenvalue:.4g}"
        return f"loss {self.loss:.4g}, gradient norm {self.gradient_norm:.3g}; {spectrum}"

    def facts(self) -> dict[str, object]:
        """The landscape as JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("weights", "axes")}
        plane = {"coordinates": self.coordinates.tolist(), "losses": self.losses.tolist()}
        return values | plane | {"n_weights": self.n_weights}


class LandscapeOptions(TypedDict, total=False):
    """Options of `landscape`."""

    grid: int
    radius: float | None
    steps: int
    directions: Directions
    seed: int


def landscape(
    objective: Objective,
    *,
    grid: int = 21,
    radius: float | None = None,
    steps: int = 60,
    directions: Directions = "top",
    seed: int = 0,
) -> Landscape:
    """The curvature at the weights of an objective, and the losses of a grid x grid plane through them.

    `directions` spans the plane by the eigenvectors of the two largest eigenvalues ("top"), or of the largest and the
    smallest one ("extreme"). `radius` is the distance from the weights to its sides; by default a quadratic loss
    doubles there along the direction of the highest curvature. `steps` is the maximum of the Lanczos iteration.
    """
    weights = objective.weights
    _check_options(len(weights), grid, radius, steps, directions)
    start = torch.randn(len(weights), generator=torch.Generator().manual_seed(seed), dtype=weights.dtype)
    spectrum = lanczos(lambda v: objective.hessian_product(weights, v), start.to(weights.device), steps=steps)
    n_top = min(N_TOP, len(spectrum.values))
    second = n_top - 1 if directions == "top" else len(spectrum.values) - 1
    x, y = spectrum.vector(0), spectrum.vector(second)
    loss, curvature = objective.loss(weights), float(np.abs(spectrum.values).max())
    if radius is None:
        radius = (2 * abs(loss) / curvature) ** 0.5 if loss and curvature else 1.0
    coordinates = np.linspace(-radius, radius, grid)
    losses = [[objective.loss(weights + float(a) * x + float(b) * y) for a in coordinates] for b in coordinates]
    return Landscape(
        loss=loss,
        gradient_norm=float(objective.gradient(weights).norm()),
        eigenvalues=spectrum.values[:n_top].tolist(),
        smallest_eigenvalue=float(spectrum.values[-1]),
        residuals=spectrum.residuals[[*range(n_top), -1]].tolist(),
        directions=directions,
        curvatures=(float(spectrum.values[0]), float(spectrum.values[second])),
        coordinates=coordinates,
        losses=np.array(losses),
        batches=len(objective.losses),
        weights=weights,
        axes=torch.stack([x, y]),
    )


def _check_options(n: int, grid: int, radius: float | None, steps: int, directions: str) -> None:
    if grid < 3 or grid % 2 == 0:
        raise BadInput(f"grid={grid}: an odd number of points from 3 is accepted, so that the weights are its center")
    if radius is not None and not 0 < radius < float("inf"):
        raise BadInput(f"radius={radius}: a distance above 0 is accepted; leave it out to choose it by the curvature")
    if steps < N_TOP + 1:
        raise BadInput(f"steps={steps}: at least {N_TOP + 1} Lanczos steps are accepted")
    if directions not in get_args(Directions):
        raise BadInput(f"directions={directions!r}: accepted: {', '.join(get_args(Directions))}")
    needed, ram = 8 * n * min(steps, n) / 2**30, machine.ram_gib()
    if ram and needed > MEMORY_SHARE * ram:
        problem = f"steps={steps}: the Lanczos vectors of {n:,} weights need {needed:.1f} GiB of memory"
        raise BadInput(f"{problem}, and the machine has {ram}; lower steps")
