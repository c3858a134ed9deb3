"""BPE-dropout: segmentations decode to the text and are reproducible; without dropout they equal the library's."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.pairs.files import normalize_text
from harken.data.tokenizers.pairs import BPEDropout, RaggedTokens, encode_lines
from harken.data.tokenizers.spec import END_OF_TEXT
from harken.data.tokenizers.tokenizer import train_tokenizer

TEXT = "The hat that the cat sat on is not the rat's hat. Über Übung: 12,5 % — naïve 日本語 text.\n" * 30
BPE = train_tokenizer("bpe", lambda: [TEXT], 340)
WORDS = st.lists(st.sampled_from(TEXT.split()), min_size=1, max_size=30).map(" ".join)
PLAIN = st.text(st.characters(codec="utf-8"), max_size=30).filter(lambda text: END_OF_TEXT not in text)
LINES = st.lists(st.one_of(WORDS, PLAIN.filter(normalize_text)), min_size=1, max_size=5)


def segment(
    lines: list[str], dropout: float, *, seed: int = 7, epoch: int = 0, max_length: int = 1000
) -> list[list[int]]:
    dropout_encoder = BPEDropout(
        BPE, RaggedTokens.from_blocks([encode_lines(BPE, lines)], BPE), dropout, seed=seed, max_length=max_length
    )
    ids, lengths = dropout_encoder.gather(np.arange(len(lines)), epoch)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@settings(max_examples=150, deadline=None)
@given(lines=LINES.map(lambda lines: list(map(normalize_text, lines))))
def test_without_dropout_ids_equal_those_of_the_library(lines):
    assert segment(lines, 0.0) == [BPE.encode(line).tolist() for line in lines]


@settings(max_examples=150, deadline=None)
@given(
    lines=LINES.map(lambda lines: list(map(normalize_text, lines))),
    dropout=st.floats(0.01, 0.99),
    epoch=st.integers(0, 5),
)
def test_ids_with_dropout_decode_to_the_text_and_are_reproducible(lines, dropout, epoch):
    ids = segment(lines, dropout, epoch=epoch)
    assert [BPE.decode(line) for line in ids] == lines
    assert segment(lines, dropout, epoch=epoch) == ids


def test_another_epoch_or_seed_gives_other_and_more_tokens():
    lines = [" ".join(TEXT.split()[:12])]
    ids = [segment(lines, 0.3, seed=seed, epoch=epoch)[0] for seed in (7, 8) for epoch in range(3)]
    assert len({tuple(part) for part in ids}) > 3
    assert sum(map(len, ids)) > 6 * len(BPE.encode(lines[0]))


def test_within_an_epoch_a_word_has_one_segmentation():
    for epoch in range(9):
        once, *many = segment(["a hat", "a hat hat hat", "cat hat"], 0.5, epoch=epoch)
        hat = once[1:]
        assert many[0] == once + hat * 2
        assert many[1][-len(hat) :] == hat


def test_full_dropout_leaves_single_bytes():
    assert segment(["the hat"], 1.0) == [[BPE.encode(letter)[0] for letter in "the hat"]]


def test_a_sentence_over_max_length_is_not_dropped_out():
    lines = ["the hat that the cat sat on", "hat"]
    undropped = [BPE.encode(line).tolist() for line in lines]
    assert segment(lines, 1.0, max_length=len(undropped[0])) == [undropped[0], [BPE.encode(c)[0] for c in "hat"]]
