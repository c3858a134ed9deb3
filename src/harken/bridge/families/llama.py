"""Llama, and those who took its block: Mistral (looks back so far and no further), Qwen 2 (q, k and v with a bias)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator

from harken.bridge.weight_mapping import Config, Count, Layers, Small, Take, both, stacked

SCALINGS: dict[str, dict[str, str]] = {  # by the name they have: our words for their numbers
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "context": "original_max_position_embeddings",
    },
}
IDLE = ("type", "rope_type", "partial_rotary_factor", "original_max_position_embeddings")  # which say nothing more


class Llama(Config):
    """The config of a Llama."""

    prefix: ClassVar = "model."
    unread: ClassVar = r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"
    plus: ClassVar = 0.0  # what is added to the norms
    biased: ClassVar = False

    hidden_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    max_position_embeddings: Count
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: Small = 1e-6
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    rope_scaling: dict[str, Any] | None = Field(None, validation_alias=AliasChoices("rope_scaling", "rope_parameters"))
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    tie_word_embeddings: bool = False
    partial_rotary_factor: Annotated[float, Field(ge=1, le=1)] = 1.0

    def settings(self) -> dict[str, Any]:
        head = self.head_dim or self.hidden_size // self.num_attention_heads
        found = {
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
        return found | ({"model.bias": "qkv"} if self.biased else {}) | self._turns()

    @field_validator("rope_scaling")
    @classmethod
    def _known(cls, rope: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse another way of scaling, and numbers that are none."""
        rope = rope or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if not isinstance(kind, str) or kind not in SCALINGS:
            raise ValueError(f"rope type {str(kind)[:40]!r} is not known; known are {', '.join(SCALINGS)}")
        asked = [*SCALINGS[kind].values(), *(["rope_theta"] if "rope_theta" in rope else [])]
        if not all(type(rope.get(name)) in (int, float) and 0 < rope[name] < 1e12 for name in asked):
            raise ValueError(f"rope type {kind} has {', '.join(asked)}, each a number above 0")
        if kind == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
            raise ValueError("low_freq_factor is to be less than high_freq_factor")
        if odd := sorted(rope.keys() - {*asked, *IDLE}):
            raise ValueError(f"rope {str(odd[0])[:40]!r} is not known")
        if rope.get("partial_rotary_factor", 1) != 1:
            raise ValueError("partial_rotary_factor is to be 1")
        return {name: rope[name] for name in asked} | {"rope_type": kind}

    def _turns(self) -> dict[str, Any]:
        """The rotary base, and how it is scaled for longer texts."""
        rope = self.rope_scaling or {}
        scaling = {ours: rope[theirs] for ours, theirs in SCALINGS[rope.get("rope_type", "default")].items()}
        return {"model.rope_base": rope.get("rope_theta", self.rope_theta)} | (
            {"model.rope_scaling": scaling} if scaling else {}
        )

    def names(self) -> dict[str, Take]:
        qkv = both if self.biased else _weight
        layer = {
            "look_sub.norm.weight": Take("input_layernorm.weight", plus=self.plus),
            **qkv("look.W_q", "self_attn.q_proj"),
            **qkv("look.W_k", "self_attn.k_proj"),
            **qkv("look.W_v", "self_attn.v_proj"),
            **_weight("look.W_o", "self_attn.o_proj"),
            "mlp_sub.norm.weight": Take("post_attention_layernorm.weight", plus=self.plus),
            **_weight("mlp.W_1", "mlp.gate_proj"),
            **_weight("mlp.W_3", "mlp.up_proj"),
            **_weight("mlp.W_2", "mlp.down_proj"),
        }
        head = {} if self.tie_word_embeddings else {"head.weight": Take("lm_head.weight", words=True)}
        return {
            "embed.weight": Take("model.embed_tokens.weight", words=True),
            **head,
            **dict(stacked(self.num_hidden_layers, "stack.blocks.#.", "model.layers.#.", layer)),
            "norm.weight": Take("model.norm.weight", plus=self.plus),
        }


def _weight(ours: str, theirs: str) -> dict[str, Take]:
    return {f"{ours}.weight": Take(f"{theirs}.weight")}


class Mistral(Llama):
    """The config of a Mistral."""

    sliding_window: Count | None = None

    def settings(self) -> dict[str, Any]:
        back = (
            {} if self.sliding_window is None else {"model.window": self.sliding_window - 1}
        )  # ours counts the others
        return super().settings() | back


class Qwen2(Llama):
    """The config of a Qwen 2."""

    biased: ClassVar = True

    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None
