"""Marian and BART: encoder-decoder Transformers for translation and summarization.

They have separate start and end tokens. We have one edge token for both, an extra row after the vocabulary: a copy of
the start token in the target embeddings, and of the end token in the source embeddings and the output layer.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.bridge.weight_mapping import (
    Count,
    EdgeTokenMapping,
    LayerCount,
    ModelMapping,
    TensorMapping,
    affine,
    layer_mappings,
)
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.run import Run

ACTIVATIONS = {"swish": "silu", "gelu_new": "gelu-tanh"}
TokenId = Field(ge=0, le=10_000_000)
COLUMN_WEIGHTS = (
    "embed.weight",
    "W_q.weight",
    "W_k.weight",
    "W_v.weight",
    "W_1.weight",
)  # have the hidden state as columns
ROW_WEIGHTS = (
    "W_o.weight",
    "W_o.bias",
    "W_2.weight",
    "W_2.bias",
    "norm.weight",
    "norm.bias",
)  # have the hidden state as rows


class MarianMapping(ModelMapping):
    """Marian: sinusoidal positions, and up to three embedding tables, as the edge token differs."""

    check: ClassVar = "encoder-decoder"
    auto_class: ClassVar = "AutoModelForSeq2SeqLM"
    ignored_tensors: ClassVar = r"model\.(en|de)coder\.embed_(positions|tokens)\.weight|lm_head\.weight"
    position_settings: ClassVar[Mapping[str, Any]] = {"model.positions": "sinusoid-halves"}

    d_model: Count
    encoder_layers: LayerCount
    decoder_layers: LayerCount
    encoder_attention_heads: Count
    decoder_attention_heads: Count
    encoder_ffn_dim: Count
    decoder_ffn_dim: Count
    max_position_embeddings: Count
    activation_function: Literal["swish", "silu", "relu", "gelu", "gelu_new"] = "swish"
    scale_embedding: bool = False
    normalize_before: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    static_position_embeddings: Literal[True] = True
    share_encoder_decoder_embeddings: Literal[True] = True
    tie_word_embeddings: Literal[True] = True
    eos_token_id: int = TokenId
    decoder_start_token_id: int = TokenId
    pad_token_id: int = TokenId

    @property
    def has_start_token(self) -> bool:
        """Whether a target starts with another token than it ends with."""
        return self.eos_token_id != self.decoder_start_token_id

    def processor(self, tokenizer: Tokenizer) -> PairTokenizers:
        if tokenizer.vocab != self.vocab_size:
            raise BadInput(f"the tokenizer has {tokenizer.vocab} ids, the model {self.vocab_size}; they must be equal")
        return PairTokenizers(tokenizer, tokenizer)

    def settings(self) -> dict[str, Any]:
        if self.encoder_attention_heads != self.decoder_attention_heads:
            heads = (
                f"{self.encoder_attention_heads} heads in the encoder and {self.decoder_attention_heads} in the decoder"
            )
            raise BadInput(f"{heads}: must be equal; import another model")
        return {
            "data.kind": "pairs",
            "data.tokenizer": "bpe",
            "data.shared_vocab": True,
            "model.kind": "transformer",
            "model.d": self.d_model,
            "model.layers": self.decoder_layers,
            "model.encoder_layers": self.encoder_layers,
            "model.heads": self.encoder_attention_heads,
            "model.d_ff": self.encoder_ffn_dim,
            "model.context": self.max_position_embeddings,
            "model.norm": "post",
            "model.activation": ACTIVATIONS.get(self.activation_function, self.activation_function),
            "model.embedding_scale": math.sqrt(self.d_model) if self.scale_embedding else 1.0,
            "model.head_bias": True,
            "model.share_embeddings": not self.has_start_token,
            "model.tie_embeddings": not self.has_start_token,
            **self.position_settings,
        }

    def weight_map(self) -> dict[str, TensorMapping]:
        self_attention, cross = _attention("attention", "self_attn"), _attention("cross", "encoder_attn")
        mlp = affine("mlp.W_1", "fc1") | affine("mlp.W_2", "fc2")
        mlp |= affine("mlp_sublayer.norm", "final_layer_norm")
        shared, end, n_rows = "model.shared.weight", self.eos_token_id, self.vocab_size
        decoder = self_attention | cross | mlp
        tables = {
            "embed.weight": EdgeTokenMapping(
                shared, vocab_rows=True, token_id=self.decoder_start_token_id, n_rows=n_rows
            )
        }
        if self.has_start_token:
            for name in ("source_embed", "head"):
                tables[f"{name}.weight"] = EdgeTokenMapping(shared, vocab_rows=True, token_id=end, n_rows=n_rows)
        return {
            **tables,
            "head_bias": EdgeTokenMapping("final_logits_bias", token_id=end, n_rows=n_rows, is_bias=True),
            **dict(
                layer_mappings(
                    self.encoder_layers, "encoder.blocks.#.", "model.encoder.layers.#.", self_attention | mlp
                )
            ),
            **dict(layer_mappings(self.decoder_layers, "stack.blocks.#.", "model.decoder.layers.#.", decoder)),
        }


def equivalent_settings(model: Any) -> dict[str, Any]:
    """Settings that `fold_weights` makes equal: the order of sines and cosines, and the embedding scale."""
    return {
        "embedding_scale": None,
        "positions": model.positions if model.positions != "sinusoid" else "sinusoid-halves",
    }


def fold_weights(run: Run, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the equivalent Marian model: all sines before all cosines, an embedding scale of 1 or sqrt(d), and
    a bias of the logits."""
    model, last_norm = run.recipe.model, f"stack.blocks.{run.recipe.model.layers - 1}.mlp_sublayer.norm."
    weights = {"head_bias": torch.zeros(run.model.vocab), **weights}
    if model.positions == "sinusoid":  # permute the hidden dimensions
        order = torch.cat([torch.arange(0, model.d, 2), torch.arange(1, model.d, 2)])
        weights |= {name: w[:, order] for name, w in weights.items() if name.endswith(COLUMN_WEIGHTS)}
        weights |= {name: w[order] for name, w in weights.items() if name.endswith(ROW_WEIGHTS)}
    if (scale := model.resolved_embedding_scale()) not in (1, math.sqrt(model.d)):  # the output layer shares the table
        weights["embed.weight"] = weights["embed.weight"] * scale
        weights |= {f"{last_norm}{part}": weights[f"{last_norm}{part}"] / scale for part in ("weight", "bias")}
    return weights


