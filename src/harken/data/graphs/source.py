"""Graph data: node labels, edge prediction, graph labels, or labels of pairs of graphs.

Splits given in the file are used. Other splits are drawn per label by a hash of the name, so added nodes move few
others; edges are drawn by a hash of their two ends, regardless of direction. Of pairs of graphs, graphs are drawn: a
pair is held out if one of its graphs is.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator

from harken.data.detect.preview import is_folder
from harken.data.label_warnings import label_warnings
from harken.data.partition import draw_stratified, split_hash
from harken.data.source import DataSource, Encoding, Processor
from harken.data.split import SplitData, files_sha256
from harken.data.tables import numbers as table_numbers
from harken.data.tables.numbers import DECIMAL_DESCRIPTION, MISSING_DESCRIPTION, Decimal, MissingLabels
from harken.data.targets import infer_target_type, label_sort_key, missing_targets, normalize_numbers, parse_number
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent

from .files import Features, Floats, GraphTables, Ints, SparseFeatures
from .processor import FeatureSource, GraphProcessor, TargetLevel, build_features, input_width, names_sha256
from .read import TABLE_NAMES, read_graph

COLUMN_SETTINGS = (
    *("node", "label", "graph", "source", "target", "weight", "split", "features", "directed", "decimal", "encoding"),
    *("types", "node_type", "edge_type", "target_level"),
)


def graph_paths(path: Path) -> list[Path]:
    """The files that `read_graph` reads."""
    names = [path / f"{name}.csv" for name in TABLE_NAMES] if is_folder(path) else [path]
    return [file for file in names if file.exists()]


def sort_by_graph(tables: GraphTables) -> GraphTables:
    """The same graphs with the nodes of each graph next to each other."""
    assert tables.graph_ids is not None
    order = np.argsort(tables.graph_ids, kind="stable")
    new = np.empty_like(order)
    new[order] = np.arange(len(order))
    x = tables.x
    if isinstance(x, SparseFeatures):
        x = x.select(np.argsort(new[x.row], kind="stable"), new)
    elif x is not None:
        x = x[order]
    labels, splits = tables.labels, dict(tables.splits)
    types = tables.node_types and [tables.node_types[n] for n in order.tolist()]
    if labels is not None and tables.pairs is None and len(labels) != len(tables.graph_names):  # one per node
        labels = [labels[n] for n in order.tolist()]
    if "node" in splits:
        splits["node"] = {name: np.sort(new[nodes]) for name, nodes in splits["node"].items()}
    names, graph_ids = [tables.node_names[n] for n in order.tolist()], tables.graph_ids[order]
    edges = new[tables.edges]
    return replace(
        tables, node_names=names, edges=edges, x=x, graph_ids=graph_ids, labels=labels, splits=splits, node_types=types
    )


class GraphSource(DataSource[GraphProcessor]):
    """Settings of graph data."""

    task: ClassVar[str] = "nodes"

    kind: Literal["graph"] = "graph"
    path: str | None = Field(None, description="folder with edges.csv and nodes.csv, or .npz, .gml or .graphml file")
    target_level: Literal["auto", "node", "edge", "graph", "pair"] = Field(
        "auto", description="what to predict: labels of nodes, graphs or pairs of graphs, or edges; auto: by the labels"
    )
    node: str | None = Field(None, description="node name column in nodes.csv; none: detected, otherwise the first")
    label: str | None = Field(None, description="label column in nodes.csv or graphs.csv; none: detected")
    features: list[str] | None = Field(
        None, description='numeric columns: "age,height"; none: all unused numeric columns; []: no features'
    )
    graph: str | None = Field(None, description="graph name column in nodes.csv; none: detected")
    source: str | None = Field(None, description="source node column in edges.csv; none: detected")
    target: str | None = Field(None, description="target node column in edges.csv; none: detected")
    weight: str | None = Field(None, description="edge weight column in edges.csv; none: detected")
    split: str | None = Field(None, description="column with the values train, valid, test; none: detected")
    types: bool = Field(True, description="use the types of nodes and edges")
    node_type: str | None = Field(None, description="node type column in nodes.csv; none: detected")
    edge_type: str | None = Field(None, description="edge type column in edges.csv; none: detected")
    identity: bool | None = Field(
        None, description="a learned vector per node beside its features; none: only if edges are predicted"
    )
    directed: bool = Field(False, description="pass messages from source to target only")
    feature_scaling: Literal["auto", "rows", "columns", "none"] = Field(
        "auto",
        description="rows: sum to 1; columns: mean 0, standard deviation 1; auto: rows for counts, otherwise columns",
    )
    target_type: Literal["auto", "label", "number"] = Field(
        "auto", description="classification or regression; auto: number if all targets are numeric and not all integers"
    )
    decimal: Decimal = Field(".", description=DECIMAL_DESCRIPTION)
    missing: MissingLabels = Field("keep", description=MISSING_DESCRIPTION)
    valid: float = Field(0.1, ge=0, lt=1, description="validation fraction, unless the file has a split")
    test: float = Field(0.2, ge=0, lt=1, description="test fraction, unless the file has a split")
    examples: int | None = Field(None, ge=1, description="maximum number of training nodes, edges or graphs")
    encoding: Encoding = None
    sha256: str | None = Field(None, description="checksum of the files; a mismatch is refused")

    @field_validator("features", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    def with_absolute_paths(self) -> Self:
        return self.model_copy(update={"path": self.path and str(Path(self.path).absolute())})

    def load_processor(self, folder: Path) -> GraphProcessor:
        return GraphProcessor.load(folder)

    def read(self, path: str, listen: Listener = silent) -> GraphTables:
        """Read the files; the nodes of a graph are contiguous."""
        columns = {name: getattr(self, name) for name in COLUMN_SETTINGS}
        tables = read_graph(Path(path), columns)
        tables = replace(tables, x=None) if self.features == [] else tables
        for text in tables.notices:
            listen("notice", text=text)
        is_sorted = tables.graph_ids is None or (np.diff(tables.graph_ids) >= 0).all()
        return tables if is_sorted else sort_by_graph(tables)

    def _read_for(self, processor: GraphProcessor | None, path: str, listen: Listener) -> GraphTables:
        """The files as a run reads them: for one without types, a column of numbers `type` may be a feature."""
        tables = self.read(path, listen)
        if processor is None or tables.node_types is None or processor.node_types or processor.reads(tables):
            return tables
        untyped = self.model_copy(update={"types": False}).read(path)
        return untyped if processor.reads(untyped) else tables

    def load_data(
        self, *, stateful: bool = False, tokenizer: Processor | None = None, listen: Listener = silent
    ) -> "GraphData":
        if not self.path:
            raise BadSetting("data.path is not set; name a graph: data.path=my.npz")
        known = tokenizer if isinstance(tokenizer, GraphProcessor) else None
        tables = self._clean_labels(self._read_for(known, self.path, listen), listen)
        digest = files_sha256(graph_paths(Path(self.path)), self.sha256, self.path)
        level = self._infer_level(tables)
        tables, edges = self._unique_edges(tables, level)
        splits = self._make_splits(tables, level, edges)
        if level == "pair" and not any(tables.labels or ()):
            fix = "add a column with a number or a label to pairs.csv: graph_a,graph_b,score"
            raise BadInput(f"{tables.location}: its pairs of graphs have no labels; {fix}")
        if not len(splits["train"]):
            raise BadInput(f"{tables.location}: has no training {level}s; add more, or reduce data.valid and data.test")
        if (known is None or known.feature_source != "file") and self._are_constant(tables.x):
            problem = "the features are the same for all nodes, and are not used; data.feature_scaling=none uses them"
            listen("notice", text=f"{tables.location}: {problem}")
            tables = replace(tables, x=None)
        processor = known or self._fit_processor(tables, level, splits["train"])
        targets = edges if level == "edge" else processor.targets(tables)
        if problem := _order_matters(tables):
            listen("notice", text=problem)
        for text in label_warnings(tables.labels or () if processor.target_type == "label" else (), f"{level}s"):
            listen("notice", text=text)
        held_out = {name: indices for name in ("valid", "test") if (indices := splits[name].tolist())}
        train = splits["train"][: self.examples].tolist()
        return GraphData(self, processor, train, held_out, digest, tables=tables, targets=targets)

    def load_split(
        self, path: str, split: str, *, tokenizer: GraphProcessor, stateful: bool = False, listen: Listener = silent
    ) -> "GraphData":
        """Another graph for evaluation: its split of that name, or everything that is labelled.

        Without a split the labels are not read, because only predictions are needed.
        """
        level = tokenizer.target_level
        source = self.model_copy(update={"target_type": tokenizer.target_type})
        tables, edges = self._unique_edges(source._clean_labels(self._read_for(tokenizer, path, listen), listen), level)
        if not split:
            targets = edges if level == "edge" else np.empty(0, np.float32)
            return GraphData(self, tokenizer, [], {}, "", tables=tables, targets=targets)
        indices = tables.splits.get(level, {}).get(split, _labelled(tables, level, edges)).tolist()
        if not indices:
            raise BadInput(f"{path}: has no labels; evaluation needs a graph with labels")
        digest = files_sha256(graph_paths(Path(path)), None, path)
        targets = edges if level == "edge" else tokenizer.targets(tables)
        return GraphData(self, tokenizer, [], {split: indices}, digest, tables=tables, targets=targets)

    def _clean_labels(self, tables: GraphTables, listen: Listener) -> GraphTables:
        """The labels with decimal points; a missing value is an empty label, or kept as a label."""
        if tables.labels is None or self.target_level == "edge":
            return tables
        labels = tables.labels
        if self.target_type != "label":
            labels = normalize_numbers([(label, tables.location) for label in labels], self.decimal, tables.location)
        target_type = self._resolve_target_type(replace(tables, labels=labels))
        dropped = missing_targets(labels, target_type, self.missing, tables.location, listen)
        return replace(tables, labels=["" if label in dropped else label for label in labels])

    def _infer_level(self, tables: GraphTables) -> TargetLevel:
        labels = tables.labels
        if tables.pairs is not None:
            return "pair"
        per_graph = tables.graph_ids is not None and labels is not None and len(labels) == len(tables.graph_names)
        if self.target_level == "auto":
            return "graph" if per_graph else "edge" if labels is None else "node"
        if self.target_level == "pair":
            raise BadInput(f"{tables.location}: has no pairs of graphs; add a file pairs.csv: graph_a,graph_b,score")
        if self.target_level != "edge" and (labels is None or per_graph != (self.target_level == "graph")):
            what = f"data.target_level={self.target_level}, but it has no {self.target_level} labels"
            fix = "name the column: data.label=... (and data.graph=... for graphs), or set data.target_level=edge"
            raise BadInput(f"{tables.location}: {what}; {fix}")
        return self.target_level

    def _unique_edges(self, tables: GraphTables, level: TargetLevel) -> tuple[GraphTables, Ints]:
        """The edges; for edge prediction they are unique, and the splits refer to them."""
        if level != "edge":
            return tables, tables.edges
        edges, rows_to_edges = _drop_duplicates(tables.edges, directed=self.directed)
        splits = {name: np.setdiff1d(rows_to_edges[rows], [-1]) for name, rows in tables.splits.get("edge", {}).items()}
        return replace(tables, splits=tables.splits | {"edge": splits}), edges

    def _make_splits(self, tables: GraphTables, level: TargetLevel, edges: Ints) -> dict[str, Ints]:
        """The indices of each split: from the file, otherwise drawn by a hash of the name or the names of both ends."""
        labelled, keys = _labelled(tables, level, edges), tables.graph_names if level == "graph" else tables.node_names
        ends = edges if level == "edge" else tables.pairs
        if ends is not None:
            names = keys if level == "edge" else tables.graph_names
            keys = ["\t".join(sorted([names[a], names[b]])) for a, b in ends.tolist()]
        in_file, none = tables.splits.get(level, {}), labelled[:0]
        splits = {name: np.intersect1d(in_file.get(name, none), labelled) for name in ("valid", "test")}
        held_out = np.concatenate([*splits.values()])
        train = np.setdiff1d(np.intersect1d(in_file.get("train", labelled), labelled), held_out)
        stratify = level != "edge" and self._resolve_target_type(tables) != "number"
        for split in ("test", "valid"):
            if split not in in_file and (split == "valid" or not in_file):
                if tables.pairs is not None:
                    splits[split] = self._draw_pairs(train, tables.pairs, tables.graph_names, split)
                else:
                    splits[split] = self._draw_split(train, keys, tables.labels if stratify else None, split)
                train = np.setdiff1d(train, splits[split])
        if self.examples is not None:  # the first rows of a file may all have the same label
            train = np.array(sorted(train.tolist(), key=lambda n: split_hash(keys[n])), np.int64)
        return splits | {"train": train}

    def _draw_split(self, train: Ints, keys: list[str], labels: list[str] | None, split: str) -> Ints:
        """Draw a fraction of each label by hash: test from the low end of the hashes, valid from the high end."""
        strata: dict[str, list[int]] = {}
        for n in train.tolist():
            strata.setdefault("" if labels is None else labels[n], []).append(n)
        drawn = draw_stratified(strata.values(), lambda n: keys[n], split, getattr(self, split))
        return np.array(sorted(drawn), np.int64)

    def _draw_pairs(self, train: Ints, pairs: Ints, names: list[str], split: str) -> Ints:
        """The pairs with a graph that is drawn by hash; their number gives about the right share of pairs."""
        graphs = np.unique(pairs[train]).tolist()
        share = 1 - (1 - getattr(self, split)) ** 0.5
        drawn = draw_stratified([graphs], lambda n: names[n], split, share)
        return train[np.isin(pairs[train], drawn).any(1)]

    def _resolve_target_type(self, tables: GraphTables) -> Literal["label", "number"]:
        if self.target_type != "auto":
            return self.target_type
        labels = [label for label in tables.labels or () if label]
        if tables.has_numbers and all(table_numbers.parse_number(label) is not None for label in labels):
            return "number"
        return infer_target_type(labels)

    def _are_constant(self, x: "Features | None") -> bool:
        """Whether all nodes have the same features, which standardization turns into zeros."""
        if x is None or self.feature_scaling not in ("auto", "columns"):
            return False
        return not x.val.any() if isinstance(x, SparseFeatures) else bool((x == x[:1]).all())

    def _fit_processor(self, tables: GraphTables, level: TargetLevel, train: Ints) -> GraphProcessor:
        source: FeatureSource = "file"
        if tables.x is None:
            source = "degree" if level in ("graph", "pair") else "identity"
        x = build_features(tables, source)
        is_counts = isinstance(x, SparseFeatures) and bool((x.val >= 0).all())
        scaling = ("rows" if is_counts else "columns") if self.feature_scaling == "auto" else self.feature_scaling
        identity = source == "file" and (level == "edge" if self.identity is None else self.identity)
        node_types, edge_types = (sorted({*(types or ())}, key=label_sort_key) if self.types else []
                                  for types in (tables.node_types, tables.edge_types))  # fmt: skip
        width = input_width(x, len(tables.node_names), len(node_types), source, identity=identity)
        options: dict[str, Any] = {"features": width, "feature_source": source, "feature_scaling": scaling}
        options |= {"identity": identity, "node_types": node_types, "edge_types": edge_types}
        if identity or source == "identity":
            options["nodes_sha256"] = names_sha256(tables.node_names)
        if scaling == "columns":
            if isinstance(x, SparseFeatures):
                raise BadSetting("data.feature_scaling=columns would make sparse features dense; use rows or none")
            graphs = None if level not in ("graph", "pair") else train if tables.pairs is None else tables.pairs[train]
            rows = x if graphs is None or tables.graph_ids is None else x[np.isin(tables.graph_ids, graphs)]
            std = rows.std(0)
            options |= {"feature_mean": rows.mean(0).tolist(), "feature_std": np.where(std > 0, std, 1).tolist()}
        if level == "edge":
            return GraphProcessor(level, ["no edge", "edge"], **options)
        if self._resolve_target_type(tables) == "number":
            assert tables.labels is not None
            numbers = np.array([parse_number(tables.labels[n], tables.location) for n in train.tolist()])
            options |= {"mean": float(numbers.mean()), "std": float(numbers.std()) or 1.0}
            return GraphProcessor(level, [self.label or "number"], target_type="number", **options)
        labels = sorted({label for label in tables.labels or () if label}, key=label_sort_key)
        if len(labels) < 2:
            raise BadInput(f"{tables.location}: the only label is {labels[0]!r}; classification needs at least two")
        return GraphProcessor(level, labels, **options)


def _drop_duplicates(edges: Ints, *, directed: bool = False) -> tuple[Ints, Ints]:
    """Unique edges without self-loops, sorted ends unless directed; and the edge of each row (-1: a self-loop)."""
    distinct = edges[:, 0] != edges[:, 1]
    ends, rows_to_edges = edges[distinct] if directed else np.sort(edges[distinct], 1), np.full(len(edges), -1)
    unique, inverse = np.unique(ends, axis=0, return_inverse=True)
    rows_to_edges[distinct] = inverse.reshape(-1)
    return unique, rows_to_edges


def _order_matters(tables: GraphTables) -> str:
    """A notice if some pair of graphs has another label in the reverse order."""
    if tables.pairs is None or tables.labels is None:
        return ""
    labels = {(a, b): label for (a, b), label in zip(tables.pairs.tolist(), tables.labels, strict=True)}
    different = sum(labels.get((b, a), label) != label for (a, b), label in labels.items())
    fix = "if the order matters, set model.symmetric=false"
    return f"{tables.location}: {different:,} pairs have another label in reverse order; {fix}" if different else ""


def _labelled(tables: GraphTables, level: TargetLevel, edges: Ints) -> Ints:
    """The indices of all labelled nodes, graphs or pairs, or of all edges."""
    if level == "edge":
        return np.arange(len(edges))
    return np.array([n for n, label in enumerate(tables.labels or ()) if label], np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphData(SplitData[GraphProcessor, list[int]]):
    """Loaded graphs. The splits hold indices into `targets`, which has label ids, numbers, or edges (E 2)."""

    tables: GraphTables
    targets: Floats | Ints
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict)  # of the tasks

    @property
    def max_length(self) -> int:
        return len(self.tables.node_names)

    @property
    def graph_ids(self) -> Ints:
        """The graph of each node."""
        return np.zeros(self.max_length, np.int64) if self.tables.graph_ids is None else self.tables.graph_ids

    def message_edges(self, edges: Ints) -> Ints:
        """Edges (E 2) along which messages pass: both directions, unless data.directed."""
        return edges if self.settings.directed else np.concatenate([edges, edges[:, ::-1]])

    @property
    def type_names(self) -> dict[str, list[str]]:
        """The types in use."""
        types = {"node types": self.processor.node_types, "edge types": self.processor.edge_types}
        return {name: values for name, values in types.items() if values}

    def unit_names(self) -> list[str]:
        """The names of the targets."""
        return self.tables.unit_names(self.processor.target_level)

    def facts(self) -> dict[str, object]:
        """Summary of the data for the report."""
        unit, tables = f"{self.processor.target_level}s", self.tables
        counts = {"graphs": len(tables.graph_names)} if tables.graph_names else {}
        counts |= {"nodes": self.max_length, "edges": len(_drop_duplicates(tables.edges)[0])}
        counts["features"] = self.processor.features
        counts |= {name: len(types) for name, types in self.type_names.items()}
        counts |= {"pairs": len(tables.pairs)} if tables.pairs is not None else {}
        summary = ", ".join(f"{n:,} {name}" for name, n in counts.items())
        if self.processor.target_level != "edge":
            numeric = self.processor.target_type == "number"
            summary += ", numeric target" if numeric else f", {len(self.processor.labels)} labels"
        sizes = {name: len(indices) for name, indices in self.parts.items()}
        return {unit: sizes, "unit": unit, "summary": summary, "sha256": self.sha256}
