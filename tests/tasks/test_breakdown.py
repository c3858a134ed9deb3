"""A held-out split judged apart: by a column, or by the length of its sources."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harken.tasks.breakdown import MAX_BINS, group_by_column, group_by_length


def test_the_values_of_a_column_that_are_numbers_stand_in_their_order():
    found = group_by_column("distance", ["50", "5", "", "500", "5", "0"])
    assert [(group.name, group.rows, group.position) for group in found] == [
        ("distance 0", [5], 0.0),
        ("distance 5", [1, 4], 5.0),
        ("distance 50", [0], 50.0),
        ("distance 500", [3], 500.0),
    ]


def test_a_value_that_is_no_number_has_no_place():
    assert [(group.name, group.position) for group in group_by_column("genre", ["news", "chat", "nan"])] == [
        ("genre chat", None),
        ("genre nan", None),
        ("genre news", None),
    ]


def test_few_lengths_have_a_stretch_each():
    found = group_by_length(["a", "a b c", "b", "a b c d e f"])
    assert [(group.name, group.rows, group.position) for group in found] == [
        ("1 word", [0, 2], 1.0),
        ("3 words", [1], 3.0),
        ("6 words", [3], 6.0),
    ]


def test_many_lengths_share_stretches_of_about_as_many_rows():
    found = group_by_length(["a " * n for n in range(1, 81)])
    assert [len(group.rows) for group in found] == [10] * MAX_BINS
    assert (found[0].name, found[0].position) == ("1-10 words", 5.5)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80))
def test_every_source_is_in_one_stretch_and_longer_ones_in_later_stretches(words):
    found = group_by_length(["a " * n for n in words])
    assert sorted(n for group in found for n in group.rows) == list(range(len(words)))
    assert len(found) <= MAX_BINS
    ends = [(min(words[n] for n in group.rows), max(words[n] for n in group.rows)) for group in found]
    assert all(a[1] < b[0] for a, b in pairwise(ends))
