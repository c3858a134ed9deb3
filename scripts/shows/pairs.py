"""Sequence-to-sequence models: RNNs with one context vector or attention, convolutions, the Transformer."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from harken.core import Attention, watching
from harken.models import EncoderDecoder
from harken.models.conv_seq2seq import ConvSeq2SeqSettings, GatedConv
from harken.models.rnn_seq2seq import RecurrentEncoder, RNNAttentionSettings, RNNSeq2SeqSettings
from harken.models.seq2seq import TransformerSettings
from harken.run_folder import count_parameters
from harken.training import cost

from . import EXACT, Measurement, gap, show
from .operation_counts import products
from .words import depth

WORDS = 20  # without the boundary token
FAMILIES: dict[str, Any] = {
    "rnn": RNNSeq2SeqSettings(d=32),
    "rnn-attention": RNNAttentionSettings(d=32),
    "conv": ConvSeq2SeqSettings(d=32, layers=2),
    "transformer": TransformerSettings(d=32, layers=2, heads=2, d_ff=64, positions="sinusoid"),
}


def build(family: str, **settings: Any) -> EncoderDecoder:
    """Build a model with random weights and 20 words; the last token marks the start and the end."""
    model: EncoderDecoder = FAMILIES[family].model_copy(update=settings).build((WORDS + 1, WORDS + 1))
    return model.eval()


def random_tokens(rows: int, L: int) -> Tensor:
    return torch.randint(WORDS, (rows, L))


# --- parts and equations ----------------------------------------------------------------------------------------------


@show()
def two_lengths() -> Measurement:
    """A source of 7 words and a target of any other length: one distribution for each target word."""
    lengths = []
    for family in FAMILIES:
        model = build(family)
        lengths += [model(random_tokens(2, L), source=random_tokens(2, 7)).shape[1] for L in (3, 12)]
    words = "target words for 7 source words in all four kinds of models, and 3 for another target"
    return Measurement(max(lengths), words, lengths == [3, 12] * len(FAMILIES))


@show()
def seq2seq_layers() -> Measurement:
    """Embedding, self-attention encoder, masked decoder with cross-attention, classification: together all weights."""
    model = build("transformer", share_embeddings=False, tie_embeddings=False)
    cross = [part for block in model.stack.blocks for part in (block.cross, block.cross_sublayer)]
    layers = {"embedding": [model.source_embed, model.embed], "encoder": [model.encoder, model.encoder_norm]}
    layers |= {"cross-attention": cross, "classification": [model.norm, model.head]}
    parts = {name: sum(map(count_parameters, modules)) for name, modules in layers.items()}
    parts["decoder"] = count_parameters(model.stack) - parts["cross-attention"]
    counts = ", ".join(f"{name} {count:,}" for name, count in parts.items())
    return Measurement(count_parameters(model), f"weights: {counts}", count_parameters(model) == sum(parts.values()))


@show()
def seq2seq_equations() -> Measurement:
    """The lecture's encoder and decoder, layer by layer: LL(g + PE), self-attention, cross-attention to LN(H), MLP."""
    model = build("transformer", input_projection=True)
    source, target = random_tokens(1, 7), random_tokens(1, 5)

    def embed_tokens(tokens: Tensor, projection: nn.Module) -> Tensor:
        g, positions = model.embed(tokens) * model.embedding_scale, torch.arange(tokens.shape[1])
        return projection(model.stack.positions.add(g, positions))

    def attention(a: Attention, Q: Tensor, K: Tensor, *, masked: bool = False) -> Tensor:
        heads = [f(x).unflatten(-1, (2, 16)).transpose(1, 2) for f, x in ((a.W_q, Q), (a.W_k, K), (a.W_v, K))]
        hidden = torch.ones(Q.shape[1], K.shape[1]).triu(1).bool() & masked
        A = (heads[0] @ heads[1].mT / 4).masked_fill(hidden, -torch.inf).softmax(-1)  # 4 = sqrt(d / H)
        return a.W_o((A @ heads[2]).transpose(1, 2).flatten(2))

    H = embed_tokens(source, model.source_projection)
    for b in model.encoder.blocks:
        LN = b.attention_sublayer.norm(H)
        H = H + attention(b.attention, LN, LN)
        H = H + b.mlp(b.mlp_sublayer.norm(H))
    encoded, H = model.encoder_norm(H), embed_tokens(target, model.input_projection)
    for b in model.stack.blocks:
        LN = b.attention_sublayer.norm(H)
        H = H + attention(b.attention, LN, LN, masked=True)
        H = H + attention(b.cross, b.cross_sublayer.norm(H), encoded)
        H = H + b.mlp(b.mlp_sublayer.norm(H))
    P = model.logits(model.norm(H)).softmax(-1)
    x = gap(P, model.scores(target, source=source).softmax(-1))
    return Measurement(x, "largest difference of a probability from the equations", x < EXACT)


