"""Copying: the mixture against loops in float64, its gradients, beams, caches, and models that do not copy."""

import itertools
import math

import pytest
import torch

from harken.core import FULL, FixedMemory, keep
from harken.data.pairs.batch import PairBatch
from harken.decode.beam import BeamSearch, SearchSettings
from harken.experiments.audit.audit import audit
from harken.models.bert_seq2seq import BERTSeq2SeqSettings
from harken.models.pointer import Pointer
from harken.models.rnn_seq2seq import RNNAttentionSettings
from harken.models.seq2seq import TransformerSettings
from harken.settings import PairVocab
from harken.tasks.next_word import nll
from harken.training.step import CompiledModel

WORDS, TEMPORARY = 6, 3  # ids 0-5 are words, 6-8 temporary words, 9 is the edge token
VOCAB = PairVocab(WORDS + TEMPORARY + 1, WORDS + TEMPORARY + 1, TEMPORARY)
EDGE = VOCAB[1] - 1
SOURCE = torch.tensor([[2, 7, 6, 7, 2, EDGE], [0, 6, EDGE, EDGE, EDGE, EDGE]])
LENGTHS = torch.tensor([6, 3])
SIZE = {"d": 16, "layers": 1, "heads": 2, "dropout": 0.0}
MODELS = {
    "transformer": TransformerSettings(**SIZE, copy=True),
    "rnn-attention": RNNAttentionSettings(d=16, layers=2, copy=True),
    "bert": BERTSeq2SeqSettings(**SIZE, decoder_layers=1, copy=True),
}


@torch.no_grad()
def brute_force(pointer: Pointer, h, H, words, real, logits) -> list[list[float]]:
    """p of every word after each state of one row, by the equation."""
    d, rows = h.shape[-1], []
    for state, scores in zip(h, logits, strict=True):
        q = pointer.W_q.weight @ state + pointer.W_q.bias
        keys = [pointer.W_k.weight @ x + pointer.W_k.bias for x in H]
        weights = [math.exp(float(q @ k) / math.sqrt(d)) if ok else 0.0 for k, ok in zip(keys, real, strict=True)]
        gate = 1 / (1 + math.exp(-float(pointer.gate(state))))
        generated = [0.0 if WORDS <= n < EDGE else math.exp(float(x)) for n, x in enumerate(scores)]
        p = [gate * x / sum(generated) for x in generated]
        for word, weight in zip(words.tolist(), weights, strict=True):
            p[word] += (1 - gate) * weight / sum(weights)
        rows.append(p)
    return rows


@pytest.fixture
def example():
    torch.manual_seed(0)
    pointer = Pointer(8, VOCAB).double()
    h, H, logits = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 4, 8), (2, 6, 8), (2, 4, VOCAB[1])))
    real = torch.arange(6) < LENGTHS[:, None]
    expected = [brute_force(pointer, *row) for row in zip(h, H, SOURCE, real, logits, strict=True)]
    return pointer, h, pointer.memory(H, SOURCE), real, logits, torch.tensor(expected, dtype=torch.float64)


