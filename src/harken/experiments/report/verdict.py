"""The verdict on a run: its metric beside the best trivial baseline, and what makes the metric unreliable.

A verdict says "better" or "worse" only if the 95 % interval of the paired difference excludes 0: the difference on the
same examples, resampled together. docs/results.md has the share of verdicts that are wrong by chance.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .formatting import (
    LOWER_IS_BETTER,
    Point,
    display_name,
    finite_float,
    finite_points,
    format_interval_ends,
    format_number,
)

Facts = Mapping[str, Any]
MIN_TOKENS = 1000  # tokens; a metric over fewer is mostly noise
MIN_GROUPS = 8  # of dependent examples; with fewer there is no difference
MARGIN = 0.005  # smaller differences from the baseline count as equal in a run without intervals
SHARES = ("accuracy", "f1", "f1_micro", "exact_match", "em", "auc", "rouge_l", "answer_f1", "bracket_f1")
HIGHEST = dict.fromkeys((*SHARES, "matthews", "pearson", "spearman", "r2"), 1.0) | {"bleu": 100.0, "chrf": 100.0}
NOT_BETTER = "The model is not better than the best trivial baseline."
TOO_EASY = "these examples are too easy to show a difference."
EASY_ADVICE = "The baseline is enough for examples like these. To see a difference, test on harder ones."


def run_verdict(facts: Facts) -> tuple[str, str]:
    """The verdict in one sentence, and its problem: "" if the model is better than every baseline, else NOT_BETTER or
    what prevents a verdict. `advice.advise` turns a problem into next steps."""
    split = verdict_split(facts)
    if warning := too_few_tokens(nested(facts, "protocol", split)):
        return warning, f"Add data, or hold out more of it (data.{split})."
    metrics, where = finite_metrics(nested(facts, "metrics", split)), f"on the {display_name(split)} split"
    if not facts.get("metrics"):
        return "No split was held out, so the model was not evaluated.", "Hold out a split: data.valid=0.1."
    if not metrics:
        return "No metric is finite.", "Lower train.lr and train again."
    baselines = {name: finite_metrics(row) for name, row in nested(facts, "baseline", split).items()}
    primary = nested(facts, "protocol", split).get("primary_metric")
    order = sorted(by_priority(metrics), key=lambda name: name != primary)
    comparable = [(key, best) for key in order if (best := best_baseline(baselines, key))]
    if not comparable:
        return f"{_metric(order[0], metrics)} {where}; there is no baseline to compare it with.", ""
    key, (name, value) = comparable[0]
    baseline, margin = baselines[name], metric_sign(key) * (value - metrics[key])
    shown = "perplexity" if "perplexity" in metrics.keys() & baseline.keys() else key
    majority = nested(facts, "protocol", split).get("most_frequent_label") if key == "accuracy" else None
    head = f"{_metric(shown, metrics)} {where}" + (f", where the most frequent label is {majority}" if majority else "")
    tail = f"best trivial baseline {format_number(baseline[shown])} ({name})"
    if too_few := too_few_groups(nested(facts, "protocol", split)):
        return f"{head}; {tail}. {too_few}", f"Add groups, or hold out more of them (data.{split})."
    difference = finite_metrics(nested(facts, "differences", split, name, key))
    if not {"value", "low", "high"} <= difference.keys():  # a run of an earlier version
        is_better = margin >= MARGIN
        return f"{head}{';' if is_better else ', no better than the'} {tail}.", "" if is_better else NOT_BETTER
    if is_perfect(key, metrics[key]) and is_perfect(key, value):
        return f"{head}, the highest possible value, and so has the baseline {name}; {TOO_EASY}", EASY_ADVICE
    word, size = difference_word(difference), describe_difference(difference, key)
    if word:
        return f"{head}, {word} than the {tail}: {size}.", "" if word == "better" else NOT_BETTER
    unclear = f"no clear difference from the {tail} with {describe_examples(nested(facts, 'protocol', split))}"
    needed = needed_examples(difference, *count_units(nested(facts, "protocol", split)))
    sentences = f"{head}; {unclear}: {size}.", needed
    return " ".join(filter(None, sentences)), NOT_BETTER


def difference_word(difference: Mapping[str, float]) -> str:
    """The word "better" or "worse" if the interval of the difference excludes 0, else ""."""
    return "better" if difference["low"] > 0 else "worse" if difference["high"] < 0 else ""


def is_perfect(metric: str, value: float) -> bool:
    """Whether no value can be better."""
    return metric in HIGHEST and value >= HIGHEST[metric] - 1e-9


def describe_difference(difference: Mapping[str, float], metric: str) -> str:
    """the accuracy is higher by 0.290 (95 % interval 0.210 to 0.370)"""
    change = -metric_sign(metric) * difference["value"]
    sign = 1 if difference["value"] >= 0 else -1
    low, high, value = format_interval_ends(*sorted((sign * difference["low"], sign * difference["high"])), abs(change))
    size = f"{'lower' if change < 0 else 'higher'} by {value}" if change else "the same"
    return f"the {display_name(metric)} is {size} (95 % interval {low} to {high})"


def needed_examples(difference: Mapping[str, float], n: int, unit: str) -> str:
    """About 900 texts would be needed; "" if there are enough to see every difference that matters."""
    count, size = int(difference.get("needed", 0)), difference.get("size", 0.0)
    which = f" to see a difference of {size:g}" if size > abs(difference["value"]) else ""
    return f"About {count:,} {unit} would be needed{which}." if count > n else ""


def count_examples(protocol: Facts) -> tuple[int, str]:
    """Number and name of the examples: the first entry of the protocol."""
    unit, count = next(iter(protocol.items()), ("", None))
    return (count, display_name(unit)) if isinstance(count, int) else (0, "examples")


def count_units(protocol: Facts) -> tuple[int, str]:
    """Number and name of the independent units: the groups of the examples if they have some, else the examples."""
    return (groups, "groups") if isinstance(groups := protocol.get("groups"), int) else count_examples(protocol)


def describe_examples(protocol: Facts) -> str:
    """300 texts in 30 groups"""
    counts = dict.fromkeys((count_examples(protocol), count_units(protocol)))
    return " in ".join(f"{n:,} {unit}" for n, unit in counts)


def too_few_groups(protocol: Facts) -> str:
    """A warning if the examples are in fewer than MIN_GROUPS groups, else ""."""
    n, unit = count_units(protocol)
    if unit != "groups" or n >= MIN_GROUPS:
        return ""
    groups = f"{n} groups are" if n != 1 else "1 group is"
    return f"{groups} too few for a comparison; at least {MIN_GROUPS} are needed."


def _metric(key: str, metrics: Mapping[str, float]) -> str:
    return f"{capitalized(display_name(key))} {format_number(metrics[key])}"


def by_priority(metrics: Facts) -> list[str]:
    """The metrics, the decisive one first: for a language model the loss, otherwise the first that is not the loss."""
    return sorted(metrics, key=lambda key: (key == "loss") != ("perplexity" in metrics))


def too_few_tokens(protocol: Facts) -> str:
    """A warning if fewer than MIN_TOKENS tokens were evaluated, else ""."""
    if (finite_float(tokens := protocol.get("tokens")) or MIN_TOKENS) >= MIN_TOKENS:
        return ""
    return f"Only {format_number(tokens)} tokens were evaluated; a verdict needs at least {MIN_TOKENS:,}."


def displayed_metrics(part: Facts) -> Facts:
    """The metrics of a part of a split, without its position on the axis of a chart."""
    return {key: value for key, value in part.items() if key != "position"}


def interval_texts(facts: Facts, split: str) -> dict[str, str]:
    """The 95 % interval of each metric of a split as text: 0.85 to 0.95."""
    shown = {key: nested(facts, "intervals", split).get(key) for key in nested(facts, "metrics", split)}
    ends = {key: list(map(finite_float, row)) for key, row in shown.items() if isinstance(row, list | tuple)}
    return {
        key: " to ".join(format_interval_ends(low, high))
        for key, (low, high) in ((key, row) for key, row in ends.items() if len(row) == 2)
        if low is not None and high is not None
    }


def audit_warning(facts: Facts) -> str:
    """A warning if the audit failed, else ""."""
    audit = nested(facts, "audit")
    summary = format_number(audit.get("summary"))
    return f"The metrics are not reliable: {summary}." if audit.get("passed") is False else ""


def skipped_updates(facts: Facts) -> str:
    """A warning with the number of skipped updates, or "" if there were none."""
    count = f"{format_number(facts.get('skipped'))} of {format_number(facts.get('steps'))} updates"
    return f"{count} were skipped: their loss or gradient was not finite." if finite_float(facts.get("skipped")) else ""


def verdict_split(facts: Facts) -> str:
    """The split of the verdict: one with enough tokens first, then one with a baseline, then test before validation."""
    baselines = nested(facts, "baseline")
    small = {split: too_few_tokens(nested(facts, "protocol", split)) for split in nested(facts, "metrics")}
    return min(small, key=lambda s: (bool(small[s]), not baselines.get(s), s != "test", s != "valid"), default="")


def validation_summary(facts: Facts) -> str:
    """Why training stopped early; otherwise where the validation loss was lowest and whether it was still falling."""
    if early := facts.get("early"):
        return f"{capitalized(format_number(early))}."
    if len(valid := log_series(facts, "valid")) < 3:
        return ""
    step, best = min(valid, key=lambda point: point[1])
    if step == valid[-1][0]:
        return "The validation loss was lowest at the last step: training longer may help."
    increase = f", then rose to {format_number(valid[-1][1])}" if _rose(valid) else ""
    return f"The validation loss was lowest at step {step:,.0f} ({format_number(best)}){increase}."


def _rose(valid: Sequence[Point]) -> bool:
    return bool(valid) and valid[-1][1] > min(loss for _, loss in valid) + 0.01


def nested(facts: Facts, *path: str) -> Facts:
    """The table at the end of the path; empty where there is none."""
    for key in path:
        facts = inner if isinstance(inner := facts.get(key), Mapping) else {}
    return facts


def finite_metrics(row: object) -> dict[str, float]:
    """The finite numbers of a row."""
    return {k: x for k, v in row.items() if (x := finite_float(v)) is not None} if isinstance(row, Mapping) else {}


def metric_sign(metric: str) -> int:
    """1 if lower is better, else -1: the best value times the sign is the minimum."""
    return 1 if metric in LOWER_IS_BETTER else -1


def best_baseline(baselines: Facts, metric: str) -> tuple[str, float] | None:
    """The name and the value of the best baseline by this metric; None if no baseline has it."""
    values = {name: scores[metric] for name, row in baselines.items() if metric in (scores := finite_metrics(row))}
    return min(values.items(), key=lambda item: metric_sign(metric) * item[1], default=None)


def log_series(facts: Facts, key: str) -> list[Point]:
    """The logged values of one quantity over the steps."""
    return finite_points((r.get("step"), r.get(key)) for r in facts.get("log") or () if isinstance(r, Mapping))


def capitalized(sentence: str) -> str:
    """The sentence with an upper-case first letter; str.capitalize would lower the rest."""
    return sentence[:1].upper() + sentence[1:]
