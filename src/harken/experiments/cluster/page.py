"""The page of a clustering: charts for each k, the choice of k, and a description of each cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from harken.analysis.clusters import Clusters
from harken.experiments.report.charts import Chart, Line, color_class, draw_chart
from harken.experiments.report.formatting import format_number
from harken.experiments.report.html import Html, tag
from harken.experiments.report.page import definition_list, html_page, html_table

from .records import ClusterDescription, ClusterExample, ClusterFacts, TableRegressionFacts
from .table_pcr import regression_chart, regression_verdict

if TYPE_CHECKING:
    from .clustering import Clustering

Criterion = Literal["inertia", "silhouette", "stability"]
Floats = npt.NDArray[np.floating[Any]]
MAX_DOTS = 1000  # points of one scatter plot
CRITERIA: dict[Criterion, str] = {"inertia": "elbow", "silhouette": "silhouette", "stability": "stability"}  # for k
SEPARATION = ((0.5, "well separated"), (0.25, "moderately separated"), (-1.0, "poorly separated"))  # by silhouette
MAX_SCATTERS = 8


def cluster_page(facts: ClusterFacts, charts: Sequence[Chart]) -> str:
    """The page: verdict, clusters, charts, choice of k."""
    rows = {str(row["k"]): {name: row[name] for name in CRITERIA} for row in facts["candidates"]}
    restarts = {f"k = {row['k']}": dict(enumerate(row["inertias"], 1)) for row in facts["candidates"]}
    settings = {name: value for name, value in facts["settings"].items() if value is not None}
    sections = (
        ("Clusters", [_description(description) for description in facts["clusters"]]),
        ("Charts", [chart.figure() for chart in charts]),
        ("Number of clusters", [tag("p", n_clusters_text(facts)), html_table("By the number of clusters", rows)]),
        *([("Regression", _regression(facts["regression"]))] if "regression" in facts else []),
        ("Restarts", html_table("Inertia of every restart; the lowest is used", restarts)),
        ("Settings", definition_list(settings)),
    )
    verdict = f"{cluster_verdict(facts)} {agreement_text(facts)}".strip()
    lead, name = tag("p", verdict, class_="verdict"), Path(facts["data"].split(" by ")[0]).name
    return html_page(name, "clusters", [f"{facts['points']:,} points"], lead, sections)


def cluster_verdict(facts: ClusterFacts) -> str:
    """The number of clusters and their separation, in one sentence."""
    row = next(row for row in facts["candidates"] if row["k"] == facts["k"])
    count = f"{facts['k']} cluster{'s' * (facts['k'] > 1)}"
    text = f"{count} of {facts['points']:,} points, inertia {format_number(facts['inertia'], 4)}"
    if not np.isfinite(row["silhouette"]):
        return f"{text}."
    separation = next(words for minimum, words in SEPARATION if row["silhouette"] >= minimum)
    return f"{text}; {separation} (silhouette {format_number(row['silhouette'], 2)})."


def n_clusters_text(facts: ClusterFacts) -> str:
    """The k that each criterion prefers, in one sentence."""
    if not (choice := facts["choice"]):
        return "k was set by the user."
    sampled = facts["silhouette_points"] < facts["points"]
    sample = f" (of {facts['silhouette_points']:,} sampled points)" if sampled else ""
    rest = f"the elbow of the inertia is at {choice['elbow']}, the stability is highest at {choice['stability']}"
    return f"The silhouette{sample} is highest at k = {choice['silhouette']}, which is used; {rest}."


def agreement_text(facts: ClusterFacts) -> str:
    """The agreement of the clusters with the labels, in one sentence; empty without labels."""
    if "nmi" not in facts:
        return ""
    scores = f"NMI {format_number(facts['nmi'], 3)}, purity {format_number(facts['purity'], 3)}"
    return f"Compared with the {facts['true_labels']} labels, which the clustering does not use: {scores}."


def labels_text(description: ClusterDescription, count: int = 4) -> str:
    """The most frequent labels of a cluster with their counts."""
    labels = description.get("labels", {})
    shown = [f"{label or '(none)'} {n:,}" for label, n in [*labels.items()][:count]]
    return ", ".join([*shown, *["..."] * (len(labels) > count)])


def _regression(facts: TableRegressionFacts) -> list[Html]:
    """The verdict, the numbers of components and the coefficients."""
    rows = {str(row["components"]): {"R^2": row["r2"], "explained": row["explained"]} for row in facts["candidates"]}
    coefficients = {name: {"coefficient": value} for name, value in facts["coefficients"].items()}
    coefficients |= {"(intercept)": {"coefficient": facts["intercept"]}}
    tables = [html_table("By the number of components", rows), html_table("Coefficients", coefficients)]
    return [tag("p", regression_verdict(facts)), *tables]


def place(example: ClusterExample) -> str:
    """The line of a point in its file, or its row."""
    return f"line {example['line']}" if "line" in example else f"row {example['row']}"


def _description(description: ClusterDescription) -> Html:
    words = ", ".join(description["words"]) or labels_text(description) or "no distinctive words"
    examples = [tag("li", f"{e.get('text', '')[:200]} ({place(e)})") for e in description["examples"]]
    title = f"{description['cluster']}: {description['size']:,} points"
    return tag("div", tag("h3", title), tag("p", words), tag("ul", examples))


def cluster_charts(clustering: "Clustering") -> list[Chart]:
    """Inertia, silhouette and stability over k; a scatter plot for each k; the explained variance."""
    facts, charts = clustering.facts, list[Chart | None]()
    if len(facts["candidates"]) > 1:
        for name, criterion in CRITERIA.items():
            points = [(row["k"], row[name]) for row in facts["candidates"]]
            note = f"{'elbow' if criterion == 'elbow' else 'highest'} at k = {facts['choice'][criterion]}"
            lines = [Line(name, points), Line(name, points, style="dots")]
            charts.append(draw_chart(f"{name} over k".capitalize(), lines, note=note, unit="k", log=True))
    x, explained = clustering.components.project(clustering.x, 2), clustering.components.explained_variance_ratio
    charts += [_scatter(c, x, explained, clustering.points.names) for c in clustering.candidates[:MAX_SCATTERS]]
    cumulative = [(n, float(fraction)) for n, fraction in enumerate(np.cumsum(facts["explained"]), 1)]
    line = Line("cumulative explained variance", cumulative)
    charts.append(draw_chart("Explained variance", [line], unit="components"))
    if "regression" in facts:
        charts.append(regression_chart(facts["regression"]))
    return [chart for chart in charts if chart]


def _scatter(clusters: Clusters, x: Floats, explained: Floats, names: Sequence[str] | None) -> Chart:  # x: N 1 or N 2
    """The points along the first two components, colored by cluster, with the number of each cluster at its mean."""
    x = np.pad(x, ((0, 0), (0, 2 - x.shape[1])))
    low, high = x.min(0), x.max(0)
    percent = (x - low) / np.where(high > low, high - low, 1) * 100
    shown = np.random.default_rng(0).permutation(len(x))[:MAX_DOTS]
    marks = []
    for n in shown.tolist():
        left, bottom = percent[n]
        title = tag("title", f"{clusters.labels[n]}: {names[n][:120]}") if names is not None else None
        style = f"{color_class(int(clusters.labels[n]) + 1).split()[0]} seed"
        marks.append(tag("circle", title, class_=style, cx=f"{left:.2f}%", cy=f"{100 - bottom:.2f}%", r="3"))
    for k in range(len(clusters.centers)):
        if (members := clusters.labels == k).any():
            left, bottom = percent[members].mean(0)
            marks.append(tag("text", str(k), class_="name x", x=f"{left:.2f}%", y=f"{100 - bottom:.2f}%", dy=".33em"))
    part = f", {MAX_DOTS:,} of {len(x):,} points" if len(x) > MAX_DOTS else ""
    note = f"first two principal components, {100 * float(explained[:2].sum()):.0f} % of the variance{part}"
    description = f"{len(clusters.centers)} clusters of {', '.join(map(str, clusters.sizes))} points."
    return Chart(f"k = {len(clusters.centers)}", note, (), description, Html("".join(marks)))
