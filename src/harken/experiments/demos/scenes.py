"""harken demo scenes: caption images with combinations of objects that are not in the training split."""

from pathlib import Path
from shlex import quote

import numpy as np
import numpy.typing as npt

from harken.data import catalogue
from harken.data.synthetic.scenes import COLORS, NEW_PAIR
from harken.events import Listener, silent
from harken.experiments.train import train

from .output import DemoOutput

N_IMAGES = 3
STEP = 2  # pixels per character; a character is printed twice, as it is higher than wide
DARK = 90  # pixel values below are background


def scenes(*, minutes: float = 4.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on captioned scenes and caption images of pairs that are new."""
    fetched = catalogue.fetch("scenes", listen=listen)
    run = train("scenes", out=out, minutes=minutes, listen=listen)
    split = run.recipe.load_data(run.tokenizer).splits["test"]
    lines = list[str]()
    for n in [n for n, new in enumerate(split.groups) if NEW_PAIR in new][:N_IMAGES]:
        image = split.pixels[n].permute(1, 2, 0).numpy()
        references = "   or   ".join(split.references[n])
        lines += [*_plot(image), f"caption     {run.caption(image)}", f"references  {references}", ""]
    folder = quote(str(run.path))
    hints = {
        f"harken caption {folder} my.png": "caption your own image",
        f"harken eval {folder} scenes": "metrics by what is new: a pair or an object",
        "harken train my-folder": "train on your own images, with a table of files and captions",
    }
    title = "Captions of images with two objects that never occur together in the training split:"
    return DemoOutput(run, f"{fetched.attribution} ({fetched.license})", title=title, lines=lines, hints=hints)


def _plot(image: npt.NDArray[np.uint8]) -> list[str]:  # H W 3
    """An image as text: the first letter of the nearest color."""
    letters, colors = [name[0] for name in COLORS], np.array([*COLORS.values()])
    small = image[::STEP, ::STEP].astype(int)
    nearest = ((small[:, :, None] - colors) ** 2).sum(-1).argmin(-1)
    return ["".join(2 * (letters[n] if bright else ".") for n, bright in zip(*row, strict=True))
            for row in zip(nearest.tolist(), (small.max(-1) > DARK).tolist(), strict=True)]  # fmt: skip
