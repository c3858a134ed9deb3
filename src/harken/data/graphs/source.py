"""Graphs: what a node is, whether two nodes have an edge, or what a whole graph is.

Splits that the file says are kept. A held-out share is drawn label by label and by a hash of the name, so that adding
nodes moves little; an edge is held out by a hash of both its ends, in whichever order they are written.
"""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from harken.data.pairs.source import key
from harken.data.split import LABELS, Labels, Positive, SplitData, kept
from harken.data.targets import amount, answer_of, order, unknown
from harken.data.text.source import fingerprint
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.settings import Outputs, Part

from . import files as graph_files
from .arrays import from_arrays
from .files import Bag, Floats, Ints, Raw

Ask = Literal["node", "edge", "graph"]
SPARSE = 0.25  # features of which fewer are not 0 are kept as those alone
DEGREES = 32  # features of a node of which nothing is known but its edges
NAMED = ("node", "label", "graph", "source", "target", "weight", "split", "features", "directed")


@dataclass(frozen=True, eq=False)
class GraphWords:
    """What the numbers of a run mean: what is asked, its labels, and how features are read."""

    target_level: Ask
    labels: Labels
    features: Annotated[int, Field(ge=1, lt=2**31)]
    target_type: Literal["label", "number"] = "label"
    mean: float = 0.0
    spread: Positive = 1.0
    made: Literal["given", "identity", "degree"] = "given"  # where the features come from
    feature_scaling: Literal["rows", "columns", "none"] = "none"
    centre: list[float] | None = None  # of each column
    width: list[float] | None = None

    @property
    def vocab(self) -> Outputs:
        """Features, and how many numbers are said of a node; of an edge none: it is told by the vectors of its ends."""
        return Outputs(self.features, 0 if self.target_level == "edge" else len(self.labels))

    def files(self) -> dict[str, bytes]:
        return {LABELS: json.dumps(asdict(self), ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "GraphWords":
        return kept(cls, folder, "what is said of a graph")

    def read(self, raw: Raw) -> Floats | Bag:
        """The features of a graph, as they were learned from."""
        x = _made(raw, self.made)
        many = x.many if isinstance(x, Bag) else x.shape[1]
        if many != self.features:
            what = "nodes, which are known by their names alone," if self.made == "identity" else "features"
            raise BadInput(f"{raw.place}: {many:,} {what} where {self.features:,} were learned; take such a graph")
        if isinstance(x, Bag):
            if self.feature_scaling == "rows":
                x = x._replace(val=x.val / np.maximum(np.bincount(x.row, x.val, len(raw.names)), 1e-9)[x.row])
            return x._replace(val=x.val.astype(np.float32))
        if self.feature_scaling == "rows":
            x = x / np.maximum(x.sum(1, keepdims=True), 1e-9)
        elif self.feature_scaling == "columns":  # before they are float32: a time in seconds has more digits
            x = (x - np.array(self.centre)) / np.array(self.width)
        return x.astype(np.float32)

    def targets(self, raw: Raw) -> Any:
        """What is said of each node or graph: a number of a label (-100: nothing), or an amount (NaN)."""
        said = raw.said or []
        if self.target_type == "number":
            return np.array([(float(s) - self.mean) / self.spread if s else math.nan for s in said], np.float32)[
                :, None
            ]
        number = {label: n for n, label in enumerate(self.labels)} | {"": -100}
        if lost := next((s for s in said if s not in number), None):
            raise unknown(lost, self.labels, raw.place)
        return np.array([number[s] for s in said], np.int64)


def _made(raw: Raw, how: str) -> Floats | Bag:
    """The features that a file gives, or those made of the names or the edges of nodes."""
    n, every = len(raw.names), np.arange(len(raw.names))
    if how == "identity":
        return Bag(every, every, np.ones(n, np.float32), n)
    if how == "degree":
        degree = np.bincount(raw.pairs.ravel(), minlength=n)
        return Bag(every, np.minimum(degree, DEGREES - 1), np.ones(n, np.float32), DEGREES)
    if raw.x is None:
        raise BadInput(f"{raw.place}: its nodes have no features, and this run was trained on some; take such a graph")
    if isinstance(raw.x, Bag) or (raw.x != 0).mean() >= SPARSE:
        return raw.x
    row, col = np.nonzero(raw.x)
    return Bag(row, col, raw.x[row, col], raw.x.shape[1])


class GraphSource(Part):
    """The settings of graphs."""

    model: ClassVar[str] = "gcn"
    task: ClassVar[str] = "nodes"
    of: ClassVar[str] = " of graphs"
    kept: ClassVar[str] = LABELS

    kind: Literal["graph"] = "graph"
    path: str | None = Field(None, description="a folder with edges.csv and nodes.csv, an .npz, .gml or .graphml file")
    target_level: Literal["auto", "node", "edge", "graph"] = Field(
        "auto", description="what is said: of each node, of an edge (is there one?), of each graph; auto: by the labels"
    )
    node: str | None = Field(None, description="the column of nodes.csv with their names; none: found, else the first")
    label: str | None = Field(None, description="the column of the label, in nodes.csv or graphs.csv; none: found")
    features: list[str] | None = Field(
        None, description='columns of numbers: "age,height"; none: all that are nothing else; []: none, names alone'
    )
    graph: str | None = Field(None, description="the column that says of which graph a node is; none: found")
    source: str | None = Field(None, description="the column of edges.csv where an edge begins; none: found")
    target: str | None = Field(None, description="the column where it ends; none: found")
    weight: str | None = Field(None, description="the column of its weight; none: found")
    split: str | None = Field(None, description="the column that says train, valid or test; none: found")
    directed: bool = Field(False, description="an edge is heard at its target alone, not at both ends")
    feature_scaling: Literal["auto", "rows", "columns", "none"] = Field(
        "auto",
        description="rows sum to 1, or columns have mean 0 and spread 1; auto: rows of counts, columns of others",
    )
    target_type: Literal["auto", "label", "number"] = Field(
        "auto", description="what is said; auto: a number if all are and some are no whole ones, else a label"
    )
    valid: float = Field(0.1, ge=0, lt=1, description="the share held out while learning, where the file says none")
    test: float = Field(0.2, ge=0, lt=1, description="the share kept for the last judgement, where the file says none")
    examples: int | None = Field(None, ge=1, description="learn from so many nodes (edges, graphs) only")
    sha256: str | None = Field(None, description="fingerprint of the files; a run refuses to be repeated on others")

    @field_validator("features", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return [name.strip() for name in given.split(",")] if isinstance(given, str) else given

    def located(self) -> "GraphSource":
        """The same settings with an absolute path."""
        return self.model_copy(update={"path": self.path and str(Path(self.path).absolute())})

    def words(self, folder: Path) -> GraphWords:
        return GraphWords.load(folder)

    def read(self, path: str, listen: Listener = silent) -> Raw:
        """A graph, its nodes in the order of their graphs."""
        arrays, asked = Path(path).suffix.lower() == ".npz", {name: getattr(self, name) for name in NAMED}
        raw = from_arrays(Path(path)) if arrays else graph_files.read(Path(path), asked)
        raw = replace(raw, x=None) if self.features == [] else raw
        for text in raw.notices:
            listen("notice", text=text)
        return raw if raw.of is None or (np.diff(raw.of) >= 0).all() else graph_files.ordered(raw)

    def open(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> "GraphData":
        """Read the graph, and decide what is learned from."""
        if not self.path:
            raise BadSetting("data.path is not given; name a graph: data.path=my.npz")
        raw = self.read(self.path, listen)
        digest = fingerprint(graph_files.files(Path(self.path)), self.sha256, self.path)
        ask = self._ask(raw)
        raw, edges = self._edges(raw, ask)
        splits = self._splits(raw, ask, _known(raw, ask, edges), self._abouts(raw, ask, edges))
        if not len(splits["train"]):
            raise BadInput(f"{raw.place}: there is no {ask} to learn from; give more of them")
        words = tokenizer if isinstance(tokenizer, GraphWords) else self._words(raw, ask, splits["train"])
        asked = edges if ask == "edge" else words.targets(raw)
        held = {name: some for name in ("valid", "test") if (some := splits[name].tolist())}
        train = splits["train"][: self.examples].tolist()
        return GraphData(self, words, train, held, digest, raw=raw, asked=asked)

    def other(
        self, path: str, split: str, *, tokenizer: GraphWords, stateful: bool = False, listen: Listener = silent
    ) -> "GraphData":
        """Another graph, of which all is judged that its file says (or its split of that name, where it has one)."""
        raw, edges = self._edges(self.read(path, listen), tokenizer.target_level)
        known = _known(raw, tokenizer.target_level, edges)
        judged = raw.splits.get(tokenizer.target_level, {}).get(split, known).tolist()
        if not judged:
            raise BadInput(f"{path}: there is nothing to judge; give a graph with labels")
        digest = fingerprint(graph_files.files(Path(path)), None, path)
        asked = edges if tokenizer.target_level == "edge" else tokenizer.targets(raw)
        return GraphData(self, tokenizer, [], {split: judged}, digest, raw=raw, asked=asked)

    # --- what is asked ------------------------------------------------------------------------------------------------

    def _ask(self, raw: Raw) -> Ask:
        of_graphs = raw.of is not None and raw.said is not None and len(raw.said) == len(raw.graphs)
        if self.target_level == "auto":
            return "graph" if of_graphs else "edge" if raw.said is None else "node"
        if self.target_level != "edge" and (raw.said is None or of_graphs != (self.target_level == "graph")):
            way = "name its column: data.label=... (and data.graph=... for graphs), or set data.target_level=edge"
            raise BadInput(
                f"{raw.place}: data.target_level={self.target_level}, and nothing is said of its {self.target_level}s; {way}"
            )
        return self.target_level

    def _edges(self, raw: Raw, ask: Ask) -> tuple[Raw, Ints]:
        """The edges; where they are asked for each once, and the graph with its splits by their numbers."""
        if ask != "edge":
            return raw, raw.pairs
        edges, numbers = _once(raw.pairs, directed=self.directed)
        said = {name: np.setdiff1d(numbers[rows], [-1]) for name, rows in raw.splits.get("edge", {}).items()}
        return replace(raw, splits=raw.splits | {"edge": said}), edges

    def _splits(self, raw: Raw, ask: Ask, known: Ints, abouts: list[str]) -> dict[str, Ints]:
        """The numbers of each split: as the file says, else drawn."""
        said, none = raw.splits.get(ask, {}), known[:0]
        found = {name: np.intersect1d(said.get(name, none), known) for name in ("valid", "test")}
        train = np.setdiff1d(np.intersect1d(said.get("train", known), known), np.concatenate([*found.values()]))
        for split in ("test", "valid"):
            if split not in said and (split == "valid" or not said):
                found[split] = self._drawn(train, abouts, self._strata(raw, ask), split)
                train = np.setdiff1d(train, found[split])
        if self.examples is not None:  # the first ones of a file may all have one label
            train = np.array(sorted(train.tolist(), key=lambda n: key(abouts[n])), np.int64)
        return found | {"train": train}

    def _strata(self, raw: Raw, ask: Ask) -> list[str] | None:
        """What each share is drawn from: the nodes or graphs of a label."""
        return None if ask == "edge" or self._answer(raw) == "number" else raw.said

    def _drawn(self, train: Ints, abouts: list[str], labels: list[str] | None, split: str) -> Ints:
        """Of each label its share: test from one end of the keys' range, valid from the other."""
        strata: dict[str, list[int]] = {}
        for n in train.tolist():
            strata.setdefault("" if labels is None else labels[n], []).append(n)
        drawn = list[int]()
        for some in strata.values():
            some.sort(key=lambda n: key(abouts[n]), reverse=split == "valid")
            drawn += some[: min(round(getattr(self, split) * len(some)), len(some) - 1)]
        return np.array(sorted(drawn), np.int64)

    def _abouts(self, raw: Raw, ask: Ask, edges: Ints) -> list[str]:
        """What decides on which side each stands: its name, or the names of its ends."""
        if ask != "edge":
            return raw.names if ask == "node" else raw.graphs
        return ["\t".join(sorted([raw.names[a], raw.names[b]])) for a, b in edges.tolist()]

    def _answer(self, raw: Raw) -> Literal["label", "number"]:
        return answer_of(filter(None, raw.said or ())) if self.target_type == "auto" else self.target_type

    def _words(self, raw: Raw, ask: Ask, train: Ints) -> GraphWords:
        made: Literal["given", "identity", "degree"] = "given"
        if raw.x is None:
            made = "degree" if ask == "graph" else "identity"
        x = _made(raw, made)
        values = x.val if isinstance(x, Bag) else x
        counts = isinstance(x, Bag) and bool((values >= 0).all())
        scale = ("rows" if counts else "columns") if self.feature_scaling == "auto" else self.feature_scaling
        how: dict[str, Any] = {"features": x.many if isinstance(x, Bag) else x.shape[1], "made": made, "feature_scaling": scale}
        if scale == "columns":
            if isinstance(x, Bag):
                raise BadSetting(
                    "data.feature_scaling=columns: most of its features are 0 and would not stay so; take rows or none"
                )
            known = x if ask != "graph" or raw.of is None else x[np.isin(raw.of, train)]
            width = known.std(0)
            how |= {"centre": known.mean(0).tolist(), "width": np.where(width > 0, width, 1).tolist()}
        if ask == "edge":
            return GraphWords(ask, ["no edge", "edge"], **how)
        said = [raw.said[n] for n in train.tolist()] if raw.said else []
        if self._answer(raw) == "number":
            amounts = np.array([amount(s, raw.place) for s in said])
            spread = float(amounts.std()) or 1.0
            return GraphWords(
                ask, [self.label or "number"], target_type="number", mean=float(amounts.mean()), spread=spread, **how
            )
        labels = sorted({s for s in raw.said or () if s}, key=order)
        if len(labels) < 2:
            raise BadInput(f"{raw.place}: the only label is {labels[0]!r}, so there is nothing to learn")
        return GraphWords(ask, labels, **how)


def _once(pairs: Ints, *, directed: bool = False) -> tuple[Ints, Ints]:
    """Edges, each once and no loops, the smaller end first unless directed; and the number of each row (a loop: -1)."""
    apart = pairs[:, 0] != pairs[:, 1]
    ends, numbers = pairs[apart] if directed else np.sort(pairs[apart], 1), np.full(len(pairs), -1)
    edges, where = np.unique(ends, axis=0, return_inverse=True)
    numbers[apart] = where.reshape(-1)
    return edges, numbers


def _known(raw: Raw, ask: Ask, edges: Ints) -> Ints:
    """Numbers of the nodes or graphs of which something is said, or of the edges."""
    if ask == "edge":
        return np.arange(len(edges))
    return np.array([n for n, said in enumerate(raw.said or ()) if said], np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphData(SplitData):
    """An opened graph, or many; what is asked of each node or graph (of edges: their ends, E 2); numbers by split."""

    raw: Raw
    asked: Any
    laid: dict[Any, Any] = field(default_factory=dict)  # what tasks made of it, found by the next one

    @property
    def max_length(self) -> int:
        return len(self.raw.names)

    @property
    def of(self) -> Ints:
        """Which graph a node is of."""
        return np.zeros(len(self.raw.names), np.int64) if self.raw.of is None else self.raw.of

    def heard(self, pairs: Ints) -> Ints:
        """Edges (E 2) as they are looked along: both ways, unless they have a direction."""
        return pairs if self.settings.directed else np.concatenate([pairs, pairs[:, ::-1]])

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        unit = f"{self.words.target_level}s"
        many = {"nodes": len(self.raw.names), "edges": len(_once(self.raw.pairs)[0]), "features": self.words.features}
        graphs = {"graphs": len(self.raw.graphs)} if self.raw.graphs else {}
        said = f"{len(self.words.labels)} labels" if self.words.target_type == "label" else "a number each"
        told = ", ".join(f"{n:,} {name}" for name, n in (graphs | many).items())
        return {
            unit: {name: len(some) for name, some in self.parts.items()},
            "unit": unit,
            "told": told if self.words.target_level == "edge" else f"{told}, {said}",
            "sha256": self.sha256,
        }
