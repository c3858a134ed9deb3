"""Runs on maths:NAME: train, evaluate, translate, resume."""

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import harken
from harken.data.maths.source import PROBLEMS
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.files import sha256_of

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.d_ff": 32, "train.batch": 16, "train.threads": 1}
TINY |= {"data.valid": 60, "data.test": 40, "data.examples": 80, "train.steps": 6, "train.compile": "no"}


class Died(Exception):
    """Simulates a killed process."""


@pytest.fixture(scope="module")
def gcd(tmp_path_factory):
    return harken.train("maths:gcd", out=tmp_path_factory.mktemp("maths") / "gcd", settings=TINY)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_trained_evaluated_and_answered(name, tmp_path):
    run = harken.train(f"maths:{name}", out=tmp_path / "run", settings={**TINY, "train.steps": 2, "data.valid": 10})
    assert run.facts["data_kind"] == "maths"
    assert run.facts["audit"]["passed"]
    assert run.metrics["test"].keys() >= {"accuracy", "loss"}
    example = run.facts["example"]
    assert isinstance(run.translate(example), str)
    assert "<h2>Attention</h2>" in (run.path / "report.html").read_text() or name in ("integrals", "transposition")


def test_a_repeated_evaluation_uses_the_same_protocol_and_gives_the_same_metrics(gcd):
    reloaded = harken.load(gcd.path).evaluate("test")
    assert reloaded.metrics == pytest.approx(gcd.metrics["test"])
    split = harken.load(gcd.path).recipe.load_data().splits["test"]
    counts = Counter(f"gcd {math.gcd(*map(int, source.split()))}" for source in split.sources)
    assert {name: part["pairs"] for name, part in gcd.facts["parts"]["test"].items()} == counts
    assert "gcds learned" in (gcd.path / "report.html").read_text()


def test_answers_are_decoded_as_in_the_evaluation(gcd):
    problems = [f"{6 * a} {10 * a}" for a in range(1, 30)]
    greedy = gcd.alternatives(problems, beam=1)
    assert gcd.alternatives(problems) == greedy
    assert len(gcd.alternatives(problems[:1], alternatives=3)[0]) == 3


def test_numbers_are_typed_in_base_10(gcd):
    answer = gcd.translate("160 120", beam=1)
    assert answer == gcd.translate(["160 120"], beam=1)[0]
    with pytest.raises(BadInput, match=r"maths:gcd accepts 2 integers, such as '160 120'"):
        gcd.translate("160")


def test_an_interrupted_training_resumes_bitwise(gcd, tmp_path):
    def die(event: str, **facts: object) -> None:
        if event == "step" and facts["step"] == 5:
            raise Died

    with suppress(Died):
        settings = {**TINY, "train.checkpoint_every": 2}
        harken.train("maths:gcd", out=tmp_path / "broken", settings=settings, listen=die)
    started_steps: list[int] = []
    harken.train(
        tmp_path / "broken",
        resume=True,
        listen=lambda event, **facts: started_steps.append(facts["step"]) if event == "start" else None,
    )
    assert started_steps == [4]
    assert sha256_of(tmp_path / "broken" / "model.safetensors") == sha256_of(gcd.path / "model.safetensors")


def test_other_pair_models_learn_mathematics(tmp_path):
    tiny = {name: value for name, value in TINY.items() if name not in ("model.d_ff", "model.heads")}
    run = harken.train("maths:addition", out=tmp_path / "run", settings={**tiny, "model.kind": "rnn-attention"})
    assert run.facts["kind"] == "rnn-attention"


def test_check_describes_the_generated_data():
    choice = choose("maths:fractions", {})
    assert (choice.recipe.data.operation, choice.recipe.model.kind, choice.detection.kind) == (
        "fractions",
        "transformer",
        "maths",
    )


def test_a_run_is_named_after_its_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert harken.train("maths:gcd", settings={**TINY, "train.steps": 1}).path == Path("runs/gcd")
