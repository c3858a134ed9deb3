"""The verdict of a comparison: the best row, and from which rows it differs clearly.

Rows with several seeds are compared over the seeds (Welch's t test), rows with one seed over the examples of the split
(paired bootstrap). If the seeds of each of two rows have one value, only the examples are a source of noise: then the
interval follows from those of both rows (Newcombe). The best row is chosen by the same numbers, so with k rows any
of the k (k-1) / 2 pairs may be the one that is reported: the intervals allow for this number of comparisons
(Bonferroni). A comparison of equal settings claims a difference in at most 5 % of the cases, whatever the number of
rows.
"""

from collections.abc import Sequence

from harken.experiments.report.formatting import display_name, finite_float, format_interval_ends, format_number
from harken.experiments.report.verdict import (
    MIN_TOKENS,
    TOO_EASY,
    Facts,
    best_baseline,
    count_units,
    difference_word,
    is_perfect,
    metric_sign,
    needed_examples,
    nested,
    too_few_groups,
    too_few_tokens,
)
from harken.tasks.metrics.paired_difference import Difference, compare_outcomes, newcombe_difference, welch_difference

from .summary import Trial, format_interval

MAX_NAMES = 4  # rows that a verdict lists by name
SAME_TIME = 1.25  # ratio of the longest to the shortest training time that counts as equal time
OVER_SEEDS = "seeds each"


def add_verdict(facts: Facts, groups: Sequence[Sequence[Trial]]) -> dict[str, object]:
    """The facts with the difference of the best row to each other row, and the verdict."""
    facts = dict(facts)
    facts["differences"] = _differences(facts, groups) if facts["metric"] else {}
    return facts | {"verdict": comparison_verdict(facts)}


def _differences(facts: Facts, groups: Sequence[Sequence[Trial]]) -> dict[str, dict[str, object]]:
    """How much better the best row is than each other row; rows that cannot be compared are left out."""
    split, metric = facts["split"], facts["metric"]
    rows = [
        (row, [trial for trial in group if not trial.failed]) for row, group in zip(facts["rows"], groups, strict=True)
    ]
    rows = [(row, done) for row, done in rows if metric in row["metrics"]]
    rows.sort(key=lambda pair: metric_sign(metric) * pair[0]["metrics"][metric])
    n_pairs = len(rows) * (len(rows) - 1) // 2
    differences = {}
    for row, done in rows[1:]:
        if (outcome := _difference(rows[0][1], done, split, metric, n_pairs)) is not None:
            difference, n, over = outcome
            differences[row["name"]] = {**difference.facts(n, metric), "n": n, "over": over}
    return differences


def _difference(
    best: Sequence[Trial], other: Sequence[Trial], split: str, metric: str, n_pairs: int
) -> tuple[Difference, int, str] | None:
    """The difference with its interval, and the number of seeds or examples that it is based on, with their name."""
    values = [[trial.facts["metrics"][split][metric] for trial in group] for group in (best, other)]
    if min(map(len, values)) > 1:
        sign = -metric_sign(metric)
        if difference := welch_difference(*values, sign=sign, comparisons=n_pairs):
            return difference, min(map(len, values)), OVER_SEEDS
        intervals = [nested(group[0].facts, "intervals", split) for group in (best, other)]
        if not all(metric in row for row in intervals):
            return None
        ends = [row[metric] for row in intervals]
        difference = newcombe_difference(values[0][0], values[1][0], ends, sign=sign).adjusted(n_pairs, n_pairs)
        return difference, *count_units(best[0].protocol(split))
    if max(map(len, values)) > 1:
        return None
    first, second = (group[0].outcomes.get(split, {}) for group in (best, other))
    if metric not in first or metric not in second:
        return None
    row = compare_outcomes({metric: first[metric]}, {"": {metric: second[metric]}})[""]
    if metric not in row:
        return None
    return row[metric].adjusted(n_pairs, n_pairs), *count_units(best[0].protocol(split))


def comparison_verdict(facts: Facts) -> str:
    """The conclusion that the intervals of the differences support."""
    split, metric = facts["split"], facts["metric"]
    rows = [row for row in facts["rows"] if metric in row["metrics"]]
    failed = [row["name"] for row in facts["rows"] if not row["seeds"]]
    if not rows:
        everything = len(failed) == len(facts["rows"])
        return "Every trial failed." if everything else "No split was held out, so the models were not evaluated."
    protocols = (row["protocol"].get(split, {}) for row in rows)
    smallest = min(protocols, key=lambda protocol: finite_float(protocol.get("tokens")) or MIN_TOKENS)
    if warning := too_few_tokens(smallest):
        return warning
    rows.sort(key=lambda row: metric_sign(metric) * row["metrics"][metric])
    what = f"{display_name(split)} {display_name(metric)}"
    sentences = _ranking(rows, what, metric, facts.get("differences") or {})
    sentences += [f"Failed: {_name_list(failed)}."] if failed else []
    return " ".join(filter(None, (*sentences, _compare_with_baseline(facts, rows[0]), _compare_steps(rows))))


