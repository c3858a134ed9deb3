"""The convolutional encoder-decoder: its layers equal conv1d, and its receptive field."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core import watching
from harken.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqSettings, GatedConv

VOCAB, d = 17, 6
HALF = math.sqrt(0.5)


def build(**fields) -> ConvSeq2Seq:
    return ConvSeq2SeqSettings(**{"d": d, "layers": 2, **fields}).build((VOCAB, VOCAB)).double().eval()


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def gated_conv(layer: GatedConv, x: Tensor, left: int, right: int) -> Tensor:
    """The layer as a convolution with weights of shape 2d d k."""
    W = layer.W.weight.view(2 * d, layer.k, d).transpose(1, 2)
    a, b = F.conv1d(F.pad(x.mT, (left, right)), W, layer.W.bias).mT.chunk(2, -1)
    return a * torch.sigmoid(b)


def normalize(norm: torch.nn.LayerNorm, h: Tensor) -> Tensor:
    return F.layer_norm(h, (d,), norm.weight, norm.bias)


@torch.no_grad()
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_model_equals_its_equations(k):
    model, source, tokens = build(kernel_size=k), random_tokens(2, 7), random_tokens(2, 4)
    e = h = model.embed.weight[source] + model.source_pos_encoding.table.weight[:7]
    for layer in model.encoder:
        h = (h + gated_conv(layer, normalize(layer.norm, h), k // 2, (k - 1) // 2)) * HALF
    H = normalize(model.encoder_norm, h)
    g = h = model.embed.weight[tokens] + model.pos_encoding.table.weight[:4]
    for layer in model.layers:
        z = gated_conv(layer, normalize(layer.norm, h), k - 1, 0)
        q = (F.linear(z, layer.W_q.weight, layer.W_q.bias) + g) * HALF
        scores = (q @ H.mT / math.sqrt(d)).exp()
        c = scores / scores.sum(-1, keepdim=True) @ ((H + e) * HALF)
        h = (h + (z + F.linear(c, layer.W_o.weight, layer.W_o.bias)) * HALF) * HALF
    torch.testing.assert_close(model(tokens, source=source), normalize(model.norm, h))


@pytest.mark.parametrize(("layers", "k"), [(1, 3), (2, 3), (1, 4)])
def test_the_receptive_field_of_the_decoder_is_that_of_its_filters(layers, k):
    model, tokens, embedded = build(layers=layers, kernel_size=k, share_embeddings=False), random_tokens(1, 10), []
    model.embed.register_forward_hook(lambda *call: embedded.append(call[-1]))
    h = model(tokens, source=random_tokens(1, 3))
    (grad,) = torch.autograd.grad(h[0, -1].square().sum(), embedded[0])
    receptive_field = 1 + layers * (k - 1)
    assert (grad[0].abs().sum(-1) > 0).tolist() == [False] * (10 - receptive_field) + [True] * receptive_field


@torch.no_grad()
def test_each_decoder_layer_has_a_view():
    model = build()
    with watching(model) as views:
        model(random_tokens(2, 4), source=random_tokens(2, 7), source_lengths=torch.tensor([7, 3]))
    assert list(views) == ["layers.0.cross", "layers.1.cross"]
    A = views["layers.1.cross"].full()
    assert A.shape == (2, 1, 4, 7)
    assert not A[1, :, :, 3:].any()


def test_the_initial_loss_is_uniform():
    model = ConvSeq2SeqSettings(size="small").build((VOCAB, VOCAB))
    loss = F.cross_entropy(model.scores(random_tokens(8, 9), source=random_tokens(8, 9)).mT, random_tokens(8, 9))
    assert abs(float(loss.detach()) - math.log(VOCAB)) < 0.3


@torch.no_grad()
def test_the_encoder_depends_on_the_order_of_the_tokens():
    """A filter of one token ignores the order; only the positions encode it."""
    model, tokens = build(kernel_size=1), random_tokens(1, 3)
    assert not torch.allclose(
        model(tokens, source=torch.tensor([[1, 2]])), model(tokens, source=torch.tensor([[2, 1]]))
    )
