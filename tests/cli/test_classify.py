"""harken classify, and the other commands on a run of labels."""

import csv
import json
from pathlib import Path

import pytest

TINY = ["model.d=16", "model.layers=1", "model.heads=2", "data.vocab_size=200", "train.steps=3", "train.batch=16"]
WORDS = ["red", "green", "blue", "loud", "quiet", "warm"]


def text(n: int) -> str:
    return " ".join(WORDS[(n * k + k) % 6] for k in range(1, 4)) + f" {n}"


@pytest.fixture
def table(tmp_path):
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *([text(n), ("bad", "fair", "good")[n % 3]] for n in range(90))])
    return tmp_path / "reviews.csv"


def rows_of(path):
    """The rows of an output file, read by the standard library."""
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.fixture
def run(harken, table):
    done = harken("train", table, *TINY, "--out", "run", "--json")
    assert done.code == 0, done.err
    return "run"


def test_one_command_trains_and_evaluates_on_a_table(harken, table):
    done = harken("train", table, *TINY, "--json")
    messages = json.loads(done.out)
    assert (done.code, messages["kind"]) == (0, "bert")
    assert messages["metrics"].keys() >= {"loss", "accuracy", "f1", "matthews"}
    assert messages["baseline"].keys() == {"most frequent label", "bag of words"}


def test_check_detects_the_table_and_trains_nothing(harken, table):
    messages = json.loads(harken("check", table, *TINY, "--json").out)
    assert messages["kind"] == "table"
    assert messages["recipe"]["data.label"] == "label"


def test_check_shows_the_two_text_columns(harken, tmp_path):
    lines = ["sentence1,sentence2,label", *(f"{text(n)},{text(n + 1)},{n % 2}" for n in range(90))]
    (tmp_path / "two.csv").write_text("\n".join(lines) + "\n")
    done = harken("check", "two.csv", *TINY)
    assert (done.code, done.err) == (0, "")
    assert 'data.text = ["sentence1", "sentence2"]' in " ".join(done.out.split())


def test_truncated_texts_give_one_notice_for_all_batches_and_in_json(harken, run, monkeypatch):
    monkeypatch.setattr("harken.cli.classify.BATCH_SIZE", 2)
    long, lines = "red " * 200, f"{text(1)}\n{text(2)}\n{'red ' * 200}\n{text(4)}\n{'red ' * 150}\n".encode()
    done = harken("classify", run, "-", stdin=lines)
    truncated = "2 of 5 texts are longer than 128 tokens (longest: 202) and were truncated"
    windows = 'use --overflow windows (Python: overflow="windows")'
    assert done.err == f"{truncated}; {windows}, or train with data.max_length=202\n"
    done = harken("classify", run, long, "--json")
    [notice] = json.loads(done.out)["notices"]
    assert done.err == f"{notice}\n"
    done = harken("classify", run, long, "--overflow", "windows", "--json")
    assert (list(json.loads(done.out)), done.err) == (["labels"], "")
    for verb, *arguments in (["embed", run, long], ["search", run, "reviews.csv", long]):
        done = harken(verb, *arguments, "--json")
        assert "is longer than 128 tokens (longest: 202) and was truncated" in json.loads(done.out)["notices"][0]
        done = harken(verb, *arguments, "--json", "--overflow", "windows")
        assert "notices" not in json.loads(done.out)
        assert done.err == ""
    Path("long.txt").write_bytes(lines)
    assert "longer than 128 tokens" in harken("cluster", run, "long.txt", "--k", "2", "--out", "a").err
    done = harken("cluster", run, "long.txt", "--k", "2", "--out", "b", "--overflow", "windows")
    assert (done.code, done.err) == (0, "")


def test_each_text_has_its_labels_sorted_by_probability(harken, run):
    messages = json.loads(harken("classify", run, text(1), text(2), "--json").out)
    assert len(messages["labels"]) == 2
    for labels in messages["labels"]:
        assert {label["label"] for label in labels} == {"bad", "fair", "good"}
        probabilities = [label["probability"] for label in labels]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1)


