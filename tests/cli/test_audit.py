"""harken audit: its table, its JSON object and its exit code."""

import json

import pytest

CHECKS = ["causal", "gradient", "padding", "packing", "cache", "batching", "accumulation"]
SMALL = ["model.d=16", "model.layers=1", "model.heads=2", "model.context=16", "train.steps=2", "train.batch=4"]


@pytest.fixture
def leaky(monkeypatch):
    """Every new GPT attends to one future token."""
    from harken.core import Structure
    from harken.models import gpt

    monkeypatch.setattr(gpt, "CAUSAL", Structure(lambda b, i, j: j <= i + 1, "off by one"))


def test_a_run_that_obeys_its_mask_exits_with_0_and_a_summary(harken, run):
    output = harken("audit", run)
    assert (output.code, output.err) == (0, "")
    *lines, last = output.out.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, "passed"] for name in CHECKS]
    assert last == f"7 checks passed ({', '.join(CHECKS)})"


def test_a_training_prints_the_audit_before_its_cost(harken, tales):
    lines = harken("train", tales, *SMALL).out.splitlines()
    place = lines.index(f"  audit   7 checks passed ({', '.join(CHECKS)})")
    assert lines[place + 1].startswith("  cost  ")


@pytest.mark.usefixtures("leaky")
def test_the_json_of_a_training_has_its_audit(harken, tales):
    output = harken("train", tales, *SMALL, "--json")
    actual = json.loads(output.out)["audit"]
    assert (output.code, actual["passed"]) == (1, False)
    assert actual["summary"].startswith("5 of 7 checks failed: causal,")
    assert [check["name"] for check in actual["checks"]] == CHECKS
    assert actual["checks"][0]["layer"] == "stack.blocks.0.attention"


def test_json_has_the_checks_of_the_contract(harken, run):
    output = harken("audit", run, "--json")
    actual = json.loads(output.out)
    assert (output.code, actual["audited"], actual["passed"]) == (0, str(run), True)
    assert [check["name"] for check in actual["checks"]] == CHECKS
    assert all(check["difference"] <= check["tolerance"] for check in actual["checks"])
    keys = {"name", "claim", "outcome", "difference", "tolerance", "layer", "why"}
    assert all(check.keys() == keys for check in actual["checks"])


@pytest.mark.usefixtures("leaky")
def test_a_leak_exits_with_1_and_one_line_with_the_layer(harken, run):
    output = harken("audit", run)
    assert output.code == 1
    name, outcome, _, sign, limit, layer, *why = next(line.split() for line in output.out.splitlines())
    assert (name, outcome, sign, limit, layer) == ("causal", "failed", ">", "1e-08", "stack.blocks.0.attention:")
    assert " ".join(why) == "first difference in stack.blocks.0.attention.W_o"
    (line,) = output.err.splitlines()
    messages = "5 of 7 checks failed: causal, gradient, padding, cache, batching in stack.blocks.0.attention"
    assert line == f"harken: {run}: {messages}"


@pytest.mark.usefixtures("leaky")
def test_a_leak_with_json_prints_one_object_on_stdout(harken, run):
    output = harken("audit", run, "--json")
    actual = json.loads(output.out)
    assert (output.code, actual["passed"]) == (1, False)
    assert actual["checks"][0]["layer"] == "stack.blocks.0.attention"
    assert len(output.err.splitlines()) == 1


def test_a_recipe_is_audited_with_settings(harken, tales):
    output = harken("audit", "gru", f"data.path={tales}", "model.d=16", "--json")
    outcomes = {check["name"]: check["outcome"] for check in json.loads(output.out)["checks"]}
    assert outcomes == {name: "does not apply" if name == "packing" else "passed" for name in CHECKS}


def test_a_check_that_does_not_apply_is_printed_with_its_reason(harken, tales):
    output = harken("audit", "lstm", f"data.path={tales}", "model.d=16", "--length", "6")
    row = next(line for line in output.out.splitlines() if line.split()[0] == "packing")
    assert "does not apply" in row
    assert "model.kind=lstm cannot separate documents in a row" in row


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["runs/nowhere"], "runs/nowhere: no such file"),
        (["--length", "1", "x"], "audit: invalid value for '--length'"),
        ([], "audit: missing argument 'RUN|RECIPE'"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(harken, args, message):
    output = harken("audit", *args)
    assert (output.code, output.out) == (2, "")
    assert output.err.startswith(f"harken: {message}")
    assert output.err.count("\n") == 1


def test_a_run_takes_no_settings(harken, run):
    output = harken("audit", run, "model.layers=3")
    assert (output.code, output.err) == (
        2,
        f"harken: {run}: settings cannot be changed in the audit of a run; they are for recipes and data\n",
    )
