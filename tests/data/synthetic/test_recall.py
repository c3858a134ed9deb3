"""Copy, reverse and recall: correct targets, distances and splits, and no positional shortcut."""

from collections import Counter, defaultdict

import pytest

from harken.data.synthetic.recall import DISTANCES, KEYS, MAX_DISTANCE, copy, recall, reverse
from harken.errors import BadInput


def test_copies_equal_their_unique_sources() -> None:
    pairs = list(copy(500, lengths=(1, 4)))
    assert all(source == target for source, target in pairs)
    assert len(set(pairs)) == len(pairs) == 500
    assert {len(source.split()) for source, _ in pairs} == {1, 2, 3, 4}


def test_a_reversed_target_is_its_source_backwards() -> None:
    assert all(target.split() == source.split()[::-1] for source, target in reverse(100))
    assert any(target != source for source, target in reverse(100))


@pytest.mark.parametrize("generator", [copy, reverse])
def test_sequences_depend_on_the_seed_alone(generator) -> None:
    assert list(generator(20, 3)) == list(generator(20, 3))
    assert not set(generator(20, 3)) & set(generator(20, 4))
    assert list(generator(30))[:10] == list(generator(10))


def facts_of(source: str) -> list[str]:
    """The facts of a sequence in order."""
    return [word for word in source.split() if len(word) == 2]


def test_keys_are_unique_and_the_question_has_one_answer() -> None:
    for source, target, _ in recall("test", 300):
        *tokens, question_mark, key = source.split()
        assert question_mark == "?"
        keys = [fact[0] for fact in facts_of(source)]
        assert len(keys) == len({*keys}) <= len(KEYS)
        assert key + target in tokens
        assert all(word.islower() for word in tokens if word not in facts_of(source))


def test_all_keys_and_values_occur() -> None:
    rows = list(recall("test", 2000))
    for n, counts in enumerate((Counter(source[-1] for source, *_ in rows), Counter(target for _, target, _ in rows))):
        assert len(counts) == (len(KEYS), 10)[n]
        assert min(counts.values()) > 2000 / len(counts) * 0.7


def test_the_facts_are_in_the_farther_half_of_the_distance() -> None:
    for source, _, distance in recall("test", 4000):
        tokens = source.split()
        offsets = [len(tokens) - 1 - tokens.index(fact) for fact in facts_of(source)]
        assert 2 <= min(offsets) <= max(offsets) <= MAX_DISTANCE
        if distance >= 20:
            assert distance / 4 < min(offsets)
            assert max(offsets) < distance * 1.6


def test_all_distances_are_evaluated_and_none_dominates_the_training_tokens() -> None:
    n_examples = Counter(distance for *_, distance in recall("test", 7000))
    assert set(n_examples) == set(DISTANCES)
    assert min(n_examples.values()) > 500
    tokens = Counter[int | str]()
    for source, _, distance in recall("train", 20_000):
        tokens[distance] += len(source.split())
    assert all(0.03 < tokens[distance] / tokens.total() < 0.15 for distance in DISTANCES)


def test_an_evaluation_sequence_has_as_many_facts_as_possible() -> None:
    for source, _, distance in recall("test", 2000):
        assert len(KEYS) >= len(facts_of(source)) >= {5: 4, 10: 7}.get(distance, len(KEYS))
    assert {len(facts_of(source)) for source, _, distance in recall("test", 2000) if distance == 5} == {4, 5, 6}


def test_every_other_training_sequence_has_fewer_facts_and_no_distance() -> None:
    full, fewer = ([*recall("train", 4000)][n::2] for n in (0, 1))
    assert all(distance in DISTANCES for *_, distance in full)
    assert all(distance == "" for *_, distance in fewer)
    assert {len(facts_of(source)) for source, *_ in fewer} == {*range(1, len(KEYS))}
    assert Counter(len(facts_of(source)) for source, *_ in full).most_common(1)[0][0] == len(KEYS)


def test_the_splits_are_disjoint_and_reproducible() -> None:
    splits = {split: [*recall(split, 50)] for split in ("train", "valid", "test")}
    assert splits == {split: [*recall(split, 50)] for split in splits}
    assert not {*splits["train"]} & {*splits["test"]}
    assert not {*splits["valid"]} & {*splits["test"]}


def test_the_position_of_a_fact_does_not_reveal_the_answer() -> None:
    """Guessing by position is as good as a random fact: 1 / n, plus a tenth of the others by coincidence."""
    n_correct, n_seen = Counter[tuple[int | str, str]](), Counter[int | str]()
    expected = defaultdict[int | str, float](float)
    for source, target, distance in recall("valid", 30_000):
        tokens, facts = source.split(), facts_of(source)
        edge = min(facts, key=lambda fact: min(tokens.index(fact), len(tokens) - 3 - tokens.index(fact)))
        n_seen[distance] += 1
        expected[distance] += 0.1 + 0.9 / len(facts)
        guesses = {
            "first": facts[0],
            "second": facts[1],
            "last": facts[-1],
            "middle": facts[len(facts) // 2],
            "edge": edge,
        }
        for name, fact in guesses.items():
            n_correct[distance, name] += fact[1] == target
    for (distance, name), n in n_correct.items():
        assert n / n_seen[distance] == pytest.approx(expected[distance] / n_seen[distance], abs=0.035), (distance, name)


def test_distances_that_are_too_short_for_the_facts_are_refused() -> None:
    with pytest.raises(BadInput, match=r"^recall: max_distance=4; four facts .* need at least 5$"):
        next(recall("test", 1, max_distance=4))
    assert {len(source.split()) for source, *_ in recall("test", 50, max_distance=5)} <= set(range(6, 12))
