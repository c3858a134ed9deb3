"""train.seeds: several seeds trained together; one is selected, all are reported."""

import json
import math
import re
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

import harken
from harken import run_folder
from harken.data.synthetic.phrases import phrases
from harken.data.synthetic.stories import stories
from harken.errors import BadSetting
from harken.experiments import seeds
from harken.inference.answers.ask import Story
from harken.tasks import Score

TINY = {
    "data.tokenizer": "char", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16,
    "model.dropout": 0.0, "train.batch": 4, "train.steps": 6, "train.threads": 1,
    "train.eval_every": 3, "train.optimizer": "adamw", "train.precision": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def stacked(tales, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "run"
    return harken.train(
        tales, out=folder, settings=TINY | {"train.seeds": 3, "train.seed": 5, "train.keep_seeds": "all"}
    )


def test_every_seed_has_the_weights_of_a_single_training(stacked, tales, tmp_path):
    for seed in (5, 6, 7):
        seed_run = harken.load(stacked.path / "seeds" / str(seed))
        alone = harken.train(tales, out=tmp_path / str(seed), settings=TINY | {"train.seed": seed})
        for (name, a), b in zip(
            run_folder.weights(seed_run.model).items(), run_folder.weights(alone.model).values(), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        summary = next(each for each in stacked.facts["seeds"]["per_seed"] if each["seed"] == seed)
        assert summary["metrics"]["valid"]["loss"] == pytest.approx(alone.metrics["valid"]["loss"], rel=1e-3)


def test_the_run_is_the_seed_with_the_lowest_validation_loss(stacked):
    summary = stacked.facts["seeds"]
    best = min(summary["per_seed"], key=lambda each: each["metrics"]["valid"]["loss"])
    assert summary["selected"] == best["seed"]
    assert stacked.metrics["valid"]["loss"] == pytest.approx(best["metrics"]["valid"]["loss"])
    selected = harken.load(stacked.path / "seeds" / str(best["seed"]))
    assert all(map(torch.equal, stacked.model.parameters(), selected.model.parameters()))


def test_mean_and_standard_deviation_of_the_seeds_are_reported(stacked):
    losses = torch.tensor([each["metrics"]["valid"]["loss"] for each in stacked.facts["seeds"]["per_seed"]])
    mean, spread = stacked.facts["seeds"]["summary"]["valid"].values()
    assert mean["loss"] == pytest.approx(float(losses.mean()))
    assert spread["loss"] == pytest.approx(float(losses.std()), abs=1e-6)
    assert "mean of 3 seeds" in (stacked.path / "report.html").read_text()


def test_the_cost_covers_all_seeds(stacked, tales, tmp_path):
    one = harken.train(tales, out=tmp_path / "one", settings=TINY)
    costs = [json.loads((path / "cost.json").read_text())["flops"] for path in (stacked.path, one.path)]
    assert costs[0] == pytest.approx(3 * costs[1])


def test_a_seed_can_be_selected_on_the_training_loss(tales, tmp_path):
    settings = TINY | {
        "train.seeds": 2,
        "train.select_seed_on": "train",
        "data.valid": 0.0,
        "data.test": 0.0,
        "train.steps": 2,
    }
    run = harken.train(tales, out=tmp_path / "run", settings=settings)
    assert run.facts["seeds"]["selected_on"] == "train"


@pytest.fixture(scope="module")
def linear_start(tmp_path_factory):
    """Six memory networks with a linear and noisy start, as one run."""
    home = tmp_path_factory.mktemp("linear")
    (home / "qa1_train.txt").write_text("".join(stories(1, 200)))
    settings = {
        "train.seeds": 6, "train.select_seed_on": "train", "train.keep_seeds": "all", "train.epochs": 4,
        "train.threads": 1,        "task.linear_start": 2, "task.noise": 0.5, "data.valid": 0.0, "data.test": 0.0,
    }  # fmt: skip
    return harken.train(home / "qa1_train.txt", out=home / "run", settings=settings)


@torch.no_grad()
def plain_loss(member):
    """The training loss, question by question, in the order of the lines and with the softmax."""
    part = member.recipe.load_data(member.tokenizer).train
    log_probabilities = [Story(member, q.lines).scores(q.question).log_softmax(-1) for q in part.questions]
    return -fmean(float(p[target]) for p, target in zip(log_probabilities, part.targets.tolist(), strict=True))


def test_after_a_linear_and_noisy_start_the_seed_with_the_lowest_evaluation_mode_training_loss_is_selected(
    linear_start,
):
    losses = {int(p.name): plain_loss(harken.load(p)) for p in (linear_start.path / "seeds").iterdir()}
    assert len(losses) == 6
    assert linear_start.facts["seeds"]["selected"] == min(losses, key=losses.__getitem__)


@pytest.mark.parametrize("by", ["loss", "accuracy"])
def test_a_seed_with_a_non_finite_loss_is_never_selected(by):
    scores = [Score({"loss": loss, "accuracy": 0.5}, {}, primary_metric=by) for loss in (math.nan, 0.3, 0.2, math.nan)]
    recipe = SimpleNamespace(train=SimpleNamespace(select_seed_on="valid"))
    assert seeds._best_seed(None, recipe, {"valid": scores}) == 2


def test_the_statistics_skip_non_finite_seeds():
    scores = [Score({"loss": loss}, {}) for loss in (math.nan, 1.0, 3.0)]
    mean, spread = seeds._statistics({"valid": scores})["valid"].items()
    assert mean == ("mean of 2 seeds", {"loss": 2.0})
    assert spread == ("standard deviation of 2 seeds", {"loss": pytest.approx(2**0.5)})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"model.kind": "lstm"},
            "train.seeds: seeds of a lstm on this data cannot be trained together (Batching rule not implemented",
        ),
        ({"data.valid": 0.0, "data.test": 0.0}, "train.select_seed_on=valid: there is no validation split"),
    ],
)
def test_seeds_that_cannot_be_stacked_are_refused_before_a_folder_is_created(extra, message, tales, tmp_path):
    with pytest.raises(BadSetting, match=f"^{re.escape(message)}"):
        harken.train(
            tales,
            out=tmp_path / "run",
            settings={k: v for k, v in TINY.items() if k != "model.heads"} | {"train.seeds": 2} | extra,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["transformer", "rnn-attention", "conv"])
def test_sentences_of_different_lengths_are_refused_in_one_line_before_a_folder_is_created(kind, tmp_path):
    (tmp_path / "phrases.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in phrases(60)))
    settings = {"data.tokenizer": "char", "model.kind": kind, "model.d": 16, "train.batch": 4, "train.seeds": 2}
    with pytest.raises(
        BadSetting, match=r"^train\.seeds: batches of different shapes [^\n]+ harken compare DATA"
    ) as summary:
        harken.train(tmp_path / "phrases.tsv", out=tmp_path / "run", settings=settings)
    assert "\n" not in str(summary.value)
    assert not (tmp_path / "run").exists()
