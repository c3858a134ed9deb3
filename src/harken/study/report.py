"""The report of a finished run: one offline HTML page for people. It needs no script and fetches nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from . import chart
from .chart import Html, Line, Point, figure, number, tag

Facts = Mapping[str, Any]
Units = Sequence[tuple[float, float, str]]  # from where on, divided by what, called what
COUNTS: Units = ((1e9, 1e9, "B"), (1e5, 1e6, "M"), (1e4, 1e3, "k"), (0, 1, ""))
FLOPS: Units = tuple(
    (10.0**n, 10.0**n, f"{name}FLOP") for n, name in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (0, ""))
)
ENERGY: Units = ((1e3, 1e3, "MWh"), (0.1, 1, "kWh"), (1e-4, 1e-3, "Wh"), (0, 1e-6, "mWh"))
MASS: Units = ((1e3, 1e3, "t"), (0.1, 1, "kg"), (1e-4, 1e-3, "g"), (0, 1e-6, "mg"))
LOWER = ("loss", "perplexity", "bits_per_character")  # the metrics of which less is better
NAMES = {"bits_per_character": "bits per character", "valid": "validation", "train": "training"}
SAMPLES, LETTERS, PARTS, LOOKS = 20, 4000, 50, 12  # the most of each on a page
ADVICE = "Train longer (train.minutes), take a larger model (model.size) or give it more data."
HEAD = (
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
)
CSS = """
:root { color-scheme: light; --paper: #fcfbf8; --ink: #1d2126; --soft: #59606a; --rule: #dfdcd3; --tint: #f4f2eb;
  --accent: #00639c; --valid: #b84a00; --serif: "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark; --paper: #14171b; --ink: #e5e2db;
  --soft: #a3a9b1; --rule: #333941; --tint: #1d2126; --accent: #7cc0f0; --valid: #f5a267 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2.6rem 1.5rem 3rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; overflow-wrap: anywhere }
h1, h2, .verdict { font-family: var(--serif); font-weight: 600; line-height: 1.25; text-wrap: balance }
h1 { font-size: 2.1rem; margin: 0 }
h2 { font-size: 1.12rem; margin: 0 }
p { margin: 0 0 .8rem; max-width: 44rem }
.soft, caption, dt, nav, footer { color: var(--soft); font-size: .88rem }
nav a { color: inherit; margin-right: 1.1em; text-underline-offset: .2em; text-decoration-color: var(--rule) }
.verdict { font-size: 1.5rem; font-weight: 400; margin: 1.6rem 0 .5rem; padding-left: 1rem; border-left: 4px solid var(--accent);
  max-width: none }
.verdict.worse { border-color: var(--valid) }
.advice { padding-left: calc(1rem + 4px) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.8rem, 1fr)); gap: 1.2rem 1.4rem; margin: 1.8rem 0 .9rem }
.cards div { border-top: 1px solid var(--ink); padding-top: .45rem }
.cards dd { margin: 0; font-size: .82rem; color: var(--soft) }
.cards .big { font-size: 1.75rem; line-height: 1.3; color: var(--ink); white-space: nowrap; letter-spacing: -.015em }
section { display: grid; grid-template-columns: 8.5rem minmax(0, 1fr); gap: .6rem 1.8rem; margin-top: 2.2rem;
  padding-top: 1.1rem; border-top: 1px solid var(--rule) }
.trio { display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: 1rem 1.2rem; margin-top: 1rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; margin-bottom: 1rem }
caption { text-align: left; padding-bottom: .45rem }
th, td { text-align: left; vertical-align: baseline; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--rule) }
th { font-weight: 400 } thead th { color: var(--soft); font-size: .84rem } tr.mine * { font-weight: 650 }
.n { text-align: right; white-space: nowrap } :is(th, td):last-child { padding-right: 0 }
dl.pairs { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.4rem; margin: 0; font-size: .92rem }
.pairs dd { margin: 0 }
pre { margin: 0 0 .6rem; padding: .7rem .9rem; overflow-x: auto; background: var(--tint); border-radius: 4px;
  font: .84rem/1.5 var(--mono); overflow-wrap: normal }
