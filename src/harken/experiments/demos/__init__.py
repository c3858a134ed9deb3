"""The demos: `harken demo NAME` calls the function NAME of one of these modules and prints its output."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any, TypedDict

from harken import run_folder
from harken.data.catalogue import FetchedDataset
from harken.events import silent
from harken.inference.run import Run
from harken.training import cost as training_cost

MAX_REFERENCES = 3  # per sample
N_SHOWN = 5  # held-out texts


class DemoTexts(TypedDict):
    """The texts of a demo in texts.toml."""

    title: str
    hints: dict[str, str]  # command -> what it does


@dataclass
class DemoOutput:
    """The run, the attribution of its data, and what to print: a title, lines or samples, and further commands.

    A demo that trains several models has a table, its rows for --json, and the total cost.
    """

    run: Run
    attribution: str
    title: str
    hints: dict[str, str]
    lines: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    attention_map: Path | None = None
    table: tuple[list[str], list[list[str]]] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    cost: dict[str, Any] | None = None

    def text_lines(self) -> list[str]:
        """The lines; without lines, each sample with its output and, in parentheses, its references."""
        references = [" | ".join(sample["references"][:MAX_REFERENCES]) for sample in self.samples]
        pairs = [(s["prompt"], f"  {s['text']}   ({r})") for s, r in zip(self.samples, references, strict=True)]
        return self.lines or [line for pair in pairs for line in pair]


def all_texts() -> dict[str, DemoTexts]:
    """The texts of each demo by its name."""
    texts: dict[str, DemoTexts] = tomllib.loads(files(__package__).joinpath("texts.toml").read_text("utf-8"))
    return texts


def demo_texts(name: str, run: Run, **values: str) -> DemoTexts:
    """The title and the commands of a demo, with the run folder and these values in them."""
    values["run"] = quote(str(run.path))
    texts = all_texts()[name]
    hints = {command.format(**values): purpose for command, purpose in texts["hints"].items()}
    return {"title": texts["title"].format(**values), "hints": hints}


def labelled_samples(run: Run) -> list[dict[str, object]]:
    """Predictions for some held-out texts, spread over the test split."""
    split: Any = run.recipe.load_data(run.tokenizer).splits["test"]
    rows = split.rows[:: -(-len(split.rows) // N_SHOWN)]
    predictions = run.classify([row.texts for row in rows], listen=silent)
    return [
        {
            "prompt": " | ".join(row.texts),
            "text": f"{best['label']} {best['probability']:.0%}",
            "references": list(row.labels),
        }
        for row, (best, *_) in zip(rows, predictions, strict=True)
    ]


def credit(fetched: FetchedDataset) -> str:
    """The attribution and the license of a data set."""
    return f"{fetched.attribution} ({fetched.license})"


def total_cost(folders: Iterable[Path]) -> dict[str, object]:
    """The cost of these trainings together; an imported run has none."""
    costs: list[Any] = [run_folder.read_json(folder / "cost.json") for folder in folders]
    costs = [cost for cost in costs if "joules" in cost]
    seconds, joules, tokens, flops = (sum(c[name] for c in costs) for name in ("seconds", "joules", "tokens", "flops"))
    memory = max(c["memory_mib"] for c in costs) * 2**20
    reading = training_cost.MeterReading(seconds, joules, costs[0]["energy_source"], memory)
    return training_cost.cost(reading, tokens=tokens, flops_per_token=flops / max(1, tokens))
