"""Claims of the lectures about training, as comparisons: heads, norms, residuals, batches, positions, families.

    python benchmarks/lectures.py ptb                         all comparisons, each in runs/lectures/NAME
    python benchmarks/lectures.py ptb --only heads            one comparison
    python benchmarks/lectures.py ptb train.device=cuda       with a setting for all comparisons
    python benchmarks/lectures.py ptb --at-once 6             the trials of one seed in parallel (on a large GPU)
    python benchmarks/lectures.py my.txt --quick              a few steps of tiny models, as a test

Each comparison is one `harken compare`; its command is printed first. A stopped comparison resumes when the script is
called again. The results are in docs/results.md. The settings are those of the recipe for the data.
"""

import argparse
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from harken import run_folder
from harken.cli import harken
from harken.experiments.compare.comparison import trial_settings
from harken.experiments.compare.plan import ComparisonPlan, format_value, parse_axis, trial_name
from harken.experiments.compare.summary import Trial
from harken.suggestions import COMPARISON_FILE


class Claim(NamedTuple):
    """A question, the compared settings, the budget of a trial, and the changes for --quick."""

    question: str
    compare: str
    budget: str
    quick: str = ""


CLAIMS = {
    "heads": Claim("do more heads help, at equal weights?", "model.heads=1,2,8", "train.steps=3000"),
    "norms": Claim(
        "which normalization trains at which depth?",
        "model.norm=pre,post,none model.layers=2,4,8,16",
        "train.steps=3000",
        "model.layers=1,2",
    ),
    "residual": Claim(
        "does a deep stack train without residual connections?",
        "model.residual=true,false model.layers=2,4,8,16",
        "train.steps=3000",
        "model.layers=1,2",
    ),
    "batch": Claim(  # few examples, many epochs, last weights: allows overfitting
        "does a small batch regularize?",
        "train.batch=4,16,64 train.lr=1e-3,3e-3 train.optimizer=adamw train.keep_best=false data.examples=3000",
        "train.epochs=20",
        "train.batch=2,4 data.examples=60",
    ),
    "positions": Claim(
        "trained at length L: what is the loss at L, 2L and 4L?",
        "model.positions=sinusoid,learned,rotary,alibi model.context=64 --eval model.context=64,128,256",
        "train.steps=3000",
    ),
    "families": Claim("what does each model family reach in equal time?", "model.kind=rnn,lstm,gpt", "train.minutes=9"),
}
QUICK = "train.steps=4 model.size=tiny"


def words(name: str, options: argparse.Namespace) -> list[str]:
    """Return the arguments of a comparison."""
    claim = CLAIMS[name]
    chosen = [claim.compare, QUICK, claim.quick] if options.quick else [claim.compare, claim.budget]
    output = ["--seeds", str(options.seeds), "--out", f"{options.out}/{name}", "--resume"]
    return ["compare", options.data, *shlex.split(" ".join(chosen)), *options.settings, *output]


def train_parallel(command: list[str], seeds: int, folder: Path, at_once: int) -> None:
    """Train the trials of a comparison in parallel, seed by seed; the comparison then reads their runs."""
    what, words = str(Path(command[1]).absolute()), command[2 : command.index("--seeds")]
    settings = dict(parse_axis(word) for n, word in enumerate(words) if "--eval" not in (word, words[n - 1]))
    evals = dict(parse_axis(word) for n, word in enumerate(words) if words[n - 1] == "--eval")
    shared = {path: values[0] for path, values in settings.items() if len(values) == 1}
    plan = ComparisonPlan(
        what, {path: values for path, values in settings.items() if len(values) > 1}, shared, evals, seeds
    )
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(folder / COMPARISON_FILE, asdict(plan))
    for seed in range(seeds):

        def trial(row: dict, seed: int = seed) -> None:
            before = [Trial(row, 0, folder / trial_name(row, 0))] if seed else []
            settings = trial_settings(plan, row, before) | {"train.seed": seed}
            place = ["--out", str(folder / trial_name(row, seed)), "--json", "--resume"]
            words = [f"{path}={format_value(value)}" for path, value in settings.items()]
            subprocess.run([sys.executable, "-m", "harken", "train", what, *words, *place], capture_output=True)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(trial, plan.rows()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="file, folder, or name of the catalogue")
    parser.add_argument("settings", nargs="*", help="settings for all comparisons, section.key=value")
    parser.add_argument("--only", choices=CLAIMS, action="append", help="name of a comparison; can be repeated")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few steps, as a test")
    parser.add_argument("--at-once", type=int, default=1, help="number of trials of one seed that train in parallel")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/lectures")
    options = parser.parse_intermixed_args(arguments)
    for name in options.only or CLAIMS:
        command = words(name, options)
        print(f"\n{name}: {CLAIMS[name].question}\n  harken {shlex.join(command)}\n", flush=True)
        if options.at_once > 1:
            train_parallel(command, options.seeds, Path(options.out) / name, options.at_once)
        harken.main(command, standalone_mode=False)


if __name__ == "__main__":
    main()
