"""Statistics of the columns of a table."""

from harken.data.detect.preview import TablePreview, column_stats


def test_the_values_of_a_column_do_not_include_the_empty_one_or_blanks_around_a_value():
    rows = [["a text", label] for label in ("good", "bad", "", "good ", " bad", "  ")]
    stats = column_stats(TablePreview(["text", "label"], rows))[1]
    assert (stats.n_values, stats.n_filled) == (2, 4)
