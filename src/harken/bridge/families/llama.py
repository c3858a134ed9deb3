"""Llama and the families with the same block: Mistral (sliding window), Qwen 2 (q, k and v with a bias), Gemma (scaled
embeddings, norm weights stored as w - 1, a GEGLU MLP)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator

from harken.bridge.weight_mapping import Count, Epsilon, StandardConfigMapping, TensorMapping

LLAMA3_SCALING = {"low": "low_freq_factor", "high": "high_freq_factor", "context": "original_max_position_embeddings"}
ROPE_SCALINGS: dict[str, dict[str, str]] = {  # rope_type: our names and theirs
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", **LLAMA3_SCALING},
}
UNUSED_ROPE_KEYS = {"type", "rope_type", "partial_rotary_factor", "original_max_position_embeddings"}  # accepted


class LlamaMapping(StandardConfigMapping):
    """Llama."""

    model_type: ClassVar = "llama"
    architecture: ClassVar = "LlamaForCausalLM"
    constants: ClassVar = {"model.kind": "gpt", "model.style": "llama", "data.tokenizer": "bpe"}
    table: ClassVar = "llama"
    prefix: ClassVar = "model."
    ignored_tensors: ClassVar = r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"

    kv_heads: Count | None = Field(None, alias="num_key_value_heads")
    d_k: Count | None = Field(None, alias="head_dim")
    context: Count = Field(alias="max_position_embeddings")
    eps: Epsilon = Field(1e-6, alias="rms_norm_eps")
    tie_embeddings: bool = Field(False, alias="tie_word_embeddings")
    hidden_act: Literal["silu"] = "silu"
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    rope_scaling: dict[str, Any] | None = Field(None, validation_alias=AliasChoices("rope_scaling", "rope_parameters"))
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    partial_rotary_factor: Annotated[float, Field(ge=1, le=1)] = 1.0

    @field_validator("rope_scaling")
    @classmethod
    def _check_rope(cls, rope: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse an unknown kind of scaling and values that are not positive numbers."""
        rope = rope or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
            raise ValueError(f"rope type {str(kind)[:40]!r} is unknown; known: {', '.join(ROPE_SCALINGS)}")
        required = [*ROPE_SCALINGS[kind].values(), *(["rope_theta"] if "rope_theta" in rope else [])]
        if not all(type(rope.get(name)) in (int, float) and 0 < rope[name] < 1e12 for name in required):
            raise ValueError(f"rope type {kind} needs {', '.join(required)}, each a number above 0")
        if kind == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
            raise ValueError("low_freq_factor must be less than high_freq_factor")
        if unknown := sorted(rope.keys() - {*required, *UNUSED_ROPE_KEYS}):
            raise ValueError(f"rope {str(unknown[0])[:40]!r} is unknown")
        if rope.get("partial_rotary_factor", 1) != 1:
            raise ValueError("partial_rotary_factor must be 1")
        return {name: rope[name] for name in required} | {"rope_type": kind}

    def settings(self) -> dict[str, object]:
        head, rope = self.d_k or self.d // self.heads, self.rope_scaling or {}
        attention = {"model.kv_heads": self.kv_heads or self.heads, "model.d_k": head, "model.d_v": head}
        attention["model.rope_base"] = rope.get("rope_theta", self.rope_theta)
        scaling = {ours: rope[name] for ours, name in ROPE_SCALINGS[rope.get("rope_type", "default")].items()}
        return super().settings() | attention | ({"model.rope_scaling": scaling} if scaling else {})

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        scaling = settings["rope_scaling"] if isinstance(settings["rope_scaling"], dict) else {}
        kind = {0: "default", 1: "linear"}.get(len(scaling), "llama3")
        rope = {LLAMA3_SCALING.get(name, name): value for name, value in scaling.items()}
        rope = {"rope_type": kind, "rope_theta": settings["rope_base"], **rope}
        return super().config(settings) | {"hidden_act": "silu", "rope_parameters": rope}

    def tables(self) -> list[str]:
        return [*super().tables(), *([] if self.tie_embeddings else ["llama-head"])]


class MistralMapping(LlamaMapping):
    """Mistral."""

    model_type: ClassVar = "mistral"
    architecture: ClassVar = "MistralForCausalLM"
    offsets: ClassVar = {"window": -1}  # ours excludes the token itself

    window: Count | None = Field(None, alias="sliding_window")


class Qwen2Mapping(LlamaMapping):
    """Qwen 2."""

    model_type: ClassVar = "qwen2"
    architecture: ClassVar = "Qwen2ForCausalLM"
    constants: ClassVar = {**LlamaMapping.constants, "model.bias": "qkv"}

    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None

    def tables(self) -> list[str]:
        return [*super().tables(), "qwen2-bias"]


class GemmaMapping(LlamaMapping):
    """Gemma."""

    model_type: ClassVar = "gemma"
    architecture: ClassVar = "GemmaForCausalLM"
    constants: ClassVar = {**LlamaMapping.constants, "model.activation": "geglu"}

    d_k: Count = Field(alias="head_dim")
    tie_embeddings: bool = Field(True, alias="tie_word_embeddings")
    hidden_act: Literal["gelu_pytorch_tanh", "gelu"] = "gelu_pytorch_tanh"  # type: ignore[assignment]  # always tanh
    hidden_activation: Literal["gelu_pytorch_tanh", None] = None

    def settings(self) -> dict[str, object]:
        return super().settings() | {"model.embedding_scale": math.sqrt(self.d)}

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        activations = dict.fromkeys(("hidden_act", "hidden_activation"), "gelu_pytorch_tanh")
        return super().config(settings) | activations

    def weight_map(self) -> dict[str, TensorMapping]:
        weight_map = super().weight_map()
        return weight_map | {ours: replace(item, offset=1.0) for ours, item in weight_map.items() if "norm" in ours}
