"""The report of a finished run: one offline HTML page for people. It needs no script and fetches nothing."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from . import line_chart
from .line_chart import Html, Line, Point, duration, figure, number, scaled, tag

Facts = Mapping[str, Any]
NAMES = {"valid": "validation", "train": "training", "ram_gib": "memory, GiB"}
NAMES |= {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L", "answer_f1": "answer F1", "bracket_f1": "bracket F1"}
SAMPLES, LETTERS, PARTS, LOOKS = 20, 4000, 100, 12  # the most of each on a page
BESIDE = 3  # metrics of a split whose table leaves room for another beside it
FEW = 1000  # tokens; what fewer of them say of a model is chance
LESS = {"loss", "perplexity", "bits_per_character", "mse"}  # of these, less is better
# one of these may stand beside a look's loss
MEASURES = ["bleu", "exact_match", "rouge_l", "answer_f1", "bracket_f1"]
MEASURES += ["accuracy", "f1", "matthews", "auc", "pearson", "spearman", "r2", "em"]
POINTS = {"bleu", "chrf"}  # of 100
PAIRS = {"pairs": "pairs", "sources": "different sources", "references": "references of a source"}
LEFT_OUT = {
    "overlap": "held-out sources that are learned from too",
    "taken": "pairs not learned from, as their sources are held out",
    "aside": "pairs not learned from, as they are too long",
    "padding": "share of the batches that is padding",
}
ADVICE = "take a larger model (model.size) or give it more data."
HEAD = """<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">"""
CSS = """
:root { color-scheme: light; --paper: #fcfbf8; --ink: #1d2126; --soft: #59606a; --rule: #dfdcd3; --tint: #f4f2eb;
  --accent: #00639c; --valid: #b84a00; --serif: "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark; --paper: #14171b; --ink: #e5e2db;
  --soft: #a3a9b1; --rule: #333941; --tint: #1d2126; --accent: #7cc0f0; --valid: #f5a267 } }
body { margin: 0 auto; padding: 2.6rem 1.5rem 3rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; overflow-wrap: break-word }
* { box-sizing: border-box } dd { margin: 0 } dt, dd { overflow-wrap: anywhere; min-width: 6rem }
tbody th { min-width: 6rem; max-width: 18rem }
h1, h2, .verdict { font-family: var(--serif); line-height: 1.25; text-wrap: balance; margin: 0 } p { margin: .6rem 0 }
h1 { font-size: 2rem } h2 { font-size: 1.12rem } .verdict { font-size: 1.5rem; margin: 1.5rem 0 .6rem }
.verdict, .advice { padding-left: 1rem; border-left: 4px solid var(--accent) } .advice { border-color: transparent }
.verdict.worse { border-color: var(--valid) } nav a { display: inline-block; color: inherit; margin-right: 1.1em }
.soft, caption, dt, nav, footer, summary { color: var(--soft); font-size: .88rem } summary { margin-bottom: .6rem }
.cards, .pair, .trio { display: grid; grid: auto / repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .8rem 2.4rem }
.cards { grid: auto / repeat(auto-fit, minmax(8.8rem, 1fr)); gap: 1.2rem 1.4rem; margin: 1.8rem 0 1rem }
.cards div { border-top: 1px solid var(--ink); padding-top: .4rem } .cards dd { font-size: .82rem; color: var(--soft) }
.cards .big { font-size: 1.75rem; line-height: 1.3; color: var(--ink) } .mine tbody > :first-child { font-weight: 650 }
.trio { grid: auto / repeat(auto-fit, minmax(min(100%, 14rem), 1fr)); gap: 1rem 1.2rem } .wide { overflow-x: auto }
section { display: grid; grid: auto / 8.5rem minmax(0, 1fr); gap: .7rem 1.8rem } td:nth-child(2) { white-space: nowrap }
.texts :is(td, th) { white-space: normal; width: 33% } .shot { height: 4rem; image-rendering: pixelated }
section, footer { margin-top: 1.8rem; padding-top: 1.1rem; border-top: 1px solid var(--rule) }
table { border-collapse: collapse; width: 100%; margin: 0 0 1rem; font-size: .9rem; font-variant-numeric: tabular-nums }
caption, th, td { text-align: left; vertical-align: baseline; font-weight: inherit; padding: .28rem 1.1rem .28rem 0 }
.n, .right :is(td, thead th) { text-align: right } td.n, .right td { white-space: nowrap }
th, td { border-bottom: 1px solid var(--rule) } thead { color: var(--soft) } :is(th, td):last-child { padding-right: 0 }
.pairs { display: grid; grid: auto / fit-content(40%) minmax(0, 1fr); gap: .15rem 1.4rem; margin: 0; font-size: .9rem }
pre { margin: 0 0 .6rem; padding: .7rem .9rem; white-space: pre-wrap; background: var(--tint);
  font: .84rem/1.5 ui-monospace, Menlo, Consolas, monospace } pre i { color: var(--soft); font-style: normal }
blockquote { margin: 0 0 1.1rem; padding-left: 1rem; border-left: 2px solid var(--rule); white-space: pre-wrap;
  font: 1.02rem/1.5 var(--serif); max-width: 44rem } blockquote b { color: var(--accent) }
@media (max-width: 46rem) { body { padding: 1.5rem 1.1rem 2rem } section { grid: auto / minmax(0, 1fr) }
  h1 { font-size: 1.7rem } .verdict { font-size: 1.25rem } th, td { padding-right: .8rem } .plot { height: 14rem } }
@media print { :root { --paper: #fff; font-size: 9.5pt } body { padding: 0 } nav, details { display: none }
  figure, tr, .cards, blockquote { break-inside: avoid } h2 { break-after: avoid } }
"""


