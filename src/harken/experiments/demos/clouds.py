"""harken demo clouds: which solid do these points lie on? A set of rows without an order."""

from pathlib import Path
from shlex import quote

import numpy as np

from harken.data import catalogue
from harken.data.synthetic.clouds import clouds as drawn
from harken.events import Listener, silent
from harken.experiments.train import train

from .translate import Shown

WIDE, HIGH = 26, 11  # letters of a picture
FRESH = 10**6  # a seed that the set of the catalogue does not have


def clouds(*, minutes: float = 1.0, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn on which solid the points of a cloud lie, and show some that were drawn anew."""
    fetched = catalogue.fetch("clouds", listen=listen)
    run = train("clouds", out=out, minutes=minutes, listen=listen)
    some = {solid: points for _, points, solid in drawn(40, FRESH)}  # one of each
    found = run.classify([points.astype(np.float32) for points in some.values()])
    said = [f"{each[0]['label']} ({100 * each[0]['probability']:.0f} %)" for each in found]
    seen = [_seen(points) for points in some.values()]
    lines = ["  ".join(row) for row in zip(*seen, strict=True)]
    lines += ["  ".join(f"{text:<{WIDE}}" for text in texts) for texts in (said, [f"is a {solid}" for solid in some])]
    other = run.classify([points[::-1].astype(np.float32) for points in some.values()])
    sure, turned = ([one[0]["probability"] for one in each] for each in (found, other))
    same = np.allclose(sure, turned, atol=1e-5)
    lines += ["", f"their points in another order: {'the same answers' if same else 'other answers'}"]
    place = quote(str(run.path))
    hints = {
        f"harken classify {place} {quote(f'{fetched.path}[c0]')}": "ask it",
        "harken compare clouds model.pool=mean,first,seed": "what stands for a set",
        "harken train my-points.csv": "your own sets: a column that names them, numbers, a label",
    }
    title = "Clouds that were drawn anew, seen from one side:"
    return Shown(run, f"{fetched.attribution} ({fetched.licence})", title=title, lines=lines, hints=hints)


def _seen(points: np.ndarray) -> list[str]:
    """The points from one side, in letters; the nearer ones are larger."""
    page = [[" "] * WIDE for _ in range(HIGH)]
    for x, y, z in sorted(points.tolist(), key=lambda point: point[2]):
        column, row = (int((c / 5 + 0.5) * size) for c, size in ((x, WIDE), (y, HIGH)))
        if 0 <= column < WIDE and 0 <= row < HIGH:
            page[row][column] = "O" if z > 0.5 else "o" if z > -0.5 else "."
    return ["".join(row) for row in page]
