"""Copy, reverse and recall: the answer is right, stands where it is said to stand, and nothing else gives it away."""

from collections import Counter
from itertools import pairwise
from math import log

import pytest

from harken.data.recall import DISTANCES, copy, mixed, recall, reverse
from harken.errors import BadInput


def test_a_copy_is_its_source_and_no_source_comes_twice() -> None:
    pairs = list(copy(500, lengths=(1, 4)))
    assert all(source == target for source, target in pairs)
    assert len(set(pairs)) == len(pairs) == 500
    assert {len(source.split()) for source, _ in pairs} == {1, 2, 3, 4}


def test_a_reverse_is_its_source_from_the_end() -> None:
    assert all(target.split() == source.split()[::-1] for source, target in reverse(100))
    assert any(target != source for source, target in reverse(100))


@pytest.mark.parametrize("make", [copy, reverse, mixed])
def test_the_same_seed_makes_the_same_sequences_and_another_seed_others(make) -> None:
    assert list(make(20, 3)) == list(make(20, 3))
    assert not set(make(20, 3)) & set(make(20, 4))
    assert list(make(30))[:10] == list(make(10))


@pytest.mark.parametrize("distance", [2, 5, 50, 500])
def test_the_answer_stands_that_many_steps_before_the_end_and_behind_its_key(distance: int) -> None:
    for source, target in recall(distance, 40):
        words = source.split()
        assert words[-2] == "?"
        assert words[-1 - distance] == target
        assert words[-2 - distance] == words[-1]


def test_a_sequence_is_full_of_facts_and_one_alone_has_the_key_that_is_asked() -> None:
    for source, target in recall(30, 200):
        words = source.split()
        facts = {(a, b) for a, b in pairwise(words) if a.isupper() and b.isdigit()}
        assert [b for a, b in facts if a == words[-1]] == [target]
        assert sum(word.isdigit() for word in words) >= 14


def test_keys_values_and_starts_are_all_drawn() -> None:
    pairs = list(recall(5, 2000))
    assert len({source[-1] for source, _ in pairs}) == 26
    assert min(Counter(target for _, target in pairs).values()) > 2000 / 10 * 0.7
    assert {len(source.split()) for source, _ in pairs} == set(range(7, 11))


def away(source: str) -> int:
    """How many steps back the answer stands."""
    words = source.split()
    return len(words) - 2 - words.index(words[-1])


def test_all_distances_come_near_ones_as_often_as_far_ones_and_the_nearest_round_one_is_told() -> None:
    found = [(away(source), about) for source, _, about in mixed(8000)]
    assert {about for _, about in found} == set(DISTANCES)
    assert all(abs(log(about / d)) == min(abs(log(near / d)) for near in DISTANCES) for d, about in found)
    assert len({d for d, _ in found}) > 350  # not some few, by which an answer would be found without its key
    assert 0.25 < sum(d <= 8 for d, _ in found) / len(found) < 0.35  # ln 4 / ln 250 = 0.25, and what is rounded down
    assert max(d for d, _ in found) == 500


def test_the_answer_of_a_mixed_sequence_stands_behind_its_key() -> None:
    assert all(source.split()[-1 - away(source)] == target for source, target, _ in mixed(500))


def test_as_much_may_stand_before_the_answer_as_behind_it_and_there_are_short_sequences() -> None:
    before = {distance: list[int]() for distance in DISTANCES}
    for source, _, about in mixed(4000):
        before[about].append(len(source.split()) - away(source) - 2)
    for found in before.values():
        assert min(found) == 0
        assert max(found) > 400
        assert 0.3 < sum(n < 9 for n in found) / len(found) < 0.45  # ln 10 / ln 500 = 0.37


def test_a_distance_shorter_than_the_question_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^recall: a distance of 1; .* give 2 or more$"):
        next(recall(1, 1))
