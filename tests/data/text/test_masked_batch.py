"""What is hidden, how often and how, in rows of one shape."""

import numpy as np
import pytest

from harken.data.batch import IGNORE
from harken.data.rng import rng_for
from harken.data.text.masked_batch import MaskingSettings, SpecialTokens, mask_tokens
from harken.data.tokenizers.tokenizer import train_tokenizer

STORY = "The players played. He plays, she played; they were playing and replaying in Rio.\n" * 3
OWN = train_tokenizer("wordpiece", lambda: [STORY], 60)
MARKS = SpecialTokens(OWN)
IDS = OWN.encode(STORY * 40).astype(np.int64)
BERT = MaskingSettings(0.15, 0.8, 0.1, whole_words=False)


def rows(B: int = 64, L: int = 40) -> np.ndarray:
    starts = rng_for(0, 9).integers(len(IDS) - L, size=B)
    return MARKS.frame(IDS[starts[:, None] + np.arange(L - 2)])


def hide(given: np.ndarray, how: MaskingSettings = BERT, most: int = 6, step: int = 0) -> tuple[np.ndarray, ...]:
    return mask_tokens(given, MARKS, how, most, rng_for(3, step))


def test_a_share_of_the_words_is_asked_and_everything_else_is_as_it_was():
    given = rows()
    seen, places, answers = hide(given)
    asked = answers != IGNORE
    assert asked.sum(1).tolist() == [round(0.15 * 38)] * 64
    assert (np.take_along_axis(given, places, 1)[asked] == answers[asked]).all()
    untouched = np.ones_like(given, bool)
    np.put_along_axis(untouched, np.where(asked, places, places[:, :1]), False, 1)
    assert (seen[untouched] == given[untouched]).all()


def test_no_mark_is_asked_and_no_place_twice():
    given = rows()
    given[:, 5:9] = [MARKS.sep, OWN.unk_id, MARKS.mask, MARKS.pad]
    _, places, answers = hide(given)
    assert not np.isin(answers, OWN.special_ids).any()
    assert all(len(set(row[a != IGNORE])) == (a != IGNORE).sum() for row, a in zip(places, answers, strict=True))


@pytest.mark.parametrize(("x", "y"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.3, 0.5)])
def test_x_are_masks_y_are_other_words_and_z_are_shown(x, y):
    given = rows(2000)
    seen, places, answers = hide(given, MaskingSettings(0.15, x, y, whole_words=False))
    shown = np.take_along_axis(seen, places, 1)[answers != IGNORE]
    right = answers[answers != IGNORE]
    other = (shown != MARKS.mask) & (shown != right)
    by_chance = y * np.mean([np.mean(MARKS.text_ids == word) for word in right[:500]])  # another word may be the same
    assert abs((shown == MARKS.mask).mean() - x) < 0.02
    assert abs(other.mean() - (y - by_chance)) < 0.02
    assert not np.isin(shown[other], OWN.special_ids).any()


def test_whole_words_are_hidden_with_all_their_pieces():
    given, how = rows(300), MaskingSettings(0.3, 1.0, 0.0, whole_words=True)
    seen, _, answers = hide(given, how, most=12)
    gone = seen == MARKS.mask
    inside = MARKS.is_continuation[given[:, 1:]]  # a piece that goes on with the word before it
    whole = gone[:, 1:][inside] == gone[:, :-1][inside]
    alone = (answers != IGNORE).sum(1) == 11  # rows where all that may be asked is asked: one word might be cut
    assert whole.mean() > 0.99
    assert (gone.sum(1) <= 11).all()
    assert not alone.all()
    plain = hide(given, how._replace(whole_words=False), most=12)[0] == MARKS.mask
    assert (plain[:, 1:][inside] == plain[:, :-1][inside]).mean() < 0.8


def test_what_is_hidden_is_a_pure_function_of_the_place():
    given = rows()
    for a, b in zip(hide(given, step=4), hide(given, step=4), strict=True):
        assert (a == b).all()
    assert (hide(given, step=4)[1] != hide(given, step=5)[1]).any()


def test_a_row_with_nothing_to_ask_asks_nothing():
    _, _, answers = hide(np.full((2, 10), MARKS.pad))
    assert (answers == IGNORE).all()


def test_two_passages_stand_between_their_marks():
    first, second = np.array([[0, 3], [4, 5]]), np.array([[3, 5], [9, 13]])
    made, segments, lengths = MARKS.frame_pairs(np.arange(20, 40), first, second, 12)
    cls, sep, pad = MARKS.cls, MARKS.sep, MARKS.pad
    assert made.tolist() == [
        [cls, 20, 21, 22, sep, 23, 24, sep, *[pad] * 4],
        [cls, 24, sep, 29, 30, 31, 32, sep, *[pad] * 4],
    ]
    assert segments.tolist() == [[0] * 5 + [1] * 3 + [0] * 4, [0] * 3 + [1] * 5 + [0] * 4]
    assert lengths.tolist() == [8, 8]
