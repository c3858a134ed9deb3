"""Excel workbooks and Parquet files as lines of JSON, compared with pandas."""

import builtins
import datetime
import json
from decimal import Decimal
from pathlib import Path

import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from harken.data.graphs.read import read_graph
from harken.data.labelled.source import TableSource
from harken.data.sets.source import read_sets
from harken.data.tables.columns import iter_columns
from harken.data.tables.text_file import text_file
from harken.errors import BadInput
from harken.events import silent

CELL = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=12).filter(
    lambda text: text[0] not in "=#'_"
)
CELLS = CELL.map(str.strip).filter(bool)


def rows_of(path: Path) -> list[object]:
    return [json.loads(line) for line in text_file(path).path.read_text("utf-8").split("\n")[:-1]]


def save(path: Path, *rows: list[object]) -> Path:
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    workbook.save(path)
    return path


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS, st.integers(-(10**9), 10**9)), min_size=1, max_size=4))
def test_texts_and_whole_numbers_are_those_of_pandas(tmp_path, rows):
    path = save(tmp_path / "a.xlsx", ["a", "b", "n"], *map(list, rows))
    expected = pd.read_excel(path, dtype=str, keep_default_na=False)
    assert rows_of(path) == [[*expected.columns], *expected.to_numpy().tolist()]


def test_dates_numbers_and_truth_values_are_written_without_surprises(tmp_path):
    values = [3, 2.5, datetime.datetime(2024, 5, 1), datetime.datetime(2024, 5, 1, 13, 30), datetime.time(8, 15), True]
    path = save(tmp_path / "a.xlsx", ["x"] * 6, values)
    assert rows_of(path)[1] == ["3", "2.5", "2024-05-01", "2024-05-01 13:30:00", "08:15:00", "True"]


def test_the_number_of_a_row_is_that_of_the_sheet(tmp_path):
    path = save(tmp_path / "a.xlsx", ["text", "label"], ["one\ntwo", "a"], [], ["three", "b"], ["", "c"])
    skipped: list[tuple[int, str]] = []
    rows = list(
        iter_columns(path, [("", "text"), ("", "label")], lambda _, line, reason: skipped.append((line, reason)))
    )
    assert rows == [(2, ["one\ntwo", "a"]), (4, ["three", "b"]), (5, ["", "c"])]
    assert skipped == [(3, "an empty line")]


def test_empty_rows_at_the_end_are_not_read(tmp_path):
    path = save(tmp_path / "a.xlsx", ["text", "label"], ["one", "a"], *([["", " "]] * 20), [None, None])
    assert rows_of(path) == [["text", "label"], ["one", "a"]]


def test_a_wrong_dimension_in_the_file_loses_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr("openpyxl.worksheet._writer.WorksheetWriter.write_dimensions", lambda self: None)
    path = save(tmp_path / "a.xlsx", ["text", "label"], ["one", "a"], ["two", "b"])
    assert len(rows_of(path)) == 3


def test_parquet_values_are_written_without_surprises(tmp_path):
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int64()),
            "f": pa.array([0.1, float("nan")], pa.float32()),
            "d": [datetime.date(2024, 1, 2), None],
            "t": pa.array([1_704_164_645_123_456_789, None], pa.timestamp("ns")),
            "z": pa.array([1_704_164_645, None], pa.timestamp("s", "UTC")),
            "m": [Decimal("1.50"), None],
            "b": [True, None],
            "c": pa.array(["x", None]).dictionary_encode(),
            "l": [["u", "v"], []],
            "s": [{"en": "a", "de": "b"}, None],
            "raw": [b"\1", None],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    first, second = rows_of(tmp_path / "a.parquet")
    assert first == {
        **{
            "i": "1",
            "f": "0.1",
            "d": "2024-01-02",
            "t": "2024-01-02 03:04:05.123456",
            "z": "2024-01-02 03:04:05+00:00",
        },
        **{"m": "1.50", "b": "True", "c": "x", "l": ["u", "v"], "en": "a", "de": "b"},
    }
    assert second == {**dict.fromkeys(first, ""), "l": []}
    assert text_file(tmp_path / "a.parquet").notice.endswith("they hold no text or number: raw")


