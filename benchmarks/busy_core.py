"""Training speed next to a program that keeps one core busy: with the threads of harken, and with those of PyTorch.

    python benchmarks/busy_core.py                     the recipe `char`, 3 rounds, about two minutes
    python benchmarks/busy_core.py --second            also two trainings at the same time
    python benchmarks/busy_core.py --data my.csv model.layers=2

"harken" binds each thread to a core and, where the machine is busy at the start, may choose fewer threads. "plain" does
neither: OMP_PROC_BIND=false and OMP_NUM_THREADS are set. Rows: the idle machine; a busy core from the middle of the
training on; a busy core from the start, with the number of steps that --minutes plans. The rounds are interleaved; the
table has medians and the range of tokens/s, without validation. Use an idle machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"  # ends with this script
SETTINGS = {"report.samples": 0, "train.minutes": 0.5, "train.eval_every": 1_000_000}
STATES = ("idle", "later", "start", "second")
LABELS = {
    "idle": "idle machine",
    "later": "busy core, later",
    "start": "busy core from the start",
    "second": "two trainings, each",
}


@contextmanager
def busy_core() -> Iterator[None]:
    """Another program that computes all the time."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as program:
        try:
            yield
        finally:
            program.kill()


class Stopwatch:
    """A listener that measures the speed of a training in windows of the same length."""

    def __init__(self, seconds: float, states: list[str]) -> None:
        self.seconds, self.states = seconds, states
        self.row: dict[str, float] = {}
        self.windows = self._windows()
        next(self.windows)

    def __call__(self, event: str, /, **values: Any) -> None:
        if event == "start":
            recipe = values["run"].recipe
            self.row |= {"steps": values["steps"], "threads": recipe.train.threads}
            self.tokens = recipe.train.batch * recipe.model.context
        elif event == "step":
            next(self.windows)

    def _windows(self) -> Iterator[None]:
        """Advanced once after each step; ends the process after the last window."""
        for _ in range(3):  # the first steps allocate memory
            yield
        for state in self.states:
            program = subprocess.Popen([sys.executable, "-c", BUSY]) if state == "later" else None
            yield  # the first step next to the program
            begin = time.perf_counter()
            for n in count(1):
                yield
                seconds = time.perf_counter() - begin
                self.row[state] = n * self.tokens / seconds
                if seconds > self.seconds:
                    break
            if program:
                program.kill()
        self.finish()

    def finish(self) -> None:
        """Print the row and end the process; a training of few steps ends before its window does."""
        print(json.dumps(self.row), flush=True)
        os._exit(0)


def train(options: argparse.Namespace) -> None:
    """One training in this process; prints its speed in each state."""
    import harken

    given = dict(text.split("=", 1) for text in options.settings)
    with tempfile.TemporaryDirectory() as folder:
        listen = Stopwatch(options.seconds, options.states)
        harken.train(options.data, out=Path(folder) / "run", settings={**SETTINGS, **given}, listen=listen)
        listen.finish()


def measure(options: argparse.Namespace, states: list[str], mode: str) -> list[dict[str, float]]:
    """The rows of one training, or of two at the same time."""
    cores = os.cpu_count() or 1
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "OMP_PROC_BIND")}
    environment |= {"OMP_NUM_THREADS": str(cores), "OMP_PROC_BIND": "false"} if mode == "plain" else {}
    command = [sys.executable, __file__, "--data", str(options.data), "--seconds", str(options.seconds)]
    command += [*options.settings, "--states", *states]
    trainings = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(1 + (states == ["second"]))
    ]
    return [json.loads(training.communicate()[0]) for training in trainings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--data", help="data to train on (default: generated tales)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--second", action="store_true", help="two trainings at the same time, too")
    parser.add_argument("--states", nargs="+", choices=STATES, help=argparse.SUPPRESS)  # one training, in this process
    options = parser.parse_args()
    if options.states:
        return train(options)
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            from harken.data.synthetic.tales import tales

            options.data = str(Path(folder) / "tales.txt")
            Path(options.data).write_text("\n\n".join(tales(2000)) + "\n")
        rows: list[tuple[str, dict[str, float]]] = []
        print(f"load average at the start: {os.getloadavg()[0]:.2f}")
        for _ in range(options.rounds):
            for mode in ("harken", "plain"):
                rows += [(mode, row) for row in measure(options, ["idle", "later"], mode)]
                with busy_core():
                    rows += [(mode, row) for row in measure(options, ["start"], mode)]
                if options.second:
                    rows += [(mode, row) for row in measure(options, ["second"], mode)]
    print_table(rows)


def print_table(rows: list[tuple[str, dict[str, float]]]) -> None:
    idle = {mode: statistics.median(r["idle"] for m, r in rows if m == mode and "idle" in r) for mode in dict(rows)}
    print(f"{'state':<26} {'threads of':<10} {'tokens/s (range)':>28} {'of idle plain':>14}  threads, planned steps")
    for state in STATES:
        for mode in idle:
            own = [r for m, r in rows if m == mode and state in r]
            if not own:
                continue  # not measured, or a training of too few steps
            speeds, planned = sorted(r[state] for r in own), sorted(r["steps"] for r in own)
            middle = statistics.median(speeds)
            cells = f"{middle:10,.0f} ({speeds[0]:,.0f} to {speeds[-1]:,.0f})"
            threads = "/".join(f"{n:g}" for n in sorted({r["threads"] for r in own}))
            plan = f"{threads}, {planned[0]:,} to {planned[-1]:,}"
            print(f"{LABELS[state]:<26} {mode:<10} {cells:>28} {middle / idle['plain']:14.2f}  {plan}")


if __name__ == "__main__":
    main()
