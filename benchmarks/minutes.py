"""How well `minutes` are kept: the measured time of small trainings next to the planned one.

    python benchmarks/minutes.py                             graphs, pairs, text and labels, 0.2 and 1 minute each
    python benchmarks/minutes.py --minutes 0.5 graph pairs   two kinds of data
    python benchmarks/minutes.py --cpu-clock                 CPU time in place of time: for a machine with other work

The time is that of the training alone, as train.minutes defines it: without set-up, with the validation passes. Use an
idle machine: the steps are planned once, before the first one, so other work changes the ratio. Target: 0.9 to 1.1. The
exit code is 1 if a row misses it.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import harken
from harken.data.synthetic.tales import tales

N_NODES, N_CLASSES, DEGREE = 2000, 4, 5
LOW, HIGH = 0.9, 1.1


def graph(folder: Path) -> str:
    """A stochastic block model: most edges join nodes of one class; the features are the class and noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, N_CLASSES, N_NODES)
    ends = rng.integers(0, N_NODES, (2, 4 * N_NODES * DEGREE))
    likely = rng.random(ends.shape[1]) < np.where(y[ends[0]] == y[ends[1]], 0.6, 0.05)
    x = np.eye(N_CLASSES)[y] + rng.normal(0, 1, (N_NODES, N_CLASSES))
    np.savez(folder / "graph.npz", edges=ends[:, likely].T, x=x.astype(np.float32), y=y)
    return str(folder / "graph.npz")


def text(folder: Path) -> str:
    (folder / "tales.txt").write_text("\n\n".join(tales(2000)) + "\n")
    return str(folder / "tales.txt")


# name of a row: the data, and settings
ROWS: dict[str, tuple[Callable[[Path], str], dict[str, object]]] = {
    "graph": (graph, {}),
    "graph-gat": (graph, {"model.kind": "gat"}),
    "graph-seeds": (graph, {"train.seeds": 5}),
    "pairs": (lambda folder: "phrases", {"data.examples": 5000}),
    "text": (text, {}),
    "labels": (lambda folder: "opinions", {"data.examples": 2000}),
    "sets": (lambda folder: "clouds", {}),
}


def measure(name: str, minutes: float, threads: int) -> dict[str, object]:
    make, settings = ROWS[name]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        fixed = {"train.threads": threads, "report.samples": 0}
        run = harken.train(make(folder), minutes=minutes, settings=fixed | settings, out=folder / "run", quiet=True)
        cost = json.loads((folder / "run" / "cost.json").read_text())
        planned, steps = 60 * minutes, run.recipe.train.steps
    return {
        "row": name,
        "minutes": minutes,
        "steps": steps,
        "seconds": cost["seconds"],
        "predicted": cost["predicted"]["seconds"],
        "ratio": cost["seconds"] / planned,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--minutes", type=float, nargs="+", default=[0.2, 1.0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-clock", action="store_true", help="measure CPU time; use one thread")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"unknown row {', '.join(sorted(unknown))}; accepted: {', '.join(ROWS)}")
    if options.cpu_clock:
        time.perf_counter = time.process_time
    rows = []
    print(f"{'row':<12} {'minutes':>8} {'steps':>8} {'seconds':>9} {'predicted':>10} {'actual/planned':>15}")
    for name in options.rows or ROWS:
        for minutes in options.minutes * options.repeats:
            rows.append(row := measure(name, minutes, options.threads))
            cells = f"{row['steps']:8,} {row['seconds']:9.1f} {row['predicted']:10.1f} {row['ratio']:15.3f}"
            missed = "" if LOW <= row["ratio"] <= HIGH else "  missed"
            print(f"{name:<12} {minutes:8g} {cells}{missed}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1) + "\n")
    sys.exit(0 if all(LOW <= row["ratio"] <= HIGH for row in rows) else 1)


if __name__ == "__main__":
    main()
