"""train.seeds: several models from one command, one of them kept, all of them told."""

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
from harken.inference.answers.stories import Story
from harken.tasks import Score

TINY = {
    "data.tokenizer": "char", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16,
    "model.dropout": 0.0, "train.batch": 4, "train.steps": 6, "train.threads": 1,
    "train.eval_every": 3, "train.optimizer": "adamw", "train.precision": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def several(tales, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "run"
    return harken.train(
        tales, out=folder, settings=TINY | {"train.seeds": 3, "train.seed": 5, "train.keep_seeds": "all"}
    )


def test_every_seed_is_a_run_with_the_weights_it_has_when_it_is_trained_alone(several, tales, tmp_path):
    for seed in (5, 6, 7):
        mine = harken.load(several.path / "seeds" / str(seed))
        alone = harken.train(tales, out=tmp_path / str(seed), settings=TINY | {"train.seed": seed})
        for (name, a), b in zip(
            run_folder.weights(mine.model).items(), run_folder.weights(alone.model).values(), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        told = next(each for each in several.facts["seeds"]["each"] if each["seed"] == seed)
        assert told["metrics"]["valid"]["loss"] == pytest.approx(alone.metrics["valid"]["loss"], rel=1e-3)


def test_the_run_is_the_seed_with_the_lowest_valid_loss(several):
    told = several.facts["seeds"]
    best = min(told["each"], key=lambda each: each["metrics"]["valid"]["loss"])
    assert told["picked"] == best["seed"]
    assert several.metrics["valid"]["loss"] == pytest.approx(best["metrics"]["valid"]["loss"])
    kept = harken.load(several.path / "seeds" / str(best["seed"]))
    assert all(map(torch.equal, several.model.parameters(), kept.model.parameters()))


def test_mean_and_spread_of_the_seeds_are_told_beside_the_run(several):
    losses = torch.tensor([each["metrics"]["valid"]["loss"] for each in several.facts["seeds"]["each"]])
    mean, spread = several.facts["seeds"]["together"]["valid"].values()
    assert mean["loss"] == pytest.approx(float(losses.mean()))
    assert spread["loss"] == pytest.approx(float(losses.std()), abs=1e-6)
    assert "mean of 3 seeds" in (several.path / "report.html").read_text()


def test_the_cost_is_that_of_all_seeds(several, tales, tmp_path):
    one = harken.train(tales, out=tmp_path / "one", settings=TINY)
    costs = [json.loads((path / "cost.json").read_text())["flops"] for path in (several.path, one.path)]
    assert costs[0] == pytest.approx(3 * costs[1])


def test_a_seed_may_be_picked_by_what_was_learned_from(tales, tmp_path):
    settings = TINY | {
        "train.seeds": 2,
        "train.select_seed_on": "train",
        "data.valid": 0.0,
        "data.test": 0.0,
        "train.steps": 2,
    }
    made = harken.train(tales, out=tmp_path / "run", settings=settings)
    assert made.facts["seeds"]["rule"] == "train"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Six memory networks that began linear and with noise, as one run."""
    home = tmp_path_factory.mktemp("linear")
    (home / "qa1_train.txt").write_text("".join(stories(1, 200)))
    settings = {
        "train.seeds": 6, "train.select_seed_on": "train", "train.keep_seeds": "all", "train.epochs": 4, "train.threads": 1,
        "task.linear_start": 2, "task.noise": 0.5, "data.valid": 0.0, "data.test": 0.0,
    }  # fmt: skip
    return harken.train(home / "qa1_train.txt", out=home / "run", settings=settings)


@torch.no_grad()
def plain_loss(member):
    """On what it learned from, question by question, in the lines' own order and with the softmax."""
    part = member.recipe.open(member.tokenizer).train
    found = [Story(member, q.lines).scores(q.question).log_softmax(-1) for q in part.asked]
    return -fmean(float(p[target]) for p, target in zip(found, part.targets.tolist(), strict=True))


def test_after_a_linear_and_noisy_start_the_seed_with_the_least_plain_training_loss_is_picked(started):
    losses = {int(p.name): plain_loss(harken.load(p)) for p in (started.path / "seeds").iterdir()}
    assert len(losses) == 6
    assert started.facts["seeds"]["picked"] == min(losses, key=losses.__getitem__)


@pytest.mark.parametrize("by", ["loss", "accuracy"])
def test_a_seed_without_a_number_is_never_picked(by):
    scores = [Score({"loss": loss, "accuracy": 0.5}, {}, by=by) for loss in (math.nan, 0.3, 0.2, math.nan)]
    recipe = SimpleNamespace(train=SimpleNamespace(pick="valid"))
    assert seeds._picked(None, recipe, {"valid": scores}) == 2


def test_the_spread_is_that_of_the_seeds_that_did_not_break():
    scores = [Score({"loss": loss}, {}) for loss in (math.nan, 1.0, 3.0)]
    mean, spread = seeds._spread({"valid": scores})["valid"].items()
    assert mean == ("mean of 2 seeds", {"loss": 2.0})
    assert spread == ("spread of 2 seeds", {"loss": pytest.approx(2**0.5)})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"model.kind": "lstm"},
            "train.seeds: a lstm on such data cannot be learned along a model axis (Batching rule not implemented",
        ),
        ({"data.valid": 0.0, "data.test": 0.0}, "train.select_seed_on=valid: nothing is held out to pick a seed by"),
    ],
)
def test_what_cannot_be_trained_together_is_refused_before_a_folder_is_taken(more, words, tales, tmp_path):
    with pytest.raises(BadSetting, match=f"^{re.escape(words)}"):
        harken.train(
            tales,
            out=tmp_path / "run",
            settings={k: v for k, v in TINY.items() if k != "model.heads"} | {"train.seeds": 2} | more,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["transformer", "rnn-attention", "conv"])
def test_sentences_of_many_lengths_are_refused_in_one_line_before_a_folder_is_taken(kind, tmp_path):
    (tmp_path / "phrases.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in phrases(60)))
    settings = {"data.tokenizer": "char", "model.kind": kind, "model.d": 16, "train.batch": 4, "train.seeds": 2}
    with pytest.raises(
        BadSetting, match=r"^train\.seeds: batches of different shapes [^\n]+ harken compare DATA"
    ) as told:
        harken.train(tmp_path / "phrases.tsv", out=tmp_path / "run", settings=settings)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()