pre i { color: var(--soft); font-style: normal } code { font: .88em var(--mono) } .line { user-select: all }
blockquote { margin: 0 0 1.1rem; padding: .1rem 0 .1rem 1rem; border-left: 2px solid var(--rule); white-space: pre-wrap;
  font: 1.02rem/1.5 var(--serif); max-width: 44rem }
blockquote b { color: var(--accent) }
summary { cursor: pointer; color: var(--soft); font-size: .88rem } details table { margin-top: .6rem }
footer { margin-top: 2.4rem; padding-top: .9rem; border-top: 1px solid var(--rule) }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
@media (max-width: 46rem) { body { padding: 1.5rem 1.1rem 2rem } section { grid-template-columns: minmax(0, 1fr) }
  h1 { font-size: 1.7rem } .verdict { font-size: 1.25rem } .cards { gap: 1rem }
  th, td { padding-right: .8rem } .plot { height: 14rem } }
@media print { body { padding: 0; max-width: none; font-size: 10pt } nav, details { display: none } h2 { break-after: avoid }
  figure, tr, .cards, blockquote { break-inside: avoid } pre { white-space: pre-wrap } }
"""


def report(facts: Facts) -> str:
    """The page. Only `name` and `metrics` are needed; a section without facts is left out."""
    samples, log = facts.get("samples") or (), [line for line in facts.get("log") or () if isinstance(line, Mapping)]
    sections = (
        ("Result", [_results(facts), _parts(_of(facts, "parts"))]),
        ("Learning curves", _curves(log, _of(facts, "baseline", "valid"))),
        ("Samples", [_sample(sample) for sample in samples[:SAMPLES]]),
        ("Data", _data(_of(facts, "data"), facts.get("reason"))),
        ("Cost", _cost(_of(facts, "cost"))),
        ("Machine", _pairs(_of(facts, "machine"))),
        ("Recipe", _recipe(str(facts.get("recipe") or ""), _of(facts, "origins"))),
        ("Repeat it", [tag("pre", command, class_="line") for command in facts.get("repeat") or ()]),
        ("What next", [tag("pre", command, class_="line") for command in facts.get("next") or ()]),
    )
    full = [(title, title.split()[0].lower(), Html(inside)) for title, raw in sections if (inside := chart.escape(raw))]
    about = [str(facts[key]) for key in ("kind", "task", "date") if facts.get(key) is not None]
    verdict, advice = judge(facts)
    body = (
        tag("p", " · ".join(["harken, report of a training", *about]), class_="soft"),
        tag("h1", facts["name"]),
        tag("p", verdict, class_="verdict worse" if advice else "verdict"),
        tag("p", advice, class_="advice") if advice else None,
        _cards(facts, _split(facts)),
        tag("nav", [tag("a", title, href=f"#{key}") for title, key, _ in full], aria_label="Sections"),
        [tag("section", tag("h2", title), tag("div", inside), id=key) for title, key, inside in full],
        tag("footer", "This file is whole: it holds no script and fetches nothing."),
    )
    head = HEAD + tag("title", f"{facts['name']}: report of a training") + tag("style", Html(CSS + chart.CSS))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{tag("body", tag("main", body))}</html>\n'


def judge(facts: Facts) -> tuple[str, str]:
    """The verdict in one sentence, against the best that costs nothing, and advice where it is not good."""
    split = _split(facts)
    mine, where = _numbers(_of(facts, "metrics", split)), f"on the {_name(split)} split"
    if not mine:
        return "No finite number was measured: nothing can be said about this model.", "Lower train.lr and train again."
    free = {str(name): _numbers(them) for name, them in _of(facts, "baseline", split).items()}
    shared = [key for key in mine if any(key in them for them in free.values())]
    key = next((k for k in shared if k != "loss" and "perplexity" not in mine), "loss")
    if key not in shared:
        first = "loss" if "loss" in mine else next(iter(mine))
        return f"The {_name(first)} {where} is {figure(mine[first])}; nothing free was measured beside it.", ""
    sign = 1 if key in LOWER else -1
    name, theirs = min(((n, t) for n, t in free.items() if key in t), key=lambda pair: sign * pair[1][key])
    gap, shown = sign * (theirs[key] - mine[key]), "perplexity" if "perplexity" in mine.keys() & theirs.keys() else key
    numbers = f"{_name(shown)} {figure(mine[shown])} against {figure(theirs[shown])} {where}."
    size = figure(abs(gap), 2) + (" nats" + " per token" * ("perplexity" in mine)) * (key == "loss")
    if gap >= 0.005:
        return f"{size} better than the {name}, which costs nothing: {numbers}", ""
    verdict = f"{size} worse than" if gap <= -0.005 else "No better than"
    return (
        f"{verdict} the free {name}: {numbers}",
        f"{_course(_series(facts.get('log') or (), 'valid'))} {ADVICE}".strip(),
    )


def _cards(facts: Facts, split: str) -> list[Html]:
    """The big numbers, and beside them how they were measured."""
    mine, cost, weights = _of(facts, "metrics", split), _of(facts, "cost"), facts.get("parameters")
    units = (
        {"loss": "nats per token", "perplexity": "as if among so many"} if "perplexity" in mine else {"loss": "nats"}
    )
    cards = [(_name(key), figure(value), units.get(key, f"{_name(split)} split")) for key, value in mine.items()]
    cards += [("weights", _scaled(weights, COUNTS), f"{figure(weights)} in all")] if weights is not None else []
    seconds, steps = facts.get("seconds", cost.get("seconds")), facts.get("steps")
    cards += (
        [("time", _time(seconds), f"{figure(steps)} steps" if steps else "training")] if seconds is not None else []
    )
    if cost.get("kwh") is not None:
        how = " and ".join(w for w in ("measured", "estimated") if w in str(cost.get("energy_source")))
        cards += [("energy", _scaled(cost["kwh"], ENERGY), how)]
    boxes = [tag("div", tag("dt", a), tag("dd", b, class_="big"), tag("dd", c)) for a, b, c in cards]
    return [tag("dl", boxes, class_="cards"), tag("p", _scored(facts, split), class_="soft")] if boxes else []


def _results(facts: Facts) -> list[Html]:
    """The model beside what costs nothing, a table for each split."""
    splits = {s: {"this model": _of(facts, "metrics", s), **_of(facts, "baseline", s)} for s in _of(facts, "metrics")}
    return [_table(_scored(facts, split), rows) for split, rows in splits.items() if rows["this model"]]


def _parts(parts: Facts) -> list[Html]:
    """Each source of mixed data, the hardest first."""
    out = []
    for split in parts:
        rows = sorted(_of(parts, split).items(), key=lambda row: -_numbers(row[1]).get("loss", 0.0))
        many = f" ({PARTS} of {len(rows):,})" if len(rows) > PARTS else ""
        out.append(_table(f"Each source of the {_name(split)} split, the hardest first{many}", dict(rows[:PARTS])))
    return out


def _curves(log: Sequence[Facts], baseline: Facts) -> list[Html | None]:
    """Loss, learning rate, gradient and speed over the steps, and the looks at the validation split as a table."""
    loss, valid = _series(log, "loss"), _series(log, "valid")
    lines = [Line("training", loss)]
    if len(loss) >= 20:
        lines = [Line("training", loss, "faint"), Line("smoothed", chart.smooth(loss))]
    free = min(((_numbers(t)["loss"], n) for n, t in baseline.items() if "loss" in _numbers(t)), default=None)
    level = Line(f"{free[1]}, free: {figure(free[0])}", [(0.0, free[0])]) if free else None
    picture = chart.chart("Loss", [*lines, Line("validation", valid, "dots")], note="nats per token", level=level)
    small = (
        ("lr", "Learning rate", ""),
        ("gradient", "Gradient", "length"),
        ("tokens_per_second", "Speed", "tokens/s"),
    )
    trio = [chart.chart(title, [Line(title, _series(log, key))], note=note, zero=True) for key, title, note in small]
    looks = [line for line in log if number(line.get("valid")) is not None]
    looks = looks[:: -1 - len(looks) // LOOKS][::-1]  # the last one is always among them
    rows = {f"step {figure(r.get('step'))}": {k: r.get(k) for k in ("loss", "valid", "lr", "gradient")} for r in looks}
    told = [tag("summary", "The numbers behind the curve"), _table("Quick looks during the training", rows)]
    return [
        picture,
        tag("p", _course(valid), class_="soft") if _course(valid) else None,
        tag("div", trio, class_="trio") if any(trio) else None,
        tag("details", told) if rows else None,
    ]


def _sample(sample: Facts) -> Html:
    """A text the model wrote, its prompt first."""
    text, heat = str(sample.get("text", "")), sample.get("temperature")
    rest = tag("span", f" … and {len(text) - LETTERS:,} characters more", class_="soft") if text[LETTERS:] else None
    words = tag("blockquote", tag("b", sample.get("prompt")), text[:LETTERS], rest, dir="auto")
    return tag("div", tag("div", f"temperature {figure(heat)}", class_="soft") if heat is not None else None, words)


def _data(data: Facts, reason: Any) -> list[Html]:
    tokens, characters = _of(data, "tokens"), _of(data, "characters")
    rows = {_name(s): {"tokens": tokens.get(s), "characters": characters.get(s)} for s in {**tokens, **characters}}
    rest = {"vocabulary": data.get("vocab"), "a token is a": data.get("token"), "recognised": reason}
    return [_table("The splits", rows)] * bool(rows) + _pairs({**rest, "SHA-256": data.get("sha256")})


def _cost(cost: Facts) -> list[Html]:
    """What was used, and where each number comes from."""
    other, c = _of(cost, "compared_with"), {key: figure(value) for key, value in cost.items() if value is not None}
    share, said = number(other.get("fraction")), {key: f" ({c[key]})" for key in c if key.endswith("_source")}
    rows: dict[str, tuple[str, str]] = {}
    if "seconds" in c:
        rows["time"] = _time(cost["seconds"]), "wall clock of the training"
    if "flops" in c:
        rows["arithmetic"] = (
            _scaled(cost["flops"], FLOPS),
            f"counted: {_scaled(cost.get('flops_per_token'), FLOPS)} per token",
        )
    if "kwh" in c:
        factors = f"times PUE {c['pue']}{said.get('pue_source', '')}" if "pue" in c else ""
        source = "; ".join(filter(None, [c.get("energy_source"), c.get("watts_source"), factors]))
        rows["energy"] = _scaled(cost["kwh"], ENERGY), source
    if "co2e_kg" in c:
        rows["CO₂e"] = (
            _scaled(cost["co2e_kg"], MASS),
            f"{c.get('lb_per_kwh')} lb per kWh{said.get('intensity_source', '')}",
        )
    if "price_usd" in c:
        rows["price"] = f"{c['price_usd']} USD", c.get("price_source", "")
    if share:
        size = f"1/{1 / share:,.0f}" if share < 1 else f"{figure(share)} times"
        rows["compared"] = (
            f"{size} of {other.get('model')}",
            f"{figure(other.get('co2e_lb'))} lb ({other.get('source')})",
        )
    table = {name: {"how much": much, "where the number comes from": source} for name, (much, source) in rows.items()}
    return [_table("The training alone", table)] if table else []


def _recipe(text: str, origins: Facts) -> list[Html]:
    """The recipe; where a value comes from stands behind it as a comment, so that a copy is still a recipe."""
    section, lines, left = "", [], dict(origins)
    for line in text.splitlines():
        words = line.strip()
        section = f"{words.strip('[] ')}." if words.startswith("[") else section
        origin = left.pop(section + words.partition("=")[0].strip(), None)
        lines += [line, tag("i", f"{'':{max(2, 36 - len(line))}}# {origin}") if origin is not None else "", "\n"]
    return [tag("pre", lines, tabindex="0")] * bool(lines) + _pairs(left)


def _table(caption: str, rows: Facts) -> Html:
    """Rows of named values, numbers to the right; a column that no row fills is left out."""
    rows = {name: row for name, row in rows.items() if isinstance(row, Mapping)}
    keys = [
        key
        for key in {k: 0 for row in rows.values() for k in row}
        if any(r.get(key) is not None for r in rows.values())
    ]
    side = {key: "n" if all(number(r.get(key, 0)) is not None for r in rows.values()) else None for key in keys}
    head = tag("thead", tag("tr", tag("td"), [tag("th", _name(key), scope="col", class_=side[key]) for key in keys]))
    body = [
        tag("tr", tag("th", name, scope="row"), [tag("td", _cell(row.get(key)), class_=side[key]) for key in keys])
        for name, row in rows.items()
    ]
    return tag("div", tag("table", tag("caption", caption), head, tag("tbody", body)), class_="wide")


def _cell(value: Any) -> str:
    return "" if value is None else figure(value, 4)


def _pairs(pairs: Facts) -> list[Html]:
    rows = [(tag("dt", _name(key)), tag("dd", _cell(value))) for key, value in pairs.items() if value is not None]
    return [tag("dl", *rows, class_="pairs")] if rows else []


def _of(facts: Facts, *path: str) -> Facts:
    """What lies at the end of the path, if it is a table; else an empty one."""
    for key in path:
        inner = facts.get(key)
        facts = inner if isinstance(inner, Mapping) else {}
    return facts


def _numbers(row: Any) -> dict[str, float]:
    found = {str(key): number(value) for key, value in row.items()} if isinstance(row, Mapping) else {}
    return {key: value for key, value in found.items() if value is not None}


def _name(key: str) -> str:
    return NAMES.get(key, str(key).replace("_", " "))


def _split(facts: Facts) -> str:
    """The split to judge by: test before validation, one with a baseline before one without."""
    splits = sorted(_of(facts, "metrics"), key=lambda s: {"test": 0, "valid": 1}.get(s, 2))
    return min(splits, key=lambda s: not _of(facts, "baseline", s), default="")


def _scored(facts: Facts, split: str) -> str:
    how = _of(facts, "protocol", split)
    words = [f"{figure(how['tokens'])} tokens"] if how.get("tokens") is not None else []
    words += [f"{_name(key)} {figure(value)}" for key, value in how.items() if key != "tokens"]
    return f"The {_name(split)} split" + (": " if words else "") + ", ".join(words)


def _series(log: Sequence[Facts], key: str) -> list[Point]:
    return chart.finite((line.get("step"), line.get(key)) for line in log if key in line)


def _course(valid: Sequence[Point]) -> str:
    """Where the validation loss was best, and whether it was still falling."""
    if len(valid) < 3:
        return ""
    step, best = min(valid, key=lambda point: point[1])
    if step == valid[-1][0]:
        return "The validation loss was still falling at the end."
    risen = f", then rose to {figure(valid[-1][1])}" if valid[-1][1] > best + 0.01 else ""
    return f"The validation loss was lowest at step {step:,.0f} ({figure(best)}){risen}."


def _scaled(value: Any, units: Units) -> str:
    x = number(value)
    if x is None or x < 0:
        return str(value)
    factor, name = next((factor, name) for start, factor, name in units if x >= start)
    return f"{figure(value if factor == 1 else x / factor, 2)} {name}".strip()


def _time(value: Any) -> str:
    x = number(value)
    if x is None or x < 10:
        return str(value) if x is None else f"{x:.1f} s"
    minutes, seconds = divmod(round(x), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
