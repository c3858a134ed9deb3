"""Pictures with captions: a table of files and of what each shows, in words. Several captions of one are references.

The table may stand alone, or in a folder with its pictures, or for each split one (train.tsv, valid.tsv, test.tsv). A
picture is a file, seen from the table's folder, or one of an array (scenes.npz[17]).
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.images import image_readers
from harken.data.images.files import Numbers, coloured, read_npz, stacked
from harken.data.images.source import Sides, in_channels, moments
from harken.data.pairs.files import clean
from harken.data.split import LABELS, Positive, SplitData, SplitSource, kept
from harken.data.tables.read import Flaws, Place, rows_of
from harken.data.text.source import NAMED, is_named
from harken.data.tokenizers.pairs import Side, Tokenizers, encode_lines
from harken.errors import BadInput, near_name
from harken.events import Listener, silent
from harken.settings import Pictured, Pixels

BLOCK = 4096  # captions from which words are learned at once
IN_ARRAY = re.compile(r"(.+\.npz)\[(\d+)\]")


@dataclass(frozen=True, eq=False)
class Shot:
    """A picture, what is said of it, and in which group it is judged."""

    place: str
    name: str  # in the table
    captions: tuple[str, ...]
    group: str
    pixels: Tensor  # C S S, bytes

    @cached_property
    def content(self) -> str:
        return hashlib.blake2b(self.pixels.numpy().tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class CaptionWords:
    """The words of captions, and how a picture becomes numbers."""

    both: Tokenizers  # one and the same: a picture has no words
    image_size: Sides
    mean: list[float]  # of each channel, of 0 to 1
    spread: list[Positive]

    def __post_init__(self) -> None:
        in_channels(self.mean, self.spread)

    @property
    def vocab(self) -> Pictured:
        pixels = Pixels(self.image_size, len(self.mean), 0)
        return Pictured(pixels, tuple(self.mean), tuple(self.spread), self.both.vocab[1])

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        seen = {"image_size": self.image_size, "mean": self.mean, "spread": self.spread}
        return {**self.both.files(), LABELS: json.dumps(seen).encode()}

    @classmethod
    def load(cls, folder: Path) -> "CaptionWords":
        return kept(cls, folder, "how pictures are read", both=Tokenizers.load(folder))

    def fitted(self, pixels: Tensor) -> Tensor:  # ... C S S
        return coloured(pixels, len(self.mean))


@dataclass(frozen=True, eq=False)
class Captioned:
    """The pictures of a split, and their captions, one after the other."""

    pixels: Tensor  # N C S S, bytes
    target: Side  # of all captions
    of: Numbers  # which picture each is of
    sources: list[str]  # places
    references: list[list[str]]
    groups: list[str]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def source(self) -> Tensor:
        """What is asked about: the pictures."""
        return self.pixels

    def facts(self) -> dict[str, Any]:
        return {"pictures": len(self), "captions": len(self.of)}


class CaptionData(SplitData):
    """Opened pictures with captions, by split."""

    words: CaptionWords

    @property
    def tokenizers(self) -> Tokenizers:
        return self.words.both

    @property
    def max_length(self) -> int:
        """Most tokens of a caption, its edge not counted."""
        return max(int(part.target.lengths.max(initial=0)) for part in self.parts.values())

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        words, counts = self.words, {name: part.facts() for name, part in self.parts.items()}
        colours = "grey" if len(words.mean) == 1 else "in colour"
        many = f"{counts['train']['captions'] / counts['train']['pictures']:.3g} captions each"
        return {
            **{what: {name: counts[name][what] for name in self.parts} for what in counts["train"]},
            "unit": "pictures",
            "told": f"{words.image_size} x {words.image_size} {colours}, {many}, {words.both.target.vocab} tokens",
            "sha256": self.sha256,
        }


class CaptionSource(SplitSource):
    """The settings of pictures with captions."""

    model: ClassVar[str] = "caption"
    task: ClassVar[str] = "caption"
    of: ClassVar[str] = " of captions"
    opened: ClassVar[type[Any]] = CaptionData

    kind: Literal["captions"] = "captions"
    image: int | str | None = Field(None, description="the column of the pictures' files; none: the first")
    caption: int | str | None = Field(None, description="the column of the captions; none: the second")
    group: int | str | None = Field(None, description="a column by whose values a held-out split is judged apart too")
    image_size: int | None = Field(
        None,
        ge=2,
        le=1024,
        description=f"pixels of a side, to which others are squeezed; none: theirs, else {image_readers.SIDE}",
    )
    color: bool | None = Field(None, description="three channels, or one; none: three if a picture has colours")
    tokenizer: Literal["char", "word", "bpe"] = Field(
        "word", description="what a token is; a sign is a word of its own"
    )
    vocab_size: int | None = Field(
        None, ge=3, le=300_000, description="most tokens; none: 10,000 words, 8,000 byte pairs"
    )

    def words(self, folder: Path) -> CaptionWords:
        return CaptionWords.load(folder)

    # --- read ---------------------------------------------------------------------------------------------------------

    def read(self, path: Path, listen: Listener) -> list[Shot]:
        found = self._rows(path, listen)
        album = _album(path, list(found), self._side() if self.image_size is None else self.image_size, listen)
        assert album.pixels is not None
        shots = zip(album.places, album.labels, album.pixels, strict=True)
        return [Shot(place, name, *found[name], pixels) for place, name, pixels in shots]

    def _rows(self, path: Path, listen: Listener) -> dict[str, tuple[tuple[str, ...], str]]:
        """The captions and the group of each picture, by its name in the table."""
        asked: list[tuple[str, Place]] = [("data.image", self.image), ("data.caption", self.caption)]
        asked += [] if self.group is None else [("data.group", self.group)]
        flaws, found = Flaws("no picture with a caption"), dict[str, tuple[tuple[str, ...], str]]()
        for line, (image, caption, *group) in rows_of(path, asked, flaws):
            name, text = image.strip(), clean(caption)
            if not name or not text:
                flaws(path, line, "the picture or the caption is empty")
                continue
            before = found.get(name, ((), ""))[0]
            found[name] = (*before, text), "".join(group).strip()
        if flaws.count > len(found) or not found:
            raise BadInput(f"{path}: {flaws}; check data.image and data.caption, or mend the file")
        if flaws.count:
            listen("notice", text=str(flaws))
        return found

    def _side(self) -> int:
        """The side that the pictures to learn from have."""
        path = self._files()["train"][0]
        return image_readers.side_of(_placed(path, list(self._rows(path, silent))))

    def _files(self) -> dict[str, list[Path]]:
        """The tables: of a folder those that lie in it, by their names."""
        found, home = dict[str, list[Path]](), Path(self._home)
        named = [(split, given) for split in ("valid", "test") if isinstance(given := getattr(self, split), str)]
        for split, place in (("train", home), *((split, Path(given)) for split, given in named)):
            found[split] = tables(place)
        every = found["train"]
        held = {split: [p for p in every if is_named(p, NAMED[split])] for split in ("valid", "test")}
        if home.is_dir() and any(held.values()):
            out = {path for some in held.values() for path in some}
            found = (
                {s: some for s, some in held.items() if some} | found | {"train": [p for p in every if p not in out]}
            )
        return found

    def _read_from(self, files: dict[str, list[Path]], found: dict[str, list[Any]]) -> list[Path]:
        shots = (Path(shot.place) for some in found.values() for shot in some)
        arrays = (Path(place[1]) if (place := IN_ARRAY.fullmatch(str(path))) else path for path in shots)
        return [*super()._read_from(files, found), *dict.fromkeys(arrays)]

    def other(
        self, path: str, split: str, *, tokenizer: CaptionWords, stateful: bool = False, listen: Listener = silent
    ) -> CaptionData:
        mine = self.model_copy(update={"image_size": tokenizer.image_size})
        place = str(tables(Path(path))[0])
        found: CaptionData = super(CaptionSource, mine).other(place, split, tokenizer=tokenizer, listen=listen)
        return found

    # --- what is asked ------------------------------------------------------------------------------------------------

    def about(self, example: Shot) -> str:
        return example.name

    def same(self, example: Shot) -> str:
        return example.content

    def encoded(self, examples: list[Shot], words: CaptionWords, *, learn: bool) -> Captioned:
        texts = [text for shot in examples for text in shot.captions]
        target = Side.of([encode_lines(words.both.target, texts)], words.both.target)
        of = np.repeat(np.arange(len(examples)), [len(shot.captions) for shot in examples])
        pixels = torch.stack([words.fitted(shot.pixels) for shot in examples])
        groups = [shot.group for shot in examples] if self.group is not None else []
        places, references = [shot.place for shot in examples], [list(shot.captions) for shot in examples]
        return Captioned(pixels, target, of, places, references, groups)

    def _words(self, learn: list[Shot], given: Any, listen: Listener) -> CaptionWords:
        if isinstance(given, CaptionWords):
            return given
        texts = [text for shot in learn for text in shot.captions]

        def blocks() -> Any:
            return ([(text, text) for text in texts[n : n + BLOCK]] for n in range(0, len(texts), BLOCK))

        both = Tokenizers.learned(blocks, (self.tokenizer, self.tokenizer), self.vocab_size, joint=True, listen=listen)
        colour = self.color
        if colour is None:
            colour = any(len(shot.pixels) == 3 and bool((shot.pixels != shot.pixels[:1]).any()) for shot in learn)
        pixels = torch.stack([coloured(shot.pixels, 3 if colour else 1) for shot in learn])
        return CaptionWords(both, pixels.shape[-1], *moments(pixels))


def tables(path: Path) -> list[Path]:
    """The table, or those that lie in a folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(f"{path}: there is no such file or folder; check the name{near_name(path)}")
    found = sorted(p for p in path.iterdir() if p.suffix.lower() in image_readers.TABLES and p.is_file())
    if not found:
        raise BadInput(f"{path}: there is no table in it; a file such as captions.tsv names pictures and captions")
    return found


def _placed(path: Path, names: Sequence[str]) -> image_readers.Album:
    """The pictures of a table, seen from its folder; labels are their names in it."""
    inside = [IN_ARRAY.fullmatch(name) for name in names]
    places = [str(path.parent / name) for name in names]
    if not any(inside):
        return image_readers.Album(places, list(names))
    arrays, picks = dict[str, Tensor](), list[Tensor]()
    for name, place in zip(names, inside, strict=True):
        if place is None:
            raise BadInput(f"{path}: {name!r} is a file, and others are of an array; give them in two tables")
        if place[1] not in arrays:
            arrays[place[1]] = stacked(read_npz(path.parent / place[1])[0], place[1])
        if int(place[2]) >= len(arrays[place[1]]):
            raise BadInput(f"{path}: {name}: there are {len(arrays[place[1]]):,} pictures in it, counted from 0")
        picks.append(arrays[place[1]][int(place[2])])
    return image_readers.Album(places, list(names), torch.stack(picks))


def _album(path: Path, names: Sequence[str], side: int, listen: Listener) -> image_readers.Album:
    return image_readers.laid(_placed(path, names), side, listen)
