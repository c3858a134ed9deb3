"""Copy, reverse and recall: the answer is right, stands where it is said to stand, and nothing else gives it away."""

from collections import Counter
from math import log

import pytest

from harken.data.recall import DISTANCES, KEYS, copy, mixed, recall, reverse
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
def test_the_answer_stands_with_its_key_that_many_steps_before_the_end(distance: int) -> None:
    for source, target in recall(distance, 40):
        words = source.split()
        assert words[-2] == "?"
        assert words[-1 - distance] == words[-1] + target


def test_every_key_is_told_once_and_the_rest_says_nothing() -> None:
    for source, _ in recall(30, 200):
        *words, _, _ = source.split()
        assert sorted(word[0] for word in words if word[0].isupper()) == [*KEYS]
        assert all(len(word) == 1 for word in words if word[0].islower())


def test_keys_values_and_starts_are_all_drawn() -> None:
    pairs = list(recall(5, 2000))
    assert {source[-1] for source, _ in pairs} == {*KEYS}
    assert min(Counter(target for _, target in pairs).values()) > 2000 / 10 * 0.7
    assert {len(source.split()) for source, _ in pairs} == set(range(6, 10))


def test_nothing_but_the_key_tells_which_fact_is_asked() -> None:
    """Each of the facts, counted from the start or from the end, is asked for about as often as any other."""
    asked, before, behind = Counter[int](), Counter[str](), Counter[str]()
    for source, target, _ in mixed(8000):
        *words, _, key = source.split()
        facts = [word for word in words if word[0].isupper()]
        if len(facts) < len(KEYS):
            continue
        asked[facts.index(key + target)] += 1
        place = words.index(key + target)
        before[words[place - 1] if place else "nothing"] += 1
        behind[words[place + 1] if place + 1 < len(words) else "nothing"] += 1
    assert max(asked.values()) < 0.4 * asked.total()
    for found in (before, behind):
        assert max(n for word, n in found.items() if word != "nothing") < 0.06 * found.total()


def away(source: str) -> int:
    """How many steps back the answer stands."""
    *words, _, key = source.split()
    return len(words) + 1 - next(n for n, word in enumerate(words) if word.startswith(key))


def test_all_distances_come_near_ones_as_often_as_far_ones_and_the_nearest_round_one_is_told() -> None:
    found = [(away(source), about) for source, _, about in mixed(8000)]
    assert {about for _, about in found} == set(DISTANCES)
    assert all(abs(log(about / d)) == min(abs(log(near / d)) for near in DISTANCES) for d, about in found)
    assert len({d for d, _ in found}) > 350  # not some few, by which an answer would be found without its key
    assert 0.22 < sum(d <= 8 for d, _ in found) / len(found) < 0.28  # ln 4 / ln 250 = 0.25
    assert max(d for d, _ in found) == 500


def test_the_answer_of_a_mixed_sequence_stands_with_its_key() -> None:
    assert all(source.split()[-1 - away(source)] == source[-1] + target for source, target, _ in mixed(500))


def test_as_much_may_stand_before_the_answer_as_behind_it_and_there_are_short_sequences() -> None:
    before = {distance: list[int]() for distance in DISTANCES}
    for source, _, about in mixed(4000):
        before[about].append(len(source.split()) - away(source) - 1)
    for found in before.values():
        assert min(found) == 0
        assert max(found) > 400
        assert 0.3 < sum(n < 9 for n in found) / len(found) < 0.45  # ln 10 / ln 500 = 0.37


def test_a_distance_shorter_than_the_question_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^recall: a distance of 1; .* give 2 or more$"):
        next(recall(1, 1))
