"""Batches of labelled texts hold each text once per epoch, with its label and its segments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.batch import IGNORE
from harken.data.labelled.batch import EncodedTexts, LabelBatch, PackedTexts, PaddedTexts, collate_padded, eval_batches
from harken.data.tokenizers.pairs import RaggedTokens

END = 900
BATCHES = [PackedTexts, PaddedTexts]
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def make_texts(lengths, **fields) -> EncodedTexts:
    """Texts that start with their index."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(starts[-1]) % 800
    ids[starts[:-1]] = np.arange(len(lengths))
    segment_starts = np.array([n // 2 + 1 for n in lengths])[:, None]
    fields = {"targets": np.arange(len(lengths)) * 7, **fields}
    return EncodedTexts(RaggedTokens(ids, starts, END), segment_starts, **fields)


def checked_indices(batch: LabelBatch, texts: EncodedTexts) -> list[int]:
    """The indices of the texts of a batch, after a check of their tokens, targets, positions and segments."""
    indices = []
    for r in range(len(batch.tokens)):
        for m in range(batch.max_texts):
            mask = batch.doc[r] == m
            if not mask.any():
                assert batch.targets[r, m] == IGNORE
                continue
            n, ids = int(batch.tokens[r][mask][0]), batch.tokens[r][mask].tolist()
            assert ids == [*texts.tokens[n].tolist(), END]
            assert int(batch.targets[r, m]) == n * 7
            assert batch.pos[r][mask].tolist() == list(range(len(ids)))
            assert batch.segments[r][mask].tolist() == [int(k >= texts.segment_starts[n, 0]) for k in range(len(ids))]
            indices.append(n)
    assert batch.n_targets == len(indices)
    assert batch.n_tokens == sum(len(texts.tokens[n]) + 1 for n in indices)
    return indices


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20), epoch=st.integers(0, 3), kind=st.sampled_from(BATCHES))
def test_an_epoch_holds_every_text_once_with_its_label(lengths, rows, epoch, kind):
    texts = make_texts(lengths)
    batches = kind(texts, rows, seed=5)
    indices = [n for step in range(batches.steps) for n in checked_indices(batches.batch(epoch, step), texts)]
    assert sorted(indices) == list(range(len(lengths)))


@pytest.mark.parametrize("kind", BATCHES)
def test_the_order_differs_between_epochs_and_repeats_within_one(kind):
    texts = make_texts(np.random.default_rng(0).integers(1, 9, 200).tolist())
    first, second, repeated = (kind(texts, 16, seed=1) for _ in range(3))
    assert torch.equal(first.batch(0, 1).tokens, repeated.batch(0, 1).tokens)
    assert not torch.equal(first.batch(0, 1).targets, second.batch(1, 1).targets)


def test_packed_batches_have_one_shape_and_little_padding():
    texts = make_texts(np.random.default_rng(0).integers(1, 60, 400).tolist())
    batches = PackedTexts(texts, 32, seed=0)
    assert len({tuple(x.shape for x in batches.batch(0, s).tensors().values()) for s in range(batches.steps)}) == 1
    assert batches.padding < 0.08


def test_rows_of_a_batch_keep_their_targets():
    texts = make_texts([5] * 90)
    batch = PackedTexts(texts, 90, seed=0).batch(0, 0)
    parts = [checked_indices(batch.slice_rows(r, r + 1), texts) for r in range(len(batch.tokens))]
    assert len(parts) > 2
    assert sorted(n for part in parts for n in part) == sorted(checked_indices(batch, texts))


def test_unused_regression_targets_are_nan():
    targets = np.arange(40, dtype=np.float32)[:, None]
    batches = PackedTexts(make_texts([3] * 40, targets=targets), 40, seed=0)
    epoch = [batches.batch(0, step) for step in range(batches.steps)]
    assert sum(batch.n_targets for batch in epoch) == 40
    assert sorted(t for batch in epoch for t in batch.targets[batch.target_mask].tolist()) == list(range(40))


def test_token_targets_are_aligned_with_the_tokens():
    lengths = [3, 9, 4]
    texts = make_texts(lengths)
    per_token = make_texts(lengths, targets=texts.tokens.ids + 1, per_token=True)
    for batch in (PackedTexts(per_token, 9, seed=0).batch(0, 0), collate_padded(per_token, np.arange(3))):
        mask = (batch.doc < batch.max_texts) & (batch.tokens != END)
        assert torch.equal(batch.targets[mask], batch.tokens[mask] + 1)
        assert (batch.targets[~mask] == IGNORE).all()


def test_evaluation_takes_each_text_once_within_the_token_budget():
    texts = make_texts(np.random.default_rng(0).integers(1, 40, 100).tolist())
    batches = list(eval_batches(texts, 200))
    assert sorted(n for indices, _ in batches for n in indices) == list(range(100))
    assert all(batch.tokens.numel() <= 200 for _, batch in batches)
    assert all(checked_indices(batch, texts) == list(indices) for indices, batch in batches)
