"""Stacked seeds of a comparison: each equals a single training."""

from pathlib import Path

import numpy as np
import pytest
import torch

import harken
from harken import run_folder
from harken.errors import Stopped
from harken.files import sha256_of

TINY = {
     "model.dropout": 0.0, "train.steps": 6, "train.eval_every": 3, "train.threads": 1,
    "train.checkpoint_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Two rings with a few bridges; the features of a node depend weakly on its ring."""
    rng, n = np.random.default_rng(0), 40
    ring = [(a, a // 20 * 20 + (a + 1) % 20) for a in range(n)]
    label = np.arange(n) // 20
    x = rng.normal(size=(n, 5)).astype(np.float32) + label[:, None]
    path = tmp_path_factory.mktemp("graph") / "circles.npz"
    np.savez(path, edges=np.array([*ring, (0, 20), (7, 33)]), x=x, label=label)
    return path


@pytest.fixture(scope="module")
def comparison_of_two(graph, tmp_path_factory):
    return harken.compare(
        graph, {"model.d": [8, 4]}, settings=TINY, seeds=2, out=tmp_path_factory.mktemp("compared") / "c"
    )


def test_every_seed_has_the_weights_and_metrics_of_a_single_training(comparison_of_two, graph, tmp_path):
    for n, d in enumerate((8, 4)):
        for seed, run_folder_path in enumerate(comparison_of_two.rows[n]["runs"]):
            stacked_run = harken.load(run_folder_path)
            alone = harken.train(
                graph, out=tmp_path / f"{d}-{seed}", settings=TINY | {"model.d": d, "train.seed": seed}
            )
            for (name, a), b in zip(
                run_folder.weights(stacked_run.model).items(), run_folder.weights(alone.model).values(), strict=True
            ):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
            assert stacked_run.metrics["valid"]["loss"] == pytest.approx(alone.metrics["valid"]["loss"], rel=1e-3)
            assert stacked_run.recipe.settings() == alone.recipe.settings()
            assert stacked_run.facts.keys() >= alone.facts.keys()


def test_a_stacked_trial_is_a_complete_run_with_its_own_curve(comparison_of_two):
    folders = [run_folder.read_manifest(p) and p for p in map(Path, comparison_of_two.rows[0]["runs"])]
    curves = [[line["valid"] for line in run_folder.read_log(p) if "valid" in line] for p in folders]
    assert all(len(curve) == 2 for curve in curves)
    assert len(set(map(tuple, curves))) == 2
    assert all(
        (p / "report.html").is_file() and not any("seeds" in line for line in run_folder.read_log(p)) for p in folders
    )


def test_the_time_is_divided_evenly(comparison_of_two):
    for row in comparison_of_two.rows:
        costs = [run_folder.read_json(Path(run_folder_path) / "cost.json") for run_folder_path in row["runs"]]
        group = run_folder.read_json(Path(row["runs"][0]).parents[1] / "cost.json")
        assert sum(cost["seconds"] for cost in costs) == pytest.approx(group["seconds"], rel=1e-6)
        assert sum(cost["flops"] for cost in costs) == pytest.approx(group["flops"])


def test_an_interrupted_comparison_resumes_the_stacked_seeds(graph, tmp_path, comparison_of_two):
    def stop(event, **facts):
        if event == "step" and facts["step"] == 5:
            raise Stopped("asked to", 2)

    arguments = {"axes": {"model.d": [8]}, "settings": TINY, "seeds": 2, "out": tmp_path / "c"}
    with pytest.raises(Stopped):
        harken.compare(graph, **arguments, listen=stop)
    started_steps = []
    resumed = harken.compare(
        graph, **arguments, resume=True, listen=lambda event, **f: event == "start" and started_steps.append(f["step"])
    )
    assert started_steps == [4]
    for run, expected in zip(resumed.rows[0]["runs"], comparison_of_two.rows[0]["runs"], strict=True):
        assert sha256_of(Path(run) / "model.safetensors") == sha256_of(Path(expected) / "model.safetensors")


def test_additional_seeds_are_trained_in_a_new_stack(graph, tmp_path):
    arguments = {"axes": {"model.d": [8]}, "settings": TINY, "out": tmp_path / "c"}
    first = harken.compare(graph, **arguments, seeds=1).rows[0]["runs"]
    started_steps = []
    extended = harken.compare(
        graph, **arguments, seeds=3, resume=True, listen=lambda event, **f: event == "start" and started_steps.append(f)
    )
    assert len(started_steps) == 1
    assert extended.rows[0]["runs"][:1] == first
    assert [harken.load(run_folder_path).recipe.train.seed for run_folder_path in extended.rows[0]["runs"]] == [0, 1, 2]


def test_minutes_are_converted_to_steps_in_a_first_single_trial(graph, tmp_path):
    settings = {name: value for name, value in TINY.items() if name != "train.steps"} | {"train.minutes": 0.002}
    runs = harken.compare(graph, {"model.d": [8]}, settings=settings, seeds=3, out=tmp_path / "c").rows[0]["runs"]
    assert [Path(run_folder_path).parent.name for run_folder_path in runs] == ["c", "seeds", "seeds"]
    assert len({harken.load(run_folder_path).recipe.train.steps for run_folder_path in runs}) == 1


def test_seeds_that_cannot_be_stacked_are_trained_one_by_one(graph, tmp_path):
    notices = []
    comparison = harken.compare(
        graph, {"model.d": [8]}, settings=TINY | {"train.schedule": "plateau"}, seeds=2, out=tmp_path / "c",
        listen=lambda event, **f: event == "notice" and notices.append(f["text"]),
    )  # fmt: skip
    assert [Path(run_folder_path).name for run_folder_path in comparison.rows[0]["runs"]] == [
        "model.d=8-seed=0",
        "model.d=8-seed=1",
    ]
    assert any("seeds are trained one by one: train.seeds: plateau" in text for text in notices)


def test_seeds_with_image_augmentation_are_stacked_without_a_warning(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "spots.npz", x=rng.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 2)
    settings = {
        "model.d": 8, "model.layers": 1, "model.heads": 2, "model.dropout": 0.0, "task.shift": 0.2, "train.steps": 2,
        "train.batch": 4, "train.threads": 1,
    }  # fmt: skip
    rows = harken.compare(tmp_path / "spots.npz", settings=settings, seeds=2, out=tmp_path / "c").rows
    for seed, run_folder_path in enumerate(rows[0]["runs"]):
        assert Path(run_folder_path).parent.name == "seeds"
        alone = harken.train(tmp_path / "spots.npz", out=tmp_path / str(seed), settings=settings | {"train.seed": seed})
        loss = harken.load(run_folder_path).metrics["valid"]["loss"]
        assert loss == pytest.approx(alone.metrics["valid"]["loss"], rel=1e-3)
