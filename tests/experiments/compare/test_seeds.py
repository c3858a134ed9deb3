"""The seeds of a comparison, trained together: each is the run that it is alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

import harken
from harken import run_folder
from harken.errors import Stopped

TINY = {
     "model.dropout": 0.0, "train.steps": 6, "train.eval_every": 3, "train.threads": 1,
    "train.checkpoint_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Two circles with a few bridges; a node's features tell a little of its circle."""
    rng, n = np.random.default_rng(0), 40
    ring = [(a, a // 20 * 20 + (a + 1) % 20) for a in range(n)]
    label = np.arange(n) // 20
    x = rng.normal(size=(n, 5)).astype(np.float32) + label[:, None]
    path = tmp_path_factory.mktemp("graph") / "circles.npz"
    np.savez(path, edges=np.array([*ring, (0, 20), (7, 33)]), x=x, label=label)
    return path


@pytest.fixture(scope="module")
def compared(graph, tmp_path_factory):
    return harken.compare(
        graph, {"model.d": [8, 4]}, settings=TINY, seeds=2, out=tmp_path_factory.mktemp("compared") / "c"
    )


def test_every_seed_has_the_weights_and_the_numbers_of_a_run_alone(compared, graph, tmp_path):
    for n, d in enumerate((8, 4)):
        for seed, place in enumerate(compared.rows[n]["runs"]):
            mine = harken.load(place)
            alone = harken.train(
                graph, out=tmp_path / f"{d}-{seed}", settings=TINY | {"model.d": d, "train.seed": seed}
            )
            for (name, a), b in zip(
                run_folder.weights(mine.model).items(), run_folder.weights(alone.model).values(), strict=True
            ):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
            assert mine.metrics["valid"]["loss"] == pytest.approx(alone.metrics["valid"]["loss"], rel=1e-3)
            assert mine.recipe.settings() == alone.recipe.settings()
            assert mine.facts.keys() >= alone.facts.keys()


def test_a_trial_that_was_trained_with_others_is_a_whole_run_with_its_own_curve(compared):
    places = [run_folder.facts(p) and p for p in map(Path, compared.rows[0]["runs"])]
    curves = [[line["valid"] for line in run_folder.read_log(p) if "valid" in line] for p in places]
    assert all(len(curve) == 2 for curve in curves)
    assert len(set(map(tuple, curves))) == 2
    assert all(
        (p / "report.html").is_file() and not any("seeds" in line for line in run_folder.read_log(p)) for p in places
    )


def test_the_time_of_all_is_shared(compared):
    for row in compared.rows:
        costs = [run_folder.read_json(Path(place) / "cost.json") for place in row["runs"]]
        group = run_folder.read_json(Path(row["runs"][0]).parents[1] / "cost.json")
        assert sum(cost["seconds"] for cost in costs) == pytest.approx(group["seconds"], rel=1e-6)
        assert sum(cost["flops"] for cost in costs) == pytest.approx(group["flops"])


def test_a_comparison_that_was_stopped_goes_on_with_the_seeds_together(graph, tmp_path, compared):
    def stop(event, **facts):
        if event == "step" and facts["step"] == 5:
            raise Stopped("asked to", 2)

    given = {"axes": {"model.d": [8]}, "settings": TINY, "seeds": 2, "out": tmp_path / "c"}
    with pytest.raises(Stopped):
        harken.compare(graph, **given, listen=stop)
    begun = []
    again = harken.compare(
        graph, **given, resume=True, listen=lambda event, **f: event == "begin" and begun.append(f["step"])
    )
    assert begun == [4]
    for ours, theirs in zip(again.rows[0]["runs"], compared.rows[0]["runs"], strict=True):
        assert run_folder.sha256(Path(ours) / "model.safetensors") == run_folder.sha256(
            Path(theirs) / "model.safetensors"
        )


def test_more_seeds_are_trained_beside_those_that_are_there(graph, tmp_path):
    given = {"axes": {"model.d": [8]}, "settings": TINY, "out": tmp_path / "c"}
    first = harken.compare(graph, **given, seeds=1).rows[0]["runs"]
    begun = []
    more = harken.compare(
        graph, **given, seeds=3, resume=True, listen=lambda event, **f: event == "begin" and begun.append(f)
    )
    assert len(begun) == 1
    assert more.rows[0]["runs"][:1] == first
    assert [harken.load(place).recipe.train.seed for place in more.rows[0]["runs"]] == [0, 1, 2]


def test_minutes_become_steps_in_a_first_trial_alone(graph, tmp_path):
    settings = {name: value for name, value in TINY.items() if name != "train.steps"} | {"train.minutes": 0.002}
    runs = harken.compare(graph, {"model.d": [8]}, settings=settings, seeds=3, out=tmp_path / "c").rows[0]["runs"]
    assert [Path(place).parent.name for place in runs] == ["c", "seeds", "seeds"]
    assert len({harken.load(place).recipe.train.steps for place in runs}) == 1


def test_what_cannot_be_trained_together_is_trained_one_by_one(graph, tmp_path):
    told = []
    found = harken.compare(
        graph, {"model.d": [8]}, settings=TINY | {"train.schedule": "plateau"}, seeds=2, out=tmp_path / "c",
        listen=lambda event, **f: event == "notice" and told.append(f["text"]),
    )  # fmt: skip
    assert [Path(place).name for place in found.rows[0]["runs"]] == ["model.d=8-seed=0", "model.d=8-seed=1"]
    assert any("not trained together: train.seeds: plateau has one rate" in text for text in told)


def test_seeds_of_pictures_that_are_moved_are_trained_together_without_a_warning(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "spots.npz", x=rng.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 2)
    settings = {
        "model.d": 8, "model.layers": 1, "model.heads": 2, "model.dropout": 0.0, "task.shift": 0.2, "train.steps": 2,
        "train.batch": 4, "train.threads": 1,
    }  # fmt: skip
    rows = harken.compare(tmp_path / "spots.npz", settings=settings, seeds=2, out=tmp_path / "c").rows
    for seed, place in enumerate(rows[0]["runs"]):
        assert Path(place).parent.name == "seeds"
        alone = harken.train(tmp_path / "spots.npz", out=tmp_path / str(seed), settings=settings | {"train.seed": seed})
        loss = harken.load(place).metrics["valid"]["loss"]
        assert loss == pytest.approx(alone.metrics["valid"]["loss"], rel=1e-3)
