"""Mathematics on the command line: numbers are typed in base 10."""

import json
import re

import pytest

from harken.console import MAX_GROUPS, MIN_GROUP_SIZE

SETTINGS = ("model.d=16", "model.layers=1", "model.heads=2", "model.d_ff=32", "train.batch=16", "train.threads=1")
SETTINGS += ("data.valid=60", "data.test=40", "data.examples=80", "train.steps=2", "train.compile=no")


@pytest.fixture(scope="module")
def gcd(tmp_path_factory):
    from harken.experiments.train import train
    from harken.recipe import parse_override

    return train(
        "maths:gcd", out=tmp_path_factory.mktemp("maths") / "gcd", settings=dict(map(parse_override, SETTINGS))
    ).path


def test_numbers_are_given_in_base_10(harken, gcd):
    output = harken("translate", str(gcd), "160 120", "--json")
    assert output.code == 0
    assert json.loads(output.out)["translations"][0]["source"] == "160 120"
    refused = harken("translate", str(gcd), "160")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "'160': maths:gcd accepts 2 integers, such as '160 120'" in refused.err


def test_a_file_of_problems_is_answered_line_by_line(harken, gcd, tmp_path):
    (tmp_path / "in.txt").write_text("160 120\n7 21\n")
    output = harken("translate", str(gcd), "--in", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.jsonl"))
    assert output.code == 0, output.err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_a_run_is_evaluated_on_a_table_of_problems_and_answers(harken, gcd, tmp_path):
    (tmp_path / "mine.tsv").write_text("".join(f"{7 * n} {14 * n}\t{7 * n}\n" for n in range(1, 31)))
    output = harken("eval", str(gcd), str(tmp_path / "mine.tsv"), "--json")
    assert output.code == 0, output.err
    actual = json.loads(output.out)
    assert actual["examples"] == 30
    assert set(actual["parts"]) == {f"gcd {7 * n}" for n in range(1, 31)}
    assert actual["baseline"]["always 1"]["accuracy"] == 0


def test_a_table_with_a_wrong_answer_is_refused(harken, gcd, tmp_path):
    (tmp_path / "mine.tsv").write_text("7 14\t7\n160 120\t39\n12 18\t6\n")
    refused = harken("eval", str(gcd), str(tmp_path / "mine.tsv"))
    assert refused.code == 2
    assert "'160 120': the answer 39 is wrong; it is 40" in refused.err


def test_a_run_is_evaluated_only_on_its_own_problem(harken, gcd):
    assert harken("eval", str(gcd), "maths:gcd").code == 0
    refused = harken("eval", str(gcd), "maths:addition")
    assert refused.code == 2
    assert "maths:addition: this run was trained on maths:gcd" in refused.err


def test_distributions_are_compared_on_the_same_examples_gcd_by_gcd(harken, tmp_path):
    names = ("--distributions", "uniform,log-uniform", "--seeds", "1", "--out", str(tmp_path / "both"))
    output = harken("compare", "maths:gcd", *SETTINGS, *names)
    assert output.code == 0, output.err
    actual = json.loads((tmp_path / "both" / "compare.json").read_text())
    assert [row["settings"] for row in actual["rows"]] == [{"data.operands": x} for x in ("uniform", "log-uniform")]
    assert actual["metric"] == "accuracy"
    assert "Validation accuracy by gcd" in (tmp_path / "both" / "compare.svg").read_text()


def test_the_first_of_many_classes_are_printed_and_the_rest_counted(harken, gcd, tmp_path):
    rows = [(k * n, k * (n + 1), k) for k in range(1, MAX_GROUPS + 4) for n in range(1, MIN_GROUP_SIZE + 1)]
    rows.append((1000, 2000, 1000))  # a group that is too small
    (tmp_path / "mine.tsv").write_text("".join(f"{a} {b}\t{k}\n" for a, b, k in rows))
    output = harken("eval", str(gcd), str(tmp_path / "mine.tsv"))
    assert output.code == 0, output.err
    assert re.findall(r"this model on gcd (\d+)$", output.out, re.M) == [str(k) for k in range(1, MAX_GROUPS + 1)]
    assert "(3 more groups are in the report and in --json)" in output.out
    assert "gcds learned none" in output.out


def test_an_unknown_problem_suggests_the_nearest(harken):
    refused = harken("train", "maths:gdc")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "maths:gdc: no such problem; accepted: maths:gcd, maths:addition" in refused.err
    assert refused.err.endswith("Did you mean gcd?\n")


def test_check_describes_the_generated_problems(harken):
    output = harken("check", "maths:fractions", *SETTINGS)
    assert output.code == 0, output.err
    assert "maths: examples are generated" in output.out
    assert "data.operation" in output.out
