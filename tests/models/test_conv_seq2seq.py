"""The convolutional encoder-decoder: its layers against PyTorch's own convolution, and how far a filter sees."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core import watching
from harken.models.conv_seq2seq import ConvSeq2Seq, ConvShape, Gated

VOCAB, d = 17, 6
HALF = math.sqrt(0.5)


def build(**fields) -> ConvSeq2Seq:
    return ConvShape(**{"d": d, "layers": 2, **fields}).build((VOCAB, VOCAB)).double().eval()


def words(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def gated(layer: Gated, x: Tensor, left: int, right: int) -> Tensor:
    """The layer as a convolution over channels: weights are 2d d k there."""
    W = layer.W.weight.view(2 * d, layer.k, d).transpose(1, 2)
    a, b = F.conv1d(F.pad(x.mT, (left, right)), W, layer.W.bias).mT.chunk(2, -1)
    return a * torch.sigmoid(b)


def normed(norm: torch.nn.LayerNorm, h: Tensor) -> Tensor:
    return F.layer_norm(h, (d,), norm.weight, norm.bias)


@torch.no_grad()
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_model_is_its_equations(k):
    model, source, tokens = build(filter=k), words(2, 7), words(2, 4)
    e = h = model.embed.weight[source] + model.source_places.table.weight[:7]
    for layer in model.encoder:
        h = (h + gated(layer, normed(layer.norm, h), k // 2, (k - 1) // 2)) * HALF
    H = normed(model.encoder_norm, h)
    g = h = model.embed.weight[tokens] + model.places.table.weight[:4]
    for layer in model.layers:
        z = gated(layer, normed(layer.norm, h), k - 1, 0)
        q = (F.linear(z, layer.W_q.weight, layer.W_q.bias) + g) * HALF
        scores = (q @ H.mT / math.sqrt(d)).exp()
        c = scores / scores.sum(-1, keepdim=True) @ ((H + e) * HALF)
        h = (h + (z + F.linear(c, layer.W_o.weight, layer.W_o.bias)) * HALF) * HALF
    torch.testing.assert_close(model(tokens, source=source), normed(model.norm, h))


@pytest.mark.parametrize(("layers", "k"), [(1, 3), (2, 3), (1, 4)])
def test_the_decoder_sees_as_far_back_as_its_filters_reach(layers, k):
    model, tokens, read = build(layers=layers, filter=k, shared=False), words(1, 10), []
    model.embed.register_forward_hook(lambda *call: read.append(call[-1]))
    h = model(tokens, source=words(1, 3))
    (reached,) = torch.autograd.grad(h[0, -1].square().sum(), read[0])
    seen = 1 + layers * (k - 1)
    assert (reached[0].abs().sum(-1) > 0).tolist() == [False] * (10 - seen) + [True] * seen


@torch.no_grad()
def test_each_layer_shows_where_it_looks():
    model = build()
    with watching(model) as seen:
        model(words(2, 4), source=words(2, 7), source_lengths=torch.tensor([7, 3]))
    assert list(seen) == ["layers.0.cross", "layers.1.cross"]
    A = seen["layers.1.cross"].whole()
    assert A.shape == (2, 1, 4, 7)
    assert not A[1, :, :, 3:].any()


def test_fresh_weights_know_nothing():
    model = ConvShape(size="small").build((VOCAB, VOCAB))
    loss = F.cross_entropy(model.scores(words(8, 9), source=words(8, 9)).mT, words(8, 9))
    assert abs(float(loss.detach()) - math.log(VOCAB)) < 0.3


@torch.no_grad()
def test_a_word_that_changes_its_place_changes_what_is_read():
    """A filter of one word knows no order: the positions tell it."""
    model, tokens = build(filter=1), words(1, 3)
    assert not torch.allclose(
        model(tokens, source=torch.tensor([[1, 2]])), model(tokens, source=torch.tensor([[2, 1]]))
    )