def report(facts: Facts) -> str:
    """The page. Only `name` and `metrics` are needed; a section without facts is left out."""
    sections = (
        ("Result", _results(facts)),
        ("Learning curves", _curves(facts)),
        ("Samples", _samples([x for x in (facts.get("samples") or ())[:SAMPLES] if isinstance(x, Mapping)])),
        ("Attention", _looks(facts.get("looks"))),
        ("Audit", _audit(_of(facts, "audit"))),
        ("Data", _data(_of(facts, "data"), facts.get("reason"))),
        ("Cost", _cost(_of(facts, "cost"))),
        ("Machine", pairs(_of(facts, "machine"))),
        ("Recipe", _recipe(str(facts.get("recipe") or ""), _of(facts, "origins"))),
        ("Repeat it", [tag("pre", command) for command in facts.get("repeat") or ()]),
        ("What next", [tag("pre", command) for command in facts.get("next") or ()]),
    )
    about = [str(facts[key]) for key in ("kind", "task", "date") if facts.get(key) is not None]
    verdict, advice = judge(facts)
    lead = (
        tag("p", doubt, class_="verdict worse") if (doubt := doubtful(facts)) else None,
        tag("p", verdict, class_="verdict worse" if advice else "verdict"),
        tag("p", advice, class_="advice") if advice else None,
        _cards(facts, _split(facts)),
    )
    return page(str(facts["name"]), "report of a training", about, lead, sections)


def page(name: str, what: str, about: Sequence[str], lead: Sequence[Any], sections: Sequence[tuple[str, Any]]) -> str:
    """One offline file: its name, what leads, and a section for whatever has something in it."""
    full = [
        (title, title.split()[0].lower(), Html(inside)) for title, raw in sections if (inside := line_chart.escape(raw))
    ]
    body = (
        tag("p", " · ".join([f"harken, {what}", *about]), class_="soft"),
        tag("h1", name),
        lead,
        tag("nav", [tag("a", title, href=f"#{key}") for title, key, _ in full], aria_label="Sections"),
        [tag("section", tag("h2", title), tag("div", inside), id=key) for title, key, inside in full],
        tag("footer", "This file is whole: it holds no script and fetches nothing."),
    )
    head = HEAD + tag("title", f"{name}: {what}") + tag("style", Html(CSS + line_chart.CSS))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{tag("body", tag("main", body))}</html>\n'


