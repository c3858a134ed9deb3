"""Batches are cut from a stream so that every token is asked as often as it should be, and always at the same place."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.batch import IGNORE, Batch, PackedDocuments, Streams, Windows, eval_batches
from harken.errors import BadInput, BadSetting


def text(n: int) -> np.ndarray:
    """A stream in which every token tells its place."""
    return np.arange(n, dtype=np.uint32)


def equal(a: Batch, b: Batch) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("tokens", "targets", "pos", "doc", "origin")]
    return all(x is y is None or torch.equal(x, y) for x, y in pairs) and a.reset_state == b.reset_state


def epoch_of(cut: Windows | PackedDocuments | Streams, epoch: int) -> list[Batch]:
    return [cut.batch(epoch, step) for step in range(cut.steps)]


def asked(batches: list[Batch]) -> list[int]:
    """The targets that count, in the order in which they are asked."""
    return [int(t) for batch in batches for t in batch.targets[batch.targets != IGNORE]]


MAKERS = {
    "windows": lambda seed=5: Windows([text(203)], 7, 3, seed=seed),
    "mixed": lambda seed=5: Windows([text(203), text(90)], 7, 3, seed=seed, weights=[1, 3]),
    "streams": lambda seed=5: Streams(text(203), 7, 3),
    "packed": lambda seed=5: PackedDocuments(text(203), np.array([0, 11, 12, 60, 150]), 7, 3, seed=seed),
}


# --- the order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_a_batch_depends_on_seed_epoch_and_step_alone(kind):
    in_order, jumping = MAKERS[kind](), MAKERS[kind]()
    places = [(epoch, step) for epoch in range(3) for step in range(in_order.steps)]
    told = {place: in_order.batch(*place) for place in places}
    shuffled = [places[i] for i in np.random.default_rng(1).permutation(len(places))]
    assert all(equal(jumping.batch(*place), told[place]) for place in shuffled)


@pytest.mark.parametrize("kind", MAKERS)
def test_torch_and_numpy_dice_do_not_move_a_batch(kind):
    before = MAKERS[kind]().batch(1, 2)
    torch.manual_seed(99)
    np.random.seed(99)
    assert equal(MAKERS[kind]().batch(1, 2), before)


@pytest.mark.parametrize("kind", ["windows", "mixed", "packed"])
def test_another_seed_gives_another_order(kind):
    assert asked(epoch_of(MAKERS[kind](seed=5), 0)) != asked(epoch_of(MAKERS[kind](seed=6), 0))


@pytest.mark.parametrize("kind", ["windows", "mixed", "packed"])
def test_another_epoch_gives_another_order(kind):
    cut = MAKERS[kind]()
    assert asked(epoch_of(cut, 0)) != asked(epoch_of(cut, 1))


# --- windows ----------------------------------------------------------------------------------------------------------


def test_windows_are_cut_at_other_places_in_another_epoch():
    cut = MAKERS["windows"]()
    starts = [{int(row[0]) % 7 for batch in epoch_of(cut, epoch) for row in batch.tokens} for epoch in range(6)]
    assert all(len(phase) == 1 for phase in starts)
    assert len(set.union(*starts)) > 1


def test_the_target_of_a_token_is_the_one_that_follows():
    assert all(torch.equal(b.targets, b.tokens + 1) for b in epoch_of(MAKERS["windows"](), 3))


@settings(max_examples=200, deadline=None)
@given(n=st.integers(2, 400), L=st.integers(1, 20), rows=st.integers(1, 9), epoch=st.integers(0, 3))
def test_no_token_is_asked_twice_in_an_epoch_and_only_a_remainder_is_left_out(n, L, rows, epoch):
    cut = Windows([text(n)], L, rows, seed=0)
    seen = asked(epoch_of(cut, epoch))
    assert len(seen) == len(set(seen))
    assert n - 1 - len(seen) < (cut.rows + 2) * L  # a window at either end, and the windows that fill no batch


def test_every_token_is_asked_in_some_epoch():
    cut = MAKERS["windows"]()
    assert {t for epoch in range(40) for t in asked(epoch_of(cut, epoch))} == set(range(1, 203))


def test_a_text_shorter_than_a_window_is_one_shorter_window():
    batch = Windows([text(5)], 64, 16, seed=0).batch(0, 0)
    assert batch.tokens.tolist() == [[0, 1, 2, 3]]


def test_a_text_too_short_to_be_mixed_is_refused_in_one_line():
    with pytest.raises(BadInput, match=r"^data.mix: text 2 has 5 tokens, and a window needs 65; .*model.context"):
        Windows([text(500), text(5)], 64, 4, seed=0, weights=[1, 1])


# --- mixed texts ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4), epoch=st.integers(0, 2))
def test_mixed_texts_are_drawn_by_their_weights_within_one_window(weights, epoch):
    cut = Windows([text(130 + 70 * s) for s in range(len(weights))], 6, 1, seed=3, weights=weights)
    drawn = torch.cat([b.origin for b in epoch_of(cut, epoch)])
    for s, weight in enumerate(weights):
        assert abs(int((drawn == s).sum()) - cut.steps * weight / sum(weights)) < 1 + 1e-9


def test_a_row_comes_from_the_text_it_names():
    streams = [text(130), text(400) + 1000]
    for batch in epoch_of(Windows(streams, 6, 4, seed=0, weights=[2, 1]), 0):
        assert torch.equal(batch.origin, (batch.tokens[:, 0] >= 1000).long())


def test_a_small_text_with_a_large_weight_is_read_again_and_again():
    cut = Windows([text(40), text(4000) + 1000], 6, 1, seed=0, weights=[1, 1])
    starts = [int(b.tokens[0, 0]) for b in epoch_of(cut, 0) if int(b.origin) == 0]
    counts = np.unique(starts, return_counts=True)[1]
    assert counts.max() - counts.min() <= 1
    assert counts.min() > 10


def test_a_text_of_weight_0_is_not_read():
    cut = Windows([text(300), text(300)], 6, 1, seed=0, weights=[1, 0])
    assert {int(b.origin) for b in epoch_of(cut, 0)} == {0}


# --- streams ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(n=st.integers(2, 300), L=st.integers(1, 20), rows=st.integers(1, 9))
def test_readers_go_through_the_whole_text_in_order(n, L, rows):
    cut = Streams(text(n), L, rows)
    read = torch.cat([b.targets for b in epoch_of(cut, 0)], 1)  # a reader a row
    assert read.flatten().tolist() == list(range(1, cut.rows * cut.length + 1))
    assert n - 1 - read.numel() < cut.rows


def test_readers_forget_only_where_an_epoch_begins():
    cut = MAKERS["streams"]()
    assert [b.reset_state for b in epoch_of(cut, 1)] == [True] + [False] * (cut.steps - 1)


# --- packed documents -------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12).filter(lambda lengths: max(lengths) > 1)  # of documents


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, L=st.integers(2, 20), rows=st.integers(1, 4), epoch=st.integers(0, 2))
def test_packed_tokens_see_their_own_document_and_no_other(lengths, L, rows, epoch):
    ends = np.cumsum(lengths)
    for batch in epoch_of(PackedDocuments(text(ends[-1]), ends - lengths, L, rows, seed=1), epoch):
        home = torch.from_numpy(np.searchsorted(ends, batch.tokens.numpy(), side="right"))  # the true document
        L_ = batch.tokens.shape[1]
        allowed = batch.structure.mask(len(home), L_, L_)[:, 0]
        assert torch.equal(allowed, home[:, :, None] == home[:, None, :])


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, L=st.integers(2, 20), rows=st.integers(1, 4), epoch=st.integers(0, 2))
def test_the_last_token_of_a_document_asks_nothing_and_every_other_what_follows(lengths, L, rows, epoch):
    ends = np.cumsum(lengths)
    for batch in epoch_of(PackedDocuments(text(ends[-1]), ends - lengths, L, rows, seed=1), epoch):
        last = torch.from_numpy(np.isin(batch.tokens.numpy() + 1, ends))
        assert torch.equal(batch.targets, torch.where(last, IGNORE, batch.tokens + 1))
        assert batch.n_targets > 0


def test_places_count_from_0_in_every_document_of_a_row():
    cut = PackedDocuments(text(30), np.array([0, 4, 9]), 30, 1, seed=0)
    batch = cut.batch(0, 0)
    begins = [int(b) for b in torch.where(batch.pos[0] == 0)[0]]
    assert sorted(int(batch.tokens[0, b]) for b in begins) == [0, 4, 9]
    assert all(torch.equal(batch.pos[0, a:b], torch.arange(b - a)) for a, b in pairwise([*begins, 30]))


def test_an_epoch_packs_every_token_once_up_to_what_fills_no_batch():
    cut = PackedDocuments(text(203), np.array([0, 11, 12, 60, 150]), 7, 3, seed=5)
    seen = [int(t) for b in epoch_of(cut, 0) for t in b.tokens.flatten()]
    assert len(seen) == len(set(seen)) > 203 - 7 * 4


def test_empty_documents_are_passed_over():
    cut = PackedDocuments(text(20), np.array([0, 0, 8, 8, 20]), 10, 1, seed=0)
    assert sorted(int(t) for b in epoch_of(cut, 0) for t in b.tokens.flatten()) == list(range(20))


def test_documents_of_one_token_are_left_out():
    cut = PackedDocuments(text(9), np.array([0, 1, 5, 6]), 3, 1, seed=0)
    assert sorted(int(t) for b in epoch_of(cut, 0) for t in b.tokens.flatten()) in (
        [1, 2, 3, 4, 6, 7],
        [1, 2, 3, 6, 7, 8],
    )


def test_documents_that_ask_nothing_at_all_are_refused():
    with pytest.raises(BadInput, match=r"^data.documents: no document has two tokens, so nothing is asked; "):
        PackedDocuments(text(3), np.array([0, 1, 2]), 8, 1, seed=0)


def test_packed_rows_of_one_token_which_may_ask_nothing_are_refused():
    with pytest.raises(BadSetting, match=r"^model.context=1: packed documents need rows of 2 tokens or more; "):
        PackedDocuments(text(9), np.array([0, 4]), 1, 1, seed=0)


def test_documents_shorter_than_a_row_are_packed_into_a_shorter_one():
    batch = PackedDocuments(text(5), np.array([0]), 64, 16, seed=0).batch(0, 0)
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4]]


# --- scoring ----------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_scoring_asks_every_token_once_with_at_least_the_promised_context(data):
    n, L = data.draw(st.integers(2, 200)), data.draw(st.integers(1, 30))
    stride, rows = data.draw(st.integers(1, L)), data.draw(st.integers(1, 5))
    context = {}
    for batch in eval_batches(text(n), L, stride, rows):
        for row, answers in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            for i, answer in enumerate(answers):
                if answer != IGNORE:
                    assert row[: i + 1] == list(range(answer - i - 1, answer))  # what it sees is what came before
                    assert answer not in context
                    context[answer] = i + 1
    assert set(context) == set(range(1, n))
    assert all(seen >= min(answer, L - stride + 1) for answer, seen in context.items())


# --- a batch ----------------------------------------------------------------------------------------------------------


def test_the_count_is_the_number_of_targets_that_are_asked():
    assert Batch(torch.zeros(2, 3), torch.tensor([[1, IGNORE, 2], [IGNORE, IGNORE, 5]])).n_targets == 3


def test_rows_of_a_batch_keep_all_that_belongs_to_them():
    whole = MAKERS["packed"]().batch(0, 1)
    some = whole.slice_rows(1, 3)
    for name in ("tokens", "targets", "pos", "doc"):
        assert torch.equal(getattr(some, name), getattr(whole, name)[1:3])
