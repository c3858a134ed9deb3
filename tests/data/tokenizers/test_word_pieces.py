from itertools import pairwise

import numpy as np
import pytest

from harken.data.tokenizers.tokenizer import WordPieces, train_tokenizer, word_windows

TEXT = "John lives in New York . Johnson lived on an island .\n" * 20


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe", "wordpiece"])
def test_the_representing_piece_of_a_word_is_not_a_space(kind):
    tokenizer = train_tokenizer(kind, lambda: [TEXT], 300)
    words = ["Johnson", "lives", "in", "New", "York"]
    ids, lengths, first = WordPieces(tokenizer)((word, n > 0) for n, word in enumerate(words))
    starts = np.cumsum(lengths) - lengths
    for word, start, length, first_piece in zip(words, starts, lengths, first, strict=True):
        pieces = tokenizer.decode(ids[start : start + length]).replace("##", "").strip()
        assert pieces.replace(" ", "").lower() == word.lower()
        assert tokenizer.decode(ids[start + first_piece : start + first_piece + 1]).strip()


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_pieces_of_words_with_spaces_equal_those_of_the_text(kind):
    tokenizer = train_tokenizer(kind, lambda: [TEXT], 300)
    ids, *_ = WordPieces(tokenizer)([("John", False), ("lives", True), (".", False)])
    assert ids.tolist() == tokenizer.encode("John lives.").tolist()


def test_a_word_that_the_normalizer_removes_becomes_unknown():
    tokenizer = train_tokenizer("wordpiece", lambda: [TEXT], 300)
    ids, lengths, _ = WordPieces(tokenizer)([("\u200b\u0007", True), ("John", True)])
    assert ids[0] == tokenizer.unk_id
    assert lengths.tolist() == [1, len(ids) - 1]


@pytest.mark.parametrize("overlap", [0, 3, 100])
def test_windows_cover_every_word_and_fit(overlap):
    lengths = np.random.default_rng(0).integers(1, 5, 200)
    windows = list(word_windows(lengths, 20, overlap))
    assert {n for i, j in windows for n in range(i, j)} == set(range(200))
    assert all(lengths[i:j].sum() <= 20 for i, j in windows)
    shared = [lengths[b:j].sum() for (_, j), (b, _) in pairwise(windows)]
    assert all(b[0] > a[0] for a, b in pairwise(windows))
    assert max(shared) <= min(overlap, 20)
    assert (max(shared) > 0) == (overlap > 0)


def test_a_word_longer_than_the_window_has_its_own_window():
    assert list(word_windows(np.array([1, 50, 1, 1]), 10)) == [(0, 1), (1, 2), (2, 4)]


def test_no_words_give_no_window():
    assert list(word_windows(np.array([], np.int64), 10)) == []
