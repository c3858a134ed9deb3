"""GPT-2: learned positions; linear weights are stored transposed, with q, k and v in one matrix."""

from typing import Any, ClassVar, Literal

from harken.bridge.weight_mapping import Count, Epsilon, LayerCount, ModelMapping, TensorMapping, affine, layer_mappings


class GPT2Mapping(ModelMapping):
    """GPT-2."""

    prefix: ClassVar = "transformer."
    ignored_tensors: ClassVar = r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight"

    n_embd: Count
    n_layer: LayerCount
    n_head: Count
    n_positions: Count
    n_inner: Count | None = None
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh", "gelu", "relu"] = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True

    def settings(self) -> dict[str, Any]:
        return {
            "model.kind": "gpt",
            "model.style": "gpt2",
            "model.d": self.n_embd,
            "model.layers": self.n_layer,
            "model.heads": self.n_head,
            "model.context": self.n_positions,
            "model.d_ff": self.n_inner or 4 * self.n_embd,
            "model.activation": self.activation_function if "_" not in self.activation_function else "gelu-tanh",
            "model.eps": self.layer_norm_epsilon,
            "data.tokenizer": "bpe",
        }

    def weight_map(self) -> dict[str, TensorMapping]:
        d = self.n_embd
        layer = {
            **affine("attention_sublayer.norm", "ln_1"),
            **affine("attention.W_q", "attn.c_attn", transposed=True, rows=(0, d)),
            **affine("attention.W_k", "attn.c_attn", transposed=True, rows=(d, 2 * d)),
            **affine("attention.W_v", "attn.c_attn", transposed=True, rows=(2 * d, 3 * d)),
            **affine("attention.W_o", "attn.c_proj", transposed=True),
            **affine("mlp_sublayer.norm", "ln_2"),
            **affine("mlp.W_1", "mlp.c_fc", transposed=True),
            **affine("mlp.W_2", "mlp.c_proj", transposed=True),
        }
        return {
            "embed.weight": TensorMapping("transformer.wte.weight", vocab_rows=True),
            "stack.positions.table.weight": TensorMapping("transformer.wpe.weight"),
            **dict(layer_mappings(self.n_layer, "stack.blocks.#.", "transformer.h.#.", layer)),
            **affine("norm", "transformer.ln_f"),
        }
