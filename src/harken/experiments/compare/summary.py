"""Summarize the trials of a comparison: means with intervals over the seeds, and time to equal quality."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypedDict

from harken.experiments.report.formatting import (
    finite_float,
    format_duration,
    format_number,
    format_price,
    format_quantity,
)
from harken.experiments.report.verdict import Facts, by_priority, metric_sign, nested
from harken.recipe import SettingsDict, to_toml_value
from harken.tasks.metrics.intervals import student_t
from harken.tasks.metrics.weighted import Outcomes

SPLITS = ("valid", "test")  # the first one that all trials have is the split of the verdict
COSTS = {"tokens_per_second": "count", "flops": "flop", "kwh": "energy", "co2e_kg": "mass"}
Metrics = dict[str, float]
Intervals = dict[str, list[float] | None]
ASYMMETRIC = 0.2  # distance of the center of an interval from its value, in half widths
PER_TOKEN = ("loss", "perplexity")  # comparable only between equal tokenizers


@dataclass(frozen=True)
class Trial:
    """One training of a comparison: its settings and seed, its run folder, and its facts."""

    settings: SettingsDict
    seed: int
    run: Path
    facts: Facts = field(default_factory=dict)
    cost: Facts = field(default_factory=dict)
    log: Sequence[Facts] = ()
    evals: Sequence[Facts] = ()  # metrics under other settings, or why there are none
    failed: str = ""
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)  # by split, if each row has one seed

    @property
    def tokens(self) -> float:
        """The number of training tokens."""
        return float(self.cost.get("tokens", 0))

    @property
    def token(self) -> str:
        """The kind of token: losses per token are comparable where it is equal."""
        data = self.facts.get("data", {})
        return f"{data.get('token')} {data.get('vocab')}"

    def primary_metric(self, split: str) -> str:
        """The metric of the verdict: the one the task names, else the first by priority."""
        return str(self.protocol(split).get("primary_metric") or by_priority(self.facts["metrics"][split])[0])

    def protocol(self, split: str) -> Facts:
        return dict(self.facts.get("protocol", {}).get(split, {}))

    def curve(self, metric: str = "loss") -> list[tuple[float, float, float]]:
        """Step, training seconds without validation, and metric of each validation pass."""
        points, seconds, last_step, steps = [], 0.0, 0, self.facts.get("steps") or 1
        for line in self.log:
            rate = line.get("tokens_per_second") or math.inf
            seconds += (line["step"] - last_step) * self.tokens / steps / rate
            last_step = line["step"]
            if (value := finite_float(line.get("valid" if metric == "loss" else metric))) is not None:
                points.append((float(last_step), seconds, value))
        return points


def row_name(settings: Facts) -> str:
    """model.heads=8 train.lr=0.01; of model.kind only the value."""
    texts = ((path, value if isinstance(value, str) else to_toml_value(value)) for path, value in settings.items())
    return " ".join(value if path == "model.kind" else f"{path}={value}" for path, value in texts)


# --- statistics over the seeds ----------------------------------------------------------------------------------------


def mean_and_interval(values: Sequence[float]) -> tuple[float, list[float] | None]:
    """The mean and its confidence interval; a single value has no interval."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, None
    half = student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, [mean - half, mean + half]


class MetricMeans(TypedDict):
    """Means over the seeds, and their intervals."""

    metrics: Metrics
    interval: Intervals


def mean_metrics(scores: Sequence[Facts]) -> MetricMeans:
    """Mean and interval of each metric that all scores have."""
    shared = [key for key in scores[0] if all(finite_float(s.get(key)) is not None for s in scores)] if scores else []
    means = {key: mean_and_interval([s[key] for s in scores]) for key in shared}
    return {"metrics": {k: m for k, (m, _) in means.items()}, "interval": {k: i for k, (_, i) in means.items()}}


def seconds_to_level(level: float, points: Iterable[tuple[float, float]], *, sign: int = 1) -> float | None:
    """When a curve of (seconds, metric) first reaches the level, interpolated; sign is -1 for a rising curve."""
    before: tuple[float, float] | None = None
    for seconds, value in points:
        if sign * value <= sign * level:
            if before is None:
                return seconds
            return before[0] + (seconds - before[0]) * (before[1] - level) / (before[1] - value)
        before = seconds, value
    return None


# --- the table --------------------------------------------------------------------------------------------------------


