"""harken demo: its output during training, and its JSON."""

import json
import os
import re

import pytest

from harken.data import catalogue
from harken.errors import HarkenError
from harken.experiments import train
from harken.experiments.demos import reviews
from harken.experiments.demos import translate as demos

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.batch": 4, "train.steps": 20, "train.threads": 1}


@pytest.fixture
def demo(harken, monkeypatch):
    """The demo without network access, with few phrases and a tiny model; it prints translations after every step."""
    fetch = catalogue.fetch

    def offline(name, **how):
        if name == "tatoeba-fra":
            raise HarkenError("data tatoeba-fra: could not be fetched")
        return fetch(name, **how)

    def small(what, *, settings, minutes, **options):
        return train.train(what, settings={**settings, **TINY}, **options)

    monkeypatch.setattr(catalogue, "fetch", offline)
    monkeypatch.setitem(catalogue.ENTRIES["phrases"].arguments, "count", 400)
    monkeypatch.setattr(demos, "train", small)
    monkeypatch.setattr(demos, "WATCH_SECONDS", -1.0)
    return lambda *options: harken("demo", *options)


def test_the_demo_prints_all_its_parts_in_order(demo):
    output = demo("--out", "mine")
    assert output.code == 0, output
    assert output.err == "data tatoeba-fra: could not be fetched; using the generated phrases instead\n"
    story = [
        r"train   20 steps",
        r"about [\d.]+ (s|min).* and [\d.]+ m?Wh",  # before the first step
        r"step       1 of 20",
        r"sample  He drives the car\. +-> ",
        r"She does not have a dog\. +-> ",
        r"step      20 of 20",
        r"credits harken \(Apache-2.0\)",
        r"valid .*bleu .* this model",
        r"baseline: copy of the source",
        r"test .*bleu .* this model",
        r"Translations of held-out sentences \(in parentheses: the references\):",
        r"map     mine/attention.png",
        r"report  mine/report.html",
        r"next    harken translate mine ",
    ]
    assert re.search(".*".join(story), output.out, re.S)


def test_the_last_line_compares_the_cost_with_the_big_transformer_of_the_lecture(demo):
    last = demo().out.splitlines()[-1]
    assert re.fullmatch(r"  compare \S+ lb CO2e here, 192 lb CO2e of the lecture's Transformer \(big\): 1/[\d,]+", last)


def test_json_of_the_demo_lists_existing_files(demo):
    output = demo("--json")
    actual = json.loads(output.out)
    assert actual["run"] == "runs/phrases"
    assert "bleu" in actual["metrics"]
    assert {os.path.basename(file) for file in actual["files"]} >= {"attention.png", "report.html", "model.safetensors"}
    assert all(os.path.isfile(file) for file in actual["files"])


# --- film reviews -----------------------------------------------------------------------------------------------------


def test_the_reviews_demo_prints_a_table_five_reviews_and_the_next_command(harken, monkeypatch):
    fetch, real, shown = catalogue.fetch, reviews.reviews, []

    def offline(name, **how):
        if catalogue.ENTRIES[name].bytes:
            raise HarkenError(f"data {name}: could not be fetched")
        return fetch(name, **how)

    def small(what, *, settings, minutes, **options):
        model_settings = {} if "from" in settings else {k: v for k, v in TINY.items() if k.startswith("model.")}
        arguments = {**settings, **model_settings, "train.batch": 8, "train.steps": 20, "train.threads": 1}
        return train.train(what, settings=arguments, **options)

    def saved(**options):
        shown.append(real(**options))
        return shown[0]

    monkeypatch.setattr(catalogue, "fetch", offline)
    monkeypatch.setitem(catalogue.ENTRIES["opinions"].arguments, "count", 200)
    monkeypatch.setitem(catalogue.ENTRIES["opinions-text"].arguments, "count", 200)
    monkeypatch.setattr(reviews, "N_LABELS", {"opinions": 60})
    monkeypatch.setattr(reviews, "train", small)
    monkeypatch.setattr(reviews, "reviews", saved)
    output = harken("demo", "reviews", "--out", "mine", "--minutes", 1)
    assert output.code == 0, output
    assert "using generated opinions instead, and a BERT pretrained on unlabelled ones" in output.err
    story = [
        r"compare 3 settings x 1 seed: 45 s of training",
        r"trial 1 of 3: a small BERT from scratch",
        r"about [\d.]+ m?s.* and [\d.]+ .?Wh",  # before the first step
        r"valid accuracy [\d.]+, test accuracy [\d.]+, 20 steps in",
        r"trial 3 of 3: bert, fine-tuned: all weights are trained",
        r"credits harken \(Apache-2.0\); BERT: trained by harken",
        r"24 held-out reviews, 60 training labels +accuracy +parameters +time +energy",
        r"baseline: most frequent label +0\.\d+",
        r"bert, frozen: only a new head is trained +0\.\d+ +\S+",
        r"Predictions of \w+, the best on the validation split \(in parentheses: the true label\):\n\n",
        r"(    \S.*\n      (good|bad) \d+%   \((good|bad)\)\n){5}",
        r"cost    ",
        r"report  mine/(scratch|frozen|finetuned)/report.html",
        r'next    harken classify mine/\w+ "It is not a great film',
    ]
    assert re.search(".*".join(story), output.out, re.S), output.out
    monkeypatch.setattr(reviews, "reviews", lambda **_: shown[0])
    actual = json.loads(harken("demo", "reviews", "--json").out)
    assert actual["run"] == str(shown[0].run.path)
    assert [row["metrics"]["accuracy"] for row in actual["rows"] if actual["run"] in row["runs"]] == [
        actual["splits"]["valid"]["accuracy"]
    ]
    assert "accuracy" in actual["metrics"]
    assert all(os.path.isfile(file) for file in actual["files"])
