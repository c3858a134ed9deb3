"""Attention weights of a model on one input, with the tokens they belong to."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from harken.core import View
from harken.errors import BadInput


class Trace:
    """Tokens of an input and the attention of every layer and head. Weights are computed on demand.

    A language model has `self`; an encoder-decoder has `encoder` (source to source), `self` (target to target) and
    `cross` (target to source), and the source tokens in `source`.
    """

    def __init__(self, tokens: list[str], views: Mapping[str, Sequence[View]], source: list[str] | None = None) -> None:
        self.tokens, self.views, self.source = tokens, views, source

    def attention(self, which: str = "self", *, layer: int, head: int) -> Tensor:
        """Attention weights of one head: queries by keys, each row sums to 1."""
        if which not in self.views:
            raise BadInput(f"{which!r}: this model has no such attention; it has {', '.join(self.views) or 'none'}")
        layers = self.views[which]
        if not 0 <= layer < len(layers):
            raise BadInput(f"layer {layer}: this model has {len(layers)} attention layers, counted from 0")
        if not 0 <= head < layers[layer].q.shape[1]:
            raise BadInput(f"head {head}: this layer has {layers[layer].q.shape[1]} heads, counted from 0")
        return layers[layer].full([head])[0, 0]
