"""Language models: the Transformer and the recurrent ones, their inputs, memory and outputs."""

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

from . import EXACT, Seen, gap, show


def small(**fields: object) -> LanguageModel:
    """A GPT with scaled weights: the initial ones are too small to prefer any word."""
    model = GPTSettings(**{"d": 32, "layers": 2, "heads": 2, "context": 64, **fields}).build(50).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(8)
    return model


def scores(model: LanguageModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model(tokens))


# --- what goes in and comes out ---------------------------------------------------------------------------------------


@show()
def one_hot() -> Seen:
    """A word is one of 10,000 one-hot vectors, embedded by a matrix: the row that nn.Embedding looks up."""
    model, words = GPTSettings(d=32, layers=1, heads=2, context=8).build(10_000), torch.randint(10_000, (20,))
    looked_up, multiplied = (
        model.embed(words),
        F.one_hot(words, model.embed.num_embeddings).float() @ model.embed.weight,
    )
    x = gap(looked_up, multiplied)
    return Seen(x, "difference between looking up and multiplying by one-hot vectors", x == 0)


@show()
def distribution() -> Seen:
    """A sequence of words in, a probability for every word of the dictionary out."""
    model = GPTSettings(d=32, layers=1, heads=2, context=16).build(10_000)
    p = scores(model, torch.randint(10_000, (3, 12)))[:, -1].softmax(-1)
    x = gap(p.sum(-1), torch.ones(()))
    return Seen(
        p.shape[-1], f"probabilities, all above 0; their sum is off 1 by {x:.0e}", x < EXACT and bool((p > 0).all())
    )


@show()
def lab01_weights() -> Seen:
    """Embedding, attention and classification layers of Lab 01: 2 blocks, d 128, 4 heads, LL, 10,000 words."""
    shape = GPTSettings(d=128, layers=2, heads=4, context=100, input_projection=True, tie_embeddings=False)
    model = shape.build(10_000)
    parts = [sum(p.numel() for p in m.parameters()) for m in (model.embed, model.stack, model.head)]
    count = sum(p.numel() for p in model.parameters())
    words = f"weights: embedding {parts[0]:,}, blocks {parts[1]:,}, classification {parts[2]:,}"
    return Seen(count, words, abs(count / 2.97e6 - 1) < 0.02)  # 2.97 M in the course's notebook


@show()
def gpt2_weights() -> Seen:
    """GPT-2 has 1.5 billion weights."""
    recipe = resolve(("here", {"model.style": "gpt2", "model.size": "1.5b"}))
    with torch.device("meta"):
        count = sum(p.numel() for p in recipe.model.build(50_257).parameters())
    return Seen(count, "weights of `model.style=gpt2 model.size=1.5b` with 50,257 words", 1.5e9 < count < 1.6e9)


@show()
def lift() -> Seen:
    """H^0 = LL(embedding + PE): with model.input_projection there is one more linear layer, before the first block."""
    model, words = small(input_projection=True), torch.randint(50, (1, 9))
    nn.init.normal_(model.input_projection.weight)
    placed = model.stack.positions.add(model.embed(words) * model.embedding_scale, torch.arange(9))
    h = model.norm(
        model.stack(placed @ model.input_projection.weight.T + model.input_projection.bias, structure=CAUSAL)
    )
    x = gap(model(words), h)
    return Seen(x, "largest difference from LL(embedding + PE) through the blocks", x < EXACT)


@show()
def self_supervised() -> Seen:
    """The text itself is the answer: every target is the next word, no label is given."""
    text = np.random.default_rng(0).integers(0, 50, 2000)
    batch = Windows([text], 20, 8, seed=0).batch(0, 0)
    follows = set(pairwise(text.tolist()))
    pairs = zip(batch.tokens.flatten().tolist(), batch.targets.flatten().tolist(), strict=True)
    fraction = sum(pair in follows for pair in pairs) / batch.n_targets
    shifted = bool((batch.targets[:, :-1] == batch.tokens[:, 1:]).all())
    return Seen(
        100 * fraction,
        "% of the targets are the word that follows in the text; labels given: 0",
        fraction == 1 and shifted,
    )


# --- training in parallel, writing one by one -------------------------------------------------------------------------


@show()
def parallel() -> Seen:
    """One masked pass asks for the next word after every word: the losses are those of 32 passes, one a prefix."""
    model, words = small(), torch.randint(50, (1, 33))
    together = F.cross_entropy(scores(model, words[:, :-1])[0], words[0, 1:], reduction="none")
    alone = [F.cross_entropy(scores(model, words[:, :n])[:, -1], words[:, n]) for n in range(1, 33)]
    x = gap(together, torch.stack(alone))
    return Seen(x, "largest difference between one pass over 32 words and 32 passes", x < EXACT)


@show()
def generation() -> Seen:
    """Word by word, only the new word's query is computed; keys and values wait in the memory."""
    model, text, off = small(), [1, 2, 3], []
    reader = IncrementalDecoder(model, [text], 20)
    for _ in range(20):
        off.append(gap(reader.logits[0], scores(model, torch.tensor([text]))[0, -1]))
        text.append(int(reader.logits[0].argmax()))
        with torch.inference_mode():
            reader.read([text], torch.tensor([text[-1:]]))
    return Seen(max(off), "largest difference of 20 steps with a memory from 20 whole passes", max(off) < EXACT)


