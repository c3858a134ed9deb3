"""DataFrames as files: every cell is the text that the readers read back."""

import datetime
import json
import math

import numpy as np
import pytest

from harken.data.sets.columns import header_names
from harken.data.tables.columns import iter_columns
from harken.data.tables.frame import Frame, column_cells, save_frame
from harken.errors import BadInput


class StandInFrame:
    """The two members of a DataFrame that harken uses."""

    def __init__(self, **cells):
        self.cells = cells

    @property
    def columns(self):
        return list(self.cells)

    def __getitem__(self, name):
        return self.cells[name]


def pandas_frame(**cells):
    return pytest.importorskip("pandas").DataFrame(cells)


def polars_frame(**cells):
    return pytest.importorskip("polars").DataFrame(cells)


FRAMES = [StandInFrame, pandas_frame, polars_frame]
TEXTS = ["plain", 'a "quoted" word, and a comma', "two\nlines", "", "ä€😀", "; | \t '"]


@pytest.mark.parametrize("build", FRAMES)
def test_the_file_has_the_rows_of_the_frame(build):
    frame = build(text=TEXTS, label=["a", "b", "a", "b", "a", None], n=[1, 2, 3, 4, 5, 6], x=[0.5, -1.25, 2.0, 3, 4, 5])
    assert isinstance(frame, Frame)
    head, *rows = map(json.loads, save_frame(frame).read_text("utf-8").split("\n")[:-1])
    assert head == ["text", "label", "n", "x"]
    assert [row[0] for row in rows] == TEXTS
    assert [row[1] for row in rows] == ["a", "b", "a", "b", "a", ""]
    assert [int(row[2]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [float(row[3]) for row in rows] == [0.5, -1.25, 2.0, 3, 4, 5]


def test_equal_frames_share_a_file_and_others_do_not():
    first, again, other = (save_frame(StandInFrame(text=["a", text])) for text in ("b", "b", "c"))
    assert first == again != other
    assert other.read_text() != first.read_text()


def test_missing_values_are_empty_and_every_other_value_is_as_written():
    day = datetime.date(2024, 2, 29)
    values = [
        None,
        math.nan,
        np.float64("nan"),
        np.datetime64("NaT"),
        "nan",
        True,
        np.int64(7),
        day,
        ["a", "b"],
        "a\x1eb",
    ]
    expected = ["", "", "", "", "nan", "True", "7", "2024-02-29", "a\x1eb", "a b"]
    assert column_cells(StandInFrame(x=values), "x") == expected


def test_integers_that_pandas_stores_as_floats_are_written_as_integers():
    frame = StandInFrame(a=[1.0, np.float64(20), float("nan")], b=[1.0, 2.5, None], c=[math.inf, 1.0, 2.0])
    assert [column_cells(frame, name) for name in "abc"] == [["1", "20", ""], ["1.0", "2.5", ""], ["inf", "1.0", "2.0"]]


def test_arrays_and_series_of_texts_are_lists():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    cells = [["a"], ["a", "b"], []]
    expected = column_cells(StandInFrame(x=cells), "x")
    assert column_cells(pandas.DataFrame({"x": [np.array(cell, object) for cell in cells]}), "x") == expected
    assert column_cells(polars.DataFrame({"x": cells}), "x") == expected
    for value in (np.array([1, 2]), {"a": "b"}, {"a"}, b"", [b"a"]):
        with pytest.raises(
            BadInput, match=r"column 'x', row 0: .*; texts, numbers, dates and lists of texts are accept"
        ):
            column_cells(StandInFrame(x=[value]), "x")


def test_pandas_missing_values_are_empty():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["a", pandas.NA, None], dtype="string")
    assert column_cells(pandas.DataFrame({"x": column}), "x") == ["a", "", ""]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (StandInFrame(text=[]), "StandInFrame: has 1 columns and no rows; give a table with rows"),
        (StandInFrame(), "StandInFrame: has 0 columns and no rows; give a table with rows"),
        (StandInFrame(a=["x"], b=["x", "y"]), "StandInFrame: its columns have [1, 2] rows; every column needs as many"),
    ],
)
def test_a_frame_that_is_no_table_of_texts_and_numbers_is_refused(frame, message):
    with pytest.raises(BadInput) as error:
        save_frame(frame)
    assert str(error.value).startswith(message)


NAMES = [" text", "label ", 'a "quoted" name', "tab\tand, comma", "1", "line\nbreak"]


def test_names_and_cells_are_read_as_they_are():
    cells = {name: [f"{text}{n}" for n, text in enumerate(TEXTS)] for name in NAMES}
    path = save_frame(StandInFrame(**cells))
    rows = list(iter_columns(path, [("data.text", name) for name in NAMES], pytest.fail))
    assert [row for _, row in rows] == [list(row) for row in zip(*cells.values(), strict=True)]
    assert header_names(path) == NAMES


def test_a_column_of_other_values_is_left_out_unless_it_is_needed():
    frame, notices = StandInFrame(text=["x", "y"], meta=["x", {"b": 1}]), []
    path = save_frame(frame, listen=lambda event, **facts: notices.append(facts["text"]))
    assert header_names(path) == ["text"]
    problem = "column 'meta', row 1: dict {'b': 1}; texts, numbers, dates and lists"
    assert [text.startswith(f"StandInFrame: this column is not used: {problem}") for text in notices] == [True]
    with pytest.raises(BadInput, match=r"^column 'meta', row 1: dict"):
        save_frame(frame, ["meta"])


def test_two_columns_with_one_name_are_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(BadInput, match="two columns are named 'a'; rename one of them"):
        save_frame(pandas.DataFrame([["x", "y"]], columns=["a", "a"]))


def test_an_unknown_column_is_refused_with_the_nearest_name():
    with pytest.raises(BadInput, match=r"^StandInFrame: no column 'txt'; its columns are text, label\. Did you mean"):
        column_cells(StandInFrame(text=["a"], label=["b"]), "txt")
