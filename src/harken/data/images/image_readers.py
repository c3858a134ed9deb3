"""Albums: pictures with labels as they are found in a folder, a table of paths, idx files or an .npz file."""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from harken.data.detect.preview import idx_shape, start_of
from harken.data.tables.read import Flaws, Place, rows_of
from harken.errors import BadInput, near_name
from harken.events import Listener, silent

from .files import SUFFIXES, Numbers, coloured, decoded, fitted, read_idx, read_npz, stacked, white_of

TABLES = (".csv", ".tsv", ".jsonl")
SIDE, WIDEST = 64, 224  # of pictures that have no common side, and the widest that is left as it is
PROBED = 50  # pictures that are asked for their side
BLOCK = 4096  # pictures worked on at once
SHOWN = 5  # pictures that cannot be read, told one by one


@dataclass(frozen=True, eq=False)
class Album:
    """Pictures with their labels and their places: files that are not opened yet, or N C H W in bytes."""

    places: list[str]
    labels: list[str]
    pixels: Tensor | None = None
    white: int = 0  # of arrays that hold no bytes: what stands for white in them

    def __len__(self) -> int:
        return len(self.places)

    def only(self, picks: Sequence[int]) -> "Album":
        pixels = None if self.pixels is None else self.pixels[list(picks)]
        return Album([self.places[n] for n in picks], [self.labels[n] for n in picks], pixels, self.white)

    def hashes(self) -> list[int]:
        """For each picture the number that decides on which side it stands."""
        assert self.pixels is not None
        raw = (x.tobytes() for x in self.pixels.numpy())
        return [int.from_bytes(hashlib.blake2b(x, digest_size=8).digest(), "big") for x in raw]


@dataclass(frozen=True)
class Reader:
    """Reads albums. A table has columns for the path and the label, an array names for the labels 0, 1, ..."""

    image: Place = None
    label: Place = None
    names: Sequence[str] = ()
    listen: Listener = silent
    white: int = 0  # where it is known already

    def read(self, path: Path) -> Album:
        """The pictures of a folder or a file."""
        if path.is_dir():
            return self._folder(path)
        if not path.is_file():
            raise BadInput(f"{path}: there is no such file or folder; check the name{near_name(path)}")
        if idx_shape(start := start_of(path)):
            return self._array(path, read_idx(path), read_idx(_labels_beside(path)))
        if path.suffix.lower() == ".npz" or start.head.startswith(b"PK\3\4"):
            return self._array(path, *read_npz(path))
        return self._table(path)

    def _folder(self, path: Path) -> Album:
        inside = sorted(p for p in path.rglob("*") if not re.search(r"/\.", str(p.relative_to(path.parent))))
        pictures = [p for p in inside if p.suffix.lower() in SUFFIXES and p.is_file()]
        if pictures:
            labels = ["" if p.parent == path else p.parent.name for p in pictures]
            return Album([str(p) for p in pictures], labels)
        arrays = readable([p for p in inside if p.is_file()])
        if not arrays:
            raise BadInput(f"{path}: there is no picture in it ({', '.join(SUFFIXES)}) and no array of pictures")
        return joined([self.read(p) for p in arrays])

    def _array(self, path: Path, x: Numbers, y: Numbers) -> Album:
        pixels, white = stacked(x, str(path), self.white), white_of(x)
        if y.shape != (len(pixels),) or y.dtype.kind not in "iuUS":
            told = f"its labels are {y.dtype} of shape {y.shape}"
            raise BadInput(f"{path}: {told}; one whole number or word for each of {len(pixels):,} pictures is accepted")
        names = dict(enumerate(self.names))
        labels = [str(names.get(label, label)) for label in y.astype(str if y.dtype.kind == "S" else y.dtype).tolist()]
        return Album([f"{path}[{n}]" for n in range(len(pixels))], labels, pixels, white)

    def _table(self, path: Path) -> Album:
        """Paths, seen from the table's folder, with a label each."""
        flaws, found = Flaws("no path with a label"), list[tuple[str, str]]()
        for line, (image, label) in rows_of(path, [("data.image", self.image), ("data.label", self.label)], flaws):
            if image.strip() and label.strip():
                found.append((str(path.parent / image.strip()), label.strip()))
            else:
                flaws(path, line, "the path or the label is empty")
        if flaws.count > len(found) or not found:
            raise BadInput(f"{path}: {flaws}; check data.image and data.label, or mend the file")
        if flaws.count:
            self.listen("notice", text=str(flaws))
        return Album([place for place, _ in found], [label for _, label in found])


