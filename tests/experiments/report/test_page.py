"""The report of a run: a correct verdict, no active content for any data, readable without scripts."""

import copy
import math
import re
import tomllib
from functools import reduce
from html.parser import HTMLParser
from operator import getitem
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.experiments.report.advice import advise
from harken.experiments.report.charts import Line, draw_chart, labels, smooth, thin, ticks
from harken.experiments.report.formatting import format_duration, format_number, format_quantity
from harken.experiments.report.html import Html
from harken.experiments.report.page import CSS, report_page
from harken.experiments.report.sections import _shortest
from harken.experiments.report.verdict import NOT_BETTER, run_verdict
from harken.training.cost import MeterReading, cost
from harken.training.settings import LECTURE, CostSettings

HOSTILE = "<script>alert(1)</script>\"'&amp;</style></title><img src=x onerror=alert(1)>\x00\x1b[2J\x7f\x85\ud800"
FORBIDDEN = {"script", "img", "link", "iframe", "object", "base", "form", "use"}
RECIPE = '[model]\nkind = "gpt"\nd = 128\n\n[train]\nsteps = 1200\nlr = 0.001\n'


def facts(steps: int = 1200) -> dict[str, Any]:
    """A run that beat the 5-gram."""
    log: list[dict[str, Any]] = []
    for step in range(6, steps + 1, 6):
        loss = 1.5 + 2.7 * math.exp(-step / 95)
        line = {"step": step, "epoch": 0, "loss": loss, "lr": 1e-3, "gradient": 0.4, "tokens_per_second": 31_000}
        log.append(line | ({"valid": loss + 0.1} if step % 120 == 0 else {}))
    reading = MeterReading(240.1, 752.0, "estimated: 2 cores x 10 W")
    return {
        "name": "shakespeare", "kind": "gpt", "task": "next-word", "parameters": 826368, "steps": steps,
        "seconds": 240.1, "date": "2026-11-15",
        "metrics": {"valid": {"loss": 1.71, "perplexity": 5.5, "bits_per_character": 2.47}},
        "protocol": {"valid": {"tokens": 111540, "context": 128, "stride": 64}},
        "baseline": {"valid": {"unigram": {"loss": 3.34, "perplexity": 28.1, "bits_per_character": 4.81},
                               "5-gram Kneser-Ney": {"loss": 2.13, "perplexity": 8.4, "bits_per_character": 3.07}}},
        "parts": {"valid": {"easy.txt": {"loss": 1.2}, "hard.txt": {"loss": 1.9}}}, "log": log,
        "samples": [{"prompt": "ROMEO:", "text": "\nWhat say'st thou?", "temperature": 0.8}],
        "cost": cost(reading, tokens=10_000_000, flops_per_token=5.1e6, factors=CostSettings(price_per_hour=0.3)),
        "data": {"tokens": {"train": 1003854}, "characters": {"train": 1}, "vocab": 66, "token": "c", "sha256": "8c"},
        "audit": {"passed": True, "summary": "1 checks passed (causal)", "checks": [
            {"name": "causal", "claim": "no future", "outcome": "passed", "difference": 2e-16, "tolerance": 1e-8,
             "layer": None, "why": None}]},
        "reason": "anything else that is UTF-8 = text", "machine": {"cpu": "EPYC", "cores": 2, "gpu": None},
        "recipe": RECIPE, "origins": {"model.d": "size = small", "train.lr": "command line"},
        "repeat": ["harken train runs/x/recipe.toml --out runs/again"], "next": ["harken look runs/shakespeare"],
    }  # fmt: skip


