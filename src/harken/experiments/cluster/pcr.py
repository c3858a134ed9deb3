"""Principal component regression on a run's embeddings, compared with fine-tuning, over the number of labels.

Both use the split of the table and the first n labels, as data.examples=n does. The number of components is chosen on
the validation split; the test split is evaluated once.
"""

from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from harken import run_folder
from harken.analysis.principal_components import Floats, Metric, component_regression
from harken.data.labelled.examples import LabelledTexts
from harken.data.labelled.source import TextLabelProcessor
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.experiments.choose import choose
from harken.experiments.compare.comparison import compare
from harken.experiments.folders import is_available
from harken.experiments.report.charts import Line, draw_chart, standalone_svg
from harken.experiments.report.formatting import format_number
from harken.files import write_atomic
from harken.inference.run import Run, load
from harken.recipe import SettingsDict

from .clustering import default_folder
from .points import DEFAULTS, ClusterOptions, embed_points

MIN_LABELS = 100  # of the first point; each further point has about three times as many
ALL = 10**9  # examples: all of them, in the order in which fewer are drawn


class RegressionFacts(TypedDict):
    """The content of regression.json."""

    run: str
    data: str
    split: str
    metric: str
    rows: list[dict[str, Any]]  # labels, components, regression, valid and finetuned
    baseline: float
    verdict: str
    out: str


def principal_component_regression(
    run: str,
    table: str,
    *,
    finetune_minutes: float | None = None,
    out: str | Path | None = None,
    listen: Listener = silent,
    **options: Unpack[ClusterOptions],
) -> RegressionFacts:
    """Regress the labels of a table on the principal components of a run's embeddings, with more and more labels.

    With finetune_minutes, the run is also fine-tuned on each number of labels. Options: pool, layer, overflow, raw,
    seed.
    """
    embedding, folder = DEFAULTS | options, Path(out) if out else default_folder(Path(table).stem)
    if not is_available(folder):
        raise BadInput(f"{folder}: is not empty; choose another folder")
    model = load(run)
    model.require("embed")
    start: SettingsDict = {"from": str(run), "transfer": "finetune"}
    if embedding["regress"]:
        start["data.label"] = embedding["regress"]
    processor, parts = _load_table(table, model, start, listen)
    split = "test" if "test" in parts else "valid"
    x = {name: embed_points(model, [r.texts[0] for r in part.rows], embedding, listen) for name, part in parts.items()}
    y = {name: _targets(processor, part) for name, part in parts.items()}
    rows = list[dict[str, Any]]()
    for n in label_counts(len(x["train"])):
        fit = component_regression(x["train"][:n], y["train"][:n], x["valid"], _metric(y["valid"]))
        score = _metric(y[split])(fit(x[split]))
        rows.append({"labels": n, "components": fit.n_components, "regression": score, "valid": max(fit.scores)})
    metric = "pearson" if processor.target_type == "number" else "accuracy"
    if finetune_minutes is not None:
        settings = start | {"train.minutes": finetune_minutes, "train.seed": embedding["seed"]}
        axes = {"data.examples": [row["labels"] for row in rows]}
        comparison = compare(table, axes, settings=settings, seeds=1, out=folder / "finetuned", listen=listen)
        for row, trained in zip(rows, comparison.rows, strict=True):
            row["finetuned"] = trained["metrics"].get(metric)
    mean = _metric(y[split])(np.repeat(y["train"].mean(0)[None], len(y[split]), 0))
    facts = RegressionFacts(
        run=run, data=table, split=split, metric=metric, rows=rows, baseline=mean, verdict="", out=str(folder)
    )
    facts["verdict"] = _verdict(facts)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "regression.svg", _svg(facts))
    run_folder.write_json(folder / "regression.json", facts)
    return facts


def _load_table(
    table: str, model: Run, start: SettingsDict, listen: Listener
) -> tuple[TextLabelProcessor, dict[str, LabelledTexts]]:
    """The processor and the splits of a table with one text and one label per row."""
    source = choose(table, start, listen=listen).recipe.data
    if source.kind != "table":
        raise BadInput(f"{table}: detected as {source.kind}; expected a table of texts with labels")
    tokenizer = model.text_tokenizer
    dataset = source.model_copy(update={"examples": ALL}).load_data(tokenizer=tokenizer)
    processor: TextLabelProcessor = dataset.processor
    if processor.n_texts > 1 or processor.target_type == "multilabel":
        problem = "several texts" if processor.n_texts > 1 else "several labels"
        raise BadInput(f"{table}: {problem} per row; regression needs one text and one label")
    if "valid" not in dataset.splits:
        raise BadInput(f"{table}: there is no validation split to choose the components on; add rows")
    return processor, dataset.parts


def label_counts(n: int) -> list[int]:
    """100, 300, 1000, 3000 ... and n; n is at least a third more than the count before it."""
    counts = [MIN_LABELS * factor * 10**power for power in range(8) for factor in (1, 3)]
    return [*(count for count in counts if 4 * count <= 3 * n), n]


def _targets(processor: TextLabelProcessor, part: LabelledTexts) -> Floats:  # N C
    """Numbers, or one-hot labels."""
    y = processor.targets(part.rows)
    return y.astype(np.float64) if processor.target_type == "number" else np.eye(len(processor.labels))[y]


def _metric(y: Floats) -> Metric:
    """The accuracy for one-hot labels; Pearson's correlation for numbers."""
    if y.shape[1] > 1:
        return lambda predicted: float((predicted.argmax(1) == y.argmax(1)).mean())

    def correlation(predicted: Floats) -> float:
        a, b = predicted[:, 0] - predicted.mean(), y[:, 0] - y.mean()
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / norm if norm > 1e-12 else 0.0

    return correlation


def _verdict(facts: RegressionFacts) -> str:
    """The metrics with the fewest and with all labels, in one sentence."""
    rows, clauses = facts["rows"], []
    for row in rows[:1] + rows[1:][-1:]:
        tuned = f", fine-tuned {format_number(row['finetuned'])}" if row.get("finetuned") is not None else ""
        clauses.append(f"{row['labels']:,} labels: regression {format_number(row['regression'])}{tuned}")
    head = f"{facts['split']} {facts['metric']}".capitalize()
    return f"{head} with {'; '.join(clauses)}; baseline {format_number(facts['baseline'])}."


def _svg(facts: RegressionFacts) -> str:
    """The metric over the number of labels."""
    names = {"regression": "principal component regression", "finetuned": "fine-tuned"}
    curves = {name: [(r["labels"], r[key]) for r in facts["rows"] if key in r] for key, name in names.items()}
    lines = [Line(name, points, color=n) for n, (name, points) in enumerate(curves.items(), 1)]
    title = f"{facts['split']} {facts['metric']} over labels".capitalize()
    chart = draw_chart(title, lines, unit="labels", log=True, level=("baseline", facts["baseline"]))
    return standalone_svg(facts["verdict"], [chart] if chart else [])
