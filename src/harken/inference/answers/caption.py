"""Caption images, with a run trained on captions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack, cast

import numpy as np
import torch

from harken.core import View, watching
from harken.data.captions.source import CaptionProcessor
from harken.data.images.files import resize_image
from harken.decode.beam import SearchSettings
from harken.inference.loaded_model import LoadedModel
from harken.inference.trace import Trace
from harken.tasks.caption import generate_captions

from . import Candidate, Image, SearchOptions
from .images import patch_names, read_pixels
from .translate import EDGE

Caption = str | list[Candidate]  # the best one; with the option `alternatives`, the best ones with their scores


def caption_images(
    run: LoadedModel, image: Image | Sequence[Image], *, index: int = 0, **search: Unpack[SearchOptions]
) -> Caption | list[Caption]:
    """The best caption of an image, or of each of a list."""
    single = isinstance(image, str | Path) or (isinstance(image, np.ndarray | torch.Tensor) and image.ndim in (2, 3))
    images = cast(Sequence[Image], [image] if single else image)
    candidates = caption_candidates(run, images, index=index, **search)
    captions: list[Caption] = (
        [*candidates] if "alternatives" in search else [best[0]["text"] if best else "" for best in candidates]
    )
    return captions[0] if single else captions


def caption_candidates(
    run: LoadedModel, images: Sequence[Image], *, index: int = 0, **search: Unpack[SearchOptions]
) -> list[list[Candidate]]:
    """For each image its best captions; the option `alternatives` is their number."""
    run.require("caption")
    options = SearchSettings.from_options({"max_new_tokens": run.recipe.task.max_new_tokens, **search})
    pixels = [_pixels(run, image) for image in images]
    return [
        [{"text": text, "score": score} for text, score in best]
        for best in generate_captions(run.beam_search, _processor(run).tokenizers, pixels, options, first=index)
    ]


@torch.inference_mode()
def trace_caption(run: LoadedModel, image: Image, target: str | None = None) -> Trace:
    """The attention of each caption word to the patches, which are named row,column from 0."""
    processor, model = _processor(run), run.model
    target = cast(str, caption_images(run, image)) if target is None else target
    ids = processor.tokenizers.encode_target(target).tolist()
    source = _pixels(run, image)[None].to(run.device)
    with watching(model) as views:
        model(torch.tensor([[processor.tokenizers.target.vocab, *ids]], device=run.device), source=source)
    by_kind: dict[str, list[View]] = {"encoder": [], "cross": [], "self": []}
    for name, view in views.items():
        by_kind["encoder" if name.startswith("encoder.") else "cross" if "cross" in name else "self"].append(view)
    return Trace([*processor.tokenizers.target.token_texts(ids), EDGE], by_kind, patch_names(run, processor.image_size))


def _processor(run: LoadedModel) -> CaptionProcessor:
    return cast(CaptionProcessor, run.tokenizer)


def _pixels(run: LoadedModel, image: Image) -> torch.Tensor:  # C S S
    processor = _processor(run)
    return processor.convert_channels(resize_image(read_pixels(image), processor.image_size))
