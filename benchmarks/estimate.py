"""Compare the estimates of `harken check` and `harken train` with the measured cost, for every recipe.

    python benchmarks/estimate.py                       each recipe on tales and on a text of 10,000 words
    python benchmarks/estimate.py --steps 300 char lstm two recipes, more steps

Use an idle machine: a time estimate is valid only under constant load. Targets: memory within a factor of 1.5, seconds
and kWh within 20 %. The exit code is 1 if a row misses a target.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harken.data.synthetic.tales import tales
from harken.recipe import shipped_names

LIMITS = {"seconds": 1.2, "kwh": 1.2, "memory_mib": 1.5}
WORDS = 10_000


def texts(folder: Path) -> dict[str, Path]:
    """Write two texts: tales with a vocabulary of a few hundred words, and 10,000 words with a Zipf distribution."""
    word_ids = np.random.default_rng(0).choice(WORDS, 300_000, p=(p := 1 / np.arange(3, WORDS + 3)) / p.sum())
    lines = [" ".join(f"w{n}" for n in line) for line in word_ids.reshape(-1, 20)]
    contents = {"tales": "\n\n".join(tales(2000)), "words": "\n".join(lines)}
    for name, text in contents.items():
        (folder / f"{name}.txt").write_text(text + "\n")
    return {name: folder / f"{name}.txt" for name in contents}


def harken(*words: object) -> dict:
    done = subprocess.run([sys.executable, "-m", "harken", *map(str, words), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def row(recipe: str, text: Path, steps: int, folder: Path) -> bool:
    """Check, train and print one row; return whether all estimates meet their target."""
    tokens = ["data.tokenizer=word"] if text.stem == "words" and recipe in ("rnn", "gru", "lstm") else []
    arguments = [recipe, f"data.path={text}", f"train.steps={steps}", *tokens]
    estimate = harken("check", *arguments)["estimate"]
    cost = harken("train", *arguments, "--out", folder / f"{recipe}-{text.stem}")["cost"]
    checked = {**estimate, "seconds": 60 * estimate["minutes"]}
    good, cells = True, []
    for name, limit in LIMITS.items():
        ratios = [predicted[name] / cost[name] for predicted in (checked, cost["predicted"])]
        good &= all(1 / limit <= ratio <= limit for ratio in ratios)
        cells.append(f"{cost[name]:10.4g}  {ratios[0]:5.2f} {ratios[1]:5.2f}")
    print(f"{recipe:<8}{text.stem:<7}{'  '.join(cells)}  {'' if good else 'missed'}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=shipped_names())
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    print("measured values, and the estimates of check and train relative to them")
    print(f"{'recipe':<8}{'text':<7}" + "  ".join(f"{name:>10}  check train" for name in LIMITS))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HARKEN_CACHE"] = f"{folder}/cache"
        paths = texts(Path(folder))
        good = [row(name, text, options.steps, Path(folder)) for name in options.recipes for text in paths.values()]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