def summarize(groups: Sequence[Sequence[Trial]]) -> Facts:
    """The facts of a comparison. Each group holds the trials of one row: the same settings with several seeds."""
    done = [trial for group in groups for trial in group if not trial.failed]
    splits = [s for s in SPLITS if done and all(s in trial.facts["metrics"] for trial in done)]
    split = splits[0] if splits else ""
    same_tokens = len({trial.token for trial in done}) <= 1
    metric = done[0].primary_metric(split) if split else ""
    if metric in PER_TOKEN and not same_tokens:
        metric = next((m for m in done[0].facts["metrics"][split] if m not in PER_TOKEN), "bits_per_character")
    curve_metric = metric if any(trial.curve(metric) for trial in done) else "loss"
    level = _common_level(done, curve_metric) if same_tokens or curve_metric not in PER_TOKEN else None
    facts: dict[str, Any] = {"split": split, "metric": metric, "curve_metric": curve_metric, "level": level}
    baselines = {name: _baselines(done, name) for name in splits}
    facts |= {"baseline": baselines.get(split, {}), "baselines": baselines}
    facts["rows"] = [_row(group, splits, facts) for group in groups]
    return facts


def _baselines(done: Sequence[Trial], split: str) -> dict[str, Facts]:
    """The baselines; trials with other tokens or data have their own."""
    baselines: dict[str, Facts] = {}
    for trial in done:
        for name, metrics in trial.facts["baseline"].get(split, {}).items():
            if baselines.setdefault(name, metrics) != metrics:
                baselines[f"{name}, {row_name(trial.settings)}"] = metrics
    return baselines


def _common_level(done: Sequence[Trial], metric: str) -> float | None:
    """The best validation metric that every trained trial reaches."""
    sign, trained = metric_sign(metric), (trial for trial in done if trial.facts["steps"])
    bests = [min((sign * value for _, _, value in trial.curve(metric)), default=math.inf) for trial in trained]
    level = finite_float(sign * max(bests)) if bests else None
    return None if level == 0 and sign < 0 else level  # every untrained model reaches 0


def _split_metrics(done: Sequence[Trial], split: str) -> MetricMeans:
    """The metrics of a split over the seeds; with one seed the intervals are those over the examples."""
    summary = mean_metrics([trial.facts["metrics"][split] for trial in done])
    if len(done) == 1:
        summary["interval"] |= {key: list(ends) for key, ends in nested(done[0].facts, "intervals", split).items()}
    return summary


def _part_metrics(done: Sequence[Trial], split: str) -> dict[str, MetricMeans]:
    """The metrics of each part of a split that all trials have, over the seeds."""
    parts = [trial.facts.get("parts", {}).get(split, {}) for trial in done]
    return {name: mean_metrics([p[name] for p in parts]) for name in parts[0] if all(name in p for p in parts)}


def _row(group: Sequence[Trial], splits: Sequence[str], facts: Facts) -> dict[str, Any]:
    done = [trial for trial in group if not trial.failed]
    first, settings = done[0].facts if done else {}, group[0].settings
    scores = {split: _split_metrics(done, split) for split in splits if done}
    level, sign = facts["level"], metric_sign(facts["curve_metric"])
    curves = [[(seconds, value) for _, seconds, value in trial.curve(facts["curve_metric"])] for trial in done]
    times = [] if level is None else [seconds_to_level(level, curve, sign=sign) for curve in curves]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [x for x in values if x is not None]
        return fmean(known) if known else None

    rate = mean(trial.tokens / trial.cost["seconds"] for trial in done if trial.tokens and trial.cost["seconds"])
    return {
        "name": row_name(settings) or str(first.get("kind", "")),
        "model": first.get("kind") or settings.get("model.kind"),
        "settings": settings,
        **(scores[splits[0]] if scores else mean_metrics([])),
        "splits": scores,
        "parts": _part_metrics(done, facts["split"]) if done else {},
        "protocol": first.get("protocol", {}),
        "baseline_differences": first.get("differences", {}) if len(done) == 1 else {},
        "seconds": mean(trial.cost["seconds"] for trial in done),
        "seconds_to_quality": mean(times),
        "steps": mean(trial.facts["steps"] for trial in done),
        "parameters": first.get("parameters"),
        "tokens_per_second": rate and round(rate),
        **{name: mean(trial.cost.get(name) for trial in done) for name in ("flops", "kwh", "co2e_kg", "price_usd")},
        "evals": [_eval_row([trial.evals[n] for trial in done]) for n in range(len(done[0].evals) if done else 0)],
        "seeds": [trial.seed for trial in done],
        "runs": [str(trial.run) for trial in done],
        "failed": [{"seed": trial.seed, "reason": trial.failed} for trial in group if trial.failed],
    }