def _ranking(rows: Sequence[Facts], what: str, metric: str, differences: Facts) -> list[str]:
    """The best row, and the rows that are clearly worse. The rows are sorted, the best first."""
    values = [format_interval(row["metrics"][metric], row["interval"].get(metric)) for row in rows]
    names = [row["name"] for row in rows]
    if len(rows) == 1:
        return [f"{names[0]}: {what} {values[0]}."]
    extreme = "lowest" if metric_sign(metric) > 0 else "highest"
    first = f"{names[0]} has the {extreme} {what}, {values[0]}"
    if not differences:
        several = min(len(row["seeds"]) for row in rows) > 1
        why = "All seeds of a row have the same value:" if several else "With one seed"
        noise = f"{why} there is no interval, so the difference may be noise."
        return [f"{first} ({names[1]}: {values[1]}).", noise]
    words = {name: difference_word(difference) for name, difference in differences.items()}
    tied = [n for n, name in enumerate(names) if n == 0 or not words.get(name)]
    worse = [name for n, name in enumerate(names) if n not in tied]
    nearest = differences.get(names[1])
    size = f": {_describe(nearest, len(rows))}" if nearest else ""
    caveat = "Each has one seed; other seeds may differ." if max(len(row["seeds"]) for row in rows) == 1 else ""
    if len(tied) == 1:
        opponents = names[1] if len(rows) == 2 else f"all others; the next is {names[1]} with {values[1]}"
        return [f"{first}, clearly better than {opponents}{size}.", caveat]
    numbers = f" ({', '.join(values[n] for n in tied)})" if len(tied) <= MAX_NAMES else ""
    verdict = f"No clear difference in {what} between {_name_list([names[n] for n in tied])}{numbers}{size}"
    verdict += f"; {_name_list(worse)} {'is' if len(worse) == 1 else 'are'} clearly worse" * bool(worse)
    needed = needed_examples(nearest, nearest["n"], nearest["over"]) if nearest and len(tied) == 2 else ""
    if all(is_perfect(metric, rows[n]["metrics"][metric]) for n in tied):
        needed = f"They have the highest possible value; {TOO_EASY}"
    return [f"{verdict}.", needed, caveat]


def _describe(difference: Facts, n_rows: int) -> str:
    """a difference of 0.052 (95 % interval 0.031 to 0.073, 3 seeds each)"""
    low, high, value = format_interval_ends(difference["low"], difference["high"], difference["value"])
    basis = f"{'over the same ' * (difference['over'] != OVER_SEEDS)}{difference['n']:,} {difference['over']}"
    corrected = ", corrected for the number of rows" * (n_rows > 2)
    return f"a difference of {value} (95 % interval {low} to {high}, {basis}{corrected})"


def _compare_with_baseline(facts: Facts, row: Facts) -> str:
    """The best baseline, unless the best row is clearly better."""
    split, metric = facts["split"], facts["metric"]
    if (best := best_baseline(facts["baseline"], metric)) is None:
        return ""
    if len(row["seeds"]) == 1 and (too_few := too_few_groups(row["protocol"].get(split, {}))):
        return too_few
    name, value = best
    interval, sign = row["interval"].get(metric), metric_sign(metric)
    margin = sign * (value - row["metrics"][metric])  # positive: the row is better
    ends = sorted(sign * (value - end) for end in interval) if interval else [margin, margin]
    paired = nested(row, "baseline_differences", split, name, metric)
    if len(row["seeds"]) == 1 and {"low", "high"} <= paired.keys():
        ends = [paired["low"], paired["high"]]
    if ends[0] > 0:
        return ""
    shown = format_number(value, 4)
    if ends[1] < 0:
        return f"The baseline {name} is better ({shown})."
    return f"There is no clear difference from the baseline {name} ({shown})."


def _compare_steps(rows: Sequence[Facts]) -> str:
    """The number of steps of each row if they differ, as in trainings of equal time."""
    trained = [row for row in rows if row["steps"]]
    steps = {row["name"]: round(row["steps"]) for row in trained}
    if len(set(steps.values())) < 2:
        return ""
    seconds = [row["seconds"] for row in trained if row["seconds"]]
    time = "in about the same time" if seconds and max(seconds) <= SAME_TIME * min(seconds) else "in different times"
    if len(steps) > MAX_NAMES:
        return f"Steps {time}: {min(steps.values()):,} to {max(steps.values()):,}."
    return f"Steps {time}: " + ", ".join(f"{count:,} ({name})" for name, count in steps.items()) + "."


def _name_list(names: Sequence[str]) -> str:
    """a, b and c; of more than MAX_NAMES the first and the number of the others."""
    if len(names) > MAX_NAMES:
        return f"{names[0]} and {len(names) - 1} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
