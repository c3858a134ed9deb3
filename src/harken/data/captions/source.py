"""Images with captions: a table of image paths and captions. Several captions of one image are its references.

The path is a table, a folder with a table and its images, or a folder with one table per split (train.tsv, valid.tsv,
test.tsv). An image is a path relative to the table, or an element of an array (scenes.npz[17]).
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import Array, Batch
from harken.data.images import files as image_files
from harken.data.images.files import convert_channels, read_npz, to_nchw
from harken.data.images.source import BACKGROUND, ImageProcessor, ImageSize, channel_stats, check_channels
from harken.data.pairs.batch import shift_targets
from harken.data.pairs.files import normalize_text, pair_blocks
from harken.data.partition import SPLIT_FILE_NAMES
from harken.data.processor import PositiveFloat, SavedProcessor
from harken.data.rng import RngStream, once_per_epoch, rng_for
from harken.data.source import Processor
from harken.data.split import SplitData, SplitSource, has_name_part
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.read import SkippedRows
from harken.data.tokenizers.pairs import PairTokenizers, RaggedTokens, encode_lines
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.settings import CaptionInputs, ImageShape
from harken.suggestions import similar_path

IN_ARRAY = re.compile(r"(.+\.npz)\[(\d+)\]")


@dataclass(frozen=True, eq=False)
class CaptionedImage:
    """An image, its captions, and the group in which it is evaluated."""

    location: str
    name: str  # in the table
    captions: tuple[str, ...]
    group: str
    pixels: Tensor  # C S S, uint8

    @cached_property
    def pixel_hash(self) -> str:
        return hashlib.blake2b(self.pixels.numpy().tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class CaptionProcessor(SavedProcessor):
    """The tokenizer of the captions, and the size and channel statistics of the images."""

    tokenizers: PairTokenizers  # one tokenizer for both sides: an image has no tokens
    image_size: ImageSize
    mean: list[float]  # of each channel, for pixels in 0..1
    std: list[PositiveFloat]

    def __post_init__(self) -> None:
        check_channels(self.mean, self.std)

    @property
    def vocab(self) -> CaptionInputs:
        shape = ImageShape(self.image_size, len(self.mean), 0)
        return CaptionInputs(shape, tuple(self.mean), tuple(self.std), self.tokenizers.vocab[1])

    @classmethod
    def load(cls, folder: Path, **tokenizers: Processor) -> Self:
        return super().load(folder, tokenizers=PairTokenizers.load(folder))

    def convert_channels(self, pixels: Tensor) -> Tensor:  # ... C S S
        return convert_channels(pixels, len(self.mean))


@dataclass(frozen=True, eq=False)
class CaptionSplit:
    """The images of a split and their captions."""

    pixels: Tensor  # N C S S, uint8
    target: RaggedTokens  # all captions
    image_index: Array  # image of each caption
    sources: list[str]  # locations
    references: list[list[str]]
    groups: list[str]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def source(self) -> Tensor:
        """The encoder inputs: the images."""
        return self.pixels

    def facts(self) -> dict[str, int]:
        return {"images": len(self), "captions": len(self.image_index)}


class CaptionData(SplitData[CaptionProcessor, CaptionSplit]):
    """Loaded images with captions by split."""

    @property
    def tokenizers(self) -> PairTokenizers:
        return self.processor.tokenizers

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a caption, without the edge token."""
        return max(int(part.target.lengths.max(initial=0)) for part in self.parts.values())

    def _facts(self) -> dict[str, object]:
        size, color = self.processor.image_size, "grayscale" if len(self.processor.mean) == 1 else "color"
        count = f"{len(self.train.image_index) / len(self.train):.3g}"
        ratio = f"{count} caption{'s' * (count != '1')} per image"
        return {"summary": f"{size} x {size} {color}, {ratio}, {self.tokenizers.target.vocab} tokens"}


