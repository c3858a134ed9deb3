"""From Enter to the first result: time until the first training step, and until the first generated token.

    python benchmarks/first_step.py                      a text of 1 MB, with what `import torch` takes alone; 5 rounds
    python benchmarks/first_step.py --whole TEXT         the complete command twice, in an empty cache and again
    python benchmarks/first_step.py --whole TEXT --minutes 0.12 train.compile=blocks

Each measurement is a command in a process of its own, in interleaved rounds; the table has medians and the range. The
file cache is warm: every command runs once before. `train` is `harken train TEXT` with the default of four minutes,
until the first line of its log; `generate` is `harken generate RUN`, until the first character after the prompt. With
--whole each line of the output is printed with its time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = "Tom"
HARKEN = [sys.executable, "-m", "harken"]


def until_output(command: list[str], start_of_output: str, size: int) -> float:
    """Seconds until the command has printed this many characters, which start with these."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        received = process.stdout.read(size)
        seconds = time.perf_counter() - start
        process.kill()
    if not received.startswith(start_of_output.encode()) or len(received) < size:
        raise SystemExit(f"{' '.join(command)}: unexpected output {received!r}")
    return seconds


def until_first_step(text: Path, run: Path) -> float:
    """Seconds until the first line of the log."""
    start, log = time.perf_counter(), run / "log.jsonl"
    with subprocess.Popen([*HARKEN, "train", str(text), "--out", str(run)], stdout=subprocess.DEVNULL) as process:
        while not (log.exists() and log.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(f"the training ended with code {process.returncode} before its first step")
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        process.kill()
    return seconds


def measure(folder: Path, rounds: int) -> None:
    """Print the median times of the commands."""
    from harken.data.synthetic.tales import tales

    text, run = folder / "tales.txt", folder / "char"
    text.write_text("\n\n".join(tales(2000)) + "\n")
    train = [*HARKEN, "train", str(text), "train.steps=20", "report.samples=0", "--out", str(run)]
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    generate = [*HARKEN, "generate", str(run), PROMPT]
    commands: dict[str, Callable[[int], float]] = {
        "import torch": lambda n: until_output([sys.executable, "-c", "import torch; print(1, flush=True)"], "1", 1),
        "generate: first token": lambda n: until_output(generate, PROMPT, len(PROMPT) + 1),
        "train: first step": lambda n: until_first_step(text, folder / f"run-{n}"),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    print(f"load average at the start: {os.getloadavg()[0]:.2f}")
    for n in range(-1, rounds):  # the first round warms the file cache
        for name, command in commands.items():
            seconds = command(n)
            if n >= 0:
                times[name].append(seconds)
    for name, row in times.items():
        print(f"{name:<24} {statistics.median(row):6.2f} s  ({min(row):.2f} to {max(row):.2f})")
    extra = statistics.median(times["generate: first token"]) - statistics.median(times["import torch"])
    print(f"{'generate, after torch':<24} {extra:6.2f} s")


def whole(text: str, folder: Path, minutes: float, settings: list[str]) -> None:
    """Print each line of the complete command with its time, the first and the second time."""
    env = {**os.environ, "HARKEN_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
    for number in ("first", "second"):
        command = [*HARKEN, "train", text, "--minutes", str(minutes), "--out", str(folder / number), *settings]
        print(f"--- {number}: {' '.join(command[2:])}")
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(f"{time.perf_counter() - start:7.2f} s  {line}", end="", flush=True)
        print(f"{time.perf_counter() - start:7.2f} s  end, exit code {process.returncode}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="of the command of --whole")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--whole", metavar="TEXT", help="the complete command on this text, twice")
    parser.add_argument("--minutes", type=float, default=0.12, help="of training, with --whole")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.whole:
            whole(options.whole, Path(folder), options.minutes, options.settings)
        else:
            os.environ["HARKEN_CACHE"] = str(Path(folder) / "cache")
            measure(Path(folder), options.rounds)


if __name__ == "__main__":
    main()
