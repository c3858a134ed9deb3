"""BERT, DistilBERT and RoBERTa: one encoder with three naming schemes. Sentence models (MiniLM) have no MLM head.

The tensors show which layers on top exist; the configs on the hub do not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from harken.bridge.weight_mapping import Count, Epsilon, LayerCount, ModelMapping, TensorMapping, affine, layer_mappings

ACTIVATIONS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]
LEGACY_NAMES = {
    "LayerNorm.weight": "LayerNorm.gamma",
    "LayerNorm.bias": "LayerNorm.beta",
}  # names in the oldest folders


class EncoderMapping(ModelMapping):
    """Fields common to the three."""

    check: ClassVar = "encoder"
    auto_class: ClassVar = "AutoModelForPreTraining"

    tensor_names: frozenset[str]
    max_position_embeddings: Count
    tie_word_embeddings: Literal[True] = True

    def has(self, name: str) -> bool:
        return any(other.removeprefix(self.prefix) == name.removeprefix(self.prefix) for other in self.tensor_names)


class BERTMapping(EncoderMapping):
    """BERT."""

    prefix: ClassVar = "bert."
    ignored_tensors: ClassVar = r"(bert\.)?embeddings\.position_ids|cls\.predictions\.decoder\.(weight|bias)"
    mlm_names: ClassVar = {
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
    }
    mlm_bias: ClassVar = "cls.predictions.bias"
    first_position: ClassVar = 0  # row of position 0
    tokenizer_settings: ClassVar[Mapping[str, Any]] = {"data.tokenizer": "wordpiece"}

    hidden_size: Count
    num_hidden_layers: LayerCount
    num_attention_heads: Count
    intermediate_size: Count
    type_vocab_size: Count = 2
    hidden_act: Activation = "gelu"
    layer_norm_eps: Epsilon = 1e-12
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False

    def settings(self) -> dict[str, Any]:
        return {
            "model.kind": "bert",
            "model.d": self.hidden_size,
            "model.layers": self.num_hidden_layers,
            "model.heads": self.num_attention_heads,
            "model.d_ff": self.intermediate_size,
            "model.context": self.max_position_embeddings - self.first_position,
            "model.segments": self.type_vocab_size,
            "model.pooler": self.has(f"{self.prefix}pooler.dense.weight"),
            "model.mlm_head": self.has(self.mlm_bias),
            "model.nsp_head": self.has("cls.seq_relationship.weight"),
            "model.activation": ACTIVATIONS.get(self.hidden_act, self.hidden_act),
            "model.eps": self.layer_norm_eps,
            **self.tokenizer_settings,
        }

    def weight_map(self) -> dict[str, TensorMapping]:
        layer = {
            **affine("attention.W_q", "attention.self.query"),
            **affine("attention.W_k", "attention.self.key"),
            **affine("attention.W_v", "attention.self.value"),
            **affine("attention.W_o", "attention.output.dense"),
            **affine("attention_sublayer.norm", "attention.output.LayerNorm"),
            **affine("mlp.W_1", "intermediate.dense"),
            **affine("mlp.W_2", "output.dense"),
            **affine("mlp_sublayer.norm", "output.LayerNorm"),
        }
        prefix = self.prefix
        weight_map = {
            "embed.weight": TensorMapping(f"{prefix}embeddings.word_embeddings.weight", vocab_rows=True),
            "stack.positions.table.weight": TensorMapping(
                f"{prefix}embeddings.position_embeddings.weight", skip_rows=self.first_position
            ),
            "segments.weight": TensorMapping(f"{prefix}embeddings.token_type_embeddings.weight"),
            **affine("embed_norm", f"{prefix}embeddings.LayerNorm"),
            **dict(layer_mappings(self.num_hidden_layers, "stack.blocks.#.", f"{prefix}encoder.layer.#.", layer)),
        }
        if self.has(f"{prefix}pooler.dense.weight"):
            weight_map |= affine("pooler", f"{prefix}pooler.dense")
        if self.has(self.mlm_bias):
            weight_map |= affine("transform", self.mlm_names["transform"]) | affine(
                "transform_norm", self.mlm_names["norm"]
            )
            weight_map["head_bias"] = TensorMapping(self.mlm_bias)
        if self.has("cls.seq_relationship.weight"):
            weight_map |= affine("nsp_head", "cls.seq_relationship")
        if any(name.endswith("LayerNorm.gamma") for name in self.tensor_names):
            for name, legacy in LEGACY_NAMES.items():
                weight_map = {
                    ours: replace(item, name=item.name.replace(name, legacy)) for ours, item in weight_map.items()
                }
        return weight_map


class RoBERTaMapping(BERTMapping):
    """RoBERTa: a BERT with byte-level BPE; its positions start after the padding id."""

    prefix: ClassVar = "roberta."
    ignored_tensors: ClassVar = r"(roberta\.)?embeddings\.position_ids|lm_head\.decoder\.(weight|bias)"
    mlm_names: ClassVar = {"transform": "lm_head.dense", "norm": "lm_head.layer_norm"}
    mlm_bias: ClassVar = "lm_head.bias"
    first_position: ClassVar = 2
    tokenizer_settings: ClassVar = {"data.tokenizer": "bpe"}

    pad_token_id: Literal[1] = 1


class DistilBERTMapping(EncoderMapping):
    """DistilBERT: no segments, no pooler."""

    prefix: ClassVar = "distilbert."
    ignored_tensors: ClassVar = r"(distilbert\.)?embeddings\.position_ids|vocab_projector\.weight"

    dim: Count
    n_layers: LayerCount
    n_heads: Count
    hidden_dim: Count
    activation: Activation = "gelu"
    sinusoidal_pos_embds: bool = False  # the table stores them in either case

    def settings(self) -> dict[str, Any]:
        return {
            "model.kind": "bert",
            "model.d": self.dim,
            "model.layers": self.n_layers,
            "model.heads": self.n_heads,
            "model.d_ff": self.hidden_dim,
            "model.context": self.max_position_embeddings,
            "model.segments": 0,
            "model.pooler": False,
            "model.mlm_head": self.has("vocab_projector.bias"),
            "model.nsp_head": False,
            "model.activation": ACTIVATIONS.get(self.activation, self.activation),
            "data.tokenizer": "wordpiece",
        }

    def weight_map(self) -> dict[str, TensorMapping]:
        layer = {
            **affine("attention.W_q", "attention.q_lin"),
            **affine("attention.W_k", "attention.k_lin"),
            **affine("attention.W_v", "attention.v_lin"),
            **affine("attention.W_o", "attention.out_lin"),
            **affine("attention_sublayer.norm", "sa_layer_norm"),
            **affine("mlp.W_1", "ffn.lin1"),
            **affine("mlp.W_2", "ffn.lin2"),
            **affine("mlp_sublayer.norm", "output_layer_norm"),
        }
        weight_map = {
            "embed.weight": TensorMapping("distilbert.embeddings.word_embeddings.weight", vocab_rows=True),
            "stack.positions.table.weight": TensorMapping("distilbert.embeddings.position_embeddings.weight"),
            **affine("embed_norm", "distilbert.embeddings.LayerNorm"),
            **dict(layer_mappings(self.n_layers, "stack.blocks.#.", "distilbert.transformer.layer.#.", layer)),
        }
        if self.has("vocab_projector.bias"):
            weight_map |= affine("transform", "vocab_transform") | affine("transform_norm", "vocab_layer_norm")
            weight_map["head_bias"] = TensorMapping("vocab_projector.bias")
        return weight_map
