"""Hessian-vector products, Lanczos and the landscape of a run, next to dense Hessians and finite differences."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import harken
from harken.analysis.landscape import Objective, lanczos, landscape
from harken.errors import BadInput
from harken.events import silent
from harken.experiments.report.landscape_plot import landscape_svg
from harken.experiments.train import prepare
from harken.recipe import resolve

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import matrix

KINDS = [
    ("text", "gpt"), ("text", "lstm"), ("pairs", "transformer"), ("table", "rnn"), ("images", "vit"),
    ("stories", "memnet"), ("graph", "gat"), ("sets", "set"),
]  # fmt: skip


def objective_of(data: str, model: str, folder: Path, n_batches: int = 2, **settings: object) -> Objective:
    """The loss of an untrained model on a small data set."""
    family = matrix.Family(data, model)
    overrides = family.settings() | {"data.path": str(family.write(folder)), **settings}
    _, trainer = prepare(resolve(("here", overrides)), silent)
    return Objective.of_task(trainer.model, trainer.task, n_batches)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Objective, torch.Tensor]:
    """A language model with few weights, and its dense Hessian by another implementation."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder / "cache"))
        settings = {"model.d": 4, "model.heads": 1, "model.d_ff": 4, "model.context": 8}
        objective = objective_of("text", "gpt", folder, 1, **settings)
    names, shapes = zip(*((name, p.shape) for name, p in objective.model.named_parameters()), strict=True)

    class LossModule(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = objective.model

        def forward(self):
            return objective.losses[0](self.model)

    def loss(w):
        views = [x.view(shape) for x, shape in zip(w.split([s.numel() for s in shapes]), shapes, strict=True)]
        named = {f"model.{name}": x for name, x in zip(names, views, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.functional_call(LossModule(), named, ())

    return objective, torch.autograd.functional.hessian(loss, objective.weights)


def test_the_eigenvalues_equal_those_of_the_dense_hessian(small):
    objective, hessian = small
    values, vectors = torch.linalg.eigh(hessian)
    found = landscape(objective, grid=3, steps=100)
    assert found.eigenvalues == pytest.approx(values.flip(0)[:2].tolist(), rel=1e-4)
    assert found.smallest_eigenvalue == pytest.approx(float(values[0]), rel=1e-4)
    assert abs(float(found.axes[0] @ vectors[:, -1])) == pytest.approx(1, abs=1e-4)


def test_a_hessian_product_equals_the_dense_hessian(small):
    objective, hessian = small
    v = torch.randn(len(hessian), dtype=torch.float64)
    torch.testing.assert_close(objective.hessian_product(objective.weights, v), hessian @ v, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("data", "model"), KINDS)
def test_a_hessian_product_equals_finite_differences_of_the_gradient(data, model, tmp_path):
    objective = objective_of(data, model, tmp_path)
    w, v = objective.weights, torch.randn(len(objective.weights), dtype=torch.float64)
    v /= v.norm()
    product = objective.hessian_product(w, v)
    after, before = (objective.gradient(w + step * v) for step in (1e-4, -1e-4))
    assert float((product - (after - before) / 2e-4).norm() / product.norm()) < 0.01  # labels: outputs are in float32
    assert objective.loss(w) == objective.loss(w)


def test_a_hessian_product_of_a_copying_model_is_finite_and_equals_finite_differences(tmp_path):
    objective = objective_of("pairs", "transformer", tmp_path, 1, **{"model.copy": True})
    w, v = objective.weights, torch.randn(len(objective.weights), dtype=torch.float64)
    after, before = (objective.gradient(w + step * v) for step in (1e-6, -1e-6))
    torch.testing.assert_close(objective.hessian_product(w, v), (after - before) / 2e-6, rtol=1e-3, atol=1e-5)


def test_the_gradient_equals_that_of_the_training_step(tmp_path):
    family = matrix.Family("text", "gpt")
    overrides = family.settings() | {"data.path": str(family.write(tmp_path)), "model.dropout": 0.0}
    _, trainer = prepare(resolve(("here", overrides)), silent)
    batch = trainer.task.batch(0, 0)
    (trainer.task.loss(trainer.model, batch).total / batch.n_targets).backward()
    expected = torch.cat([p.grad.flatten() for p in trainer.model.parameters()]).double()
    objective = Objective.of_task(trainer.model, trainer.task, 1)
    torch.testing.assert_close(objective.gradient(objective.weights), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_cross_entropy_without_logits_can_be_differentiated_twice(smoothing):
    from harken.tasks.linear_cross_entropy import linear_cross_entropy

    h, W, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 3), (8, 3), (7,)))
    targets = torch.tensor([0, 6, -100, 2, 2])

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        h, W, b = tensors
        return linear_cross_entropy(h, W, targets, 7, bias=b, smoothing=smoothing)[0]

    assert torch.autograd.gradcheck(loss, (h, W, b))
    assert torch.autograd.gradgradcheck(loss, (h, W, b))


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, monkeypatch):
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "landscape.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"^landscape.py: .*none: no such folder; [^\n]*$"):
        runpy.run_path(str(script), run_name="__main__")


