"""The value of pretrained weights on labeled data sets: scratch, frozen and fine-tuned from a run, one comparison each.

    python benchmarks/transfer.py runs/minilm shared/data --at-once 3
    python benchmarks/transfer.py runs/minilm shared/data --sets conll,squad --transfer scratch,finetune --seeds 1
    python benchmarks/transfer.py runs/minilm shared/data --sets sms data.examples=64 train.steps=4 --seeds 1

Each data set is one `harken compare` in its own process, --at-once of them in parallel. A part of the training file
selects the weights. The reported metrics are those of the evaluation file of CoNLL and SQuAD (for SMS: of a held-out
tenth), evaluated once. Settings on the command line apply to all data sets. --out contains the values as JSON and as a
table. The tasks of GLUE are in glue.py.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join
from typing import Any

from harken import recipe as recipes
from harken.experiments.compare.summary import format_interval


@dataclass(frozen=True)
class Set:
    """Files of a labeled data set (several are linked into one folder), its metrics and its settings."""

    train: tuple[str, ...]
    test: str | None
    metrics: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    max_length: int = 128  # tokens; at most the context of the run


SETS = {
    "sms": Set(("sms-spam/sms.tsv",), None, ("f1", "accuracy"),
               {"train.compile": "no", "task.metric": "f1", "data.test": 0.1}),  # few updates: compilation takes longer
    "conll": Set(("conll2003/eng.train",), "conll2003/eng.testa", ("f1",), max_length=256),
    "squad": Set(("squad/amazon_reviews_v1.0.json", "squad/nyt_v1.0.json", "squad/reddit_v1.0.json"),
                 "squad/squaddev_v1.1.json", ("f1", "em"), {"train.epochs": 3}, 384),
}  # fmt: skip
SHARED = {"train.epochs": 5, "train.batch": 32, "data.valid": 0.05}
BUDGETS = ("train.epochs", "train.steps", "train.minutes", "train.tokens")


def command(name: str, options: argparse.Namespace, overrides: list[str]) -> list[str]:
    chosen = SETS[name]
    data = [options.data / file for file in chosen.train]
    if len(data) > 1:  # harken trains on all files of a folder
        folder = options.out / "files" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in data:
            (folder / file.name).unlink(missing_ok=True)
            (folder / file.name).symlink_to(file.absolute())
        data = [folder]
    max_length = min(chosen.max_length, recipes.read(options.run / "recipe.toml")["model.context"])
    settings = SHARED | chosen.settings | {"data.max_length": max_length}
    settings |= {"data.overlap": max_length // 3} if name == "squad" else {}
    if any(word.startswith(BUDGETS) for word in overrides):
        settings = {path: value for path, value in settings.items() if path not in BUDGETS}
    parsed = dict(word.split("=", 1) for word in overrides)
    words = [f"{path}={value}" for path, value in (settings | parsed).items()]
    words += [f"data.test={options.data / chosen.test}"] if chosen.test else []
    compare_options = ["--transfer", options.transfer, "--seeds", str(options.seeds), "--json"]
    output = ["--out", str(options.out / name), "--resume"]
    return [
        sys.executable,
        "-m",
        "harken",
        "compare",
        str(data[0]),
        f"from={options.run}",
        *words,
        *compare_options,
        *output,
    ]


def run_comparison(name: str, options: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Run one comparison; its log is written to --out."""
    arguments = command(name, options, overrides)
    with (options.out / f"{name}.log").open("w") as log:
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=log, text=True)
    if done.returncode:
        last_line = (options.out / f"{name}.log").read_text().strip().splitlines()[-1:]
        return {"set": name, "error": last_line, "command": join(arguments[1:])}
    comparison = json.loads(done.stdout)
    rows = [
        {
            "name": row["name"].removeprefix("transfer=") if row["settings"] else options.transfer,
            **row["splits"].get("test", {}),
            **{key: row[key] for key in ("seconds", "steps", "failed")},
            "seeds": len(row["seeds"]),
        }
        for row in comparison["rows"]
    ]
    rows += [
        {"name": f"{baseline}, baseline", "metrics": m}
        for baseline, m in comparison["baselines"].get("test", {}).items()
    ]
    examples = next((row["protocol"].get("test") for row in comparison["rows"] if row["protocol"]), {})
    summary = {
        "set": name,
        "metrics": SETS[name].metrics,
        "test": examples,
        "rows": rows,
        "command": join(arguments[1:]),
    }
    print(json.dumps(summary), flush=True)
    return summary


def table(comparisons: list[dict[str, Any]]) -> str:
    """Return a table with a line per data set and metric, and a column per kind of transfer."""
    names = list(dict.fromkeys(row["name"] for comparison in comparisons for row in comparison.get("rows", ())))
    lines = [["set", "metric", *names], ["---"] * (len(names) + 2)]
    for comparison in comparisons:
        if "error" in comparison:
            lines.append([comparison["set"], " ".join(comparison["error"])])
            continue
        rows = {row["name"]: row for row in comparison["rows"]}
        for metric in comparison["metrics"]:
            cells = [rows.get(name, {}) for name in names]
            values = [
                format_interval(row.get("metrics", {}).get(metric), row.get("interval", {}).get(metric))
                for row in cells
            ]
            lines.append([comparison["set"], metric, *values])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run with the initial weights")
    parser.add_argument("data", type=Path, help="folder with the subfolders sms-spam, conll2003 and squad")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--transfer", default="scratch,frozen,finetune")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"))
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.sets.split(",")
    with ThreadPoolExecutor(options.at_once) as pool:
        comparisons = list(pool.map(lambda name: run_comparison(name, options, options.settings), names))
    (options.out / "transfer.json").write_text(json.dumps(comparisons, indent=1))
    (options.out / "transfer.md").write_text(table(comparisons))
    print(table(comparisons))


if __name__ == "__main__":
    main()
