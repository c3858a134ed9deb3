"""What clusters show people: a picture for each k, the ways to choose one, and what each cluster is about."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harken.analysis.clusters import Clusters
from harken.experiments.report import line_chart
from harken.experiments.report.interval_plot import alone
from harken.experiments.report.line_chart import Html, Line, Picture, figure, tag, toned
from harken.experiments.report.page import page, pairs, table

if TYPE_CHECKING:
    from .clustering import Clustering

DOTS = 1000  # points that are drawn of one picture
ASKED = {"inertia": "elbow", "silhouette": "silhouette", "stability": "stability"}  # a number, and who asks for it
CLEAR = ((0.5, "clear"), (0.25, "visible"), (-1.0, "blurred"))  # from which silhouette on
PICTURES = 8  # of so many k at most


def cluster_page(made: "Clustering") -> str:
    """The page: what was found, the clusters, the pictures, how k was chosen."""
    facts = made.facts
    rows = {str(row["k"]): {name: row[name] for name in ASKED} for row in facts["tried"]}
    sections = (
        ("Clusters", [_about(one) for one in facts["clusters"]]),
        ("Pictures", [picture.figure() for picture in pictures(made)]),
        ("Choice of k", [tag("p", chosen(facts)), table("By the number of clusters", rows)]),
        ("Restarts", table("Inertia of every restart; the least is taken", _restarts(facts))),
        ("Settings", pairs({name: value for name, value in facts["settings"].items() if value is not None})),
    )
    lead = (tag("p", verdict(facts), class_="verdict"),)
    return page(Path(facts["data"].split(" by ")[0]).name, "clusters", [f"{facts['points']:,} points"], lead, sections)


def cluster_svg(made: "Clustering") -> str:
    """The pictures as one file."""
    return alone(verdict(made.facts), pictures(made))


def verdict(facts: dict[str, Any]) -> str:
    """One sentence: how many clusters, and how clear they are."""
    row = next(row for row in facts["tried"] if row["k"] == facts["k"])
    many = f"{facts['k']} cluster{'s' * (facts['k'] > 1)}"
    said = f"{many} of {facts['points']:,} points, inertia {figure(facts['inertia'], 4)}"
    if not np.isfinite(row["silhouette"]):
        return f"{said}."
    clear = next(word for least, word in CLEAR if row["silhouette"] >= least)
    return f"{said}; they are {clear} (silhouette {figure(row['silhouette'], 2)})."


def chosen(facts: dict[str, Any]) -> str:
    """What each way of asking says."""
    if not facts["choice"]:
        return "k was given."
    few = facts["silhouette_points"] < facts["points"]
    sample = f" (of {facts['silhouette_points']:,} points drawn by chance)" if few else ""
    said = facts["choice"]
    others = f"the elbow of the inertia lies at {said['elbow']}, halves of the points agree best at {said['stability']}"
    return f"The silhouette{sample} is best at k = {said['silhouette']}, which is taken; {others}."


def _about(one: dict[str, Any]) -> Html:
    words = ", ".join(one["words"]) or "no word tells it from the others"
    told = [tag("li", f"{each.get('text', '')[:200]} (row {each['row']})") for each in one["examples"]]
    return tag("div", tag("h3", f"{one['cluster']}: {one['size']:,} points"), tag("p", words), tag("ul", told))


def _restarts(facts: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {
        f"k = {row['k']}": {str(n): inertia for n, inertia in enumerate(row["inertias"], 1)} for row in facts["tried"]
    }


def pictures(made: "Clustering") -> list[Picture]:
    """Inertia, silhouette and stability over k; the points for each k; how much each component explains."""
    facts, found = made.facts, list[Picture | None]()
    if len(facts["tried"]) > 1:
        for name, who in ASKED.items():
            points = [(row["k"], row[name]) for row in facts["tried"]]
            note = f"{'elbow' if who == 'elbow' else 'best'} at k = {facts['choice'][who]}"
            lines = [Line(name, points), Line(name, points, look="dots")]
            found.append(line_chart.drawn(f"{name} over k".capitalize(), lines, note=note, unit="k", log=True))
    at, share = made.components.project(made.points.x, 2), made.components.share
    found += [_scatter(one, at, share, made.points.names) for one in made.tried[:PICTURES]]
    up_to = np.cumsum(facts["explained"])
    shares = [(n, float(part)) for n, part in enumerate(up_to, 1)]
    found.append(line_chart.drawn("Explained variance", [Line("share of the variance", shares)], unit="components"))
    return [picture for picture in found if picture]


def _scatter(one: Clusters, at: Any, share: Any, names: Any) -> Picture:  # at: N 1 or N 2
    """The points along the first two components, coloured by cluster; its number stands in the middle of each."""
    at = np.pad(at, ((0, 0), (0, 2 - at.shape[1])))
    low, high = at.min(0), at.max(0)
    places = (at - low) / np.where(high > low, high - low, 1) * 100
    draw = np.random.default_rng(0).permutation(len(at))[:DOTS]
    marks = []
    for n in draw.tolist():
        x, y = places[n]
        said = tag("title", f"{one.labels[n]}: {names[n][:120]}") if names is not None else None
        look = f"{toned(int(one.labels[n]) + 1).split()[0]} seed"
        marks.append(tag("circle", said, class_=look, cx=f"{x:.2f}%", cy=f"{100 - y:.2f}%", r="3"))
    for k in range(len(one.centres)):
        if (own := one.labels == k).any():
            x, y = places[own].mean(0)
            marks.append(tag("text", str(k), class_="name x", x=f"{x:.2f}%", y=f"{100 - y:.2f}%", dy=".33em"))
    part = f", {DOTS:,} of {len(at):,} points" if len(at) > DOTS else ""
    note = f"the first two components, {100 * float(share[:2].sum()):.0f} % of the variance{part}"
    told = f"{len(one.centres)} clusters of {', '.join(map(str, one.sizes))} points."
    return Picture(f"k = {len(one.centres)}", note, (), told, Html("".join(marks)))
