"""Charts of labels: readable in both themes, named, and complete for any value."""

import copy
import math
import re
from functools import reduce
from operator import getitem
from typing import Any
from xml.etree import ElementTree

import pytest

from harken.experiments.report.label_charts import MAX_OPACITY, calibration_chart, confusion_figure, size_chart
from harken.experiments.report.page import CSS, report_page

HOSTILE = "<script>alert(1)</script>"
LABELS: dict[str, Any] = {
    "split": "test",
    "support": {"cat": {"train": 9, "test": 3}, "dog": {"train": 2, "test": 4}},
    "matrix": {"labels": ["cat", "dog"], "counts": [[2, 1], [0, 4]], "total": 2},
    "calibration": {"bins": [{"confidence": 0.6, "accuracy": 0.5, "examples": 4}], "ece": 0.1},
    "sizes": {"unit": "tokens", "groups": [
        {"first": 1, "last": 5, "count": 4, "accuracy": 0.5, "low": 0.2, "high": 0.8},
        {"first": 6, "last": 6, "count": 3, "accuracy": 1.0, "low": 0.4, "high": 1.0}]},
    "confusions": [{"actual": "cat", "predicted": "dog", "times": 1, "example": "meow"}],
    "mistakes": [{"prompt": "meow", "text": "dog 90 %", "references": ["cat 10 %"]}],
}  # fmt: skip


def page(labels: dict[str, Any]) -> str:
    return report_page({"name": "x", "metrics": {"test": {"accuracy": 0.9}}, "labels": labels})


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, item in items for p in paths(item, (*path, key)))] if path else [
        p for key, item in items for p in paths(item, (key,))]  # fmt: skip


def test_the_matrix_has_a_title_axes_names_and_counts():
    figure = ElementTree.fromstring(str(confusion_figure(LABELS)))
    texts = [element.text for element in figure.iter("text")]
    assert {"predicted label", "true label", "cat", "dog", "2", "1", "4"} <= {*texts}
    assert "0" not in texts  # an empty cell has no number
    assert "examples of the test split" in "".join(figure.itertext())
    titles = [element.text for element in figure.iter("title")]
    assert {"Confusion matrix", "true cat, predicted dog: 1"} <= {*titles}
    opacity = [float(rect.get("fill-opacity")) for rect in figure.iter("rect") if rect.get("fill-opacity")]
    assert opacity == pytest.approx([MAX_OPACITY * x for x in (2 / 3, 1 / 3, 0, 1)], abs=1e-3)


def test_the_charts_name_their_axes():
    calibration, sizes = calibration_chart(LABELS["calibration"]), size_chart(LABELS["sizes"])
    assert "over the probability of the predicted label; ECE 0.10" in calibration.note
    assert "probability 0" in calibration.marks
    assert (sizes.title, sizes.rows) == ("Accuracy by number of tokens", 2)
    assert "1 to 5 tokens (4 examples)" in sizes.marks
    assert "6 tokens (3 examples)" in sizes.marks


def test_all_sections_are_on_the_page_and_without_labels_none():
    text = page(LABELS)
    for words in ("Confusion matrix", "Calibration", "Commonest confusions", "meow", "dog 90 %", "rarest first"):
        assert words in text
    assert text.index(">dog</th>") < text.index(">cat</th>")  # the rarest label first
    assert not re.search("Confusion|Calibration|Mistakes|shows samples", page({}))


@pytest.mark.parametrize("value", [HOSTILE, None, math.nan, math.inf, 10**400, -1, [], {}, [HOSTILE], True])
def test_any_value_gives_a_page_without_active_content(value):
    for path in paths(LABELS):
        labels = copy.deepcopy(LABELS)
        reduce(getitem, path[:-1], labels)[path[-1]] = value
        text = page(labels)
        assert "<script" not in text
        ElementTree.fromstring(re.search(r"<body>.*</body>", text, re.S)[0])


def luminance(color: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("fill", ["accent", "valid"])
def test_a_number_is_readable_on_the_strongest_cell(theme, fill):
    def rgb(name: str) -> list[float]:
        color = re.findall(rf"--{name}: (#[0-9a-f]{{6}})", CSS)[theme]
        return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]

    cell = [MAX_OPACITY * a + (1 - MAX_OPACITY) * b for a, b in zip(rgb(fill), rgb("paper"), strict=True)]
    dark, light = sorted([luminance(cell), luminance(rgb("ink"))])
    assert (light + 0.05) / (dark + 0.05) >= 3
