"""Time and memory of a short training on small and large data: texts, labelled rows, pairs.

    python benchmarks/data_growth.py                          sizes that take about five minutes
    python benchmarks/data_growth.py text:1000 rows:1000000   1 GB of text, 1 M labelled rows (100,000 of them test)
    python benchmarks/data_growth.py pairs:1000000 --threads 1

A text of N MB, a table of N rows and N pairs are generated: sentences of words with Zipf frequencies, as in a language.
Each row is one command, `harken train FILE train.steps=3`, in an empty cache: seconds until the first step, until the
last one, until the end, and the peak memory.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

DEFAULT = ("text:8", "text:32", "rows:30000", "rows:100000", "pairs:30000", "pairs:100000")
N_WORDS, N_SENTENCES = 30_000, 20_000  # words of the language; sentences that are combined
MAX_TEST = 100_000  # test rows of a table: a fifth, at most


class Language:
    """Sentences of invented words."""

    def __init__(self, seed: int = 0) -> None:
        rng = self.rng = random.Random(seed)
        syllables = [a + b for a in "bcdfglmnprst" for b in "aeiou"]
        words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(N_WORDS)]
        weights = list(accumulate(1 / (rank + 10) for rank in range(N_WORDS)))
        self.sentences = [
            " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(3, 12))) for _ in range(N_SENTENCES)
        ]

    def text(self, n: int) -> str:
        """n sentences, of which few texts have the same."""
        return " ".join(self.rng.choices(self.sentences, k=n))


def lines(kind: str, size: int) -> Iterator[str]:
    """The lines of a file of this kind."""
    language, written = Language(), 0
    if kind == "text":
        while written < size * 10**6:
            yield (line := f"{language.text(12).capitalize()}.\n\n")
            written += len(line)
        return
    yield "text,label,split\n" if kind == "rows" else ""
    n_test = min(size // 5, MAX_TEST)
    for n in range(size):
        if kind == "pairs":
            source = language.text(2)
            yield f"{source}\t{' '.join(word[::-1] for word in source.split())}\n"
        else:
            label = language.rng.choice(("good", "bad"))
            yield f"{language.text(2)} {label},{label},{'test' if n < n_test else 'train'}\n"


def write(kind: str, size: int, folder: Path) -> Path:
    """A file, or for rows a folder with train.csv and test.csv."""
    if kind != "rows":
        path = folder / ("data.txt" if kind == "text" else "data.tsv")
        with path.open("w") as file:
            file.writelines(lines(kind, size))
        return path
    path = folder / "data"
    path.mkdir()
    with (path / "train.csv").open("w") as train, (path / "test.csv").open("w") as test:
        train.write("text,label\n")
        test.write("text,label\n")
        for line in lines(kind, size):
            row, _, split = line.rstrip("\n").rpartition(",")
            if split != "split":
                (test if split == "test" else train).write(row + "\n")
    return path


def measure(kind: str, size: int, folder: Path, threads: int, *, evaluate: bool) -> dict[str, float]:
    """Seconds and GB of one training; without its final evaluation it ends after the last step."""
    path = write(kind, size, folder)
    environment = {**os.environ, "HARKEN_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "harken", "train", str(path), "train.steps=3", f"train.threads={threads}"]
    command += ["train.precision=float32", "--out", str(folder / "run")]
    start, log = time.perf_counter(), folder / "run" / "log.jsonl"
    row: dict[str, float] = {"mb": sum(p.stat().st_size for p in [path, *path.glob("*.csv")] if p.is_file()) / 1e6}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        n_steps = log.read_text().count("\n") if log.exists() else 0
        for name, reached in (("first step", n_steps >= 1), ("last step", n_steps >= 3)):
            if reached:
                row.setdefault(name, time.perf_counter() - start)
        if "last step" in row and not evaluate:
            process.kill()
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    if process.returncode and evaluate:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    return row | {"end": time.perf_counter() - start, "gb": ended[2].ru_maxrss * 1024 / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=DEFAULT, metavar="KIND:SIZE", help="text:MB, rows:N or pairs:N")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps-only", action="store_true", help="end each training after its last step")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(f"load average at the start: {os.getloadavg()[0]:.2f}; {options.threads} threads")
    print(f"{'data':<16} {'file':>8} {'first step':>11} {'last step':>10} {'end':>8} {'memory':>8}")
    rows = []
    for name in options.sizes:
        kind, _, size = name.partition(":")
        if kind not in ("text", "rows", "pairs") or not size.isdigit():
            parser.error(f"{name}: accepted are text:MB, rows:N, pairs:N")
        with tempfile.TemporaryDirectory() as folder:
            row = measure(kind, int(size), Path(folder), options.threads, evaluate=not options.steps_only)
        rows.append({"data": name, **row})
        seconds = f"{row['first step']:10.1f}s {row['last step']:9.1f}s {row['end']:7.1f}s"
        print(f"{name:<16} {row['mb']:5,.0f} MB {seconds} {row['gb']:5.2f} GB", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
