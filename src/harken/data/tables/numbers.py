"""The one rule for the cells of a table: what is a number, a decimal comma and a missing value.

A number is written with ASCII digits, at most one decimal sign, and an optional exponent; it is finite. Thousands
separators, percent signs and units are no part of a number: a cell with one of them is never read as another number.
"""

import math
import re
from collections.abc import Iterable
from typing import Literal

from .text_file import EXCEL_SUFFIXES

Decimal = Literal[".", ","]
MissingLabels = Literal["keep", "drop"]
DECIMAL_DESCRIPTION = 'decimal sign of the numbers: "." or ","'
MISSING_DESCRIPTION = "labels such as NA, NaN and null: keep them as labels, or drop their rows"
# the values that pandas.read_csv reads as missing
MISSING_VALUES = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
) | {"NULL", "NaN", "None", "n/a", "nan", "null"}
NUMBER = {
    ".": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.I | re.ASCII),
    ",": re.compile(r"[+-]?(\d+,?\d*|,\d+)(e[+-]?\d+)?", re.I | re.ASCII),
}
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}([.,' \u00a0\u202f\u2019])\d{3}(?:\1\d{3})*(?:[.,]\d+)?", re.ASCII)  # thousands
MAX_TYPOS = 0.05  # fraction of the cells of a numeric column that may be written in another way


def is_missing(cell: str) -> bool:
    """Whether a cell is empty or one of the usual marks of a missing value, such as NA."""
    return cell.strip() in MISSING_VALUES


def parse_number(cell: str, decimal: Decimal = ".") -> float | None:
    """The finite number in a cell; None for any other text."""
    cell = cell.strip()
    number = float(cell.replace(",", ".")) if NUMBER[decimal].fullmatch(cell) else math.nan
    return number if math.isfinite(number) else None


def with_comma(cell: str) -> str:
    """A number with a decimal point written with a comma; unchanged if the point may separate thousands."""
    is_decimal = NUMBER["."].fullmatch(cell) and not GROUPED.fullmatch(cell)
    return cell.replace(".", ",") if is_decimal else cell


def workbook_numbers(cells: Iterable[str], decimal: Decimal, location: str) -> list[str]:
    """Numbers with this decimal sign; the cells of an Excel workbook that hold numbers are read with a point."""
    if decimal == "." or not location.lower().endswith(EXCEL_SUFFIXES):
        return list(cells)
    return [with_comma(cell) for cell in cells]


def format_problem(cells: Iterable[str], decimal: Decimal = ".", setting: str = "data.decimal=") -> str:
    """Why a column of numbers cannot be read, and what to do.

    Empty for a column that can be read, up to a few typing errors, and for a column that does not hold numbers.
    """
    present = [cell for cell in map(str.strip, cells) if cell not in MISSING_VALUES]
    bad = [cell for cell in present if parse_number(cell, decimal) is None]
    if not bad or not all(map(is_number, bad)):
        return ""
    uses_sign = any(decimal in cell for cell in present if parse_number(cell, decimal) is not None)
    if uses_sign and len(bad) <= MAX_TYPOS * len(present):
        return ""
    return describe_format(bad, decimal, setting, uses_sign=uses_sign)


def is_number(cell: str) -> bool:
    """Whether a cell is a number, however it is written: also with a thousands separator or a percent sign."""
    cell = cell.strip().removesuffix("%").rstrip()
    return any(pattern.fullmatch(cell) for pattern in (*NUMBER.values(), GROUPED))


def describe_format(
    bad: list[str], decimal: Decimal, setting: str = "data.decimal=", *, uses_sign: bool = False
) -> str:
    """What is wrong with the format of these numbers, and what to do; empty if they are not numbers.

    `uses_sign`: other numbers of the column are written with the decimal sign that is set.
    """
    other: Decimal = "," if decimal == "." else "."
    name, other_name = ("point", "comma") if decimal == "." else ("comma", "point")
    if percent := next((cell for cell in bad if cell.endswith("%")), None):
        return f"{percent!r} has a percent sign; numbers without it are accepted; remove it"
    grouped = [cell for cell in bad if GROUPED.fullmatch(cell)]
    if sign := next((cell for cell in bad if cell not in grouped and NUMBER[other].fullmatch(cell)), None):
        has_other = all(NUMBER[other].fullmatch(cell) for cell in bad) and not uses_sign
        fix = f"write a decimal {name} everywhere" + f", or set {setting}'{other}'" * has_other
        return f"{sign!r} has a decimal {other_name}; numbers with a decimal {name} are accepted; {fix}"
    if not grouped:
        return ""
    if uses_sign or any(NUMBER[other].fullmatch(cell) is None for cell in grouped):
        return f"{grouped[0]!r} has a thousands separator; numbers without it are accepted; remove it"
    either = f"has a thousands separator or a decimal {other_name}"
    fix = f"remove the separator, or set {setting}'{other}'"
    return f"{grouped[0]!r} {either}; numbers with a decimal {name} are accepted; {fix}"
