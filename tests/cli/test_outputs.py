"""--out FILE: every cell survives a round trip, and an incomplete file never has the final name."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click import Context

from harken.cli.inputs import Inputs
from harken.cli.outputs import check_output, write_answers
from harken.cli.score import score
from harken.data.tables.columns import iter_columns
from harken.errors import BadInput

CELLS = [
    "plain",
    "",
    " blanks ",
    'He said "no", twice',
    '"',
    '""',
    "a;b|c,d\te",
    "two\nlines",
    "windows\r\nlines",
    "old\rmac",
    "schön – 😀",
    "#no comment",
    "'single'",
    "\\n",
    "=1+1",
    "1,5",
    "{}",
]


def answered(rows: list[dict[str, object]]):
    return [({"id": str(n), "text": cell}, row) for n, (cell, row) in enumerate(zip(CELLS, rows, strict=True))]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_every_cell_is_read_back_as_it_was_by_csv_and_pandas(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    write_answers(path, ["id", "text"], answered([{"label": cell, "line": 2} for cell in CELLS]), ["label"])
    rows = read(path)
    assert [row["text"] for row in rows] == [row["label"] for row in rows] == CELLS
    assert list(rows[0]) == ["id", "text", "label", "line"]
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(path, sep="\t" if ending == ".tsv" else ",", keep_default_na=False, dtype=str)
    assert frame["text"].tolist() == frame["label"].tolist() == CELLS


def test_harken_reads_its_own_output(tmp_path):
    write_answers(tmp_path / "a.csv", ["id", "text"], answered([{"label": "x"}] * len(CELLS)), ["label"])
    cells = [text for _, (text,) in iter_columns(tmp_path / "a.csv", [("data.text", "text")], lambda *flaw: None)]
    assert cells == [cell.replace("\r\n", "\n") for cell in CELLS]  # the reader has one kind of line break


def test_numbers_lists_and_missing_values_of_a_cell_are_those_of_json(tmp_path):
    rows = [{"score": 0.1 + 0.2, "spans": [{"label": "a,b"}], "ok": True, "x": float("nan"), "y": None}]
    keys = ["score", "spans", "ok", "x", "y"]
    write_answers(tmp_path / "a.csv", ["id"], [({"id": 7}, row) for row in rows], keys)
    (row,) = read(tmp_path / "a.csv")
    assert row == {
        "id": "7",
        "score": "0.30000000000000004",
        "spans": '[{"label": "a,b"}]',
        "ok": "true",
        "x": "",
        "y": "",
    }


def test_a_note_is_a_column_only_if_a_row_has_one(tmp_path):
    rows = [({"id": 1}, {"label": "a", "line": 1}), ({"id": 2}, {"label": None, "line": 2})]
    write_answers(tmp_path / "a.csv", ["id"], rows, ["label", "value"])
    assert list(read(tmp_path / "a.csv")[0]) == ["id", "label", "line"]
    rows[1][1]["reason"] = "the text is empty"
    write_answers(tmp_path / "b.csv", ["id"], rows, ["label", "value"])
    assert read(tmp_path / "b.csv") == [
        {"id": "1", "label": "a", "reason": "", "line": "1"},
        {"id": "2", "label": "", "reason": "the text is empty", "line": "2"},
    ]


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_column_of_the_user_keeps_its_name_and_value(tmp_path, ending):
    own = {"label": "mine", "predicted_label": "old", "line": "L"}
    write_answers(tmp_path / f"a{ending}", list(own), [(own, {"label": "new", "line": 4})], ["label"])
    text = (tmp_path / f"a{ending}").read_text()
    row = read(tmp_path / "a.csv")[0] if ending == ".csv" else json.loads(text)
    assert {name: str(value) for name, value in row.items()} == own | {"predicted_label_2": "new", "file_line": "4"}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_an_error_leaves_neither_a_part_of_the_file_nor_a_temporary_one(tmp_path, ending):
    def rows():
        yield {"id": 1}, {"label": "a"}
        raise BadInput("a bad row")

    with pytest.raises(BadInput, match="a bad row"):
        write_answers(tmp_path / f"a{ending}", ["id"], rows(), ["label"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"a{ending}").write_text("old answers")
    with pytest.raises(BadInput, match="a bad row"):
        write_answers(tmp_path / f"a{ending}", ["id"], rows(), ["label"])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old answers"]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_leaves_the_old_file_and_no_temporary_one(harken, tmp_path, run, monkeypatch, name, code):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "harken.inference.run.Run.score", lambda *texts, **how: os.kill(os.getpid(), getattr(signal, name))
    )
    (tmp_path / "in.txt").write_text("a text\n")
    (tmp_path / "a.csv").write_text("old answers")
    output = harken("score", run, "--in", "in.txt", "--out", "a.csv", "--force")
    signal.signal(signal.SIGTERM, before)
    assert output.code == code
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "in.txt": "a text\n",
        "a.csv": "old answers",
    }


def test_the_temporary_file_of_a_killed_process_is_deleted_and_that_of_a_running_one_is_kept(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    killed, running, other = (
        tmp_path / f".tmp-{process}-{name}"
        for process, name in ((ended.pid, "a.csv"), (os.getppid(), "a.csv"), (ended.pid, "b.csv"))
    )
    for path in (killed, running, other):
        path.touch()
    write_answers(tmp_path / "a.csv", ["id"], [({"id": 1}, {"label": "x"})], ["label"])
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", running.name, other.name}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.xlsx", "--out a.xlsx: the ending '.xlsx'; accepted: .csv, .tsv and .jsonl; change the name"),
        ("a", "--out a: no ending; accepted: .csv, .tsv and .jsonl; change the name"),
        ("no/a.csv", "--out no/a.csv: no such folder; create it, or choose another name"),
        ("d.csv", "--out d.csv: is a folder; choose another name"),
        ("in.csv", "--out in.csv: is the input file; choose another name"),
        ("old.csv", "--out old.csv: the file exists; overwrite it with --force, or choose another name"),
    ],
)
def test_an_output_file_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    Path("d.csv").mkdir()
    Path("in.csv").write_text("text\na\n")
    Path("old.csv").write_text("")
    with Context(score), pytest.raises(BadInput) as refused:
        Inputs((), in_="in.csv", out_=name, force="old" not in name)
    assert str(refused.value) == message


def test_force_accepts_an_existing_file(tmp_path):
    (tmp_path / "old.csv").write_text("")
    check_output(tmp_path / "old.csv", [".csv"], force=True)


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", ""), ("a.csv", "text,label\n"), ("a.jsonl", ""), ("a.tsv", "text\n")]
)
def test_a_file_without_a_row_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with Context(score), pytest.raises(BadInput, match=rf"^--in .*{name}: the file has no row to answer; add rows"):
        Inputs((), in_=str(tmp_path / name), out_=str(tmp_path / "out.csv")).batches(1)
