"""maths:NAME from end to end: trained, judged, asked, killed and resumed, compared."""

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
    """What stands in for a kill: nothing is tidied up."""


@pytest.fixture(scope="module")
def gcd(tmp_path_factory):
    return harken.train("maths:gcd", out=tmp_path_factory.mktemp("maths") / "gcd", settings=TINY)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_trained_evaluated_and_answered(name, tmp_path):
    made = harken.train(f"maths:{name}", out=tmp_path / "run", settings={**TINY, "train.steps": 2, "data.valid": 10})
    assert made.facts["data_kind"] == "maths"
    assert made.facts["audit"]["passed"]
    assert made.metrics["test"].keys() >= {"accuracy", "loss"}
    example = made.facts["example"]
    assert isinstance(made.translate(example), str)
    assert "<h2>Attention</h2>" in (made.path / "report.html").read_text() or name in ("integrals", "transposition")


def test_a_repeated_evaluation_uses_the_same_protocol_and_gives_the_same_metrics(gcd):
    again = harken.load(gcd.path).evaluate("test")
    assert again.metrics == pytest.approx(gcd.metrics["test"])
    judged = harken.load(gcd.path).recipe.load_data().splits["test"]
    counts = Counter(f"gcd {math.gcd(*map(int, source.split()))}" for source in judged.sources)
    assert {name: part["pairs"] for name, part in gcd.facts["parts"]["test"].items()} == counts
    assert "gcds learned" in (gcd.path / "report.html").read_text()


def test_answers_are_decoded_as_in_the_evaluation(gcd):
    asked = [f"{6 * a} {10 * a}" for a in range(1, 30)]
    greedy = gcd.alternatives(asked, beam=1)
    assert gcd.alternatives(asked) == greedy
    assert len(gcd.alternatives(asked[:1], alternatives=3)[0]) == 3


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
    begun: list[int] = []
    harken.train(
        tmp_path / "broken",
        resume=True,
        listen=lambda event, **facts: begun.append(facts["step"]) if event == "start" else None,
    )
    assert begun == [4]
    assert sha256_of(tmp_path / "broken" / "model.safetensors") == sha256_of(
        gcd.path / "model.safetensors"
    )


def test_other_pair_models_learn_mathematics(tmp_path):
    tiny = {name: value for name, value in TINY.items() if name not in ("model.d_ff", "model.heads")}
    made = harken.train("maths:addition", out=tmp_path / "run", settings={**tiny, "model.kind": "rnn-attention"})
    assert made.facts["kind"] == "rnn-attention"


def test_check_describes_the_generated_data():
    chosen = choose("maths:fractions", {})
    assert (chosen.recipe.data.operation, chosen.recipe.model.kind, chosen.detection.kind) == (
        "fractions",
        "transformer",
        "maths",
    )


def test_a_run_is_named_after_its_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert harken.train("maths:gcd", settings={**TINY, "train.steps": 1}).path == Path("runs/gcd")