def pair_facts() -> dict[str, Any]:
    """A translation run: its baselines have no loss."""
    baselines = {"copy of the source": {"bleu": 0.2, "exact_match": 0.0}}
    splits = {"train": 5000, "valid": 400, "test": 300}
    sides = {split: {"source": n * 7, "target": n * 9} for split, n in splits.items()}
    return facts() | {
        "name": "phrases", "kind": "transformer", "task": "translate",
        "metrics": {"test": {"loss": 0.57, "perplexity": 1.76, "bleu": 70.4, "exact_match": 0.43}},
        "protocol": {"test": {"pairs": 300, "tokens": 3000, "beam": 4, "grouped_by": "words"}},
        "baseline": {"test": baselines},
        "parts": {"test": {"3-4 words": {"bleu": 76.2, "pairs": 64, "position": 3.641}}},
        "log": [{"step": n, "loss": 3 / n, "valid": 3 / n, "bleu": 10.0 * n} for n in range(1, 5)],
        "samples": [{"prompt": "They have them.", "text": "Ils les ont.", "references": ["Ils les ont.", "Elles."]}],
        "attention": Html("<svg><title>12 words</title></svg>"),
        "data": {"pairs": splits, "sources": splits, "references": {"valid": 1.42}, "tokens": sides, "length": sides,
                 "overlap": 0, "vocab": [2417, 2300], "token": "bpe", "sha256": "8c", "in_held_out": 12, "too_long": 3,
                 "skipped": {"count": 31, "first": ["a.tsv:5: the target is empty"]}},
    }  # fmt: skip


class Page(HTMLParser):
    """A parsed page: its elements and its text. Every element must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attrs), []))
        if name != "meta":
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open, f"</{name}> closes nothing"
        assert self.open.pop() == name

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += text
            self.tags[-1][2].append(text)

    def all(self, name: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        values = [(attrs, "".join(text)) for tag, attrs, text in self.tags if tag == name]
        return [pair for pair in values if all(pair[0].get(key.rstrip("_")) == v for key, v in wanted.items())]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value of nested dicts and lists; of a list only the first entry."""
    if isinstance(value, dict):
        return [p for key in value for p in paths(value[key], (*path, key))]
    if isinstance(value, list):
        return paths(value[0], (*path, 0))
    return [path]


