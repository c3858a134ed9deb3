"""Batches of texts with labels hold each text once an epoch, with its label and its segments, and nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.batch import IGNORE
from harken.data.labelled.batch import LabelBatch, PackedTexts, PaddedTexts, Texts, padded, scoring
from harken.data.tokenizers.pairs import Side

EDGE = 900
BOTH = [PackedTexts, PaddedTexts]
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def made(lengths, **how) -> Texts:
    """Texts whose first token is their number."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(starts[-1]) % 800
    ids[starts[:-1]] = np.arange(len(lengths))
    second = np.array([n // 2 + 1 for n in lengths])
    return Texts(Side(ids, starts, EDGE), second, **{"targets": np.arange(len(lengths)) * 7, **how})


def exact(batch: LabelBatch, texts: Texts) -> list[int]:
    """Which texts a batch holds, after each was seen to be whole, with its own label, places and segments."""
    found = []
    for r in range(len(batch.tokens)):
        for m in range(batch.most):
            here = batch.doc[r] == m
            if not here.any():
                assert batch.targets[r, m] == IGNORE
                continue
            n, ids = int(batch.tokens[r][here][0]), batch.tokens[r][here].tolist()
            assert ids == [*texts.side[n].tolist(), EDGE]
            assert int(batch.targets[r, m]) == n * 7
            assert batch.pos[r][here].tolist() == list(range(len(ids)))
            assert batch.segments[r][here].tolist() == [int(k >= texts.second[n]) for k in range(len(ids))]
            found.append(n)
    assert batch.count == len(found)
    assert batch.size == sum(len(texts.side[n]) + 1 for n in found)
    return found


@settings(max_examples=60, deadline=None)
@given(
    lengths=LENGTHS, rows=st.integers(1, 20), epoch=st.integers(0, 3), kind=st.sampled_from([PackedTexts, PaddedTexts])
)
def test_an_epoch_holds_every_text_once_with_its_label_and_no_other(lengths, rows, epoch, kind):
    texts = made(lengths)
    cut = kind(texts, rows, seed=5)
    found = [n for step in range(cut.steps) for n in exact(cut.batch(epoch, step), texts)]
    assert sorted(found) == list(range(len(lengths)))


@pytest.mark.parametrize("kind", BOTH)
def test_another_epoch_has_another_order_and_the_same_epoch_the_same(kind):
    texts = made(np.random.default_rng(0).integers(1, 9, 200).tolist())
    one, two, again = (kind(texts, 16, seed=1) for _ in range(3))
    assert torch.equal(one.batch(0, 1).tokens, again.batch(0, 1).tokens)
    assert not torch.equal(one.batch(0, 1).targets, two.batch(1, 1).targets)


def test_packed_batches_have_one_shape_and_little_padding():
    texts = made(np.random.default_rng(0).integers(1, 60, 400).tolist())
    cut = PackedTexts(texts, 32, seed=0)
    assert len({tuple(x.shape for x in cut.batch(0, s).tensors().values()) for s in range(cut.steps)}) == 1
    assert cut.padding < 0.08


def test_rows_of_a_batch_have_the_targets_of_their_own_texts():
    texts = made([5] * 90)
    batch = PackedTexts(texts, 90, seed=0).batch(0, 0)
    parts = [exact(batch.rows(r, r + 1), texts) for r in range(len(batch.tokens))]
    assert len(parts) > 2
    assert sorted(n for part in parts for n in part) == sorted(exact(batch, texts))


def test_amounts_that_are_not_asked_are_no_numbers():
    targets = np.arange(40, dtype=np.float32)[:, None]
    cut = PackedTexts(made([3] * 40, targets=targets), 40, seed=0)
    batches = [cut.batch(0, step) for step in range(cut.steps)]
    assert sum(batch.count for batch in batches) == 40
    assert sorted(t for batch in batches for t in batch.targets[batch.asked].tolist()) == list(range(40))


def test_targets_of_each_token_stand_where_the_tokens_do():
    lengths = [3, 9, 4]
    texts = made(lengths)
    each = made(lengths, targets=texts.side.ids + 1, each_token=True)
    for batch in (PackedTexts(each, 9, seed=0).batch(0, 0), padded(each, np.arange(3))):
        real = (batch.doc < batch.most) & (batch.tokens != EDGE)
        assert torch.equal(batch.targets[real], batch.tokens[real] + 1)
        assert (batch.targets[~real] == IGNORE).all()


def test_judging_takes_each_text_once_within_its_budget():
    texts = made(np.random.default_rng(0).integers(1, 40, 100).tolist())
    found = [(picks, batch) for picks, batch in scoring(texts, 200)]
    assert sorted(n for picks, _ in found for n in picks) == list(range(100))
    assert all(batch.tokens.numel() <= 200 for _, batch in found)
    assert all(exact(batch, texts) == list(picks) for picks, batch in found)
