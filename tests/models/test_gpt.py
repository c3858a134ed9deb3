"""GPT: the lecture's Transformer to the letter, GPT-2 and Llama to the number, and every choice it offers."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import run_folder
from harken.errors import BadSetting
from harken.models.gpt import GPT, Shape
from harken.models.rnn import LSTMShape
from harken.recipe import resolve

VOCAB, L, LAYERS, HEADS, d = 37, 11, 2, 4, 32


def build(vocab: int = VOCAB, **fields) -> GPT:
    shape = {"d": d, "layers": LAYERS, "heads": HEADS, "context": 16, **fields}
    return resolve(("test", {f"model.{name}": value for name, value in shape.items()})).model.build(vocab).eval()


def shaken(model: torch.nn.Module) -> dict[str, Tensor]:
    """Random weights, biases too, large enough for mistakes to show; by name, without the tied copy."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape) + (p.dim() == 1))
    return {name: p.detach() for name, p in model.named_parameters()}


def words(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def scores(model: GPT, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model(tokens))


def rounded(weight: Tensor) -> Tensor:
    """A word matrix with the rows that round it up to a multiple of 64."""
    return F.pad(weight, (0, 0, 0, -len(weight) % 64))


# --- the lecture's form -----------------------------------------------------------------------------------------------


def by_the_lecture(w: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """CS5242, lecture 7, word by word and head by head, in float64. (The last LN is GPT-2's: pre-LN sums grow.)"""
    E = w["embed.weight"]

    def ln(x: Tensor, name: str) -> Tensor:
        mu, var = x.mean(), ((x - x.mean()) ** 2).mean()
        return w[f"{name}.weight"] * (x - mu) / (var + 1e-5).sqrt() + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def pe(t: int) -> Tensor:
        waves = [t / 10_000 ** (2 * (i // 2) / d) for i in range(d)]
        return torch.tensor([math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(waves)], dtype=E.dtype)

    def mha(X: list[Tensor], t: int, name: str) -> Tensor:
        D, heads = d // HEADS, []
        for h in range(HEADS):
            cut = slice(h * D, (h + 1) * D)
            q = linear(X[t], f"{name}.W_q")[cut]
            pairs = [(linear(x, f"{name}.W_k")[cut], linear(x, f"{name}.W_v")[cut]) for x in X[: t + 1]]  # the mask
            a = torch.stack([q @ k / math.sqrt(D) for k, _ in pairs]).exp()
            heads.append(sum(weight * v for weight, (_, v) in zip(a / a.sum(), pairs, strict=True)))
        return linear(torch.cat(heads), f"{name}.W_o")

    H = [linear(E[word] / 0.02 + pe(t), "lift") for t, word in enumerate(tokens)]  # words as loud as sin and cos
    for layer in range(LAYERS):
        at = f"stack.blocks.{layer}"
        X = [ln(h, f"{at}.look_sub.norm") for h in H]
        H = [h + mha(X, t, f"{at}.look") for t, h in enumerate(H)]
        hidden = [linear(ln(h, f"{at}.mlp_sub.norm"), f"{at}.mlp.W_1").relu() for h in H]
        H = [h + linear(x, f"{at}.mlp.W_2") for h, x in zip(H, hidden, strict=True)]
    return torch.stack([E[:VOCAB] @ ln(h, "norm") for h in H])


def test_the_lectures_form_is_its_equations():
    model = build(input_projection=True, positions="sinusoid", activation="relu").double()
    weights, tokens = shaken(model), words(1, L)
    torch.testing.assert_close(scores(model, tokens)[0], by_the_lecture(weights, tokens[0].tolist()))


def test_words_are_not_drowned_by_sin_and_cos_at_the_start():
    model = build(positions="sinusoid")
    there = torch.arange(L)
    words_alone = model.embed(words(1, L)) * model.loud
    assert 0.5 < words_alone.std() / (model.stack.positions.add(torch.zeros(1, L, d), there)).std() < 2.5


def test_the_default_is_the_lectures_block():
    chosen = resolve(("test", {})).model
    assert (chosen.style, chosen.positions, chosen.norm, chosen.similarity) == (
        "lecture",
        "sinusoid",
        "pre",
        "scaled-dot",
    )


# --- GPT-2 and Llama --------------------------------------------------------------------------------------------------


@pytest.mark.oracle
def test_the_gpt2_style_equals_transformers_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=d, n_layer=LAYERS, n_head=HEADS)
    ).double()
    w = shaken(theirs.eval())
    mine = {
        "embed.weight": rounded(w["transformer.wte.weight"]),
        "stack.positions.table.weight": w["transformer.wpe.weight"],
        **{f"norm.{end}": w[f"transformer.ln_f.{end}"] for end in ("weight", "bias")},
    }
    for n in range(LAYERS):
        a, b = f"stack.blocks.{n}", f"transformer.h.{n}"
        for end in ("weight", "bias"):
            qkv = w[f"{b}.attn.c_attn.{end}"].chunk(3, -1)
            linear = dict(zip(("look.W_q", "look.W_k", "look.W_v"), qkv, strict=True))
            linear |= {"look.W_o": w[f"{b}.attn.c_proj.{end}"]}
            linear |= {"mlp.W_1": w[f"{b}.mlp.c_fc.{end}"], "mlp.W_2": w[f"{b}.mlp.c_proj.{end}"]}
            mine |= {f"{a}.{name}.{end}": x.mT if end == "weight" else x for name, x in linear.items()}
            mine |= {f"{a}.{mine_}.norm.{end}": w[f"{b}.{ln}.{end}"] for mine_, ln in NORMS.items()}
    model, tokens = build(style="gpt2").double(), words(2, L)
    run_folder.load_weights(model, mine)
    with torch.no_grad():
        torch.testing.assert_close(scores(model, tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


NORMS = {"look_sub": "ln_1", "mlp_sub": "ln_2"}


@pytest.mark.oracle
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_llama_style_equals_transformers_llama(kv_heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": d, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    shape |= {"num_key_value_heads": kv_heads, "intermediate_size": 8 * d // 3, "max_position_embeddings": 16}
    theirs = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, tie_word_embeddings=False, **shape)).double()
    w = shaken(theirs.eval())
    mine = {
        "embed.weight": rounded(w["model.embed_tokens.weight"]),
        "head.weight": rounded(w["lm_head.weight"]),
        "norm.weight": w["model.norm.weight"],
    }
    names = {f"look.W_{x}": f"self_attn.{x}_proj" for x in "qkvo"}
    names |= {"mlp.W_1": "mlp.gate_proj", "mlp.W_3": "mlp.up_proj", "mlp.W_2": "mlp.down_proj"}
    names |= {"look_sub.norm": "input_layernorm", "mlp_sub.norm": "post_attention_layernorm"}
    for n in range(LAYERS):
        mine |= {f"stack.blocks.{n}.{a}.weight": w[f"model.layers.{n}.{b}.weight"] for a, b in names.items()}
    model, tokens = build(style="llama", kv_heads=kv_heads).double(), words(2, L)
    run_folder.load_weights(model, mine)
    with torch.no_grad():
        torch.testing.assert_close(scores(model, tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(  # as transformers counts the published checkpoints, with 50,257 words
    ("size", "weights"), [("124m", 124_439_808), ("355m", 354_823_168), ("774m", 774_030_080), ("1.5b", 1_557_611_200)]
)
def test_the_sizes_named_for_gpt2_have_its_number_of_weights(size, weights):
    shape = resolve(("test", {"model.style": "gpt2", "model.size": size})).model
    with torch.device("meta"):
        model = shape.build(50_257)
    rounding = (50_304 - 50_257) * shape.d
    assert sum(p.numel() for p in model.parameters()) - rounding == weights


# --- the dials --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dial", ["size", "style"])
def test_a_dial_has_a_row_for_each_of_its_values(dial):
    assert set(Shape.dials[dial]) == set(get_args(Shape.model_fields[dial].annotation))


@pytest.mark.parametrize("dial", ["size", "style"])
def test_a_row_of_a_dial_names_fields_and_values_that_are_accepted(dial):
    for row in Shape.dials[dial].values():
        assert Shape(**row).model_dump(include=set(row)) == row


@pytest.mark.parametrize("size", get_args(Shape.model_fields["size"].annotation))
def test_the_size_sets_width_depth_heads_and_context(size):
    chosen = resolve(("test", {"model.size": size})).model
    assert chosen.model_dump(include={"d", "layers", "heads", "context"}) == Shape.dials["size"][size]


def test_a_field_beats_the_dial_that_would_set_it():
    chosen = resolve(("test", {"model.size": "tiny", "model.d": 48, "model.style": "llama", "model.bias": True})).model
    assert (chosen.d, chosen.layers, chosen.bias, chosen.rms) == (48, 2, True, True)


def test_the_default_size_stands_for_the_default_fields():
    assert Shape.dials["size"]["small"] == Shape().model_dump(include={"d", "layers", "heads", "context"})


# --- every choice -----------------------------------------------------------------------------------------------------

CHOICES = [
    (name, value)
    for name in ("positions", "similarity", "norm", "act", "style")
    for value in get_args(Shape.model_fields[name].annotation)
]
CHOICES += [("residual", False), ("lift", True), ("tied", False), ("window", 2), ("rms", True), ("bias", False)]
CHOICES += [("kv_heads", 1), ("d_k", 6), ("d_v", 5), ("hidden", 7), ("dropout", 0.3)]


@pytest.mark.parametrize(("name", "value"), CHOICES)
def test_every_choice_builds_and_learns(name, value):
    model = build(**{name: value}).train()
    tokens, rule = words(2, L + 1), torch.optim.SGD(model.parameters(), lr=0.05)

    def loss() -> Tensor:
        return F.cross_entropy(model.logits(model(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten())

    before = loss()
    before.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    rule.step()
    model.eval()
    assert loss().item() < before.item()


OTHERS = [(name, value) for name, value in CHOICES if getattr(Shape(), name) != value and name != "dropout"]


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_every_choice_matters(name, value):
    default, other = build(), build(**{name: value})
    mine, theirs = shaken(default), shaken(other)
    for shared in mine.keys() & theirs.keys():
        if mine[shared].shape == theirs[shared].shape:
            theirs[shared].copy_(mine[shared])
    tokens = words(2, L)
    assert not torch.allclose(scores(default, tokens), scores(other, tokens), atol=1e-4)


def test_a_window_hides_what_lies_further_back():
    model, tokens = build(window=2, layers=1), words(1, L)
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % VOCAB
    same = (scores(model, tokens) == scores(model, changed)).all(-1)[0]
    assert same.tolist() == [False] * 3 + [True] * (L - 3)


def test_without_positions_one_layer_takes_a_prefix_for_a_set():
    model, tokens = build(positions="none", layers=1), words(1, L)
    shuffled = torch.cat([tokens[:, torch.randperm(L - 1)], tokens[:, -1:]], 1)
    torch.testing.assert_close(scores(model, shuffled)[:, -1], scores(model, tokens)[:, -1])


def test_tied_word_scores_use_the_embedding_itself():
    model = build()
    assert model.head.weight is model.embed.weight
    assert build(tie_embeddings=False).head.weight is not model.embed.weight


def test_heads_that_do_not_share_the_width_are_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"^d=32 does not split over 5 heads; try d=35$"):
        build(heads=5)


def test_a_setting_outside_its_bounds_is_refused():
    with pytest.raises(BadSetting, match=r"^test: model.layers = 0: accepted: whole number ≥ 1 and ≤ 1000$"):
        build(layers=0)


# --- the rounded vocabulary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [3, 63, 64, 65])
def test_a_rounded_vocabulary_scores_only_the_words_there_are(vocab):
    assert scores(build(vocab), torch.zeros(1, 4, dtype=torch.long)).shape[-1] == vocab


def test_rows_that_round_the_vocabulary_up_change_neither_loss_nor_gradient():
    from harken.data.batch import Batch
    from harken.tasks.next_word import nll

    model, tokens = build(), words(2, L + 1)
    results = []
    for fill in (0.0, 9.0):  # whatever stands in those rows
        with torch.no_grad():
            model.embed.weight[VOCAB:] = fill
        model.zero_grad()
        total, _ = nll(model, Batch(tokens[:, :-1], tokens[:, 1:]))
        total.backward()
        assert not model.embed.weight.grad[VOCAB:].any()
        results.append((total.detach(), [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1])
    plain = F.cross_entropy(scores(model, tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(results[0][0], plain)


@pytest.mark.parametrize("make", [Shape, LSTMShape])
def test_a_hidden_word_is_hidden_all_over_its_row_and_the_others_are_louder(make):
    model = make(d=16, layers=1, context=64, word_dropout=0.5).build(20)
    tokens = torch.randint(20, (40, 64), generator=torch.Generator().manual_seed(0))
    plain = model.embed(tokens)
    x = model.train().words(tokens)
    ratio = (x / plain).mean(-1)
    assert {0.0, 2.0} == set(ratio.round(decimals=3).unique().tolist())
    for row, said in zip(ratio, tokens, strict=True):
        for word in said.unique():
            assert len(row[said == word].round(decimals=3).unique()) == 1
    assert 0.4 < float((ratio == 0).float().mean()) < 0.6
    assert torch.equal(model.eval().words(tokens), plain)