def judge(facts: Facts) -> tuple[str, str]:
    """The verdict in one sentence, against the best that costs nothing, and advice where it is not good."""
    split = _split(facts)
    if told := too_few(_of(facts, "protocol", split)):
        return told, f"Give it more data, or hold out more of it (data.{split})."
    mine, where = _numbers(_of(facts, "metrics", split)), f"on the {_name(split)} split"
    if not facts.get("metrics"):
        return "Nothing was held out, so nothing was judged.", "Hold out a part: data.valid=0.1."
    if not mine:
        return "No finite number was measured: nothing can be said about this model.", "Lower train.lr and train again."
    free = {name: _numbers(them) for name, them in _of(facts, "baseline", split).items()}
    by = _of(facts, "protocol", split).get("judged_by")  # what the task is judged by, where it says so
    order = sorted(leading(mine), key=lambda name: name != by)
    key = next((k for k in order if any(k in them for them in free.values())), None)
    if key is None:
        return f"The {_name(order[0])} {where} is {figure(mine[order[0]])}; there is nothing to compare it with.", ""
    sign = 1 if key in LESS else -1
    name, theirs = min(((n, t) for n, t in free.items() if key in t), key=lambda pair: sign * pair[1][key])
    gap, shown = sign * (theirs[key] - mine[key]), "perplexity" if "perplexity" in mine.keys() & theirs.keys() else key
    numbers = f"{_name(shown)} {figure(mine[shown])} against {figure(theirs[shown])} {where}."
    unit = "nats" + " per token" * ("perplexity" in mine) if key == "loss" else "points" if key in POINTS else ""
    size = f"{figure(abs(gap), 2)} {unit}".strip()
    if gap >= 0.005:
        return f"{size} better than the {name}, which costs nothing: {numbers}", ""
    verdict = f"{size} worse than" if gap <= -0.005 else "No better than"
    longer = "" if facts.get("early") or _rose(_series(facts, "valid")) else "train longer (train.minutes), "
    return f"{verdict} the free {name}: {numbers}", f"{_course(facts)} {_upper(longer + ADVICE)}".strip()


def leading(metrics: Facts) -> list[str]:
    """The metrics, the one to judge by first: for a language model its loss, for others the first that is no loss."""
    return sorted(metrics, key=lambda key: (key == "loss") != ("perplexity" in metrics))


def too_few(protocol: Facts) -> str:
    """What is said if a judgement by this protocol rests on too few tokens; else nothing."""
    told = f"Only {figure(protocol.get('tokens'))} tokens were judged, too few for a verdict: {FEW:,} are needed."
    return told if (number(protocol.get("tokens")) or FEW) < FEW else ""


def shown_of(part: Facts) -> Facts:
    """The metrics of a part of a split, without its place on a picture's axis."""
    return {key: value for key, value in part.items() if key != "at"}


def doubtful(facts: Facts) -> str:
    """Why the numbers of a run say nothing; nothing, if its audit passed."""
    audit = _of(facts, "audit")
    return f"Do not trust these numbers: {figure(audit.get('summary'))}." if audit.get("passed") is False else ""


def skipped(facts: Facts) -> str:
    """How many updates were left out, if any was."""
    told = f"{figure(facts.get('skipped'))} of {figure(facts.get('steps'))} updates were left out"
    return f"{told}: their loss or gradient was not finite." if number(facts.get("skipped")) else ""


def _cards(facts: Facts, split: str) -> list[Html]:
    """The big numbers, and beside them how they were measured."""
    mine, cost, steps = _of(facts, "metrics", split), _of(facts, "cost"), facts.get("steps")
    units = {"loss": "nats per token", "perplexity": "equally likely choices"} if "perplexity" in mine else {}
    cards = [
        *((_name(key), figure(value), units.get(key, f"{_name(split)} split")) for key, value in mine.items()),
        ("weights", scaled(facts.get("parameters"), "count"), f"{figure(facts.get('parameters'))} in all"),
        ("time", duration(facts.get("seconds")), f"{figure(steps)} steps" if steps else ""),
        ("energy", scaled(cost.get("kwh"), "energy"), figure(cost.get("energy_source")).partition(":")[0]),
    ]
    boxes = [tag("div", tag("dt", a), tag("dd", b, class_="big"), tag("dd", c)) for a, b, c in cards if b]
    how = [tag("p", _scored(facts, split), class_="soft")] if _of(facts, "protocol", split) else []
    return [tag("dl", boxes, class_="cards"), *how] if boxes else []


