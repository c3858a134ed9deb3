"""Types of the facts of a comparison."""

from typing import TypedDict

Metrics = dict[str, float]
Intervals = dict[str, list[float] | None]


class ComparisonRow(TypedDict):
    """One row of a comparison: a combination of settings; numbers are means over the seeds."""

    name: str
    model: str | None
    settings: dict[str, object]
    metrics: Metrics  # on the split of the verdict
    interval: Intervals
    splits: dict[str, dict[str, object]]  # "metrics" and "interval" of each split
    parts: dict[str, dict[str, object]]
    protocol: dict[str, object]
    seconds: float | None
    seconds_to_quality: float | None
    steps: float | None
    parameters: int | None
    tokens_per_second: int | None
    flops: float | None
    kwh: float | None
    co2e_kg: float | None
    evals: list[dict[str, object]]
    seeds: list[int]
    runs: list[str]
    failed: list[dict[str, object]]


class ComparisonFacts(TypedDict):
    """The content of compare.json."""

    comparison: str
    what: str
    axes: dict[str, list[object]]
    settings: dict[str, object]
    evals: dict[str, list[object]]
    seeds: int
    split: str
    metric: str
    curve_metric: str
    level: float | None
    baseline: dict[str, Metrics]
    baselines: dict[str, dict[str, Metrics]]
    rows: list[ComparisonRow]
    verdict: str
    command: str
    implied_settings: dict[str, list[object]]
