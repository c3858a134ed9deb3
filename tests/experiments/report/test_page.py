"""The report of a run: honest about the result, inert whatever the data says, readable without any script."""

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

from harken.experiments.report.line_chart import (
    Html,
    Line,
    chart,
    duration,
    figure,
    labels,
    scaled,
    smooth,
    thin,
    ticks,
)
from harken.experiments.report.page import CSS, judge, report
from harken.experiments.report.sections import _shortest
from harken.training.cost import LECTURE, Reading, cost

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
    reading = Reading(240.1, 752.0, "estimated: 2 cores x 10 W")
    return {
        "name": "shakespeare", "kind": "gpt", "task": "next-word", "parameters": 826368, "steps": steps,
        "seconds": 240.1, "date": "2026-11-15",
        "metrics": {"valid": {"loss": 1.71, "perplexity": 5.5, "bits_per_character": 2.47}},
        "protocol": {"valid": {"tokens": 111540, "context": 128, "stride": 64}},
        "baseline": {"valid": {"unigram": {"loss": 3.34, "perplexity": 28.1, "bits_per_character": 4.81},
                               "5-gram Kneser-Ney": {"loss": 2.13, "perplexity": 8.4, "bits_per_character": 3.07}}},
        "parts": {"valid": {"easy.txt": {"loss": 1.2}, "hard.txt": {"loss": 1.9}}}, "log": log,
        "samples": [{"prompt": "ROMEO:", "text": "\nWhat say'st thou?", "temperature": 0.8}],
        "cost": cost(reading, tokens=10_000_000, flops_per_token=5.1e6, price=0.3),
        "data": {"tokens": {"train": 1003854}, "characters": {"train": 1}, "vocab": 66, "token": "c", "sha256": "8c"},
        "audit": {"passed": True, "summary": "1 checks passed (causal)", "checks": [
            {"name": "causal", "claim": "no future", "outcome": "passed", "difference": 2e-16, "tolerance": 1e-8,
             "layer": None, "why": None}]},
        "reason": "anything else that is UTF-8 = text", "machine": {"cpu": "EPYC", "cores": 2, "gpu": None},
        "recipe": RECIPE, "origins": {"model.d": "size = small", "train.lr": "command line"},
        "repeat": ["harken train runs/x/recipe.toml --out runs/again"], "next": ["harken look runs/shakespeare"],
    }  # fmt: skip


def of_pairs() -> dict[str, Any]:
    """A run that translates: its baselines have no loss."""
    free = {"copy of the source": {"bleu": 0.2, "exact_match": 0.0}}
    splits = {"train": 5000, "valid": 400, "test": 300}
    sides = {split: {"source": n * 7, "target": n * 9} for split, n in splits.items()}
    return facts() | {
        "name": "phrases", "kind": "transformer", "task": "translate",
        "metrics": {"test": {"loss": 0.57, "perplexity": 1.76, "bleu": 70.4, "exact_match": 0.43}},
        "protocol": {"test": {"pairs": 300, "tokens": 3000, "beam": 4, "grouped_by": "words"}},
        "baseline": {"test": free}, "parts": {"test": {"3-4 words": {"bleu": 76.2, "pairs": 64, "at": 3.641}}},
        "log": [{"step": n, "loss": 3 / n, "valid": 3 / n, "bleu": 10.0 * n} for n in range(1, 5)],
        "samples": [{"prompt": "They have them.", "text": "Ils les ont.", "references": ["Ils les ont.", "Elles."]}],
        "looks": Html("<svg><title>12 words</title></svg>"),
        "data": {"pairs": splits, "sources": splits, "references": {"valid": 1.42}, "tokens": sides, "length": sides,
                 "overlap": 0, "vocab": [2417, 2300], "token": "bpe", "sha256": "8c", "taken": 12, "aside": 3,
                 "bad": {"count": 31, "first": ["a.tsv:5: the target is empty"]}},
    }  # fmt: skip


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its words, and whether every element is closed."""

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

    def handle_data(self, words: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += words
            self.tags[-1][2].append(words)

    def all(self, name: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        found = [(attrs, "".join(words)) for tag, attrs, words in self.tags if tag == name]
        return [pair for pair in found if all(pair[0].get(key.rstrip("_")) == v for key, v in wanted.items())]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a nest of tables and lists; of a long list, to its first entry."""
    if isinstance(value, dict):
        return [p for key in value for p in places(value[key], (*path, key))]
    if isinstance(value, list):
        return places(value[0], (*path, 0))
    return [path]


