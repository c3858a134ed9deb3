"""harken demo clouds: classify point clouds, which are sets of rows without an order."""

from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import cast

import numpy as np

from harken.data import catalogue
from harken.data.synthetic.clouds import clouds as generate_clouds
from harken.events import Listener, silent
from harken.experiments.train import train
from harken.inference.run import Labels, Run

from .output import DemoOutput

WIDTH, HEIGHT = 26, 11  # characters of a plot
NEW_SEED = 10**6  # not used by the catalogue entry


def clouds(*, minutes: float = 1.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on point clouds and classify new ones by the solid their points lie on."""
    fetched = catalogue.fetch("clouds", listen=listen)
    run = train("clouds", out=out, minutes=minutes, listen=listen)
    examples = {solid: points for _, points, solid in generate_clouds(40, NEW_SEED)}  # one per solid
    predictions = _classify(run, examples.values())
    labels = [f"{best['label']} ({100 * best['probability']:.0f} %)" for best, *_ in predictions]
    plots = [_plot(points) for points in examples.values()]
    lines = ["  ".join(row) for row in zip(*plots, strict=True)]
    truth = [f"true: {solid}" for solid in examples]
    lines += ["  ".join(f"{text:<{WIDTH}}" for text in texts) for texts in (labels, truth)]
    reversed_predictions = _classify(run, [points[::-1] for points in examples.values()])
    forward, backward = ([best["probability"] for best, *_ in p] for p in (predictions, reversed_predictions))
    same = np.allclose(forward, backward, atol=1e-5)
    lines += ["", f"with the points in reverse order: {'the same predictions' if same else 'other predictions'}"]
    hints = {
        f"harken classify {quote(str(run.path))} {quote(f'{fetched.path}[c0]')}": "classify a cloud",
        "harken compare clouds model.pool=mean,first,seed": "compare pooling methods",
        "harken train my-points.csv": "train on your own sets: a group column, numbers, a label",
    }
    title = "Predictions for new point clouds, seen from one side:"
    return DemoOutput(run, f"{fetched.attribution} ({fetched.license})", title=title, lines=lines, hints=hints)


def _classify(run: Run, clouds: Iterable[np.ndarray]) -> list[Labels]:
    return cast(list[Labels], run.classify([points.astype(np.float32) for points in clouds]))


def _plot(points: np.ndarray) -> list[str]:
    """The points from one side as text; nearer points are larger."""
    page = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, y, z in sorted(points.tolist(), key=lambda point: point[2]):
        column, row = (int((c / 5 + 0.5) * size) for c, size in ((x, WIDTH), (y, HEIGHT)))
        if 0 <= column < WIDTH and 0 <= row < HEIGHT:
            page[row][column] = "O" if z > 0.5 else "o" if z > -0.5 else "."
    return ["".join(row) for row in page]
