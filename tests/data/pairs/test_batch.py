"""Batches of pairs hold each pair once per epoch with its ids, and are a pure function of (seed, epoch, step)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.batch import IGNORE
from harken.data.pairs.batch import PackedPairs, PairBatch, PairBatches, eval_batches
from harken.data.pairs.source import Pairs, PairSource
from harken.data.tokenizers.pairs import RaggedTokens

SOURCE_END, TARGET_END = 900, 950
LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def make_tokens(lengths, end_id: int) -> RaggedTokens:
    """Sentences with different ids at every position."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return RaggedTokens((np.arange(starts[-1]) % 800).astype(np.uint16), starts, end_id)


def make_pairs(lengths) -> Pairs:
    source, target = zip(*lengths, strict=True)
    return Pairs(make_tokens(source, SOURCE_END), make_tokens(target, TARGET_END))


def random_pairs(n: int = 200, max_length: int = 24) -> Pairs:
    return make_pairs(np.random.default_rng(3).integers(1, max_length + 1, (n, 2)).tolist())


def epoch_batches(batches: PairBatches, epoch: int) -> list[PairBatch]:
    return [batches.batch(epoch, step) for step in range(batches.steps)]


def check(batch: PairBatch, pairs: Pairs) -> None:
    """Every row holds the ids of its pair and the edge tokens, and nothing else."""
    rows = zip(batch.index, batch.source, batch.lengths, batch.tokens, batch.targets, strict=True)
    for n, source, length, tokens, targets in rows:
        source_ids, target_ids = pairs.source[int(n)].tolist(), pairs.target[int(n)].tolist()
        padding = len(tokens) - len(target_ids) - 1
        assert int(length) == len(source_ids) + 1
        assert source.tolist() == source_ids + [SOURCE_END] * (len(source) - len(source_ids))
        assert tokens.tolist() == [TARGET_END, *target_ids] + [TARGET_END] * padding
        assert targets.tolist() == [*target_ids, TARGET_END] + [IGNORE] * padding
    assert batch.source.shape[1] == int(batch.lengths.max())
    assert int((batch.targets[:, -1] != IGNORE).sum()) > 0  # no column is only padding


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20), epoch=st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_with_its_ids(lengths, rows, epoch):
    pairs = make_pairs(lengths)
    batches = epoch_batches(PairBatches(pairs, rows, seed=5), epoch)
    assert sorted(int(n) for batch in batches for n in batch.index) == list(range(len(lengths)))
    for batch in batches:
        check(batch, pairs)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20))
def test_a_batch_fills_the_token_budget_without_exceeding_it(lengths, rows):
    batches = PairBatches(make_pairs(lengths), rows, seed=5)
    budget = rows * np.mean([a + b + 2 for a, b in lengths])
    order = np.lexsort((batches.source, batches.target))

    def n_positions(start: int, stop: int) -> int:
        chosen = order[start:stop]
        return (batches.source[chosen].max() + batches.target[chosen].max()) * (stop - start)

    for start, stop in zip(batches.boundaries[:-1], batches.boundaries[1:], strict=True):
        assert stop == start + 1 or n_positions(start, stop) <= budget
        if stop < len(lengths):
            assert n_positions(start, stop + 1) > budget


def test_rows_tokens_and_padding_are_means_over_the_batches():
    batches = PairBatches(random_pairs(), 8, seed=5)
    epoch = epoch_batches(batches, 2)
    n_positions = sum(batch.tokens.numel() + batch.source.numel() for batch in epoch)
    n_used = sum(batch.n_targets + int(batch.lengths.sum()) for batch in epoch)
    assert batches.padding == pytest.approx(1 - n_used / n_positions)
    assert batches.tokens == round(sum(batch.n_targets for batch in epoch) / batches.steps)
    assert batches.rows == round(200 / batches.steps)


def test_sorting_by_length_leaves_a_quarter_of_the_padding_of_random_batches():
    batches = PairBatches(random_pairs(2000), 16, seed=5)
    unsorted = [lengths[:1984].reshape(-1, 16) for lengths in (batches.source, batches.target)]
    n_used, n_positions = sum(x.sum() for x in unsorted), sum(x.max(1).sum() * 16 for x in unsorted)
    assert batches.padding < (1 - n_used / n_positions) / 4


def test_a_batch_depends_only_on_seed_epoch_and_step():
    in_order, shuffled = (PairBatches(random_pairs(), 8, seed=5) for _ in range(2))
    steps = [(epoch, step) for epoch in range(3) for step in range(in_order.steps)]
    expected = {step: in_order.batch(*step) for step in steps}
    torch.manual_seed(99)
    np.random.seed(99)
    for step in [steps[i] for i in np.random.default_rng(1).permutation(len(steps))]:
        tensors = shuffled.batch(*step).tensors()
        assert all(torch.equal(tensors[name], x) for name, x in expected[step].tensors().items())


def test_another_epoch_or_seed_has_other_batches_in_another_order():
    batches, reseeded = (PairBatches(random_pairs(200, 5), 8, seed=seed) for seed in (5, 6))
    epochs = [epoch_batches(batches, 0), epoch_batches(batches, 1), epoch_batches(reseeded, 0)]
    sets = [[frozenset(batch.index.tolist()) for batch in epoch] for epoch in epochs]
    assert set(sets[0]) != set(sets[1])
    assert set(sets[0]) != set(sets[2])
    widths = [[batch.tokens.shape[1] for batch in epoch] for epoch in epochs[:2]]
    assert widths[0] != widths[1]
    assert sorted(widths[0]) == sorted(widths[1])