# --- Lanczos ----------------------------------------------------------------------------------------------------------


def test_lanczos_equals_eigh_of_a_symmetric_matrix():
    A = torch.randn(60, 60, dtype=torch.float64)
    A = A + A.mT
    spectrum = lanczos(A.mv, torch.randn(60, dtype=torch.float64), steps=60)
    expected = torch.linalg.eigvalsh(A).flip(0)
    assert spectrum.values[:2].tolist() == pytest.approx(expected[:2].tolist(), rel=1e-6)
    assert spectrum.values[-1] == pytest.approx(float(expected[-1]), rel=1e-6)
    u = spectrum.vector(0)
    assert float((A @ u - spectrum.values[0] * u).norm()) < 1e-4
    assert float(u.abs().max()) == float(u[u.abs().argmax()])


def test_repeated_eigenvalues_are_found_after_a_breakdown():
    A = torch.diag(torch.tensor([3.0, 3.0, 3.0, -1.0, 0.0], dtype=torch.float64))
    spectrum = lanczos(A.mv, torch.arange(1.0, 6.0, dtype=torch.float64), steps=5)
    assert sorted(spectrum.values.tolist()) == pytest.approx([-1, 0, 3, 3, 3], abs=1e-9)


def test_a_converged_iteration_stops_early():
    values = torch.cat([torch.tensor([-5.0, 90.0, 100.0]), torch.linspace(0, 1, 500)]).double()
    calls = []
    spectrum = lanczos(lambda v: calls.append(0) or values * v, torch.ones(503, dtype=torch.float64), steps=503)
    assert len(calls) < 60
    assert spectrum.values[[0, 1, -1]].tolist() == pytest.approx([100, 90, -5], rel=1e-5)


# --- the plane --------------------------------------------------------------------------------------------------------


def quadratic(model: nn.Module) -> torch.Tensor:
    w = model.weight.flatten()
    return 1 + (w * w * torch.tensor([4.0, 1.0, -0.5], dtype=torch.float64)).sum() / 2


@pytest.mark.parametrize(("directions", "curvatures"), [("top", (4, 1)), ("extreme", (4, -0.5))])
def test_the_plane_of_a_quadratic_loss_is_the_quadratic_of_its_curvatures(directions, curvatures):
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    found = landscape(Objective(model, [quadratic]), grid=5, directions=directions)
    x, y = np.meshgrid(found.coordinates, found.coordinates)
    np.testing.assert_allclose(found.losses, 1 + (curvatures[0] * x**2 + curvatures[1] * y**2) / 2, atol=1e-9)
    assert found.curvatures == pytest.approx(curvatures)
    assert found.losses[2, -1] == pytest.approx(2)  # the loss doubles at the side
    moved = found.weights + 0.3 * found.axes[0] - 0.2 * found.axes[1]
    assert found.project(moved) == pytest.approx((0.3, -0.2))


def test_a_linear_loss_has_curvature_0_and_a_plane_of_radius_1():
    plane = landscape(Objective(nn.Linear(3, 1), [lambda model: 1 + model.weight.sum()]), grid=3)
    assert plane.eigenvalues == [0.0, 0.0]
    assert plane.coordinates.tolist() == [-1, 0, 1]


def test_the_landscape_of_a_run_is_deterministic_and_json(char):
    found, again = (char.landscape(batches=1, grid=3, steps=5) for _ in range(2))
    assert json.dumps(found.facts()) == json.dumps(again.facts())
    assert found.losses[1, 1] == found.loss
    assert str(found).startswith(f"loss {found.loss:.4g}, gradient norm ")
    assert found.n_weights == char.parameters
    svg = landscape_svg(found)
    assert svg == landscape_svg(again)
    assert "eigenvector of eigenvalue" in svg


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": 0}, "batches=0: at least 1"),
        ({"grid": 4}, "grid=4: an odd number"),
        ({"radius": -1.0}, "radius=-1.0: a distance above 0"),
        ({"steps": 2}, "steps=2: at least 3"),
        ({"directions": "up"}, "directions='up': accepted: top, extreme"),
    ],
)
def test_invalid_options_are_errors_in_one_line(char, options, message):
    with pytest.raises(BadInput, match=f"^{message}"):
        char.landscape(**options)


def test_a_run_in_int8_is_refused(folders, monkeypatch):
    monkeypatch.setattr("harken.inference.prepare.MIN_WEIGHTS", 0)
    with pytest.raises(BadInput, match="precision='int8': integers have no gradient"):
        harken.load(folders["char"], precision="int8").landscape()


def test_too_many_lanczos_vectors_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("harken.machine.ram_gib", lambda: 1e-6)
    objective = Objective(nn.Linear(30, 10), [lambda model: model.weight.sum()])
    with pytest.raises(BadInput, match=r"the Lanczos vectors of 310 weights need .* lower steps"):
        landscape(objective)
