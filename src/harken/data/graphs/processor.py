"""What a run on graphs keeps of its data: the labels, the scaling of the features, and the types of nodes and edges."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from harken.data.processor import LabelList, SavedProcessor
from harken.data.targets import parse_number, unknown_labels_error
from harken.errors import BadInput
from harken.settings import LabelOutputs
from harken.suggestions import did_you_mean

from .files import Features, Floats, GraphTables, Ints, SparseFeatures

TargetLevel = Literal["node", "edge", "graph", "pair"]
FeatureSource = Literal["file", "identity", "degree"]
SPARSE_DENSITY = 0.25  # features with a smaller fraction of non-zeros are stored sparse
N_DEGREES = 32  # one-hot degree features of graphs without features


@dataclass(frozen=True, eq=False)
class GraphProcessor(SavedProcessor):
    """Maps graph files to features and targets: the labels, and the scaling of features."""

    target_level: TargetLevel
    labels: LabelList
    features: Annotated[int, Field(ge=1, lt=2**31)]
    target_type: Literal["label", "number"] = "label"
    mean: float = 0.0  # of the regression target
    std: PositiveFloat = 1.0
    feature_source: FeatureSource = "file"
    feature_scaling: Literal["rows", "columns", "none"] = "none"
    feature_mean: list[float] | None = None  # per column
    feature_std: list[float] | None = None
    identity: bool = False  # beside the features, every node has an input of its own
    node_types: list[str] = field(default_factory=list)
    edge_types: list[str] = field(default_factory=list)
    nodes_sha256: str | None = None  # of the names of the nodes, if each has an input of its own

    @property
    def vocab(self) -> LabelOutputs:
        """Input features and outputs; edge prediction has no outputs, it compares node vectors."""
        n_outputs, of_pairs = 0 if self.target_level == "edge" else len(self.labels), self.target_level == "pair"
        return LabelOutputs(self.features, n_outputs, edge_types=len(self.edge_types), of_pairs=of_pairs)

    def reads(self, tables: GraphTables) -> bool:
        """Whether a graph has as many input features as that of the training."""
        if self.feature_source == "file" and tables.x is None:
            return False
        x, n_types, n = build_features(tables, self.feature_source), len(self.node_types), len(tables.node_names)
        return input_width(x, n, n_types, self.feature_source, identity=self.identity) == self.features

    def read(self, tables: GraphTables) -> Features:
        """The scaled features of a graph, with those of each node type in columns of their own."""
        x, n_types, n = build_features(tables, self.feature_source), len(self.node_types), len(tables.node_names)
        n_features = input_width(x, n, n_types, self.feature_source, identity=self.identity)
        if self.nodes_sha256 not in (None, names_sha256(tables.node_names)):
            fix = "train with features of the nodes and data.identity=false to use a run for other nodes"
            raise BadInput(
                f"{tables.location}: other nodes, or another order, than those this run was trained on; {fix}"
            )
        if n_features != self.features:
            accepted = f"this run was trained on {self.features:,} input features"
            raise BadInput(f"{tables.location}: {n_features:,} features; {accepted}")
        if isinstance(x, SparseFeatures):
            if self.feature_scaling == "rows":
                x = x._replace(val=x.val / np.maximum(np.bincount(x.row, x.val, n), 1e-9)[x.row])
            x = x._replace(val=x.val.astype(np.float32))
        else:
            if self.feature_scaling == "rows":
                x = x / np.maximum(x.sum(1, keepdims=True), 1e-9)
            elif self.feature_scaling == "columns":  # in float64: timestamps have more digits than float32
                x = (x - np.array(self.feature_mean)) / np.array(self.feature_std)
            x = x.astype(np.float32)
        if n_types:
            x = _by_type(x, self.node_type_ids(tables), n_types, blocks=self.feature_source != "identity")
        return _with_identity(_sparse(x), n) if self.identity else x

    def node_type_ids(self, tables: GraphTables) -> Ints:
        """The type of each node; zeros without types."""
        return _type_ids(tables.node_types, self.node_types, len(tables.node_names), f"{tables.location}, nodes")

    def edge_type_ids(self, tables: GraphTables) -> Ints | None:
        """The type of each edge; None without types."""
        if not self.edge_types:
            return None
        return _type_ids(tables.edge_types, self.edge_types, len(tables.edges), f"{tables.location}, edges")

    def targets(self, tables: GraphTables) -> Floats | Ints:
        """Per node or graph: the label id (-100: unlabelled), or the standardized number (NaN: missing)."""
        labels = tables.labels or []
        if self.target_type == "number":
            numbers = [parse_number(label, tables.location) if label else math.nan for label in labels]
            values = [(number - self.mean) / self.std for number in numbers]
            return np.array(values, np.float32)[:, None]
        label_ids = {label: n for n, label in enumerate(self.labels)} | {"": -100}
        names = tables.unit_names(self.target_level)
        if unknown := [(label, name) for label, name in zip(labels, names, strict=True) if label not in label_ids]:
            places = [(label, f"{tables.location}: {self.target_level} {name!r}") for label, name in unknown]
            raise unknown_labels_error(places, self.labels, f"{self.target_level}s")
        return np.array([label_ids[label] for label in labels], np.int64)


def _type_ids(types: Sequence[str] | None, known: Sequence[str], n: int, place: str) -> Ints:
    """The index of each type among those of the training."""
    if not known:
        return np.zeros(n, np.int64)
    if types is None:
        raise BadInput(f"{place}: no types, but this run was trained with {', '.join(known)}; add a column type")
    index = {name: k for k, name in enumerate(known)}
    if (unknown := next((name for name in types if name not in index), None)) is not None:
        accepted = f"known types are {', '.join(known)}; correct it, or train again with it"
        raise BadInput(f"{place}: unknown type {unknown!r}; {accepted}.{did_you_mean(unknown, known)}")
    return np.array([index[name] for name in types], np.int64)


def names_sha256(names: Sequence[str]) -> str:
    """The digest of the names of the nodes in their order."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


