"""The attention of a run on one input."""

from collections.abc import Callable
from typing import cast

import torch

from harken import registry
from harken.errors import BadInput
from harken.models import EncoderDecoder

from .answers import Image, Trace
from .answers.text_vectors import trace_text
from .answers.translate import trace_translation, translations
from .loaded_model import LoadedModel

Tracer = Callable[[LoadedModel, Image, str | None], Trace]


@torch.inference_mode()
def trace_input(run: LoadedModel, text: Image, target: str | None = None) -> Trace:
    """Run the model on an input; attention weights are computed on demand."""
    if run.family.trace:
        return cast(Tracer, registry.load_object(run.family.trace))(run, text, target)
    text = cast(str, text)
    if isinstance(run.model, EncoderDecoder):
        target = translations(run, [text])[0][0]["text"] if target is None else target
        return trace_translation(run.model, run.tokenizer, text, target)
    if not run.model.reads_text:
        raise BadInput(f"{run.path}: this run {run.ability}; its attention is not traced")
    return trace_text(run, text)
