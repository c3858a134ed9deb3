"""Recurrent language models: their equations written out by hand, and a state that reads on where it stopped."""

import pytest
import torch
from torch import Tensor

from harken.core import same
from harken.data.batch import Batch
from harken.errors import BadSetting
from harken.models.rnn import RNN, GRUShape, LSTMShape, RNNShape
from harken.recipe import resolve
from harken.tasks.next_word import nll

SHAPES = {"rnn": RNNShape, "gru": GRUShape, "lstm": LSTMShape}
VOCAB, d = 23, 8
every_kind = pytest.mark.parametrize("kind", SHAPES)


def build(kind: str, **fields) -> RNN:
    return SHAPES[kind](**{"d": d, "layers": 2, "context": 6, **fields}).build(VOCAB).eval().double()


def words(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


class ByHand:
    """One layer, one word at a time. W maps the input and U the state; gates lie one below the other, as torch does."""

    def __init__(self, model: RNN, layer: int) -> None:
        names = {"W": "weight_ih", "U": "weight_hh", "b": "bias_ih", "c": "bias_hh"}
        self.w = {key: getattr(model.cell, f"{name}_l{layer}").detach() for key, name in names.items()}

    def gates(self, x: Tensor, h: Tensor, many: int) -> list[tuple[Tensor, Tensor]]:
        """For each gate, what the input says and what the state says."""
        told = self.w["W"] @ x + self.w["b"], self.w["U"] @ h + self.w["c"]
        return list(zip(*(part.chunk(many) for part in told), strict=True))

    def rnn(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        [(a, b)] = self.gates(x, h, 1)
        return torch.tanh(a + b), c

    def gru(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        reset, keep, new = self.gates(x, h, 3)
        r, z = sigma(sum(reset)), sigma(sum(keep))
        n = torch.tanh(new[0] + r * new[1])
        return (1 - z) * n + z * h, c

    def lstm(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (sum(gate) for gate in self.gates(x, h, 4))
        c = sigma(f) * c + sigma(i) * torch.tanh(g)
        return sigma(o) * torch.tanh(c), c


@every_kind
def test_the_model_is_its_equations(kind):
    model, tokens = build(kind), words(L := 7)
    sequence = [model.embed.weight[word].detach() for word in tokens]
    for layer in range(2):
        cell, h, c = ByHand(model, layer), torch.zeros(d).double(), torch.zeros(d).double()
        for t in range(L):
            h, c = getattr(cell, kind)(sequence[t], h, c)
            sequence[t] = h
    by_hand = torch.stack(sequence) @ model.head.weight[:VOCAB].detach().mT
    torch.testing.assert_close(model.logits(model(tokens[None]))[0].detach(), by_hand)


@every_kind
def test_a_state_carried_over_two_batches_equals_one_long_batch(kind):
    model, tokens = build(kind), words(3, 12)
    state = model.memory(3, 6)
    halves = [model(tokens[:, :6], memory=state), model(tokens[:, 6:], memory=state)]
    torch.testing.assert_close(torch.cat(halves, 1), model(tokens))


@every_kind
def test_the_gradient_stops_where_the_batch_began(kind):
    model, tokens = build(kind), words(2, 6)
    state = model.memory(2, 6)
    model(tokens, memory=state)
    assert all(not part.requires_grad for part in state.parts)
    model(tokens, memory=state).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.cell.parameters())


def test_an_lstm_remembers_two_vectors_and_the_others_one():
    assert {kind: len(build(kind).memory(2, 6).parts) for kind in SHAPES} == {"rnn": 1, "gru": 1, "lstm": 2}


@every_kind
def test_packed_documents_are_refused_in_one_line(kind):
    doc = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(BadSetting) as refused:
        build(kind)(words(1, 4), structure=same(doc))
    assert str(refused.value) == (
        f"data.batching: a {kind} reads on across documents; use data.batching=stream, or model.kind=gpt"
    )


@every_kind
def test_it_reads_texts_of_any_length(kind):
    model = build(kind)
    assert model.context is None
    assert model(words(1, 50)).shape == (1, 50, d)


@every_kind
def test_its_batches_are_streams(kind):
    assert SHAPES[kind].stateful


@every_kind
def test_rounding_rows_are_not_scored(kind):
    model, tokens = build(kind), words(2, 7)
    total, _ = nll(model, Batch(tokens[:, :-1], tokens[:, 1:]))
    total.backward()
    assert not model.head.weight.grad[VOCAB:].any()


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
@pytest.mark.parametrize("size", RNNShape.dials["size"])
def test_the_size_sets_width_depth_and_context(kind, size):
    chosen = resolve(("test", {"model.kind": kind, "model.size": size})).model
    assert chosen.model_dump(include={"d", "layers", "context"}) == RNNShape.dials["size"][size]


@every_kind
def test_dropout_of_one_layer_gives_no_warning(kind):
    model, tokens = build(kind, layers=1, dropout=0.5).train(), words(2, 6)  # warnings are errors here
    assert not torch.equal(model(tokens), model(tokens))
