"""What a layer costs by the lecture's formulas (CS5242, lecture 7), for a sequence of L words of width d.

A recurrent layer multiplies each word's vector with a d x d matrix, a convolution the vectors of k words, and attention
compares every word with every other; in blocks, with the s words that it sees. These are orders: they leave out what is
not of the highest power, and a factor.
"""

from typing import Any

ORDERS = {"recurrent": "L d²", "convolution": "L d² k", "attention": "L² d"}
LAYERS = {
    **dict.fromkeys(("rnn", "gru", "lstm", "rnn-attention"), "recurrent"),
    **dict.fromkeys(("gpt", "bert", "transformer"), "attention"),
    "conv": "convolution",
}


def products(layer: str, L: float, d: float, k: float = 1) -> float:
    """How many products of two numbers a layer of this sort needs, by its formula."""
    return {"recurrent": L * d * d, "convolution": L * d * d * k, "attention": L * L * d}[layer]


def formula(model: Any, length: float | None) -> dict[str, Any] | None:
    """The formula of a layer of this model (its settings), and what comes out for its d and sentences of this length.

    A text has no sentences: its rows are as long as the model's context. None for a kind that the lecture has not.
    """
    if (layer := LAYERS.get(model.kind)) is None:
        return None
    L, d = length or model.context, model.d
    if getattr(model, "structure", "full") == "bigbird":
        s = min(L, model.block * (2 * model.near + 1 + model.hubs + model.links))
        return {"order": "L s d", "L": L, "d": d, "s": s, "products": L * s * d}
    k = {"k": model.kernel_size} if layer == "convolution" else {}
    return {"order": ORDERS[layer], "L": L, "d": d, **k, "products": products(layer, L, d, **k)}
