"""harken.cluster: k-means on vectors, or on those of a run's inputs, with a description of each cluster.

runs/my-clusters/  clusters.json  clusters.csv  centers.npy  clusters.svg  report.html
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from harken import run_folder
from harken.analysis.agreement import normalized_mutual_information, purity
from harken.analysis.clusters import Clusters, check
from harken.analysis.n_clusters import MAX_SAMPLE, elbow, evaluate_ks
from harken.analysis.principal_components import PrincipalComponents, pca
from harken.analysis.table_regression import TableRegression, standardize
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.experiments.folders import is_available, next_available
from harken.experiments.report.charts import standalone_svg
from harken.files import write_atomic
from harken.inference.run import Run
from harken.suggestions import reject_unknown_options

from .page import cluster_charts, cluster_page, cluster_verdict
from .points import DEFAULTS, ClusterOptions, Floats, Points, load_points
from .records import ClusterDescription, ClusterExample, ClusterFacts
from .table_pcr import predictions_csv, regress_table, regression_facts

N_WORDS, N_EXAMPLES = 8, 3  # per cluster
MIN_Z_SCORE = 2.0  # of a distinctive word
MAX_COMPONENTS = 10  # reported
ZERO_INERTIA = 1e-9  # relative to the total variance: the points of each cluster are equal
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clustering:
    """The clusters for each k. `facts` is the content of clusters.json, `path` its folder if one was written.

    >>> clustering = harken.cluster([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [9.0, 8.0]], k="2-3")
    >>> clustering.k, clustering.labels.tolist(), clustering.best.centers.shape
    (2, [0, 0, 1, 1], (2, 2))
    """

    points: Points
    x: Floats  # what was clustered: the points, standardized for a regression
    candidates: list[Clusters]
    components: PrincipalComponents
    facts: ClusterFacts
    regression: TableRegression | None = None
    path: Path | None = None

    @property
    def best(self) -> Clusters:
        """The clusters for the selected k."""
        return next(clusters for clusters in self.candidates if len(clusters.centers) == self.facts["k"])

    @property
    def k(self) -> int:
        """The selected number of clusters."""
        return int(self.facts["k"])

    @property
    def labels(self) -> Labels:
        """The cluster of each point, from 0."""
        return self.best.labels


def cluster(
    what: str | Path | Run | npt.ArrayLike,
    texts: str | Path | Sequence[str] | None = None,
    *,
    out: str | Path | None = None,
    listen: Listener = silent,
    **options: Unpack[ClusterOptions],
) -> Clustering:
    """Cluster vectors (a .npy or .csv file, an array), or a run's vectors of inputs (a file, a list, its own data).

    Options: k (3, "2-8", "2,4,8"), restarts, start ("k-means++", "random"), seed, scale, columns ("a,b"), decimal; for
    a run pool, layer, overflow, raw, split and column. regress: the target of a principal component regression on a
    table, with `components` or those that cross-validation chooses. With `out` a folder is written.

    >>> harken.cluster([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [9.0, 8.0]], k=2).labels.tolist()
    [0, 0, 1, 1]
    """
    reject_unknown_options(options, [*DEFAULTS])
    chosen = DEFAULTS | options
    if out is not None and not is_available(Path(out)):
        raise BadInput(f"{out}: is not empty; choose another folder")
    points = load_points(what, texts, chosen, listen)
    target, regression, table = chosen["regress"], None, points
    if target is not None:
        regression = regress_table(points, target, chosen["components"], chosen["seed"])
        points = points._replace(x=standardize(points.x)[0])
    elif chosen["components"] is not None:
        raise BadInput(f"components={chosen['components']}: has no effect without regress")
    if len(points.x) > 1 and (points.x == points.x[0]).all():
        raise BadInput(f"{points.origin}: all {len(points.x):,} points are equal; there is nothing to cluster")
    if chosen["scale"]:
        deviation = points.x.std(0)
        points = points._replace(x=points.x / np.where(deviation > 0, deviation, 1))
    k = str(chosen["k"])
    ks = _parse_ks(k, len(points.x))
    for n_clusters in ks:
        check(points.x, n_clusters)
    if "-" in k and ks[-1] < int(k.partition("-")[2]):
        listen("notice", text=f"k={k}: limited to {ks[-1]}, as there are {len(points.x):,} points")
    start, restarts, seed = chosen["start"], chosen["restarts"], chosen["seed"]
    candidates, rows = evaluate_ks(points.x, ks, start=start, restarts=restarts, seed=seed, listen=listen)
    facts, axes = _facts(points, chosen, candidates, rows, listen)
    if regression is not None and target is not None:
        facts["regression"] = regression_facts(regression, table, target)
    clustering = Clustering(table, points.x, candidates, axes, facts, regression)
    return clustering if out is None else write_clustering(clustering, Path(out))


def _parse_ks(k: str, n: int) -> list[int]:
    """3 -> [3]; 2-8 -> [2, ..., 8], but fewer than n; 2,4,8 -> [2, 4, 8]."""
    text = k.replace(" ", "")
    if not re.fullmatch(r"\d+(-\d+|(,\d+)*)", text):
        raise BadInput(f"k={k!r}: expected a number (3), a range (2-8) or a list (2,4,8)")
    first, dash, last = text.partition("-")
    if not dash:
        return sorted({int(k) for k in text.split(",")})
    if not (ks := list(range(int(first), min(int(last), n - 1) + 1))):
        raise BadInput(f"k={k}: accepted: a rising range below the {n:,} points, such as 2-8")
    return ks


def _facts(
    points: Points, options: ClusterOptions, candidates: Sequence[Clusters], rows: Sequence[Any], listen: Listener
) -> tuple[ClusterFacts, PrincipalComponents]:
    """The content of clusters.json, and the principal components."""
    ks = [len(clusters.centers) for clusters in candidates]
    axes, zero = pca(points.x), ZERO_INERTIA * float(points.x.var(0).sum()) * len(points.x)
    if exact := [k for k, c in zip(ks, candidates, strict=True) if k < ks[-1] and c.inertia <= zero]:
        listen("notice", text=f"k={exact[0]}: the points of each cluster are equal, so a larger k adds nothing")
    choice, pairs = _choose_k(ks, rows), zip(rows, candidates, strict=True)
    best = candidates[ks.index(choice["silhouette"])]
    facts: ClusterFacts = {
        "data": points.origin,
        "points": len(points.x),
        "columns": points.x.shape[1],
        "k": choice["silhouette"],
        "inertia": best.inertia,
        "inertias": best.inertias,
        "labels": best.labels.tolist(),
        "choice": choice if len(ks) > 1 else {},
        "silhouette_points": min(len(points.x), MAX_SAMPLE),
        "candidates": [row | {"inertias": c.inertias, "n_iter": c.n_iter} for row, c in pairs],
        "clusters": describe_clusters(best, points),
        "explained": [float(fraction) for fraction in axes.explained_variance_ratio[:MAX_COMPONENTS]],
        "settings": dict(options),
    }
    if labelled := [n for n, label in enumerate(points.labels) if label]:
        clusters, labels = best.labels[labelled], [points.labels[n] for n in labelled]
        facts |= {"true_labels": len({*labels}), "nmi": normalized_mutual_information(clusters, labels)}
        facts |= {"purity": purity(clusters, labels)}
    return facts, axes


def _choose_k(ks: Sequence[int], rows: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """The best k by silhouette, elbow and stability; the smallest of equal ones. The silhouette decides."""

    def argmax(name: str) -> int:
        known = [row for row in rows if np.isfinite(row[name]) and row["k"] > 1]
        return int(max(known, key=lambda row: row[name])["k"]) if known else ks[0]

    inertias = [row["inertia"] for row in rows]
    return {"silhouette": argmax("silhouette"), "elbow": elbow(ks, inertias), "stability": argmax("stability")}


# --- description of the clusters --------------------------------------------------------------------------------------


def describe_clusters(clusters: Clusters, points: Points) -> list[ClusterDescription]:
    """Size, distinctive words, and the points nearest to the center of each cluster."""
    k = len(clusters.centers)
    names = points.names if points.are_texts else None
    words = distinctive_words(names, clusters.labels, k) if names else [[] for _ in range(k)]
    descriptions = list[ClusterDescription]()
    for n, center in enumerate(clusters.centers):
        members = np.flatnonzero(clusters.labels == n)
        distances = np.linalg.norm(points.x[members] - center, axis=1)
        nearest = np.argsort(distances, kind="stable")[:N_EXAMPLES]
        examples = [ClusterExample(row=int(members[i]) + 1, distance=float(distances[i])) for i in nearest]
        for example in examples:
            index = example["row"] - 1
            example |= {"line": points.lines[index]} if points.lines else {}
            example |= {"text": points.names[index]} if points.names else {}
        descriptions.append({"cluster": n, "size": len(members), "words": words[n], "examples": examples})
        if points.labels:
            counts = Counter(points.labels[i] for i in members.tolist())
            descriptions[-1]["labels"] = dict(counts.most_common())
    return descriptions


def distinctive_words(texts: Sequence[str], labels: Labels, k: int) -> list[list[str]]:
    """The words of each cluster with the highest z-score of the log odds against the other clusters, with the words of
    all texts as prior (Monroe, Colaresi and Quinn 2008). A word counts once per text."""
    cluster_counts = [Counter[str]() for _ in range(k)]
    for text, n in zip(texts, labels, strict=True):
        cluster_counts[n].update({word.lower() for word in re.findall(r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*", text)})
    all_counts: Counter[str] = sum(cluster_counts, Counter())
    sizes = [max(1, sum(counts.values())) for counts in cluster_counts]
    total, words = sum(sizes), []
    for counts, size in zip(cluster_counts, sizes, strict=True):
        z_scores = dict[str, float]()
        for word, a in counts.items():
            prior, b = 10 * all_counts[word] / total + 0.01, all_counts[word] - a
            odds = np.log((a + prior) / max(size - a, 1)) - np.log((b + prior) / max(total - size - b, 1))
            z_scores[word] = float(odds / np.sqrt(1 / (a + prior) + 1 / (b + prior)))
        best = sorted(z_scores, key=lambda word: (-z_scores[word], word))[:N_WORDS]
        words.append([word for word in best if z_scores[word] > MIN_Z_SCORE])
    return words


# --- the folder -------------------------------------------------------------------------------------------------------


def write_clustering(clustering: Clustering, folder: Path) -> Clustering:
    """Write the clusters into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer, names, labels = io.StringIO(), clustering.points.names, clustering.labels
    writer = csv.writer(buffer, lineterminator="\n")
    lines = clustering.points.lines
    true_labels = clustering.points.labels
    heads = ["row", *["line"] * bool(lines), "cluster", "distance", *["label"] * bool(true_labels)]
    writer.writerow([*heads, *["text"] * (names is not None)])
    distances = np.linalg.norm(clustering.x - clustering.best.centers[labels], axis=1)
    for n, (label, distance) in enumerate(zip(labels.tolist(), distances.tolist(), strict=True)):
        text = [] if names is None else [names[n]]
        writer.writerow([n + 1, *lines[n : n + 1], label, f"{distance:.6g}", *true_labels[n : n + 1], *text])
    write_atomic(folder / "clusters.csv", buffer.getvalue())
    with (folder / "centers.npy").open("wb") as file:
        np.save(file, clustering.best.centers, allow_pickle=False)
    points = clustering.points
    if clustering.regression is not None and points.target is not None:
        predictions = predictions_csv(clustering.regression, points.x, points.target, names)
        write_atomic(folder / "regression.csv", predictions)
    charts = cluster_charts(clustering)
    write_atomic(folder / "clusters.svg", standalone_svg(cluster_verdict(clustering.facts), charts))
    write_atomic(folder / "report.html", cluster_page(clustering.facts, charts))
    run_folder.write_json(folder / "clusters.json", clustering.facts)
    return replace(clustering, path=folder)


def default_folder(name: str) -> Path:
    """The folder to write if none is given."""
    return next_available(Path("runs") / f"{name}-clusters")
