"""GPT: the equations of the lecture, the values of GPT-2 and Llama in transformers, and every setting."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import run_folder
from harken.errors import BadSetting
from harken.models.gpt import GPT, GPTSettings
from harken.models.rnn import LSTMSettings
from harken.recipe import resolve

VOCAB, L, LAYERS, HEADS, d = 37, 11, 2, 4, 32


def build(vocab: int = VOCAB, **fields) -> GPT:
    settings = {"d": d, "layers": LAYERS, "heads": HEADS, "context": 16, **fields}
    return resolve(("test", {f"model.{name}": value for name, value in settings.items()})).model.build(vocab).eval()


def randomize(model: torch.nn.Module) -> dict[str, Tensor]:
    """Random weights and biases, large enough to show errors; by name, without the tied copy."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape) + (p.dim() == 1))
    return {name: p.detach() for name, p in model.named_parameters()}


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def scores(model: GPT, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model(tokens))


def pad_rows(weight: Tensor) -> Tensor:
    """An embedding matrix padded to a multiple of 64 rows."""
    return F.pad(weight, (0, 0, 0, -len(weight) % 64))


# --- the equations of the lecture -------------------------------------------------------------------------------------


def by_the_lecture(w: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """CS5242, lecture 7, token by token and head by head, in float64; the last LN is from GPT-2."""
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
            head = slice(h * D, (h + 1) * D)
            q = linear(X[t], f"{name}.W_q")[head]
            pairs = [(linear(x, f"{name}.W_k")[head], linear(x, f"{name}.W_v")[head]) for x in X[: t + 1]]  # the mask
            a = torch.stack([q @ k / math.sqrt(D) for k, _ in pairs]).exp()
            heads.append(sum(weight * v for weight, (_, v) in zip(a / a.sum(), pairs, strict=True)))
        return linear(torch.cat(heads), f"{name}.W_o")

    H = [linear(E[token] / 0.02 + pe(t), "input_projection") for t, token in enumerate(tokens)]
    for layer in range(LAYERS):
        block = f"stack.blocks.{layer}"
        X = [ln(h, f"{block}.attention_sublayer.norm") for h in H]
        H = [h + mha(X, t, f"{block}.attention") for t, h in enumerate(H)]
        inner = [linear(ln(h, f"{block}.mlp_sublayer.norm"), f"{block}.mlp.W_1").relu() for h in H]
        H = [h + linear(x, f"{block}.mlp.W_2") for h, x in zip(H, inner, strict=True)]
    return torch.stack([E[:VOCAB] @ ln(h, "norm") for h in H])


def test_the_lecture_style_equals_the_equations_of_the_lecture():
    model = build(input_projection=True, positions="sinusoid", activation="relu").double()
    weights, tokens = randomize(model), random_tokens(1, L)
    torch.testing.assert_close(scores(model, tokens)[0], by_the_lecture(weights, tokens[0].tolist()))


def test_initial_embeddings_have_the_scale_of_the_sinusoids():
    model = build(positions="sinusoid")
    positions = model.stack.positions.add(torch.zeros(1, L, d), torch.arange(L))
    embeddings = model.embed(random_tokens(1, L)) * model.embedding_scale
    assert 0.5 < embeddings.std() / positions.std() < 2.5


def test_the_default_is_the_block_of_the_lecture():
    settings = resolve(("test", {})).model
    assert (settings.style, settings.positions, settings.norm, settings.similarity) == (
        "lecture",
        "sinusoid",
        "pre",
        "scaled-dot",
    )


# --- GPT-2 and Llama --------------------------------------------------------------------------------------------------


@pytest.mark.oracle
def test_the_gpt2_style_equals_transformers_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    reference = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=d, n_layer=LAYERS, n_head=HEADS)
    ).double()
    w = randomize(reference.eval())
    weights = {
        "embed.weight": pad_rows(w["transformer.wte.weight"]),
        "stack.positions.table.weight": w["transformer.wpe.weight"],
        **{f"norm.{end}": w[f"transformer.ln_f.{end}"] for end in ("weight", "bias")},
    }
    for n in range(LAYERS):
        a, b = f"stack.blocks.{n}", f"transformer.h.{n}"
        for end in ("weight", "bias"):
            qkv = w[f"{b}.attn.c_attn.{end}"].chunk(3, -1)
            linear = dict(zip(("attention.W_q", "attention.W_k", "attention.W_v"), qkv, strict=True))
            linear |= {"attention.W_o": w[f"{b}.attn.c_proj.{end}"]}
            linear |= {"mlp.W_1": w[f"{b}.mlp.c_fc.{end}"], "mlp.W_2": w[f"{b}.mlp.c_proj.{end}"]}
            weights |= {f"{a}.{name}.{end}": x.mT if end == "weight" else x for name, x in linear.items()}
            weights |= {f"{a}.{sublayer}.norm.{end}": w[f"{b}.{ln}.{end}"] for sublayer, ln in NORMS.items()}
    model, tokens = build(style="gpt2").double(), random_tokens(2, L)
    run_folder.load_weights(model, weights)
    with torch.no_grad():
        torch.testing.assert_close(scores(model, tokens), reference(tokens).logits, rtol=1e-5, atol=1e-5)


