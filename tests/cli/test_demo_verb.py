"""harken demo: what people see while a translator learns, and what programs read."""

import json
import os
import re

import pytest

from harken.data import catalogue
from harken.errors import HarkenError
from harken.study import demo as demos
from harken.study import train

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.batch": 4, "train.steps": 20, "train.threads": 1}


@pytest.fixture
def demo(harken, monkeypatch):
    """The demo without a registry, with few phrases and a tiny model; it shows its sentences after every step."""
    fetch = catalogue.fetch

    def offline(name, **how):
        if name == "tatoeba-fra":
            raise HarkenError("data tatoeba-fra: could not be fetched")
        return fetch(name, **how)

    def small(what, *, settings, minutes, **options):
        return train.train(what, settings={**settings, **TINY}, **options)

    monkeypatch.setattr(catalogue, "fetch", offline)
    monkeypatch.setattr(catalogue, "PHRASES", 400)
    monkeypatch.setattr(demos, "train", small)
    monkeypatch.setattr(demos, "SECONDS", -1.0)
    return lambda *options: harken("demo", *options)


def test_the_demo_tells_the_whole_story_in_its_order(demo):
    said = demo("--out", "mine")
    assert said.code == 0, said
    assert said.err == "data tatoeba-fra: could not be fetched; harken's own phrases are taken instead\n"
    story = [
        r"train   20 steps",
        r"about [\d.]+ (s|min).* and [\d.]+ m?Wh",  # before the first step
        r"step       1 of 20",
        r"watch   I am a student\. +-> ",
        r"She does not have a dog\. +-> ",
        r"step      20 of 20",
        r"thanks  harken's own grammar \(Apache-2.0\)",
        r"valid .*bleu .* this model",
        r"copy of the source, for free",
        r"test .*bleu .* this model",
        r"It translates sentences it has not seen",
        r"looks   mine/attention.png",
        r"report  mine/report.html",
        r"next    harken translate mine ",
    ]
    assert re.search(".*".join(story), said.out, re.S)


def test_the_last_line_is_the_cost_beside_the_lecture_s_big_transformer(demo):
    last = demo().out.splitlines()[-1]
    assert re.fullmatch(r"  beside  \S+ lb CO2e here, 192 lb CO2e of the lecture's Transformer \(big\): 1/[\d,]+", last)


def test_json_of_the_demo_names_files_that_are_there(demo):
    said = demo("--json")
    found = json.loads(said.out)
    assert found["run"] == "runs/phrases"
    assert "bleu" in found["metrics"]
    assert {os.path.basename(file) for file in found["files"]} >= {"attention.png", "report.html", "model.safetensors"}
    assert all(os.path.isfile(file) for file in found["files"])
