"""harken.cluster: vectors, or the vectors a run has of texts, sorted into clusters that say what they are about.

runs/my-clusters/  clusters.json  clusters.csv  centres.npy  clusters.svg  report.html
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harken import run_folder as runs
from harken.analysis.clusters import Clusters, Start, check
from harken.analysis.n_clusters import SAMPLE, elbow, tried
from harken.analysis.principal_components import Components, components
from harken.data.detect.kinds import sniff
from harken.data.detect.preview import not_utf8
from harken.data.tables.read import Flaws, rows_of
from harken.data.tables.vectors import Vectors, floats, read_vectors
from harken.errors import BadInput, near_name, refuse_unknown
from harken.events import Listener, silent
from harken.experiments.train import is_free, next_free
from harken.inference.run import Run, load

from .page import cluster_page, cluster_svg

WORDS, EXAMPLES = 8, 3  # shown of each cluster
SURE = 2.0  # standard errors from which on a word is telling
KEPT = 10  # components that are told
ALIKE = 1e-9  # share of the variance that is left where the points of each cluster are the same
AT_ONCE = 4096  # texts that are embedded between two signs of life


@dataclass(frozen=True)
class How:
    """What may be chosen."""

    k: str | int = "2-8"
    restarts: int = 10
    start: Start = "k-means++"
    seed: int = 0
    pool: str = "mean"
    layer: int | None = None
    raw: bool = False  # vectors of texts as they are; else each has length 1
    scale: bool = False  # divide each column by its spread
    column: str | None = None  # of a table: where its texts are
    columns: str | None = None  # of vectors: those that are taken, by name or number, with commas between them

    def ks(self, n: int) -> list[int]:
        """3 -> [3]; 2-8 -> [2, ..., 8], as far as there are points; 2,4,8 -> [2, 4, 8]."""
        said = str(self.k).replace(" ", "")
        if not re.fullmatch(r"\d+(-\d+|(,\d+)*)", said):
            raise BadInput(f"k={self.k!r}: a number (3), a range (2-8) or a list (2,4,8) is accepted")
        first, dash, last = said.partition("-")
        if not dash:
            return sorted({int(k) for k in said.split(",")})
        if not (found := list(range(int(first), min(int(last), n - 1) + 1))):
            raise BadInput(f"k={self.k}: there are {n:,} points; a range is two numbers below that, such as 2-8")
        return found


class Points(NamedTuple):
    """What is clustered, what each point is called where that is known, and where it comes from."""

    x: Any  # N d
    names: Sequence[str] | None
    place: str


@dataclass(frozen=True, eq=False)
class Clustering:
    """Clusters for each k that was asked for. `facts` is what clusters.json holds."""

    points: Points
    tried: list[Clusters]
    components: Components
    facts: dict[str, Any]
    path: Path | None = None

    @property
    def best(self) -> Clusters:
        return next(made for made in self.tried if len(made.centres) == self.facts["k"])

    @property
    def k(self) -> int:
        return int(self.facts["k"])

    @property
    def labels(self) -> Any:
        """The cluster of each point, from 0."""
        return self.best.labels


def cluster(
    what: Any,
    texts: str | Path | Sequence[str] | None = None,
    *,
    out: str | Path | None = None,
    listen: Listener = silent,
    **how: Any,
) -> Clustering:
    """Sort vectors into clusters: a file (.npy, .csv), an array, or a run's vectors of texts (a file, or a list).

    Options: k (3, "2-8", "2,4,8"), restarts, start ("k-means++", "random"), seed, scale, columns ("a,b"); of texts
    pool, layer, raw and column. With `out` a folder is written.
    """
    refuse_unknown(how, [each.name for each in fields(How)])
    asked = How(**how)
    if out is not None and not is_free(Path(out)):
        raise BadInput(f"{out}: is not empty; take another folder")
    points = _points(what, texts, asked, listen)
    if len(points.x) > 1 and (points.x == points.x[0]).all():
        raise BadInput(f"{points.place}: all {len(points.x):,} points are the same; there is nothing to sort")
    if asked.scale:
        spread = points.x.std(0)
        points = points._replace(x=points.x / np.where(spread > 0, spread, 1))
    ks = asked.ks(len(points.x))
    for k in ks:
        check(points.x, k)
    if "-" in str(asked.k) and ks[-1] < int(str(asked.k).partition("-")[2]):
        listen("notice", text=f"k={asked.k}: there are {len(points.x):,} points, so it ends with {ks[-1]}")
    how = {"start": asked.start, "restarts": asked.restarts, "seed": asked.seed}
    found, rows = tried(points.x, ks, **how, listen=listen)
    axes, nothing = components(points.x), ALIKE * float(points.x.var(0).sum()) * len(points.x)
    if whole := [k for k, one in zip(ks, found, strict=True) if k < ks[-1] and one.inertia <= nothing]:
        listen("notice", text=f"k={whole[0]}: the points of each cluster are all the same; more clusters say nothing")
    said = _choice(ks, rows)
    best = found[ks.index(said["silhouette"])]
    facts = {
        "data": points.place,
        "points": len(points.x),
        "columns": points.x.shape[1],
        "k": said["silhouette"],
        "inertia": best.inertia,
        "inertias": best.inertias,
        "labels": best.labels.tolist(),
        "choice": said if len(ks) > 1 else {},
        "silhouette_points": min(len(points.x), SAMPLE),
        "tried": [row | {"inertias": one.inertias, "steps": one.steps} for row, one in zip(rows, found, strict=True)],
        "clusters": told(best, points),
        "explained": [float(share) for share in axes.share[:KEPT]],
        "settings": asdict(asked),
    }
    made = Clustering(points, found, axes, facts)
    return made if out is None else write(made, Path(out))


def _choice(ks: Sequence[int], rows: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """The k that each way of asking prefers; the silhouette's is taken. Of equal ones the least."""

    def most(name: str) -> int:
        known = [row for row in rows if np.isfinite(row[name]) and row["k"] > 1]
        return int(max(known, key=lambda row: row[name])["k"]) if known else ks[0]

    return {
        "silhouette": most("silhouette"),
        "elbow": elbow(ks, [row["inertia"] for row in rows]),
        "stability": most("stability"),
    }


