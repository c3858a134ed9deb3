"""GPT-2: learned positions; linear weights are stored transposed, with q, k and v in one matrix."""

from typing import ClassVar, Literal

from pydantic import Field

from harken.bridge.weight_mapping import Count, Epsilon, LayerCount, ModelMapping


class GPT2Mapping(ModelMapping):
    """GPT-2."""

    model_type: ClassVar = "gpt2"
    architecture: ClassVar = "GPT2LMHeadModel"
    constants: ClassVar = {"model.kind": "gpt", "model.style": "gpt2", "data.tokenizer": "bpe"}
    table: ClassVar = "gpt2"
    prefix: ClassVar = "transformer."
    ignored_tensors: ClassVar = r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight"

    d: Count = Field(alias="n_embd")
    layers: LayerCount = Field(alias="n_layer")
    heads: Count = Field(alias="n_head")
    context: Count = Field(alias="n_positions")
    d_ff: Count | None = Field(None, alias="n_inner")
    activation: Literal["gelu_new", "gelu_pytorch_tanh", "gelu", "relu"] = Field(
        "gelu_new", alias="activation_function"
    )
    eps: Epsilon = Field(1e-5, alias="layer_norm_epsilon")
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True

    def settings(self) -> dict[str, object]:
        return super().settings() | {"model.d_ff": self.d_ff or 4 * self.d}
