"""Recurrent encoder-decoders: the equations of Bahdanau, one context vector, and views of the attention."""

import math

import pytest
import torch
from torch import Tensor

from harken.core import editing, watching
from harken.errors import BadSetting
from harken.models.rnn_seq2seq import RNNAttention, RNNAttentionSettings, RNNSeq2Seq, RNNSeq2SeqSettings

VOCAB, d = 17, 6
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])


def attention(**fields) -> RNNAttention:
    return RNNAttentionSettings(**{"d": d, **fields}).build((VOCAB, VOCAB)).double().eval()


def plain(**fields) -> RNNSeq2Seq:
    return RNNSeq2SeqSettings(**{"d": d, **fields}).build((VOCAB, VOCAB)).double().eval()


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def gru(w: dict[str, Tensor], x: Tensor, s: Tensor) -> Tensor:
    """One step of a GRU; the gates are stacked as in torch."""
    a, b = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ s + w["bias_hh"]
    r, z = torch.sigmoid(a[:d] + b[:d]), torch.sigmoid(a[d : 2 * d] + b[d : 2 * d])
    return (1 - z) * torch.tanh(a[2 * d :] + r * b[2 * d :]) + z * s


@torch.no_grad()
def test_additive_attention_equals_the_equations_of_bahdanau():
    model, source, tokens = attention(), random_tokens(1, 5), random_tokens(4)
    H, context = model.encoder(model.source_embed(source) * d**0.5, None)
    H, s = H[0], torch.tanh(model.first_state(context))[0]
    inner = model.cross.similarity.inner
    cell = dict(model.cell.named_parameters())
    by_hand = []
    for token in tokens:
        y = model.embed.weight[token] * d**0.5
        e = torch.stack([inner.w @ torch.tanh(s @ inner.W_q[0] + h @ inner.W_k[0]) for h in H])
        a = e.exp() / e.exp().sum()
        c = sum(a_j * h for a_j, h in zip(a, H, strict=True))
        s = gru(cell, torch.cat([y, c]), s)
        by_hand.append(torch.tanh(model.output_projection.weight @ torch.cat([s, c, y]) + model.output_projection.bias))
    torch.testing.assert_close(model(tokens[None], source=source)[0], torch.stack(by_hand))


@every_cell
@torch.no_grad()
def test_the_encoder_equals_bidirectional_layers_of_torch(cell):
    """Bidirectional layers of torch over packed sentences, with the same weights."""
    model, x, lengths = plain(cell=cell, layers=2), torch.randn(3, 5, d).double(), torch.tensor([5, 2, 4])
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    reference = kind(d, d // 2, 2, batch_first=True, bidirectional=True).double()
    for n, layer in enumerate(model.encoder.cells):
        for name, weights in layer.named_parameters():
            reference.get_parameter(name.replace("_l0", f"_l{n // 2}{'_reverse' * (n % 2)}")).copy_(weights)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last = reference(packed)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    last = last[0] if cell == "lstm" else last
    real = torch.arange(5) < lengths[:, None]
    H, context = model.encoder(x, real)
    torch.testing.assert_close(H * real[..., None], out)
    torch.testing.assert_close(context, torch.cat([last[-2], last[-1]], -1))


@pytest.mark.parametrize("context", ["start", "each"])
def test_without_attention_the_output_depends_on_the_context_vector_only(context):
    """Sources of different length with the same context vector give the same output."""
    model, tokens = plain(context=context), random_tokens(2, 4)
    c = torch.randn(1, d).double()
    model.encoder.forward = lambda x, real: (x, c.expand(len(x), -1))
    outputs = [model(tokens, source=random_tokens(2, n)) for n in (3, 8)]
    assert torch.equal(*outputs)


@torch.no_grad()
def test_a_context_at_each_step_does_not_depend_on_the_state():
    tokens, source = random_tokens(1, 3), random_tokens(1, 4)
    differs = {}
    for context in ("start", "each"):
        model = plain(context=context)
        memory = model.memory(1, 3, source)
        memory.write([torch.zeros_like(part) for part in memory.parts])
        reversed_memory = model.memory(1, 3, source.flip(1))
        reversed_memory.write([torch.zeros_like(part) for part in reversed_memory.parts])
        differs[context] = not torch.equal(model(tokens, memory=memory), model(tokens, memory=reversed_memory))
    assert differs == {"start": False, "each": True}


@torch.no_grad()
def test_watching_records_the_weights_of_a_step():
    model, source = attention(), random_tokens(2, 5)
    memory = model.memory(4, 3, source, torch.tensor([5, 3]))
    s = memory.parts[0][:, 0].clone()
    with watching(model) as views:
        model(random_tokens(4, 1), memory=memory)
    A = views["cross"].full()  # two texts per source are two queries
    assert A.shape == (2, 1, 2, 5)
    H, inner = memory.source.encoded[2], model.cross.similarity.inner
    by_hand = torch.tanh((s @ inner.W_q[0]).view(2, 2, 1, d) + (H @ inner.W_k[0])[:, None]) @ inner.w  # B K Ls
    by_hand[1, :, 3:] = -torch.inf
    torch.testing.assert_close(A[:, 0], by_hand.softmax(-1))


@torch.no_grad()
def test_one_view_contains_the_steps_of_a_pass_in_order():
    model, source, tokens = attention(layers=2), random_tokens(2, 5), random_tokens(2, 4)
    lengths = torch.tensor([5, 3])
    with watching(model) as views:
        model(tokens, source=source, source_lengths=lengths)
        one_pass, memory = views["cross"].full(), model.memory(2, 4, source, lengths)
        for n in range(4):
            model(tokens[:, n : n + 1], memory=memory)
            torch.testing.assert_close(one_pass[:, :, n], views["cross"].full()[:, :, 0])


@torch.no_grad()
def test_editing_replaces_the_weights_of_a_step():
    model, source, tokens = attention(), random_tokens(1, 5), random_tokens(1, 3)
    before = model(tokens, source=source)
    with editing(model, "cross", torch.zeros_like):
        assert not torch.equal(model(tokens, source=source), before)
    assert torch.equal(model(tokens, source=source), before)


def test_the_keys_of_a_source_are_projected_once(monkeypatch):
    model, n_keys = attention(), []
    inner, project = model.cross.similarity.inner, model.cross.similarity.inner.project

    def spy(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        n_keys.append(k.shape[-2])
        return project(q, k)

    monkeypatch.setattr(inner, "project", spy)
    model(random_tokens(2, 4), source=random_tokens(2, 5))
    assert n_keys == [2 * 5, 0, 0, 0, 0]


def test_a_bidirectional_encoder_needs_an_even_width():
    with pytest.raises(BadSetting, match=r"^model\.d=7 is not divisible by the two directions of the encoder;"):
        attention(d=7)
    assert attention(d=7, bidirectional=False)(random_tokens(1, 2), source=random_tokens(1, 3)).shape == (1, 2, 7)


@every_cell
@pytest.mark.parametrize("settings", [RNNSeq2SeqSettings, RNNAttentionSettings])
def test_the_initial_loss_is_uniform(settings, cell):
    model = settings(size="small", cell=cell).build((VOCAB, VOCAB))
    loss = torch.nn.functional.cross_entropy(
        model.scores(random_tokens(32, 9), source=random_tokens(32, 9)).mT, random_tokens(32, 9)
    )
    assert abs(float(loss.detach()) - math.log(VOCAB)) < 0.4


def test_sentences_may_have_any_length():
    assert attention().context is None
    assert attention()(random_tokens(1, 50), source=random_tokens(1, 70)).shape == (1, 50, d)
