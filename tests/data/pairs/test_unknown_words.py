"""Words outside the vocabulary: temporary ids of a pair, and their draws in training."""

from itertools import permutations

import numpy as np
import pytest

from harken.data.pairs.unknown_words import UnknownWordDraws
from harken.data.tokenizers.pairs import PairTokenizers, RaggedTokens
from harken.errors import BadSetting
from harken.events import silent
from harken.recipe import resolve

PAIRS = [
    ("the hat of tom is red", "tom red"),
    ("the hat of ann is red", "ann red"),
    ("the dog of joe is old", "joe old"),
]
N_TEMPORARY = 6
TEXTS = [("the hat of zoe is red", "zoe red"), ("bix (zoe, bix) is old", "bix zoe zoe"), ("the dog", "a zoe")]


@pytest.fixture
def tokenizers() -> PairTokenizers:
    options = {"shared_vocab": True, "listen": silent, "n_temporary": N_TEMPORARY}
    return PairTokenizers.train(lambda: [PAIRS], ("word", "word"), 50, **options)


def encoded(
    tokenizers: PairTokenizers, pairs: list[tuple[str, str]]
) -> tuple[list[RaggedTokens], list[tuple[str, ...]]]:
    source, target, words = tokenizers.encode_pairs(*zip(*pairs, strict=True))
    return tokenizers.ragged([source], [target]), words


def test_unknown_words_of_both_sides_survive_encoding_and_decoding(tokenizers):
    (source, target), words = encoded(tokenizers, TEXTS)
    for n, (text, answer) in enumerate(TEXTS[:2]):
        assert tokenizers.decode_source(source[n], words[n]) == text
        assert tokenizers.decode_target([*target[n], tokenizers.vocab[1] - 1, 0], words[n]) == answer
        assert np.array_equal(tokenizers.encode_source(text), [*source[n], source.edge])
        assert np.array_equal(tokenizers.encode_target(answer, words[n]), target[n])
    assert tokenizers.decode_target(target[2], words[2]) == "<unk> <unk>"  # not in the source


def test_words_beyond_the_number_of_temporary_ids_stay_unknown(tokenizers):
    (source, _), words = encoded(tokenizers, [("qa qb qa qc qd qe qf qg", "red")])
    assert words == [("qa", "qb", "qc", "qd", "qe", "qf")]
    assert tokenizers.decode_source(source[0], words[0]) == "qa qb qa qc qd qe qf <unk>"


def test_a_word_that_truncation_removes_from_the_source_is_unknown_in_the_target(tokenizers):
    sides, words = encoded(tokenizers, [("zoe is red bix", "bix zoe"), ("bix is red", "bix")])
    source, target = tokenizers.truncate(*sides, 3)
    assert [tokenizers.decode_source(source[n], words[n]) for n in range(2)] == ["zoe is red", "bix is red"]
    assert [tokenizers.decode_target(target[n], words[n]) for n in range(2)] == ["<unk> zoe", "bix"]


def test_tokenizers_without_temporary_ids_have_one_id_more_than_their_vocabulary(tokenizers):
    plain = PairTokenizers(tokenizers.source, tokenizers.target)
    assert plain.vocab == (plain.source.vocab + 1,) * 2
    assert plain.encode_pairs(["zoe"], ["zoe"]).words == []
    assert list(plain.encode_source("zoe")) == [plain.source.unk_id, plain.source.vocab]


def test_draws_replace_copied_words_alike_on_both_sides_and_nothing_else(tokenizers):
    rows = [pair for n in range(30) for pair in (*PAIRS, (f"the hat of name{n} is red", f"name{n} red"))]
    (source, target), _ = encoded(tokenizers, rows)
    draws = UnknownWordDraws(source, target, N_TEMPORARY, 1.0, seed=0)
    draws.copied[:] = False
    names = [int(tokenizers.source.encode(name)[0]) for name in ("tom", "ann", "joe")]
    draws.copied[names] = True
    picks = np.arange(len(rows))
    sides = draws.replace(source.gather(picks), target.gather(picks), 0, 0)
    first = tokenizers.source.vocab
    for old, (new, lengths), side in zip((source, target), sides, (0, 1), strict=True):
        assert np.array_equal(lengths, old.lengths)
        changed = new != old.ids
        assert np.isin(old.ids[changed], names).sum() + (old.ids[changed] >= first).sum() == changed.sum()
        assert not np.isin(new, names).any(), f"side {side}"
    for n in picks:  # the copied word of a pair has one temporary id
        ids = [set(part[part >= first].tolist()) for part in (_row(sides[0], n), _row(sides[1], n))]
        assert ids[0] == ids[1]
        assert len(ids[0]) == 1
    assert {int(_row(sides[1], n)[0]) for n in picks} == {first}  # a pair with one such word has the first id


def test_the_temporary_ids_of_a_pair_are_its_first_ones_in_random_order(tokenizers):
    (source, target), _ = encoded(tokenizers, [(f"a{n} b{n} of c{n} is", f"c{n} a{n}") for n in range(50)])
    draws, picks = UnknownWordDraws(source, target, N_TEMPORARY, 1.0, seed=0), np.arange(50)
    sides = draws.replace(source.gather(picks), target.gather(picks), 0, 0)
    orders = {tuple((_row(sides[0], n)[[0, 1, 3]] - tokenizers.source.vocab).tolist()) for n in picks}
    assert orders == {*permutations(range(3))}
    assert all(_row(sides[1], n).tolist() == _row(sides[0], n)[[3, 0]].tolist() for n in picks)


def _row(side: tuple[np.ndarray, np.ndarray], n: int) -> np.ndarray:
    end = int(np.cumsum(side[1])[n])
    return side[0][end - int(side[1][n]) : end]


def test_draws_are_a_pure_function_of_seed_epoch_and_step(tokenizers):
    (source, target), _ = encoded(tokenizers, [*PAIRS * 20, *TEXTS * 20])
    picks, results = np.arange(40), []
    for seed, epoch, step in ((0, 1, 2), (0, 1, 2), (0, 2, 2), (1, 1, 2)):
        draws = UnknownWordDraws(source, target, N_TEMPORARY, 0.5, seed)
        draws.copied[tokenizers.source.encode("tom ann joe")] = True
        results.append(draws.replace(source.gather(picks), target.gather(picks), epoch, step)[0][0])
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[3])


def test_only_words_that_every_target_copies_are_drawn(tokenizers):
    pairs = [("the tom", "tom"), ("the hat", "hat"), ("the dog", "hat"), *[("of is", "red")] * 60]
    (source, target), _ = encoded(tokenizers, pairs)
    copied = UnknownWordDraws(source, target, N_TEMPORARY, 0.5, 0).copied
    words = {word: bool(copied[int(tokenizers.source.encode(word)[0])]) for word in ("tom", "hat", "red", "the")}
    assert words == {"tom": True, "hat": False, "red": False, "the": False}


@pytest.mark.parametrize(
    "settings", [{"data.tokenizer": "bpe"}, {"data.target_tokenizer": "char"}, {"data.shared_vocab": False}]
)
def test_unknown_words_need_one_tokenizer_of_words(settings):
    base = {"data.kind": "pairs", "data.tokenizer": "word", "data.unknown_words": 4}
    with pytest.raises(BadSetting, match=r"data.unknown_words = 4: only one tokenizer of words"):
        resolve(("test", base | settings))
