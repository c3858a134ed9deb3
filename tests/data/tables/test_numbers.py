"""The rule for numbers and missing values of tables, next to pandas."""

import io
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.tables.numbers import MISSING_VALUES, Decimal, format_problem, is_missing, parse_number

CELLS = st.text("0123456789.,+-eE ", min_size=1, max_size=8)
OTHER_CELLS = [
    "1_000",
    "\u0661",
    "0x1f",
    "inf",
    "-Infinity",
    "nan",
    "1e999",
    "12%",
    "1'000",
    "5 kg",
    "",
    ".",
    "-",
    "e5",
    "1.2.3",
]


def pandas_value(cell: str, decimal: Decimal) -> float | None:
    """The number that pandas reads in this cell, or None."""
    import pandas

    quoted = f'a;b\n"{cell}";x\n'
    value = pandas.read_csv(io.StringIO(quoted), sep=";", decimal=decimal)["a"][0]
    is_number = not isinstance(value, str) and math.isfinite(value)
    return float(value) if is_number else None


@pytest.mark.parametrize("decimal", [".", ","])
@settings(max_examples=60, deadline=None)
@given(cell=CELLS)
def test_every_number_is_the_one_that_pandas_reads(decimal: Decimal, cell: str) -> None:
    number = parse_number(cell, decimal)
    assert number is None or number == pytest.approx(pandas_value(cell, decimal), rel=1e-12)


@pytest.mark.parametrize("decimal", [".", ","])
@given(number=st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)))
def test_every_finite_number_is_read_exactly_with_either_decimal_sign(decimal: Decimal, number: float) -> None:
    assert parse_number(f" {number!r} ".replace(".", decimal), decimal) == number


@pytest.mark.parametrize("cell", OTHER_CELLS)
def test_another_text_is_not_a_number(cell: str) -> None:
    assert parse_number(cell, ".") is None
    assert parse_number(cell, ",") is None


@pytest.mark.parametrize(("cell", "decimal"), [("3,4", "."), ("1,234", "."), ("3.4", ","), ("1.234", ",")])
def test_the_other_decimal_sign_is_never_read(cell: str, decimal: Decimal) -> None:
    assert parse_number(cell, decimal) is None


def test_the_missing_values_are_those_of_pandas() -> None:
    from pandas._libs.parsers import STR_NA_VALUES

    assert MISSING_VALUES == STR_NA_VALUES
    assert is_missing(" NA ")
    assert not is_missing("none")


@pytest.mark.parametrize(
    ("cells", "decimal", "problem"),
    [
        ("3,4 5 6,25 NA", ".", "'3,4' has a decimal comma; .* set data.decimal=','$"),
        ("3.4 5 6.25 NA", ",", "'3.4' has a decimal point; .* set data.decimal='\\.'$"),
        ("1,234 5,678 900", ".", "'1,234' has a thousands separator or a decimal comma; .* set data.decimal=','$"),
        ("0,125 1,234", ".", "'0,125' has a decimal comma; .* set data.decimal=','$"),
        ("1,234,567 12", ".", "'1,234,567' has a thousands separator; .* remove it$"),
        ("1.234,50 99,90", ".", "'99,90' has a decimal comma; .* write a decimal point everywhere$"),
        ("1,234.5 99.5 98.5", ".", "'1,234.5' has a thousands separator; .* remove it$"),
        ("1'234 12", ".", '"1\'234" has a thousands separator; .* remove it$'),
        ("3,4 5.5 6,25", ".", "'3,4' has a decimal comma; .* write a decimal point everywhere$"),
        ("12% 13%", ".", "'12%' has a percent sign; .* remove it$"),
        ("1.234 99,5 98,5", ",", "'1.234' has a thousands separator; .* remove it$"),
    ],
)
def test_a_column_of_numbers_in_another_format_is_refused_with_what_to_do(
    cells: str, decimal: Decimal, problem: str
) -> None:
    assert re.match(problem, format_problem(cells.split(), decimal))


@pytest.mark.parametrize("cells", ["1 2.5 NA", "good bad", "1,2 unknown", "1.2.3 1.2.4", "NA NaN", "2024-01-02"])
def test_a_column_that_is_numeric_or_holds_other_texts_has_no_problem(cells: str) -> None:
    assert format_problem(cells.split()) == ""


def test_a_rare_typing_error_is_left_to_the_row() -> None:
    assert format_problem(["1.5"] * 40 + ["3,4"]) == ""
