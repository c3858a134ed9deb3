"""Masking: number, replacement and shape of the targets."""

import numpy as np
import pytest

from harken.data.batch import IGNORE
from harken.data.rng import rng_for
from harken.data.text.documents import Masking, SpecialTokens
from harken.data.tokenizers.tokenizer import train_tokenizer

STORY = "The players played. He plays, she played; they were playing and replaying in Rio.\n" * 3
TOKENIZER = train_tokenizer("wordpiece", lambda: [STORY], 60)
SPECIAL = SpecialTokens(TOKENIZER)
IDS = TOKENIZER.encode(STORY * 40).astype(np.int64)
BERT = Masking(0.15, 0.8, 0.1, whole_words=False)


def rows(B: int = 64, L: int = 40) -> np.ndarray:
    starts = rng_for(0, 9).integers(len(IDS) - L, size=B)
    return SPECIAL.frame(IDS[starts[:, None] + np.arange(L - 2)])


def mask(tokens: np.ndarray, masking: Masking = BERT, max_targets: int = 6, step: int = 0) -> tuple[np.ndarray, ...]:
    return SPECIAL.mask_tokens(tokens, masking, max_targets, rng_for(3, step))


def test_a_fraction_of_the_tokens_are_targets_and_the_rest_is_unchanged():
    tokens = rows()
    masked, positions, targets = mask(tokens)
    is_target = targets != IGNORE
    assert is_target.sum(1).tolist() == [round(0.15 * 38)] * 64
    assert (np.take_along_axis(tokens, positions, 1)[is_target] == targets[is_target]).all()
    untouched = np.ones_like(tokens, bool)
    np.put_along_axis(untouched, np.where(is_target, positions, positions[:, :1]), False, 1)
    assert (masked[untouched] == tokens[untouched]).all()


def test_special_tokens_are_no_targets_and_positions_are_unique():
    tokens = rows()
    tokens[:, 5:9] = [SPECIAL.sep, TOKENIZER.unk_id, SPECIAL.mask, SPECIAL.pad]
    _, positions, targets = mask(tokens)
    assert not np.isin(targets, TOKENIZER.special_ids).any()
    assert all(len(set(row[a != IGNORE])) == (a != IGNORE).sum() for row, a in zip(positions, targets, strict=True))


@pytest.mark.parametrize(("p_mask", "p_random"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.3, 0.5)])
def test_targets_are_replaced_by_masks_or_random_tokens_with_their_probabilities(p_mask, p_random):
    tokens = rows(2000)
    masked, positions, targets = mask(tokens, Masking(0.15, p_mask, p_random, whole_words=False))
    shown = np.take_along_axis(masked, positions, 1)[targets != IGNORE]
    expected = targets[targets != IGNORE]
    replaced = (shown != SPECIAL.mask) & (shown != expected)
    p_same = p_random * np.mean(
        [np.mean(SPECIAL.text_ids == word) for word in expected[:500]]
    )  # a random token may equal the target
    assert abs((shown == SPECIAL.mask).mean() - p_mask) < 0.02
    assert abs(replaced.mean() - (p_random - p_same)) < 0.02
    assert not np.isin(shown[replaced], TOKENIZER.special_ids).any()


def test_whole_words_are_masked_with_all_their_pieces():
    tokens, masking = rows(300), Masking(0.3, 1.0, 0.0, whole_words=True)
    masked, _, targets = mask(tokens, masking, max_targets=12)
    is_masked = masked == SPECIAL.mask
    continues = SPECIAL.is_continuation[tokens[:, 1:]]
    together = is_masked[:, 1:][continues] == is_masked[:, :-1][continues]
    at_limit = (targets != IGNORE).sum(1) == 11  # a row at the limit may have a split word
    assert together.mean() > 0.99
    assert (is_masked.sum(1) <= 11).all()
    assert not at_limit.all()
    by_token = mask(tokens, masking._replace(whole_words=False), max_targets=12)[0] == SPECIAL.mask
    assert (by_token[:, 1:][continues] == by_token[:, :-1][continues]).mean() < 0.8


def test_masking_is_a_pure_function_of_the_rng():
    tokens = rows()
    for a, b in zip(mask(tokens, step=4), mask(tokens, step=4), strict=True):
        assert (a == b).all()
    assert (mask(tokens, step=4)[1] != mask(tokens, step=5)[1]).any()


def test_a_row_without_text_has_no_targets():
    _, _, targets = mask(np.full((2, 10), SPECIAL.pad))
    assert (targets == IGNORE).all()


def test_pairs_of_passages_are_framed_by_special_tokens():
    first, second = np.array([[0, 3], [4, 5]]), np.array([[3, 5], [9, 13]])
    framed, segments, lengths = SPECIAL.frame_pairs(np.arange(20, 40), first, second, 12)
    cls, sep, pad = SPECIAL.cls, SPECIAL.sep, SPECIAL.pad
    assert framed.tolist() == [
        [cls, 20, 21, 22, sep, 23, 24, sep, *[pad] * 4],
        [cls, 24, sep, 29, 30, 31, 32, sep, *[pad] * 4],
    ]
    assert segments.tolist() == [[0] * 5 + [1] * 3 + [0] * 4, [0] * 3 + [1] * 5 + [0] * 4]
    assert lengths.tolist() == [8, 8]
