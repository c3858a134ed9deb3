"""Groups of a held-out split: by a column, or by the length of the sources."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harken.tasks.translate import MAX_BINS, group_by_column, group_by_length


def test_groups_of_a_numeric_column_are_in_ascending_order():
    groups = group_by_column("distance", ["50", "5", "", "500", "5", "0"])
    assert [(group.name, group.rows, group.position) for group in groups] == [
        ("distance 0", [5], 0.0),
        ("distance 5", [1, 4], 5.0),
        ("distance 50", [0], 50.0),
        ("distance 500", [3], 500.0),
    ]


def test_a_value_that_is_not_a_number_has_no_position():
    assert [(group.name, group.position) for group in group_by_column("genre", ["news", "chat", "nan"])] == [
        ("genre chat", None),
        ("genre nan", None),
        ("genre news", None),
    ]


def test_few_lengths_have_a_bin_each():
    groups = group_by_length(["a", "a b c", "b", "a b c d e f"])
    assert [(group.name, group.rows, group.position) for group in groups] == [
        ("1 word", [0, 2], 1.0),
        ("3 words", [1], 3.0),
        ("6 words", [3], 6.0),
    ]


def test_many_lengths_share_bins_of_equal_size():
    groups = group_by_length(["a " * n for n in range(1, 81)])
    assert [len(group.rows) for group in groups] == [10] * MAX_BINS
    assert (groups[0].name, groups[0].position) == ("1-10 words", 5.5)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80))
def test_every_source_is_in_one_bin_and_bins_are_in_ascending_order(lengths):
    groups = group_by_length(["a " * n for n in lengths])
    assert sorted(n for group in groups for n in group.rows) == list(range(len(lengths)))
    assert len(groups) <= MAX_BINS
    ranges = [(min(lengths[n] for n in group.rows), max(lengths[n] for n in group.rows)) for group in groups]
    assert all(a[1] < b[0] for a, b in pairwise(ranges))