def _eval_row(evals: Sequence[Facts]) -> dict[str, Any]:
    """The mean metrics of a row under other settings, or why there are none."""
    reason = next((e["failed"] for e in evals if e["failed"]), "")
    return {"settings": evals[0]["settings"], **mean_metrics([e["metrics"] for e in evals]), "failed": reason}


def format_interval(value: float | None, interval: Sequence[float] | None = None) -> str:
    """1.583 ± 0.021, or 0.97 (0.91 to 0.99) if one end is nearer: as many digits as the interval justifies."""
    if value is None:
        return "-"
    half = (interval[1] - interval[0]) / 2 if interval else 0.0
    if not interval or not 1e-6 < half < 1e6:
        return format_number(value, 4) + " ± 0" * bool(interval and half < 1e-6)
    digits = max(0, 1 - math.floor(math.log10(half)))
    if abs((interval[0] + interval[1]) / 2 - value) > ASYMMETRIC * half:
        return f"{value:,.{digits}f} ({interval[0]:,.{digits}f} to {interval[1]:,.{digits}f})"
    return f"{value:,.{digits}f} ± {half:,.{digits}f}"


def comparison_table(facts: Facts) -> tuple[list[str], list[list[str]]]:
    """The comparison as text: the column heads, and a line for each row and each baseline."""
    metric, splits = facts["metric"], dict.fromkeys(split for row in facts["rows"] for split in row["splits"])
    keys = ("loss", "perplexity") if metric == "loss" else (metric, "mae", "rmse")
    known = {(split, key) for row in facts["rows"] for split, s in row["splits"].items() for key in s["metrics"]}
    columns = [(split, key) for split in splits for key in keys if (split, key) in known]
    level = {} if facts["level"] is None else {"seconds_to_quality": f"to {format_number(facts['level'])}"}
    timed = {"seconds": "time", **level}
    uneven = len({row["steps"] for row in facts["rows"] if row["seeds"]}) > 1
    heads = ["", *(f"{split} {key.replace('_', ' ')}" for split, key in columns), "parameters", *["steps"] * uneven]
    priced = any(row.get("price_usd") is not None for row in facts["rows"])
    heads += [*timed.values(), "tokens/s", "FLOPs", "energy", "CO2e", *["price"] * priced, "seeds"]
    lines = []
    for row in facts["rows"]:
        scores = [(row["splits"].get(split), key) for split, key in columns]
        cells = [format_interval(s["metrics"].get(key), s["interval"].get(key)) if s else "" for s, key in scores]
        cells += [format_quantity(row["parameters"], "count")]
        cells += [format_number(row["steps"] and round(row["steps"]))] * uneven
        cells += [format_duration(row[k]) for k in timed]
        cells += [format_quantity(row[k], unit) for k, unit in COSTS.items()]
        cells += [format_price(row.get("price_usd"))] * priced
        n_failed = f", {len(row['failed'])} failed" if row["failed"] else ""
        lines.append([row["name"], *(cell or "-" for cell in cells), f"{len(row['seeds'])}{n_failed}"])
    for name in facts["baseline"]:
        cells = [format_interval(facts["baselines"][split].get(name, {}).get(key)) for split, key in columns]
        lines.append([f"baseline: {name}", *cells, *["-"] * (len(heads) - 1 - len(cells))])
    return heads, lines


def eval_table(facts: Facts) -> tuple[list[str], list[list[str]]]:
    """The metric of each row as trained, and under each evaluation setting."""
    metric, rows = facts["metric"], [row for row in facts["rows"] if row["evals"]]
    names = [row_name(evaluation["settings"]) for evaluation in rows[0]["evals"]] if rows else []
    lines = []
    for row in rows:
        cells = [format_interval(x["metrics"].get(metric), x["interval"].get(metric)) for x in (row, *row["evals"])]
        lines.append([row["name"], *cells])
    return ["", f"{facts['split']} {metric}, as trained", *names], lines


def failures(facts: Facts) -> dict[str, str]:
    """The failed trials and evaluations, with the reason."""
    trials = {f"{row['name']}, seed {f['seed']}": f["reason"] for row in facts["rows"] for f in row["failed"]}
    evals = [(row["name"], e) for row in facts["rows"] for e in row["evals"] if e["failed"]]
    return trials | {f"{name}, evaluated with {row_name(e['settings'])}": e["failed"] for name, e in evals}
