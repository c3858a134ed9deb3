"""Kill and resume runs many times; check that weights, states and losses equal those of an undisturbed run.

    python benchmarks/kills.py --kills 100

Each run is killed (SIGKILL) and resumed until it ends: at random times; directly before and after each call that
changes the disk (sync, rename, removal of an old file); and in each micro-batch of an update. It is also stopped
(SIGTERM, SIGINT) at random times. The script compares the SHA-256 of model.safetensors, of the state of the last
checkpoint (weights, optimizer, random state, recurrent state) and of the list of all logged losses. The exit status is
1 if a run differs.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(HOME / "tests"),
    str(HOME / "tests" / "training"),
]  # child processes that kill themselves at a given call

from children import Child  # noqa: E402

from harken.data.synthetic.tales import tales  # noqa: E402

STEPS = 60
MODELS = {"gpt": ["model.heads=2"], "lstm": ["model.kind=lstm"]}
SETTINGS = [
    "model.d=32",
    "model.layers=2",
    "model.context=32",
    "model.dropout=0.1",
    "train.batch=8",
    "train.micro_batch=3",
]
SETTINGS += ["train.checkpoint_every=7", "train.log_every=1", "train.eval_every=20", "train.lr=3e-3"]
SHORT = ["train.steps=12", "train.checkpoint_every=4", "train.keep_checkpoints=1"]  # for the kills at each call
KILLED = -signal.SIGKILL
STOPPED = {
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGINT: (130, -signal.SIGINT, 1),
}  # 1: during the start of Python


class Runs(NamedTuple):
    """One kind of run: the folder of its trainings, its command, and hashes and seconds of an undisturbed run."""

    home: Path
    command: list[str]
    hashes: tuple[str, str, str]
    seconds: float

    def child(self, out: Path, **death: int) -> Child:
        return Child(*self.command, "--out", out, "--resume", folder=self.home, **death)

    def end(self, out: Path) -> None:
        """Compare a finished run with the undisturbed one."""
        if hashes(out) != self.hashes:
            sys.exit(f"the runs differ: {hashes(out)} instead of {self.hashes}")
        shutil.rmtree(out)


def logged(folder: Path) -> list[dict]:
    """Return the complete lines of the log."""
    path = folder / "log.jsonl"
    return [json.loads(line) for line in (path.read_text().split("\n")[:-1] if path.exists() else [])]


def hashes(folder: Path) -> tuple[str, str, str]:
    last = max((folder / "checkpoints").glob("step-*"))
    losses = json.dumps([[line["step"], line["loss"], line.get("valid")] for line in logged(folder)])
    files = (folder / "model.safetensors").read_bytes(), (last / "state.safetensors").read_bytes()
    weights, state, losses_hash = (hashlib.sha256(raw).hexdigest() for raw in (*files, losses.encode()))
    return weights, state, losses_hash


@contextmanager
def trained(*settings: str) -> Iterator[Runs]:
    """Provide a temporary folder with two undisturbed runs: the first encodes the text, the second is timed."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "tales.txt").write_text("\n\n".join(tales(60)))
        runs = Runs(
            home, ["train", str(home / "tales.txt"), f"train.steps={STEPS}", *SETTINGS, *settings], ("", "", ""), 0.0
        )
        for name in ("first", "second"):
            begin, child = time.monotonic(), runs.child(home / name)
            if child.wait() != 0:
                sys.exit(f"the run failed: {child.text[-500:]}")
        if hashes(home / "first") != hashes(home / "second"):
            sys.exit("two undisturbed runs differ")
        yield runs._replace(hashes=hashes(home / "first"), seconds=time.monotonic() - begin)


# --- kinds of kills ---------------------------------------------------------------------------------------------------


def at_random(runs: Runs, times: int, signals: dict[int, tuple[int, ...]], rng: random.Random) -> Counter:
    """Send a signal to runs at random times until `times` of them have ended; return the counts by phase."""
    counts: Counter[str] = Counter()
    for n in count():
        if counts.total() >= times:
            return counts
        out = runs.home / f"random-{n}"
        while True:
            child, number = runs.child(out), rng.choice(list(signals))
            child.process.join(rng.uniform(0, 0.8 * runs.seconds))
            if child.process.is_alive():
                os.kill(child.process.pid, number)
            if (code := child.wait()) == 0:
                break
            if code not in signals[number]:
                sys.exit(f"the run failed ({code}): {child.text[-500:]}")
            last = logged(out)[-1:]
            epoch = f"in epoch {last[0]['epoch']} of run {n}" if last else ""
            counts[
                "after its last step" if epoch and last[0]["step"] == STEPS else epoch or "before its first step"
            ] += 1
        runs.end(out)


def describe_kills(counts: Counter) -> str:
    """Return the number of kills by phase."""
    inside = {phase: times for phase, times in counts.items() if phase.startswith("in epoch")}
    repeated = sum(times > 1 for times in inside.values())
    ends = ", ".join(f"{counts[phase]} {phase}" for phase in ("before its first step", "after its last step"))
    return f"{counts.total()}: {ends}, {sum(inside.values())} in training; {repeated} epochs with several kills"


def at_each(runs: Runs, out: Path, option: str) -> int:
    """Kill a run at its first call, resume it and kill it at its second, until it ends; return the number of kills."""
    for moment in count(1):
        child = runs.child(out, **{option: moment})
        if (code := child.wait()) != KILLED:
            break
    if code != 0:
        sys.exit(f"the run failed ({code}): {child.text[-500:]}")
    runs.end(out)
    return moment - 1


def one_by_one(runs: Runs) -> Iterator[tuple[str, int]]:
    yield "write calls of a new run", at_each(runs, runs.home / "new", "die_at")
    started = runs.home / "begun"
    runs.child(started, die_in=14).wait()  # in the 5th step, after the first checkpoint
    yield "write calls of a run with a checkpoint", at_each(runs, started, "die_at")
    done = shutil.copytree(runs.home / "first", runs.home / "done")
    for name in ("model.safetensors", "cost.json", "report.html", "harken.json"):
        (done / name).unlink()
    yield "write calls after the last step", at_each(runs, done, "die_at")
    yield "micro-batches", at_each(runs, runs.home / "micro", "die_in")


def kill(name: str, settings: list[str], kills: int, stops: int, rng: random.Random) -> int:
    """Run all kinds of kills for a model; return their number."""
    with trained(*settings) as runs:
        print(f"{name}, {STEPS} steps, weights, state and losses:  {'  '.join(runs.hashes)}", flush=True)
        counts = at_random(runs, kills, {signal.SIGKILL: (KILLED,)}, rng)
        print(f"  killed at random times {describe_kills(counts)}", flush=True)
        print(f"  stopped at random times {describe_kills(at_random(runs, stops, STOPPED, rng))}", flush=True)
    total = counts.total()
    with trained(*settings, *SHORT) as runs:
        for moments, times in one_by_one(runs):
            print(f"  killed at each of {times} {moments}", flush=True)
            total += times
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills at random times, split between the models")
    parser.add_argument(
        "--stops", type=int, default=20, help="SIGTERM and SIGINT at random times, split between the models"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times")
    options, begin = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HARKEN_CACHE"] = cache
        rng, n_models = random.Random(options.seed), len(MODELS)
        total = sum(kill(*model, options.kills // n_models, options.stops // n_models, rng) for model in MODELS.items())
    print(f"{total} kills in {time.monotonic() - begin:.0f} s; every run ended with equal bits")


if __name__ == "__main__":
    main()