def _results(facts: Facts) -> Html | None:
    """The model beside what costs nothing, a table for each split; and each source of mixed data, the hardest first."""
    tables = []
    for split, mine in _of(facts, "metrics").items():
        beside = {**_of(facts, "seeds", "together", split), **_of(facts, "baseline", split)}
        tables.append(table(_scored(facts, split), {"this model": mine, **beside}, "wide mine"))
    for split in _of(facts, "parts"):
        each = {name: _numbers(part) for name, part in _of(facts, "parts", split).items()}
        rows = sorted(
            _of(facts, "parts", split).items(), key=lambda row: (x := each[row[0]]).get("f1", -x.get("loss", 0.0))
        )
        by = _of(facts, "protocol", split).get("grouped_by")
        seen = {key for part in each.values() for key in part}
        what = "labels" if seen & {"precision", "entities"} else "sources" if "loss" in seen else "parts"
        told = f"by {figure(by)}" if by else f"{len(rows):,} {what}, hardest first"
        tables.append(
            table(
                f"{_name(split)} split: {told}",
                {name: shown_of(part) for name, part in rows[:PARTS] if isinstance(part, Mapping)},
            )
        )
    narrow = all(len(_of(facts, "metrics", split)) <= BESIDE for split in _of(facts, "metrics"))
    return tag("div", tables, class_="pair" if narrow else None) if any(tables) else None


