"""Pictures with labels: a folder in which each label is a folder, a table of paths, idx files or an .npz file.

All are laid out as squares of one side, N C S S, in bytes. A held-out share is drawn by a hash of the pixels, so that
adding pictures moves nothing, and no picture stands on two sides.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.labelled.batch import evenly
from harken.data.split import LABELS, MOST, FileSource, Labels, Positive, SplitData, kept
from harken.data.targets import unknown
from harken.data.text.source import NAMED, fingerprint, is_named
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.settings import Pixels

from .files import Numbers, coloured
from .image_readers import BLOCK, SIDE, Album, Reader, files_of, has_colours, joined, laid, readable, side_of

SPLITS = {**NAMED, "test": (*NAMED["test"], "t10k")}  # the word that MNIST has for its test

Sides = Annotated[int, Field(ge=1, le=4096)]


@dataclass(frozen=True)
class Lens:
    """How a picture becomes numbers, and what it may be said to be: what a run keeps of its data."""

    labels: Labels
    image_size: Sides
    mean: list[float]  # of each channel, of 0 to 1
    spread: list[Positive]
    white: Annotated[int, Field(ge=0, le=255)] = 0  # in arrays that hold no bytes; 0: they say it themselves

    def __post_init__(self) -> None:
        in_channels(self.mean, self.spread)

    @property
    def vocab(self) -> Pixels:
        return Pixels(self.image_size, len(self.mean), len(self.labels))

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        return {LABELS: json.dumps(vars(self), ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "Lens":
        return kept(cls, folder, "how pictures are read")

    def numbers(self, pixels: Tensor) -> Tensor:  # B C S S: bytes, or shares of 1
        """What a model is given: how far a pixel lies from the mean, in spreads."""
        x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        channels = zip(x.unbind(-3), self.mean, self.spread, strict=True)  # no table: a recorded step may copy none
        return torch.stack([(one - mean) / spread for one, mean, spread in channels], -3)

    def targets(self, album: "Album") -> Numbers:
        """The numbers of the labels."""
        number = {label: n for n, label in enumerate(self.labels)}
        for place, label in zip(album.places, album.labels, strict=True):
            if label not in number:
                raise unknown(label, self.labels, place)
        return np.array([number[label] for label in album.labels], np.int64)


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures of a split."""

    pixels: Tensor  # N C S S, bytes
    targets: Numbers  # N
    places: list[str]

    def __len__(self) -> int:
        return len(self.places)

    def some(self, many: int) -> "Pictures":
        """So many of them, from everywhere: they may stand in the order of their labels."""
        picks = evenly(len(self), many)
        return Pictures(self.pixels[picks], self.targets[picks], [self.places[n] for n in picks])


