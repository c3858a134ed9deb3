"""Classify images, and compute their vectors, with a run trained on images."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harken.core import watching
from harken.data.images.files import (
    SUFFIXES,
    WHITE,
    convert_channels,
    decode_image,
    read_idx,
    read_npz,
    resize_image,
    to_nchw,
)
from harken.data.images.source import ImageProcessor
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.inference.loaded_model import LoadedModel
from harken.models.vit import ViT
from harken.suggestions import similar_path
from harken.tasks.image import EVAL_BATCH, predict

from . import Image, InputReader, LabelScore, Trace
from .classify import rank_labels
from .embed import Embedder, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors, own_splits, states_at_layer

Pixels = npt.NDArray[np.uint8]  # H W C
CLS = "CLS"  # how a trace shows the token before the patches


def classify_images(run: LoadedModel, images: Sequence[Image], listen: Listener = silent) -> list[list[LabelScore]]:
    """The labels of each image, most probable first."""
    if not len(images):
        return []
    processor = cast(ImageProcessor, run.tokenizer)
    pixels = torch.stack([input_pixels(run, image) for image in images])
    return rank_labels(processor.labels, predict(run.model, pixels, processor).softmax(-1))


@torch.inference_mode()
def trace_image(run: LoadedModel, image: Image, target: str | None = None) -> Trace:
    """The attention between the patches of an image, after CLS where the model has one."""
    if target is not None:
        raise BadInput(f"{run.path}: a model that classifies images reads no target; remove target")
    processor = cast(ImageProcessor, run.tokenizer)
    x = input_pixels(run, image)[None].to(run.device)
    with watching(run.model) as views:
        run.model(processor.normalize(x))
    return Trace(patch_names(run, processor.image_size), {"self": list(views.values())})


def patch_names(run: LoadedModel, image_size: int) -> list[str]:
    """CLS, if the model has it, and row,column of each patch of an image, from 0."""
    model = run.recipe.model
    width = math.ceil(image_size / model.patch_size(image_size))
    return [CLS] * (model.pool == "first") + [f"{n // width},{n % width}" for n in range(width**2)]


def input_pixels(run: LoadedModel, image: Image) -> Tensor:  # C S S
    """An image with the size and the channels of the training images."""
    processor = cast(ImageProcessor, run.tokenizer)
    read = read_pixels(image, run.recipe.data.background, processor.white_level)
    pixels = resize_image(read, processor.image_size)
    return convert_channels(pixels, len(processor.mean))


def read_pixels(image: Image, background: str = WHITE, white: int = 0) -> Pixels:
    """The pixels of an image file, of one image of an array file, or of an array."""
    if isinstance(image, str | Path):
        indexed = re.fullmatch(r"(.+)\[(\d+)\]", str(image))
        if indexed and Path(indexed[1]).is_file():
            return _array_image(Path(indexed[1]), int(indexed[2]), white)
        return decode_image(Path(image), background)
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (1,), (3,)):
        raise BadInput(f"array of {pixels.dtype}, shape {pixels.shape}: give uint8 of shape H W or H W 3, or a path")
    return pixels.reshape(*pixels.shape[:2], -1)


def _array_image(path: Path, n: int, white: int) -> Pixels:
    stat = path.stat()
    x = _read_array(path, white, stat.st_mtime_ns, stat.st_size)
    if n >= len(x):
        raise BadInput(f"{path}[{n}]: the file has {len(x):,} images, counted from 0")
    pixels: Pixels = x[n].permute(1, 2, 0).numpy()
    return pixels


@lru_cache(maxsize=1)
def _read_array(path: Path, white: int, *stat: int) -> Tensor:  # N C H W
    """All images of a file. The cache key includes modification time and size."""
    x = read_npz(path)[0] if path.suffix == ".npz" else read_idx(path)
    return to_nchw(x, str(path), white)


def list_images(run: LoadedModel, paths: Sequence[str], listen: Listener = silent) -> tuple[list[str], list[str]]:
    """The image files of these paths, twice: as names and as inputs. A folder includes all its readable images."""
    files = list[str]()
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not inside:
                raise BadInput(f"{name}: has no images; accepted: {', '.join(SUFFIXES)}")
            files += _readable_images(map(str, inside), listen)
        elif path.is_file() or re.fullmatch(r".+\[\d+\]", name):
            files.append(name)
        else:
            raise BadInput(f"{name}: no such image; check the name{similar_path(name)}")
    return files, files


def _readable_images(names: Iterable[str], listen: Listener) -> list[str]:
    readable, last_error = list[str](), None
    for name in names:
        try:
            read_pixels(name)
            readable.append(name)
        except BadInput as error:
            last_error = error
            listen("notice", text=f"skipped: {error}")
    if last_error and not readable:
        raise last_error
    return readable


INPUTS = InputReader("files", list_images)


# --- vectors ----------------------------------------------------------------------------------------------------------


def embed_images(
    run: LoadedModel, images: Sequence[Image], settings: EmbeddingSettings, listen: Listener = silent
) -> Vectors:
    """The vector of each image that the head reads; pool: the mean of the patches, or the state of CLS."""
    processor, vit = cast(ImageProcessor, run.tokenizer), cast(ViT, run.backbone)
    pixels = [input_pixels(run, image) for image in images]
    return encode_images(vit, pixels, processor.normalize, settings)


@torch.inference_mode()
def encode_images(
    vit: ViT, images: Sequence[Tensor], normalize: Callable[[Tensor], Tensor], settings: EmbeddingSettings
) -> Vectors:
    """The pooled states of the patches of each image."""
    if settings.pool == "cls" and vit.embed_cls is None:
        raise BadInput("pool='cls': this run has no CLS token; train with model.pool=first, or use pool='mean'")
    if settings.pool not in (None, "mean", "cls"):
        raise BadInput(f"pool={settings.pool!r}: not a pooling of patches; accepted: mean, cls")
    states, n_extra = states_at_layer(vit.transformer_blocks, settings.layer, vit), int(vit.embed_cls is not None)
    batches, weight = [], next(vit.parameters())
    for start in range(0, len(images), EVAL_BATCH):
        batch = torch.stack(list(images[start : start + EVAL_BATCH])).to(weight.device)
        h = states(normalize(batch).to(weight.dtype))
        batches.append((h[:, n_extra:].mean(1) if settings.pool == "mean" else vit.pooled(h)).float().cpu().numpy())
    return np.concatenate([np.empty((0, vit.d), np.float32), *batches])


def image_examples(run: LoadedModel, request: ExampleRequest, listen: Listener) -> NamedInputs:
    """The images of a file or folder, with the names of its subfolders as labels; or those of the training data."""
    if request.path is not None:
        return listed_images(run, request.path, listen)
    data, parts = own_splits(run, request.split, listen)
    labels = [data.processor.labels[target] for part in parts for target in part.targets]
    return NamedInputs(*_images_of(parts), labels)


def _images_of(parts: Iterable[Any]) -> tuple[list[Pixels], list[str]]:
    """The pixels and the names of the images of these splits."""
    pixels = [x.permute(1, 2, 0).numpy() for part in parts for x in part.pixels]
    return pixels, [name for part in parts for name in part.locations]


def listed_images(run: LoadedModel, path: str, listen: Listener) -> NamedInputs:
    """The images of a folder or an array file; the names of two or more subfolders are their labels."""
    if Path(path).is_file() and Path(path).suffix.lower() not in SUFFIXES:
        data: Any = run.recipe.load_data(run.tokenizer, other=(path, "test"), listen=listen)
        part = data.splits["test"]
        return NamedInputs(*_images_of([part]), [data.processor.labels[target] for target in part.targets])
    files, _ = list_images(run, [path], listen)
    folders = [str(Path(file).parent.relative_to(path)) if Path(path).is_dir() else "" for file in files]
    return NamedInputs(files, files, folders if len({*folders}) > 1 and "." not in folders else ())


IMAGE_OPTIONS = frozenset({"pool", "layer"})
EMBEDDER = Embedder(embed_images, image_examples, "images", IMAGE_OPTIONS, INPUTS)
