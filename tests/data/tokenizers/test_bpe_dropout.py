"""Words split by chance are the same words, split so again, and without chance split as the library does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.pairs.files import normalize_text
from harken.data.tokenizers.bpe_dropout import BPEDropout
from harken.data.tokenizers.pairs import RaggedTokens, encode_lines
from harken.data.tokenizers.tokenizer import train_tokenizer

TEXT = "The hat that the cat sat on is not the rat's hat. Über Übung: 12,5 % — naïve 日本語 text.\n" * 30
BPE = train_tokenizer("bpe", lambda: [TEXT], 340)
WORDS = st.lists(st.sampled_from(TEXT.split()), min_size=1, max_size=30).map(" ".join)
LINES = st.lists(
    st.one_of(WORDS, st.text(st.characters(codec="utf-8"), max_size=30).filter(normalize_text)), min_size=1, max_size=5
)


def split(lines: list[str], share: float, *, seed: int = 7, epoch: int = 0, longest: int = 1000) -> list[list[int]]:
    splitter = BPEDropout(
        BPE, RaggedTokens.from_blocks([encode_lines(BPE, lines)], BPE), share, seed=seed, max_length=longest
    )
    ids, lengths = splitter.gather(np.arange(len(lines)), epoch)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@settings(max_examples=150, deadline=None)
@given(lines=LINES.map(lambda lines: list(map(normalize_text, lines))))
def test_without_dropout_the_split_is_that_of_the_library(lines):
    assert split(lines, 0.0) == [BPE.encode(line).tolist() for line in lines]


@settings(max_examples=150, deadline=None)
@given(
    lines=LINES.map(lambda lines: list(map(normalize_text, lines))),
    share=st.floats(0.01, 0.99),
    epoch=st.integers(0, 5),
)
def test_a_text_split_by_chance_is_still_the_text_and_split_so_again(lines, share, epoch):
    ids = split(lines, share, epoch=epoch)
    assert [BPE.decode(line) for line in ids] == lines
    assert split(lines, share, epoch=epoch) == ids


def test_another_epoch_or_seed_splits_anew_into_more_tokens():
    lines = [" ".join(TEXT.split()[:12])]
    ids = [split(lines, 0.3, seed=seed, epoch=epoch)[0] for seed in (7, 8) for epoch in range(3)]
    assert len({tuple(some) for some in ids}) > 3
    assert sum(map(len, ids)) > 6 * len(BPE.encode(lines[0]))


def test_within_an_epoch_a_word_is_split_alike_everywhere():
    for epoch in range(9):
        once, *many = split(["a hat", "a hat hat hat", "cat hat"], 0.5, epoch=epoch)
        hat = once[1:]
        assert many[0] == once + hat * 2
        assert many[1][-len(hat) :] == hat


def test_without_any_merge_every_byte_stands_alone():
    assert split(["the hat"], 1.0) == [[BPE.encode(letter)[0] for letter in "the hat"]]


def test_a_sentence_that_would_become_too_long_stays_as_it_is():
    lines = ["the hat that the cat sat on", "hat"]
    whole = [BPE.encode(line).tolist() for line in lines]
    assert split(lines, 1.0, max_length=len(whole[0])) == [whole[0], [BPE.encode(c)[0] for c in "hat"]]
