"""Which greatest common divisors a model learns, by the distribution of operands and outcomes (ten minutes on a GPU).

    python benchmarks/gcd.py                                  all rows in parallel, one process each, in runs/gcd-*
    python benchmarks/gcd.py --rows both --minutes 25         one row, longer
    python benchmarks/gcd.py --minutes 5 model.d=512 model.layers=4

The trainings share the GPU. Each is timed while the others run, and its number of steps fills its minutes at this
speed. A curriculum covers four fifths of the steps. For each row the script prints the number of learned GCDs up to 100
(at least 19 of 20 pairs correct, for pairs whose GCD is uniform from 1 to 100), the accuracy on the natural
distribution of GCDs, and examples per second. It writes gcd.json and gcd.svg. Batch size and learning rate were
selected with a small model on a CPU (docs/log.md).
"""

import argparse
import json
import math
import multiprocessing
import random
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

CURRICULUM_FRACTION = 0.8  # of the steps
PLANNED = 10**6  # placeholder, replaced by a number of epochs when the number of steps is known
ROWS: dict[str, dict[str, Any]] = {  # the best bases as published, and two orders of the same examples
    "uniform": {"data.operands": "uniform", "data.base": 420},
    "log-uniform": {"data.operands": "log-uniform", "data.base": 2401},
    "both": {"data.operands": "log-uniform", "data.outcomes": "log-uniform", "data.base": 1000},
    "curriculum": {"data.operands": "uniform", "data.base": 420, "data.curriculum": PLANNED},
    "shuffled": {
        "data.operands": "uniform",
        "data.base": 420,
        "data.curriculum": PLANNED,
        "data.shuffle_curriculum": True,
    },
}
PUBLISHED = {"uniform": 38, "log-uniform": 73, "both": 91}  # Charton 2023, arXiv 2308.15594
SETTINGS: dict[str, Any] = {
    "model.d": 256,
    "model.layers": 2,
    "model.encoder_layers": 4,
    "model.heads": 8,
    "model.d_ff": 1024,
    "train.batch": 512,
    "train.optimizer": "muon",
    "train.lr": 3e-3,
    "train.keep_best": False,
    "data.examples": 300_000,
    "data.valid": 2000,
    "data.test": 20_000,
}
TIMED = 200  # steps for the time measurement
LEARNED = 0.95  # accuracy per gcd, as in task.learned_threshold
SAMPLING_SECONDS = 2.0  # duration of the sampling benchmark


def seconds_per_step(settings: dict[str, Any], gate: Any) -> float:
    """Return the seconds per step while all other rows train."""
    from harken import machine
    from harken.events import silent
    from harken.experiments.choose import choose
    from harken.experiments.train import prepare

    _, trainer = prepare(choose("maths:gcd", settings).recipe, silent)
    trainer.model.train()
    steps = TIMED if trainer.update_step.deferred else 3
    for _ in range(8):
        trainer.update(10**9)
    gate.wait()
    start = time.perf_counter()
    for _ in range(steps):
        trainer.update(10**9, read=False)
    machine.synchronize(trainer.device)
    return (time.perf_counter() - start) / steps


def train(name: str, settings: dict[str, Any], minutes: float, home: Path, gate: Any) -> None:
    """Train one row with the steps that fit into its minutes; write its values next to the run."""
    import harken

    steps = max(1, int(minutes * 60 / seconds_per_step(settings, gate)))
    if settings.get("data.curriculum") == PLANNED:
        epochs = steps * settings["train.batch"] / settings["data.examples"]
        settings = settings | {"data.curriculum": max(1, round(CURRICULUM_FRACTION * epochs))}
    run = harken.train("maths:gcd", out=home / f"gcd-{name}", settings={**settings, "train.steps": steps})
    seen = run.facts["steps"] * run.recipe.train.batch
    row = {
        "row": name,
        "base": run.recipe.data.base,
        "published": PUBLISHED.get(name),
        "curriculum": run.recipe.data.curriculum,
        **run.metrics["test"],
        "gcds": run.facts["protocol"]["test"]["gcds_learned"],
        "predictable": run.facts["protocol"]["test"]["predictable_from_base"],
        "examples": seen,
        "examples_per_second": round(seen / run.facts["seconds"]),
        "seconds": round(run.facts["seconds"]),
        "weights": run.parameters,
        "by_gcd": [[part["position"], part["accuracy"]] for part in run.facts["parts"]["test"].values()],
        "machine": run.facts["machine"],
    }
    (home / f"gcd-{name}.json").write_text(json.dumps(row, default=str))


def samples_per_second(settings: dict[str, Any]) -> dict[str, int]:
    """Return the speed of sampling examples: in batches on the device of the model, and one by one in Python."""
    import torch

    from harken import machine
    from harken.experiments.choose import choose

    recipe = choose("maths:gcd", settings).recipe
    batches = recipe.load_data().batches(recipe.train.batch, 0)
    batches.device = machine.pick_device(recipe.train.device)
    batches.batch(0, 0)
    start, step = time.perf_counter(), 0
    while time.perf_counter() - start < SAMPLING_SECONDS:
        batches.batch(1, step)
        step += 1
    machine.synchronize(torch.device(batches.device))
    fast = step * recipe.train.batch / (time.perf_counter() - start)
    rng, base, start, n = random.Random(0), recipe.data.base, time.perf_counter(), 0
    while time.perf_counter() - start < SAMPLING_SECONDS:
        a, b = (int(math.exp(rng.random() * math.log(10**6))) for _ in range(2))
        for number in (a, b, math.gcd(a, b)):
            while number:
                number //= base
        n += 1
    return {"sampled_in_batches": round(fast), "sampled_one_by_one": round(n / (time.perf_counter() - start))}


def plot(rows: list[dict[str, Any]]) -> str:
    from harken.experiments.report.charts import Line, draw_chart, standalone_svg

    lines = []
    for n, row in enumerate(rows, 1):
        learned = accumulate(accuracy >= LEARNED for _, accuracy in row["by_gcd"])
        points = [(divisor, float(n_learned)) for (divisor, _), n_learned in zip(row["by_gcd"], learned, strict=True)]
        lines.append(Line(f"{row['row']}, base {row['base']}", points, color=n))
    title = "Learned gcds by the distribution of the examples"
    chart = draw_chart("Number of learned gcds", lines, note="95 % of the test pairs correct", unit="gcd")
    return standalone_svg(title, [chart] if chart else [])


def main() -> None:
    from harken.recipe import parse_override

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--minutes", type=float, default=6.5)
    parser.add_argument("--out", default="runs", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.rows.split(",")
    row_settings = {name: SETTINGS | ROWS[name] | dict(map(parse_override, options.settings)) for name in names}
    speed = samples_per_second(row_settings[names[-1]])
    spawn = multiprocessing.get_context("spawn")
    gate = spawn.Barrier(len(names))
    jobs = [spawn.Process(target=train, args=(n, row_settings[n], options.minutes, options.out, gate)) for n in names]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    files = [options.out / f"gcd-{name}.json" for name in names]
    rows = [json.loads(file.read_text()) for file in files if file.exists()]
    (options.out / "gcd.json").write_text(json.dumps({"rows": rows, **speed}, indent=1))
    (options.out / "gcd.svg").write_text(plot(rows))
    for row in rows:
        print(json.dumps({name: value for name, value in row.items() if name not in ("by_gcd", "machine")}))
    print(json.dumps(speed))


if __name__ == "__main__":
    main()
