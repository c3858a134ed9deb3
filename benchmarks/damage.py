"""Damage the newest checkpoint of a run thousands of times; check that the previous checkpoint is used each time.

    python benchmarks/damage.py --cuts 1000 --flips 2000

Truncates a file at a random position or flips a random bit, alternating between the two files of the checkpoint. Then
tests single cases: a missing file, a file of the previous checkpoint, a file of another run. The exit status is 1 if a
damage is not detected.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import harken
from harken import run_folder
from harken.data.synthetic.tales import tales

FILES = ("state.safetensors", "manifest.json")
SETTINGS = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.batch": 4}
SETTINGS |= {"train.steps": 4, "train.checkpoint_every": 2}


def train_run(folder: Path, name: str, seed: int) -> tuple[Path, Path]:
    """Train a run; return its two checkpoints, the newest first."""
    out = harken.train(folder / "tales.txt", out=folder / name, settings=SETTINGS | {"train.seed": seed}).path
    newest, before = sorted((out / "checkpoints").iterdir(), reverse=True)
    return newest, before


def is_detected(last: Path, before: Path) -> bool:
    """Whether the damage is reported and the previous checkpoint is used."""
    facts, _, damaged = run_folder.newest_checkpoint(last.parent.parent)
    return facts is not None and facts["step"] == int(before.name[5:]) and str(last) in damaged[0]


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flip(content: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(content))
    return content[:position] + bytes([content[position] ^ 1 << rng.randrange(8)]) + content[position + 1 :]


def damage(change: Callable[[bytes, random.Random], bytes], times: int, last: Path, before: Path, seed: int) -> int:
    """Apply a random change `times` times; return the number of detected changes."""
    rng, good = random.Random(seed), {name: (last / name).read_bytes() for name in FILES}
    count = 0
    for n in range(times):
        name = FILES[n % 2]
        (last / name).write_bytes(change(good[name], rng))
        count += is_detected(last, before)
        (last / name).write_bytes(good[name])
    return count


def single_damages(last: Path, before: Path, other: Path) -> dict[str, bool]:
    """Return whether each case of missing and exchanged files is detected."""
    kinds: dict[str, Callable[[], object]] = {"both files missing": lambda: shutil.rmtree(last) or last.mkdir()}
    for name in FILES:
        kinds[f"{name} missing"] = lambda name=name: (last / name).unlink()
        kinds[f"{name} of the previous checkpoint"] = lambda name=name: shutil.copy(before / name, last / name)
        kinds[f"{name} of another run"] = lambda name=name: shutil.copy(other / name, last / name)
    kinds["both files of the previous checkpoint"] = lambda: shutil.copytree(before, last, dirs_exist_ok=True)
    kinds["both files of another run"] = lambda: shutil.copytree(other, last, dirs_exist_ok=True)
    detected = {}
    for name, apply_damage in kinds.items():
        backup = shutil.copytree(last, last.with_name("backup"))
        apply_damage()
        detected[name] = is_detected(last, before)
        shutil.rmtree(last)
        backup.rename(last)
    return detected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random positions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["HARKEN_CACHE"] = str(Path(name) / "cache")
        (Path(name) / "tales.txt").write_text("\n\n".join(tales(12)))
        (last, before), (other, _) = train_run(Path(name), "run", 0), train_run(Path(name), "other", 1)
        sizes = ", ".join(f"{file} {(last / file).stat().st_size:,} bytes" for file in FILES)
        print(f"checkpoint: {sizes}")
        kinds = single_damages(last, before, other)
        changes = {"truncations": (truncate, options.cuts), "flipped bits": (flip, options.flips)}
        counts = {what: damage(*how, last, before, options.seed) for what, how in changes.items()}
        intact = run_folder.newest_checkpoint(last.parent.parent)[2] == []
    for what, (_, times) in changes.items():
        print(f"{what}: {counts[what]:,} of {times:,} detected")
    print(f"single cases: {sum(kinds.values())} of {len(kinds)} detected ({', '.join(kinds)})")
    if not intact:
        sys.exit("the undamaged checkpoint was not used")
    sys.exit(0 if all(counts[what] == n for what, (_, n) in changes.items()) and all(kinds.values()) else 1)


if __name__ == "__main__":
    main()