def laid(album: Album, side: int, listen: Listener = silent) -> Album:
    """The pictures as squares of this side; those that cannot be read are left out, and told."""
    if album.pixels is not None:
        if album.pixels.shape[2:] == (side, side):
            return album
        made = [fitted(x.permute(1, 2, 0).numpy(), side) for x in album.pixels]
        return replace(album, pixels=torch.stack(made))
    good, bad, made = list[int](), list[str](), list[Tensor]()
    for n, place in enumerate(album.places):
        try:
            made.append(fitted(decoded(Path(place)), side))
            good.append(n)
        except BadInput as error:
            bad.append(str(error))
        if n % 100 == 0:
            listen("encode", done=n, total=len(album), unit="images")
    listen("encode", done=len(album), total=len(album), unit="images")
    if len(bad) > len(good):
        raise BadInput(f"{bad[0]}; {len(bad):,} of {len(album):,} pictures cannot be read; mend them or give others")
    if bad:
        some = "; ".join(bad[:SHOWN]) + "; ..." * (len(bad) > SHOWN)
        listen("notice", text=f"pictures left out because they cannot be read: {len(bad):,} ({some})")
    channels = max(len(x) for x in made)
    return replace(album.only(good), pixels=torch.stack([coloured(x, channels) for x in made]))


def side_of(album: Album) -> int:
    """The side that the pictures have, if some of them from everywhere are squares of one size; else SIDE."""
    if album.pixels is not None:
        shapes = {album.pixels.shape[2:]}
    else:
        some = album.places[:: math.ceil(len(album) / PROBED)]
        shapes = {torch.Size(shape[:2]) for shape in _shapes(some)}
    height, width = next(iter(shapes), (0, 0))
    return height if len(shapes) == 1 and height == width <= WIDEST else SIDE


def _shapes(places: Sequence[str]) -> Iterator[tuple[int, ...]]:
    for place in places:
        try:
            yield decoded(Path(place)).shape
        except BadInput:
            continue


def has_colours(album: Album) -> bool:
    """Whether a picture has a pixel that is not grey."""
    x = album.pixels
    return x is not None and x.shape[1] == 3 and any(bool((y != y[:, :1]).any()) for y in x.split(BLOCK))


def files_of(album: Album) -> list[Path]:
    """The files of an album, with those of the labels beside them."""
    many = album.pixels is not None
    files = dict.fromkeys(Path(place.rpartition("[")[0] if many else place) for place in album.places)
    return [f for file in files for f in (file, *_beside(file)) if f.is_file()]


def _beside(path: Path) -> list[Path]:
    """Where the labels of an idx file may lie: train-images-idx3-ubyte.gz has them in train-labels-idx1-ubyte.gz."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    bare = name.removesuffix(".gz")
    return [path.with_name(n) for n in (name, bare, f"{bare}.gz")] if name != path.name else []


def _labels_beside(path: Path) -> Path:
    for beside in _beside(path):
        if beside.is_file():
            return beside
    way = "name the pictures as in train-images-idx3-ubyte, and have train-labels-idx1-ubyte beside them"
    raise BadInput(f"{path}: the file with its labels is not there; {way}")


def readable(paths: Sequence[Path]) -> list[Path]:
    """Those that can be read as albums: not the files of labels, which are read with their pictures."""
    arrays = (p for p in paths if p.is_dir() or p.suffix in (".npz", *TABLES) or idx_shape(start_of(p)))
    return [p for p in arrays if p.is_dir() or "labels" not in p.name]


def joined(albums: Sequence[Album]) -> Album:
    """Several albums as one."""
    places, labels = ([x for album in albums for x in getattr(album, name)] for name in ("places", "labels"))
    pixels = [album.pixels for album in albums if album.pixels is not None]
    if pixels and (len(pixels) < len(albums) or len({x.shape[1:] for x in pixels}) > 1):
        raise BadInput(f"{places[0]}: files and arrays of one size cannot be mixed with others; give them apart")
    return Album(places, labels, torch.cat(pixels) if pixels else None, max(album.white for album in albums))
