"""Pictures of the lectures, drawn by the program: `make pictures` writes them to docs/pictures.

    python scripts/pictures.py                    all of them
    python scripts/pictures.py bigbird --out DIR  one of them, to another folder

The same program writes the same bytes. Plots of comparisons and demos come from the commands in docs/lectures.md.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from harken.analysis.landscape import landscape
from harken.core import Sinusoid
from harken.core.structure import Structure, bigbird, global_tokens, random_links, window
from harken.experiments.report.landscape_plot import landscape_panel
from harken.experiments.report.panels import Axis, Cells, Curve, Dots, Mark, Panel, panels_svg
from shows.blocks import cloud_layers, n_clusters
from shows.landscape import BATCH, STEPS, N, descend, saddle_network, saddle_objective, trained_landscape

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LENGTH = 24  # tokens of the BigBird patterns
LAYERS = (0, 1, 2, 6)  # of the smoothed point cloud
POSITIONS = 32


def points(x: Tensor) -> list[tuple[float, float]]:  # N 2
    return [(float(a), float(b)) for a, b in x]


# --- positions --------------------------------------------------------------------------------------------------------


def position_geometry() -> str:
    """Adding sin and cos of the position moves a word on circles, one for each frequency."""
    PE = Sinusoid().add(torch.zeros(1, POSITIONS, 16, dtype=torch.float64), torch.arange(POSITIONS))[0]
    words = {"cat": (-1.6, 1.3), "dog": (1.5, -1.2)}
    moved: list[Mark] = []
    for color, (word, center) in enumerate(words.items(), 1):
        steps = points(torch.tensor(center) + PE[:7, :2])
        moved += [Curve(steps, color, 0.8), Dots(steps, color, names=[str(n) for n in range(7)])]
        moved.append(Dots([center], color, radius=5, names=[word]))
    turns: list[Mark] = []
    for color, pair in enumerate((0, 1, 2, 3), 1):
        angles = torch.atan2(PE[:, 2 * pair], PE[:, 2 * pair + 1]) % (2 * math.pi)
        turns.append(Dots(points(torch.stack([torch.arange(POSITIONS), angles], 1)), color, radius=2.5))
    products = PE @ PE.mT / 8
    panels = [
        Panel("Word + position", "features 1 and 2, positions 0 to 6", _axis("x₁", 3), _axis("x₂", 3), moved),
        Panel(
            "Angles of the first four pairs",
            "pairs 1 to 4: blue, orange, green, violet",
            Axis("position", 0, POSITIONS),
            Axis("angle", 0, 2 * math.pi),
            turns,
        ),
        Panel(
            "Encoding of each position",
            "white -1, blue 1",
            Axis("feature", 0, 16),
            Axis("position", 0, POSITIONS),
            [Cells(((PE + 1) / 2).numpy())],
            down=True,
        ),
        Panel(
            "Inner products",
            "they depend on the distance only",
            Axis("position", 0, POSITIONS),
            Axis("position", 0, POSITIONS),
            [Cells(((products - products.min()) / (1 - products.min())).numpy())],
            down=True,
        ),
    ]
    return panels_svg("Geometry of the sinusoidal position encodings", panels)


def _axis(name: str, limit: float) -> Axis:
    return Axis(name, -limit, limit)


# --- sparse attention -------------------------------------------------------------------------------------------------


def bigbird_patterns() -> str:
    """Random links, window, global tokens and their union, as matrices of queries and keys."""
    patterns: dict[str, Structure] = {
        "Random earlier keys": random_links(LENGTH, 2),
        "Window attention": window(1),
        "Global attention": global_tokens(2),
        "BigBird": bigbird(LENGTH, w=1, g=2, r=2),
    }
    panels = []
    for name, structure in patterns.items():
        mask = structure.mask(1, LENGTH, LENGTH)[0, 0]
        note = f"{int(mask.sum())} of {mask.numel()} pairs"
        key, query = Axis("key", 0, LENGTH), Axis("query", 0, LENGTH)
        panels.append(Panel(name, note, key, query, [Cells(mask.double().numpy())], down=True))
    return panels_svg("Sparse attention of BigBird: a query attends to the blue keys", panels)


# --- point cloud ------------------------------------------------------------------------------------------------------


def point_cloud() -> str:
    """Attention with a Gaussian similarity averages nearby points: clusters, then groups of clusters."""
    panels = []
    for layer in LAYERS:
        x = cloud_layers()[layer]
        marks = [Dots(points(group), color) for color, group in enumerate(x.unflatten(0, (3, -1)), 1)]
        note = f"{n_clusters(x)} clusters of {len(x)} points"
        panels.append(Panel(f"Layer {layer}", note, Axis("x₁", -1, 14), Axis("x₂", -1, 14), marks))
    return panels_svg("Each attention layer averages nearby points", panels)


# --- losses -----------------------------------------------------------------------------------------------------------


def saddle() -> str:
    """SGD that leaves a saddle point, and the loss along the directions of the largest and smallest curvature."""
    surface = landscape(saddle_objective(saddle_network()), grid=31, radius=2.0, directions="extreme")
    noisy, exact = descend(BATCH), descend(N)
    curves = [Curve(list(enumerate(run.losses)), color) for run, color in ((exact, 1), (noisy, 2))]
    names = Dots(
        [(70, exact.losses[-1]), (70, 0.12)], radius=0, names=["all examples: no noise", f"batches of {BATCH}"]
    )
    steps = Panel(
        "Loss of SGD from a saddle point",
        f"smallest eigenvalue {surface.smallest_eigenvalue:.2f}",
        Axis("step", 0, STEPS),
        Axis("loss", 0, 1),
        [*curves, names],
    )
    path = [surface.project(weights) for weights in noisy.weights]
    plane = landscape_panel(surface, "Plane of the extreme curvatures", path=path, name="saddle")
    return panels_svg("A saddle point of a network of two layers", [steps, plane])


def loss_landscape() -> str:
    """The loss of a small trained language model along the directions of the largest curvatures."""
    surface = trained_landscape(21)
    panel = landscape_panel(surface, f"Language model with {surface.n_weights:,} weights")
    return panels_svg("Loss around trained weights", [panel])


DRAWINGS: dict[str, Callable[[], str]] = {
    "position-geometry": position_geometry,
    "bigbird": bigbird_patterns,
    "point-cloud": point_cloud,
    "saddle": saddle,
    "loss-landscape": loss_landscape,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DRAWINGS)}; default: all")
    parser.add_argument("--out", type=Path, default=PICTURES)
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(DRAWINGS):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}; there are {', '.join(DRAWINGS)}")
    torch.set_num_threads(1)  # sums in a fixed order
    for name in options.names or DRAWINGS:
        path = options.out / f"{name}.svg"
        path.write_text(DRAWINGS[name](), "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