class ImageSource(FileSource):
    """The settings of pictures with labels."""

    model: ClassVar[str] = "vit"
    task: ClassVar[str] = "image"
    of: ClassVar[str] = " of images"
    kept: ClassVar[str] = LABELS

    kind: Literal["images"] = "images"
    path: str | None = Field(None, description="a folder of folders, a table of paths, idx files or an .npz file")
    test: str | float = Field(0.1, description=f"the same, or the share kept for the last judgement, {MOST:,} at most")
    image: int | str | None = Field(None, description="of a table, the column of the paths; none: the first")
    label: int | str | None = Field(None, description="of a table, the column of the labels; none: the second")
    class_names: list[str] | None = Field(None, description="names of the labels 0, 1, ... of an array; none: numbers")
    image_size: int | None = Field(
        None, ge=2, le=1024, description=f"pixels of a side, to which others are squeezed; none: theirs, else {SIDE}"
    )
    color: bool | None = Field(None, description="three channels, or one; none: three if a picture has colours")
    examples: int | None = Field(None, ge=1, description="learn from so many pictures only")

    def words(self, folder: Path) -> Lens:
        """How a run reads pictures."""
        return Lens.load(folder)

    # --- open ---------------------------------------------------------------------------------------------------------

    def open(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> "ImageData":
        """Read, split and lay out the pictures. A lens that is given stays, but for labels it does not know."""
        known = tokenizer if isinstance(tokenizer, Lens) else None
        found = self._found(0, listen)
        if white := found["train"].white:
            found = self._found(white, listen)  # another file may be darker
        digest = fingerprint((p for album in found.values() for p in files_of(album)), self.sha256, self._home)
        side = known.image_size if known else self.image_size or side_of(found["train"])
        found = {split: laid(album, side, listen) for split, album in found.items()}
        if not any(found["train"].labels):
            raise BadInput(
                f"{self._home}: its pictures have no labels; put those of each label into a folder of its own"
            )
        colour = self.color if self.color is not None else any(has_colours(album) for album in found.values())
        channels = len(known.mean) if known else 3 if colour else 1
        found = {s: replace(a, pixels=coloured(a.pixels, channels)) for s, a in found.items() if a.pixels is not None}
        found = self._drawn(found, listen)
        lens = self._lens(found["train"], known)
        parts = {s: Pictures(a.pixels, lens.targets(a), a.places) for s, a in found.items() if a.pixels is not None}
        return ImageData(self, lens, parts.pop("train"), parts, digest)

    def other(
        self, path: str, split: str, *, tokenizer: Lens, stateful: bool = False, listen: Listener = silent
    ) -> "ImageData":
        """The same data with other pictures as one of its splits; these stand alone where the run's own are gone."""
        album = laid(self._reader(tokenizer.white, listen).read(Path(path)), tokenizer.image_size, listen)
        assert album.pixels is not None
        pixels = coloured(album.pixels, len(tokenizer.mean))
        there = Pictures(pixels, tokenizer.targets(album), album.places)
        try:
            opened = self.model_copy(update={"sha256": None}).open(tokenizer=tokenizer)
        except BadInput as error:
            listen("notice", text=f"the free baselines are left out, for lack of what they learn from: {error}")
            return ImageData(self, tokenizer, there, {split: there}, "", learned=False)
        return replace(opened, splits={**opened.splits, split: there})

    def _reader(self, white: int, listen: Listener) -> Reader:
        return Reader(self.image, self.label, self.class_names or (), listen, white)

    def _found(self, white: int, listen: Listener) -> dict[str, Album]:
        """The splits that have files of their own; those to learn from always."""
        reader = self._reader(white, listen)
        found = _named(Path(self._home), reader) if self.train is None else {}
        found = found or {"train": reader.read(Path(self._home))}
        named = {split: given for split in ("valid", "test") if isinstance(given := getattr(self, split), str)}
        return found | {split: reader.read(Path(given)) for split, given in named.items()}

    def _lens(self, train: Album, known: Lens | None) -> Lens:
        labels = sorted({*train.labels}, key=lambda label: (int(label) if label.isdecimal() else math.inf, label))
        if self.class_names and {*labels} <= {*self.class_names}:
            labels = self.class_names
        if known:
            labels = known.labels if {*labels} <= {*known.labels} else labels
            return replace(known, labels=labels, white=train.white)
        if len(labels) < 2:
            raise BadInput(f"{self._home}: the only label is {labels[0]!r}, so there is nothing to learn; give more")
        assert train.pixels is not None
        return Lens(labels, train.pixels.shape[-1], *moments(train.pixels), train.white)

    # --- split --------------------------------------------------------------------------------------------------------

    def _drawn(self, found: dict[str, Album], listen: Listener) -> dict[str, Album]:
        """The splits: those that have files, and shares of the rest, test from one end of the keys' range, valid from
        the other. What is held out is not learned from."""
        train, keys, held = found["train"], found["train"].hashes(), dict[str, list[int]]()
        there = {key for split in ("valid", "test") if split in found for key in found[split].hashes()}
        if taken := sum(key in there for key in keys):
            listen("notice", text=f"training pictures left out because they are held out too: {taken:,}")
        order = sorted((n for n in range(len(keys)) if keys[n] not in there), key=keys.__getitem__)
        inmost = sorted(order, key=lambda n: -abs(keys[n] - 2**63))
        kept = {*{train.labels[n]: keys[n] for n in inmost}.values()}  # of each label one that is learned from
        free = [n for n in order if keys[n] not in kept]
        for split, way in (("test", free), ("valid", free[::-1])):
            share = getattr(self, split)
            if split in found:
                continue
            if isinstance(share, str) or not 0 <= share < 1:
                raise BadSetting(f"data.{split} = {share}: a share of the pictures lies between 0 and 1")
            near = [keys[n] if split == "test" else 2**64 - 1 - keys[n] for n in way]
            many = sum(distance < share * 2**64 for distance in near)
            held[split] = way[: min(many, MOST)]
            if share and not held[split]:
                listen("notice", text=f"data.{split}: the pictures are too few to hold a part of them out")
        gone = {keys[n] for some in held.values() for n in some}
        learn = [n for n in order if keys[n] not in gone][: self.examples]
        if not learn:
            raise BadInput(f"{self._home}: there is nothing to learn from; give more pictures")
        drawn = {split: train.only(some) for split, some in held.items() if some}
        return {**found, **drawn, "train": train.only(learn)}


class ImageData(SplitData):
    """Opened pictures by split."""

    @property
    def lens(self) -> Lens:
        return cast(Lens, self.words)

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        lens = self.lens
        colours = "grey" if len(lens.mean) == 1 else "in colour"
        return {
            "images": {name: len(part) for name, part in self.parts.items()},
            "unit": "images",
            "told": f"{lens.image_size} x {lens.image_size} {colours}, {len(lens.labels)} labels",
            "labels": len(lens.labels),
            "sha256": self.sha256,
        }


def in_channels(mean: list[float], spread: list[float]) -> None:
    """Refuses what cannot be of pictures: they have one channel or three, with a mean and a spread each."""
    if not len(mean) == len(spread) in (1, 3):
        raise ValueError(f"{len(mean)} means and {len(spread)} spreads, where pictures have one of each or three")


def moments(pixels: Tensor) -> tuple[list[float], list[float]]:
    """The mean and the spread of each channel, as shares of 1: exact, from how often each byte occurs."""
    counts = torch.zeros(pixels.shape[1], 256, dtype=torch.int64)
    for some in pixels.split(BLOCK):
        for channel, x in enumerate(some.unbind(1)):
            counts[channel] += torch.bincount(x.flatten(), minlength=256)
    share, level = counts.double() / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = share @ level
    spread = (share @ level.square() - mean.square()).clamp_min(0).sqrt()
    return mean.tolist(), [s if s > 1e-3 else 1.0 for s in spread.tolist()]


def _named(path: Path, reader: Reader) -> dict[str, Album]:
    """The splits that the files or folders in this folder are named after; none, if train is all there is."""
    inside = sorted(p for p in path.iterdir() if not p.name.startswith(".")) if path.is_dir() else []
    splits = {s: some for s, words in SPLITS.items() if (some := [p for p in inside if is_named(p, words)])}
    if not {"train"} < splits.keys():
        return {}
    return {split: joined([reader.read(p) for p in readable(some)]) for split, some in splits.items()}
