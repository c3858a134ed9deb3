"""Types of the facts of a clustering."""

from typing import NotRequired, TypedDict


class ClusterCandidate(TypedDict):
    """The criteria for one number of clusters, and every restart."""

    k: int
    inertia: float
    silhouette: float
    stability: float
    inertias: list[float]
    n_iter: list[int]


class ClusterExample(TypedDict):
    """A point near the center of its cluster; rows count from 1, without a header."""

    row: int
    line: NotRequired[int]  # of a file
    distance: float
    text: NotRequired[str]


class ClusterDescription(TypedDict):
    """Size, distinctive words and nearest points of a cluster."""

    cluster: int
    size: int
    words: list[str]
    examples: list[ClusterExample]
    labels: NotRequired[dict[str, int]]  # number of points with each label, the most frequent first


class RegressionCandidate(TypedDict):
    """The cross-validated R^2 of the first components, and their share of the variance."""

    components: int
    r2: float
    explained: float


class TableRegressionFacts(TypedDict):
    """A principal component regression on a table."""

    target: str
    rows: int
    components: int
    r2: float  # cross-validated
    r2_train: float
    folds: int
    best_components: int  # with the largest cross-validated R^2
    candidates: list[RegressionCandidate]
    intercept: float
    coefficients: dict[str, float]  # in the units of the columns


class ClusterFacts(TypedDict):
    """The content of clusters.json."""

    data: str
    points: int
    columns: int
    k: int
    inertia: float
    inertias: list[float]
    labels: list[int]
    choice: dict[str, int]
    silhouette_points: int
    candidates: list[ClusterCandidate]
    clusters: list[ClusterDescription]
    explained: list[float]
    settings: dict[str, object]
    true_labels: NotRequired[int]  # number of different labels of the points
    nmi: NotRequired[float]
    purity: NotRequired[float]
    regression: NotRequired[TableRegressionFacts]
