"""What the lectures claim of training, as comparisons: heads, norms, residuals, batches, positions, families.

    python benchmarks/lectures.py ptb                         all, each into runs/lectures/NAME
    python benchmarks/lectures.py ptb --only heads            one of them
    python benchmarks/lectures.py ptb train.device=cuda       with a setting for all
    python benchmarks/lectures.py my.txt --quick              a few steps of tiny models: whether they run

Each is one `harken compare`, which is printed first; one that was stopped goes on when this is called again. Whatever
comes out is reported in docs/lectures.md. The settings are those of the recipe that suits the data.
"""

import argparse
import shlex
from typing import NamedTuple

from harken.cli import harken


class Claim(NamedTuple):
    """A question, what is compared to answer it, the budget of a trial, and what to change for a quick look."""

    asks: str
    compare: str
    budget: str
    quick: str = ""


CLAIMS = {
    "heads": Claim("do more heads help, at equal weights?", "model.heads=1,2,8", "train.steps=3000"),
    "norms": Claim(
        "which norm trains at which depth?",
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
    "batch": Claim(  # few examples, read often, and the last weights: whoever can overfit does
        "does a small batch regularise?",
        "train.batch=4,16,64 train.lr=1e-3,3e-3 train.optimizer=adamw train.best=false data.examples=3000",
        "train.epochs=20",
        "train.batch=2,4 data.examples=60",
    ),
    "positions": Claim(
        "trained at L: how does it do at L, 2L, 4L?",
        "model.positions=sinusoid,learned,rotary,alibi model.context=64 --eval model.context=64,128,256",
        "train.steps=3000",
    ),
    "families": Claim("what does each family reach in the same minutes?", "model.kind=rnn,lstm,gpt", "train.minutes=9"),
}
QUICK = "train.steps=4 model.size=tiny"


def words(name: str, options: argparse.Namespace) -> list[str]:
    """The command of a comparison."""
    claim, more = CLAIMS[name], options.settings
    chosen = [claim.compare, QUICK, claim.quick] if options.quick else [claim.compare, claim.budget]
    where = ["--seeds", str(options.seeds), "--out", f"{options.out}/{name}", "--resume"]
    return ["compare", options.data, *shlex.split(" ".join(chosen)), *more, *where]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a file, a folder, or a name of the catalogue")
    parser.add_argument("settings", nargs="*", help="settings for all of them, section.key=value")
    parser.add_argument("--only", choices=CLAIMS, action="append", help="one of them; may be given again")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few steps: only whether they run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/lectures")
    options = parser.parse_intermixed_args(arguments)
    for name in options.only or CLAIMS:
        command = words(name, options)
        print(f"\n{name}: {CLAIMS[name].asks}\n  harken {shlex.join(command)}\n", flush=True)
        harken.main(command, standalone_mode=False)


if __name__ == "__main__":
    main()
