"""harken demo digits: classify images of handwritten digits, in seconds."""

from pathlib import Path
from shlex import quote
from typing import cast

import numpy as np

from harken.data import catalogue
from harken.events import Listener, silent
from harken.experiments.train import train
from harken.inference.run import Labels

from .output import DemoOutput

TONES = " .:*#"  # from dark to bright
N_IMAGES = 6


def digits(*, minutes: float = 0.5, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on images of digits and classify held-out ones."""
    fetched = catalogue.fetch("digits", listen=listen)
    run = train(str(fetched.path), out=out, minutes=minutes, listen=listen)
    images = run.recipe.load_data(run.tokenizer).splits["test"].subset(N_IMAGES)
    pixels = images.pixels[:, 0].numpy()
    predictions = cast(list[Labels], run.classify(list(pixels)))
    labels = [f"{best['label']} ({100 * best['probability']:.0f} %)" for best, *_ in predictions]
    truth = [f"true: {run.tokenizer.labels[target]}" for target in images.targets]
    rows = np.array(list(TONES))[pixels.astype(int) * len(TONES) // 256].repeat(2, -1)
    lines = ["   ".join("".join(row) for row in rows[:, n]) for n in range(rows.shape[1])]
    lines += ["   ".join(f"{text:<{rows.shape[-1]}}" for text in texts) for texts in (labels, truth)]
    folder = quote(str(run.path))
    hints = {
        f"harken classify {folder} {quote(images.locations[0])}": "classify an image",
        f"harken classify {folder} my.png": "classify your own image: white on black",
        "harken train my-pictures/": "train on your own images, one folder per label",
    }
    attribution = f"{fetched.attribution} ({fetched.license})"
    return DemoOutput(run, attribution, title="Predictions for held-out digits:", lines=lines, hints=hints)
