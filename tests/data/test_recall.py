"""Copy, reverse and recall: the answer is right, stands where it is said to stand, and nothing else gives it away."""

from collections import Counter

import pytest

from harken.data.recall import DISTANCES, FARTHEST, KEYS, copy, recall, reverse
from harken.errors import BadInput


def test_a_copy_is_its_source_and_no_source_comes_twice() -> None:
    pairs = list(copy(500, lengths=(1, 4)))
    assert all(source == target for source, target in pairs)
    assert len(set(pairs)) == len(pairs) == 500
    assert {len(source.split()) for source, _ in pairs} == {1, 2, 3, 4}


def test_a_reverse_is_its_source_from_the_end() -> None:
    assert all(target.split() == source.split()[::-1] for source, target in reverse(100))
    assert any(target != source for source, target in reverse(100))


@pytest.mark.parametrize("make", [copy, reverse, recall])
def test_the_same_seed_makes_the_same_sequences_and_another_seed_others(make) -> None:
    assert list(make(20, 3)) == list(make(20, 3))
    assert not set(make(20, 3)) & set(make(20, 4))
    assert list(make(30))[:10] == list(make(10))


def told(source: str) -> list[str]:
    """The facts of a sequence, in their order."""
    return [word for word in source.split() if len(word) == 2]


def test_every_key_is_told_once_one_is_asked_and_the_rest_says_nothing() -> None:
    for source, target, _ in recall(300):
        *words, mark, key = source.split()
        assert mark == "?"
        assert sorted(fact[0] for fact in told(source)) == [*KEYS]
        assert key + target in words
        assert all(word.islower() for word in words if word not in told(source))


def test_keys_and_values_are_all_drawn() -> None:
    rows = list(recall(2000))
    for n, found in enumerate((Counter(source[-1] for source, *_ in rows), Counter(target for _, target, _ in rows))):
        assert len(found) == (len(KEYS), 10)[n]
        assert min(found.values()) > 2000 / len(found) * 0.7


def test_the_facts_stand_in_the_farther_half_of_the_stretch_that_is_told() -> None:
    for source, _, about in recall(4000):
        words = source.split()
        back = [len(words) - 1 - words.index(fact) for fact in told(source)]
        assert 2 <= min(back) <= max(back) <= FARTHEST
        if about >= 20:
            assert about / 4 < min(back)
            assert max(back) < about * 1.6


def test_all_stretches_come_the_short_ones_most_often() -> None:
    found = Counter(about for *_, about in recall(20_000))
    assert set(found) == set(DISTANCES)
    assert found[5] > found[50] > found[500] > 400


def test_no_place_among_the_facts_tells_which_is_asked() -> None:
    """Any of four is asked for, and another has the same digit in one of ten: a guess is worth 0.325 anywhere."""
    right, seen = Counter[tuple[int, str]](), Counter[int]()
    for source, target, about in recall(30_000):
        words, facts = source.split(), told(source)
        edge = min(facts, key=lambda fact: min(words.index(fact), len(words) - 3 - words.index(fact)))
        seen[about] += 1
        for rule, fact in [*zip("1234", facts, strict=True), ("the nearest to an edge", edge)]:
            right[about, rule] += fact[1] == target
    for (about, rule), n in right.items():
        assert n / seen[about] == pytest.approx(0.325, abs=0.06 if about > 50 else 0.03), (about, rule)


def test_sequences_that_could_not_hold_the_facts_are_refused() -> None:
    with pytest.raises(BadInput, match=r"^recall: farthest = 4; .* take 5 steps, give no fewer$"):
        next(recall(1, farthest=4))
    assert {len(source.split()) for source, *_ in recall(50, farthest=5)} <= set(range(6, 12))
