"""Transformer and recurrent language models: inputs, memory and outputs."""

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.core import CAUSAL, BlockConfig, Stack
from harken.data.batch import Windows
from harken.decode.sampling import IncrementalDecoder, SamplingSettings
from harken.models import LanguageModel
from harken.models.gpt import GPTSettings
from harken.models.rnn import LSTMSettings, RNNSettings
from harken.recipe import resolve

from . import EXACT, Measurement, gap, show


def small(**fields: object) -> LanguageModel:
    """Build a GPT with scaled weights; the initial weights give nearly uniform predictions."""
    model = GPTSettings(**{"d": 32, "layers": 2, "heads": 2, "context": 64, **fields}).build(50).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(8)
    return model


def scores(model: LanguageModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model(tokens))


# --- inputs and outputs -----------------------------------------------------------------------------------------------


@show()
def one_hot() -> Measurement:
    """A one-hot vector times the embedding matrix is the row that nn.Embedding returns."""
    model, words = GPTSettings(d=32, layers=1, heads=2, context=8).build(10_000), torch.randint(10_000, (20,))
    looked_up, multiplied = (
        model.embed(words),
        F.one_hot(words, model.embed.num_embeddings).float() @ model.embed.weight,
    )
    x = gap(looked_up, multiplied)
    return Measurement(x, "difference between the embedding lookup and the product with one-hot vectors", x == 0)


@show()
def distribution() -> Measurement:
    """The output is a probability for every word of the vocabulary."""
    model = GPTSettings(d=32, layers=1, heads=2, context=16).build(10_000)
    p = scores(model, torch.randint(10_000, (3, 12)))[:, -1].softmax(-1)
    x = gap(p.sum(-1), torch.ones(()))
    words = f"probabilities, all above 0; their sum differs from 1 by {x:.0e}"
    return Measurement(p.shape[-1], words, x < EXACT and bool((p > 0).all()))


@show()
def lab01_weights() -> Measurement:
    """Embedding, attention and classification layers of Lab 01: 2 blocks, d 128, 4 heads, LL, 10,000 words."""
    shape = GPTSettings(d=128, layers=2, heads=4, context=100, input_projection=True, tie_embeddings=False)
    model = shape.build(10_000)
    parts = [sum(p.numel() for p in m.parameters()) for m in (model.embed, model.stack, model.head)]
    count = sum(p.numel() for p in model.parameters())
    words = f"weights: embedding {parts[0]:,}, blocks {parts[1]:,}, classification {parts[2]:,}"
    return Measurement(count, words, abs(count / 2.97e6 - 1) < 0.02)  # 2.97 M in the course's notebook


@show()
def gpt2_weights() -> Measurement:
    """GPT-2 has 1.5 billion weights."""
    recipe = resolve(("here", {"model.style": "gpt2", "model.size": "1.5b"}))
    with torch.device("meta"):
        count = sum(p.numel() for p in recipe.model.build(50_257).parameters())
    return Measurement(
        count, "weights of `model.style=gpt2 model.size=1.5b` with a vocabulary of 50,257", 1.5e9 < count < 1.6e9
    )


@show()
def gpt3_weights() -> Measurement:
    """GPT-3 is GPT-2 with 96 blocks of width 12,288 and 96 heads; its number of weights is the published one."""
    with torch.device("meta"):
        model = GPTSettings(style="gpt2", d=12_288, layers=96, heads=96, context=2048).build(50_257)
        weights = sum(p.numel() for p in model.parameters())
    words = "weights of `model.style=gpt2` with 96 blocks of width 12,288; printed 175 billion"
    return Measurement(weights, words, round(weights / 1e9) == 175)


@show()
def input_projection() -> Measurement:
    """H^0 = LL(embedding + PE): model.input_projection adds a linear layer before the first block."""
    model, words = small(input_projection=True), torch.randint(50, (1, 9))
    nn.init.normal_(model.input_projection.weight)
    placed = model.stack.positions.add(model.embed(words) * model.embedding_scale, torch.arange(9))
    h = model.norm(
        model.stack(placed @ model.input_projection.weight.T + model.input_projection.bias, structure=CAUSAL)
    )
    x = gap(model(words), h)
    return Measurement(x, "largest difference from the blocks applied to LL(embedding + PE)", x < EXACT)


