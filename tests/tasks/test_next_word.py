"""Next-word prediction: the loss, the metrics and the free baselines, each against a computation by hand."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import registry
from harken.data.batch import IGNORE, Batch
from harken.data.text.source import TextSource
from harken.errors import BadSetting
from harken.models import LanguageModel
from harken.tasks import linear_cross_entropy as words
from harken.tasks import next_word
from harken.tasks.next_word import NextWordTask, NextWordSettings, nll

TEXT = "the cat saw the dog and the dog saw the cat\n" * 12


def model(kind: str = "gpt", vocab: int = 20, dtype: torch.dtype = torch.float32, **fields) -> LanguageModel:
    tiny = {"d": 16, "layers": 1, "context": 8} | ({"heads": 2} if kind == "gpt" else {}) | fields
    torch.manual_seed(0)
    return registry.find_kind("model", kind)(**tiny).build(vocab).to(dtype)


def bound(path: Path, text: str = TEXT, *, kind: str = "gpt", task: dict | None = None, **data) -> NextWordTask:
    path.mkdir(exist_ok=True)
    (path / "a.txt").write_text(text)
    source = data.pop("source", None) or TextSource(path=str(path / "a.txt"), **data)
    shape = registry.find_kind("model", kind)(d=16, layers=1, context=8)
    opened = source.load_data(stateful=getattr(shape, "stateful", False))
    return NextWordSettings(**task or {}).bind(opened, shape, batch=4, seed=0)


class Fair(LanguageModel):
    """Every word is as likely as any other, whatever came before."""

    context = 8

    def forward(self, tokens: Tensor, **_) -> Tensor:
        return torch.zeros(*tokens.shape, 4)

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab, 4)
        nn.init.zeros_(self.head.weight)


class Bigram(LanguageModel):
    """ln p(next | this) from a table: its answers can be looked up."""

    def __init__(self, table: Tensor, context: int = 8) -> None:
        super().__init__(len(table), len(table))
        self.table, self.context = table, context
        with torch.no_grad():
            self.head.weight[: len(table)] = torch.eye(len(table))  # the score of a word is its place in h

    def forward(self, tokens: Tensor, **_) -> Tensor:
        return self.table[tokens]


def bigram(vocab: int) -> Tensor:
    return torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(1)).log_softmax(-1)


# --- the loss ---------------------------------------------------------------------------------------------------------


def some_batch(vocab: int = 20) -> Batch:
    tokens = torch.randint(vocab, (3, 9), generator=torch.Generator().manual_seed(3))
    targets = tokens[:, 1:].clone()
    targets[0, 3:], targets[2, 0] = IGNORE, IGNORE
    return Batch(tokens[:, :-1], targets)


def test_the_loss_is_minus_ln_p_of_each_rows_targets():
    table, batch = bigram(20), some_batch()
    pairs = [zip(a, b, strict=True) for a, b in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True)]
    by_hand = [-sum(float(table[x, y]) for x, y in row if y != IGNORE) for row in pairs]
    torch.testing.assert_close(nll(Bigram(table), batch)[1], torch.tensor(by_hand))


def test_the_summed_loss_is_the_sum_over_the_rows():
    total, rows = nll(model(), some_batch())
    torch.testing.assert_close(total.detach(), rows.sum())


@pytest.mark.parametrize("rows", [1, 2, 7, 24, 1000])
def test_scores_made_in_chunks_give_the_loss_and_the_gradient_of_whole_ones(monkeypatch, rows):
    monkeypatch.setitem(words.CHUNK, "cpu", rows * 64)  # 20 words are rounded up to 64
    net, batch = model(dtype=torch.float64), some_batch()
    total, _ = nll(net, batch)
    total.backward()
    chunked = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    whole = F.cross_entropy(net.logits(net(batch.tokens)).flatten(0, 1), batch.targets.flatten(), reduction="sum")
    whole.backward()
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(chunked, [p.grad for p in net.parameters()])


def test_no_more_scores_than_a_chunk_are_held_at_a_time(monkeypatch):
    monkeypatch.setitem(words.CHUNK, "cpu", 5 * 64)
    made = []
    monkeypatch.setattr(Tensor, "exp_", lambda p, exp_=Tensor.exp_: (made.append(len(p)), exp_(p))[1])
    nll(model(), some_batch())
    assert made == [5, 5, 5, 5, 4]


def test_judging_takes_no_gradients():
    net, batch = model(), some_batch()
    h, W = net(batch.tokens).detach().flatten(0, 1), net.head.weight.detach()
    given = h, W, None, batch.targets.flatten(), 20, 0.0
    for learning in (False, True):
        _, _, dh, dW, _ = words._losses(*given, learning)
        assert (dh is not None, dW is not None) == (learning, learning)


def test_the_loss_of_a_mixed_batch_is_told_for_each_text(tmp_path):
    for name, text in {"a": "abababab\n" * 9, "b": "aabbaabb\n" * 9}.items():
        (tmp_path / name).write_text(text)
    mix = {str(tmp_path / "a"): 1.0, str(tmp_path / "b"): 1.0}
    task = bound(tmp_path, source=TextSource(mix=mix))
    net = Bigram(bigram(task.data.vocab))
    batch = task.batch(0, 0)
    loss = task.loss(net, batch)
    rows = nll(net, batch)[1]
    for s, name in enumerate("ab"):
        total, count = loss.parts[name]
        assert count == int((batch.origin == s).sum()) * 8
        torch.testing.assert_close(total, rows[batch.origin == s].sum())
    assert sum(count for _, count in loss.parts.values()) == batch.n_targets


@pytest.mark.parametrize("rows", [2, 1000])
@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_smoothed_task_learns_from_torchs_smoothed_loss_and_tells_the_plain_one(tmp_path, monkeypatch, kind, rows):
    monkeypatch.setitem(words.CHUNK, "cpu", rows * 64)
    task = bound(tmp_path, kind=kind, task={"label_smoothing": 0.1})
    net, batch = model(kind, task.data.vocab, torch.float64), some_batch(task.data.vocab)
    loss = task.loss(net, batch)
    loss.total.backward()
    mine = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    scores, targets = net.logits(net(batch.tokens)).flatten(0, 1), batch.targets.flatten()
    want, plain = (F.cross_entropy(scores, targets, label_smoothing=e, reduction="sum") for e in (0.1, 0.0))
    want.backward()
    torch.testing.assert_close(loss.total, want)
    torch.testing.assert_close(loss.model_inputs, plain.detach())
    torch.testing.assert_close(mine, [p.grad for p in net.parameters()])


def test_a_smoothed_task_judges_as_a_plain_one(tmp_path):
    plain, smoothed = bound(tmp_path), bound(tmp_path, task={"label_smoothing": 0.4})
    net = model(vocab=plain.data.vocab)
    assert smoothed.evaluate(net, "valid") == plain.evaluate(net, "valid")


# --- the metrics ------------------------------------------------------------------------------------------------------


def test_a_fair_guess_among_v_words_has_perplexity_v(tmp_path):
    task = bound(tmp_path)
    found = task.evaluate(Fair(task.data.vocab), "valid").metrics
    assert found["perplexity"] == pytest.approx(task.data.vocab, rel=1e-5)
    assert found["loss"] == pytest.approx(math.log(task.data.vocab), rel=1e-5)


def test_bits_per_character_of_characters_are_bits_per_token(tmp_path):
    task = bound(tmp_path)
    found = task.evaluate(Fair(task.data.vocab), "valid").metrics
    assert found["bits_per_character"] == pytest.approx(math.log2(task.data.vocab), rel=1e-5)


def test_bits_per_character_of_words_are_spread_over_their_letters(tmp_path):
    task = bound(tmp_path, tokenizer="word")
    valid = task.data.splits["valid"][0]
    lines = TEXT.splitlines(keepends=True)[-(valid.n_characters // len(TEXT.splitlines()[0] + "\n")) :]
    letters, words = sum(map(len, lines)), sum(len(line.split()) + 1 for line in lines)  # and an end mark a line
    found = task.evaluate(Fair(task.data.vocab), "valid").metrics
    assert found["bits_per_character"] == pytest.approx(math.log2(task.data.vocab) * words / letters, rel=1e-5)


def test_every_token_after_the_first_is_asked(tmp_path):
    task = bound(tmp_path)
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))
    table = bigram(task.data.vocab)
    score = task.evaluate(Bigram(table), "valid")
    assert score.protocol["tokens"] == len(stream) - 1
    assert score.metrics["loss"] == pytest.approx(-float(table[stream[:-1], stream[1:]].mean()), rel=1e-5)


def test_the_first_word_is_asked_too_where_there_is_an_end_mark(tmp_path):
    task = bound(tmp_path, tokenizer="word")
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))
    before = torch.cat([torch.tensor([task.data.tokenizer.end_id]), stream[:-1]])
    table = bigram(task.data.vocab)
    score = task.evaluate(Bigram(table), "valid")
    assert score.protocol["tokens"] == len(stream)
    assert score.metrics["loss"] == pytest.approx(-float(table[before, stream].mean()), rel=1e-5)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_model_with_a_state_is_asked_every_token(tmp_path, kind):
    task = bound(tmp_path, TEXT + "and so on" * 3, kind=kind)  # a length that 16 readers do not share evenly
    stream = task.data.splits["valid"][0].tokens
    assert task.evaluate(model(kind, task.data.vocab), "valid").protocol["tokens"] == len(stream) - 1


def test_a_reader_with_a_state_reads_on_to_the_very_end(tmp_path, monkeypatch):
    monkeypatch.setattr(next_word, "EVAL_STREAMS", 1)
    task = bound(tmp_path, kind="lstm")
    net = model("lstm", task.data.vocab)
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))[None]
    whole = nll(net, Batch(stream[:, :-1], stream[:, 1:]))[0].detach() / (stream.numel() - 1)
    assert task.evaluate(net, "valid").metrics["loss"] == pytest.approx(float(whole), rel=1e-5)


def test_readers_side_by_side_leave_no_token_out(tmp_path, monkeypatch):
    task = bound(tmp_path, kind="gru")
    net = model("gru", task.data.vocab)
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))
    n = len(stream) - 1
    monkeypatch.setattr(next_word, "EVAL_STREAMS", 3)
    cuts = [0, n // 3, 2 * (n // 3), n]  # the last reader has the remainder
    assert n % 3
    rows = [stream[a : b + 1][None] for a, b in pairwise(cuts)]
    alone = sum(float(nll(net, Batch(row[:, :-1], row[:, 1:]))[1].sum()) for row in rows)
    assert task.evaluate(net, "valid").metrics["loss"] == pytest.approx(alone / n, rel=1e-5)


def test_bits_per_character_are_those_of_the_tokens_judged(tmp_path):
    """Long words first, then short ones: a limit that reaches the long ones only has fewer bits a character."""
    text = "incomprehensible understanding\n" * 9 + "a bb\n" * 60
    (tmp_path / "v.txt").write_text(text)
    task = bound(tmp_path, text, tokenizer="word", valid=str(tmp_path / "v.txt"), task={"eval_tokens": 27})
    for found in (task.evaluate(Fair(task.data.vocab), "valid").metrics, task.baselines("valid")["unigram"]):
        bits = 27 * found["loss"] / math.log(2)
        assert found["bits_per_character"] == pytest.approx(bits / len("incomprehensible understanding\n" * 9))


@pytest.mark.parametrize(
    ("tokens", "text", "asked", "characters"),
    [("char", "the ÿÿ the dog\n", 14, 12), ("word", "the ÿÿ dog\nyes\n", 6, len("the dog\n"))],
)
def test_an_unknown_token_is_told_and_is_no_character(tmp_path, tokens, text, asked, characters):
    (tmp_path / "v.txt").write_text(text)
    task = bound(tmp_path, tokens=tokens, valid=str(tmp_path / "v.txt"))
    score = task.evaluate(Fair(task.data.vocab), "valid")
    assert score.protocol["tokens"] == asked
    assert score.protocol["unknown"] == pytest.approx(2 / asked, rel=1e-3)
    bits = asked * math.log2(task.data.vocab)
    assert score.metrics["bits_per_character"] == pytest.approx(bits / characters, rel=1e-5)


def test_the_protocol_names_context_stride_unknown_share_and_what_the_baselines_learned_from(tmp_path):
    task = bound(tmp_path, task={"stride": 3})
    learned = len(task.data.train[0].tokens)
    assert task.evaluate(Fair(task.data.vocab), "valid").protocol | {"tokens": 0} == {
        "tokens": 0,
        "context": 8,
        "stride": 3,
        "unknown": 0.0,
        "baseline_tokens": learned,
    }


def test_where_nothing_is_unknown_the_protocol_does_not_speak_of_it(tmp_path):
    task = bound(tmp_path, tokenizer="byte")
    assert "unknown" not in task.evaluate(Fair(task.data.vocab), "valid").protocol


def test_baselines_that_learn_from_a_part_of_the_text_say_from_how_much(tmp_path, monkeypatch):
    monkeypatch.setattr(next_word, "BASELINE_TOKENS", 50)
    task = bound(tmp_path)
    assert task.evaluate(Fair(task.data.vocab), "valid").protocol["baseline_tokens"] == 50
    p = (np.bincount(task.data.train[0].tokens[:50], minlength=task.data.vocab) + 1) / (50 + task.data.vocab)
    asked = task.data.splits["valid"][0].tokens[1:]
    assert task.baselines("valid")["unigram"]["loss"] == pytest.approx(-np.log(p[asked]).mean(), rel=1e-6)


def test_without_the_text_learned_from_there_are_no_baselines(tmp_path):
    task = bound(tmp_path)
    shape = registry.find_kind("model", "gpt")(d=16, layers=1, heads=2, context=8)
    alone = NextWordSettings().bind(replace(task.data, has_train=False), shape, batch=4, seed=0)
    assert alone.baselines("valid") == {}
    assert "baseline_tokens" not in alone.evaluate(Fair(task.data.vocab), "valid").protocol


def test_the_stride_is_half_the_context_unless_it_is_said(tmp_path):
    assert bound(tmp_path).stride == 4


def test_a_stride_longer_than_the_context_would_leave_words_out_and_is_the_context(tmp_path):
    assert bound(tmp_path, task={"stride": 100}).stride == 8


def test_a_smaller_stride_gives_words_more_context(tmp_path):
    """A model that only knows what stood 7 tokens before: with a stride of 1 it always knows, else only at times."""

    class Echo(Bigram):
        def forward(self, tokens: Tensor, **_) -> Tensor:
            seen = torch.zeros(*tokens.shape, self.vocab)
            seen[:, 7:] = 50.0 * F.one_hot(tokens[:, :-7], self.vocab)
            return seen

    losses = []
    for stride in (1, 4, 8):
        task = bound(tmp_path, "abcdefgh" * 60, task={"stride": stride})
        losses.append(task.evaluate(Echo(bigram(task.data.vocab)), "valid").metrics["loss"])
    assert losses[0] < losses[1] < losses[2]


def test_a_limit_scores_the_first_tokens_only(tmp_path):
    task = bound(tmp_path, task={"eval_tokens": 20})
    assert task.evaluate(Fair(task.data.vocab), "valid").protocol["tokens"] == 19


def test_a_limit_is_of_all_mixed_texts_together(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(TEXT * 4)
    source = TextSource(mix={str(tmp_path / "a"): 1.0, str(tmp_path / "b"): 1.0}, valid=0.5)
    task = bound(tmp_path, source=source, task={"eval_tokens": 500})
    score = task.evaluate(Fair(task.data.vocab), "valid")
    assert score.protocol["tokens"] == 500 - 2  # the first of each is only read
    assert list(score.parts) == ["a", "b"]


@pytest.mark.parametrize("quick", [False, True])
def test_a_look_computes_as_many_tokens_at_a_time_as_fit_whatever_the_batch(tmp_path, monkeypatch, quick):
    task, seen = bound(tmp_path), []
    net = model(vocab=task.data.vocab)
    whole = task.evaluate(net, "valid", quick=quick)
    net.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    monkeypatch.setattr(next_word, "AT_ONCE", 17)
    assert task.evaluate(net, "valid", quick=quick).metrics == pytest.approx(whole.metrics, rel=1e-6)
    assert max(rows for rows, _ in seen) == 2


def test_evaluating_leaves_the_model_in_training_and_without_gradients(tmp_path):
    task = bound(tmp_path)
    net = model(vocab=task.data.vocab, dropout=0.5).train()
    first, second = (task.evaluate(net, "valid").metrics["loss"] for _ in range(2))
    assert net.training
    assert first == second
    assert all(p.grad is None for p in net.parameters())


def test_mixed_texts_are_judged_each_by_its_own_name(tmp_path):
    for name, text in {"a": "abababab\n" * 9, "b": "x\n", "c": "aabbaabb\n" * 9}.items():
        (tmp_path / name).write_text(text)
    mix = {str(tmp_path / name): 1.0 for name in ("a", "b", "c")}
    opened = TextSource(mix=mix, tokenizer="word").load_data()  # b is one line: nothing of it is held out
    task = NextWordSettings().bind(
        opened, registry.find_kind("model", "gpt")(d=16, layers=1, heads=2, context=1), batch=4, seed=0
    )
    score = task.evaluate(Bigram(bigram(opened.vocab), context=1), "valid")
    assert list(score.parts) == ["a", "c"]


# --- baselines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", ["char", "word"])
def test_the_unigram_baseline_is_judged_on_the_tokens_the_model_is_judged_on(tmp_path, tokens):
    task = bound(tmp_path, tokens=tokens)
    train, valid = task.data.train[0].tokens, task.data.splits["valid"][0].tokens
    asked = valid if tokens == "word" else valid[1:]
    p = (np.bincount(train, minlength=task.data.vocab) + 1) / (len(train) + task.data.vocab)
    assert task.evaluate(Fair(task.data.vocab), "valid").protocol["tokens"] == len(asked)
    assert task.baselines("valid")["unigram"]["loss"] == pytest.approx(-np.log(p[asked]).mean(), rel=1e-6)


def test_the_baselines_have_the_metrics_of_the_model(tmp_path):
    task = bound(tmp_path)
    metrics = task.evaluate(Fair(task.data.vocab), "valid").metrics
    assert {name: list(found) for name, found in task.baselines("valid").items()} == {
        "unigram": list(metrics),
        "5-gram Kneser-Ney": list(metrics),
    }


# --- a model with a state ---------------------------------------------------------------------------------------------


def test_the_state_goes_on_from_batch_to_batch(tmp_path):
    task = bound(tmp_path, kind="lstm", valid=0.0)
    net = model("lstm", task.data.vocab)
    losses = [float(task.loss(net, task.batch(0, step)).total.detach()) for step in range(task.steps)]
    whole = torch.cat([task.batch(0, step).tokens for step in range(task.steps)], 1)
    asked = torch.cat([task.batch(0, step).targets for step in range(task.steps)], 1)
    assert sum(losses) == pytest.approx(float(nll(net, Batch(whole, asked))[1].sum()), rel=1e-5)


def test_a_saved_state_goes_on_as_the_one_it_was_saved_from(tmp_path):
    first, second = (bound(tmp_path, kind="lstm") for _ in range(2))
    net = model("lstm", first.data.vocab)
    for step in range(3):
        first.loss(net, first.batch(0, step))
    second.load_state({name: t.clone() for name, t in first.state().items()})
    assert torch.equal(first.loss(net, first.batch(0, 3)).total, second.loss(net, second.batch(0, 3)).total)


def test_a_saved_state_is_told_before_it_is_used(tmp_path):
    """A step that finds no memory right after a resumption is made again from what it is told here."""
    task, saved = bound(tmp_path, kind="lstm"), {"0": torch.ones(1, 4, 16), "1": torch.zeros(1, 4, 16)}
    task.load_state(saved)
    assert task.state() == saved


def test_a_model_without_a_state_may_read_streams_too(tmp_path):
    task = bound(tmp_path, batching="stream")
    net = model(vocab=task.data.vocab)
    task.loss(net, task.batch(0, 0)).total.backward()
    assert task.loss(net, task.batch(0, 1)).total.isfinite()


def test_packed_documents_are_refused_by_a_model_with_a_state(tmp_path):
    task = bound(tmp_path, kind="gru", batching="packed", documents="line")
    with pytest.raises(BadSetting, match=r"^data.batching: a gru reads on across documents; use data.batching=stream"):
        task.loss(model("gru", task.data.vocab), task.batch(0, 0))


def test_the_tokens_of_a_batch_are_those_that_are_there(tmp_path):
    task = bound(tmp_path, "ab" * 12, valid=0)  # two windows of 8, though four rows are asked for
    assert task.tokens == task.batch(0, 0).n_targets == 16
