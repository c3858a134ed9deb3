"""harken demo digits: what do these pictures show? Learned in seconds."""

from pathlib import Path
from shlex import quote

import numpy as np

from harken.data import catalogue
from harken.events import Listener, silent
from harken.experiments.train import train

from .translate import Shown

TONES = " .:*#"  # from dark to bright
SIDE_BY_SIDE = 6  # pictures that are shown


def digits(*, minutes: float = 0.5, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn to read handwritten digits, and show some that were not learned from."""
    fetched = catalogue.fetch("digits", listen=listen)
    run = train(str(fetched.path), out=out, minutes=minutes, listen=listen)
    part = run.recipe.open(run.tokenizer).splits["test"].some(SIDE_BY_SIDE)
    pixels = part.pixels[:, 0].numpy()
    found = run.classify(list(pixels))
    said = [f"{each[0]['label']} ({100 * each[0]['probability']:.0f} %)" for each in found]
    truth = [f"is {run.tokenizer.labels[target]}" for target in part.targets]
    rows = np.array(list(TONES))[pixels.astype(int) * len(TONES) // 256].repeat(2, -1)
    lines = ["   ".join("".join(row) for row in rows[:, n]) for n in range(rows.shape[1])]
    lines += ["   ".join(f"{text:<{rows.shape[-1]}}" for text in texts) for texts in (said, truth)]
    place = quote(str(run.path))
    hints = {
        f"harken classify {place} {quote(part.places[0])}": "ask it",
        f"harken classify {place} my.png": "a picture of your own: white on black",
        "harken train my-pictures/": "your own pictures, a folder for each label",
    }
    whose = f"{fetched.attribution} ({fetched.licence})"
    return Shown(run, whose, title="It reads digits it has not seen:", lines=lines, hints=hints)
