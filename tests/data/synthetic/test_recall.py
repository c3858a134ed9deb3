"""Copy, reverse and recall: the answer is right, stands where it is said to stand, and nothing else gives it away."""

from collections import Counter, defaultdict

import pytest

from harken.data.synthetic.recall import DISTANCES, FARTHEST, KEYS, copy, recall, reverse
from harken.errors import BadInput


def test_a_copy_is_its_source_and_no_source_comes_twice() -> None:
    pairs = list(copy(500, lengths=(1, 4)))
    assert all(source == target for source, target in pairs)
    assert len(set(pairs)) == len(pairs) == 500
    assert {len(source.split()) for source, _ in pairs} == {1, 2, 3, 4}


def test_a_reverse_is_its_source_from_the_end() -> None:
    assert all(target.split() == source.split()[::-1] for source, target in reverse(100))
    assert any(target != source for source, target in reverse(100))


@pytest.mark.parametrize("make", [copy, reverse])
def test_the_same_seed_makes_the_same_sequences_and_another_seed_others(make) -> None:
    assert list(make(20, 3)) == list(make(20, 3))
    assert not set(make(20, 3)) & set(make(20, 4))
    assert list(make(30))[:10] == list(make(10))


def told(source: str) -> list[str]:
    """The facts of a sequence, in their order."""
    return [word for word in source.split() if len(word) == 2]


def test_no_key_is_told_twice_one_is_asked_and_the_rest_says_nothing() -> None:
    for source, target, _ in recall("test", 300):
        *words, mark, key = source.split()
        assert mark == "?"
        keys = [fact[0] for fact in told(source)]
        assert len(keys) == len({*keys}) <= len(KEYS)
        assert key + target in words
        assert all(word.islower() for word in words if word not in told(source))


def test_keys_and_values_are_all_drawn() -> None:
    rows = list(recall("test", 2000))
    for n, found in enumerate((Counter(source[-1] for source, *_ in rows), Counter(target for _, target, _ in rows))):
        assert len(found) == (len(KEYS), 10)[n]
        assert min(found.values()) > 2000 / len(found) * 0.7


def test_the_facts_stand_in_the_farther_half_of_the_stretch_that_is_told() -> None:
    for source, _, about in recall("test", 4000):
        words = source.split()
        back = [len(words) - 1 - words.index(fact) for fact in told(source)]
        assert 2 <= min(back) <= max(back) <= FARTHEST
        if about >= 20:
            assert about / 4 < min(back)
            assert max(back) < about * 1.6


def test_all_distances_are_judged_and_none_has_most_of_the_tokens_to_learn_from() -> None:
    judged = Counter(about for *_, about in recall("test", 7000))
    assert set(judged) == set(DISTANCES)
    assert min(judged.values()) > 500
    tokens = Counter[int | str]()
    for source, _, about in recall("train", 20_000):
        tokens[about] += len(source.split())
    assert all(0.03 < tokens[about] / tokens.total() < 0.15 for about in DISTANCES)


def test_a_judged_sequence_has_as_many_facts_as_find_room() -> None:
    for source, _, about in recall("test", 2000):
        assert len(KEYS) >= len(told(source)) >= {5: 4, 10: 7}.get(about, len(KEYS))
    assert {len(told(source)) for source, _, about in recall("test", 2000) if about == 5} == {4, 5, 6}


def test_of_the_sequences_to_learn_from_every_other_has_fewer_facts_and_no_distance() -> None:
    full, fewer = ([*recall("train", 4000)][n::2] for n in (0, 1))
    assert all(about in DISTANCES for *_, about in full)
    assert all(about == "" for *_, about in fewer)
    assert {len(told(source)) for source, *_ in fewer} == {*range(1, len(KEYS))}
    assert Counter(len(told(source)) for source, *_ in full).most_common(1)[0][0] == len(KEYS)


def test_the_splits_are_others_and_the_same_each_time() -> None:
    made = {split: [*recall(split, 50)] for split in ("train", "valid", "test")}
    assert made == {split: [*recall(split, 50)] for split in made}
    assert not {*made["train"]} & {*made["test"]}
    assert not {*made["valid"]} & {*made["test"]}


def test_no_place_among_the_facts_tells_which_is_asked() -> None:
    """Any of them is asked for, and another has the same digit in one of ten: so much a guess is worth anywhere."""
    right, seen = Counter[tuple[int | str, str]](), Counter[int | str]()
    guessed = defaultdict[int | str, float](float)
    for source, target, about in recall("valid", 30_000):
        words, facts = source.split(), told(source)
        edge = min(facts, key=lambda fact: min(words.index(fact), len(words) - 3 - words.index(fact)))
        seen[about] += 1
        guessed[about] += 0.1 + 0.9 / len(facts)
        by = {"first": facts[0], "second": facts[1], "last": facts[-1], "middle": facts[len(facts) // 2], "edge": edge}
        for rule, fact in by.items():
            right[about, rule] += fact[1] == target
    for (about, rule), n in right.items():
        assert n / seen[about] == pytest.approx(guessed[about] / seen[about], abs=0.035), (about, rule)


def test_sequences_that_could_not_hold_the_facts_are_refused() -> None:
    with pytest.raises(BadInput, match=r"^recall: farthest = 4; four facts .* take 5, give no fewer$"):
        next(recall("test", 1, farthest=4))
    assert {len(source.split()) for source, *_ in recall("test", 50, farthest=5)} <= set(range(6, 12))