def test_the_mixture_equals_loops_in_float64(example):
    pointer, h, memory, real, logits, expected = example
    logs = pointer.log_probabilities(pointer(h, memory, keep(real)), logits)
    torch.testing.assert_close(logs.exp(), expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(logs == -torch.inf, expected == 0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_losses_equal_the_mixture_and_smoothing_that_of_the_vocabulary(example, smoothing):
    pointer, h, memory, real, logits, expected = example
    targets = torch.tensor([[7, 2, 5, EDGE], [6, 0, 1, EDGE]])
    plain, smoothed = pointer.losses(pointer(h, memory, keep(real)), logits, targets, smoothing)
    torch.testing.assert_close(plain, -expected.gather(-1, targets[..., None])[..., 0].log())
    columns = [*range(WORDS), EDGE]
    uniform = -logits[..., columns].log_softmax(-1).mean(-1)
    torch.testing.assert_close(smoothed, (1 - smoothing) * plain + smoothing * uniform)


def test_the_gradients_of_losses_and_of_log_probabilities_are_equal(example):
    pointer, h, memory, real, logits, _ = example
    targets, gradients = torch.tensor([[7, 2, 5, EDGE], [6, 0, 1, EDGE]]), []
    for total in (
        lambda states: pointer.losses(states, logits, targets, 0.0)[0].sum(),
        lambda states: -pointer.log_probabilities(states, logits).gather(-1, targets[..., None]).sum(),
    ):
        x = h.clone().requires_grad_()
        gradients.append(torch.autograd.grad(total(pointer(x, memory, keep(real))), [x, *pointer.gate.parameters()]))
    for a, b in zip(*gradients, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b)


def test_a_target_that_the_weights_exclude_has_a_finite_loss_with_gradients():
    pointer = Pointer(4, VOCAB)
    keys = torch.zeros(1, 1, 2, 4)
    keys[0, 0, 0] = 500.0
    q = torch.ones(1, 1, 4, requires_grad=True)
    with torch.no_grad():
        pointer.W_q.weight.copy_(torch.eye(4))
        pointer.W_q.bias.zero_()
    states = pointer(q, FixedMemory(keys, torch.tensor([[6, 7]])), FULL)
    (loss,), _ = pointer.losses(states, torch.zeros(1, 1, VOCAB[1]), torch.tensor([[7]]), 0.0)
    loss.sum().backward()
    assert 900 < loss.item() < 1100  # the score of the other word is 1000 higher
    assert q.grad.isfinite().all()
    assert q.grad.abs().max() > 0


def test_bfloat16_autocast_computes_the_mixture_in_float32(example):
    pointer, h, memory, real, logits, expected = example
    pointer.float()
    with torch.autocast("cpu", torch.bfloat16):
        states = pointer(h.float(), FixedMemory(memory.k.float(), memory.v), keep(real))
        logs = pointer.log_probabilities(states, logits.bfloat16())
    assert logs.dtype == states.log_copy.dtype == torch.float32
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(2, 4), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logs.exp(), expected.float(), rtol=0.1, atol=0.02)


@pytest.mark.parametrize("kind", MODELS)
def test_probabilities_sum_to_one_and_absent_temporary_words_have_none(kind):
    torch.manual_seed(0)
    model = MODELS[kind].build(VOCAB).eval()
    tokens = torch.randint(VOCAB[1], (2, 5))
    p = model.scores(tokens, source=SOURCE, source_lengths=LENGTHS).exp()
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 5))
    assert (p[:, :, 8] == 0).all()
    assert (p[1, :, 7] == 0).all()
    assert (p[0, :, 6:8] > 0).all()


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_copies_passes_the_audit_of_masks_and_caches(kind):
    report = audit(MODELS[kind].build(VOCAB))
    assert report.passed
    assert {check.name for check in report.checks if check.outcome == "passed"} >= {
        "causal", "gradient", "padding", "source_padding", "cache", "batching",
    }  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_without_copying_has_the_same_initial_weights(kind):
    weights = []
    for copy in (False, True):
        torch.manual_seed(1)
        weights.append(MODELS[kind].model_copy(update={"copy": copy}).build(VOCAB).state_dict())
    plain, copying = weights
    assert {name for name in copying if name not in plain} == {
        f"pointer.{layer}.{part}" for layer in ("W_q", "W_k", "gate") for part in ("weight", "bias")
    }
    assert all(torch.equal(plain[name], copying[name]) for name in plain)


@pytest.mark.parametrize("kind", MODELS)
def test_beam_search_gives_the_best_of_all_targets_and_its_log_probability(kind):
    torch.manual_seed(2)
    model = MODELS[kind].build(VOCAB).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1.5)
    source = [2, 7, 6, EDGE]
    settings = SearchSettings(beam=200, alternatives=5, max_new_tokens=2, length_penalty=0.0)
    (best,) = BeamSearch(model).search([source], settings)
    targets = [target for n in range(3) for target in itertools.product(range(EDGE), repeat=n)]
    scores = {target: log_probability(model, source, target) for target in targets}
    expected = sorted(scores, key=lambda target: -scores[target])[:5]
    assert [tuple(hypothesis.tokens) for hypothesis in best] == expected
    assert [hypothesis.score for hypothesis in best] == pytest.approx([scores[target] for target in expected])


@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_model_that_copies_has_the_same_loss(kind, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    model = MODELS[kind].build(VOCAB).eval()
    tokens, targets = torch.tensor([[EDGE, 2], [EDGE, 0]]), torch.tensor([[2, 7], [0, EDGE]])
    batch = PairBatch(tokens, targets, source=SOURCE, lengths=LENGTHS)
    eager, compiled = nll(model, batch), nll(CompiledModel(model, print), batch)
    for expected, loss in zip(eager, compiled, strict=True):
        torch.testing.assert_close(loss, expected)


@torch.no_grad()
def log_probability(model, source, target) -> float:
    """The sum of ln p of the tokens of a target; one of maximum length needs no end."""
    tokens, ends = torch.tensor([[EDGE, *target]]), [*target, EDGE][:2]
    logs = model.scores(tokens, source=torch.tensor([source]))[0]
    return sum(float(logs[n, token]) for n, token in enumerate(ends))