# --- what is clustered ------------------------------------------------------------------------------------------------


def _points(what: Any, texts: Any, how: How, listen: Listener) -> Points:
    if how.columns and (not isinstance(what, str | Path) or Path(what).is_dir()):
        raise BadInput(f"columns={how.columns}: is for a file of vectors; of a table of texts, column names theirs")
    if not isinstance(what, str | Path | Run):
        x = floats(np.asarray(what))
        if x.ndim != 2 or not x.size or not np.isfinite(x).all():
            raise BadInput(f"an array of shape {x.shape}: finite numbers are needed, a row for each point")
        return Points(x, list(texts) if texts is not None else None, "an array")
    if isinstance(what, Run) or Path(what).is_dir():
        model = what if isinstance(what, Run) else load(what)
        given = texts if texts is not None else getattr(model.recipe.data, "path", None)
        if given is None:
            raise BadInput(f"{what}: name the texts to cluster: harken cluster {what} my.txt")
        names = _texts(Path(given), how.column, listen) if isinstance(given, str | Path) else list(given)
        place = f"{given} by {model.path}" if isinstance(given, str | Path) else f"{len(names):,} texts by {model.path}"
        return Points(embedded(model, names, how, listen), names, place)
    found: Vectors = read_vectors(Path(what), listen, [name.strip() for name in (how.columns or "").split(",") if name])
    if texts is None:
        return Points(found.x, found.names, str(what))
    names = _texts(Path(texts), how.column, listen)
    if len(names) != len(found.x):
        raise BadInput(f"{texts}: {len(names):,} texts for the {len(found.x):,} vectors of {what}; one each is needed")
    return Points(found.x, names, str(what))


def embedded(model: Run, texts: Sequence[str], how: How, listen: Listener) -> Any:  # N d
    """A run's vectors of texts."""
    made = []
    for start in range(0, len(texts), AT_ONCE):
        some = list(texts[start : start + AT_ONCE])
        made.append(model.embed(some, pool=how.pool, layer=how.layer, normalised=not how.raw, listen=listen))
        listen("answer", done=start + len(some), total=len(texts))
    return np.concatenate(made)