def test_sliced_rows_keep_all_their_tensors():
    batch = PairBatches(random_pairs(), 8, seed=5).batch(0, 3)
    part = batch.slice_rows(2, 5)
    assert isinstance(part, PairBatch)
    assert part.tensors().keys() == batch.tensors().keys() == {"tokens", "targets", "source", "lengths", "index"}
    assert all(torch.equal(x, batch.tensors()[name][2:5]) for name, x in part.tensors().items())


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20))
def test_evaluation_takes_every_pair_once_with_its_index(lengths, rows):
    pairs = make_pairs(lengths)
    batches = list(eval_batches(pairs, rows))
    assert sorted(int(n) for batch in batches for n in batch.index) == list(range(len(lengths)))
    for batch in batches:
        check(batch, pairs)
        assert len(batch.index) <= rows


# --- BPE-dropout ------------------------------------------------------------------------------------------------------


def load(tmp_path, dropout: float, max_length: int = 100):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"the hat number {n} sat\tder Hut Nummer {n} saß\n" for n in range(60)))
    settings = {"source": 1, "target": 2, "vocab_size": 330, "valid": 0.0, "test": 0.0}
    return PairSource(path=str(path), **settings, bpe_dropout=dropout, max_length=max_length).load_data()


def test_batches_with_bpe_dropout_decode_to_the_same_pairs_with_more_tokens(tmp_path):
    data = load(tmp_path, 0.4)
    batches, texts, tokenizers = data.batches(8, 5), list(data.texts()), data.tokenizers
    epoch = epoch_batches(batches, 1)
    for batch in epoch:
        for n, source, length, targets in zip(batch.index, batch.source, batch.lengths, batch.targets, strict=True):
            pair = tokenizers.decode_source(source[: int(length)]), tokenizers.decode_target(targets)
            assert pair == texts[int(n)]
    assert sum(batch.n_targets for batch in epoch) > 1.1 * batches.tokens * batches.steps
    repeated = data.batches(8, 5).batch(1, 2).tensors()
    assert all(torch.equal(repeated[name], x) for name, x in epoch[2].tensors().items())
    without = epoch_batches(load(tmp_path, 0.0).batches(8, 5), 1)
    assert [batch.index.tolist() for batch in epoch] == [batch.index.tolist() for batch in without]


def test_a_sentence_that_dropout_makes_too_long_is_unchanged(tmp_path):
    train = load(tmp_path, 0.0).train
    max_length = int(max(train.source.lengths.max(), train.target.lengths.max()))
    data = load(tmp_path, 0.9, max_length)
    batches = epoch_batches(data.batches(8, 5), 0)
    assert len(data.train) == 60
    assert max(int(batch.lengths.max()) for batch in batches) == max_length + 1
    assert max(batch.tokens.shape[1] for batch in batches) == max_length + 1


# --- packed rows ------------------------------------------------------------------------------------------------------


def unpack(batch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a packed batch, separated by document and position."""
    pairs = []
    for r in range(len(batch.tokens)):
        for n in batch.doc[r][batch.targets[r] != IGNORE].unique().tolist():
            target_mask, source_mask = batch.doc[r] == n, batch.source_doc[r] == n
            source = batch.source[r][source_mask].tolist()
            assert batch.pos[r][target_mask].tolist() == list(range(int(target_mask.sum())))
            assert batch.source_pos[r][source_mask].tolist() == list(range(len(source)))
            tokens, targets = batch.tokens[r][target_mask].tolist(), batch.targets[r][target_mask].tolist()
            assert (tokens[0], targets[-1], source[-1]) == (TARGET_END, TARGET_END, SOURCE_END)
            assert tokens[1:] == targets[:-1]
            pairs.append((source[:-1], targets[:-1]))
    return pairs


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 40), epoch=st.integers(0, 2))
def test_packed_rows_hold_every_pair_once_per_epoch(lengths, rows, epoch):
    pairs = make_pairs(lengths)
    packed = PackedPairs(pairs, rows, seed=5)
    batches = [packed.batch(epoch, step) for step in range(packed.steps)]
    assert len({(batch.tokens.shape, batch.source.shape) for batch in batches}) == 1
    unpacked = sorted(pair for batch in batches for pair in unpack(batch))
    assert unpacked == sorted((pairs.source[n].tolist(), pairs.target[n].tolist()) for n in range(len(pairs)))


def test_packed_rows_of_similar_sentences_are_nearly_full():
    lengths = np.random.default_rng(3).normal(13, 4, (2000, 1)).clip(3, 40) * np.ones((1, 2))
    lengths += np.random.default_rng(4).normal(0, 1, lengths.shape)
    assert PackedPairs(make_pairs(lengths.astype(int).clip(1).tolist()), 128, seed=0).padding < 0.08


def test_packed_rows_are_shuffled_in_each_epoch_and_reproducible():
    packed, repeated = (PackedPairs(random_pairs(), 16, seed=1) for _ in range(2))
    assert torch.equal(packed.batch(1, 2).tokens, repeated.batch(1, 2).tokens)
    assert not torch.equal(packed.batch(1, 2).tokens, packed.batch(2, 2).tokens)