@show()
def who_sees_whom() -> Measurement:
    """The encoder attends to the source only; a target word attends to earlier targets and the whole source."""
    model, n_visible = build("transformer"), []
    source, target = random_tokens(1, 6), random_tokens(1, 5)
    with watching(model) as views:
        model(target, source=source)
    for name in ("encoder.blocks.0.attention", "stack.blocks.0.attention", "stack.blocks.0.cross"):
        n_visible.append((views[name].rows([0])[0] > 0).any(0)[0].sum().item())
    words = f"of 6 source words are visible to the first source word; the first target word attends to {n_visible[1]}"
    words += f" of 5 target words and {n_visible[2]} of 6 source words"
    return Measurement(n_visible[0], words, n_visible == [6, 1, 6])


# --- parallel training, sequential generation -------------------------------------------------------------------------


@show()
def targets_in_parallel() -> Measurement:
    """One pass over the target gives the same scores as one step per word with a decoder memory."""
    source, target, off = random_tokens(3, 9), random_tokens(3, 8), []
    with torch.no_grad():
        for family in FAMILIES:
            model = build(family)
            memory = model.memory(3, 8, source)
            steps = [model.scores(target[:, t : t + 1], pos=torch.tensor([t]), memory=memory) for t in range(8)]
            off.append(gap(torch.cat(steps, 1), model.scores(target, source=source)))
    words = "largest difference between 8 steps with a decoder memory and one pass, in rnn, rnn-attention, conv"
    return Measurement(max(off), f"{words} and transformer", max(off) < EXACT)


@show()
@torch.no_grad()
def encoded_once() -> Measurement:
    """At inference the source is encoded once, in parallel; the target is generated one word at a time."""
    model, passes, source, target = build("transformer"), [], random_tokens(1, 6), torch.full((1, 1), WORDS)
    encode = model.encode
    with patch.object(model, "encode", lambda *args: passes.append(1) or encode(*args)):
        memory = model.memory(1, 12, source)
        for t in range(12):
            scores = model.scores(target[:, -1:], pos=torch.tensor([t]), memory=memory)
            target = torch.cat([target, scores[:, -1].argmax(-1, keepdim=True)], 1)
    predicted = model.scores(target[:, :-1], source=source).argmax(-1)
    holds = len(passes) == 1 and torch.equal(predicted, target[:, 1:])
    return Measurement(len(passes), "encoder pass for 12 target words, each the most likely next word", holds)


@show()
def waiting_decoders() -> Measurement:
    """The query of a recurrent decoder is its previous state, so its steps are sequential; masked layers are not."""
    growth = {}
    for family in FAMILIES:
        model = build(family)
        chains = [depth(model(random_tokens(1, L), source=random_tokens(1, 8))) for L in (8, 64)]
        growth[family] = chains[1] / chains[0]
    words = "growth of the longest chain of dependent operations in training from 8 to 64 target words"
    holds = growth["rnn-attention"] > 5 and growth["conv"] == growth["transformer"] == 1
    return Measurement(growth["rnn-attention"], f"{words} with rnn-attention; 1 with conv and transformer", holds)


# --- context vector or attention --------------------------------------------------------------------------------------


