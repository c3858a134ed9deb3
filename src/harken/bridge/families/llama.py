"""Llama and the families with the same block: Mistral (sliding window), Qwen 2 (q, k and v with a bias)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator

from harken.bridge.weight_mapping import Count, Epsilon, LayerCount, ModelMapping, TensorMapping, affine, layer_mappings

ROPE_SCALINGS: dict[str, dict[str, str]] = {  # rope_type: our names and theirs
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "context": "original_max_position_embeddings",
    },
}
UNUSED_ROPE_KEYS = (
    "type",
    "rope_type",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)  # accepted and not needed


class LlamaMapping(ModelMapping):
    """Llama."""

    prefix: ClassVar = "model."
    ignored_tensors: ClassVar = r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"
    norm_offset: ClassVar = 0.0  # added to norm weights
    qkv_bias: ClassVar = False

    hidden_size: Count
    num_hidden_layers: LayerCount
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    max_position_embeddings: Count
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    rope_scaling: dict[str, Any] | None = Field(None, validation_alias=AliasChoices("rope_scaling", "rope_parameters"))
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    tie_word_embeddings: bool = False
    partial_rotary_factor: Annotated[float, Field(ge=1, le=1)] = 1.0

    def settings(self) -> dict[str, Any]:
        head = self.head_dim or self.hidden_size // self.num_attention_heads
        settings = {
            "model.kind": "gpt",
            "model.style": "llama",
            "model.d": self.hidden_size,
            "model.layers": self.num_hidden_layers,
            "model.heads": self.num_attention_heads,
            "model.kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "model.d_k": head,
            "model.d_v": head,
            "model.d_ff": self.intermediate_size,
            "model.context": self.max_position_embeddings,
            "model.eps": self.rms_norm_eps,
            "model.tie_embeddings": self.tie_word_embeddings,
            "data.tokenizer": "bpe",
        }
        return settings | ({"model.bias": "qkv"} if self.qkv_bias else {}) | self._rope_settings()

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

    def _rope_settings(self) -> dict[str, Any]:
        """The rotary base and its scaling for longer contexts."""
        rope = self.rope_scaling or {}
        scaling = {ours: rope[name] for ours, name in ROPE_SCALINGS[rope.get("rope_type", "default")].items()}
        return {"model.rope_base": rope.get("rope_theta", self.rope_theta)} | (
            {"model.rope_scaling": scaling} if scaling else {}
        )

    def weight_map(self) -> dict[str, TensorMapping]:
        qkv = affine if self.qkv_bias else weight_only
        layer = {
            "attention_sublayer.norm.weight": TensorMapping("input_layernorm.weight", offset=self.norm_offset),
            **qkv("attention.W_q", "self_attn.q_proj"),
            **qkv("attention.W_k", "self_attn.k_proj"),
            **qkv("attention.W_v", "self_attn.v_proj"),
            **weight_only("attention.W_o", "self_attn.o_proj"),
            "mlp_sublayer.norm.weight": TensorMapping("post_attention_layernorm.weight", offset=self.norm_offset),
            **weight_only("mlp.W_1", "mlp.gate_proj"),
            **weight_only("mlp.W_3", "mlp.up_proj"),
            **weight_only("mlp.W_2", "mlp.down_proj"),
        }
        head = {} if self.tie_word_embeddings else {"head.weight": TensorMapping("lm_head.weight", vocab_rows=True)}
        return {
            "embed.weight": TensorMapping("model.embed_tokens.weight", vocab_rows=True),
            **head,
            **dict(layer_mappings(self.num_hidden_layers, "stack.blocks.#.", "model.layers.#.", layer)),
            "norm.weight": TensorMapping("model.norm.weight", offset=self.norm_offset),
        }


def weight_only(ours: str, source: str) -> dict[str, TensorMapping]:
    return {f"{ours}.weight": TensorMapping(f"{source}.weight")}


class MistralMapping(LlamaMapping):
    """Mistral."""

    sliding_window: Count | None = None

    def settings(self) -> dict[str, Any]:
        if self.sliding_window is None:
            return super().settings()
        return super().settings() | {"model.window": self.sliding_window - 1}  # ours excludes the token itself


class Qwen2Mapping(LlamaMapping):
    """Qwen 2."""

    qkv_bias: ClassVar = True

    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None
