"""Principal component regression on a run's vectors, beside the same run fine-tuned, over 100 ... all labels.

The split is the table's own, the first n labels are those that data.examples=n learns from, how many components are
taken is chosen on the valid split, and the test split is looked at once. So both curves answer the same question.
"""

from pathlib import Path
from typing import Any

import numpy as np

from harken import run_folder as runs
from harken.analysis.principal_components import Floats, Measure, regression
from harken.data.labelled.source import Labelled, TextLabels
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.experiments.choose import choose
from harken.experiments.compare.comparison import compare
from harken.experiments.report import line_chart
from harken.experiments.report.interval_plot import alone
from harken.experiments.report.line_chart import Line, figure
from harken.experiments.train import is_free
from harken.inference.answers.embed import reader
from harken.inference.run import load

from .clustering import How, embedded, free_folder

LEAST = 100  # labels of the first point; each next has about three times as many
ALL = 10**9  # examples: so many are drawn in the order in which fewer are


def regress(
    run: str,
    table: str,
    *,
    minutes: float | None = None,
    out: str | Path | None = None,
    listen: Listener = silent,
    **how: Any,
) -> dict[str, Any]:
    """Learn a table's labels from the principal components of a run's vectors, with more and more labels; with minutes
    the run is fine-tuned for so long on the same labels. Options: pool, layer, raw, seed."""
    asked, folder = How(**how), Path(out) if out else free_folder(Path(table).stem)
    if not is_free(folder):
        raise BadInput(f"{folder}: is not empty; take another folder")
    model = load(run)
    model.must("embed")
    begun = {"from": str(run), "transfer": "finetune"}
    source = choose(table, begun, listen=listen).recipe.data
    if source.kind != "table":
        raise BadInput(f"{table}: was taken for {source.kind}; a table of texts with labels is needed")
    opened = source.model_copy(update={"examples": ALL}).open(tokenizer=reader(model.model, model.tokenizer)[1])
    words: TextLabels = opened.words
    if words.pair or words.target_type == "multilabel":
        raise BadInput(
            f"{table}: {'two texts' if words.pair else 'several labels'} in a row; one of each is regressed on"
        )
    if "valid" not in opened.splits:
        raise BadInput(f"{table}: nothing is held out to choose the components by; give more rows")
    parts: dict[str, Labelled] = opened.parts
    split = "test" if "test" in parts else "valid"
    x = {name: embedded(model, [row.texts[0] for row in part.rows], asked, listen) for name, part in parts.items()}
    y = {name: _targets(words, part) for name, part in parts.items()}
    rows = list[dict[str, Any]]()
    for n in sizes(len(x["train"])):
        fit = regression(x["train"][:n], y["train"][:n], x["valid"], _measure(y["valid"]))
        judged = _measure(y[split])(fit(x[split]))
        rows.append({"labels": n, "components": fit.many, "regression": judged, "valid": max(fit.tried)})
    metric = "pearson" if words.target_type == "number" else "accuracy"
    if minutes is not None:
        budget = {"train.minutes": minutes, "train.seed": asked.seed}
        axes = {"data.examples": [row["labels"] for row in rows]}
        made = compare(table, axes, settings=begun | budget, seeds=1, out=folder / "finetuned", listen=listen)
        for row, trained in zip(rows, made.rows, strict=True):
            row["finetuned"] = trained["metrics"].get(metric)
    facts: dict[str, Any] = {"run": str(run), "data": table, "split": split, "metric": metric, "rows": rows}
    facts["baseline"] = _measure(y[split])(np.repeat(y["train"].mean(0)[None], len(y[split]), 0))
    facts |= {"verdict": verdict(facts), "out": str(folder)}
    folder.mkdir(parents=True, exist_ok=True)
    runs.write(folder / "regression.svg", alone(facts["verdict"], [_picture(facts)]))
    runs.write_json(folder / "regression.json", facts)
    return facts


def sizes(n: int) -> list[int]:
    """100, 300, 1000, 3000 ... and all; the last of them at least a third more than the one before."""
    steps = [LEAST * times * 10**power for power in range(8) for times in (1, 3)]
    return [*(step for step in steps if 4 * step <= 3 * n), n]


def _targets(words: TextLabels, part: Labelled) -> Floats:  # N C
    """Numbers, or a column of 0 and 1 for each label."""
    y = words.targets(part.rows)
    return y.astype(np.float64) if words.target_type == "number" else np.eye(len(words.labels))[y]


def _measure(y: Floats) -> Measure:
    """The share of rows whose largest answer is at the label; of numbers, the correlation."""
    if y.shape[1] > 1:
        return lambda said: float((said.argmax(1) == y.argmax(1)).mean())

    def correlation(said: Floats) -> float:
        a, b = said[:, 0] - said.mean(), y[:, 0] - y.mean()
        long = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / long if long > 1e-12 else 0.0

    return correlation


def verdict(facts: dict[str, Any]) -> str:
    """Who needs fewer labels, in one sentence."""
    rows, metric = facts["rows"], facts["metric"]
    told = []
    for row in rows[:1] + rows[1:][-1:]:
        tuned = f", fine-tuned {figure(row['finetuned'])}" if row.get("finetuned") is not None else ""
        told.append(f"with {row['labels']:,} labels regression {figure(row['regression'])}{tuned}")
    return f"{facts['split']} {metric} {'; '.join(told)}; for free {figure(facts['baseline'])}.".capitalize()


def _picture(facts: dict[str, Any]) -> line_chart.Picture:
    names = {"regression": "principal component regression", "finetuned": "fine-tuned"}
    lines = [
        Line(said, [(row["labels"], row.get(name)) for row in facts["rows"]], tone=n)
        for n, (name, said) in enumerate(names.items(), 1)
        if any(row.get(name) is not None for row in facts["rows"])
    ]
    level = Line(f"for free: {figure(facts['baseline'])}", [(0.0, facts["baseline"])])
    title = f"{facts['split']} {facts['metric']} over labels".capitalize()
    drawn = line_chart.drawn(title, lines, unit="labels", log=True, level=level)
    assert drawn  # there is at least one point
    return drawn
