"""harken demo digits, scenes and clouds: classify and caption what can be drawn in a terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt

from harken.data import catalogue
from harken.data.synthetic.clouds import clouds as generate_clouds
from harken.data.synthetic.scenes import COLORS, NEW_PAIR
from harken.events import Listener, silent
from harken.experiments.train import train
from harken.inference.run import Run

from . import DemoOutput, credit, demo_texts

N_DIGITS, N_SCENES = 6, 3
TONES = " .:*#"  # of a digit, from dark to bright
STEP = 2  # pixels of a scene per character; a character is printed twice, as it is higher than wide
DARK = 90  # pixel values of a scene below are background
WIDTH, HEIGHT = 26, 11  # characters of a cloud
NEW_SEED = 10**6  # not used by the catalogue entry of clouds


def digits(*, minutes: float = 0.5, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on images of digits and classify held-out ones."""
    fetched = catalogue.fetch("digits", listen=listen)
    run = train(str(fetched.path), out=out, minutes=minutes, listen=listen)
    split: Any = run.recipe.load_data(run.tokenizer).splits["test"]
    images = split.subset(N_DIGITS)
    pixels = images.pixels[:, 0].numpy()
    tones = np.array(list(TONES))[pixels.astype(int) * len(TONES) // 256].repeat(2, -1)
    labels, _ = _classify(run, pixels)
    truth = [f"true: {run.tokenizer.labels[target]}" for target in images.targets]
    lines = _side_by_side([["".join(row) for row in image] for image in tones], labels, truth, gap="   ")
    texts = demo_texts("digits", run, image=quote(images.locations[0]))
    return DemoOutput(run, credit(fetched), lines=lines, **texts)


def clouds(*, minutes: float = 1.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on point clouds and classify new ones by the solid their points lie on."""
    fetched = catalogue.fetch("clouds", listen=listen)
    run = train("clouds", out=out, minutes=minutes, listen=listen)
    solids = {solid: points for _, points, solid in generate_clouds(40, NEW_SEED)}  # one of each
    inputs, truth = [points.astype(np.float32) for points in solids.values()], [f"true: {solid}" for solid in solids]
    (labels, forward), (_, backward) = (_classify(run, x) for x in (inputs, [points[::-1] for points in inputs]))
    lines = _side_by_side([_draw_cloud(points) for points in solids.values()], labels, truth, gap="  ")
    same = "the same" if np.allclose(forward, backward, atol=1e-5) else "other"
    lines += ["", f"with the points in reverse order: {same} predictions"]
    texts = demo_texts("clouds", run, cloud=quote(f"{fetched.path}[c0]"))
    return DemoOutput(run, credit(fetched), lines=lines, **texts)


def scenes(*, minutes: float = 4.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on captioned scenes and caption images with combinations of objects that are not in the training split."""
    fetched = catalogue.fetch("scenes", listen=listen)
    run = train("scenes", out=out, minutes=minutes, listen=listen)
    split: Any = run.recipe.load_data(run.tokenizer).splits["test"]
    lines = list[str]()
    for n in [n for n, new in enumerate(split.groups) if NEW_PAIR in new][:N_SCENES]:
        image = split.pixels[n].permute(1, 2, 0).numpy()
        references = "   or   ".join(split.references[n])
        lines += [*_draw_scene(image), f"caption     {run.caption(image)}", f"references  {references}", ""]
    return DemoOutput(run, credit(fetched), lines=lines, **demo_texts("scenes", run))


def _classify(run: Run, inputs: Iterable[np.ndarray]) -> tuple[list[str], list[float]]:
    """The best label of each input with its probability, as text; and the probabilities."""
    best = [labels[0] for labels in run.classify(list(inputs))]
    probabilities = [label["probability"] for label in best]
    return [f"{label['label']} ({100 * p:.0f} %)" for label, p in zip(best, probabilities, strict=True)], probabilities


def _side_by_side(pictures: Sequence[Sequence[str]], *captions: Sequence[str], gap: str) -> list[str]:
    """Pictures of equal size beside each other, with lines of captions below."""
    width = len(pictures[0][0])
    lines = [gap.join(row) for row in zip(*pictures, strict=True)]
    return lines + [gap.join(f"{text:<{width}}" for text in texts) for texts in captions]


def _draw_cloud(points: np.ndarray) -> list[str]:
    """The points from one side as text; nearer points are larger."""
    page = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, y, z in sorted(points.tolist(), key=lambda point: point[2]):
        column, row = (int((c / 5 + 0.5) * size) for c, size in ((x, WIDTH), (y, HEIGHT)))
        if 0 <= column < WIDTH and 0 <= row < HEIGHT:
            page[row][column] = "O" if z > 0.5 else "o" if z > -0.5 else "."
    return ["".join(row) for row in page]


def _draw_scene(image: npt.NDArray[np.uint8]) -> list[str]:  # H W 3
    """An image as text: the first letter of the nearest color."""
    letters, colors = np.array([name[0] for name in COLORS]), np.array([*COLORS.values()])
    small = image[::STEP, ::STEP].astype(int)
    nearest = ((small[:, :, None] - colors) ** 2).sum(-1).argmin(-1)
    characters = np.where(small.max(-1) > DARK, letters[nearest], ".").repeat(2, -1)
    return ["".join(row) for row in characters]
