"""Batches of stories: the latest lines, their ages, and empty lines as noise."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from harken.data.stories.babi import normalize_words, parse_questions
from harken.data.stories.batch import StoryBatches, StoryTable
from harken.data.stories.source import Stories, StoryProcessor, encode_stories
from harken.data.synthetic.stories import stories
from harken.data.tokenizers.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def part() -> Stories:
    lines = enumerate("".join(stories(2, 40)).splitlines(), 1)
    questions = parse_questions(Path("qa2_train.txt"), lines, pytest.fail)
    text = " ".join(normalize_words(line) for q in questions for line in (*q.lines, q.question, q.answer))
    tokenizer = train_tokenizer("word", lambda: [text], 99)
    return encode_stories(questions, StoryProcessor(tokenizer, sorted({q.answer for q in questions})), 512)


def make_batches(part: Stories, memory: int = 8, **settings) -> StoryBatches:
    return StoryBatches(StoryTable(part, memory), 7, memory, **{"seed": 3, "noise": 0.0, "linear": 0, **settings})


def first_inputs(batches: StoryBatches) -> dict[str, torch.Tensor]:
    batch = batches.batch(0, 0)
    return batches.table.model_inputs(batch.tokens[:, 0], batch.blank_positions)


def test_an_epoch_has_every_question_at_most_once_in_its_own_order(part):
    batches = make_batches(part)
    epochs = [[batches.batch(epoch, s).tokens[:, 0].tolist() for s in range(batches.steps)] for epoch in (0, 1, 0)]
    assert batches.steps == 5
    assert epochs[0] == epochs[2] != epochs[1]
    assert len({n for indices in epochs[0] for n in indices}) == 35


def test_the_latest_lines_are_used_and_ages_count_back_from_the_last(part):
    table = StoryTable(part, 8)
    long = next(n for n, rows in enumerate(part.story) if len(rows) > 8)
    short = next(n for n, rows in enumerate(part.story) if len(rows) == 3)
    inputs = table.model_inputs(torch.tensor([long, short]))
    assert inputs["lines"].tolist() == part.table[[part.story[long][-8:], [*part.story[short], *[0] * 5]]].tolist()
    assert inputs["ages"].tolist() == [[7, 6, 5, 4, 3, 2, 1, 0], [2, 1, 0, 0, 0, 0, 0, 0]]
    assert inputs["question"].tolist() == part.table[part.question[[long, short]]].tolist()


def test_the_inputs_of_many_questions_are_rows_of_a_table_of_distinct_lines(part):
    table = StoryTable(part, 8)
    single, many = table.model_inputs(torch.tensor([0])), table.model_inputs(torch.arange(40))
    assert many["lines"].shape == table.table.shape
    assert torch.equal(many["lines"][many["rows"][:1]], single["lines"])


def test_a_batch_counts_its_questions_and_words(part):
    batch = make_batches(part).batch(0, 0)
    lines = [line for n in batch.tokens[:, 0].tolist() for line in [*part.story[n][-8:], part.question[n]]]
    assert (batch.n_targets, batch.n_tokens) == (7, int((part.table[lines] > 0).sum()))


def test_noise_increases_the_ages_and_keeps_the_order_of_the_lines(part):
    plain, noisy = (first_inputs(make_batches(part, 30, noise=noise)) for noise in (0.0, 0.5))
    assert set(plain) == set(noisy)
    assert torch.equal(plain["lines"], noisy["lines"])
    assert (noisy["ages"] >= plain["ages"]).all()
    assert (noisy["ages"] > plain["ages"]).any()
    assert noisy["ages"].max() < 30
    counts = StoryTable(part, 30).counts[make_batches(part, 30).batch(0, 0).tokens[:, 0]]
    for ages, count in zip(noisy["ages"].tolist(), counts.tolist(), strict=True):
        assert all(a > b for a, b in pairwise(ages[:count]))
        assert max(ages) < count + math.ceil(count / 2)
    assert torch.equal(first_inputs(make_batches(part, 30, noise=0.5))["ages"], noisy["ages"])


def test_a_story_that_fills_the_memory_has_no_empty_lines(part):
    table = StoryTable(part, 4)
    full = table.counts == 4
    batch = StoryBatches(table, 40, 4, seed=0, noise=1.0, linear=0).batch(0, 0)
    assert full.any()
    assert (batch.blank_positions[full[batch.tokens[:, 0]]] == -1).all()


def test_only_the_first_epochs_are_linear(part):
    batches = make_batches(part, linear=2)
    assert [batches.batch(epoch, 0).linear for epoch in range(4)] == [True, True, False, False]
    assert [batches.batch(epoch, 0).static_shape for epoch in (1, 2)] == [False, True]
