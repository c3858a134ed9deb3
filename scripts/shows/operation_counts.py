"""Operation counts of a layer by the formulas of CS5242, lecture 7, for a sequence of L tokens of width d.

A recurrent layer multiplies each token vector by a d x d matrix, a convolution the vectors of k tokens; attention
compares every pair of tokens, block-sparse attention each token with the s tokens it attends to. Lower orders and
constant factors are omitted.
"""

from typing import Any

ORDERS = {"recurrent": "L d²", "convolution": "L d² k", "attention": "L² d"}
LAYERS = {
    **dict.fromkeys(("rnn", "gru", "lstm", "rnn-attention"), "recurrent"),
    **dict.fromkeys(("gpt", "bert", "transformer"), "attention"),
    "conv": "convolution",
}


def products(layer: str, L: float, d: float, k: float = 1) -> float:
    """The number of multiplications of a layer."""
    return {"recurrent": L * d * d, "convolution": L * d * d * k, "attention": L * L * d}[layer]


def layer_cost(model: Any, length: float | None) -> dict[str, Any] | None:
    """The formula of a layer with these model settings, and its value for sequences of this length.

    Without a length the context of the model is used. None for a model that the lecture does not cover.
    """
    if (layer := LAYERS.get(model.kind)) is None:
        return None
    L, d = length or model.context, model.d
    if vars(model).get("structure") == "bigbird":
        s = min(L, model.block_size * (2 * model.window_blocks + 1 + model.global_blocks + model.random_blocks))
        return {"order": "L s d", "L": L, "d": d, "s": s, "products": L * s * d}
    k = {"k": model.kernel_size} if layer == "convolution" else {}
    return {"order": ORDERS[layer], "L": L, "d": d, **k, "products": products(layer, L, d, **k)}
