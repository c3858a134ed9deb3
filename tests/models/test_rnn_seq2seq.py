"""Recurrent encoder-decoders: Bahdanau's equations written out by hand, one context vector, and the view of a step."""

import math

import pytest
import torch
from torch import Tensor

from harken.core import editing, watching
from harken.errors import BadSetting
from harken.models.rnn_seq2seq import RNNAttention, RNNAttentionShape, RNNSeq2Seq, RNNSeq2SeqShape

VOCAB, d = 17, 6
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])


def attention(**fields) -> RNNAttention:
    return RNNAttentionShape(**{"d": d, **fields}).build((VOCAB, VOCAB)).double().eval()


def plain(**fields) -> RNNSeq2Seq:
    return RNNSeq2SeqShape(**{"d": d, **fields}).build((VOCAB, VOCAB)).double().eval()


def words(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def gru(w: dict[str, Tensor], x: Tensor, s: Tensor) -> Tensor:
    """One step of a GRU; the gates lie one below the other, as torch does."""
    a, b = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ s + w["bias_hh"]
    r, z = torch.sigmoid(a[:d] + b[:d]), torch.sigmoid(a[d : 2 * d] + b[d : 2 * d])
    return (1 - z) * torch.tanh(a[2 * d :] + r * b[2 * d :]) + z * s


@torch.no_grad()
def test_additive_attention_is_bahdanaus_equations():
    model, source, tokens = attention(), words(1, 5), words(4)
    H, context = model.encoder(model.source_embed(source) * d**0.5, None)
    H, s = H[0], torch.tanh(model.first(context))[0]
    own = model.cross.similarity.own
    cell = dict(model.cell.named_parameters())
    by_hand = []
    for token in tokens:
        y = model.embed.weight[token] * d**0.5
        e = torch.stack([own.w @ torch.tanh(s @ own.W_q[0] + h @ own.W_k[0]) for h in H])
        a = e.exp() / e.exp().sum()
        c = sum(a_j * h for a_j, h in zip(a, H, strict=True))
        s = gru(cell, torch.cat([y, c]), s)
        by_hand.append(torch.tanh(model.say.weight @ torch.cat([s, c, y]) + model.say.bias))
    torch.testing.assert_close(model(tokens[None], source=source)[0], torch.stack(by_hand))


@every_cell
@torch.no_grad()
def test_the_encoder_is_two_recurrences_that_read_against_each_other(cell):
    """torch's own bidirectional layers over packed sentences, with the same weights."""
    model, x, lengths = plain(cell=cell, layers=2), torch.randn(3, 5, d).double(), torch.tensor([5, 2, 4])
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    peer = kind(d, d // 2, 2, batch_first=True, bidirectional=True).double()
    for n, own in enumerate(model.encoder.cells):
        for name, weights in own.named_parameters():
            peer.get_parameter(name.replace("_l0", f"_l{n // 2}{'_reverse' * (n % 2)}")).copy_(weights)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last = peer(packed)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    last = last[0] if cell == "lstm" else last
    real = torch.arange(5) < lengths[:, None]
    H, context = model.encoder(x, real)
    torch.testing.assert_close(H * real[..., None], out)
    torch.testing.assert_close(context, torch.cat([last[-2], last[-1]], -1))


@pytest.mark.parametrize("context", ["start", "each"])
def test_without_attention_the_context_vector_is_all_that_is_told(context):
    """Sources of different length with one context vector are the same source."""
    model, tokens = plain(context=context), words(2, 4)
    c = torch.randn(1, d).double()
    model.encoder.forward = lambda x, real: (x, c.expand(len(x), -1))
    told = [model(tokens, source=words(2, n)) for n in (3, 8)]
    assert torch.equal(*told)


@torch.no_grad()
def test_a_context_told_at_each_step_outlives_the_state():
    tokens, source = words(1, 3), words(1, 4)
    reached = {}
    for context in ("start", "each"):
        model = plain(context=context)
        memory = model.memory(1, 3, source)
        memory.write([torch.zeros_like(part) for part in memory.parts])
        other = model.memory(1, 3, source.flip(1))
        other.write([torch.zeros_like(part) for part in other.parts])
        reached[context] = not torch.equal(model(tokens, memory=memory), model(tokens, memory=other))
    assert reached == {"start": False, "each": True}


@torch.no_grad()
def test_the_weights_of_a_step_can_be_seen():
    model, source = attention(), words(2, 5)
    memory = model.memory(4, 3, source, torch.tensor([5, 3]))
    s = memory.parts[0][:, 0].clone()
    with watching(model) as seen:
        model(words(4, 1), memory=memory)
    A = seen["cross"].whole()  # two texts of each source are two queries
    assert A.shape == (2, 1, 2, 5)
    H, own = memory.source.read[1], model.cross.similarity.own
    by_hand = torch.tanh((s @ own.W_q[0]).view(2, 2, 1, d) + (H @ own.W_k[0])[:, None]) @ own.w  # B K Ls
    by_hand[1, :, 3:] = -torch.inf
    torch.testing.assert_close(A[:, 0], by_hand.softmax(-1))


@torch.no_grad()
def test_one_view_holds_the_steps_of_a_whole_pass_in_their_order():
    model, source, tokens = attention(layers=2), words(2, 5), words(2, 4)
    lengths = torch.tensor([5, 3])
    with watching(model) as seen:
        model(tokens, source=source, source_lengths=lengths)
        whole, memory = seen["cross"].whole(), model.memory(2, 4, source, lengths)
        for n in range(4):
            model(tokens[:, n : n + 1], memory=memory)
            torch.testing.assert_close(whole[:, :, n], seen["cross"].whole()[:, :, 0])


@torch.no_grad()
def test_the_weights_of_a_step_can_be_replaced():
    model, source, tokens = attention(), words(1, 5), words(1, 3)
    before = model(tokens, source=source)
    with editing(model, "cross", torch.zeros_like):
        assert not torch.equal(model(tokens, source=source), before)
    assert torch.equal(model(tokens, source=source), before)


def test_the_keys_of_a_source_are_projected_once(monkeypatch):
    model, many = attention(), []
    own, project = model.cross.similarity.own, model.cross.similarity.own.project

    def noted(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        many.append(k.shape[-2])
        return project(q, k)

    monkeypatch.setattr(own, "project", noted)
    model(words(2, 4), source=words(2, 5))
    assert many == [2 * 5, 0, 0, 0, 0]


def test_two_directions_need_an_even_width():
    with pytest.raises(BadSetting, match=r"^model\.d=7 does not split over two directions; take an even d$"):
        attention(d=7)
    assert attention(d=7, bidirectional=False)(words(1, 2), source=words(1, 3)).shape == (1, 2, 7)


@every_cell
@pytest.mark.parametrize("shape", [RNNSeq2SeqShape, RNNAttentionShape])
def test_fresh_weights_know_nothing(shape, cell):
    model = shape(size="small", cell=cell).build((VOCAB, VOCAB))
    loss = torch.nn.functional.cross_entropy(model.scores(words(32, 9), source=words(32, 9)).mT, words(32, 9))
    assert abs(float(loss.detach()) - math.log(VOCAB)) < 0.4


def test_sentences_of_any_length_are_read():
    assert attention().context is None
    assert attention()(words(1, 50), source=words(1, 70)).shape == (1, 50, d)
