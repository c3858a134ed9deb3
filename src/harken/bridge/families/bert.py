"""BERT, DistilBERT and RoBERTa: one encoder with three naming schemes. Sentence models (MiniLM) have no MLM head.

The tensors show which layers on top exist; the configs on the hub do not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harken.bridge.weight_mapping import Count, Epsilon, LayerCount, ModelMapping, StandardConfigMapping, TensorMapping

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]


class BERTMapping(StandardConfigMapping):
    """BERT."""

    model_type: ClassVar = "bert"
    architecture: ClassVar = "BertForMaskedLM"
    auto_class: ClassVar = "AutoModelForPreTraining"
    constants: ClassVar = {"model.kind": "bert", "data.tokenizer": "wordpiece"}
    check: ClassVar = "encoder"
    table: ClassVar = "bert"
    optional_tables: ClassVar = {"pooler": "bert-pooler", "mlm_head": "bert-mlm", "nsp_head": "bert-nsp"}
    prefix: ClassVar = "bert."
    ignored_tensors: ClassVar = r"(bert\.)?embeddings\.position_ids|cls\.predictions\.decoder\.(weight|bias)"

    context: Count = Field(alias="max_position_embeddings")
    segments: Count = Field(2, alias="type_vocab_size")
    activation: Activation = Field("gelu", alias="hidden_act")
    eps: Epsilon = Field(1e-12, alias="layer_norm_eps")
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        body = cls.architecture if settings["mlm_head"] else "BertModel"
        return super().config(settings) | {"architectures": ["BertForPreTraining" if settings["nsp_head"] else body]}

    def weight_map(self) -> dict[str, TensorMapping]:
        weight_map = super().weight_map()
        if any(name.endswith("LayerNorm.gamma") for name in self.tensor_names):  # the oldest folders
            for name, legacy in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
                weight_map = {
                    ours: replace(item, name=item.name.replace(name, legacy)) for ours, item in weight_map.items()
                }
        return weight_map


class RoBERTaMapping(BERTMapping):
    """RoBERTa: a BERT with byte-level BPE; its positions start after the padding id."""

    model_type: ClassVar = "roberta"
    architecture: ClassVar = ""
    constants: ClassVar = {"model.kind": "bert", "data.tokenizer": "bpe"}
    offsets: ClassVar = {"context": -2}
    optional_tables: ClassVar = {**BERTMapping.optional_tables, "mlm_head": "roberta-mlm"}
    prefix: ClassVar = "roberta."
    ignored_tensors: ClassVar = r"(roberta\.)?embeddings\.position_ids|lm_head\.decoder\.(weight|bias)"

    pad_token_id: Literal[1] = 1

    def tables(self) -> list[str]:
        return [*super().tables(), "roberta-positions"]


class DistilBERTMapping(ModelMapping):
    """DistilBERT: no segments, no pooler."""

    model_type: ClassVar = "distilbert"
    architecture: ClassVar = "DistilBertForMaskedLM"
    auto_class: ClassVar = "AutoModelForPreTraining"
    constants: ClassVar = {**BERTMapping.constants, "model.segments": 0, "model.pooler": False, "model.nsp_head": False}
    check: ClassVar = "encoder"
    table: ClassVar = "distilbert"
    optional_tables: ClassVar = {"mlm_head": "distilbert-mlm"}
    prefix: ClassVar = "distilbert."
    ignored_tensors: ClassVar = r"(distilbert\.)?embeddings\.position_ids|vocab_projector\.weight"

    d: Count = Field(alias="dim")
    layers: LayerCount = Field(alias="n_layers")
    heads: Count = Field(alias="n_heads")
    d_ff: Count = Field(alias="hidden_dim")
    context: Count = Field(alias="max_position_embeddings")
    activation: Activation = Field("gelu", alias="activation")
    sinusoidal_pos_embds: bool = False  # the table stores them in either case
    tie_word_embeddings: Literal[True] = True

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        config = super().config(settings)
        return config if settings["mlm_head"] else config | {"architectures": ["DistilBertModel"]}
