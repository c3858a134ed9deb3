"""CTranslate2 specifications with the weights of a GPT, a BERT or an encoder-decoder Transformer.

A specification is a tree of layers: embeddings, a table of positions, blocks of attention and MLP, a final norm. Linear
layers are stored as outputs x inputs, as in PyTorch, with q, k and v in one matrix. All tensors are copied, because
CTranslate2 quantizes them in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.core import Attention, BlockConfig, Rotary, Stack
from harken.models.bert import BERT, BERTSettings
from harken.models.gpt import GPT, GPTSettings
from harken.models.seq2seq import Seq2Seq, TransformerSettings

ACTIVATIONS = {"gelu": "GELU", "gelu-tanh": "GELUTanh", "relu": "RELU", "silu": "SWISH"}
ACTIVATIONS |= {"swiglu": "SWISH", "geglu": "GELUTanh"}
ACCEPTED: Mapping[str, Sequence[object]] = {  # the values of settings that a specification expresses
    "copy": [False],
    "norm": ["pre", "post"],
    "positions": ["sinusoid", "sinusoid-halves", "learned", "rotary", "rotary-interleaved", "none"],
    "residual": [True],
    "similarity": ["scaled-dot"],
    "structure": ["full"],
    "window": [None],
}
Spec = Any  # a specification of CTranslate2, or a layer of one


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids. `copies`: a token whose row is the one with this index of our table."""

    tokens: Sequence[str]
    copies: Mapping[int, int] = field(default_factory=dict)

    def rows(self, table: Tensor) -> Tensor:
        """One row per token; our tables have more."""
        rows = table.detach()[: len(self.tokens)].clone()
        for token_id, index in self.copies.items():
            rows[token_id] = table.detach()[index]
        return rows


def unsupported_setting(settings: GPTSettings | BERTSettings) -> str | None:
    """The first setting that a specification cannot express, with the accepted values."""
    values: dict[str, Any] = dict(settings)
    for name, accepted in ACCEPTED.items():
        if name in values and values[name] not in accepted:
            expected = ", ".join("none" if value is None else str(value).lower() for value in accepted)
            return f"model.{name}={str(values[name]).lower()}; accepted: {expected}"
    if len(values.get("rope_scaling") or {}) > 1:
        return "model.rope_scaling=llama3; accepted: none or {factor = X}"
    attention = settings.block_config().build_attention()
    if attention.d_k != attention.d_v:
        return f"model.d_v={attention.d_v}; accepted: the width of the keys, {attention.d_k}"
    return None


def write_model(spec: Spec, folder: Path, precision: str = "float32") -> None:
    """Write model.bin, config.json and the vocabulary, with the weights in this precision."""
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(folder))


# --- one function per kind of model -----------------------------------------------------------------------------------


def language_model_spec(model: GPT, settings: GPTSettings, vocabulary: Vocabulary) -> Spec:
    """A TransformerDecoderModelSpec: scores of the next token."""
    from ctranslate2 import specs

    options = stack_options(settings, model.stack) | {"with_encoder_attention": False}
    decoder = specs.TransformerDecoderSpec(settings.layers, settings.heads, **options)
    spec = specs.TransformerDecoderModelSpec(decoder)
    set_inputs(decoder, [vocabulary.rows(model.embed.weight)], settings, model.stack, model.input_projection)
    set_stack(decoder, model.stack, model.norm)
    decoder.projection.weight = vocabulary.rows(model.head.weight)
    spec.register_vocabulary(vocabulary.tokens)
    spec.config.layer_norm_epsilon = settings.eps
    return spec


def encoder_spec(model: BERT, settings: BERTSettings, vocabulary: Vocabulary) -> Spec:
    """A TransformerEncoderModelSpec: hidden states and the pooled state, without heads."""
    from ctranslate2 import specs

    tables = [vocabulary.rows(model.embed.weight)]
    tables += [] if model.segments is None else [model.segments.weight.detach().clone()]
    options = stack_options(settings, model.stack) | {"layernorm_embedding": True}
    options |= {"num_source_embeddings": len(tables), "embeddings_merge": specs.EmbeddingsMerge.ADD}
    encoder = specs.TransformerEncoderSpec(settings.layers, settings.heads, **options)
    spec = specs.TransformerEncoderModelSpec(encoder, pooling_layer=settings.pooler)
    set_inputs(encoder, tables, settings, model.stack, nn.Sequential(nn.Identity(), model.embed_norm))
    set_stack(encoder, model.stack, model.norm)
    if model.pooler is not None:
        set_linear(spec.pooler_dense, model.pooler)
    spec.register_vocabulary(vocabulary.tokens)
    spec.config.layer_norm_epsilon = settings.eps
    return spec