@show()
def self_supervised() -> Measurement:
    """Every target is the next word of the text; no labels are needed."""
    text = np.random.default_rng(0).integers(0, 50, 2000)
    batch = Windows([text], 20, 8, seed=0).batch(0, 0)
    follows = set(pairwise(text.tolist()))
    pairs = zip(batch.tokens.flatten().tolist(), batch.targets.flatten().tolist(), strict=True)
    fraction = sum(pair in follows for pair in pairs) / batch.n_targets
    shifted = bool((batch.targets[:, :-1] == batch.tokens[:, 1:]).all())
    return Measurement(
        100 * fraction, "% of the targets are the next word of the text; number of labels: 0", fraction == 1 and shifted
    )


# --- parallel training, sequential generation -------------------------------------------------------------------------


@show()
def parallel() -> Measurement:
    """One masked pass predicts the next word after every prefix; the losses equal those of 32 separate passes."""
    model, words = small(), torch.randint(50, (1, 33))
    together = F.cross_entropy(scores(model, words[:, :-1])[0], words[0, 1:], reduction="none")
    separate = [F.cross_entropy(scores(model, words[:, :n])[:, -1], words[:, n]) for n in range(1, 33)]
    x = gap(together, torch.stack(separate))
    return Measurement(x, "largest difference of a loss between one pass over 32 words and 32 passes", x < EXACT)


@show()
def generation() -> Measurement:
    """Each step computes the query of the new word only; earlier keys and values are in the KV cache."""
    model, text, off = small(), [1, 2, 3], []
    reader = IncrementalDecoder(model, [text], 20)
    for _ in range(20):
        off.append(gap(reader.logits[0], scores(model, torch.tensor([text]))[0, -1]))
        text.append(int(reader.logits[0].argmax()))
        with torch.inference_mode():
            reader.read([text], torch.tensor([text[-1:]]))
    return Measurement(
        max(off), "largest difference between 20 steps with a KV cache and 20 full passes", max(off) < EXACT
    )


@show()
def sampling() -> Measurement:
    """w ~ p: the frequency of a sampled word is its probability."""
    logits = 2 * torch.randn(10)
    samples = SamplingSettings(temperature=1.0).sample(logits.expand(4000, -1), torch.arange(4000), torch.tensor(0))
    x = gap(torch.bincount(samples, minlength=10) / 4000, logits.softmax(-1))
    return Measurement(
        x, "largest difference between the probability of a word and its frequency in 4,000 samples", x < 0.03
    )


# --- recurrent models -------------------------------------------------------------------------------------------------


def recurrent(shape: type[RNNSettings] = RNNSettings, d: int = 64) -> nn.RNNBase:
    return shape(d=d, layers=1, context=32).build(50).cell


@show()
def one_state() -> Measurement:
    """A recurrent model stores one vector; attention stores a key and a value for every word."""
    d, L = 64, 1000
    state, pairs = RNNSettings(d=d).build(50).memory(1, L), small(d=d, layers=1).memory(1, L)
    n_state, n_memory = sum(t.numel() for t in state.parts), sum(m.k.numel() + m.v.numel() for m in pairs)
    return Measurement(
        n_state,
        f"values in the state after 1,000 words; {n_memory:,} in the KV cache of one attention layer",
        n_state == d and n_memory == 2 * L * d,
    )


@show()
def shared_in_time() -> Measurement:
    """The weights are the same at every step: the same words give the same output at a later step."""
    cell = recurrent()
    x, late = torch.randn(1, 5, 64), torch.zeros(1, 500, 64)
    late[:, -5:] = x
    with torch.no_grad():
        for bias in (cell.bias_ih_l0, cell.bias_hh_l0):
            bias.zero_()  # so that zero inputs keep the state at 0
        diff = gap(cell(x)[0][:, -1], cell(late)[0][:, -1])
    count = sum(p.numel() for p in cell.parameters())
    words = f"difference of the output for the same 5 words at step 1 and at step 496; {count:,} weights"
    return Measurement(diff, words, diff < EXACT)


