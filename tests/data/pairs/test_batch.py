"""Batches of pairs hold each pair once an epoch, with its ids and no others, and the same ones whenever asked again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.batch import IGNORE
from harken.data.pairs.batch import PackedPairs, PairBatch, PairBatches, scoring
from harken.data.pairs.source import Pairs, PairSource, Side

EDGES = 900, 950
LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def side(lengths, edge: int) -> Side:
    """Sentences in which every token tells its place."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Side((np.arange(starts[-1]) % 800).astype(np.uint16), starts, edge)


def made(lengths) -> Pairs:
    source, target = zip(*lengths, strict=True)
    return Pairs(side(source, EDGES[0]), side(target, EDGES[1]))


def drawn(n: int = 200, longest: int = 24) -> Pairs:
    return made(np.random.default_rng(3).integers(1, longest + 1, (n, 2)).tolist())


def epoch_of(cut: PairBatches, epoch: int) -> list[PairBatch]:
    return [cut.batch(epoch, step) for step in range(cut.steps)]


def exact(batch: PairBatch, pairs: Pairs) -> None:
    """Every row holds the ids of its pair, the edges where they belong, and nothing else."""
    rows = zip(batch.index, batch.source, batch.lengths, batch.tokens, batch.targets, strict=True)
    for n, source, length, tokens, targets in rows:
        ids, answer = pairs.source[int(n)].tolist(), pairs.target[int(n)].tolist()
        assert int(length) == len(ids) + 1
        assert source.tolist() == ids + [EDGES[0]] * (len(source) - len(ids))
        assert tokens.tolist() == [EDGES[1], *answer] + [EDGES[1]] * (len(tokens) - len(answer) - 1)
        assert targets.tolist() == [*answer, EDGES[1]] + [IGNORE] * (len(targets) - len(answer) - 1)
    assert batch.source.shape[1] == int(batch.lengths.max())
    assert int((batch.targets[:, -1] != IGNORE).sum()) > 0  # no column is only padding


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20), epoch=st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_with_its_ids_and_no_others(lengths, rows, epoch):
    pairs = made(lengths)
    batches = epoch_of(PairBatches(pairs, rows, seed=5), epoch)
    assert sorted(int(n) for batch in batches for n in batch.index) == list(range(len(lengths)))
    for batch in batches:
        exact(batch, pairs)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20))
def test_a_batch_of_several_pairs_stays_within_the_budget_and_another_pair_would_not_fit(lengths, rows):
    cut = PairBatches(made(lengths), rows, seed=5)
    budget = rows * np.mean([a + b + 2 for a, b in lengths])
    order = np.lexsort((cut.source, cut.target))
    for a, b in zip(cut.cuts[:-1], cut.cuts[1:], strict=True):
        places = (cut.source[order[a:b]].max() + cut.target[order[a:b]].max()) * (b - a)
        assert b == a + 1 or places <= budget
        if b < len(lengths):
            assert (cut.source[order[a : b + 1]].max() + cut.target[order[a : b + 1]].max()) * (b + 1 - a) > budget


def test_what_is_said_of_the_batches_is_their_mean():
    cut = PairBatches(drawn(), 8, seed=5)
    batches = epoch_of(cut, 2)
    places = sum(batch.tokens.numel() + batch.source.numel() for batch in batches)
    real = sum(batch.count + int(batch.lengths.sum()) for batch in batches)
    assert cut.padding == pytest.approx(1 - real / places)
    assert cut.tokens == round(sum(batch.count for batch in batches) / cut.steps)
    assert cut.rows == round(200 / cut.steps)


def test_sorting_leaves_a_quarter_of_the_padding_that_drawn_rows_would_have():
    cut = PairBatches(drawn(2000), 16, seed=5)
    unsorted = [lengths[:1984].reshape(-1, 16) for lengths in (cut.source, cut.target)]
    real, places = sum(x.sum() for x in unsorted), sum(x.max(1).sum() * 16 for x in unsorted)
    assert cut.padding < (1 - real / places) / 4


def test_a_batch_depends_on_seed_epoch_and_step_alone():
    in_order, jumping = (PairBatches(drawn(), 8, seed=5) for _ in range(2))
    places = [(epoch, step) for epoch in range(3) for step in range(in_order.steps)]
    told = {place: in_order.batch(*place) for place in places}
    torch.manual_seed(99)
    np.random.seed(99)
    for place in [places[i] for i in np.random.default_rng(1).permutation(len(places))]:
        again = jumping.batch(*place).tensors()
        assert all(torch.equal(again[name], x) for name, x in told[place].tensors().items())


def test_another_epoch_and_another_seed_bring_other_batches_in_another_order():
    cut, other = (PairBatches(drawn(200, 5), 8, seed=seed) for seed in (5, 6))
    asked = [(cut, 0), (cut, 1), (other, 0)]
    sets = [[frozenset(batch.index.tolist()) for batch in epoch_of(batches, epoch)] for batches, epoch in asked]
    assert set(sets[0]) != set(sets[1])
    assert set(sets[0]) != set(sets[2])
    widths = [[batch.tokens.shape[1] for batch in epoch_of(cut, epoch)] for epoch in (0, 1)]
    assert widths[0] != widths[1]
    assert sorted(widths[0]) == sorted(widths[1])