def put(nest: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the nest with this value at the end of the path."""
    nest = copy.deepcopy(nest)
    reduce(getitem, path[:-1], nest)[path[-1]] = value
    return nest


def inert(page: str) -> Page:
    """Nothing runs, nothing is fetched, nothing breaks out of its place; and a file can hold it."""
    seen = Page(page)
    page.encode("utf-8")
    assert not {name for name, _, _ in seen.tags} & FORBIDDEN
    for _, attrs, _ in seen.tags:
        assert not [key for key in attrs if key.startswith("on") or key in {"src", "srcset", "action", "data"}]
        assert (attrs.get("href") or "#").startswith("#")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|url\(|@import", page)
    assert len(seen.all("style")) <= 1
    return seen


@pytest.mark.parametrize(
    "value", [HOSTILE, None, math.nan, -math.inf, 10**400, -1, [], {}, [HOSTILE]], ids=lambda v: repr(v)[:9]
)
def test_whatever_a_value_is_the_page_is_whole_and_inert(value):
    whole = facts(steps=120)
    for path in places(whole):
        inert(report(put(whole, path, value)))


def test_a_hostile_name_of_a_thing_is_only_words():
    x = facts() | {
        "metrics": {HOSTILE: {HOSTILE: 1.0}}, "protocol": {HOSTILE: {HOSTILE: HOSTILE}},
        "baseline": {HOSTILE: {HOSTILE: {HOSTILE: 2.0}}, "valid": {HOSTILE: {"loss": 1.0}}},
        "parts": {HOSTILE: {HOSTILE: {HOSTILE: 3.0}}}, "data": {"tokens": {HOSTILE: 1}},
        "machine": {HOSTILE: HOSTILE}, "origins": {HOSTILE: HOSTILE},
    }  # fmt: skip
    assert inert(report(x)).words.count("<script>alert(1)</script>") >= 10


def test_hostile_words_are_shown_as_they_are_and_control_characters_as_pictures():
    page = inert(report(facts() | {"samples": [{"prompt": "a\x00b", "text": "<b>&lt;\x1b\ttab\nline\ud800"}]}))
    assert "a␀b" in page.words
    assert "<b>&lt;␛\ttab\nline�" in page.words


def test_nothing_is_asked_from_anywhere():
    page = report(facts())
    assert "http" not in page.replace("http-equiv", "")
    assert "//" not in page
    policy = inert(page).all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert [attrs["content"] for attrs, _ in policy] == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


@pytest.mark.parametrize(
    ("loss", "verdict", "good"),
    [
        (1.71, "0.42 nats per token better than the 5-gram Kneser-Ney, which costs nothing: perplexity 5.53", True),
        (2.31, "0.18 nats per token worse than the free 5-gram Kneser-Ney: perplexity 10.1", False),
        (2.128, "No better than the free 5-gram Kneser-Ney: perplexity 8.40", False),
        (9.0, "6.9 nats per token worse than the free 5-gram Kneser-Ney: perplexity 8,103", False),
    ],
)
def test_the_verdict_says_better_and_worse_as_it_is(loss, verdict, good):
    x = facts() | {"metrics": {"valid": {"loss": loss, "perplexity": math.exp(loss)}}}
    said, advice = judge(x)
    assert said == f"{verdict} against 8.40 on the validation split."
    assert [word in advice for word in ("Train longer", "larger", "more data")] == [not good] * 3
    page = Page(report(x))
    assert page.all("p", class_="verdict" if good else "verdict worse")[0][1] == said
    assert [words for _, words in page.all("p", class_="advice")] == ([] if good else [advice])


@pytest.mark.parametrize(("tokens", "verdict"), [(999, False), (1000, True)])
def test_fewer_than_a_thousand_tokens_give_no_verdict(tokens, verdict):
    said, advice = judge(facts() | {"protocol": {"valid": {"tokens": tokens}}})
    few = "Only 999 tokens were judged, too few for a verdict: 1,000 are needed."
    assert (said == few and "data.valid" in advice) != verdict


def test_a_split_of_too_few_tokens_leaves_the_verdict_to_one_of_enough_and_names_its_own_setting():
    x = of_pairs() | {"protocol": {"test": {"tokens": 671}, "valid": {"tokens": 1735}}}
    x["metrics"]["valid"], x["baseline"]["valid"] = x["metrics"]["test"], x["baseline"]["test"]
    assert judge(x)[0].endswith(" on the validation split.")
    x["protocol"]["valid"] = {"tokens": 500}
    assert judge(x)[1] == "Give it more data, or hold out more of it (data.test)."


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"good": {"f1": 0.9, "precision": 0.9}, "bad": {"f1": 0.2, "precision": 0.1}}, "2 labels, hardest first"),
        ({"a.txt": {"loss": 1.0}, "b.txt": {"loss": 2.0}}, "2 sources, hardest first"),
    ],
)
def test_the_parts_of_a_split_are_called_what_they_are_the_hardest_first(parts, said):
    page = report(facts() | {"parts": {"valid": parts}})
    assert f"validation split: {said}" in page
    easy, hard = parts
    assert page.index(f">{hard}<") < page.index(f">{easy}<")


def test_the_test_split_is_judged_where_there_is_one():
    x = facts()
    x["metrics"]["test"] = {"loss": 3.0, "perplexity": 20.1}
    x["baseline"]["test"] = {"unigram": {"loss": 2.0, "perplexity": 7.4}}
    assert judge(x)[0].startswith(
        "1.0 nats per token worse than the free unigram: perplexity 20.1 against 7.40 on the test"
    )


def test_of_accuracy_more_is_better():
    x = {"name": "x", "metrics": {"test": {"loss": 0.5, "accuracy": 0.91}}}
    free = {"most frequent label": {"loss": 0.1, "accuracy": 0.8}}
    verdict, _ = judge(x | {"baseline": {"test": free}})
    assert verdict.startswith(
        "0.11 better than the most frequent label, which costs nothing: accuracy 0.910 against 0.8"
    )
    assert "worse" in judge({**x, "metrics": {"test": {"accuracy": 0.7}}, "baseline": {"test": free}})[0]


def test_a_loss_that_is_no_number_is_not_praised():
    verdict = judge(facts() | {"metrics": {"valid": {"loss": math.nan, "perplexity": math.inf}}})
    assert ["nothing can be said" in verdict[0], "train.lr" in verdict[1]] == [True, True]


def test_of_a_run_that_held_nothing_out_the_page_does_not_doubt_the_learning_rate():
    words = Page(report(facts() | {"metrics": {}, "baseline": {}, "protocol": {}, "parts": {}})).words
    assert "Nothing was held out, so nothing was judged." in words
    assert "Hold out a part: data.valid=0.1." in words
    assert "Lower train.lr" not in words


def test_a_model_that_failed_its_audit_is_not_praised_before_that_is_said():
    leaky = {"passed": False, "summary": "1 of 7 checks failed: causal in blocks.0", "checks": []}
    words = Page(report(facts() | {"audit": leaky})).words
    assert words.index("Do not trust these numbers: 1 of 7 checks failed: causal in blocks.0.") < words.index("better")
    assert "Do not trust" not in Page(report(facts())).words


def test_a_validation_loss_that_rose_is_told():
    x = facts()
    for line in x["log"]:
        if line["step"] > 700 and "valid" in line:
            line["valid"] = 1.9
    assert "lowest at step 600 (1.60), then rose to 1.90" in Page(report(x)).words
    advice = judge(x | {"metrics": {"valid": {"loss": 9.0}}})[1]
    assert advice.endswith("then rose to 1.90. Take a larger model (model.size) or give it more data.")


def test_a_training_that_stopped_early_is_told_and_not_sent_on():
    early = "stopped at step 6 of 40: the valid loss was no better for 1 look; the weights of step 4 are kept"
    x = facts() | {"early": early, "metrics": {"valid": {"loss": 9.0}}}
    assert judge(x)[1] == f"S{early[1:]}. Take a larger model (model.size) or give it more data."
    assert f"S{early[1:]}." in Page(report(facts() | {"early": early})).words


def test_updates_that_were_left_out_are_told():
    told = "9 of 10 updates were left out: their loss or gradient was not finite."
    assert told in Page(report(facts() | {"steps": 10, "skipped": 9})).words
    assert "left out" not in Page(report(facts() | {"skipped": 0})).words


def test_every_number_that_is_given_is_on_the_page():
    words = Page(report(facts())).words
    for said in ("1.71", "5.50", "2.47", "0.83 M", "826,368", "4 min 0 s", "0.33 Wh",
                 "tokens 111,540, context 128, stride 64", "unigram", "28.1", "51 TFLOP", "5.1 MFLOP", "0.14 g",
                 "times PUE 1.58", "0.954 lb per kWh", LECTURE, "Transformer (big): 192 lb", "1/609,",
                 "0.0200 USD", "estimated: 2 cores x 10 W", "1,003,854", "66", "8c", "EPYC", "ROMEO:",
                 "temperature 0.8", "harken look runs/shakespeare", "UTF-8 = text",
                 "no future", "2e-16", "1e-8"):  # fmt: skip
        assert said in words, said
    assert words.index("hard.txt") < words.index("easy.txt")


def test_what_was_predicted_stands_beside_what_was_used():
    x = facts()
    reading = Reading(240.1, 752.0, "measured: RAPL", memory=500 * 2**20)
    said = {"seconds": 222.0, "kwh": 3e-4, "memory_mib": 432.1}
    x["cost"] = cost(reading, tokens=1, flops_per_token=1.0, predicted=said)
    words = Page(report(x)).words
    for row in ("time4 min 0 s3 min 42 s", "memory500 MiB432 MiB", "energy0.33 Wh0.30 Wh"):
        assert row in words, row
    assert "predicted" not in Page(report(facts())).words


def test_a_translator_is_judged_by_bleu_where_the_baselines_have_no_loss():
    verdict, advice = judge(of_pairs())
    assert (
        verdict
        == "70 points better than the copy of the source, which costs nothing: BLEU 70.4 against 0.200 on "
        + ("the test split.")
    )
    assert not advice


def test_a_page_of_pairs_shows_samples_beside_references_the_curve_of_bleu_and_what_was_looked_at():
    page = Page(report(of_pairs()))
    cells = [words for _, words in page.all("td")]
    start = cells.index("They have them.")
    assert cells[start : start + 3] == ["They have them.", "Ils les ont.", "Ils les ont. | Elles."]
    titles = [words for _, words in page.all("title")]
    assert {"BLEU, quick looks", "step 4: 40.00", "12 words"} <= set(titles)
    assert "test split: by words" in page.words
    assert "3.641" not in page.words  # a place on an axis is no result


def test_a_page_of_pairs_tells_both_sides_and_what_was_left_out():
    words = " ".join(Page(report(of_pairs())).words.split())
    for told in ("different sources", "tokens, target", "35,000", "45,000", "2,417 and 2,300"):
        assert told in words
    for told in ("sources are held out12", "too long3", "learned from too0", "no pair31"):  # each name with its number
        assert told in words


@pytest.mark.parametrize("value", [HOSTILE, None, math.nan, 10**400, [], {}, [HOSTILE]], ids=lambda v: repr(v)[:9])
def test_whatever_a_value_of_pairs_is_the_page_is_whole_and_inert(value):
    whole = of_pairs()
    for path in places({key: whole[key] for key in ("metrics", "protocol", "parts", "log", "samples", "data")}):
        inert(report(put(whole, path, value)))


def test_a_section_without_facts_is_left_out():
    whole = facts()
    titles = {words for _, words in Page(report(whole)).all("h2")}
    assert len(titles) == 10
    gone = {
        "Learning curves": ["log"], "Samples": ["samples"], "Data": ["data", "reason"], "Cost": ["cost"],
        "Machine": ["machine"], "Recipe": ["recipe", "origins"], "Repeat it": ["repeat"], "What next": ["next"],
        "Audit": ["audit"],
    }  # fmt: skip
    for title, keys in gone.items():
        for less in ({k: v for k, v in whole.items() if k not in keys}, whole | {k: type(whole[k])() for k in keys}):
            page = Page(report(less))
            assert {words for _, words in page.all("h2")} == titles - {title}
            assert title not in [words for _, words in page.all("a")]


def test_of_a_missing_fact_no_trace_is_left():
    whole = facts(steps=120)
    for path in places({k: v for k, v in whole.items() if k != "name"}):
        words = Page(report(put(whole, path, None))).words
        assert not re.search(r"None|\(\)|\( | \)|  per|PUE \(|: *\.", words.replace("# ", "")), path


def test_name_and_metrics_are_enough():
    page = inert(report({"name": "bare", "metrics": {"valid": {"loss": 1.0}}}))
    assert [words for _, words in page.all("h2")] == ["Result"]
    assert "None" not in page.words
    assert [words for _, words in inert(report({"name": "empty", "metrics": {}})).all("h2")] == []


def test_the_annotated_recipe_is_still_the_recipe():
    [shown] = re.findall(r"<pre tabindex=\"0\">(.*?)</pre>", report(facts()), re.S)
    text = re.sub("<[^>]+>", "", shown).replace("&quot;", '"')
    assert tomllib.loads(text) == tomllib.loads(RECIPE)
    assert re.search(r"d = 128 +# size = small\n", text)
    assert re.search(r"lr = 0.001 +# command line\n", text)


def test_a_long_sample_is_cut_and_says_so():
    page = report(facts() | {"samples": [{"text": "word " * 100_000}] * 100})
    assert (len(page) < 300_000, "and 496,000 characters more" in page) == (True, True)


def test_every_heading_table_and_picture_has_a_name():
    page = Page(report(facts()))
    assert len(page.all("h1")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(words.strip() for _, words in page.all("caption"))
    pictures = [attrs for attrs, _ in page.all("svg") if attrs.get("role") == "img"]
    assert len(pictures) == 4 == len(page.all("desc"))
    assert "validation, quick looks: from" in " ".join(words for _, words in page.all("desc"))
    assert len({attrs["id"] for attrs, _ in page.all("section")}) == len(page.all("section"))
    for attrs, _ in page.all("a"):
        assert page.all("section", id=(attrs["href"] or "")[1:])


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_name_or_a_number_of_a_table_is_not_cut_and_a_long_command_wraps():
    found = re.findall(r"([^{}]+)\{([^{}]*)\}", CSS)
    rules = {name.strip(): rule for names, rule in found for name in names.split(",")}
    assert "anywhere" not in rules["tbody th"]
    assert "nowrap" in rules["td.n"]
    assert "pre-wrap" in rules["pre"]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_ink_can_be_read_on_every_paper(theme):
    for ink in ("ink", "soft", "accent", "valid"):
        for paper in ("paper", "tint"):
            both = [re.findall(rf"--{name}: (#[0-9a-f]{{6}})", CSS)[theme] for name in (ink, paper)]
            dark, light = sorted(map(luminance, both))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, paper)


def axis(page: Page, which: str, at: str) -> list[tuple[float, float]]:
    """The labels of an axis as (value, place in percent)."""
    found = []
    for attrs, words in page.all("text", class_=which):
        number, _, unit = words.removeprefix("step ").replace(",", "").partition(" ")
        found.append((float(number) * {"": 1, "k": 1e3, "M": 1e6}[unit], float((attrs[at] or "").rstrip("%"))))
    return found


def read(axis: list[tuple[float, float]], place: float) -> float:
    """What a reader takes from the axis at this place."""
    (a, at_a), (b, at_b) = axis[0], axis[-1]
    return a + (place - at_a) / (at_b - at_a) * (b - a)


def test_a_reader_finds_the_validation_points_where_they_are():
    points = [(120.0, 2.61), (700.0, 1.93), (1200.0, 1.71)]
    train = [(float(step), 4.2 - step / 600) for step in range(1, 1201)]
    page = Page(chart("Loss", [Line("training", train, "faint"), Line("validation", points, "dots")]))
    x, y = axis(page, "x", "x"), axis(page, "y", "y")
    assert (x[0], x[-1], y[0][1], y[-1][1]) == ((0, 0), (1200, 100), 100, 0)  # later is right, more is up
    dots = [[float((a[c] or "").rstrip("%")) for c in ("cx", "cy")] for a, _ in page.all("circle", class_="dots")]
    seen = [(read(x, across), read(y, down)) for across, down in dots]
    assert seen == [(pytest.approx(step, abs=0.2), pytest.approx(loss, abs=2e-3)) for step, loss in points]
    assert page.all("title")[1][1] == "step 120: 2.610"


def test_the_line_runs_through_its_points():
    page = Page(chart("x", [Line("x", [(0.0, 1.0), (50.0, 3.0), (100.0, 2.0)])]))
    x, y = axis(page, "x", "x"), axis(page, "y", "y")
    [(path, _)] = page.all("path")
    seen = [tuple(map(float, pair.split())) for pair in (path["d"] or "").removeprefix("M").split("L")]
    assert [(read(x, a / 10), read(y, b / 10)) for a, b in seen] == [(0, 1), (50, 3), (100, 2)]


def test_the_free_baseline_is_a_line_in_the_loss_chart():
    page = Page(report(facts()))
    [(line, _)] = page.all("line", class_="level")
    first = [(v, at) for v, at in axis(page, "y", "y")][: len(ticks(1.5, 4.2))]
    assert read(first, float((line["y1"] or "").rstrip("%"))) == pytest.approx(2.13, abs=1e-3)


BAD = [math.nan, math.inf, -math.inf, 1e300, None, "7", True]


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0, 2.0], [1.0, 1.0], [0.0], [1.0, 1e29], [1e-300, 2e-300], BAD, [1.0, *BAD, 2.0]]
)
@pytest.mark.parametrize("look", ["line", "faint", "dots"])
def test_few_or_broken_points_do_not_break_a_chart(values, look):
    for zero in (True, False):
        picture = chart("x", [Line("x", list(enumerate(values)), look)], zero=zero)
        page = inert(picture)
        assert bool(picture) == any(type(v) is float and abs(v) < 1e30 for v in values)
        assert not re.search(r"nan|inf\b", picture)
        assert bool(page.all("circle") or page.all("path")) == bool(picture)


@pytest.mark.parametrize("lines", [0, 1, 2, 19, 20])
def test_a_log_of_any_length_gives_a_page(lines):
    page = inert(report(facts() | {"log": facts()["log"][:lines]}))
    assert ("Learning curves" in page.words) == (lines > 0)


def test_broken_lines_of_a_log_are_passed_over():
    log = [{"step": 1, "loss": math.nan, "valid": math.inf}, {"loss": 2.0}, {"step": "2", "loss": 2.0}, "no", None, {}]
    assert "Learning curves" not in report(facts() | {"log": log})
    assert "Learning curves" in report(facts() | {"log": [*log, {"step": -0.5, "loss": 2.0}]})


def test_a_hundred_thousand_lines_give_a_small_page():
    wild = ((step, 2 + math.sin(step * step)) for step in range(1, 100_001))
    log = [{"step": s, "loss": y, "valid": y, "lr": y, "gradient": y, "tokens_per_second": y} for s, y in wild]
    page = report(facts() | {"log": log})
    assert len(page.encode()) < 300_000
    assert len(Page(page).all("circle")) <= 500


def test_thinning_keeps_the_ends_and_every_spike():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[77] = (77.0, -99.0)
    assert len(less := thin(points)) <= 500
    assert {points[0], points[77], points[54_321], points[-1]} <= set(less)
    assert less == sorted(less)


def test_smoothing_takes_the_noise_and_leaves_the_ends():
    points = [(float(x), 2.0 + (-1) ** x) for x in range(1001)]
    even = smooth(points)
    assert len(even) <= 200
    assert (even[0], even[-1][0]) == (points[0], 1000.0)
    assert all(abs(y - 2.0) < 0.2 for _, y in even[20:])


@given(st.floats(-1e29, 1e29), st.floats(-1e29, 1e29), st.integers(2, 8))
def test_ticks_are_round_and_hold_the_range(a, b, about):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, about)
    step = found[1] - found[0]
    assert 2 <= len(found) <= about + 3
    assert found[0] <= low + 1e-9 * step
    assert found[-1] >= high - 1e-9 * step
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-6), 6) in {1, 2, 5}
    assert all(abs(x / step - round(x / step)) < 1e-6 * max(1, abs(x / step)) for x in found)
    assert len(set(labels(found))) == len(found)


def test_ticks_are_written_as_people_write_them():
    assert labels(ticks(1.62, 4.31)) == ["1", "2", "3", "4", "5"]
    assert labels(ticks(0.0, 0.001, 3)) == ["0", "0.0005", "0.0010"]
    assert labels(ticks(0.0, 3e-5, 3)) == ["0", "1e-5", "2e-5", "3e-5"]
    assert labels(ticks(0, 31_400)) == ["0", "10 k", "20 k", "30 k", "40 k"]
    assert labels(ticks(0, 1200, 3)) == ["0", "500", "1,000", "1,500"]
    assert labels(ticks(7.0, 7.0)) == ["6.0", "6.5", "7.0", "7.5", "8.0"]


def test_numbers_are_written_for_people():
    counts = [scaled(n, "count") for n in (66, 31_000, 826_368, 124_439_808, 1.5e9, None)]
    assert counts == ["66", "31 k", "0.83 M", "124 M", "1.5 B", ""]
    assert [scaled(kwh, "energy") for kwh in (12.0, 0.00033, 0.0, "?")] == ["12 kWh", "0.33 Wh", "0 mWh", "?"]
    assert [scaled(5.1e13, "flop"), scaled(0.00014, "mass")] == ["51 TFLOP", "0.14 g"]
    times = [duration(seconds) for seconds in (0.42, 45, 59.7, 240.1, 7_325, math.nan)]
    assert times == ["0.4 s", "45 s", "1 min 0 s", "4 min 0 s", "2 h 2 min", "nan"]
    figures = [figure(x) for x in (1.7052, 111_540, 28.14, 1234.5, 0.0, 2e-7, 1.0142320547350045e304, None)]
    assert figures == ["1.71", "111,540", "28.1", "1,234", "0", "2e-7", "1.01e304", ""]


def test_the_verdict_is_by_what_the_task_is_judged_by():
    solved = {"loss": 0.01, "perplexity": 1.01, "bleu": 0.0, "exact_match": 1.0}
    free = {"copy of the source": {"bleu": 0.0, "exact_match": 0.0}}
    facts = {"metrics": {"valid": solved}, "baseline": {"valid": free}}
    facts["protocol"] = {"valid": {"tokens": 10_000, "judged_by": "exact_match"}}
    assert judge(facts)[0].startswith("1.0 better than the copy of the source")


def test_what_to_type_next_is_the_shortest_of_the_samples():
    assert _shortest([{"prompt": "a long sentence"}, {"prompt": "it's short"}]) == """'it'"'"'s short'"""
    assert _shortest([], "What?") == "'What?'"