@show()
def gate() -> Measurement:
    """sigma(.) * h: a gate near 1 keeps the state for 100 steps, a gate near 0 resets it in one step."""
    remaining = {}
    for name, forget in (("open", 9.0), ("closed", -9.0)):
        cell = recurrent(LSTMSettings)
        with torch.no_grad():
            for weights in cell.parameters():
                weights.zero_()
            cell.bias_ih_l0[:64], cell.bias_ih_l0[64:128] = -9.0, forget  # input gate, forget gate
            for name_, steps in ((name, 100), (name + " once", 1)):
                c = cell(torch.randn(1, steps, 64), (torch.zeros(1, 1, 64), torch.ones(1, 1, 64)))[1][1]
                remaining[name_] = float(c.mean())
    words = f"of the state remains after 100 steps with an open gate; {remaining['closed once']:.0e} after one step"
    words += " with a closed gate"
    return Measurement(remaining["open"], words, remaining["open"] > 0.95 and remaining["closed once"] < 1e-3)


def depth(end: Tensor) -> int:
    """Return the length of the longest chain of dependent operations in the autograd graph."""
    depths: dict[object, int] = {}
    stack = [end.grad_fn]
    while stack:
        node = stack[-1]
        before = [n for n, _ in node.next_functions if n is not None]
        if pending := [n for n in before if n not in depths]:
            stack += pending
            continue
        depths[stack.pop()] = 1 + max((depths[n] for n in before), default=0)
    return depths[end.grad_fn]


@show()
def chain() -> Measurement:
    """Each recurrent step depends on the previous one; the depth of attention depends on the layers only."""
    cell, layers = recurrent(), Stack(1, BlockConfig(64, 2))
    rnn, attention = (
        [depth(f(torch.randn(1, L, 64))) for L in (16, 256)]
        for f in (lambda x: cell(x)[0], lambda x: layers(x, structure=CAUSAL))
    )
    x = rnn[1] / rnn[0]
    words = "growth of the longest chain of dependent operations from 16 to 256 words"
    with_attention = f"{attention[1] / attention[0]:.2g} with attention"
    return Measurement(x, f"{words}; {with_attention}", x > 10 and attention[0] == attention[1])


def gradient_by_distance(f: nn.Module | object, L: int = 101) -> list[float]:
    """Return the gradient norms of the last output at distances 1, 10, 50 and 100, relative to distance 1."""
    x = torch.randn(1, L, 64, requires_grad=True)
    f(x)[0, -1].sum().backward()  # type: ignore[operator]
    sizes = x.grad[0].norm(dim=-1)
    return [float(sizes[-1 - n] / sizes[-2]) for n in (1, 10, 50, 100)]


@show()
def vanishing() -> Measurement:
    """The gradient at a distance of 50 words vanishes in a recurrence; attention connects all words directly."""
    cell, layer = recurrent(), Stack(1, BlockConfig(64, 2))
    rnn, attention = (
        gradient_by_distance(lambda x: cell(x)[0]),
        gradient_by_distance(lambda x: layer(x, structure=CAUSAL)),
    )
    words = f"of the gradient remains at a distance of 50 words in an RNN; {attention[2]:.2g} in an attention layer"
    return Measurement(rnn[2], words, rnn[2] < 1e-6 and attention[2] > 0.1)


@show()
def perturbation() -> Measurement:
    """A small perturbation of the state vanishes with small recurrent weights and grows with large ones."""
    growth = []
    for radius in (0.5, 4.0):
        cell = recurrent()
        with torch.no_grad():
            cell.weight_hh_l0.copy_(radius * torch.randn(64, 64) / 8)
        cell, x, h = cell.double(), torch.randn(1, 60, 64).double(), torch.zeros(1, 1, 64).double()
        with torch.no_grad():
            growth.append(gap(cell(x, h)[0][:, -1], cell(x, h + 1e-6)[0][:, -1]) / 1e-6)
    words = "growth of a perturbation over 60 steps with recurrent weights of spectral radius 0.5"
    return Measurement(growth[0], f"{words}; {growth[1]:.0e} with radius 4", growth[0] < 1e-6 and growth[1] > 1e4)
