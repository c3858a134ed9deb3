"""Principal component regression on a table: its facts in clusters.json, its chart, and the predictions of the rows."""

import csv
import io
from collections.abc import Sequence

import numpy as np

from harken.analysis.principal_components import Floats
from harken.analysis.table_regression import TableRegression, table_regression
from harken.errors import BadInput
from harken.experiments.report.charts import Chart, Line, draw_chart
from harken.experiments.report.formatting import format_number

from .points import Points
from .records import TableRegressionFacts


def regress_table(points: Points, target: str, n_components: int | None, seed: int) -> TableRegression:
    """The regression of the target on the columns of a table."""
    if points.target is None:
        raise BadInput(f"regress={target}: is for a table of numbers (.csv, .tsv or .npy) with this column")
    return table_regression(points.x.astype(np.float64), points.target, n_components, seed=seed)


def regression_facts(fit: TableRegression, points: Points, target: str) -> TableRegressionFacts:
    """What clusters.json has of a regression."""
    assert points.target is not None
    residuals = ((points.target - fit(points.x)) ** 2).sum()
    explained = np.cumsum(fit.explained)
    facts: TableRegressionFacts = {
        "target": target,
        "rows": len(points.x),
        "components": fit.n_components,
        "r2": fit.r2[fit.n_components - 1],
        "r2_train": float(1 - residuals / ((points.target - points.target.mean()) ** 2).sum()),
        "folds": fit.n_folds,
        "best_components": fit.best,
        "candidates": [
            {"components": n, "r2": r2, "explained": float(explained[n - 1])} for n, r2 in enumerate(fit.r2, 1)
        ],
        "intercept": fit.intercept,
        "coefficients": dict(zip(points.columns, fit.coefficients.tolist(), strict=True)),
    }
    return facts


def regression_verdict(facts: TableRegressionFacts) -> str:
    """The quality of the regression and its number of components, in one sentence."""
    n, r2 = facts["components"], format_number(facts["r2"], 3)
    text = f"{facts['target']} from {n} component{'s' * (n > 1)}: R^2 {r2} in {facts['folds']}-fold cross-validation"
    if facts["r2"] <= 0:
        return f"{text}; not better than the mean."
    best = facts["best_components"]
    if best == n:
        return f"{text}."
    largest = format_number(facts["candidates"][best - 1]["r2"], 3)
    return f"{text} (largest with {best}: {largest})."


def regression_chart(facts: TableRegressionFacts) -> Chart | None:
    """R^2 over the number of components."""
    points = [(row["components"], row["r2"]) for row in facts["candidates"]]
    note = f"{facts['components']} components are used"
    lines = [Line("R^2", points), Line("R^2", points, style="dots")]
    return draw_chart("Cross-validated R^2 over components", lines, note=note, unit="components")


def predictions_csv(fit: TableRegression, x: Floats, y: Floats, names: Sequence[str] | None) -> str:
    """The target of each row, its prediction, and that of the fold that does not contain the row."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["row", "target", "predicted", "held_out", *["text"] * (names is not None)])
    rows = zip(y.tolist(), fit(x).tolist(), fit.held_out.tolist(), strict=True)
    for n, numbers in enumerate(rows):
        writer.writerow([n + 1, *numbers, *([] if names is None else [names[n]])])
    return buffer.getvalue()
