"""Warnings about labels that are probably the same, about rare ones, and about several in one cell."""

import pytest

from harken.data.label_warnings import label_warnings, separator_notice, suggest_separator


def test_labels_that_differ_in_case_or_blanks_are_named_with_their_counts():
    labels = ["Lieferung"] * 9 + ["lieferung"] * 6 + ["Zahlung"] * 8 + ["zahl ung"] * 5
    (warning,) = label_warnings(labels)
    assert "'Lieferung' (9) and 'lieferung' (6); 'Zahlung' (8) and 'zahl ung' (5)" in warning


def test_numbers_of_one_value_are_named():
    (warning,) = label_warnings(["1"] * 5 + ["1.0"] * 5 + ["2"] * 5)
    assert "'1' (5) and '1.0' (5)" in warning


def test_rare_labels_are_named_rarest_first():
    (warning,) = label_warnings(["a"] * 20 + ["b"] * 4 + ["c"] * 1 + ["d"] * 5, "rows")
    assert warning.startswith("labels with fewer than 5 rows: 'c' (1); 'b' (4); add")


def test_clean_labels_have_no_warning():
    assert list(label_warnings(["+", "-", "C", "C++", "1", "-1", "", "naïve", "naive"] * 5)) == []


@pytest.mark.parametrize("separator", [";", "|", ", ", " / "])
def test_cells_with_several_labels_suggest_their_separator(separator):
    cells = [separator.join(names) for names in ("a", "b", "ab", "bc", "abc", "c")] * 5
    suggestion = suggest_separator(cells)
    assert suggestion is not None
    assert suggestion[0] == separator.strip()
    assert f"data.separator='{separator.strip()}'" in separator_notice(cells)


@pytest.mark.parametrize(
    "cells",
    [
        ["Berlin, Germany", "Paris, France", "Munich, Germany"],
        ["a", "b"],
        ["n/a", "yes", "no"],
        ["1;2", "3;4"],
        ["1,75", "1,5", "5,75", "5"],
        [],
    ],
)
def test_other_cells_suggest_no_separator(cells):
    assert suggest_separator(cells * 5) is None
    assert separator_notice(cells * 5) == ""
