"""What a text did in a model: its tokens, and the attention of each layer."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from harken.core import View
from harken.errors import BadInput


class Trace:
    """The tokens of a text, and what each head of each layer looked at. Weights are computed when they are asked for.

    A language model has `self`; an encoder-decoder `encoder` (source to source), `self` (target to target) and `cross`
    (target to source), and its source's tokens too.
    """

    def __init__(self, tokens: list[str], views: Mapping[str, Sequence[View]], source: list[str] | None = None) -> None:
        self.tokens, self.views, self.source = tokens, views, source

    def attention(self, which: str = "self", *, layer: int, head: int) -> Tensor:
        """The weights of one head: queries by keys, rows sum to 1."""
        if which not in self.views:
            raise BadInput(f"{which!r}: this model has no such attention; it has {', '.join(self.views) or 'none'}")
        layers = self.views[which]
        if not 0 <= layer < len(layers):
            raise BadInput(f"layer {layer}: this model has {len(layers)} attention layers, counted from 0")
        if not 0 <= head < layers[layer].q.shape[1]:
            raise BadInput(f"head {head}: this layer has {layers[layer].q.shape[1]} heads, counted from 0")
        return layers[layer].whole([head])[0, 0]