class CaptionSource(SplitSource[CaptionedImage, CaptionProcessor, CaptionSplit]):
    """Settings of images with captions."""

    task: ClassVar[str] = "caption"
    dataset_class: ClassVar[type[CaptionData]] = CaptionData
    processor_class: ClassVar[type[CaptionProcessor]] = CaptionProcessor

    kind: Literal["captions"] = "captions"
    image: int | str | None = Field(None, description="image column; default: the first")
    caption: int | str | None = Field(None, description="caption column; default: the second")
    group: int | str | None = Field(None, description="column; held-out metrics are also reported per value")
    image_size: int | None = Field(
        None, ge=2, le=1024, description="height and width in pixels; default: that of the images if all agree, else 64"
    )
    color: bool | None = Field(None, description="three channels or one; default: three if an image has color")
    background: image_files.Background = Field(image_files.WHITE, description=BACKGROUND)
    tokenizer: Literal["char", "word", "bpe"] = Field("word", description="tokenizer type; word separates punctuation")
    vocab_size: int | None = Field(
        None, ge=3, le=300_000, description="maximum vocabulary size; default: 10,000 words or 8,000 byte pairs"
    )

    def load_data(
        self, *, stateful: bool = False, tokenizer: Processor | None = None, listen: Listener = silent
    ) -> SplitData[CaptionProcessor, CaptionSplit]:
        known = tokenizer.image_size if isinstance(tokenizer, CaptionProcessor | ImageProcessor) else self.image_size
        sized = self.model_copy(update={"image_size": known or self._common_size()})  # read once
        return super(CaptionSource, sized).load_data(stateful=stateful, tokenizer=tokenizer, listen=listen)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, path: Path, listen: Listener) -> list[CaptionedImage]:
        rows = self._read_rows(path, listen)
        size = self._common_size() if self.image_size is None else self.image_size
        images = image_files.resize(_locate_images(path, list(rows)), size, listen, self.background)
        assert images.pixels is not None
        located = zip(images.locations, images.labels, images.pixels, strict=True)
        return [CaptionedImage(location, name, *rows[name], pixels) for location, name, pixels in located]

    def _read_rows(self, path: Path, listen: Listener) -> dict[str, tuple[tuple[str, ...], str]]:
        """The captions and the group of each image, by its name in the table."""
        columns: list[tuple[str, ColumnRef]] = [("data.image", self.image), ("data.caption", self.caption)]
        columns += [] if self.group is None else [("data.group", self.group)]
        skipped, rows = SkippedRows("no image with a caption"), dict[str, tuple[tuple[str, ...], str]]()
        for line, (image, caption, *group) in iter_columns(path, columns, skipped, self.encoding):
            name, text = image.strip(), normalize_text(caption)
            if not name or not text:
                skipped(path, line, "the image or the caption is empty")
                continue
            captions = rows.get(name, ((), ""))[0]
            rows[name] = (*captions, text), "".join(group).strip()
        if skipped.count > len(rows) or not rows:
            raise BadInput(f"{path}: {skipped}; check data.image and data.caption, or fix the file")
        skipped.report(listen)
        return rows

    def _common_size(self) -> int:
        """The common size of the training images."""
        path = self._files()["train"][0]
        return _locate_images(path, list(self._read_rows(path, silent))).common_size()

    def _files(self) -> dict[str, list[Path]]:
        """The tables of each split, by setting or by name in a folder."""
        paths = {s: path for s in ("valid", "test") if isinstance(path := getattr(self, s), str)}
        files = {s: find_tables(Path(path)) for s, path in ({"train": self.train_path} | paths).items()}
        tables = files["train"] if Path(self.train_path).is_dir() else []
        named = {s: [p for p in tables if has_name_part(p, SPLIT_FILE_NAMES[s])] for s in ("valid", "test")}
        held_out = [path for paths in named.values() for path in paths]
        files["train"] = [path for path in files["train"] if path not in held_out]
        return {split: paths for split, paths in named.items() if paths} | files

    def _files_read(self, files: dict[str, list[Path]], examples: dict[str, list[Any]]) -> list[Path]:
        locations = (image.location for images in examples.values() for image in images)
        paths = (Path(match[1] if (match := IN_ARRAY.fullmatch(location)) else location) for location in locations)
        return [*super()._files_read(files, examples), *dict.fromkeys(paths)]

    def as_trained(self, processor: CaptionProcessor) -> Self:
        return self.model_copy(update={"image_size": processor.image_size})

    def load_split(
        self, path: str, split: str, *, tokenizer: CaptionProcessor, stateful: bool = False, listen: Listener = silent
    ) -> SplitData[CaptionProcessor, CaptionSplit]:
        return super().load_split(str(find_tables(Path(path))[0]), split, tokenizer=tokenizer, listen=listen)

    # --- encoding -----------------------------------------------------------------------------------------------------

    def split_key(self, example: CaptionedImage) -> str:
        return example.name

    def location(self, example: CaptionedImage) -> str:
        return example.location

    def duplicate_key(self, example: CaptionedImage) -> str:
        return example.pixel_hash

    def encode_examples(self, examples: list[CaptionedImage], processor: CaptionProcessor) -> CaptionSplit:
        tokenizer = processor.tokenizers.target
        captions = [caption for image in examples for caption in image.captions]
        return CaptionSplit(
            pixels=torch.stack([processor.convert_channels(image.pixels) for image in examples]),
            target=RaggedTokens.from_blocks([encode_lines(tokenizer, captions)], tokenizer),
            image_index=np.repeat(np.arange(len(examples)), [len(image.captions) for image in examples]),
            sources=[image.location for image in examples],
            references=[list(image.captions) for image in examples],
            groups=[image.group for image in examples] if self.group is not None else [],
        )

    def _build_processor(self, examples: list[CaptionedImage], known: Any, listen: Listener) -> CaptionProcessor:
        if isinstance(known, CaptionProcessor):
            return known
        pairs = [(caption, caption) for image in examples for caption in image.captions]
        blocks, kinds = (lambda: pair_blocks(pairs)), (self.tokenizer, self.tokenizer)
        tokenizers = PairTokenizers.train(blocks, kinds, self.vocab_size, shared_vocab=True, listen=listen)
        if isinstance(known, ImageProcessor):  # of a ViT that becomes the encoder
            return CaptionProcessor(tokenizers, known.image_size, known.mean, known.std)
        color = self.color
        if color is None:
            color = any(len(image.pixels) == 3 and bool((image.pixels != image.pixels[:1]).any()) for image in examples)
        pixels = torch.stack([convert_channels(image.pixels, 3 if color else 1) for image in examples])
        return CaptionProcessor(tokenizers, pixels.shape[-1], *channel_stats(pixels))


