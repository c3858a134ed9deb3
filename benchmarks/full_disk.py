"""Fill a small disk during a training, free it again and resume: are the saved files intact, is the error one line, and
are the final bits equal to those of an undisturbed run?

    python benchmarks/full_disk.py --levels 10

The disk is a tmpfs, so the script needs the right to mount one. The exit status is 1 if a level fails.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import harken
from harken import run_folder
from harken.data.synthetic.tales import tales
from harken.errors import HarkenError

SETTINGS = {"model.d": 32, "model.layers": 2, "model.heads": 2, "model.context": 16, "model.dropout": 0.1}
SETTINGS |= {"train.batch": 4, "train.steps": 12, "train.eval_every": 4, "train.log_every": 1}
SETTINGS |= {"train.checkpoint_every": 2, "train.keep_checkpoints": 1}
LAST = ("model.safetensors", "cost.json", "report.html", "harken.json")
MOMENTS = {"after step 5": ("step", 5), "after the last checkpoint": ("checkpoint", 12)}  # when the disk fills up
MIB = 16


class Outcome(NamedTuple):
    message: str  # the error line; empty if there was enough space
    step: int  # of the newest checkpoint after the error
    damaged: list[str]
    left: list[str]  # temporary files that remain
    equal: bool  # after the resumed training


@contextmanager
def small_disk(mib: int = MIB) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", name], check=True, capture_output=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


def text(folder: Path) -> Path:
    (folder / "tales.txt").write_text("\n\n".join(tales(12)))
    return folder / "tales.txt"


def fill(ballast: Path, room: int) -> None:
    """Fill the disk until only `room` bytes are free."""
    with ballast.open("wb") as file:
        file.write(b"\0" * max(0, shutil.disk_usage(ballast.parent).free - room))


def hashes(folder: Path) -> list[str]:
    """Return the SHA-256 of the weights, of the last state and of all losses."""
    files = folder / "model.safetensors", max((folder / "checkpoints").glob("step-*")) / "state.safetensors"
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    losses = [(line["step"], line["loss"], line.get("valid")) for line in lines]
    return [hashlib.sha256(raw).hexdigest() for raw in (*(f.read_bytes() for f in files), repr(losses).encode())]


def rooms(undisturbed: Path, levels: int) -> list[tuple[str, int]]:
    """Return moments and free bytes that are too few for a checkpoint, or for the final files."""
    checkpoint = sum(p.stat().st_size for p in max((undisturbed / "checkpoints").glob("step-*")).iterdir())
    needed = checkpoint, sum((undisturbed / name).stat().st_size for name in LAST)
    half = [(levels + 1) // 2, levels // 2]
    return [(m, size * n // h) for m, size, h in zip(MOMENTS, needed, half, strict=True) for n in range(h)]


def survive(disk: Path, data: Path, level: tuple[str, int], expected: list[str]) -> Outcome:
    """Train until the disk is full at the given moment, free the disk, resume, and compare the hashes."""
    out, ballast, message = disk / "run", disk / "ballast", ""
    moment, room = MOMENTS[level[0]], level[1]

    def listen(event: str, /, **facts: Any) -> None:
        if (event, facts.get("step")) == moment:
            fill(ballast, room)

    try:
        harken.train(data, out=out, settings=SETTINGS, listen=listen)
    except HarkenError as error:
        message = str(error)
    facts, _, damaged = run_folder.newest_checkpoint(out)
    left = [p.name for p in out.rglob(".tmp-*")]
    ballast.unlink()
    harken.train(out, resume=True)
    equal = hashes(out) == expected
    shutil.rmtree(out)
    return Outcome(message, facts["step"] if facts else 0, damaged, left, equal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=10)
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name, small_disk() as disk:
        os.environ["HARKEN_CACHE"] = str(Path(name) / "cache")
        data = text(Path(name))
        undisturbed = harken.train(data, out=Path(name) / "undisturbed", settings=SETTINGS).path
        for level in rooms(undisturbed, options.levels):
            outcome = survive(disk, data, level, hashes(undisturbed))
            expected_message = (
                f"{disk / 'run'}: the disk is full; saved files are intact; free space, then resume with: "
            )
            good = not outcome.damaged and not outcome.left and outcome.equal
            good &= outcome.message.startswith(expected_message) and "\n" not in outcome.message
            bad += not good
            bits = "equal bits" if outcome.equal else "DIFFERENT BITS"
            summary = f"checkpoint of step {outcome.step} intact; resumed to {bits}"
            print(f"{level[0]}, {level[1] >> 10:>4} KiB free: {'one line' if good else repr(outcome)}; {summary}")
    print(f"{options.levels - bad} of {options.levels} levels passed with equal bits")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