def _texts(path: Path, column: str | None, listen: Listener) -> list[str]:
    """The texts of a table, in the column that is named or that holds the texts; or the lines of a file."""
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file; name a file of texts{near_name(path)}")
    guess = None if column else sniff(path)
    where = column or (guess.settings.get("data.text") if guess and guess.kind == "table" else None)
    if isinstance(where, str | int):
        flaws = Flaws("no text")
        found = [cells[0] for _, cells in rows_of(path, [("--column", where)], flaws)]
        if flaws.count:
            listen("notice", text=str(flaws))
    else:
        raw = path.read_bytes()
        try:
            lines = raw.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise not_utf8(path, error.start) from None
        found = [line for line in lines if line.strip()]
    if not found:
        raise BadInput(f"{path}: no text is in it; a text in each line, or a column of texts, is needed")
    return found


# --- what a cluster is about ------------------------------------------------------------------------------------------


def told(made: Clusters, points: Points) -> list[dict[str, Any]]:
    """Of each cluster its size, the words that tell it from the others, and the points nearest to its centre."""
    words = telling(points.names, made.labels, len(made.centres)) if points.names else [[] for _ in made.centres]
    found = []
    for n, centre in enumerate(made.centres):
        own = np.flatnonzero(made.labels == n)
        apart = np.linalg.norm(points.x[own] - centre, axis=1)
        near = np.argsort(apart, kind="stable")[:EXAMPLES]
        examples = [
            {"row": int(own[i]) + 1, "distance": float(apart[i])}
            | ({"text": points.names[own[i]]} if points.names else {})
            for i in near
        ]
        found.append({"cluster": n, "size": len(own), "words": words[n], "examples": examples})
    return found


def telling(texts: Sequence[str], labels: Any, k: int) -> list[list[str]]:
    """For each cluster the words by which its texts are known: log odds against the other clusters, over their standard
    error, with the words of all texts as prior (Monroe, Colaresi and Quinn 2008). A word counts once in a text."""
    own = [Counter[str]() for _ in range(k)]
    for text, n in zip(texts, labels, strict=True):
        own[n].update({word.lower() for word in re.findall(r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*", text)})
    every: Counter[str] = sum(own, Counter())
    sizes = [max(1, sum(counts.values())) for counts in own]
    total, found = sum(sizes), []
    for counts, size in zip(own, sizes, strict=True):
        sure = dict[str, float]()
        for word, a in counts.items():
            prior, b = 10 * every[word] / total + 0.01, every[word] - a
            odds = np.log((a + prior) / max(size - a, 1)) - np.log((b + prior) / max(total - size - b, 1))
            sure[word] = float(odds / np.sqrt(1 / (a + prior) + 1 / (b + prior)))
        best = sorted(sure, key=lambda word: (-sure[word], word))[:WORDS]
        found.append([word for word in best if sure[word] > SURE])
    return found


# --- the folder -------------------------------------------------------------------------------------------------------


def write(made: Clustering, folder: Path) -> Clustering:
    """Write what was found into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    names = made.points.names
    table.writerow(["row", "cluster", "distance"] + ([] if names is None else ["text"]))
    apart = np.linalg.norm(made.points.x - made.best.centres[made.labels], axis=1)
    for n, (label, far) in enumerate(zip(made.labels.tolist(), apart.tolist(), strict=True)):
        table.writerow([n + 1, label, f"{far:.6g}"] + ([] if names is None else [names[n]]))
    runs.write(folder / "clusters.csv", rows.getvalue())
    with (folder / "centres.npy").open("wb") as file:
        np.save(file, made.best.centres, allow_pickle=False)
    runs.write(folder / "clusters.svg", cluster_svg(made))
    runs.write(folder / "report.html", cluster_page(made))
    runs.write_json(folder / "clusters.json", made.facts)
    return replace(made, path=folder)


def free_folder(name: str) -> Path:
    """The folder that is written where none is named."""
    return next_free(Path("runs") / f"{name}-clusters")
