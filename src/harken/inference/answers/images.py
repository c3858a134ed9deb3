"""What pictures show, by a run that was trained on pictures."""

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from harken.core import watching
from harken.data.images.files import SUFFIXES, coloured, decoded, fitted, read_idx, read_npz, stacked
from harken.data.images.source import Lens
from harken.errors import BadInput, near_name
from harken.events import Listener, silent
from harken.inference.trace import Trace
from harken.tasks.image import answers

from .classify import said

if TYPE_CHECKING:
    from harken.inference.run import Run


def label_pictures(run: "Run", pictures: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """For each picture, a file, one of an array (x.npz[17]) or bytes (H W, H W 3), its labels, the likeliest first."""
    if not len(pictures):
        return []
    lens = cast(Lens, run.tokenizer)
    return said(lens, answers(run.model, torch.stack([_seen(picture, lens) for picture in pictures]), lens))


@torch.inference_mode()
def trace_picture(run: "Run", picture: Any) -> Trace:
    """What each patch of a picture looked at: CLS, where there is one, then the patches by row and column, from 0."""
    lens = cast(Lens, run.tokenizer)
    x = _seen(picture, lens)[None].to(run.device)
    with watching(run.model) as views:
        run.model(lens.numbers(x))
    wide = math.ceil(lens.image_size / run.recipe.model.cut(lens.image_size))
    first = ["CLS"] * (run.recipe.model.pool == "first")
    return Trace([*first, *(f"{n // wide},{n % wide}" for n in range(wide**2))], {"self": list(views.values())})


def _seen(picture: Any, lens: Lens) -> Tensor:  # C S S
    return coloured(fitted(pixels_of(picture, lens.white), lens.image_size), len(lens.mean))


def pixels_of(picture: Any, white: int = 0) -> Any:  # H W C
    if isinstance(picture, str | Path):
        place = re.fullmatch(r"(.+)\[(\d+)\]", str(picture))
        if place and Path(place[1]).is_file():
            return _one(Path(place[1]), int(place[2]), white)
        return decoded(Path(picture))
    pixels = np.asarray(picture)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (1,), (3,)):
        raise BadInput(f"an array of {pixels.dtype}, shape {pixels.shape}: bytes H W or H W 3 are accepted, or a path")
    return pixels.reshape(*pixels.shape[:2], -1)


def _one(path: Path, n: int, white: int) -> Any:  # H W C
    """The picture with this number in an array of pictures."""
    state = path.stat()
    x = _array(path, white, state.st_mtime_ns, state.st_size)
    if n >= len(x):
        raise BadInput(f"{path}[{n}]: there are {len(x):,} pictures in it, counted from 0")
    return x[n].permute(1, 2, 0).numpy()


@lru_cache(maxsize=1)
def _array(path: Path, white: int, *state: int) -> Tensor:  # N C H W
    """All pictures of a file, read once while its state (its time and size) stays."""
    x = read_npz(path)[0] if path.suffix == ".npz" else read_idx(path)
    return stacked(x, str(path), white)


def listed(run: "Run", given: Sequence[str], listen: Listener = silent) -> tuple[list[str], list[str]]:
    """The pictures that these names mean, and their names, which are the same: a folder means all that lie in it.

    Of a folder, those that cannot be read are left out and told.
    """
    found = list[str]()
    for name in given:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not inside:
                raise BadInput(f"{name}: there is no picture in it ({', '.join(SUFFIXES)})")
            found += _readable(map(str, inside), listen)
        elif path.is_file() or re.fullmatch(r".+\[\d+\]", name):
            found.append(name)
        else:
            raise BadInput(f"{name}: there is no such picture; check the name{near_name(name)}")
    return found, found


def _readable(names: Iterable[str], listen: Listener) -> list[str]:
    good, why = list[str](), None
    for name in names:
        try:
            pixels_of(name)
            good.append(name)
        except BadInput as error:
            why = error
            listen("notice", text=f"left out: {error}")
    if why and not good:
        raise why
    return good
