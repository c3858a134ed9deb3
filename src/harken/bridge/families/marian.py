"""Marian and BART: encoder-decoder Transformers for translation and summarization.

They have separate start and end tokens. We have one edge token for both, an extra row after the vocabulary: a copy of
the start token in the target embeddings, and of the end token in the source embeddings and the output layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.bridge.weight_mapping import Count, LayerCount, ModelMapping, TensorMapping, table_mappings
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.run import Run

TokenId = Field(ge=0, le=10_000_000)
NEVER_LOGIT = -1e9  # bias of a token that is never predicted
COLUMN_WEIGHTS = ("embed.weight", "W_q.weight", "W_k.weight", "W_v.weight", "W_1.weight")  # hidden state: columns
ROW_WEIGHTS = ("W_o.weight", "W_o.bias", "W_2.weight", "W_2.bias", "norm.weight", "norm.bias")  # hidden state: rows


@dataclass(frozen=True)
class EdgeTokenMapping(TensorMapping):
    """One row per token, plus a copy of row `token_id` for our edge token, which starts and ends a sequence."""

    token_id: int = 0
    n_rows: int = 0  # of their tensor; if ours has fewer, `token_id` is our edge token and later rows are unused
    is_bias: bool = False  # of the logits: the copied token is then never predicted itself

    def import_tensor(self, source: Tensor) -> Tensor:
        source = source.flatten() if self.is_bias else source
        weight = torch.cat([source, source[self.token_id : self.token_id + 1]])
        if self.is_bias:
            weight[self.token_id] = NEVER_LOGIT
        return weight

    def export_tensor(self, weight: Tensor, vocab_size: int) -> Tensor:
        padding = weight.new_full((self.n_rows - vocab_size, *weight.shape[1:]), NEVER_LOGIT if self.is_bias else 0.0)
        rows = torch.cat([weight[:vocab_size], padding])
        rows[self.token_id] = weight[vocab_size]
        return rows[None] if self.is_bias else rows


class MarianMapping(ModelMapping):
    """Marian: sinusoidal positions, and up to three embedding tables, as the edge token differs."""

    model_type: ClassVar = "marian"
    architecture: ClassVar = "MarianMTModel"
    auto_class: ClassVar = "AutoModelForSeq2SeqLM"
    data_kind: ClassVar = "pairs"
    constants: ClassVar[Mapping[str, object]] = {
        "data.kind": "pairs",
        "data.tokenizer": "bpe",
        "data.shared_vocab": True,
        "model.kind": "transformer",
        "model.norm": "post",
        "model.head_bias": True,
        "model.positions": "sinusoid-halves",
    }
    check: ClassVar = "encoder-decoder"
    ignored_tensors: ClassVar = r"model\.(en|de)coder\.embed_(positions|tokens)\.weight|lm_head\.weight"

    d: Count = Field(alias="d_model")
    encoder_layers: LayerCount = Field(alias="encoder_layers")
    layers: LayerCount = Field(alias="decoder_layers")
    heads: Count = Field(alias="encoder_attention_heads")
    decoder_attention_heads: Count
    d_ff: Count = Field(alias="encoder_ffn_dim")
    decoder_ffn_dim: Count
    context: Count = Field(alias="max_position_embeddings")
    activation: Literal["swish", "silu", "relu", "gelu", "gelu_new"] = Field("swish", alias="activation_function")
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

    def processor(self, tokenizer: Tokenizer, location: str) -> PairTokenizers:
        if tokenizer.vocab != self.vocab_size:
            sizes = f"the tokenizer has {tokenizer.vocab} ids, the model {self.vocab_size}"
            raise BadInput(f"{location}: {sizes}; they must be equal")
        return PairTokenizers(tokenizer, tokenizer)

    def settings(self) -> dict[str, object]:
        if self.heads != self.decoder_attention_heads:
            heads = f"{self.heads} heads in the encoder and {self.decoder_attention_heads} in the decoder"
            raise BadInput(f"{heads}: must be equal; import another model")
        return super().settings() | {
            "model.embedding_scale": math.sqrt(self.d) if self.scale_embedding else 1.0,
            "model.share_embeddings": not self.has_start_token,
            "model.tie_embeddings": not self.has_start_token,
        }

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        config, d = super().config(settings), settings["d"]
        return config | {
            "is_encoder_decoder": True,
            "decoder_attention_heads": settings["heads"],
            "decoder_ffn_dim": settings["d_ff"],
            "scale_embedding": isinstance(d, int) and settings["embedding_scale"] == math.sqrt(d),
        }

    def weight_map(self) -> dict[str, TensorMapping]:
        shared, end, n_rows = "model.shared.weight", self.eos_token_id, self.vocab_size
        rows = dict.fromkeys(("source_embed", "head") if self.has_start_token else (), end)
        tables = {
            f"{name}.weight": EdgeTokenMapping(shared, vocab_rows=True, token_id=token_id, n_rows=n_rows)
            for name, token_id in {"embed": self.decoder_start_token_id, **rows}.items()
        }
        return {
            **tables,
            "head_bias": EdgeTokenMapping("final_logits_bias", token_id=end, n_rows=n_rows, is_bias=True),
            **dict(table_mappings("marian-encoder", "", self.encoder_layers)),
            **dict(table_mappings("marian-decoder", "", self.layers)),
        }


class BARTMapping(MarianMapping):
    """BART: learned positions that start at row 2, and a norm after embeddings + positions."""

    model_type: ClassVar = "bart"
    architecture: ClassVar = "BartForConditionalGeneration"
    constants: ClassVar = {**MarianMapping.constants, "model.positions": "learned", "model.embed_norm": True}
    ignored_tensors: ClassVar = r"model\.(en|de)coder\.embed_tokens\.weight|lm_head\.weight"

    activation: Literal["swish", "silu", "relu", "gelu", "gelu_new"] = Field("gelu", alias="activation_function")
    static_position_embeddings: Literal[False] = False  # type: ignore[assignment]

    def weight_map(self) -> dict[str, TensorMapping]:
        return super().weight_map() | dict(table_mappings("bart", "", 1))


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
