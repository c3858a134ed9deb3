"""Gemma: a Llama whose words are loud, whose norms are written as their distance from 1, and whose MLP has a geglu."""

import math
from typing import Any, ClassVar, Literal

from harken.bridge.weight_mapping import Count

from .llama import Llama


class Gemma(Llama):
    """The config of a Gemma."""

    plus: ClassVar = 1.0

    head_dim: Count
    hidden_act: Literal["gelu_pytorch_tanh", "gelu"] = "gelu_pytorch_tanh"  # type: ignore[assignment]  # always tanh
    hidden_activation: Literal["gelu_pytorch_tanh", None] = None
    tie_word_embeddings: bool = True

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"model.activation": "geglu", "model.embedding_scale": math.sqrt(self.hidden_size)}
