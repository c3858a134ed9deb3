"""Recurrent language models: their equations, and a state that continues in the next batch."""

import pytest
import torch
from torch import Tensor

from harken.core import same
from harken.data.batch import Batch
from harken.errors import BadSetting
from harken.models.rnn import RNN, GRUSettings, LSTMSettings, RNNSettings
from harken.recipe import resolve
from harken.tasks.next_word import nll

SETTINGS = {"rnn": RNNSettings, "gru": GRUSettings, "lstm": LSTMSettings}
VOCAB, d = 23, 8
every_kind = pytest.mark.parametrize("kind", SETTINGS)


def build(kind: str, **fields) -> RNN:
    return SETTINGS[kind](**{"d": d, "layers": 2, "context": 6, **fields}).build(VOCAB).eval().double()


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


class ByHand:
    """One layer, one token at a time. W maps the input and U the state; gates are stacked as in torch."""

    def __init__(self, model: RNN, layer: int) -> None:
        names = {"W": "weight_ih", "U": "weight_hh", "b": "bias_ih", "c": "bias_hh"}
        self.w = {key: getattr(model.cell, f"{name}_l{layer}").detach() for key, name in names.items()}

    def gates(self, x: Tensor, h: Tensor, n: int) -> list[tuple[Tensor, Tensor]]:
        """The terms of the input and of the state for each gate."""
        terms = self.w["W"] @ x + self.w["b"], self.w["U"] @ h + self.w["c"]
        return list(zip(*(term.chunk(n) for term in terms), strict=True))

    def rnn(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        [(a, b)] = self.gates(x, h, 1)
        return torch.tanh(a + b), c

    def gru(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        reset, update, new = self.gates(x, h, 3)
        r, z = sigma(sum(reset)), sigma(sum(update))
        n = torch.tanh(new[0] + r * new[1])
        return (1 - z) * n + z * h, c

    def lstm(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (sum(gate) for gate in self.gates(x, h, 4))
        c = sigma(f) * c + sigma(i) * torch.tanh(g)
        return sigma(o) * torch.tanh(c), c


@every_kind
def test_the_model_equals_its_equations(kind):
    model, tokens = build(kind), random_tokens(L := 7)
    sequence = [model.embed.weight[token].detach() for token in tokens]
    for layer in range(2):
        cell, h, c = ByHand(model, layer), torch.zeros(d).double(), torch.zeros(d).double()
        for t in range(L):
            h, c = getattr(cell, kind)(sequence[t], h, c)
            sequence[t] = h
    by_hand = torch.stack(sequence) @ model.head.weight[:VOCAB].detach().mT
    torch.testing.assert_close(model.logits(model(tokens[None]))[0].detach(), by_hand)


@every_kind
def test_a_state_over_two_batches_equals_one_long_batch(kind):
    model, tokens = build(kind), random_tokens(3, 12)
    state = model.memory(3, 6)
    halves = [model(tokens[:, :6], memory=state), model(tokens[:, 6:], memory=state)]
    torch.testing.assert_close(torch.cat(halves, 1), model(tokens))


@every_kind
def test_the_gradient_stops_at_the_start_of_the_batch(kind):
    model, tokens = build(kind), random_tokens(2, 6)
    state = model.memory(2, 6)
    model(tokens, memory=state)
    assert all(not part.requires_grad for part in state.parts)
    model(tokens, memory=state).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.cell.parameters())


def test_the_state_of_an_lstm_has_two_parts():
    assert {kind: len(build(kind).memory(2, 6).parts) for kind in SETTINGS} == {"rnn": 1, "gru": 1, "lstm": 2}


@every_kind
def test_packed_documents_are_reported(kind):
    doc = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(BadSetting) as error:
        build(kind)(random_tokens(1, 4), structure=same(doc))
    assert str(error.value) == (
        f"data.batching: model.kind={kind} cannot separate documents in a row; set data.batching=stream or "
        "model.kind=gpt"
    )


@every_kind
def test_texts_may_have_any_length(kind):
    model = build(kind)
    assert model.context is None
    assert model(random_tokens(1, 50)).shape == (1, 50, d)


@every_kind
def test_recurrent_models_are_stateful(kind):
    assert SETTINGS[kind].stateful


@every_kind
def test_padding_rows_of_the_vocabulary_get_no_gradient(kind):
    model, tokens = build(kind), random_tokens(2, 7)
    total, _ = nll(model, Batch(tokens[:, :-1], tokens[:, 1:]))
    total.backward()
    assert not model.head.weight.grad[VOCAB:].any()


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
@pytest.mark.parametrize("size", RNNSettings.dials["size"])
def test_the_size_sets_width_depth_and_context(kind, size):
    settings = resolve(("test", {"model.kind": kind, "model.size": size})).model
    assert settings.model_dump(include={"d", "layers", "context"}) == RNNSettings.dials["size"][size]


@every_kind
def test_dropout_of_one_layer_gives_no_warning(kind):
    model, tokens = build(kind, layers=1, dropout=0.5).train(), random_tokens(2, 6)  # warnings are errors
    assert not torch.equal(model(tokens), model(tokens))
