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
    """A point near the center of its cluster; rows count from 1."""

    row: int
    distance: float
    text: NotRequired[str]


class ClusterDescription(TypedDict):
    """Size, distinctive words and nearest points of a cluster."""

    cluster: int
    size: int
    words: list[str]
    examples: list[ClusterExample]


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
