"""From many trainings to one table: means over seeds with their intervals, time to equal quality, and a verdict."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from harken.experiments.report.line_chart import Point, duration, figure, number, scaled
from harken.experiments.report.page import FEW, LESS, leading, too_few
from harken.recipe import Settings, as_toml

SURE = 0.95  # how often an interval holds the true mean
COSTS = {"tokens_per_second": "count", "flops": "flop", "kwh": "energy", "co2e_kg": "mass"}
NAMED = 4  # rows a verdict names before it counts them
PER_TOKEN = ("loss", "perplexity")  # these say nothing beside those of other tokens
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One training of a comparison: its settings and seed, its run folder, and what came of it."""

    settings: Settings
    seed: int
    run: Path
    facts: Facts = field(default_factory=dict)
    cost: Facts = field(default_factory=dict)
    log: Sequence[Facts] = ()
    evals: Sequence[Facts] = ()  # how it does under other settings: their metrics, or why not
    formula: Facts | None = None  # what a layer of it costs, by the lecture
    failed: str = ""

    @property
    def tokens(self) -> float:
        """How many tokens it learned from."""
        return float(self.cost.get("tokens", 0))

    @property
    def token(self) -> str:
        """What a token of its data is: losses per token can be compared where this is the same."""
        data = self.facts.get("data", {})
        return f"{data.get('token')} {data.get('vocab')}"

    def judged_by(self, split: str) -> str:
        """The metric that counts: the one its task names, else the one its numbers lead with."""
        return str(self.protocol(split).get("judged_by") or leading(self.facts["metrics"][split])[0])

    def protocol(self, split: str) -> Facts:
        return dict(self.facts.get("protocol", {}).get(split, {}))

    def curve(self, metric: str = "loss") -> list[tuple[float, float, float]]:
        """Each look at the valid split: its step, the seconds of training until then without the looks, its metric."""
        found, seconds, before, steps = [], 0.0, 0, self.facts.get("steps") or 1
        for line in self.log:
            rate = line.get("tokens_per_second") or math.inf
            seconds += (line["step"] - before) * self.tokens / steps / rate
            before = line["step"]
            if (seen := number(line.get("valid" if metric == "loss" else metric))) is not None:
                found.append((float(before), seconds, seen))
        return found


def name_of(settings: Facts) -> str:
    """model.heads=8 train.lr=0.01; a kind of model needs no more than its name."""
    said = ((path, value if isinstance(value, str) else as_toml(value)) for path, value in settings.items())
    return " ".join(value if path == "model.kind" else f"{path}={value}" for path, value in said)


# --- numbers over seeds -----------------------------------------------------------------------------------------------