def test_a_run_on_csv_is_evaluated_on_excel_and_parquet(tmp_path):
    rows = [(f"{'good' if n % 2 else 'bad'} text {n}", "yes" if n % 2 else "no") for n in range(60)]
    frame = pd.DataFrame(rows, columns=["text", "label"])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame[:20].to_parquet(tmp_path / "b.parquet")
    save(tmp_path / "b.xlsx", ["label", "text"], *([label, text] for text, label in rows[:20]))
    source = TableSource(path=str(tmp_path / "a.csv"), tokenizer="char")
    data = source.load_data()
    for name in ("b.xlsx", "b.parquet"):
        other = source.load_split(str(tmp_path / name), "test", tokenizer=data.processor).splits["test"]
        assert [(*row.texts, *row.labels) for row in other.rows] == rows[:20]


def test_formulas_without_a_stored_value_are_counted_in_the_notice(tmp_path):
    rows = [[f"a text {n}", n % 2, "=B2+1" if n < 3 else None] for n in range(6)]
    file = text_file(save(tmp_path / "a.xlsx", ["text", "label", "more"], *rows))
    assert file.notice.endswith("a.xlsx: 3 cells hold formulas without a stored value; open and save the file in Excel")
    assert not text_file(save(tmp_path / "b.xlsx", ["text", "label"], ["one", None], ["two", "a"])).notice


def test_a_decimal_comma_applies_to_the_text_cells_of_a_sheet_and_numbers_are_read_too(tmp_path):
    rows = [[f"a text {n}", n / 2 + 0.25 if n % 2 else f"{n // 2},5"] for n in range(40)]
    path = save(tmp_path / "a.xlsx", ["text", "score"], *rows)
    source = TableSource(path=str(path), text="text", label="score", tokenizer="char", decimal=",")
    expected = [str(n / 2 + 0.25) if n % 2 else f"{n // 2}.5" for n in range(40)]
    assert [row.labels[0] for row in source.read(path, silent)] == expected
    with pytest.raises(BadInput, match=r"has a decimal comma.*or set data.decimal=, \(it applies to the cells"):
        source.model_copy(update={"decimal": "."}).read(path, silent)


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("a.xlsx", "openpyxl", "excel"), ("a.parquet", "pyarrow", "parquet")]
)
def test_a_missing_extra_is_named_with_its_command(name, package, extra, tmp_path, monkeypatch):
    load = builtins.__import__

    def refuse(module: str, *args: object) -> object:
        if module.split(".")[0] == package:
            raise ImportError(module)
        return load(module, *args)

    (tmp_path / name).write_bytes(b"PK\3\4")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(BadInput, match=rf"needs {package}; install it: pip install 'harken\[{extra}\]'"):
        text_file(tmp_path / name)


def test_a_workbook_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("harken.data.tables.text_file.MAX_UNPACKED", 1 << 10)
    with pytest.raises(BadInput, match="a larger workbook"):
        text_file(save(tmp_path / "a.xlsx", ["text"], ["one"]))


def test_number_cells_of_a_workbook_are_features_with_a_decimal_comma_too(tmp_path):
    pytest.importorskip("openpyxl")
    sheet = [["cloud", "x", "y", "label"]]
    sheet += [[f"c{n}", n + k / 4, f"{k},25", ("low", "high")[n % 2]] for n in range(12) for k in range(3)]
    book = openpyxl.Workbook()
    for row in sheet:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    examples = read_sets(tmp_path / "a.xlsx", "cloud", "label", ["x", "y"], silent, decimal=",")
    assert [e.rows.tolist() for e in examples] == [[[n + k / 4, k + 0.25] for k in range(3)] for n in range(12)]
    edges = openpyxl.Workbook()
    for edge in [["source", "target", "weight"], ["a", "b", 0.5], ["b", "c", "1,5"]]:
        edges.active.append(edge)
    edges.save(tmp_path / "edges.xlsx")
    assert read_graph(tmp_path / "edges.xlsx", {"decimal": ",", "weight": "weight"}).weight.tolist() == [0.5, 1.5]
