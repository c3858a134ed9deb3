"""Charts of a report about labels: confusion matrix, calibration curve, accuracy by the size of the input."""

from collections.abc import Mapping, Sequence

from .charts import Chart, Interval, Line, draw_chart, interval_plot
from .formatting import display_name, finite_float, format_number
from .html import Html, tag
from .verdict import Facts, nested

CELL, CHARACTER, MAX_NAME, TITLE = 40, 7, 20, 24  # pixels, pixels, characters, pixels
TITLE_WIDTH = 110  # pixels of "predicted label"
SMALL_CELL, MANY_LABELS = 28, 10
MAX_OPACITY = 0.6  # numbers stay readable on the darkest cell


def confusion_figure(report: Facts) -> Html | None:
    """The confusion matrix: a row per true label, a column per predicted label; None without counts."""
    matrix = nested(report, "matrix")
    names = [str(name) for name in labels] if isinstance(labels := matrix.get("labels"), list) else []
    counts = [_numbers(row, len(names)) for row in rows] if isinstance(rows := matrix.get("counts"), list) else []
    if not names or len(counts) != len(names):
        return None
    cell = CELL if len(names) <= MANY_LABELS else SMALL_CELL
    left = top = TITLE + 12 + CHARACTER * min(MAX_NAME, max(map(len, names)))
    side = cell * len(names)
    marks = [
        tag("text", "predicted label", x=left + side / 2, y=14, class_="axis"),
        tag("text", "true label", x=14, y=top + side / 2, class_="axis", transform=f"rotate(-90 14 {top + side / 2})"),
    ]
    for n, name in enumerate(names):
        x, y = left + cell * (n + 0.5), top + cell * (n + 0.5)
        marks.append(tag("text", _short(name), x=x, y=top - 6, transform=f"rotate(-90 {x} {top - 6})", dy=".33em"))
        marks.append(tag("text", _short(name), x=left - 6, y=y, dy=".33em", class_="end"))
        marks += _matrix_row(names, n, counts[n], (left, top + cell * n, cell))
    width = left + max(side, side / 2 + TITLE_WIDTH / 2)
    box = {"viewBox": f"0 0 {width:g} {top + side}", "width": f"{width:g}", "height": top + side}
    title = "Confusion matrix"
    description = f"{len(names)} labels; each row is a true label, each column a predicted label"
    svg = tag("svg", tag("title", title), tag("desc", description), marks, class_="matrix", role="img", **box)
    total = finite_float(matrix.get("total")) or 0
    some = f" The {len(names)} of {total:,.0f} labels with most mistakes." if total > len(names) else ""
    split = display_name(format_number(report.get("split")))
    note = f"examples of the {split} split; blue: correct, orange: mistakes; stronger: a larger share of the row.{some}"
    return tag("figure", tag("figcaption", tag("b", title), note), tag("div", svg, class_="wide"))


def _matrix_row(names: Sequence[str], n: int, counts: Sequence[float], place: tuple[float, float, int]) -> list[Html]:
    (x, y, cell), total, marks = place, sum(counts) or 1, list[Html]()
    for m, count in enumerate(counts):
        text = tag("title", f"true {names[n]}, predicted {names[m]}: {count:,.0f}")
        style = {"class_": "hit" if m == n else "miss", "fill_opacity": f"{MAX_OPACITY * count / total:.3f}"}
        corner = {"x": x + cell * m, "y": y, "width": cell - 1, "height": cell - 1}
        marks.append(tag("rect", text, **corner, **style))
        marks.append(tag("rect", **corner, class_="edge"))
        if count:
            middle = {"x": x + cell * (m + 0.5), "y": y + cell / 2, "dy": ".33em"}
            marks.append(tag("text", _count(count), class_="count", **middle))
    return marks


def _numbers(row: object, n: int) -> list[float]:
    """A row of n counts; values that are no count are 0."""
    values = list(row) if isinstance(row, list) else []
    return [max(0.0, finite_float(value) or 0.0) for value in (values + [0] * n)[:n]]


def _count(count: float) -> str:
    return f"{count:,.0f}" if count < 10_000 else f"{count / 1000:,.0f} k"


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def table_rows(value: object) -> list[Facts]:
    """The tables of a list; none if it is no list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def calibration_chart(calibration: Facts) -> Chart | None:
    """The share of correct predictions over their probability; None without bins."""
    bins = table_rows(calibration.get("bins"))
    points = [(finite_float(x.get("confidence")), finite_float(x.get("accuracy"))) for x in bins]
    curve = [(x, y) for x, y in points if x is not None and y is not None]
    if not curve:
        return None
    ece = format_number(calibration.get("ece"), 2)
    note = f"share of correct predictions (vertical) over the probability of the predicted label; ECE {ece}"
    lines = [Line("perfectly calibrated", [(0.0, 0.0), (1.0, 1.0)], "faint"), Line("this model", curve, "dots")]
    return draw_chart("Calibration", lines, note=note, unit="probability")


def size_chart(sizes: Facts) -> Chart | None:
    """Accuracy of groups of inputs by their size, with its interval; None for fewer than two groups."""
    unit, rows = format_number(sizes.get("unit")), list[Interval]()
    for group in table_rows(sizes.get("groups")):
        mean, low, high = (finite_float(group.get(name)) for name in ("accuracy", "low", "high"))
        first, last, count = (format_number(group.get(name)) for name in ("first", "last", "count"))
        if mean is not None:
            name = f"{first if first == last else f'{first} to {last}'} {unit} ({count} examples)"
            rows.append(Interval(name, mean, None if low is None or high is None else (low, high), color=1))
    if len(rows) < 2:
        return None
    return interval_plot(f"Accuracy by number of {unit}", rows, note="accuracy (horizontal) with its 95 % interval")


def support_rows(labels: Facts) -> dict[str, Facts]:
    """The number of examples of each label in each split, the rarest in training first."""
    rows = {name: nested(labels, "support", name) for name in nested(labels, "support")}
    return dict(sorted(rows.items(), key=lambda item: finite_float(item[1].get("train")) or 0.0))