# --- features ---------------------------------------------------------------------------------------------------------


def build_features(tables: GraphTables, source: FeatureSource) -> Features:
    """The features of the file, or one-hot node identities or degrees."""
    n, nodes = len(tables.node_names), np.arange(len(tables.node_names))
    if source == "identity":
        return SparseFeatures(nodes, nodes, np.ones(n, np.float32), n)
    if source == "degree":
        degree = np.bincount(tables.edges.ravel(), minlength=n)
        return SparseFeatures(nodes, np.minimum(degree, N_DEGREES - 1), np.ones(n, np.float32), N_DEGREES)
    if tables.x is None:
        raise BadInput(f"{tables.location}: has no node features, but this run was trained on some; add them")
    if isinstance(tables.x, SparseFeatures) or (tables.x != 0).mean() >= SPARSE_DENSITY:
        return tables.x
    row, col = np.nonzero(tables.x)
    return SparseFeatures(row, col, tables.x[row, col], tables.x.shape[1])


def input_width(x: Features, n: int, n_types: int, source: FeatureSource, *, identity: bool) -> int:
    """The number of inputs of n nodes with these features: a block of features and one input for each type of node."""
    width = x.n_features if isinstance(x, SparseFeatures) else x.shape[1]
    return width * (max(1, n_types) if source != "identity" else 1) + n_types + n * identity


def _sparse(x: Features) -> SparseFeatures:
    if isinstance(x, SparseFeatures):
        return x
    width, cells = x.shape[1], np.arange(x.size)
    return SparseFeatures(cells // width, cells % width, x.reshape(-1), width)


def _by_type(x: Features, types: Ints, n_types: int, *, blocks: bool) -> SparseFeatures:
    """The features of each type in columns of their own, so each type has its own projection; and the type, one-hot."""
    x = _sparse(x)
    if blocks:
        x = x._replace(col=types[x.row] * x.n_features + x.col, n_features=n_types * x.n_features)
    return _join(x, types, n_types)


def _with_identity(x: SparseFeatures, n: int) -> SparseFeatures:
    """The features and one input per node, as large as a row of features (root mean square), so as not to hide them."""
    length = float(np.sqrt(np.square(x.val).sum() / n))
    return _join(x, np.arange(n), n, value=length if length > 0 else 1.0)


def _join(x: SparseFeatures, index: Ints, n: int, value: float = 1.0) -> SparseFeatures:
    """The features followed by n others, of which `index` of each node is `value`."""
    row, col = np.concatenate([x.row, np.arange(len(index))]), np.concatenate([x.col, x.n_features + index])
    order = np.argsort(row, kind="stable")
    val = np.concatenate([x.val, np.full(len(index), value, x.val.dtype)])
    return SparseFeatures(row[order], col[order], val[order], x.n_features + n)