def find_tables(path: Path) -> list[Path]:
    """The table, or the tables in a folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(f"{path}: no such file or folder; check the name{similar_path(path)}")
    tables = sorted(p for p in path.iterdir() if p.suffix.lower() in image_files.TABLES and p.is_file())
    if not tables:
        raise BadInput(f"{path}: no table of images and captions; add a file such as captions.tsv")
    return tables


def _locate_images(table: Path, names: Sequence[str]) -> image_files.ImageCollection:
    """The images of a table, relative to its folder, with their names in the table as labels."""
    matches = [IN_ARRAY.fullmatch(name) for name in names]
    locations = [str(table.parent / name) for name in names]
    if not any(matches):
        return image_files.ImageCollection(locations, list(names))
    arrays, images = dict[str, Tensor](), list[Tensor]()
    for name, match in zip(names, matches, strict=True):
        if match is None:
            raise BadInput(f"{table}: {name!r} is a file, but other images are in an array; split the table in two")
        if match[1] not in arrays:
            arrays[match[1]] = to_nchw(read_npz(table.parent / match[1])[0], match[1])
        if int(match[2]) >= len(arrays[match[1]]):
            raise BadInput(f"{table}: {name}: the array has {len(arrays[match[1]]):,} images, counted from 0")
        images.append(arrays[match[1]][int(match[2])])
    return image_files.ImageCollection(locations, list(names), torch.stack(images))


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CaptionBatch(Batch):
    """Decoder inputs (starting with the edge token), their targets (ending with it), and the images."""

    source: Tensor  # B C S S, uint8

    def model_inputs(self) -> dict[str, object]:
        return {"source": self.source}


def collate_captions(part: CaptionSplit, indices: Array, L: int) -> CaptionBatch:
    """These captions in rows of L tokens."""
    tokens, targets = shift_targets(*part.target.gather(indices), L, part.target.edge)
    return CaptionBatch(tokens, targets, source=part.pixels[torch.from_numpy(part.image_index[indices])])


class CaptionBatches:
    """The training batches, shuffled in every epoch."""

    def __init__(self, part: CaptionSplit, rows: int, *, seed: int) -> None:
        n_captions, lengths = len(part.image_index), part.target.lengths + 1
        self.part, self.seed, self.rows = part, seed, min(rows, n_captions)
        self.steps, self.L = n_captions // self.rows, int(lengths.max())
        self.tokens = max(1, round(float(lengths.mean()) * self.rows))
        self.padding = 1 - float(lengths.mean() / self.L)

    @once_per_epoch
    def epoch_order(self, epoch: int) -> Array:
        return rng_for(self.seed, RngStream.CAPTION_ORDER, epoch).permutation(len(self.part.image_index))

    def batch(self, epoch: int, step: int) -> CaptionBatch:
        order = self.epoch_order(epoch)
        return collate_captions(self.part, order[step * self.rows : (step + 1) * self.rows], self.L)


def eval_batches(part: CaptionSplit, rows: int, max_images: int) -> Iterator[CaptionBatch]:
    """The captions of the first images of a split."""
    indices, L = np.flatnonzero(part.image_index < max_images), int(part.target.lengths.max()) + 1
    return (collate_captions(part, indices[n : n + rows], L) for n in range(0, len(indices), rows))
