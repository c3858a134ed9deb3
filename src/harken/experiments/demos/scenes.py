"""harken demo scenes: what stands where? Captions of pictures, of combinations that were never seen together."""

from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from harken.data import catalogue
from harken.data.synthetic.scenes import COLOURS, PAIR
from harken.events import Listener, silent
from harken.experiments.train import train

from .translate import Shown

SHOWN = 3  # pictures
STEP = 2  # pixels of a letter, in both directions; a letter stands twice, as it is higher than wide
DARK = 90  # a pixel below this is background


def scenes(*, minutes: float = 4.0, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn to say what stands where, and caption pictures of things that never met in training."""
    fetched = catalogue.fetch("scenes", listen=listen)
    run = train("scenes", out=out, minutes=minutes, listen=listen)
    part = run.recipe.open(run.tokenizer).splits["test"]
    lines = list[str]()
    for n in [n for n, new in enumerate(part.groups) if PAIR in new][:SHOWN]:
        picture = part.pixels[n].permute(1, 2, 0).numpy()
        either = "   or   ".join(part.references[n])
        lines += [*_seen(picture), f"it says   {run.caption(picture)}", f"it is     {either}", ""]
    place = quote(str(run.path))
    hints = {
        f"harken caption {place} my.png": "a picture of your own",
        f"harken eval {place} scenes": "by what is new: a pair of things, or a thing itself",
        "harken train my-folder": "your own pictures, with a table of files and captions",
    }
    title = "Two things that it has never seen in one picture:"
    return Shown(run, f"{fetched.attribution} ({fetched.licence})", title=title, lines=lines, hints=hints)


def _seen(picture: Any) -> list[str]:  # H W 3
    """A picture in letters: the first of each colour's name."""
    names, tones = [name[0] for name in COLOURS], np.array([*COLOURS.values()])
    few = picture[::STEP, ::STEP].astype(int)
    nearest = ((few[:, :, None] - tones) ** 2).sum(-1).argmin(-1)
    return ["".join(2 * (names[n] if bright else ".") for n, bright in zip(*row, strict=True))
            for row in zip(nearest.tolist(), (few.max(-1) > DARK).tolist(), strict=True)]  # fmt: skip
