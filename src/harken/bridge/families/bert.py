"""BERT, DistilBERT and RoBERTa: one encoder, three tables of names. A sentence model (MiniLM) fills in no words.

Which of the layers on top are there, the tensors say: the configs of the hub do not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from harken.bridge.weight_mapping import Config, Count, Layers, Small, Take, both, stacked

ACTS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
Act = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]
OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}  # as the first folders write them


class Encoder(Config):
    """What the three have in common."""

    check: ClassVar = "encoder"
    auto: ClassVar = "AutoModelForPreTraining"

    there: frozenset[str]  # the names of the tensors
    max_position_embeddings: Count
    tie_word_embeddings: Literal[True] = True

    def has(self, name: str) -> bool:
        return any(there.removeprefix(self.prefix) == name.removeprefix(self.prefix) for there in self.there)


class BERT(Encoder):
    """The config of a BERT."""

    prefix: ClassVar = "bert."
    unread: ClassVar = r"(bert\.)?embeddings\.position_ids|cls\.predictions\.decoder\.(weight|bias)"
    head: ClassVar = {"transform": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"}
    bias: ClassVar = "cls.predictions.bias"
    first: ClassVar = 0  # the row of place 0
    tokens: ClassVar[Mapping[str, Any]] = {"data.tokenizer": "wordpiece"}

    hidden_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Count
    intermediate_size: Count
    type_vocab_size: Count = 2
    hidden_act: Act = "gelu"
    layer_norm_eps: Small = 1e-12
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
            "model.context": self.max_position_embeddings - self.first,
            "model.segments": self.type_vocab_size,
            "model.pooler": self.has(f"{self.prefix}pooler.dense.weight"),
            "model.mlm_head": self.has(self.bias),
            "model.nsp_head": self.has("cls.seq_relationship.weight"),
            "model.activation": ACTS.get(self.hidden_act, self.hidden_act),
            "model.eps": self.layer_norm_eps,
            **self.tokens,
        }

    def names(self) -> dict[str, Take]:
        layer = {
            **both("look.W_q", "attention.self.query"),
            **both("look.W_k", "attention.self.key"),
            **both("look.W_v", "attention.self.value"),
            **both("look.W_o", "attention.output.dense"),
            **both("look_sub.norm", "attention.output.LayerNorm"),
            **both("mlp.W_1", "intermediate.dense"),
            **both("mlp.W_2", "output.dense"),
            **both("mlp_sub.norm", "output.LayerNorm"),
        }
        own = self.prefix
        names = {
            "embed.weight": Take(f"{own}embeddings.word_embeddings.weight", words=True),
            "stack.positions.table.weight": Take(f"{own}embeddings.position_embeddings.weight", skip=self.first),
            "segments.weight": Take(f"{own}embeddings.token_type_embeddings.weight"),
            **both("embed_norm", f"{own}embeddings.LayerNorm"),
            **dict(stacked(self.num_hidden_layers, "stack.blocks.#.", f"{own}encoder.layer.#.", layer)),
        }
        if self.has(f"{own}pooler.dense.weight"):
            names |= both("pooler", f"{own}pooler.dense")
        if self.has(self.bias):
            names |= both("transform", self.head["transform"]) | both("transform_norm", self.head["norm"])
            names["head_bias"] = Take(self.bias)
        if self.has("cls.seq_relationship.weight"):
            names |= both("W_follows", "cls.seq_relationship")
        if any(name.endswith("LayerNorm.gamma") for name in self.there):
            for now, then in OLD.items():
                names = {ours: replace(take, name=take.name.replace(now, then)) for ours, take in names.items()}
        return names


class RoBERTa(BERT):
    """The config of a RoBERTa: a BERT with byte pairs, whose places begin behind the number of its padding."""

    prefix: ClassVar = "roberta."
    unread: ClassVar = r"(roberta\.)?embeddings\.position_ids|lm_head\.decoder\.(weight|bias)"
    head: ClassVar = {"transform": "lm_head.dense", "norm": "lm_head.layer_norm"}
    bias: ClassVar = "lm_head.bias"
    first: ClassVar = 2
    tokens: ClassVar = {"data.tokenizer": "bpe"}

    pad_token_id: Literal[1] = 1


class DistilBERT(Encoder):
    """The config of a DistilBERT: half of BERT's layers, no segments, no pooler."""

    prefix: ClassVar = "distilbert."
    unread: ClassVar = r"(distilbert\.)?embeddings\.position_ids|vocab_projector\.weight"

    dim: Count
    n_layers: Layers
    n_heads: Count
    hidden_dim: Count
    activation: Act = "gelu"
    sinusoidal_pos_embds: bool = False  # they are written into the table in either case

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
            "model.activation": ACTS.get(self.activation, self.activation),
            "data.tokenizer": "wordpiece",
        }

    def names(self) -> dict[str, Take]:
        layer = {
            **both("look.W_q", "attention.q_lin"),
            **both("look.W_k", "attention.k_lin"),
            **both("look.W_v", "attention.v_lin"),
            **both("look.W_o", "attention.out_lin"),
            **both("look_sub.norm", "sa_layer_norm"),
            **both("mlp.W_1", "ffn.lin1"),
            **both("mlp.W_2", "ffn.lin2"),
            **both("mlp_sub.norm", "output_layer_norm"),
        }
        names = {
            "embed.weight": Take("distilbert.embeddings.word_embeddings.weight", words=True),
            "stack.positions.table.weight": Take("distilbert.embeddings.position_embeddings.weight"),
            **both("embed_norm", "distilbert.embeddings.LayerNorm"),
            **dict(stacked(self.n_layers, "stack.blocks.#.", "distilbert.transformer.layer.#.", layer)),
        }
        if self.has("vocab_projector.bias"):
            names |= both("transform", "vocab_transform") | both("transform_norm", "vocab_layer_norm")
            names["head_bias"] = Take("vocab_projector.bias")
        return names
