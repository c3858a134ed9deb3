from itertools import pairwise

import numpy as np
import pytest

from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.data.tokenizers.word_pieces import WordPieces, word_windows

TEXT = "John lives in New York . Johnson lived on an island .\n" * 20


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe", "wordpiece"])
def test_the_piece_that_stands_for_a_word_is_its_own_and_no_space(kind):
    tokenizer = train_tokenizer(kind, lambda: [TEXT], 300)
    words = ["Johnson", "lives", "in", "New", "York"]
    ids, lengths, first = WordPieces(tokenizer)((word, n > 0) for n, word in enumerate(words))
    starts = np.cumsum(lengths) - lengths
    for word, start, length, place in zip(words, starts, lengths, first, strict=True):
        pieces = tokenizer.decode(ids[start : start + length]).replace("##", "").strip()
        assert pieces.replace(" ", "").lower() == word.lower()
        assert tokenizer.decode(ids[start + place : start + place + 1]).strip()


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_words_and_their_spaces_are_the_text_itself(kind):
    tokenizer = train_tokenizer(kind, lambda: [TEXT], 300)
    ids, *_ = WordPieces(tokenizer)([("John", False), ("lives", True), (".", False)])
    assert ids.tolist() == tokenizer.encode("John lives.").tolist()


def test_a_word_that_is_cleaned_away_keeps_its_place_as_unknown():
    tokenizer = train_tokenizer("wordpiece", lambda: [TEXT], 300)
    ids, lengths, _ = WordPieces(tokenizer)([("\u200b\u0007", True), ("John", True)])
    assert ids[0] == tokenizer.unk_id
    assert lengths.tolist() == [1, len(ids) - 1]


@pytest.mark.parametrize("overlap", [0, 3, 100])
def test_windows_hold_every_word_fit_and_go_on(overlap):
    lengths = np.random.default_rng(0).integers(1, 5, 200)
    found = list(word_windows(lengths, 20, overlap))
    assert {n for i, j in found for n in range(i, j)} == set(range(200))
    assert all(lengths[i:j].sum() <= 20 for i, j in found)
    shared = [lengths[b:j].sum() for (_, j), (b, _) in pairwise(found)]
    assert all(b[0] > a[0] for a, b in pairwise(found))
    assert max(shared) <= min(overlap, 20)
    assert (max(shared) > 0) == (overlap > 0)


def test_a_word_longer_than_the_room_stands_alone():
    assert list(word_windows(np.array([1, 50, 1, 1]), 10)) == [(0, 1), (1, 2), (2, 4)]


def test_no_words_make_no_window():
    assert list(word_windows(np.array([], np.int64), 10)) == []
