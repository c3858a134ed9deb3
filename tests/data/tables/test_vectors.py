"""Vectors from files: accepted formats, and one line for every other file."""

import gzip

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from pyarrow import parquet

from harken.data.tables.vectors import read_vectors
from harken.errors import BadInput
from harken.events import silent


def test_an_array_is_read_unchanged(tmp_path):
    x = np.random.default_rng(0).normal(size=(7, 3))
    np.save(tmp_path / "x.npy", x)
    vectors = read_vectors(tmp_path / "x.npy", silent)
    assert vectors.x.tolist() == x.tolist()
    assert vectors.names is None


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [True, False])
def test_numeric_columns_are_the_vectors_and_the_first_text_column_names_them(tmp_path, delimiter, header):
    rows = [["name", "a", "kind", "b"]] * header + [
        ["Ada", "1", "x", "2.5"],
        ["Bo", "3", "y", "-4e1"],
        ["Cy", "0", "x", "9"],
    ]
    (tmp_path / "x.csv").write_text("\n".join(delimiter.join(row) for row in rows))
    notices = []
    vectors = read_vectors(tmp_path / "x.csv", lambda _, **facts: notices.append(facts["text"]))
    assert vectors.x.tolist() == [[1, 2.5], [3, -40], [0, 9]]
    assert vectors.names == ["Ada", "Bo", "Cy"]
    name, other = ("name", "kind") if header else ("1", "3")
    assert notices == [f"{tmp_path}/x.csv: the text column {name!r} names the rows; ignored: {other}"]


def test_a_single_column_is_accepted(tmp_path):
    (tmp_path / "x.csv").write_text("v\n1\n2\n\n9\n")
    assert read_vectors(tmp_path / "x.csv", silent).x.tolist() == [[1], [2], [9]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "a,b\n1,2\n3,oops\n4,5\n", r"x.csv:3: column 'b' is 'oops'; a number is needed"),
        ("x.csv", "a,b\n1,2\n3,\n4,5\n", r"x.csv:3: column 'b' is empty"),
        ("x.csv", "a,b\n1,2\n3,nan\n4,5\n", r"x.csv:3: column 'b' is 'nan'; a number is needed"),
        ("x.csv", "a,b\n1,nan\n2,nan\n3,4\n", r"x.csv:2: column 'b' is 'nan'; a number is needed"),
        ("x.csv", "a,b\n1,2\n3\n", r"x.csv:3: 1 cells, but the first row has 2"),
        ("x.csv", "a,b\nhello,you\nmy,friend\n", r"\(a, b\) hold text, not numbers; .* harken cluster RUN x.csv"),
        ("x.csv", "", "x.csv: an empty file"),
        ("x.csv", "\n \n", "only white space"),
        ("x.txt", "1 2\n", r"read from .npy files and from tables .*; .* harken cluster RUN x.txt"),
        ("x.npy", "no array", "not a valid NumPy array"),
    ],
)
def test_a_file_that_is_not_a_numeric_table_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=message) as error:
        read_vectors(tmp_path / name, silent)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4), r"shape \(4,\); .* x.reshape\(-1, 1\)"),
        (np.zeros((2, 2, 2)), "store each point as one row"),
        (np.zeros((0, 3)), r"shape \(points, dimensions\) is needed"),
        (np.array([["a", "b"]]), "an array of numbers is needed"),
        (np.array([[1.0, np.inf]]), "row 1, column 2 is inf"),
    ],
)
def test_an_array_of_another_shape_or_dtype_is_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(BadInput, match=message):
        read_vectors(tmp_path / "x.npy", silent)


def test_an_array_of_objects_is_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "boom"), "w")

    np.save(tmp_path / "x.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="not a valid NumPy array"):
        read_vectors(tmp_path / "x.npy", silent)
    assert not (tmp_path / "boom").exists()


def test_a_header_with_a_false_shape_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 4)))
    raw = (tmp_path / "x.npy").read_bytes().replace(b"(4, 4)", b"(4,4000000000)")
    (tmp_path / "x.npy").write_bytes(raw)
    with pytest.raises(BadInput, match="not a valid NumPy array"):
        read_vectors(tmp_path / "x.npy", silent)


def test_a_folder_instead_of_a_file_is_reported(tmp_path):
    with pytest.raises(BadInput, match=r"no such file.*\. There is a folder of that name"):
        read_vectors(tmp_path, silent)


def test_a_missing_file_suggests_a_similar_name(tmp_path):
    np.save(tmp_path / "points.npy", np.zeros((2, 2)))
    with pytest.raises(BadInput, match=r"Did you mean .*points\.npy"):
        read_vectors(tmp_path / "point.npy", silent)


