"""harken demo vocabulary: do students use a science word rightly? A recurrent language model next to a Transformer.

Both are pretrained on the same textbook, with about equal numbers of weights and equal numbers of tokens. Then each is
fine-tuned on labelled sentences, frozen under a new head, and trained from scratch. Two kinds of held-out sentences
are evaluated: with words that have labelled sentences in training, and with words that are in the textbook alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from harken.data import catalogue
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.experiments.compare.comparison import Comparison, compare
from harken.experiments.compare.summary import format_interval, mean_and_interval
from harken.experiments.folders import is_available, next_available
from harken.experiments.report.formatting import format_duration, format_number, format_quantity
from harken.experiments.train import train
from harken.inference.run import Run, load
from harken.recipe import SettingsDict

from . import DemoOutput, credit, demo_texts, labelled_samples, total_cost

MINUTES = 7.0  # of the amounts below, on two idle cores
TOKENS, STEPS = 1_200_000, 1000  # of the pretraining; of each labelled training
N_SEEDS = 3
BODIES: Mapping[str, SettingsDict] = {  # 154 thousand weights each
    "lstm": {"model.kind": "lstm", "model.d": 96, "train.lr": 0.012},
    "gpt": {"model.kind": "gpt", "model.d": 64, "model.layers": 2},
}
TRANSFERS = {"finetune": "fine-tuned", "frozen": "frozen under a new head", "scratch": "from scratch"}


def vocabulary(*, minutes: float = MINUTES, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Pretrain both language models, then compare them on labelled sentences. `minutes` scales every training."""
    if out and not is_available(Path(out)):
        raise BadInput(f"{out}: is not empty; choose another folder")
    home, scale = Path(out) if out else next_available(Path("runs/vocabulary")), minutes / MINUTES
    uses, steps = catalogue.fetch("vocabulary", listen=listen), max(2, round(STEPS * scale))
    bodies = {kind: _pretrained(home / kind, kind, max(1, round(TOKENS * scale)), listen) for kind in BODIES}
    folders = [str(body.path) for body in bodies.values()]
    axes: dict[str, list[object]] = {"from": [*folders], "transfer": [*TRANSFERS]}
    settings = {"train.steps": steps}
    comparison = compare("vocabulary", axes, settings=settings, seeds=N_SEEDS, out=home / "compare", listen=listen)
    trials = [Path(run) for row in comparison.rows for run in row["runs"]]
    best, new_words = _best_run(trials), uses.path / "new-words.tsv"
    names = {"body": folders[-1], "bodies": ",".join(folders), "new_words": str(new_words), "best": best.path.name}
    texts = demo_texts("vocabulary", best, steps=str(steps), **{name: quote(text) for name, text in names.items()})
    return DemoOutput(
        best,
        credit(uses),
        title=_summary(bodies, comparison) + f"\n\n  {texts['title']}",
        hints=texts["hints"],
        samples=labelled_samples(best),
        table=_table(comparison, new_words, [body.recipe.model.kind for body in bodies.values()]),
        rows=[dict(row) for row in comparison.rows],
        cost=total_cost([*map(Path, folders), *trials]),
    )


def _pretrained(folder: Path, kind: str, tokens: int, listen: Listener) -> Run:
    """A language model of this kind, trained on the textbook."""
    listen("notice", text=f"{kind}: pretraining on {tokens:,} tokens of the textbook")
    return train("vocabulary-text", out=folder, settings={**BODIES[kind], "train.tokens": tokens}, listen=listen)


def _best_run(trials: Sequence[Path]) -> Run:
    """The trial with the best validation accuracy."""
    return max(map(load, trials), key=lambda run: run.metrics["valid"]["accuracy"])


def _summary(bodies: Mapping[str, Run], comparison: Comparison) -> str:
    """What both language models have in common, and the verdict."""
    weights = ", ".join(f"{kind} {run.facts['parameters']:,}" for kind, run in bodies.items())
    perplexities = ", ".join(f"{kind} {run.metrics['valid']['perplexity']:.2f}" for kind, run in bodies.items())
    lines = [f"Weights: {weights}. Perplexity on the textbook: {perplexities}.", comparison.verdict]
    return "\n  ".join([*lines, f"Page: {comparison.path / 'report.html'}"])


def _table(comparison: Comparison, new_words: Path, kinds: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The accuracy of the baselines and of each row on both kinds of held-out sentences, mean over the seeds."""
    lines = []
    for name, metrics in comparison.facts["baselines"]["test"].items():
        lines.append([f"baseline: {name}", format_number(metrics["accuracy"], 3), *[""] * 4])
    for row in comparison.rows:
        test: Any = row["splits"]["test"]
        scores = [load(run).evaluate(data=new_words).metrics["accuracy"] for run in row["runs"]]
        accuracies = (test["metrics"]["accuracy"], test["interval"]["accuracy"]), mean_and_interval(scores)
        cost = format_duration(row["seconds"]), format_quantity(row["kwh"], "energy")
        name = f"{row['model']}, {TRANSFERS[str(row['settings']['transfer'])]}"
        lines.append([name, *(format_interval(*each) for each in accuracies), f"{row['parameters']:,}", *cost])
    head = f"{N_SEEDS} seeds, held-out sentences"
    return [head, "known words", "new words", "parameters", "time", "energy"], lines