def student(freedom: int, sure: float = SURE) -> float:
    """The t that |T| stays below so often, T Student's with so many degrees of freedom.

    For whole degrees P(|T| < t) is a finite sum in theta = atan(t / sqrt(freedom)) (Abramowitz and Stegun 26.7.3-4);
    theta is found by halving.
    """

    def inside(theta: float) -> float:
        odd, c = freedom % 2, math.cos(theta)
        term, total = c if odd else 1.0, 0.0
        for k in range(2 + odd, freedom + 1, 2):
            total += term
            term *= c * c * (k - 1) / k
        series = math.sin(theta) * total
        return (theta + series) * 2 / math.pi if odd else series

    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < sure else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def over_seeds(values: Sequence[float]) -> tuple[float, list[float] | None]:
    """The mean, and the interval that holds the true one; one value alone has none."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, None
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, [mean - half, mean + half]


def averaged(scores: Sequence[Facts]) -> dict[str, dict[str, Any]]:
    """The metrics that all of these have: the mean of each, and its interval."""
    shared = [key for key in scores[0] if all(number(s.get(key)) is not None for s in scores)] if scores else []
    found = {key: over_seeds([s[key] for s in scores]) for key in shared}
    return {"metrics": {k: m for k, (m, _) in found.items()}, "interval": {k: i for k, (_, i) in found.items()}}


def seconds_to(level: float, points: Iterable[Point], *, sign: int = 1) -> float | None:
    """When a curve of (seconds, metric) first is as good as the level, read between two looks as on a straight line.

    It falls to it; with sign -1 it rises.
    """
    before: Point | None = None
    for seconds, seen in points:
        if sign * seen <= sign * level:
            if before is None:
                return seconds
            return before[0] + (seconds - before[0]) * (before[1] - level) / (before[1] - seen)
        before = seconds, seen
    return None


def better(metric: str) -> int:
    """1 where less is better, -1 where more is: times it, the best is the least."""
    return 1 if metric in LESS else -1


# --- the table --------------------------------------------------------------------------------------------------------


def tally(groups: Sequence[Sequence[Trial]]) -> dict[str, Any]:
    """What a comparison found. Each group holds the trials of one row: the same settings under several seeds."""
    done = [trial for group in groups for trial in group if not trial.failed]
    splits = [s for s in ("valid", "test") if done and all(s in trial.facts["metrics"] for trial in done)]
    split = splits[0] if splits else ""
    alike = len({trial.token for trial in done}) <= 1
    metric = done[0].judged_by(split) if split else ""
    if metric in PER_TOKEN and not alike:
        metric = next((m for m in done[0].facts["metrics"][split] if m not in PER_TOKEN), "bits_per_character")
    watched = metric if any(trial.curve(metric) for trial in done) else "loss"  # what the looks told
    level = _level(done, watched) if alike or watched not in PER_TOKEN else None
    found: dict[str, Any] = {"split": split, "metric": metric, "watched": watched, "level": level}
    free = {each: _free(done, each) for each in splits}
    found |= {"baseline": free.get(split, {}), "baselines": free}
    found["rows"] = [_row(group, splits, found) for group in groups]
    return found | {"verdict": verdict(found)}


def _free(done: Sequence[Trial], split: str) -> dict[str, Facts]:
    """The baselines that cost nothing; where trials have other tokens or other data, each its own."""
    free: dict[str, Facts] = {}
    for trial in done:
        for name, metrics in trial.facts["baseline"].get(split, {}).items():
            if free.setdefault(name, metrics) != metrics:
                free[f"{name}, {name_of(trial.settings)}"] = metrics
    return free


def _level(done: Sequence[Trial], metric: str) -> float | None:
    """The best that every trial reaches in its looks; one that learned nothing has none."""
    sign, learned = better(metric), (trial for trial in done if trial.facts["steps"])
    bests = [min((sign * seen for _, _, seen in trial.curve(metric)), default=math.inf) for trial in learned]
    level = number(sign * max(bests)) if bests else None
    return None if level == 0 and sign < 0 else level  # of what shall rise, every beginner has reached 0


def _scored(done: Sequence[Trial], split: str) -> dict[str, dict[str, Any]]:
    """The metrics of a split over the seeds; of one seed, with the interval over the sentences if it was drawn."""
    found = averaged([trial.facts["metrics"][split] for trial in done])
    for key, middle in found["metrics"].items() if len(done) == 1 else ():
        if (half := number(done[0].protocol(split).get(f"{key}_interval"))) is not None:
            found["interval"][key] = [middle - half, middle + half]
    return found


def _parts(done: Sequence[Trial], split: str) -> dict[str, dict[str, Any]]:
    """The metrics of each group of a split that all trials have judged apart, over the seeds."""
    each = [trial.facts.get("parts", {}).get(split, {}) for trial in done]
    return {name: averaged([parts[name] for parts in each]) for name in each[0] if all(name in parts for parts in each)}


def _row(group: Sequence[Trial], splits: Sequence[str], judged: Facts) -> dict[str, Any]:
    done = [trial for trial in group if not trial.failed]
    first, settings = done[0].facts if done else {}, group[0].settings
    scores = {split: _scored(done, split) for split in splits if done}
    level, sign = judged["level"], better(judged["watched"])
    curves = [[(seconds, seen) for _, seconds, seen in trial.curve(judged["watched"])] for trial in done]
    times = [] if level is None else [seconds_to(level, curve, sign=sign) for curve in curves]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [x for x in values if x is not None]
        return fmean(known) if known else None

    rate = mean(trial.tokens / trial.cost["seconds"] for trial in done if trial.tokens and trial.cost["seconds"])
    return {
        "name": name_of(settings) or str(first.get("kind", "")),
        "model": first.get("kind") or settings.get("model.kind"),
        "settings": settings,
        **(scores[splits[0]] if scores else averaged([])),
        "splits": scores,
        "parts": _parts(done, judged["split"]) if done else {},
        "protocol": first.get("protocol", {}),
        "seconds": mean(trial.cost["seconds"] for trial in done),
        "seconds_to_quality": mean(times),
        "steps": mean(trial.facts["steps"] for trial in done),
        "parameters": first.get("parameters"),
        "tokens_per_second": rate and round(rate),
        **{name: mean(trial.cost[name] for trial in done) for name in ("flops", "kwh", "co2e_kg")},
        "formula": done[0].formula if done else None,
        "evals": [_eval([trial.evals[n] for trial in done]) for n in range(len(done[0].evals) if done else 0)],
        "seeds": [trial.seed for trial in done],
        "runs": [str(trial.run) for trial in done],
        "failed": [{"seed": trial.seed, "reason": trial.failed} for trial in group if trial.failed],
    }


def _eval(found: Sequence[Facts]) -> dict[str, Any]:
    """How a row does under other settings; if that was refused, why."""
    refused = next((one["failed"] for one in found if one["failed"]), "")
    return {"settings": found[0]["settings"], **averaged([one["metrics"] for one in found]), "failed": refused}


def in_words(value: float | None, interval: Sequence[float] | None = None) -> str:
    """1.583 ± 0.021: as many digits as the interval leaves."""
    if value is None:
        return "-"
    half = (interval[1] - interval[0]) / 2 if interval else 0.0
    if not interval or not 1e-6 < half < 1e6:
        return figure(value, 4) + " ± 0" * bool(interval and half < 1e-6)
    digits = max(0, 1 - math.floor(math.log10(half)))
    return f"{value:,.{digits}f} ± {half:,.{digits}f}"


def grid(found: Facts) -> tuple[list[str], list[list[str]]]:
    """The comparison for people: the heads of the columns, and a row for each setting and each free baseline."""
    metric, splits = found["metric"], dict.fromkeys(split for row in found["rows"] for split in row["splits"])
    shown = ("loss", "perplexity") if metric == "loss" else (metric,)
    asked = [(split, key) for split in splits for key in shown if _has(found, split, key)]
    timed = {"seconds": "time", "seconds_to_quality": f"to {figure(found['level'])}"}
    if found["level"] is None:
        del timed["seconds_to_quality"]
    uneven = len({row["steps"] for row in found["rows"] if row["seeds"]}) > 1
    heads = ["", *(f"{split} {key.replace('_', ' ')}" for split, key in asked), "weights", *["steps"] * uneven]
    heads += [*timed.values(), "tokens/s", "arithmetic", "energy", "CO2e", "a layer", "seeds"]
    lines = []
    for row in found["rows"]:
        scores = [(row["splits"].get(split), key) for split, key in asked]
        cells = [in_words(s["metrics"].get(key), s["interval"].get(key)) if s else "" for s, key in scores]
        cells += [scaled(row["parameters"], "count"), *[figure(row["steps"] and round(row["steps"]))] * uneven]
        cells += [duration(row[k]) for k in timed]
        cells += [*(scaled(row[k], unit) for k, unit in COSTS.items()), _layer(row["formula"])]
        lost = f", {len(row['failed'])} failed" if row["failed"] else ""
        lines.append([row["name"], *(cell or "-" for cell in cells), f"{len(row['seeds'])}{lost}"])
    for name in found["baseline"]:
        cells = [in_words(found["baselines"][split].get(name, {}).get(key)) for split, key in asked]
        lines.append([f"{name}, for free", *cells, *["-"] * (len(heads) - 1 - len(cells))])
    return heads, lines


def _layer(formula: Facts | None) -> str:
    return f"{formula['order']} = {scaled(formula['products'], 'count')}" if formula else ""


def _has(found: Facts, split: str, key: str) -> bool:
    return any(key in row["splits"].get(split, {}).get("metrics", {}) for row in found["rows"])


def elsewhere(found: Facts) -> tuple[list[str], list[list[str]]]:
    """The metric of each row as it was trained, and under each setting it was asked about too."""
    metric, rows = found["metric"], [row for row in found["rows"] if row["evals"]]
    asked = [name_of(one["settings"]) for one in rows[0]["evals"]] if rows else []
    lines = []
    for row in rows:
        told = [in_words(x["metrics"].get(metric), x["interval"].get(metric)) for x in (row, *row["evals"])]
        lines.append([row["name"], *told])
    return ["", f"{found['split']} {metric}, as trained", *asked], lines


def refused(found: Facts) -> dict[str, str]:
    """What failed, and why."""
    said = {f"{row['name']}, seed {one['seed']}": one["reason"] for row in found["rows"] for one in row["failed"]}
    under = [(row["name"], one) for row in found["rows"] for one in row["evals"] if one["failed"]]
    return said | {f"{name}, judged under {name_of(one['settings'])}": one["failed"] for name, one in under}


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(found: Facts) -> str:
    """What the numbers allow to say, in one sentence."""
    split, metric = found["split"], found["metric"]
    rows = [row for row in found["rows"] if metric in row["metrics"]]
    lost = [row["name"] for row in found["rows"] if not row["seeds"]]
    if not rows:
        return (
            "Every trial failed." if len(lost) == len(found["rows"]) else "Nothing was held out, so nothing was judged."
        )
    protocols = (row["protocol"].get(split, {}) for row in rows)
    if told := too_few(min(protocols, key=lambda protocol: number(protocol.get("tokens")) or FEW)):
        return told
    sign = better(metric)
    rows.sort(key=lambda row: sign * row["metrics"][metric])
    said = [_ranked(rows, f"{split} {metric.replace('_', ' ')}", metric)]
    said += [f"{_listed(lost)} failed"] if lost else []
    free = {name: m[metric] for name, m in found["baseline"].items() if metric in m}
    if free:
        name = min(free, key=lambda n: sign * free[n])
        if (ahead := sign * (rows[0]["metrics"][metric] - free[name])) >= 0:
            said += [f"the free {name} is {'better' if ahead else 'as good'} ({figure(free[name], 4)})"]
    return "; ".join(said) + "."


def _ranked(rows: Sequence[Facts], what: str, metric: str) -> str:
    """Who is best, as far as the intervals let one say so. The best row is the first."""
    words = [in_words(row["metrics"][metric], row["interval"][metric]) for row in rows]
    names = [row["name"] for row in rows]
    if len(rows) == 1:
        return f"{names[0]}: {what} {words[0]}"
    best, extreme = rows[0]["interval"][metric], "lowest" if metric in LESS else "highest"
    first = f"{names[0]} has the {extreme} {what}, {words[0]}"
    if best is None:
        same = sum(row["metrics"][metric] == rows[0]["metrics"][metric] for row in rows)
        if same > 1:
            first = f"No difference is seen between {_listed(names[:same])}: {what} {words[0]} of each"
        after = f" ({names[same]}: {words[same]})" if same < len(rows) else ""
        return f"{first}{after}, but one seed has no interval: it may be chance"
    level = [n for n, row in enumerate(rows) if _overlap(best, row["interval"][metric])]
    over = " over the sentences" if all(len(row["seeds"]) == 1 for row in rows) else ""
    chance = ", of one seed each: another may do otherwise" if over else ""
    if len(level) == 1:
        return f"{first}; the next, {names[1]}, has {words[1]}, and the intervals{over} do not overlap{chance}"
    worse = [name for n, name in enumerate(names) if n not in level]
    numbers = f" ({', '.join(words[n] for n in level)})" if len(level) <= NAMED else ""
    said = f"No difference can be seen between {_listed([names[n] for n in level])}"
    said += f": their intervals of the {what}{over} overlap{numbers}"
    return said + f"; {_listed(worse)} {'is' if len(worse) == 1 else 'are'} worse" * bool(worse)


def _overlap(a: Sequence[float], b: Sequence[float] | None) -> bool:
    """A number without an interval may lie anywhere."""
    return b is None or (a[0] <= b[1] and b[0] <= a[1])


def _listed(names: Sequence[str]) -> str:
    """a, b and c; of many, the first and how many others."""
    if len(names) > NAMED:
        return f"{names[0]} and {len(names) - 1} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