@show()
def one_context() -> Measurement:
    """The context vector has the same size for 500 words as for 5; attention receives every encoder state."""
    sizes = {}
    for family in ("rnn", "rnn-attention"):
        model = build(family)
        sizes[family] = [sum(part.numel() for part in model.encode(random_tokens(1, L), None)[::2]) for L in (5, 500)]
    words = "values pass from the encoder to the decoder for 500 words and for 5 words; "
    words += f"{sizes['rnn-attention'][1] - 32:,} for 500 words with attention"
    return Measurement(sizes["rnn"][1], words, sizes["rnn"] == [32, 32] and sizes["rnn-attention"][1] == 501 * 32)


@show()
def recurrent_attention() -> Measurement:
    """Query s_(t-1), keys and values from the encoder states; the weighted average c_t is an input of s_t."""
    model, source, target = build("rnn-attention", cell="gru"), random_tokens(1, 6), random_tokens(1, 5)
    with torch.no_grad():
        H, last = model.encoder(model.embed(source) * model.embedding_scale, None)
        s, additive, outputs = torch.tanh(model.first_state(last)), model.cross.similarity.inner, []
        for y in (model.embed(target) * model.embedding_scale).unbind(1):
            similarities = torch.tanh(s @ additive.W_q[0] + H[0] @ additive.W_k[0]) @ additive.w  # sim(q, k_i)
            b = similarities.softmax(-1)
            c = (b[:, None] * H[0]).sum(0, keepdim=True)
            s = model.cell(torch.cat([y, c], -1), s)
            outputs.append(torch.tanh(model.output_projection(torch.cat([s, c, y], -1))))
        x = gap(torch.stack(outputs, 1), model(target, source=source))
    return Measurement(x, "largest difference between these equations and the model kind rnn-attention", x < EXACT)


def gradient_sizes(model: EncoderDecoder, L: int, compute: Callable[[Tensor], Tensor]) -> Tensor:  # L
    """Return the norm of the gradient of the output at each of L source words."""
    embeddings: list[Tensor] = []
    model.source_embed.register_forward_hook(lambda module, args, x: embeddings.append(x) or x.retain_grad())
    output = compute(random_tokens(1, L))
    (output * torch.randn_like(output)).sum().backward()  # the sum of normalized values is always 0
    return embeddings[0].grad[0].norm(dim=-1)


@show()
def far_source_words() -> Measurement:
    """Each target word attends to all source words; through one vector the gradient at the first word vanishes."""
    ratios = {}
    for family in ("rnn", "rnn-attention", "transformer"):
        model = build(family, **({} if family == "transformer" else {"bidirectional": False}))
        sizes = gradient_sizes(model, 101, lambda source, model=model: model(torch.tensor([[WORDS]]), source=source))
        ratios[family] = float(sizes[0] / sizes[-1])
    words = "ratio of the gradients at the first and the last of 101 source words in rnn; "
    words += f"{ratios['rnn-attention']:.2g} in rnn-attention, {ratios['transformer']:.2g} in transformer"
    holds = ratios["rnn"] < 1e-6 < 0.01 < min(ratios["rnn-attention"], ratios["transformer"])
    return Measurement(ratios["rnn"], words, holds)


def train_to_reverse(family: str, L: int, steps: int, *, lr: float) -> tuple[EncoderDecoder, float]:
    """Train a model to reverse L words; return it with its accuracy per word."""
    model = build(family, d=64).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    boundary = torch.full((64, 1), WORDS)
    for n in range(steps + 1):
        words = random_tokens(64, L)
        source, answers = torch.cat([words, boundary], 1), torch.cat([words.flip(1), boundary], 1)
        scores = model.scores(torch.cat([boundary, answers[:, :-1]], 1), source=source)
        if n < steps:
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores.flatten(0, 1), answers.flatten()).backward()
            optimizer.step()
    return model.eval(), float((scores.argmax(-1) == answers)[:, :L].float().mean())