def test_each_line_of_stdin_has_one_answer_including_empty_lines(harken, run):
    done = harken("classify", run, stdin=f"{text(1)}\n\n{text(2)}\n".encode())
    lines = done.out.splitlines()
    assert (done.code, len(lines)) == (0, 3)
    assert all(line.split()[1] in ("bad", "fair", "good") for line in lines[::2])
    assert lines[1] == "null  (the text is empty)"
    assert harken("classify", run, text(1)).out == lines[0] + "\n"


def test_an_empty_text_has_no_labels_and_the_reason_in_every_format(harken, run, tmp_path):
    done = harken("classify", run, "", text(1))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].rstrip() == "null  (the text is empty)"
    answers = json.loads(harken("classify", run, "", text(1), "--json").out)
    assert answers["labels"][0] is None
    assert answers["labels"][1][0]["label"] in ("bad", "fair", "good")
    assert answers["reasons"] == ["the text is empty", None]
    (tmp_path / "in.csv").write_text(f'text,id\n" ",1\n{text(1)},2\n')
    for name in ("out.csv", "out.tsv", "out.jsonl"):
        harken("classify", run, "--in", "in.csv", "--out", name)
        empty, full = rows_of(tmp_path / name)
        assert not empty["label"]
        assert empty["reason"] == "the text is empty"
        assert full["label"] == answers["labels"][1][0]["label"]
        assert not full.get("reason")


def test_a_training_on_labels_counts_texts_and_prints_a_verdict(harken, table):
    lines = harken("train", table, *TINY).out.splitlines()
    (data,) = [line for line in lines if line.startswith("  data ")]
    assert data.startswith("  data    train 75, valid 9, test 6 texts (")
    assert [
        line
        for line in lines
        if line.startswith("  verdict ") and " on the test split" in line and " best trivial baseline " in line
    ]


def test_the_training_column_is_selected_in_a_tsv(harken, run, tmp_path):
    (tmp_path / "ask.tsv").write_text(f"id\ttext\n1\t{text(1)}\n2\t{text(2)}\n")
    assert json.loads(harken("classify", run, "--in", "ask.tsv", "--out", "out.jsonl", "--json").out)["answers"] == 2
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["text"] == text(1)


def test_a_file_is_classified_with_one_answer_per_line(harken, run, table, tmp_path):
    done = harken("classify", run, "--in", table, "--out", "out.jsonl", "--json")
    assert json.loads(done.out) == {
        "answers": 90,
        "unanswered": 0,
        "out": "out.jsonl",
        "columns": {"label": "predicted_label"},
    }
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == [text(n) for n in range(90)]
    assert [line["line"] for line in lines] == list(range(2, 92))
    assert all(line["predicted_label"] == line["labels"][0]["label"] for line in lines)


def test_other_data_is_evaluated_next_to_the_baselines(harken, run, table):
    messages = json.loads(harken("eval", run, table, "--json").out)
    assert (messages["examples"], messages["split"]) == (90, "other data")
    assert messages["metrics"].keys() >= {"accuracy", "f1"}


def test_other_data_in_another_encoding_is_evaluated_like_the_same_data_in_utf8(harken, run, table, tmp_path):
    content = table.read_text() + "".join(f"{text(n)} déjà,good\n" for n in range(9))
    (tmp_path / "utf8.csv").write_text(content, "utf-8")
    (tmp_path / "other.csv").write_text(content, "cp1252")
    table.write_text(content, "utf-8")  # the training data has its own encoding
    metrics = [
        {k: v for k, v in json.loads(done.out).items() if k in ("metrics", "baseline")}
        for done in (
            harken("eval", run, "utf8.csv", "--json"),
            harken("eval", run, "other.csv", "--encoding", "cp1252", "--json"),
        )
    ]
    assert metrics[0] == metrics[1]
    (tmp_path / "latin.csv").write_text("text,label\n" + "déjà vu,good\n" * 9, "cp1252")
    assert "; use --encoding cp1252, or convert it" in harken("eval", run, "latin.csv").err
    assert "--encoding: 'x1' is no text encoding" in harken("eval", run, "other.csv", "--encoding", "x1").err
    assert "--encoding has no effect without DATA" in harken("eval", run, "--encoding", "cp1252").err