@pytest.mark.parametrize("header", ["", "x;y\n"])
def test_decimal_commas_are_refused_with_the_option_that_reads_them(tmp_path, header):
    (tmp_path / "a.csv").write_text(header + "1,5;2,5\n3,5;4,5\n")
    column = "x" if header else "1"
    with pytest.raises(BadInput, match=rf"a\.csv: column '{column}': '1,5' has a decimal comma; .* set --decimal ','$"):
        read_vectors(tmp_path / "a.csv", silent)
    assert read_vectors(tmp_path / "a.csv", silent, decimal=",").x.tolist() == [[1.5, 2.5], [3.5, 4.5]]


def test_a_thousands_separator_is_refused_unless_other_columns_are_selected(tmp_path):
    (tmp_path / "a.csv").write_text('x,pay\n1.5,"1,234.50"\n2.5,"999.50"\n')
    with pytest.raises(BadInput, match=r"column 'pay': '1,234.50' has a thousands separator; .* remove it"):
        read_vectors(tmp_path / "a.csv", silent)
    assert read_vectors(tmp_path / "a.csv", silent, ["x"]).x.tolist() == [[1.5], [2.5]]


def test_lines_before_the_table_are_not_read_as_points(tmp_path):
    (tmp_path / "a.csv").write_text("sep=;\nx;y\n1;2\n3;oops\n5;6\n")
    with pytest.raises(BadInput, match=r"a\.csv:4: column 'y' is 'oops'"):
        read_vectors(tmp_path / "a.csv", silent)
    (tmp_path / "a.csv").write_text("sep=;\nx;y\n1;2\n3;4\n")
    assert read_vectors(tmp_path / "a.csv", silent).x.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("content", ['x,y,name\n1,2,a\n3,4,"b\n5,6,c\n', 'x,name,y\n1,a,2\n3,"b,4\n5,c,6\n'])
def test_an_unclosed_quote_swallows_no_point(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(BadInput, match=r"a.csv:3: a quote is not closed; fix the row"):
        read_vectors(tmp_path / "a.csv", silent)


def test_vectors_of_every_table_format_are_read_with_the_lines_of_their_rows(tmp_path):
    content = "name;x;y\nA;1.5;2\n\nB;3;-4\n"
    (tmp_path / "a.csv").write_text(content)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "a.tsv").write_bytes(content.replace(";", "\t").encode("utf-16"))
    (tmp_path / "a.json").write_text('[{"name": "A", "x": 1.5, "y": 2},\n\n{"name": "B", "x": 3, "y": -4}]')
    (tmp_path / "a.jsonl").write_text('{"name": "A", "x": 1.5, "y": 2}\n\n{"name": "B", "x": 3, "y": -4}\n')
    parquet.write_table(pa.table({"name": ["A", "B"], "x": [1.5, 3], "y": [2, -4]}), tmp_path / "a.parquet")
    workbook = openpyxl.Workbook()
    for row in (["name", "x", "y"], ["A", 1.5, 2], [], ["B", 3, -4]):
        workbook.active.append(row)
    workbook.save(tmp_path / "a.xlsx")
    lines = {".jsonl": [1, 3], ".json": [1, 3], ".parquet": [1, 2]}
    for path in sorted(tmp_path.glob("a.*")):
        vectors = read_vectors(path, silent)
        assert (vectors.x.tolist(), vectors.columns, vectors.names) == ([[1.5, 2], [3, -4]], ["x", "y"], ["A", "B"])
        assert vectors.lines == lines.get(path.suffix, [2, 4]), path
    assert read_vectors(tmp_path / "a.xlsx", silent, decimal=",").x.tolist() == [[1.5, 2], [3, -4]]
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": 2}\n{"x": 1, "z": 2}\n')
    with pytest.raises(BadInput, match=r"a.jsonl:2: the key 'z' is not in the first object; fix the row"):
        read_vectors(tmp_path / "a.jsonl", silent)


def test_columns_with_equal_or_empty_names_are_named_by_their_number(tmp_path):
    (tmp_path / "x.csv").write_text("a,a,,y\n1,2,3,4\n5,6,7,8\n")
    vectors = read_vectors(tmp_path / "x.csv", silent, target="y")
    assert vectors.columns == ["1", "2", "3"]
    assert read_vectors(tmp_path / "x.csv", silent, ["2"]).x.tolist() == [[2], [6]]
    with pytest.raises(BadInput, match="no column 'a'; its columns are 1, 2, 3, y"):
        read_vectors(tmp_path / "x.csv", silent, ["a"])
