"""harken eval --prompt, harken classify --prompt, and invalid prompts."""

import json
from itertools import product
from pathlib import Path

import pytest

ASK = "Tale: {text} It is"


@pytest.fixture
def gpt(folders):
    return folders["lstm"]  # its context is unlimited


@pytest.fixture
def table(tmp_path):
    lines = [f"the king went on {n}\t{'glad' if n % 3 else 'sad'}" for n in range(120)]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return "t.tsv"


def test_eval_has_a_row_for_each_number_of_shots_and_the_baselines(harken, gpt, table):
    done = harken("eval", gpt, table, "--prompt", ASK, "--shots", "0,1,4", "--json")
    messages = json.loads(done.out)
    assert (done.code, messages["split"]) == (0, "test")
    assert [row["shots"] for row in messages["rows"]] == [0, 1, 4]
    assert messages["metrics"] == messages["rows"][-1]["metrics"]
    assert messages["metrics"].keys() == {"loss", "accuracy", "f1", "matthews"}
    assert {"most frequent label", "bag of words"} <= messages["baseline"].keys()
    assert messages["protocol"]["texts"] == messages["examples"]


def test_eval_of_a_prompt_prints_a_table(harken, gpt, table):
    done = harken("eval", gpt, table, "--prompt", ASK, "--shots", "0,1", "--split", "valid")
    lines = done.out.splitlines()
    assert done.code == 0, done.err
    assert lines[0].startswith("  valid ")
    assert [line.rsplit("  ", 1)[1] for line in lines[:3]] == [
        "this model, 0 shots",
        "this model, 1 shot",
        "baseline: most frequent label",
    ]
    assert [line.strip().split(" loss")[0] for line in lines if "95 %" in line] == [
        "(95 % intervals, 0 shots:",
        "(95 % intervals, 1 shot:",
    ]


def test_another_seed_selects_other_examples(harken, gpt, tmp_path):
    """The examples are short: a small LSTM forgets distant tokens."""
    rows = [f"{a}{b}\t{'ox' if n % 3 else 'ax'}" for n, (a, b) in enumerate(product("abcdefghijkl", repeat=2))]
    (tmp_path / "short.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    ask = ["eval", gpt, "short.tsv", "--prompt", "{text} is", "--shots", 2, "--json", "--seed"]
    losses = [json.loads(harken(*ask, n).out)["metrics"]["loss"] for n in (0, 1)]
    assert abs(losses[0] - losses[1]) > 1e-6


def test_labels_of_the_data_are_replaced_by_words(harken, gpt, table):
    words = json.loads(harken("eval", gpt, table, "--prompt", ASK, "--labels", "sad=red,glad=big", "--json").out)
    plain = json.loads(harken("eval", gpt, table, "--prompt", ASK, "--json").out)
    assert words["metrics"]["loss"] != plain["metrics"]["loss"]


def test_classify_prompts_a_language_model(harken, gpt):
    messages = json.loads(
        harken("classify", gpt, "--prompt", ASK, "--labels", "sad,glad", "a fox", "a king", "--json").out
    )
    assert [{label["label"] for label in labels} for labels in messages["labels"]] == [{"sad", "glad"}] * 2
    assert all(sum(label["probability"] for label in labels) == pytest.approx(1) for labels in messages["labels"])


def test_classify_prompts_for_each_line_of_stdin(harken, gpt):
    how = ("--prompt", ASK, "--labels", "sad,glad")
    done = harken("classify", gpt, *how, "-", stdin=b"a fox\n\na king\n")
    assert (done.code, done.out.count("\n")) == (0, 3)
    assert done.out.splitlines()[2] == harken("classify", gpt, *how, "a king").out.rstrip("\n")


def test_classify_prompts_for_each_line_of_a_file(harken, gpt):
    Path("animals.txt").write_text("a fox\na king\n")
    options = ("--prompt", ASK, "--labels", "sad,glad")
    done = harken("classify", gpt, *options, "--in", "animals.txt", "--out", "labels.jsonl")
    assert done.out == "2 answers in labels.jsonl\n"
    rows = [json.loads(line) for line in Path("labels.jsonl").read_text().splitlines()]
    alone = json.loads(harken("classify", gpt, *options, "a fox", "a king", "--json").out)["labels"]
    assert [row["labels"] for row in rows] == alone


def test_an_escaped_newline_in_a_prompt_is_a_newline(harken, gpt):
    escaped = harken("classify", gpt, "--prompt", "{text}\\n", "--labels", "sad,glad", "a fox", "--json")
    literal = harken("classify", gpt, "--prompt", "{text}\n", "--labels", "sad,glad", "a fox", "--json")
    assert escaped.out == literal.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["eval", "RUN", "t.tsv", "--prompt", "Tale:"], "has no {text}"),
        (["eval", "RUN", "t.tsv", "--prompt", ASK, "--labels", "so=red"], "label 'so': not in the data, which has"),
        (["eval", "RUN", "t.tsv", "--prompt", ASK, "--labels", "red"], "expected label=words, such as 0=bad,1=good"),
        (
            ["eval", "RUN", "t.tsv", "--prompt", ASK, "--shots", "0,x"],
            "expected whole numbers separated by commas, such as 0,1,4,16",
        ),
        (["eval", "RUN", "t.tsv", "--prompt", ASK, "--shots", "999"], "examples to draw from; use fewer shots"),
        (["eval", "RUN", "--prompt", ASK], "--prompt needs DATA: harken eval RUN DATA --prompt TEXT"),
        (["eval", "RUN", "t.tsv", "--shots", "4"], "--shots has no effect without --prompt"),
        (["classify", "RUN", "x"], "or give --prompt and --labels"),
        (["classify", "RUN", "x", "--labels", "a,b"], "--prompt and --labels are used together; give both"),
        (["classify", "RUN", "x", "--prompt", "{text}", "--labels", "a"], "two or more different labels"),
        (["classify", "RUN", "x", "--prompt", "?", "--labels", "a,b"], "has no {text}"),
        (["eval", "PAIRS", "t.tsv", "--prompt", ASK], "a prompt needs a run that generates text"),
        (
            ["train", "t.tsv", "from=RUN", "transfer=4-shot"],
            "transfer = '4-shot': a prompt is not trained; evaluate it with harken compare",
        ),
    ],
)
def test_invalid_prompts_are_refused_in_one_line(harken, gpt, pair_folder, table, args, message):
    named = {"RUN": gpt, "PAIRS": pair_folder, "from=RUN": f"from={gpt}"}
    done = harken(*(named.get(arg, arg) for arg in args))
    assert done.code == 2
    assert message in done.err
    assert (done.out, done.err.count("\n")) == ("", 1) or "train" in args


def test_an_output_file_in_a_missing_folder_is_refused(harken, gpt):
    Path("animals.txt").write_text("a fox\n")
    output = harken("score", gpt, "--in", "animals.txt", "--out", "missing/scores.jsonl")
    assert output.err == "harken: --out missing/scores.jsonl: no such folder; create it, or choose another name\n"