def encoder_decoder_spec(
    model: Seq2Seq, settings: TransformerSettings, source: Vocabulary, target: Vocabulary, outputs: Vocabulary
) -> Spec:
    """A TransformerSpec. The copied rows of `target` are those of its embeddings, of `outputs` those of the scores."""
    from ctranslate2 import specs

    options = {"layernorm_embedding": settings.embed_norm}
    encoder_options = stack_options(settings, model.encoder) | options
    encoder_options["no_final_norm"] = not settings.encoder_norm
    encoder = specs.TransformerEncoderSpec(len(model.encoder.blocks), settings.heads, **encoder_options)
    decoder_options = stack_options(settings, model.stack) | options
    decoder = specs.TransformerDecoderSpec(settings.layers, settings.heads, **decoder_options)
    spec = specs.TransformerSpec(encoder, decoder)
    set_inputs(encoder, [source.rows(model.source_embed.weight)], settings, model.encoder, model.source_projection)
    set_inputs(decoder, [target.rows(model.embed.weight)], settings, model.stack, model.input_projection)
    set_stack(encoder, model.encoder, model.encoder_norm)
    set_stack(decoder, model.stack, model.norm)
    decoder.projection.weight = outputs.rows(model.head.weight)
    if model.head_bias is not None:
        decoder.projection.bias = outputs.rows(model.head_bias)
    spec.register_source_vocabulary(source.tokens)
    spec.register_target_vocabulary(target.tokens)
    spec.config.layer_norm_epsilon = settings.eps
    return spec


# --- layers -----------------------------------------------------------------------------------------------------------


def stack_options(settings: GPTSettings | BERTSettings, stack: Stack) -> dict[str, object]:
    """The options of a specification for the blocks of this stack."""
    from ctranslate2 import specs

    config: BlockConfig = settings.block_config()
    attention, positions = stack.blocks[0].attention, stack.positions
    options: dict[str, object] = {
        "pre_norm": config.norm == "pre",
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation.endswith("glu"),
        "rms_norm": config.rms_norm,
        "num_heads_kv": None if attention.kv_heads == config.heads else attention.kv_heads,
        "head_dim": None if attention.d_k * config.heads == config.d else attention.d_k,
    }
    if isinstance(positions, Rotary):
        factor = (dict(settings)["rope_scaling"] or {"factor": 1.0})["factor"]
        options |= {"rotary_dim": 0, "rotary_interleave": positions.layout == "interleaved"}  # 0: all dimensions
        options |= {"rotary_base": positions.base, "rotary_scaling_factor": factor}
        options |= {"rotary_scaling_type": specs.RotaryScalingType.Linear} if factor != 1 else {}
    return options


def set_inputs(
    spec: Spec, tables: Sequence[Tensor], settings: GPTSettings | BERTSettings, stack: Stack, projection: nn.Module
) -> None:
    """Embeddings, positions and the norm after them. A linear layer W (s E + PE) + b becomes part of the tables."""
    scale = 1.0 if isinstance(settings, BERTSettings) else settings.resolved_embedding_scale()
    first, *norm = projection if isinstance(projection, nn.Sequential) else [projection]
    linear = first if isinstance(first, nn.Linear) else None
    if linear is not None:
        tables = [F.linear(table, linear.weight, linear.bias / scale).detach() for table in tables]
    layers = spec.embeddings if isinstance(spec.embeddings, list) else [spec.embeddings]
    for layer, table in zip(layers, tables, strict=True):
        layer.weight = table
    spec.scale_embeddings = scale
    if not isinstance(stack.positions, Rotary):
        zeros = tables[0].new_zeros(1, settings.context, tables[0].shape[1])
        encodings = stack.positions.add(zeros, torch.arange(settings.context))[0].detach()
        spec.position_encodings.encodings = encodings if linear is None else F.linear(encodings, linear.weight).detach()
    if norm:
        set_norm(spec.layernorm_embedding, norm[0])


def set_stack(spec: Spec, stack: Stack, norm: nn.Module) -> None:
    """The blocks and the final norm, if there is one."""
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        set_attention(layer.self_attention, block.attention, block.attention_sublayer.norm, cross=False)
        if hasattr(layer, "attention"):
            set_attention(layer.attention, block.cross, block.cross_sublayer.norm, cross=True)
        set_norm(layer.ffn.layer_norm, block.mlp_sublayer.norm)
        set_linear(layer.ffn.linear_0, block.mlp.W_1)
        set_linear(layer.ffn.linear_1, block.mlp.W_2)
        if block.mlp.W_3 is not None:
            set_linear(layer.ffn.linear_0_noact, block.mlp.W_3)
    if not isinstance(norm, nn.Identity):
        set_norm(spec.layer_norm, norm)


def set_attention(spec: Spec, attention: Attention, norm: nn.Module, *, cross: bool) -> None:
    """q, k and v as one product; in a cross-attention k and v, which see another sequence."""
    projections = [attention.W_q, attention.W_k, attention.W_v]
    for layer, maps in zip(spec.linear, [projections[:1], projections[1:]] if cross else [projections], strict=False):
        set_linear(layer, *maps)
    set_linear(spec.linear[-1], attention.W_o)
    set_norm(spec.layer_norm, norm)


def set_linear(spec: Spec, *maps: nn.Linear) -> None:
    """Several linear maps of one input as one."""
    spec.weight = torch.cat([f.weight.detach() for f in maps])
    if maps[0].bias is not None:
        spec.bias = torch.cat([f.bias.detach() for f in maps])


def set_norm(spec: Spec, norm: nn.Module) -> None:
    """A LayerNorm, whose missing bias is zero, or an RMSNorm."""
    weight: Tensor = norm.get_parameter("weight").detach()
    spec.gamma = weight.clone()
    if isinstance(norm, nn.LayerNorm):
        spec.beta = torch.zeros_like(weight) if norm.bias is None else norm.bias.detach().clone()
