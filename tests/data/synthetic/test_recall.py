"""Copy, reverse and recall: the answer is right, stands where it is said to stand, and nothing else gives it away."""

from collections import Counter, defaultdict

import pytest

from harken.data.synthetic.recall import DISTANCES, MAX_DISTANCE, KEYS, copy, recall, reverse
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
def test_the_same_seed_makes_the_same_sequences_and_another_seed_others(generator) -> None:
    assert list(generator(20, 3)) == list(generator(20, 3))
    assert not set(generator(20, 3)) & set(generator(20, 4))
    assert list(generator(30))[:10] == list(generator(10))


def facts_of(source: str) -> list[str]:
    """The facts of a sequence, in their order."""
    return [word for word in source.split() if len(word) == 2]


def test_no_key_is_told_twice_one_is_asked_and_the_rest_says_nothing() -> None:
    for source, target, _ in recall("test", 300):
        *tokens, question_mark, key = source.split()
        assert question_mark == "?"
        keys = [fact[0] for fact in facts_of(source)]
        assert len(keys) == len({*keys}) <= len(KEYS)
        assert key + target in tokens
        assert all(word.islower() for word in tokens if word not in facts_of(source))


def test_keys_and_values_are_all_drawn() -> None:
    rows = list(recall("test", 2000))
    for n, counts in enumerate((Counter(source[-1] for source, *_ in rows), Counter(target for _, target, _ in rows))):
        assert len(counts) == (len(KEYS), 10)[n]
        assert min(counts.values()) > 2000 / len(counts) * 0.7


def test_the_facts_stand_in_the_farther_half_of_the_stretch_that_is_told() -> None:
    for source, _, distance in recall("test", 4000):
        tokens = source.split()
        offsets = [len(tokens) - 1 - tokens.index(fact) for fact in facts_of(source)]
        assert 2 <= min(offsets) <= max(offsets) <= MAX_DISTANCE
        if distance >= 20:
            assert distance / 4 < min(offsets)
            assert max(offsets) < distance * 1.6


def test_all_distances_are_judged_and_none_has_most_of_the_tokens_to_learn_from() -> None:
    n_examples = Counter(distance for *_, distance in recall("test", 7000))
    assert set(n_examples) == set(DISTANCES)
    assert min(n_examples.values()) > 500
    tokens = Counter[int | str]()
    for source, _, distance in recall("train", 20_000):
        tokens[distance] += len(source.split())
    assert all(0.03 < tokens[distance] / tokens.total() < 0.15 for distance in DISTANCES)


def test_a_judged_sequence_has_as_many_facts_as_find_room() -> None:
    for source, _, distance in recall("test", 2000):
        assert len(KEYS) >= len(facts_of(source)) >= {5: 4, 10: 7}.get(distance, len(KEYS))
    assert {len(facts_of(source)) for source, _, distance in recall("test", 2000) if distance == 5} == {4, 5, 6}


def test_of_the_sequences_to_learn_from_every_other_has_fewer_facts_and_no_distance() -> None:
    full, fewer = ([*recall("train", 4000)][n::2] for n in (0, 1))
    assert all(distance in DISTANCES for *_, distance in full)
    assert all(distance == "" for *_, distance in fewer)
    assert {len(facts_of(source)) for source, *_ in fewer} == {*range(1, len(KEYS))}
    assert Counter(len(facts_of(source)) for source, *_ in full).most_common(1)[0][0] == len(KEYS)


def test_the_splits_are_others_and_the_same_each_time() -> None:
    splits = {split: [*recall(split, 50)] for split in ("train", "valid", "test")}
    assert splits == {split: [*recall(split, 50)] for split in splits}
    assert not {*splits["train"]} & {*splits["test"]}
    assert not {*splits["valid"]} & {*splits["test"]}


def test_no_place_among_the_facts_tells_which_is_asked() -> None:
    """Any of them is asked for, and another has the same digit in one of ten: so much a guess is worth anywhere."""
    n_correct, n_seen = Counter[tuple[int | str, str]](), Counter[int | str]()
    expected = defaultdict[int | str, float](float)
    for source, target, distance in recall("valid", 30_000):
        tokens, facts = source.split(), facts_of(source)
        edge = min(facts, key=lambda fact: min(tokens.index(fact), len(tokens) - 3 - tokens.index(fact)))
        n_seen[distance] += 1
        expected[distance] += 0.1 + 0.9 / len(facts)
        guesses = {"first": facts[0], "second": facts[1], "last": facts[-1], "middle": facts[len(facts) // 2], "edge": edge}
        for name, fact in guesses.items():
            n_correct[distance, name] += fact[1] == target
    for (distance, name), n in n_correct.items():
        assert n / n_seen[distance] == pytest.approx(expected[distance] / n_seen[distance], abs=0.035), (distance, name)


def test_sequences_that_could_not_hold_the_facts_are_refused() -> None:
    with pytest.raises(BadInput, match=r"^recall: farthest = 4; four facts .* take 5, give no fewer$"):
        next(recall("test", 1, max_distance=4))
    assert {len(source.split()) for source, *_ in recall("test", 50, max_distance=5)} <= set(range(6, 12))