def _attention(ours: str, source: str) -> dict[str, TensorMapping]:
    maps = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "out_proj"}
    attention = {name: item for a, b in maps.items() for name, item in affine(f"{ours}.{a}", f"{source}.{b}").items()}
    return attention | affine(f"{ours}_sublayer.norm", f"{source}_layer_norm")


class BARTMapping(MarianMapping):
    """BART: learned positions that start at row 2, and a norm after embeddings + positions."""

    ignored_tensors: ClassVar = r"model\.(en|de)coder\.embed_tokens\.weight|lm_head\.weight"
    position_settings: ClassVar = {"model.positions": "learned", "model.embed_norm": True}

    activation_function: Literal["gelu", "gelu_new", "relu", "swish", "silu"] = "gelu"
    static_position_embeddings: Literal[False] = False  # type: ignore[assignment]

    def weight_map(self) -> dict[str, TensorMapping]:
        weight_map = super().weight_map()
        for ours, projection, side in (
            ("encoder", "source_projection", "encoder"),
            ("stack", "input_projection", "decoder"),
        ):
            table = TensorMapping(f"model.{side}.embed_positions.weight", skip_rows=2)
            weight_map |= {f"{ours}.positions.table.weight": table}
            weight_map |= affine(f"{projection}.1", f"model.{side}.layernorm_embedding")
        return weight_map
