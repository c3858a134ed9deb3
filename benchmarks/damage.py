"""Damage the newest checkpoint of a real run, thousands of times: is it detected each time, and the previous one used?

    python benchmarks/damage.py --cuts 1000 --flips 2000

Cuts a file short at a random place, or flips one random bit of it; both files of the checkpoint, by turns. Then the
damages of which there is only one kind: a file missing, swapped with the other checkpoint's, of another run. Exit
status 1 if one of them was not found.
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
    """The two checkpoints of a run, the newest first."""
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
    """The number of detected changes."""
    rng, good = random.Random(seed), {name: (last / name).read_bytes() for name in FILES}
    count = 0
    for n in range(times):
        name = FILES[n % 2]
        (last / name).write_bytes(change(good[name], rng))
        count += is_detected(last, before)
        (last / name).write_bytes(good[name])
    return count


def single_damages(last: Path, before: Path, other: Path) -> dict[str, bool]:
    """The damages of which there is one kind, and whether they are found."""
    kinds: dict[str, Callable[[], object]] = {"gone": lambda: shutil.rmtree(last) or last.mkdir()}
    for name in FILES:
        kinds[f"{name} missing"] = lambda name=name: (last / name).unlink()
        kinds[f"{name} of the checkpoint before"] = lambda name=name: shutil.copy(before / name, last / name)
        kinds[f"{name} of another run"] = lambda name=name: shutil.copy(other / name, last / name)
    kinds["both files of the checkpoint before"] = lambda: shutil.copytree(before, last, dirs_exist_ok=True)
    kinds["both files of another run"] = lambda: shutil.copytree(other, last, dirs_exist_ok=True)
    seen = {}
    for name, act in kinds.items():
        aside = shutil.copytree(last, last.with_name("aside"))
        act()
        seen[name] = is_detected(last, before)
        shutil.rmtree(last)
        aside.rename(last)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the places")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["HARKEN_CACHE"] = str(Path(name) / "cache")
        (Path(name) / "tales.txt").write_text("\n\n".join(tales(12)))
        (last, before), (other, _) = train_run(Path(name), "run", 0), train_run(Path(name), "other", 1)
        sizes = ", ".join(f"{file} {(last / file).stat().st_size:,} bytes" for file in FILES)
        print(f"a checkpoint of {sizes}")
        kinds = single_damages(last, before, other)
        changes = {"cuts": (truncate, options.cuts), "flipped bits": (flip, options.flips)}
        counts = {what: damage(*how, last, before, options.seed) for what, how in changes.items()}
        intact = run_folder.newest_checkpoint(last.parent.parent)[2] == []
    for what, (_, times) in changes.items():
        print(f"{what}: {counts[what]:,} of {times:,} found")
    print(f"others: {sum(kinds.values())} of {len(kinds)} found ({', '.join(kinds)})")
    if not intact:
        sys.exit("the undamaged checkpoint was not taken")
    sys.exit(0 if all(counts[what] == n for what, (_, n) in changes.items()) and all(kinds.values()) else 1)


if __name__ == "__main__":
    main()