@show(slow=True)
def compressed() -> Measurement:
    """A single context vector loses information: reversing 16 words, with the same number of steps."""
    accuracy = {family: 100 * train_to_reverse(family, 16, 200, lr=5e-3)[1] for family in ("rnn", "rnn-attention")}
    words = f"% of the words are correct after 200 steps with one context vector, {accuracy['rnn-attention']:.0f}"
    words += " with attention"
    return Measurement(accuracy["rnn"], words, accuracy["rnn"] + 30 < accuracy["rnn-attention"])


@show(slow=True)
def matching() -> Measurement:
    """Each target word attends to its match in the source: for reversal, along the anti-diagonal."""
    model, accuracy = train_to_reverse("rnn-attention", 8, 300, lr=5e-3)
    words = random_tokens(1, 8)
    with watching(model) as views, torch.no_grad():
        boundary = torch.full((1, 1), WORDS)
        model(torch.cat([boundary, words.flip(1)[:, :-1]], 1), source=torch.cat([words, boundary], 1))
    A = views["cross"].rows(list(range(8)))[0, 0]
    n_matches = sum(row.argmax().item() == 7 - t for t, row in enumerate(A))
    text = f"of 8 target words have the largest weight on the matching source word; {100 * accuracy:.0f} % of the words"
    return Measurement(n_matches, f"{text} are correct", n_matches >= 7)


# --- receptive fields and costs ---------------------------------------------------------------------------------------


@show()
def filter_reach() -> Measurement:
    """A convolution covers k words per layer; one attention layer covers all words."""
    n_seen = {}
    for family, layers in (("conv", 3), ("transformer", 1)):
        model = build(family, layers=layers)
        keys = (lambda read: read[0][0, 20]) if family == "conv" else (lambda read: read[0].k[0, :, 20])
        sizes = gradient_sizes(model, 41, lambda source, model=model, keys=keys: keys(model.encode(source, None)))
        n_seen[family] = int((sizes > 0).sum())
    words = f"of 41 words in the receptive field of 3 convolutions of width 3; {n_seen['transformer']}"
    return Measurement(n_seen["conv"], f"{words} with one attention layer", n_seen == {"conv": 7, "transformer": 41})


@show()
def operations_at_equal() -> Measurement:
    """Example 2 of the lecture, L = d = 1000, k = 3: attention costs as much as a recurrence."""
    counts = [products(layer, 1000, 1000, 3) for layer in ("attention", "recurrent", "convolution")]
    words = f"multiplications by the formula of attention, {counts[1]:.0e} of a recurrence, {counts[2]:.0e}"
    return Measurement(float(counts[0]), f"{words} of a convolution", counts == [10**9, 10**9, 3 * 10**9])


@show()
def layers_measured() -> Measurement:
    """Multiplications of the layers: GRU 6 L d^2, gated convolution 2 k L d^2, attention 4 L d^2 + 2 L^2 d."""
    exact = []
    for L, d, k in ((30, 60, 3), (60, 60, 3), (60, 30, 5)):
        x, gru = torch.zeros(1, L, d), RecurrentEncoder(RNNAttentionSettings(d=d, bidirectional=False))
        flops = [
            cost.flops_per_token(gru, lambda gru=gru, x=x: gru(x, None), 2),
            cost.flops_per_token(gru, lambda d=d, k=k, L=L: GatedConv(d, k, 0.0)(torch.zeros(1, L + k - 1, d)), 2),
            cost.flops_per_token(gru, lambda d=d, x=x: Attention(d, 2)(x), 2),
        ]
        exact.append(flops == [6 * L * d * d, 2 * k * L * d * d, 4 * L * d * d + 2 * L * L * d])
    return Measurement(sum(exact), "of 3 sizes have exactly the number of multiplications of the formulas", all(exact))


@show()
def layers_of_the_paper() -> Measurement:
    """The Transformer of 2017 has six encoder blocks and six decoder blocks."""
    with torch.device("meta"):
        model = TransformerSettings(d=512, layers=6, heads=8).build((100, 100))
    attentions = sum(isinstance(part, Attention) for part in model.modules())
    blocks = len(model.encoder.blocks) + len(model.stack.blocks)
    words = f"blocks with {attentions} attention layers and {blocks} MLPs; printed 24"
    return Measurement(blocks, words, (blocks, attentions) == (12, 18))
