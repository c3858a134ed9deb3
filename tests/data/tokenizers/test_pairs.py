"""Tokenizers of pairs: punctuation is detached and attached without loss, and lines are encoded in one call."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.pairs.files import normalize_text
from harken.data.tokenizers.pairs import JOINER, attach_punctuation, detach_punctuation, encode_lines
from harken.data.tokenizers.tokenizer import train_tokenizer

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), max_size=30).filter(normalize_text)


def test_a_punctuation_mark_is_a_word():
    assert detach_punctuation("I am a student.").split() == ["I", "am", "a", "student", f"{JOINER}."]
    assert detach_punctuation("« l'été »").split() == ["«", "l", f"{JOINER}'{JOINER}", "été", "»"]


@settings(max_examples=300, deadline=None)
@given(text=LINE.filter(lambda text: JOINER not in text))
def test_detached_punctuation_is_attached_without_loss(text):
    assert attach_punctuation(detach_punctuation(text)) == text


@pytest.mark.parametrize("text", ["\uffed. le chat", "le chat (\uffed", "le (\uffed \uffed.\uffed chat"])
def test_a_misplaced_joiner_is_removed(text):
    assert "\uffed" not in attach_punctuation(text)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINE.map(normalize_text), min_size=1, max_size=6), kind=st.sampled_from(["char", "word", "bpe"]))
def test_lines_encoded_together_equal_lines_encoded_alone(lines, kind):
    tokenizer = train_tokenizer(kind, lambda: [f"{line}\n" for line in lines], 300)
    ids, lengths = encode_lines(tokenizer, lines)
    alone = [tokenizer.encode(detach_punctuation(line) if kind == "word" else line).tolist() for line in lines]
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == alone
