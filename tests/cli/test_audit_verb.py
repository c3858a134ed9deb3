"""harken audit: a table for people, one object for programs, and an exit code for whoever builds on it."""

import json

import pytest

CHECKS = ["causal", "gradient", "padded", "packed", "cached", "batched", "accumulated"]
SMALL = ["model.d=16", "model.layers=1", "model.heads=2", "model.context=16", "train.steps=2", "train.batch=4"]


@pytest.fixture
def leaky(monkeypatch):
    """Every GPT that is built now looks one word ahead."""
    from harken.core import Structure
    from harken.models import gpt

    monkeypatch.setattr(gpt, "CAUSAL", Structure(lambda b, i, j: j <= i + 1, "off by one"))


def test_a_run_that_obeys_its_mask_ends_with_0_and_says_so_last(harken, run):
    said = harken("audit", run)
    assert (said.code, said.err) == (0, "")
    *lines, last = said.out.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, "passed"] for name in CHECKS]
    assert last == f"7 checks passed ({', '.join(CHECKS)})"


def test_a_training_says_before_its_cost_how_the_audit_went(harken, tales):
    lines = harken("train", tales, *SMALL).out.splitlines()
    place = lines.index(f"  audit   7 checks passed ({', '.join(CHECKS)})")
    assert lines[place + 1].startswith("  cost  ")


@pytest.mark.usefixtures("leaky")
def test_the_json_of_a_training_has_what_its_audit_found(harken, tales):
    said = harken("train", tales, *SMALL, "--json")
    found = json.loads(said.out)["audit"]
    assert (said.code, found["passed"]) == (1, False)
    assert found["summary"].startswith("5 of 7 checks failed: causal,")
    assert [check["name"] for check in found["checks"]] == CHECKS
    assert found["checks"][0]["layer"] == "stack.blocks.0.look"


def test_json_has_the_checks_of_the_contract(harken, run):
    said = harken("audit", run, "--json")
    found = json.loads(said.out)
    assert (said.code, found["audited"], found["passed"]) == (0, str(run), True)
    assert [check["name"] for check in found["checks"]] == CHECKS
    assert all(check["difference"] <= check["tolerance"] for check in found["checks"])
    keys = {"name", "claim", "outcome", "difference", "tolerance", "layer", "why"}
    assert all(check.keys() == keys for check in found["checks"])


@pytest.mark.usefixtures("leaky")
def test_a_leak_ends_with_1_and_one_line_that_names_the_layer(harken, run):
    said = harken("audit", run)
    assert said.code == 1
    name, outcome, _, sign, limit, layer, *why = next(line.split() for line in said.out.splitlines())
    assert (name, outcome, sign, limit, layer) == ("causal", "failed", ">", "1e-08", "stack.blocks.0.look:")
    assert " ".join(why) == "first seen in stack.blocks.0.look.W_o"
    (line,) = said.err.splitlines()
    told = "5 of 7 checks failed: causal, gradient, padded, cached, batched in stack.blocks.0.look"
    assert line == f"harken: {run}: {told}"


@pytest.mark.usefixtures("leaky")
def test_a_leak_in_json_is_still_one_object_on_stdout(harken, run):
    said = harken("audit", run, "--json")
    found = json.loads(said.out)
    assert (said.code, found["passed"]) == (1, False)
    assert found["checks"][0]["layer"] == "stack.blocks.0.look"
    assert len(said.err.splitlines()) == 1


def test_a_recipe_is_audited_with_settings(harken, tales):
    said = harken("audit", "gru", f"data.path={tales}", "model.d=16", "--json")
    outcomes = {check["name"]: check["outcome"] for check in json.loads(said.out)["checks"]}
    assert outcomes == {name: "does not apply" if name == "packed" else "passed" for name in CHECKS}


def test_what_does_not_apply_is_told_with_its_reason(harken, tales):
    said = harken("audit", "lstm", f"data.path={tales}", "model.d=16", "--length", "6")
    row = next(line for line in said.out.splitlines() if line.split()[0] == "packed")
    assert "does not apply" in row
    assert "reads on across documents" in row


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/nowhere"], "runs/nowhere: there is no such file"),
        (["--length", "1", "x"], "audit: invalid value for '--length'"),
        ([], "audit: missing argument 'RUN|RECIPE'"),
    ],
)
def test_what_cannot_be_audited_is_one_line_and_2(harken, words, message):
    said = harken("audit", *words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"harken: {message}")
    assert said.err.count("\n") == 1


def test_a_run_takes_no_settings(harken, run):
    said = harken("audit", run, "model.layers=3")
    assert (said.code, said.err) == (
        2,
        f"harken: {run}: a run is audited as it is; settings are for a recipe or for data\n",
    )