@show()
def sampling() -> Seen:
    """w ~ p: words are drawn as often as the model says."""
    logits = 2 * torch.randn(10)
    drawn = SamplingSettings(temperature=1.0).sample(logits.expand(4000, -1), torch.arange(4000), torch.tensor(0))
    x = gap(torch.bincount(drawn, minlength=10) / 4000, logits.softmax(-1))
    return Seen(x, "largest distance between a word's probability and its share of 4,000 draws", x < 0.03)


# --- recurrent models -------------------------------------------------------------------------------------------------


def recurrent(shape: type[RNNSettings] = RNNSettings, d: int = 64) -> nn.RNNBase:
    return shape(d=d, layers=1, context=32).build(50).cell


@show()
def one_state() -> Seen:
    """A recurrent model memorises everything in one vector; attention keeps a key and a value of every word."""
    d, L = 64, 1000
    state, pairs = RNNSettings(d=d).build(50).memory(1, L), small(d=d, layers=1).memory(1, L)
    n_state, n_memory = sum(t.numel() for t in state.parts), sum(m.k.numel() + m.v.numel() for m in pairs)
    return Seen(
        n_state,
        f"numbers for 1,000 words; {n_memory:,} in a layer of attention",
        n_state == d and n_memory == 2 * L * d,
    )


@show()
def shared_in_time() -> Seen:
    """The same weights at every step: 5 words or 500, and what is read later is read alike."""
    cell = recurrent()
    x, late = torch.randn(1, 5, 64), torch.zeros(1, 500, 64)
    late[:, -5:] = x
    with torch.no_grad():
        for bias in (cell.bias_ih_l0, cell.bias_hh_l0):
            bias.zero_()  # so that silence leaves the state at 0
        diff = gap(cell(x)[0][:, -1], cell(late)[0][:, -1])
    count = sum(p.numel() for p in cell.parameters())
    return Seen(diff, f"difference between the same 5 words at step 1 and at step 496; {count:,} weights", diff < EXACT)


@show()
def gate() -> Seen:
    """sigma(.) * h: a gate near 1 keeps the state for a hundred steps, one near 0 forgets it in one."""
    left = {}
    for name, forget in (("open", 9.0), ("shut", -9.0)):
        cell = recurrent(LSTMSettings)
        with torch.no_grad():
            for weights in cell.parameters():
                weights.zero_()
            cell.bias_ih_l0[:64], cell.bias_ih_l0[64:128] = -9.0, forget  # nothing new in; what is there stays, or not
            for name_, steps in ((name, 100), (name + " once", 1)):
                c = cell(torch.randn(1, steps, 64), (torch.zeros(1, 1, 64), torch.ones(1, 1, 64)))[1][1]
                left[name_] = float(c.mean())
    words = f"of the state is left after 100 steps; {left['shut once']:.0e} after one step with the gate shut"
    return Seen(left["open"], words, left["open"] > 0.95 and left["shut once"] < 1e-3)


def depth(end: Tensor) -> int:
    """The longest chain of operations that must follow each other, from the autograd graph."""
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
def chain() -> Seen:
    """Recurrence cannot be computed in parallel: each step waits for the one before. Attention waits for its layers."""
    cell, layers = recurrent(), Stack(1, BlockConfig(64, 2))
    rnn, attention = (
        [depth(f(torch.randn(1, L, 64))) for L in (16, 256)]
        for f in (lambda x: cell(x)[0], lambda x: layers(x, structure=CAUSAL))
    )
    x = rnn[1] / rnn[0]
    words = f"times longer chain of operations for 16 times the words; {attention[1] / attention[0]:.2g} with attention"
    return Seen(x, words, x > 10 and attention[0] == attention[1])


def gradient_by_distance(f: nn.Module | object, L: int = 101) -> list[float]:
    """How much of the gradient of the last word's vector arrives 1, 10, 50, 100 words before, relative to 1."""
    x = torch.randn(1, L, 64, requires_grad=True)
    f(x)[0, -1].sum().backward()  # type: ignore[operator]
    sizes = x.grad[0].norm(dim=-1)
    return [float(sizes[-1 - n] / sizes[-2]) for n in (1, 10, 50, 100)]


@show()
def vanishing() -> Seen:
    """Through a recurrence the gradient of a word 50 steps back has vanished; through attention it is one step away."""
    cell, layer = recurrent(), Stack(1, BlockConfig(64, 2))
    rnn, attention = (
        gradient_by_distance(lambda x: cell(x)[0]),
        gradient_by_distance(lambda x: layer(x, structure=CAUSAL)),
    )
    words = f"of the gradient arrives 50 words back in an RNN; {attention[2]:.2g} in a layer of attention"
    return Seen(rnn[2], words, rnn[2] < 1e-6 and attention[2] > 0.1)


@show()
def perturbation() -> Seen:
    """A non-linear dynamical system: the same small push dies out with small weights and takes over with large ones."""
    grown = []
    for size in (0.5, 4.0):
        cell = recurrent()
        with torch.no_grad():
            cell.weight_hh_l0.copy_(size * torch.randn(64, 64) / 8)
        cell, x, h = cell.double(), torch.randn(1, 60, 64).double(), torch.zeros(1, 1, 64).double()
        with torch.no_grad():
            grown.append(gap(cell(x, h)[0][:, -1], cell(x, h + 1e-6)[0][:, -1]) / 1e-6)
    words = f"times the push is left after 60 steps with weights of radius 0.5; {grown[1]:.0e} times with radius 4"
    return Seen(grown[0], words, grown[0] < 1e-6 and grown[1] > 1e4)
