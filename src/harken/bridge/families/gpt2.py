"""GPT-2: learned positions, its linear maps written as inputs by outputs, q, k and v in one of them."""

from typing import Any, ClassVar, Literal

from harken.bridge.weight_mapping import Config, Count, Layers, Small, Take, both, stacked


class GPT2(Config):
    """The config of a GPT-2."""

    prefix: ClassVar = "transformer."
    unread: ClassVar = r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight"

    n_embd: Count
    n_layer: Layers
    n_head: Count
    n_positions: Count
    n_inner: Count | None = None
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh", "gelu", "relu"] = "gelu_new"
    layer_norm_epsilon: Small = 1e-5
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

    def names(self) -> dict[str, Take]:
        d = self.n_embd
        layer = {
            **both("look_sub.norm", "ln_1"),
            **both("look.W_q", "attn.c_attn", turned=True, rows=(0, d)),
            **both("look.W_k", "attn.c_attn", turned=True, rows=(d, 2 * d)),
            **both("look.W_v", "attn.c_attn", turned=True, rows=(2 * d, 3 * d)),
            **both("look.W_o", "attn.c_proj", turned=True),
            **both("mlp_sub.norm", "ln_2"),
            **both("mlp.W_1", "mlp.c_fc", turned=True),
            **both("mlp.W_2", "mlp.c_proj", turned=True),
        }
        return {
            "embed.weight": Take("transformer.wte.weight", words=True),
            "stack.positions.table.weight": Take("transformer.wpe.weight"),
            **dict(stacked(self.n_layer, "stack.blocks.#.", "transformer.h.#.", layer)),
            **both("norm", "transformer.ln_f"),
        }