def test_other_data_that_was_trained_on_is_reported(harken, run, table, tmp_path):
    notice = "reviews.csv: 75 of 90 examples are also in the training split; the metrics are higher than on new data"
    assert notice in harken("eval", run, table).err
    (tmp_path / "new.csv").write_text("text,label\n" + "".join(f"new {text(n)},bad\n" for n in range(9)))
    assert "training split" not in harken("eval", run, "new.csv").err
    table.unlink()  # then the training data is unknown
    (tmp_path / "old.csv").write_text("text,label\n" + "".join(f"{text(n)},bad\n" for n in range(9)))
    assert "training split" not in harken("eval", run, "old.csv").err


def test_an_unknown_label_in_other_data_is_reported_in_one_line(harken, run, tmp_path):
    (tmp_path / "other.csv").write_text("text,label\n" + "".join(f"{text(n)},great\n" for n in range(9)) + "a,awful\n")
    done = harken("eval", run, "other.csv")
    assert done.code == 2
    assert done.err.startswith(
        "harken: other.csv:2: 10 rows have unknown labels: 'great' (9), 'awful' (1); known labels are"
    )
    assert "; remove these rows, correct their labels, or train again with them." in done.err
    assert done.err.count("\n") == 1


def test_the_name_of_a_file_is_not_classified_as_a_text(harken, run, table):
    done = harken("classify", run, table.name)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("; use --in reviews.csv --out answers.csv\n")


def test_a_run_of_labels_suggests_classify(harken, run):
    done = harken("translate", run, "a")
    assert done.code == 2
    assert "this run classifies texts; use harken classify" in done.err


def test_without_a_text_the_usage_is_printed(harken, run):
    done = harken("classify", run)
    assert done.code == 2
    assert "give a text, or - to read texts from stdin" in done.err


def test_a_run_reads_files_in_the_encoding_of_its_training_data(harken, table, tmp_path):
    table.write_bytes(table.read_text().replace("red", "caf\u00e9").encode("cp1252"))
    done = harken("train", table, *TINY, "data.encoding=cp1252", "--out", "run")
    assert done.code == 0, done.err
    done = harken("classify", "run", "--in", table, "--out", "out.csv")
    assert done.code == 0, done.err
    assert any("caf\u00e9" in row["text"] for row in rows_of(tmp_path / "out.csv"))
    done = harken("classify", "run", "--in", table, "--out", "out.csv", "--force", "--encoding", "cp1251")
    assert any("caf\u0439" in row["text"] for row in rows_of(tmp_path / "out.csv"))


def test_several_labels_are_one_cell_of_a_table_and_a_list_in_json(harken, tmp_path):
    names = [[name for k, name in enumerate(WORDS[:3]) if n % (k + 2) == 0] for n in range(90)]
    rows = [[" ".join([*labels, text(n)]), "|".join(labels)] for n, labels in enumerate(names)]
    with (tmp_path / "topics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "topics"], *rows])
    settings = ["data.label=topics", "data.separator=|", "data.valid=0.4"]
    assert harken("train", "topics.csv", *TINY, *settings, "--out", "run").code == 0
    for name in ("out.csv", "out.jsonl"):
        done = harken("classify", "run", "--in", "topics.csv", "--out", name)
        assert done.code == 0, done.err
    answers = rows_of(tmp_path / "out.jsonl")
    chosen = [[score["label"] for score in answer["labels"] if score["predicted"]] for answer in answers]
    assert max(map(len, chosen)) > 1
    assert [answer["label"] for answer in answers] == chosen
    assert all(answer["probability"] is None and "predicted" not in answer for answer in answers)
    cells = [(row["label"], row["probability"]) for row in rows_of(tmp_path / "out.csv")]
    assert cells == [("|".join(labels), "") for labels in chosen]
