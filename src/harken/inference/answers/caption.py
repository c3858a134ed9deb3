"""Caption images, and compute their vectors, with a run trained on captions."""

from collections.abc import Sequence
from typing import Unpack, cast

import torch

from harken.data.captions.source import CaptionProcessor
from harken.data.images.files import resize_image
from harken.decode.beam import SearchSettings
from harken.events import Listener
from harken.inference.loaded_model import LoadedModel
from harken.models import EncoderDecoder
from harken.models.caption import Captioner
from harken.tasks.caption import generate_captions

from . import Image, SearchOptions, Trace
from .embed import Embedder, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors, own_splits
from .images import IMAGE_OPTIONS, INPUTS, encode_images, list_images, patch_names, read_pixels
from .translate import Candidate, trace_target

Caption = str | list[Candidate]  # the best one; with the option `alternatives`, the best ones with their scores


def caption_candidates(
    run: LoadedModel, images: Sequence[Image], *, index: int = 0, **search: Unpack[SearchOptions]
) -> list[list[Candidate]]:
    """For each image its best captions; the option `alternatives` is their number."""
    run.require("caption")
    options = SearchSettings.from_options({"max_new_tokens": run.recipe.task.max_new_tokens, **search})
    pixels = [_pixels(run, image) for image in images]
    rows = generate_captions(run.beam_search, run.tokenizer.tokenizers, pixels, options, first=index)
    return [[{"text": text, "score": score} for text, score in row] for row in rows]


def caption_images(
    run: LoadedModel, images: Sequence[Image], *, index: int = 0, **search: Unpack[SearchOptions]
) -> list[Caption]:
    """The best caption of each image, or with the option `alternatives` its best captions."""
    candidates = caption_candidates(run, images, index=index, **search)
    return [best if "alternatives" in search else best[0]["text"] if best else "" for best in candidates]


@torch.inference_mode()
def trace_caption(run: LoadedModel, image: Image, target: str | None = None) -> Trace:
    """The attention of each caption word to the patches, which are named row,column from 0."""
    processor: CaptionProcessor = run.tokenizer
    target = caption_candidates(run, [image])[0][0]["text"] if target is None else target
    names = patch_names(run, processor.image_size)
    return trace_target(cast(EncoderDecoder, run.model), processor.tokenizers, target, _pixels(run, image)[None], names)


def _pixels(run: LoadedModel, image: Image) -> torch.Tensor:  # C S S
    processor: CaptionProcessor = run.tokenizer
    return processor.convert_channels(
        resize_image(read_pixels(image, run.recipe.data.background), processor.image_size)
    )


def embed_captioned_images(
    run: LoadedModel, images: Sequence[Image], settings: EmbeddingSettings, listen: Listener
) -> Vectors:
    """The pooled states of the patches of each image, which the decoder attends to."""
    model = cast(Captioner, run.model)
    return encode_images(model.encoder, [_pixels(run, image) for image in images], model.normalize, settings)


def captioned_images(run: LoadedModel, request: ExampleRequest, listen: Listener) -> NamedInputs:
    """The images of a file or folder, or of the training data."""
    if request.path is not None:
        files, _ = list_images(run, [request.path], listen)
        return NamedInputs(files, files)
    parts = own_splits(run, request.split, listen)[1]
    pixels = [x.permute(1, 2, 0).numpy() for part in parts for x in part.pixels]
    return NamedInputs(pixels, [name for part in parts for name in part.sources])


EMBEDDER = Embedder(embed_captioned_images, captioned_images, "images", IMAGE_OPTIONS, INPUTS)