def with_value(nest: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the nested value with this value at the end of the path."""
    nest = copy.deepcopy(nest)
    reduce(getitem, path[:-1], nest)[path[-1]] = value
    return nest


def inert(page: str) -> Page:
    """The page has no active content, fetches nothing, escapes everything and can be encoded."""
    parsed = Page(page)
    page.encode("utf-8")
    assert not {name for name, _, _ in parsed.tags} & FORBIDDEN
    for _, attrs, _ in parsed.tags:
        assert not [key for key in attrs if key.startswith("on") or key in {"src", "srcset", "action", "data"}]
        assert (attrs.get("href") or "#").startswith("#")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|url\(|@import", page)
    assert len(parsed.all("style")) <= 1
    return parsed


@pytest.mark.parametrize(
    "value", [HOSTILE, None, math.nan, -math.inf, 10**400, -1, [], {}, [HOSTILE]], ids=lambda v: repr(v)[:9]
)
def test_any_fact_value_gives_a_complete_page_without_active_content(value):
    complete = facts(steps=120)
    for path in paths(complete):
        inert(report_page(with_value(complete, path, value)))


def test_hostile_keys_are_escaped():
    x = facts() | {
        "metrics": {HOSTILE: {HOSTILE: 1.0}}, "protocol": {HOSTILE: {HOSTILE: HOSTILE}},
        "baseline": {HOSTILE: {HOSTILE: {HOSTILE: 2.0}}, "valid": {HOSTILE: {"loss": 1.0}}},
        "parts": {HOSTILE: {HOSTILE: {HOSTILE: 3.0}}}, "data": {"tokens": {HOSTILE: 1}},
        "machine": {HOSTILE: HOSTILE}, "origins": {HOSTILE: HOSTILE},
    }  # fmt: skip
    assert inert(report_page(x)).words.count("<script>alert(1)</script>") >= 10


def test_hostile_text_is_escaped_and_control_characters_are_visible():
    page = inert(report_page(facts() | {"samples": [{"prompt": "a\x00b", "text": "<b>&lt;\x1b\ttab\nline\ud800"}]}))
    assert "a␀b" in page.words
    assert "<b>&lt;␛\ttab\nline�" in page.words


def test_the_page_requests_no_resource():
    page = report_page(facts())
    assert "http" not in page.replace("http-equiv", "")
    assert "//" not in page
    policy = inert(page).all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert [attrs["content"] for attrs, _ in policy] == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


@pytest.mark.parametrize(
    ("loss", "expected", "is_better"),
    [
        (1.71, "Perplexity 5.53 on the validation split; best", True),
        (2.31, "Perplexity 10.1 on the validation split, no better than the best", False),
        (2.128, "Perplexity 8.40 on the validation split, no better than the best", False),
    ],
)
def test_a_run_without_intervals_is_compared_with_the_best_baseline_by_its_value(loss, expected, is_better):
    x = facts() | {"metrics": {"valid": {"loss": loss, "perplexity": math.exp(loss)}}}
    verdict_text, problem = run_verdict(x)
    assert verdict_text == f"{expected} trivial baseline 8.40 (5-gram Kneser-Ney)."
    assert problem == ("" if is_better else NOT_BETTER)
    page = Page(report_page(x))
    assert page.all("p", class_="verdict" if is_better else "verdict worse")[0][1] == verdict_text
    assert [words for _, words in page.all("p", class_="advice")] == advise(x)
    assert bool(advise(x)) != is_better


@pytest.mark.parametrize(("tokens", "verdict"), [(999, False), (1000, True)])
def test_fewer_than_a_thousand_tokens_give_no_verdict(tokens, verdict):
    verdict_text, advice = run_verdict(facts() | {"protocol": {"valid": {"tokens": tokens}}})
    warning = "Only 999 tokens were evaluated; a verdict needs at least 1,000."
    assert (verdict_text == warning and "data.valid" in advice) != verdict


def test_a_split_with_too_few_tokens_is_replaced_by_another_and_names_its_setting():
    x = pair_facts() | {"protocol": {"test": {"tokens": 671}, "valid": {"tokens": 1735}}}
    x["metrics"]["valid"], x["baseline"]["valid"] = x["metrics"]["test"], x["baseline"]["test"]
    assert " on the validation split; " in run_verdict(x)[0]
    x["protocol"]["valid"] = {"tokens": 500}
    assert run_verdict(x)[1] == "Add data, or hold out more of it (data.test)."


@pytest.mark.parametrize(
    ("parts", "caption"),
    [
        ({"good": {"f1": 0.9, "precision": 0.9}, "bad": {"f1": 0.2, "precision": 0.1}}, "2 labels, worst first"),
        ({"a.txt": {"loss": 1.0}, "b.txt": {"loss": 2.0}}, "2 sources, worst first"),
    ],
)
def test_the_parts_of_a_split_have_a_noun_and_are_sorted_worst_first(parts, caption):
    page = report_page(facts() | {"parts": {"valid": parts}})
    assert f"validation split: {caption}" in page
    best, worst = parts
    assert page.index(f">{worst}<") < page.index(f">{best}<")


def test_the_verdict_uses_the_test_split_if_there_is_one():
    x = facts()
    x["metrics"]["test"] = {"loss": 3.0, "perplexity": 20.1}
    x["baseline"]["test"] = {"unigram": {"loss": 2.0, "perplexity": 7.4}}
    expected = "Perplexity 20.1 on the test split, no better than the best trivial baseline 7.40 (unigram)."
    assert run_verdict(x)[0] == expected


def test_higher_accuracy_is_better():
    x = {"name": "x", "metrics": {"test": {"loss": 0.5, "accuracy": 0.91}}}
    baselines = {"most frequent label": {"loss": 0.1, "accuracy": 0.8}}
    verdict, _ = run_verdict(x | {"baseline": {"test": baselines}})
    assert verdict == "Accuracy 0.910 on the test split; best trivial baseline 0.800 (most frequent label)."
    low = {**x, "metrics": {"test": {"accuracy": 0.7}}, "baseline": {"test": baselines}}
    assert "no better than the best" in run_verdict(low)[0]


def test_a_non_finite_loss_is_reported():
    verdict = run_verdict(facts() | {"metrics": {"valid": {"loss": math.nan, "perplexity": math.inf}}})
    assert ["No metric is finite" in verdict[0], "train.lr" in verdict[1]] == [True, True]


def test_without_held_out_data_the_advice_is_to_hold_out_a_split():
    words = Page(report_page(facts() | {"metrics": {}, "baseline": {}, "protocol": {}, "parts": {}})).words
    assert "No split was held out, so the model was not evaluated." in words
    assert "Hold out a split: data.valid=0.1." in words
    assert "Lower train.lr" not in words


def test_a_failed_audit_is_reported_before_the_verdict():
    failed_audit = {"passed": False, "summary": "1 of 7 checks failed: causal in blocks.0", "checks": []}
    words = Page(report_page(facts() | {"audit": failed_audit})).words
    assert words.index("The metrics are not reliable: 1 of 7 checks failed: causal in blocks.0.") < words.index(
        "trivial"
    )
    assert "not reliable" not in Page(report_page(facts())).words


def test_a_rising_validation_loss_is_reported():
    x = facts()
    for line in x["log"]:
        if line["step"] > 700 and "valid" in line:
            line["valid"] = 1.9
    assert "lowest at step 600 (1.60), then rose to 1.90" in Page(report_page(x)).words


def test_after_early_stopping_the_advice_is_not_to_train_longer():
    early = "stopped at step 6 of 40: the validation loss did not improve in 1 validation pass"
    x = facts() | {"early": early, "metrics": {"valid": {"loss": 9.0}}}
    assert "onger" not in advise(x)[-1]
    assert advise(x)[-1].startswith(f"S{early[1:]}.")
    assert f"S{early[1:]}." in Page(report_page(facts() | {"early": early})).words


def test_skipped_updates_are_reported():
    text = "9 of 10 updates were skipped: their loss or gradient was not finite."
    assert text in Page(report_page(facts() | {"steps": 10, "skipped": 9})).words
    assert "skipped" not in Page(report_page(facts() | {"skipped": 0})).words


def test_every_fact_is_on_the_page():
    words = Page(report_page(facts())).words
    for text in ("1.71", "5.50", "2.47", "0.83 M", "826,368", "4 min 0 s", "0.33 Wh",
                 "tokens 111,540, context 128, stride 64", "unigram", "28.1", "51 TFLOP", "5.1 MFLOP", "0.14 g",
                 "times PUE 1.58", "0.954 lb per kWh", LECTURE, "Transformer (big): 192 lb", "1/609,",
                 "0.0200 USD", "estimated: 2 cores x 10 W", "1,003,854", "66", "8c", "EPYC", "ROMEO:",
                 "temperature 0.8", "harken look runs/shakespeare", "UTF-8 = text",
                 "no future", "2e-16", "1e-8"):  # fmt: skip
        assert text in words, text
    assert words.index("hard.txt") < words.index("easy.txt")


def test_the_estimate_is_shown_next_to_the_measured_cost():
    x = facts()
    reading = MeterReading(240.1, 752.0, "measured: RAPL", memory=500 * 2**20)
    estimate = {"seconds": 222.0, "kwh": 3e-4, "memory_mib": 432.1}
    x["cost"] = cost(reading, tokens=1, flops_per_token=1.0, predicted=estimate)
    words = Page(report_page(x)).words
    for row in ("time4 min 0 s3 min 42 s", "memory500 MiB432 MiB", "energy0.33 Wh0.30 Wh"):
        assert row in words, row
    assert "predicted" not in Page(report_page(facts())).words


def test_a_translation_run_is_evaluated_by_bleu_if_the_baselines_have_no_loss():
    verdict, advice = run_verdict(pair_facts())
    assert verdict == "BLEU 70.4 on the test split; best trivial baseline 0.200 (copy of the source)."
    assert not advice


def test_a_page_of_pairs_shows_samples_references_the_bleu_curve_and_attention():
    page = Page(report_page(pair_facts()))
    cells = [words for _, words in page.all("td")]
    start = cells.index("They have them.")
    assert cells[start : start + 3] == ["They have them.", "Ils les ont.", "Ils les ont. | Elles."]
    titles = [words for _, words in page.all("title")]
    assert {"Validation BLEU", "step 4: 40.00", "12 words"} <= set(titles)
    assert "test split: by words" in page.words
    assert "3.641" not in page.words  # a position on an axis is not a metric


def test_a_page_of_pairs_shows_both_sides_and_excluded_pairs():
    words = " ".join(Page(report_page(pair_facts())).words.split())
    for text in ("different sources", "tokens, target", "35,000", "45,000", "2,417 and 2,300"):
        assert text in words
    for text in (
        "source or group is held out12",
        "too long3",
        "in the training split0",
        "malformed lines31",
    ):  # each name with its number
        assert text in words


@pytest.mark.parametrize("value", [HOSTILE, None, math.nan, 10**400, [], {}, [HOSTILE]], ids=lambda v: repr(v)[:9])
def test_any_fact_value_of_pairs_gives_a_complete_page_without_active_content(value):
    complete = pair_facts()
    for path in paths({key: complete[key] for key in ("metrics", "protocol", "parts", "log", "samples", "data")}):
        inert(report_page(with_value(complete, path, value)))


def test_a_section_without_facts_is_omitted():
    complete = facts()
    titles = {words for _, words in Page(report_page(complete)).all("h2")}
    assert len(titles) == 10
    section_keys = {
        "Learning curves": ["log"], "Samples": ["samples"], "Data": ["data", "reason"], "Cost": ["cost"],
        "Machine": ["machine"], "Recipe": ["recipe", "origins"], "Reproduce": ["repeat"], "Next steps": ["next"],
        "Audit": ["audit"],
    }  # fmt: skip
    for title, keys in section_keys.items():
        for reduced in (
            {k: v for k, v in complete.items() if k not in keys},
            complete | {k: type(complete[k])() for k in keys},
        ):
            page = Page(report_page(reduced))
            assert {words for _, words in page.all("h2")} == titles - {title}
            assert title not in [words for _, words in page.all("a")]


def test_a_missing_fact_leaves_no_placeholder():
    complete = facts(steps=120)
    for path in paths({k: v for k, v in complete.items() if k != "name"}):
        words = Page(report_page(with_value(complete, path, None))).words
        assert not re.search(r"None|\(\)|\( | \)|  per|PUE \(|: *\.", words.replace("# ", "")), path


def test_name_and_metrics_are_sufficient():
    page = inert(report_page({"name": "bare", "metrics": {"valid": {"loss": 1.0}}}))
    assert [words for _, words in page.all("h2")] == ["Result"]
    assert "None" not in page.words
    assert [words for _, words in inert(report_page({"name": "empty", "metrics": {}})).all("h2")] == []


def test_the_annotated_recipe_is_a_valid_recipe():
    [recipe_html] = re.findall(r"<pre tabindex=\"0\">(.*?)</pre>", report_page(facts()), re.S)
    text = re.sub("<[^>]+>", "", recipe_html).replace("&quot;", '"')
    assert tomllib.loads(text) == tomllib.loads(RECIPE)
    assert re.search(r"d = 128 +# size = small\n", text)
    assert re.search(r"lr = 0.001 +# command line\n", text)


def test_a_long_sample_is_truncated_with_a_note():
    page = report_page(facts() | {"samples": [{"text": "word " * 100_000}] * 100})
    assert (len(page) < 300_000, "and 496,000 more characters" in page) == (True, True)


def test_every_heading_table_and_chart_has_a_name():
    page = Page(report_page(facts()))
    assert len(page.all("h1")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(words.strip() for _, words in page.all("caption"))
    figures = [attrs for attrs, _ in page.all("svg") if attrs.get("role") == "img"]
    assert len(figures) == 4 == len(page.all("desc"))
    assert "validation: from" in " ".join(words for _, words in page.all("desc"))
    assert len({attrs["id"] for attrs, _ in page.all("section")}) == len(page.all("section"))
    for attrs, _ in page.all("a"):
        assert page.all("section", id=(attrs["href"] or "")[1:])


def luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_table_cells_do_not_break_and_long_commands_wrap():
    blocks = re.findall(r"([^{}]+)\{([^{}]*)\}", CSS)
    rules = {name.strip(): rule for names, rule in blocks for name in names.split(",")}
    assert "anywhere" not in rules["tbody th"]
    assert "nowrap" in rules["td.n"]
    assert "pre-wrap" in rules["pre"]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_color_has_sufficient_contrast(theme):
    for ink in ("ink", "soft", "accent", "valid"):
        for paper in ("paper", "tint"):
            pair = [re.findall(rf"--{name}: (#[0-9a-f]{{6}})", CSS)[theme] for name in (ink, paper)]
            dark, light = sorted(map(luminance, pair))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, paper)


def axis(page: Page, which: str, attribute: str) -> list[tuple[float, float]]:
    """The labels of an axis as (value, percent)."""
    points = []
    for attrs, words in page.all("text", class_=which):
        number, _, unit = words.removeprefix("step ").replace(",", "").partition(" ")
        points.append((float(number) * {"": 1, "k": 1e3, "M": 1e6}[unit], float((attrs[attribute] or "").rstrip("%"))))
    return points


def read(axis: list[tuple[float, float]], place: float) -> float:
    """The value of the axis at this percentage."""
    (a, at_a), (b, at_b) = axis[0], axis[-1]
    return a + (place - at_a) / (at_b - at_a) * (b - a)


def test_validation_points_are_drawn_at_their_coordinates():
    points = [(120.0, 2.61), (700.0, 1.93), (1200.0, 1.71)]
    train = [(float(step), 4.2 - step / 600) for step in range(1, 1201)]
    page = Page(draw_chart("Loss", [Line("training", train, "faint"), Line("validation", points, "dots")]).figure())
    x, y = axis(page, "x", "x"), axis(page, "y", "y")
    assert (x[0], x[-1], y[0][1], y[-1][1]) == ((0, 0), (1200, 100), 100, 0)  # later is right, more is up
    dots = [[float((a[c] or "").rstrip("%")) for c in ("cx", "cy")] for a, _ in page.all("circle", class_="dots")]
    parsed = [(read(x, across), read(y, down)) for across, down in dots]
    assert parsed == [(pytest.approx(step, abs=0.2), pytest.approx(loss, abs=2e-3)) for step, loss in points]
    assert page.all("title")[1][1] == "step 120: 2.610"


def test_the_line_passes_through_its_points():
    page = Page(draw_chart("x", [Line("x", [(0.0, 1.0), (50.0, 3.0), (100.0, 2.0)])]).figure())
    x, y = axis(page, "x", "x"), axis(page, "y", "y")
    [(path, _)] = page.all("path")
    parsed = [tuple(map(float, pair.split())) for pair in (path["d"] or "").removeprefix("M").split("L")]
    assert [(read(x, a / 10), read(y, b / 10)) for a, b in parsed] == [(0, 1), (50, 3), (100, 2)]


def test_the_best_baseline_is_a_line_in_the_loss_chart():
    page = Page(report_page(facts()))
    [(line, _)] = page.all("line", class_="level")
    first = [(v, at) for v, at in axis(page, "y", "y")][: len(ticks(1.5, 4.2))]
    assert read(first, float((line["y1"] or "").rstrip("%"))) == pytest.approx(2.13, abs=1e-3)


BAD = [math.nan, math.inf, -math.inf, 1e300, None, "7", True]


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0, 2.0], [1.0, 1.0], [0.0], [1.0, 1e29], [1e-300, 2e-300], BAD, [1.0, *BAD, 2.0]]
)
@pytest.mark.parametrize("style", ["line", "faint", "dots"])
def test_few_or_non_finite_points_do_not_break_a_chart(values, style):
    for small in (True, False):
        chart = draw_chart("x", [Line("x", list(enumerate(values)), style)], small=small)
        assert bool(chart) == any(type(v) is float and abs(v) < 1e30 for v in values)
        if chart:
            page = inert(chart.figure())
            assert not re.search(r"nan|inf\b", chart.figure())
            assert page.all("circle") or page.all("path")


@pytest.mark.parametrize("lines", [0, 1, 2, 19, 20])
def test_a_log_of_any_length_gives_a_page(lines):
    page = inert(report_page(facts() | {"log": facts()["log"][:lines]}))
    assert ("Learning curves" in page.words) == (lines > 0)


def test_malformed_log_lines_are_ignored():
    log = [{"step": 1, "loss": math.nan, "valid": math.inf}, {"loss": 2.0}, {"step": "2", "loss": 2.0}, "no", None, {}]
    assert "Learning curves" not in report_page(facts() | {"log": log})
    assert "Learning curves" in report_page(facts() | {"log": [*log, {"step": -0.5, "loss": 2.0}]})


def test_a_hundred_thousand_lines_give_a_small_page():
    noisy = ((step, 2 + math.sin(step * step)) for step in range(1, 100_001))
    log = [{"step": s, "loss": y, "valid": y, "lr": y, "gradient": y, "tokens_per_second": y} for s, y in noisy]
    page = report_page(facts() | {"log": log})
    assert len(page.encode()) < 300_000
    assert len(Page(page).all("circle")) <= 500


def test_thinning_keeps_the_ends_and_every_extreme():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[77] = (77.0, -99.0)
    assert len(reduced := thin(points)) <= 500
    assert {points[0], points[77], points[54_321], points[-1]} <= set(reduced)
    assert reduced == sorted(reduced)


def test_smoothing_reduces_noise_and_keeps_the_ends():
    points = [(float(x), 2.0 + (-1) ** x) for x in range(1001)]
    smoothed = smooth(points)
    assert len(smoothed) <= 200
    assert (smoothed[0], smoothed[-1][0]) == (points[0], 1000.0)
    assert all(abs(y - 2.0) < 0.2 for _, y in smoothed[20:])


@given(st.floats(-1e29, 1e29), st.floats(-1e29, 1e29), st.integers(2, 8))
def test_ticks_are_round_and_cover_the_range(a, b, about):
    low, high = min(a, b), max(a, b)
    values = ticks(low, high, about)
    step = values[1] - values[0]
    assert 2 <= len(values) <= about + 3
    assert values[0] <= low + 1e-9 * step
    assert values[-1] >= high - 1e-9 * step
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-6), 6) in {1, 2, 5}
    assert all(abs(x / step - round(x / step)) < 1e-6 * max(1, abs(x / step)) for x in values)
    assert len(set(labels(values))) == len(values)


def test_tick_labels_have_a_common_unit_and_precision():
    assert labels(ticks(1.62, 4.31)) == ["1", "2", "3", "4", "5"]
    assert labels(ticks(0.0, 0.001, 3)) == ["0", "0.0005", "0.0010"]
    assert labels(ticks(0.0, 3e-5, 3)) == ["0", "1e-5", "2e-5", "3e-5"]
    assert labels(ticks(0, 31_400)) == ["0", "10 k", "20 k", "30 k", "40 k"]
    assert labels(ticks(0, 1200, 3)) == ["0", "500", "1,000", "1,500"]
    assert labels(ticks(7.0, 7.0)) == ["6.0", "6.5", "7.0", "7.5", "8.0"]


def test_numbers_are_formatted():
    counts = [format_quantity(n, "count") for n in (66, 31_000, 826_368, 124_439_808, 1.5e9, None)]
    assert counts == ["66", "31 k", "0.83 M", "124 M", "1.5 B", ""]
    assert [format_quantity(kwh, "energy") for kwh in (12.0, 0.00033, 0.0, "?")] == ["12 kWh", "0.33 Wh", "0 mWh", "?"]
    assert [format_quantity(5.1e13, "flop"), format_quantity(0.00014, "mass")] == ["51 TFLOP", "0.14 g"]
    times = [format_duration(seconds) for seconds in (0.42, 45, 59.7, 240.1, 7_325, math.nan)]
    assert times == ["0.4 s", "45 s", "1 min 0 s", "4 min 0 s", "2 h 2 min", "nan"]
    figures = [format_number(x) for x in (1.7052, 111_540, 28.14, 1234.5, 0.0, 2e-7, 1.0142320547350045e304, None)]
    assert figures == ["1.71", "111,540", "28.1", "1,234", "0", "2e-7", "1.01e304", ""]


def test_the_verdict_uses_the_primary_metric_of_the_task():
    metrics = {"loss": 0.01, "perplexity": 1.01, "bleu": 0.0, "exact_match": 1.0}
    baselines = {"copy of the source": {"bleu": 0.0, "exact_match": 0.0}}
    facts = {"metrics": {"valid": metrics}, "baseline": {"valid": baselines}}
    facts["protocol"] = {"valid": {"tokens": 10_000, "primary_metric": "exact_match"}}
    assert run_verdict(facts)[0].startswith("Exact match 1.00 on the validation split; best trivial baseline 0 (copy")


def test_the_suggested_command_uses_the_shortest_sample():
    assert _shortest([{"prompt": "a long sentence"}, {"prompt": "it's short"}]) == """'it'"'"'s short'"""
    assert _shortest([], "What?") == "'What?'"