def _curves(facts: Facts) -> list[Html]:
    """Loss, learning rate, gradient and speed over the steps, and the looks at the validation split as a table."""
    small = {"lr": "Learning rate", "gradient": "Length of the gradient", "tokens_per_second": "Tokens per second"}
    measure = {key: f"{_upper(_name(key))}, quick looks" for key in MEASURES if _series(facts, key)}
    at = {key: dict(_series(facts, key)) for key in ("loss", "valid", *measure, *small)}
    loss, valid = ([*at[key].items()] for key in ("loss", "valid"))
    lines = [Line("training", loss, "faint" if (even := line_chart.smooth(loss)) else "line"), Line("smoothed", even)]
    free = [(x["loss"], n) for n, t in _of(facts, "baseline", "valid").items() if "loss" in (x := _numbers(t))]
    level = Line(f"{min(free)[1]}, free: {figure(min(free)[0])}", [(0.0, min(free)[0])]) if free else None
    out = [line_chart.chart("Loss", [*lines, Line("validation, quick looks", valid, "dots")], note="nats", level=level)]
    out += [tag("p", told, class_="soft") for told in (_course(facts), skipped(facts)) if told]
    out += [line_chart.chart(name, [Line(name, [*at[key].items()], "dots")]) for key, name in measure.items()]
    trio = [line_chart.chart(name, [Line(name, [*at[key].items()])], zero=True) for key, name in small.items()]
    out += [tag("div", trio, class_="trio")] if any(trio) else []
    looks = valid[:: -1 - len(valid) // LOOKS][::-1]  # from the end, so that the last one is among them
    shown = table("Quick looks", {f"step {x:,.0f}": {key: at[key].get(x) for key in at} for x, _ in looks})
    return [*out, tag("details", tag("summary", "The numbers behind the curve"), shown)] if shown else out


def _samples(samples: Sequence[Facts]) -> list[Html] | Html:
    """Texts the model wrote; what it made of a source stands beside the references."""
    if not any("references" in sample for sample in samples):
        return [_sample(sample) for sample in samples]
    cells = [(s.get("prompt"), s.get("text"), s.get("references")) for s in samples]
    joined = [[" | ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row] for row in cells]
    texts = [[tag("td", _cut(str(cell or "")), dir="auto") for cell in row] for row in joined]
    rows = [tag("tr", _picture(sample.get("picture")), row) for sample, row in zip(samples, texts, strict=True)]
    names = [""] * any(map(_picture, (s.get("picture") for s in samples))) + ["source", "this model", "references"]
    head = tag("tr", [tag("th", name, scope="col") for name in names])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="wide texts")


def _picture(png: Any) -> Html | None:
    """A cell with a picture in it, if there is one."""
    if not isinstance(png, bytes):
        return None
    image = tag("img", src=f"data:image/png;base64,{b64encode(png).decode()}", alt="", class_="shot")
    return tag("td", Html(image.removesuffix("</img>")))


def _cut(text: str) -> str:
    return text[:LETTERS] + (f" … and {len(text) - LETTERS:,} characters more" if text[LETTERS:] else "")


def _looks(picture: Any) -> list[Html]:
    """A map of attention that was drawn already, and how to read it."""
    told = "Each row is a token it wrote; the darker a place, the more it looked at that token of the source."
    mean = "Mean over the heads of the last layer that looks at the source."
    return [tag("p", f"{told} {mean}", class_="soft"), tag("div", picture, class_="wide")] if picture else []


def _sample(sample: Facts) -> Html:
    """A text the model wrote, its prompt first."""
    heat, words = sample.get("temperature"), _cut(str(sample.get("text") or ""))
    how = tag("div", f"temperature {heat}", class_="soft") if heat is not None else None
    return tag("div", how, tag("blockquote", tag("b", sample.get("prompt")), words, dir="auto"))


def _audit(audit: Facts) -> Html:
    """What was proved of the model, check by check, and the layer that is to blame where a check failed."""
    checks = checks if isinstance(checks := audit.get("checks"), list) else []
    rows = {figure(c.get("name")): {"outcome": "", **c, "name": None} for c in checks if isinstance(c, Mapping)}
    return table(figure(audit.get("summary")), rows)


def _data(data: Facts, reason: Any) -> list[Html]:
    """How much there is of each split, and what it is; of pairs, both sides, and what was left out."""
    counts = {key: _of(data, key) for key in (str(data.get("unit", "tokens")), "tokens", "characters")}
    if "pairs" in data:
        counts = {name: _of(data, key) for key, name in PAIRS.items()}
        for key, name in (("tokens", "tokens"), ("length", "tokens of a sentence")):
            for side in ("source", "target"):
                counts[f"{name}, {side}"] = {split: _of(data, key, split).get(side) for split in _of(data, key)}
    vocab = data.get("vocab")
    rest = {"vocabulary": " and ".join(dict.fromkeys(map(figure, vocab))) if isinstance(vocab, list) else vocab}
    rest |= {"a token is": data.get("token"), "what it is": data.get("told"), "recognised": reason}
    rest |= {name: data.get(key) for key, name in LEFT_OUT.items()}
    rest |= {"lines that are no pair": _of(data, "bad").get("count"), "SHA-256": data.get("sha256")}
    return [table("How much there is of each split", counts), *pairs(rest)]


def _cost(cost: Facts) -> Html:
    """What was used, and where each number comes from, as far as it is known."""
    known = {key: figure(value) for key, value in cost.items()} | {"each": scaled(cost.get("flops_per_token"), "flop")}
    known |= {f"other_{key}": figure(value) for key, value in _of(cost, "compared_with").items()}
    share = number(_of(cost, "compared_with").get("fraction")) or 0.0
    size = "" if share <= 0 else f"1/{1 / share:,.0f}" if share < 1 else f"{figure(share)} times"

    def say(**pieces: str) -> str:
        return " ".join(words.format(known[key]) for key, words in pieces.items() if known.get(key))

    energy = say(energy_source="{}", watts_source="({})", pue="· times PUE {}", pue_source="({})")
    carbon = say(co2e_lb="{} lb", lb_per_kwh="at {} lb per kWh", intensity_source="({})")
    rows = (
        ("time", duration(cost.get("seconds")), "wall clock of the training"),
        ("memory", _memory(cost), "the most at once while training: this process, or the tensors on the GPU"),
        ("arithmetic", scaled(cost.get("flops"), "flop"), say(each="{} per token")),
        ("energy", scaled(cost.get("kwh"), "energy"), energy),
        ("CO₂e", scaled(cost.get("co2e_kg"), "mass"), carbon),
        ("price", say(price_usd="{} USD"), say(price_source="{}")),
        ("compared", size, say(other_model="of {}:", other_co2e_lb="{} lb", other_source="({})")),
    )
    said = _of(cost, "predicted")
    told = {"time": duration(said.get("seconds")), "memory": _memory(said), "energy": scaled(said.get("kwh"), "energy")}
    found = {n: {"amount": x, "predicted": told.get(n) or None, "source": why} for n, x, why in rows if x}
    return table("What the training used", found)


def _memory(cost: Facts) -> str:
    return f"{x:,.0f} MiB" if (x := number(cost.get("memory_mib"))) else ""


def _recipe(text: str, origins: Facts) -> list[Html]:
    """The recipe; where a value comes from stands behind it as a comment, so that a copy is still a recipe."""
    section, lines, left = "", [], dict(origins)
    for line in text.splitlines():
        words = line.strip()
        section = f"{words.strip('[] ')}." if words.startswith("[") else section
        origin = left.pop(section + words.partition("=")[0].strip(), None)
        lines += [line, tag("i", f"{'':{max(2, 36 - len(line))}}# {origin}") if origin is not None else None, "\n"]
    return [tag("pre", lines, tabindex="0"), *pairs(left)] if lines else pairs(left)


def table(caption: str, rows: Facts, look: str = "wide") -> Html:
    """Rows of named values, numbers to the right; nothing if there is no value."""
    rows = {name: row for name, row in rows.items() if isinstance(row, Mapping) and row}
    keys = list({key: 0 for row in rows.values() for key, value in row.items() if value is not None})
    side = {k: None if any(isinstance(row.get(k), str) for row in rows.values()) else "n" for k in keys}
    head = tag("tr", tag("td"), [tag("th", _name(key), scope="col", class_=side[key]) for key in keys])
    body = [
        tag("tr", tag("th", name, scope="row"), [tag("td", figure(row.get(k), 4), class_=side[k]) for k in keys])
        for name, row in rows.items()
    ]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", whole, class_=look) if keys else Html()


def pairs(given: Facts) -> list[Html]:
    rows = [(tag("dt", NAMES.get(k, k)), tag("dd", figure(value))) for k, value in given.items() if figure(value)]
    return [tag("dl", *rows, class_="pairs")] if rows else []


def _of(facts: Facts, *path: str) -> Facts:
    """What lies at the end of the path, if it is a table; else an empty one."""
    for key in path:
        facts = inner if isinstance(inner := facts.get(key), Mapping) else {}
    return facts


def _series(facts: Facts, key: str) -> list[Point]:
    return line_chart.finite((r.get("step"), r.get(key)) for r in facts.get("log") or () if isinstance(r, Mapping))


def _numbers(row: Any) -> dict[str, float]:
    return {k: x for k, v in row.items() if (x := number(v)) is not None} if isinstance(row, Mapping) else {}


def _name(key: str) -> str:
    return NAMES.get(key, str(key).replace("_", " "))


def _split(facts: Facts) -> str:
    """The split to judge by: one that says enough first, then one with a baseline, then test before validation."""
    free, few = _of(facts, "baseline"), {s: too_few(_of(facts, "protocol", s)) for s in _of(facts, "metrics")}
    return min(few, key=lambda s: (bool(few[s]), not free.get(s), s != "test", s != "valid"), default="")


def _scored(facts: Facts, split: str) -> str:
    """How a number was measured: what it is worth depends on the context each token had."""
    how = [f"{_name(key)} {figure(value)}" for key, value in _of(facts, "protocol", split).items()]
    return f"{_name(split)} split" + ": " * bool(how) + ", ".join(how)


def _upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _rose(valid: Sequence[Point]) -> bool:
    return bool(valid) and valid[-1][1] > min(loss for _, loss in valid) + 0.01


def _course(facts: Facts) -> str:
    """Where the validation loss was best, and whether it was still falling; or why the training stopped early."""
    if early := facts.get("early"):
        return f"{_upper(figure(early))}."
    if len(valid := _series(facts, "valid")) < 3:
        return ""
    step, best = min(valid, key=lambda point: point[1])
    if step == valid[-1][0]:
        return "The validation loss was lowest at the very end: more steps may still help."
    risen = f", then rose to {figure(valid[-1][1])}" if _rose(valid) else ""
    return f"The validation loss was lowest at step {step:,.0f} ({figure(best)}){risen}."
