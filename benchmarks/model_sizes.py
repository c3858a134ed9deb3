"""Speed and memory of a training over the size of the model and of the batch, as one picture.

    python benchmarks/model_sizes.py                                   GPTs of 10 M to 350 M weights, about 3 minutes
    python benchmarks/model_sizes.py --out docs/pictures/model-sizes.svg --json sizes.json
    python benchmarks/model_sizes.py --batches 8 32 128 --context 1024 --seconds 4       on a GPU
    python benchmarks/model_sizes.py --draw sizes.json                 the picture of measurements

Each size is a process of its own, which measures its batches from the smallest to the largest: the median step with
AdamW after two warm-up steps, the peak memory, and the memory that harken predicts before the training. A batch whose
steps would take longer than --limit seconds, or which does not fit, is left out. Use an idle machine.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from harken.experiments.report.charts import Chart, Line, draw_chart, standalone_svg

SHAPES = ((320, 6), (512, 8), (768, 12), (1088, 24))  # d, layers: 10, 29, 91, 350 M weights
VOCAB, FIRST = 8190, 0x4E00  # characters of the text, from this code point on
WARM_UP = 2  # steps before the timed ones
OUT = Path("model-sizes.svg")


def write_text(path: Path, n: int) -> None:
    """Random characters: the size of the vocabulary is that of a small tokenizer of byte pairs."""
    rng = random.Random(0)
    path.write_text(
        "".join(map(chr, range(FIRST, FIRST + VOCAB))) + "".join(chr(FIRST + rng.randrange(VOCAB)) for _ in range(n))
    )


def measure(options: argparse.Namespace, d: int, layers: int) -> None:
    """Print one JSON line for each batch size."""
    from harken import machine
    from harken.events import silent
    from harken.experiments.choose import choose
    from harken.experiments.train import prepare
    from harken.training import cost
    from harken.training.resource_estimate import estimate_memory

    model = {"model.d": d, "model.layers": layers, "model.heads": d // 64, "model.context": options.context}
    training = {"train.optimizer": "adamw", "train.steps": 1000, "train.device": options.device, "data.valid": 0.0}
    previous = 0.0
    for batch in options.batches:
        if previous * batch / max(1, options.batches[options.batches.index(batch) - 1]) > options.limit:
            break
        settings = {**model, **training, "data.tokenizer": "char", "train.batch": batch}
        if options.precision:
            settings["train.precision"] = options.precision
        _, trainer = prepare(choose(options.text, settings, listen=silent).recipe, silent)
        predicted = estimate_memory(trainer)
        times: list[float] = []
        with trainer.bound_threads():
            while len(times) < WARM_UP + 1 or sum(times[WARM_UP:]) < options.seconds:
                machine.synchronize(trainer.device)
                start = time.perf_counter()
                trainer.update(1000)
                machine.synchronize(trainer.device)
                times.append(time.perf_counter() - start)
        previous = median(times[WARM_UP:])
        row = {"weights": sum(p.numel() for p in trainer.model.parameters()), "batch": batch, "seconds": previous}
        row |= {"tokens_per_second": batch * options.context / previous, "predicted_gb": predicted / 1e9}
        print(json.dumps(row | {"gb": cost.peak_memory(trainer.device) / 1e9}), flush=True)
        del trainer


def draw(rows: list[dict[str, float]], machine: str) -> str:
    """Speed, and measured and predicted memory, over the number of weights."""

    def chart(title: str, note: str, key: str) -> Chart | None:
        lines = []
        for color, batch in enumerate(sorted({row["batch"] for row in rows}), 1):
            points = [(row["weights"] / 1e6, row[key]) for row in rows if row["batch"] == batch]
            lines.append(Line(f"batch {batch:g}", sorted(points), color=color))
        return draw_chart(title, lines, note=note, unit="million weights:", log=True)

    charts = [
        chart("Speed", "tokens per second", "tokens_per_second"),
        chart("Memory", "peak, GB", "gb"),
        chart("Predicted memory", "before the training, GB", "predicted_gb"),
    ]
    return standalone_svg(f"Training over the size of the model: {machine}", [chart for chart in charts if chart])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed steps, at least one")
    parser.add_argument("--limit", type=float, default=20.0, help="longest step in seconds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", help="default: that of harken on this machine")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw these measurements, measure nothing")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)  # d, layers: measure in this process
    parser.add_argument("--text", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batches.sort()
    if options.one:
        return measure(options, *options.one)
    if options.draw:
        measured = json.loads(options.draw.read_text())
    else:
        measured = {"machine": describe(), "rows": run(options)}
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    options.out.write_text(draw(measured["rows"], measured["machine"]))
    print(options.out)


def describe() -> str:
    from harken import machine

    facts = machine.describe()
    return str(facts["gpu"] or f"{facts['cpu']}, {facts['cores']} cores")


def run(options: argparse.Namespace) -> list[dict[str, float]]:
    """The rows of all sizes, printed as a table."""
    print(f"load average at the start: {os.getloadavg()[0]:.2f}")
    print(f"{'weights':>9} {'batch':>6} {'step':>9} {'tokens/s':>10} {'memory':>9} {'predicted':>10}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_text(text, 300_000)
        common = ["--text", str(text), "--batches", *map(str, options.batches), "--device", options.device]
        common += ["--context", str(options.context), "--seconds", str(options.seconds), "--limit", str(options.limit)]
        common += ["--precision", options.precision] if options.precision else []
        env = {**os.environ, "HARKEN_CACHE": str(Path(folder) / "cache")}
        for d, layers in SHAPES:
            command = [sys.executable, __file__, "--one", str(d), str(layers), *common]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    rows.append(row := json.loads(line))
                    size = f"{row['weights'] / 1e6:7.1f} M {row['batch']:6d} {row['seconds']:7.3f} s"
                    memory = f"{row['gb']:6.2f} GB {row['predicted_gb']:7.2f} GB"
                    print(f"{size} {row['tokens_per_second']:10,.0f} {memory}", flush=True)
    return rows


if __name__ == "__main__":
    main()
