"""Gemma: a Llama with scaled embeddings, norm weights stored as w - 1, and a GEGLU MLP."""

import math
from typing import Any, ClassVar, Literal

from harken.bridge.weight_mapping import Count

from .llama import LlamaMapping


class GemmaMapping(LlamaMapping):
    """Gemma."""

    norm_offset: ClassVar = 1.0

    head_dim: Count
    hidden_act: Literal["gelu_pytorch_tanh", "gelu"] = "gelu_pytorch_tanh"  # type: ignore[assignment]  # always tanh
    hidden_activation: Literal["gelu_pytorch_tanh", None] = None
    tie_word_embeddings: bool = True

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"model.activation": "geglu", "model.embedding_scale": math.sqrt(self.hidden_size)}
