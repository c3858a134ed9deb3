"""Train once undisturbed, and many times killed and resumed: are all weights, states and losses equal, bit for bit?

    python benchmarks/kills.py --kills 100

Each run is killed (-9) and resumed until it comes to its end: at random moments of its whole life; right before and
right after each call that changes the disk (the sync and the renaming of a file, the removal of an old one); in each
micro-batch of an update; and it is asked to stop (SIGTERM, SIGINT) at random moments. Compared are the SHA-256 of
model.safetensors, of the last checkpoint's state (weights, optimiser, random state, what a model carries on) and of the
list of all logged losses. Exit status 1 if a run differs.
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
sys.path[:0] = [str(HOME / "tests"), str(HOME / "tests" / "training")]  # whose children die when they are told

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
SHORT = ["train.steps=12", "train.checkpoint_every=4", "train.keep_checkpoints=1"]  # where each moment has its turn
KILLED = -signal.SIGKILL
STOPPED = {signal.SIGTERM: (143, -signal.SIGTERM), signal.SIGINT: (130, -signal.SIGINT, 1)}  # 1: while Python starts


class Runs(NamedTuple):
    """A kind of run, the folder of all its trainings, and what one ends with that nobody disturbs, after how long."""

    home: Path
    command: list[str]
    hashes: tuple[str, str, str]
    seconds: float

    def child(self, out: Path, **death: int) -> Child:
        return Child(*self.command, "--out", out, "--resume", folder=self.home, **death)

    def end(self, out: Path) -> None:
        """The run has come to its end: it must be the unbroken one."""
        if hashes(out) != self.hashes:
            sys.exit(f"the runs differ: {hashes(out)} instead of {self.hashes}")
        shutil.rmtree(out)


def logged(folder: Path) -> list[dict]:
    """The lines of the log that are whole."""
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
    """In a folder for a while, after two trainings in peace: the first reads the text, the second says how long it
    takes."""
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
            sys.exit("two runs that nobody disturbed differ")
        yield runs._replace(hashes=hashes(home / "first"), seconds=time.monotonic() - begin)


# --- kinds of kills ---------------------------------------------------------------------------------------------------


def at_random(runs: Runs, times: int, signals: dict[int, tuple[int, ...]], rng: random.Random) -> Counter:
    """End runs by a signal, at moments nobody chose, until there were so many; when that was."""
    seen: Counter[str] = Counter()
    for n in count():
        if seen.total() >= times:
            return seen
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
            seen["after its last step" if epoch and last[0]["step"] == STEPS else epoch or "before its first step"] += 1
        runs.end(out)


def describe_kills(seen: Counter) -> str:
    """The number of kills, by time."""
    inside = {when: times for when, times in seen.items() if when.startswith("in epoch")}
    again = sum(times > 1 for times in inside.values())
    ends = ", ".join(f"{seen[when]} {when}" for when in ("before its first step", "after its last step"))
    return f"{seen.total()}: {ends}, {sum(inside.values())} on its way, of these several in the same of {again} epochs"


def at_each(runs: Runs, out: Path, option: str) -> int:
    """Kill a run at its first moment, resume it and kill it at its second, ... until it ends; how often."""
    for moment in count(1):
        child = runs.child(out, **{option: moment})
        if (code := child.wait()) != KILLED:
            break
    if code != 0:
        sys.exit(f"the run failed ({code}): {child.text[-500:]}")
    runs.end(out)
    return moment - 1


def one_by_one(runs: Runs) -> Iterator[tuple[str, int]]:
    yield "moments of writing, from the beginning", at_each(runs, runs.home / "new", "die_at")
    started = runs.home / "begun"
    runs.child(started, die_in=14).wait()  # in the 5th step, behind the first checkpoint
    yield "moments of writing, with a checkpoint there", at_each(runs, started, "die_at")
    done = shutil.copytree(runs.home / "first", runs.home / "done")
    for name in ("model.safetensors", "cost.json", "report.html", "harken.json"):
        (done / name).unlink()
    yield "moments of writing, after the last step", at_each(runs, done, "die_at")
    yield "micro-batches", at_each(runs, runs.home / "micro", "die_in")


def kill(name: str, settings: list[str], kills: int, stops: int, rng: random.Random) -> int:
    """Kill runs of a model in every way; how often."""
    with trained(*settings) as runs:
        print(f"{name}, {STEPS} steps, weights, state and losses:  {'  '.join(runs.hashes)}", flush=True)
        seen = at_random(runs, kills, {signal.SIGKILL: (KILLED,)}, rng)
        print(f"  killed at random moments {describe_kills(seen)}", flush=True)
        print(f"  asked to stop at random moments {describe_kills(at_random(runs, stops, STOPPED, rng))}", flush=True)
    total = seen.total()
    with trained(*settings, *SHORT) as runs:
        for moments, times in one_by_one(runs):
            print(f"  killed at each of {times} {moments}", flush=True)
            total += times
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="at random moments, of each model half")
    parser.add_argument(
        "--stops", type=int, default=20, help="SIGTERM and SIGINT at random moments, of each model half"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options, begin = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HARKEN_CACHE"] = cache
        rng, half = random.Random(options.seed), len(MODELS)
        total = sum(kill(*model, options.kills // half, options.stops // half, rng) for model in MODELS.items())
    print(f"{total} kills in {time.monotonic() - begin:.0f} s; every run ended equal, bit for bit")


if __name__ == "__main__":
    main()