def test_rows_of_a_batch_keep_all_that_belongs_to_them():
    pairs = drawn()
    batch = PairBatches(pairs, 8, seed=5).batch(0, 3)
    part = batch.rows(2, 5)
    assert isinstance(part, PairBatch)
    assert part.tensors().keys() == batch.tensors().keys() == {"tokens", "targets", "source", "lengths", "index"}
    assert all(torch.equal(x, batch.tensors()[name][2:5]) for name, x in part.tensors().items())


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 20))
def test_scoring_asks_every_pair_once_and_says_where_it_stands(lengths, rows):
    pairs = made(lengths)
    batches = list(scoring(pairs, rows))
    assert sorted(int(n) for batch in batches for n in batch.index) == list(range(len(lengths)))
    for batch in batches:
        exact(batch, pairs)
        assert len(batch.index) <= rows


# --- words split by chance --------------------------------------------------------------------------------------------


def split(tmp_path, dropout: float, longest: int = 100):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"the hat number {n} sat\tder Hut Nummer {n} saß\n" for n in range(60)))
    given = {"source": 1, "target": 2, "vocab": 330, "valid": 0.0, "test": 0.0}
    return PairSource(path=str(path), **given, bpe_dropout=dropout, longest=longest).open()


def test_batches_split_by_chance_write_the_same_pairs_in_more_tokens(tmp_path):
    data = split(tmp_path, 0.4)
    cut, texts = data.batches(8, 5), list(data.texts())
    batches = epoch_of(cut, 1)
    for batch in batches:
        for n, source, length, targets in zip(batch.index, batch.source, batch.lengths, batch.targets, strict=True):
            told = data.tokenizers.decode_source(source[: int(length)]), data.tokenizers.decode_target(targets)
            assert told == texts[int(n)]
    assert sum(batch.count for batch in batches) > 1.1 * cut.tokens * cut.steps
    again = data.batches(8, 5).batch(1, 2).tensors()
    assert all(torch.equal(again[name], x) for name, x in batches[2].tensors().items())
    plain = epoch_of(split(tmp_path, 0.0).batches(8, 5), 1)
    assert [batch.index.tolist() for batch in batches] == [batch.index.tolist() for batch in plain]


def test_a_sentence_that_chance_makes_too_long_stays_as_it_is(tmp_path):
    whole = split(tmp_path, 0.0)
    longest = int(max(whole.train.source.lengths.max(), whole.train.target.lengths.max()))
    data = split(tmp_path, 0.9, longest)
    batches = epoch_of(data.batches(8, 5), 0)
    assert len(data.train) == 60
    assert max(int(batch.lengths.max()) for batch in batches) == longest + 1
    assert max(batch.tokens.shape[1] for batch in batches) == longest + 1


def told_apart(batch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a packed batch, each with its edges, from its documents and places alone."""
    found = []
    for r in range(len(batch.tokens)):
        asked = batch.targets[r] != IGNORE
        for n in batch.doc[r][asked].unique().tolist():
            mine, source = batch.doc[r] == n, batch.source_doc[r] == n
            ids = batch.source[r][source].tolist()
            assert batch.pos[r][mine].tolist() == list(range(int(mine.sum())))
            assert batch.source_pos[r][source].tolist() == list(range(len(ids)))
            tokens, answer = batch.tokens[r][mine].tolist(), batch.targets[r][mine].tolist()
            assert (tokens[0], answer[-1], ids[-1]) == (EDGES[1], EDGES[1], EDGES[0])
            assert tokens[1:] == answer[:-1]
            found.append((ids[:-1], answer[:-1]))
    return found


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, rows=st.integers(1, 40), epoch=st.integers(0, 2))
def test_packed_rows_hold_every_pair_once_an_epoch_each_told_apart(lengths, rows, epoch):
    pairs = made(lengths)
    cut = PackedPairs(pairs, rows, seed=5)
    batches = [cut.batch(epoch, step) for step in range(cut.steps)]
    assert len({(batch.tokens.shape, batch.source.shape) for batch in batches}) == 1
    found = sorted(pair for batch in batches for pair in told_apart(batch))
    assert found == sorted((pairs.source[n].tolist(), pairs.target[n].tolist()) for n in range(len(pairs)))


def test_packed_rows_of_like_sentences_are_nearly_full():
    lengths = np.random.default_rng(3).normal(13, 4, (2000, 1)).clip(3, 40) * np.ones((1, 2))
    lengths += np.random.default_rng(4).normal(0, 1, lengths.shape)
    assert PackedPairs(made(lengths.astype(int).clip(1).tolist()), 128, seed=0).padding < 0.08


def test_packed_rows_come_in_another_order_each_epoch_and_in_the_same_when_asked_again():
    cut, again = (PackedPairs(drawn(), 16, seed=1) for _ in range(2))
    assert torch.equal(cut.batch(1, 2).tokens, again.batch(1, 2).tokens)
    assert not torch.equal(cut.batch(1, 2).tokens, cut.batch(2, 2).tokens)