NORMS = {"attention_sublayer": "ln_1", "mlp_sublayer": "ln_2"}


@pytest.mark.oracle
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_llama_style_equals_transformers_llama(kv_heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": d, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"num_key_value_heads": kv_heads, "intermediate_size": 8 * d // 3, "max_position_embeddings": 16}
    reference = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, tie_word_embeddings=False, **sizes)).double()
    w = randomize(reference.eval())
    weights = {
        "embed.weight": pad_rows(w["model.embed_tokens.weight"]),
        "head.weight": pad_rows(w["lm_head.weight"]),
        "norm.weight": w["model.norm.weight"],
    }
    names = {f"attention.W_{x}": f"self_attn.{x}_proj" for x in "qkvo"}
    names |= {"mlp.W_1": "mlp.gate_proj", "mlp.W_3": "mlp.up_proj", "mlp.W_2": "mlp.down_proj"}
    names |= {"attention_sublayer.norm": "input_layernorm", "mlp_sublayer.norm": "post_attention_layernorm"}
    for n in range(LAYERS):
        weights |= {f"stack.blocks.{n}.{a}.weight": w[f"model.layers.{n}.{b}.weight"] for a, b in names.items()}
    model, tokens = build(style="llama", kv_heads=kv_heads).double(), random_tokens(2, L)
    run_folder.load_weights(model, weights)
    with torch.no_grad():
        torch.testing.assert_close(scores(model, tokens), reference(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(  # counts of the published checkpoints in transformers, with 50,257 tokens
    ("size", "n_parameters"),
    [("124m", 124_439_808), ("355m", 354_823_168), ("774m", 774_030_080), ("1.5b", 1_557_611_200)],
)
def test_the_gpt2_sizes_have_its_parameter_counts(size, n_parameters):
    settings = resolve(("test", {"model.style": "gpt2", "model.size": size})).model
    with torch.device("meta"):
        model = settings.build(50_257)
    padding = (50_304 - 50_257) * settings.d
    assert sum(p.numel() for p in model.parameters()) - padding == n_parameters


# --- the dials --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dial", ["size", "style"])
def test_a_dial_has_a_row_for_each_value(dial):
    assert set(GPTSettings.dials[dial]) == set(get_args(GPTSettings.model_fields[dial].annotation))


@pytest.mark.parametrize("dial", ["size", "style"])
def test_the_rows_of_a_dial_are_valid_settings(dial):
    for row in GPTSettings.dials[dial].values():
        assert GPTSettings(**row).model_dump(include=set(row)) == row


@pytest.mark.parametrize("size", get_args(GPTSettings.model_fields["size"].annotation))
def test_the_size_sets_width_depth_heads_and_context(size):
    settings = resolve(("test", {"model.size": size})).model
    assert settings.model_dump(include={"d", "layers", "heads", "context"}) == GPTSettings.dials["size"][size]


def test_an_explicit_setting_overrides_its_dial():
    explicit = {"model.size": "tiny", "model.d": 48, "model.style": "llama", "model.bias": True}
    settings = resolve(("test", explicit)).model
    assert (settings.d, settings.layers, settings.bias, settings.rms_norm) == (48, 2, True, True)


def test_the_default_size_sets_the_default_fields():
    assert GPTSettings.dials["size"]["small"] == GPTSettings().model_dump(include={"d", "layers", "heads", "context"})


# --- every setting ----------------------------------------------------------------------------------------------------

CHOICES = [
    (name, value)
    for name in ("positions", "similarity", "norm", "activation", "style")
    for value in get_args(GPTSettings.model_fields[name].annotation)
]
CHOICES += [("residual", False), ("input_projection", True), ("tie_embeddings", False), ("window", 2)]
CHOICES += [("rms_norm", True), ("bias", False), ("kv_heads", 1), ("d_k", 6), ("d_v", 5), ("d_ff", 7), ("dropout", 0.3)]


@pytest.mark.parametrize(("name", "value"), CHOICES)
def test_every_setting_builds_and_trains(name, value):
    model = build(**{name: value}).train()
    tokens, optimizer = random_tokens(2, L + 1), torch.optim.SGD(model.parameters(), lr=0.05)

    def loss() -> Tensor:
        return F.cross_entropy(model.logits(model(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten())

    before = loss()
    before.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    model.eval()
    assert loss().item() < before.item()


CHANGES = [(name, value) for name, value in CHOICES if getattr(GPTSettings(), name) != value and name != "dropout"]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_every_setting_changes_the_scores(name, value):
    default, changed = build(), build(**{name: value})
    default_weights, changed_weights = randomize(default), randomize(changed)
    for key in default_weights.keys() & changed_weights.keys():
        if default_weights[key].shape == changed_weights[key].shape:
            changed_weights[key].copy_(default_weights[key])
    tokens = random_tokens(2, L)
    assert not torch.allclose(scores(default, tokens), scores(changed, tokens), atol=1e-4)


def test_a_window_masks_tokens_further_back():
    model, tokens = build(window=2, layers=1), random_tokens(1, L)
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % VOCAB
    same = (scores(model, tokens) == scores(model, changed)).all(-1)[0]
    assert same.tolist() == [False] * 3 + [True] * (L - 3)


def test_without_positions_one_layer_ignores_the_order_of_the_prefix():
    model, tokens = build(positions="none", layers=1), random_tokens(1, L)
    shuffled = torch.cat([tokens[:, torch.randperm(L - 1)], tokens[:, -1:]], 1)
    torch.testing.assert_close(scores(model, shuffled)[:, -1], scores(model, tokens)[:, -1])


def test_a_tied_head_shares_the_embedding_weight():
    model = build()
    assert model.head.weight is model.embed.weight
    assert build(tie_embeddings=False).head.weight is not model.embed.weight


def test_an_indivisible_width_is_reported_with_a_divisible_one():
    with pytest.raises(ValueError, match=r"^d=32 is not divisible by heads=5; use d=35$"):
        build(heads=5)


def test_a_setting_outside_its_bounds_is_reported():
    with pytest.raises(BadSetting, match=r"^test: model.layers = 0: accepted: whole number ≥ 1 and ≤ 1000$"):
        build(layers=0)


# --- the padded vocabulary --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [3, 63, 64, 65])
def test_a_padded_vocabulary_scores_only_real_tokens(vocab):
    assert scores(build(vocab), torch.zeros(1, 4, dtype=torch.long)).shape[-1] == vocab


def test_padding_rows_of_the_vocabulary_change_neither_loss_nor_gradient():
    from harken.data.batch import Batch
    from harken.tasks.next_word import nll

    model, tokens = build(), random_tokens(2, L + 1)
    losses_and_grads = []
    for fill in (0.0, 9.0):  # values of the padding rows
        with torch.no_grad():
            model.embed.weight[VOCAB:] = fill
        model.zero_grad()
        total, _ = nll(model, Batch(tokens[:, :-1], tokens[:, 1:]))
        total.backward()
        assert not model.embed.weight.grad[VOCAB:].any()
        losses_and_grads.append((total.detach(), [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(losses_and_grads[0], losses_and_grads[1])
    plain = F.cross_entropy(scores(model, tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(losses_and_grads[0][0], plain)


@pytest.mark.parametrize("settings", [GPTSettings, LSTMSettings])
def test_word_dropout_removes_a_token_everywhere_in_a_row_and_rescales_the_rest(settings):
    model = settings(d=16, layers=1, context=64, word_dropout=0.5).build(20)
    tokens = torch.randint(20, (40, 64), generator=torch.Generator().manual_seed(0))
    plain = model.embed(tokens)
    x = model.train().embed_tokens(tokens)
    ratio = (x / plain).mean(-1)
    assert {0.0, 2.0} == set(ratio.round(decimals=3).unique().tolist())
    for row, ids in zip(ratio, tokens, strict=True):
        for token in ids.unique():
            assert len(row[ids == token].round(decimals=3).unique()) == 1
    assert 0.4 < float((ratio == 0).float().mean()) < 0.6
    assert torch.equal(model.eval().embed_tokens(tokens), plain)
