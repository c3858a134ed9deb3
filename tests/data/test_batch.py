"""Batches of a token stream: every token is a target as often as expected, and batches are reproducible."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.batch import IGNORE, Batch, PackedDocuments, Streams, Windows, eval_batches
from harken.errors import BadInput, BadSetting


def token_stream(n: int) -> np.ndarray:
    """A stream in which every token is its position."""
    return np.arange(n, dtype=np.uint32)


def equal(a: Batch, b: Batch) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("tokens", "targets", "pos", "doc", "origin")]
    return all(x is y is None or torch.equal(x, y) for x, y in pairs) and a.reset_state == b.reset_state


def epoch_of(batches: Windows | PackedDocuments | Streams, epoch: int) -> list[Batch]:
    return [batches.batch(epoch, step) for step in range(batches.steps)]


def targets_of(batches: list[Batch]) -> list[int]:
    """All targets that are not IGNORE, in order."""
    return [int(t) for batch in batches for t in batch.targets[batch.targets != IGNORE]]


BUILDERS = {
    "windows": lambda seed=5: Windows([token_stream(203)], 7, 3, seed=seed),
    "mixed": lambda seed=5: Windows([token_stream(203), token_stream(90)], 7, 3, seed=seed, weights=[1, 3]),
    "streams": lambda seed=5: Streams(token_stream(203), 7, 3),
    "packed": lambda seed=5: PackedDocuments(token_stream(203), np.array([0, 11, 12, 60, 150]), 7, 3, seed=seed),
}


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_batch_depends_only_on_seed_epoch_and_step(kind):
    in_order, jumping = BUILDERS[kind](), BUILDERS[kind]()
    steps = [(epoch, step) for epoch in range(3) for step in range(in_order.steps)]
    expected = {step: in_order.batch(*step) for step in steps}
    shuffled = [steps[i] for i in np.random.default_rng(1).permutation(len(steps))]
    assert all(equal(jumping.batch(*step), expected[step]) for step in shuffled)


@pytest.mark.parametrize("kind", BUILDERS)
def test_global_seeds_do_not_change_a_batch(kind):
    before = BUILDERS[kind]().batch(1, 2)
    torch.manual_seed(99)
    np.random.seed(99)
    assert equal(BUILDERS[kind]().batch(1, 2), before)


@pytest.mark.parametrize("kind", ["windows", "mixed", "packed"])
def test_another_seed_gives_another_order(kind):
    assert targets_of(epoch_of(BUILDERS[kind](seed=5), 0)) != targets_of(epoch_of(BUILDERS[kind](seed=6), 0))


@pytest.mark.parametrize("kind", ["windows", "mixed", "packed"])
def test_another_epoch_gives_another_order(kind):
    batches = BUILDERS[kind]()
    assert targets_of(epoch_of(batches, 0)) != targets_of(epoch_of(batches, 1))


# --- windows ----------------------------------------------------------------------------------------------------------


def test_windows_have_another_offset_in_another_epoch():
    batches = BUILDERS["windows"]()
    starts = [{int(row[0]) % 7 for batch in epoch_of(batches, epoch) for row in batch.tokens} for epoch in range(6)]
    assert all(len(phase) == 1 for phase in starts)
    assert len(set.union(*starts)) > 1


def test_the_target_of_a_token_is_the_next_token():
    assert all(torch.equal(b.targets, b.tokens + 1) for b in epoch_of(BUILDERS["windows"](), 3))


@settings(max_examples=200, deadline=None)
@given(n=st.integers(2, 400), L=st.integers(1, 20), rows=st.integers(1, 9), epoch=st.integers(0, 3))
def test_no_token_is_a_target_twice_in_an_epoch_and_only_a_remainder_is_skipped(n, L, rows, epoch):
    batches = Windows([token_stream(n)], L, rows, seed=0)
    targets = targets_of(epoch_of(batches, epoch))
    assert len(targets) == len(set(targets))
    assert n - 1 - len(targets) < (batches.rows + 2) * L  # a window at either end, and windows of a partial batch


def test_every_token_is_a_target_in_some_epoch():
    batches = BUILDERS["windows"]()
    assert {t for epoch in range(40) for t in targets_of(epoch_of(batches, epoch))} == set(range(1, 203))


def test_a_text_shorter_than_a_window_is_one_shorter_window():
    batch = Windows([token_stream(5)], 64, 16, seed=0).batch(0, 0)
    assert batch.tokens.tolist() == [[0, 1, 2, 3]]


def test_a_mixed_text_shorter_than_a_window_is_refused():
    with pytest.raises(BadInput, match=r"^data.mix: text 2 has 5 tokens; a window needs 65; .*model.context"):
        Windows([token_stream(500), token_stream(5)], 64, 4, seed=0, weights=[1, 1])


# --- mixed texts ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4), epoch=st.integers(0, 2))
def test_mixed_texts_are_drawn_by_weight_up_to_one_window(weights, epoch):
    batches = Windows([token_stream(130 + 70 * s) for s in range(len(weights))], 6, 1, seed=3, weights=weights)
    origins = torch.cat([b.origin for b in epoch_of(batches, epoch)])
    for s, weight in enumerate(weights):
        assert abs(int((origins == s).sum()) - batches.steps * weight / sum(weights)) < 1 + 1e-9


def test_origin_is_the_text_of_a_row():
    streams = [token_stream(130), token_stream(400) + 1000]
    for batch in epoch_of(Windows(streams, 6, 4, seed=0, weights=[2, 1]), 0):
        assert torch.equal(batch.origin, (batch.tokens[:, 0] >= 1000).long())


def test_a_small_text_with_a_large_weight_is_repeated():
    batches = Windows([token_stream(40), token_stream(4000) + 1000], 6, 1, seed=0, weights=[1, 1])
    starts = [int(b.tokens[0, 0]) for b in epoch_of(batches, 0) if int(b.origin) == 0]
    counts = np.unique(starts, return_counts=True)[1]
    assert counts.max() - counts.min() <= 1
    assert counts.min() > 10


def test_a_text_of_weight_0_is_not_used():
    batches = Windows([token_stream(300), token_stream(300)], 6, 1, seed=0, weights=[1, 0])
    assert {int(b.origin) for b in epoch_of(batches, 0)} == {0}


# --- streams ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(n=st.integers(2, 300), L=st.integers(1, 20), rows=st.integers(1, 9))
def test_streams_read_the_complete_text_in_order(n, L, rows):
    batches = Streams(token_stream(n), L, rows)
    targets = torch.cat([b.targets for b in epoch_of(batches, 0)], 1)  # one stream per row
    assert targets.flatten().tolist() == list(range(1, batches.rows * batches.length + 1))
    assert n - 1 - targets.numel() < batches.rows


def test_streams_reset_the_state_only_at_the_start_of_an_epoch():
    batches = BUILDERS["streams"]()
    assert [b.reset_state for b in epoch_of(batches, 1)] == [True] + [False] * (batches.steps - 1)


# --- packed documents -------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12).filter(lambda lengths: max(lengths) > 1)  # of documents


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, L=st.integers(2, 20), rows=st.integers(1, 4), epoch=st.integers(0, 2))
def test_packed_tokens_attend_only_within_their_document(lengths, L, rows, epoch):
    ends = np.cumsum(lengths)
    for batch in epoch_of(PackedDocuments(token_stream(ends[-1]), ends - lengths, L, rows, seed=1), epoch):
        true_doc = torch.from_numpy(np.searchsorted(ends, batch.tokens.numpy(), side="right"))
        L_ = batch.tokens.shape[1]
        allowed = batch.structure.mask(len(true_doc), L_, L_)[:, 0]
        assert torch.equal(allowed, true_doc[:, :, None] == true_doc[:, None, :])


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, L=st.integers(2, 20), rows=st.integers(1, 4), epoch=st.integers(0, 2))
def test_the_last_token_of_a_document_has_no_target_and_every_other_the_next(lengths, L, rows, epoch):
    ends = np.cumsum(lengths)
    for batch in epoch_of(PackedDocuments(token_stream(ends[-1]), ends - lengths, L, rows, seed=1), epoch):
        is_last = torch.from_numpy(np.isin(batch.tokens.numpy() + 1, ends))
        assert torch.equal(batch.targets, torch.where(is_last, IGNORE, batch.tokens + 1))
        assert batch.n_targets > 0


def test_positions_start_at_0_in_every_document_of_a_row():
    batches = PackedDocuments(token_stream(30), np.array([0, 4, 9]), 30, 1, seed=0)
    batch = batches.batch(0, 0)
    starts = [int(b) for b in torch.where(batch.pos[0] == 0)[0]]
    assert sorted(int(batch.tokens[0, b]) for b in starts) == [0, 4, 9]
    assert all(torch.equal(batch.pos[0, a:b], torch.arange(b - a)) for a, b in pairwise([*starts, 30]))


def test_an_epoch_packs_every_token_once_except_a_last_partial_batch():
    batches = PackedDocuments(token_stream(203), np.array([0, 11, 12, 60, 150]), 7, 3, seed=5)
    seen_tokens = [int(t) for b in epoch_of(batches, 0) for t in b.tokens.flatten()]
    assert len(seen_tokens) == len(set(seen_tokens)) > 203 - 7 * 4


def test_empty_documents_are_skipped():
    batches = PackedDocuments(token_stream(20), np.array([0, 0, 8, 8, 20]), 10, 1, seed=0)
    assert sorted(int(t) for b in epoch_of(batches, 0) for t in b.tokens.flatten()) == list(range(20))


def test_documents_of_one_token_are_skipped():
    batches = PackedDocuments(token_stream(9), np.array([0, 1, 5, 6]), 3, 1, seed=0)
    assert sorted(int(t) for b in epoch_of(batches, 0) for t in b.tokens.flatten()) in (
        [1, 2, 3, 4, 6, 7],
        [1, 2, 3, 6, 7, 8],
    )


def test_documents_without_any_target_are_refused():
    with pytest.raises(BadInput, match=r"^data.documents: every document has fewer than 2 tokens; "):
        PackedDocuments(token_stream(3), np.array([0, 1, 2]), 8, 1, seed=0)


def test_packed_rows_of_one_token_are_refused():
    with pytest.raises(BadSetting, match=r"^model.context=1: packed documents need rows of 2 or more tokens; "):
        PackedDocuments(token_stream(9), np.array([0, 4]), 1, 1, seed=0)


def test_documents_shorter_than_a_row_are_packed_into_a_shorter_one():
    batch = PackedDocuments(token_stream(5), np.array([0]), 64, 16, seed=0).batch(0, 0)
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4]]


# --- evaluation -------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_eval_batches_have_every_token_once_with_the_minimum_context(data):
    n, L = data.draw(st.integers(2, 200)), data.draw(st.integers(1, 30))
    stride, rows = data.draw(st.integers(1, L)), data.draw(st.integers(1, 5))
    context = {}
    for batch in eval_batches(token_stream(n), L, stride, rows):
        for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            for i, target in enumerate(targets):
                if target != IGNORE:
                    assert row[: i + 1] == list(range(target - i - 1, target))  # the context precedes the target
                    assert target not in context
                    context[target] = i + 1
    assert set(context) == set(range(1, n))
    assert all(length >= min(target, L - stride + 1) for target, length in context.items())


# --- a batch ----------------------------------------------------------------------------------------------------------


def test_n_targets_does_not_count_ignored_targets():
    assert Batch(torch.zeros(2, 3), torch.tensor([[1, IGNORE, 2], [IGNORE, IGNORE, 5]])).n_targets == 3


def test_slice_rows_slices_every_tensor():
    batch = BUILDERS["packed"]().batch(0, 1)
    rows = batch.slice_rows(1, 3)
    for name in ("tokens", "targets", "pos", "doc"):
        assert torch.equal(getattr(rows, name), getattr(batch, name)[1:3])


def test_the_order_of_an_epoch_is_drawn_once_and_freed_with_its_batches():
    batches = BUILDERS["packed"]()
    first = batches.order(0)
    assert batches.order(0) is first
    assert batches.order(1) is not first
    reference = weakref.ref(batches)
    gc.disable()
    try:
        del batches
        assert reference() is None
    finally:
        gc.enable()
