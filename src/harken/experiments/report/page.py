"""The report of a finished run: one offline HTML page. It has no script and fetches nothing."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from . import line_chart
from .formatting import finite_float, format_duration, format_number, format_quantity
from .html import Html, escape, tag
from .line_chart import Line
from .metric_names import DISPLAY_NAMES, VALIDATION_METRICS, display_name
from .verdict import (
    Facts,
    audit_warning,
    displayed_metrics,
    finite_metrics,
    log_series,
    nested,
    run_verdict,
    skipped_updates,
    validation_summary,
    verdict_split,
)

MAX_SAMPLES, MAX_CHARACTERS, MAX_PARTS, MAX_VALIDATIONS = 20, 4000, 100, 12
MAX_PAIRED_METRICS = 3  # tables with more columns are not shown side by side
PAIR_COUNTS = {"pairs": "pairs", "sources": "different sources", "references": "references per source"}
EXCLUDED = {
    "overlap": "held-out sources that are also in the training split",
    "in_held_out": "training pairs removed because their source is held out",
    "too_long": "training pairs removed because they are too long",
    "padding": "fraction of padding in the batches",
}
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


def report_page(facts: Facts) -> str:
    """The page. Only `name` and `metrics` are required; a section without facts is omitted."""
    samples = [sample for sample in (facts.get("samples") or ())[:MAX_SAMPLES] if isinstance(sample, Mapping)]
    sections = (
        ("Result", _results(facts)),
        ("Learning curves", _curves(facts)),
        ("Samples", _samples(samples)),
        ("Attention", _attention(facts.get("attention"))),
        ("Audit", _audit(nested(facts, "audit"))),
        ("Data", _data(nested(facts, "data"), facts.get("reason"))),
        ("Cost", _cost(nested(facts, "cost"))),
        ("Machine", definition_list(nested(facts, "machine"))),
        ("Recipe", _recipe(str(facts.get("recipe") or ""), nested(facts, "origins"))),
        ("Reproduce", [tag("pre", command) for command in facts.get("repeat") or ()]),
        ("Next steps", [tag("pre", command) for command in facts.get("next") or ()]),
    )
    about = [str(facts[key]) for key in ("kind", "task", "date") if facts.get(key) is not None]
    verdict, advice = run_verdict(facts)
    lead = (
        tag("p", warning, class_="verdict worse") if (warning := audit_warning(facts)) else None,
        tag("p", verdict, class_="verdict worse" if advice else "verdict"),
        tag("p", advice, class_="advice") if advice else None,
        _cards(facts, verdict_split(facts)),
    )
    return html_page(str(facts["name"]), "training report", about, lead, sections)


def html_page(
    name: str, what: str, about: Sequence[str], lead: Sequence[Any], sections: Sequence[tuple[str, Any]]
) -> str:
    """One offline file: the title, the lead, and every section that is not empty."""
    filled = [(title, title.split()[0].lower(), Html(inner)) for title, raw in sections if (inner := escape(raw))]
    body = (
        tag("p", " · ".join([f"harken, {what}", *about]), class_="soft"),
        tag("h1", name),
        lead,
        tag("nav", [tag("a", title, href=f"#{key}") for title, key, _ in filled], aria_label="Sections"),
        [tag("section", tag("h2", title), tag("div", inner), id=key) for title, key, inner in filled],
        tag("footer", "This file is self-contained: it has no script and fetches nothing."),
    )
    head = HEAD + tag("title", f"{name}: {what}") + tag("style", Html(CSS + line_chart.CSS))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{tag("body", tag("main", body))}</html>\n'


def _cards(facts: Facts, split: str) -> list[Html]:
    """The most important numbers, and the evaluation protocol."""
    metrics, cost, steps = nested(facts, "metrics", split), nested(facts, "cost"), facts.get("steps")
    units = {"loss": "nats per token", "perplexity": "per token"} if "perplexity" in metrics else {}
    cards = [
        *(
            (display_name(k), format_number(x), units.get(k, f"{display_name(split)} split"))
            for k, x in metrics.items()
        ),
        (
            "parameters",
            format_quantity(facts.get("parameters"), "count"),
            f"{format_number(facts.get('parameters'))} in total",
        ),
        ("time", format_duration(facts.get("seconds")), f"{format_number(steps)} steps" if steps else ""),
        (
            "energy",
            format_quantity(cost.get("kwh"), "energy"),
            format_number(cost.get("energy_source")).partition(":")[0],
        ),
    ]
    boxes = [tag("div", tag("dt", a), tag("dd", b, class_="big"), tag("dd", c)) for a, b, c in cards if b]
    protocol = [tag("p", _protocol(facts, split), class_="soft")] if nested(facts, "protocol", split) else []
    return [tag("dl", boxes, class_="cards"), *protocol] if boxes else []


def _protocol(facts: Facts, split: str) -> str:
    """The split and how it was evaluated, such as the context that each token had."""
    details = [f"{display_name(key)} {format_number(value)}" for key, value in nested(facts, "protocol", split).items()]
    return f"{display_name(split)} split" + ": " * bool(details) + ", ".join(details)


def _results(facts: Facts) -> Html | None:
    """A table per split with the model and the baselines; then the parts of each split, the worst first."""
    tables = []
    for split, metrics in nested(facts, "metrics").items():
        rows = {**nested(facts, "seeds", "together", split), **nested(facts, "baseline", split)}
        tables.append(html_table(_protocol(facts, split), {"this model": metrics, **rows}, "wide mine"))
    for split in nested(facts, "parts"):
        parts = nested(facts, "parts", split)
        scores = {name: finite_metrics(part) for name, part in parts.items()}
        order = sorted(parts, key=lambda name: scores[name].get("f1", -scores[name].get("loss", 0.0)))
        column = nested(facts, "protocol", split).get("grouped_by")
        keys = {key for part in scores.values() for key in part}
        noun = "labels" if keys & {"precision", "entities"} else "sources" if "loss" in keys else "parts"
        caption = f"by {format_number(column)}" if column else f"{len(order):,} {noun}, worst first"
        shown = {name: displayed_metrics(parts[name]) for name in order[:MAX_PARTS] if isinstance(parts[name], Mapping)}
        tables.append(html_table(f"{display_name(split)} split: {caption}", shown))
    narrow = all(len(nested(facts, "metrics", split)) <= MAX_PAIRED_METRICS for split in nested(facts, "metrics"))
    return tag("div", tables, class_="pair" if narrow else None) if any(tables) else None


def _curves(facts: Facts) -> list[Html]:
    """Loss, validation metrics, learning rate, gradient norm and speed over the steps; validation as a table too."""
    small = {"lr": "Learning rate", "gradient": "Gradient norm", "tokens_per_second": "Tokens per second"}
    metrics = {key: f"Validation {display_name(key)}" for key in VALIDATION_METRICS if log_series(facts, key)}
    values = {key: dict(log_series(facts, key)) for key in ("loss", "valid", *metrics, *small)}
    loss, valid = ([*values[key].items()] for key in ("loss", "valid"))
    smoothed = line_chart.smooth(loss)
    lines = [Line("training", loss, "faint" if smoothed else "line"), Line("training, smoothed", smoothed)]
    baselines = [
        (scores["loss"], name)
        for name, row in nested(facts, "baseline", "valid").items()
        if "loss" in (scores := finite_metrics(row))
    ]
    level = None
    if baselines:
        best, name = min(baselines)
        level = Line(f"baseline, {name}: {format_number(best)}", [(0.0, best)])
    out = [line_chart.chart_figure("Loss", [*lines, Line("validation", valid, "dots")], note="nats", level=level)]
    out += [tag("p", text, class_="soft") for text in (validation_summary(facts), skipped_updates(facts)) if text]
    out += [
        line_chart.chart_figure(name, [Line(name, [*values[key].items()], "dots")]) for key, name in metrics.items()
    ]
    trio = [
        line_chart.chart_figure(name, [Line(name, [*values[key].items()])], zero=True) for key, name in small.items()
    ]
    out += [tag("div", trio, class_="trio")] if any(trio) else []
    steps = [step for step, _ in valid[:: -1 - len(valid) // MAX_VALIDATIONS][::-1]]  # includes the last one
    rows = html_table(
        "Validation", {f"step {step:,.0f}": {key: values[key].get(step) for key in values} for step in steps}
    )
    return [*out, tag("details", tag("summary", "The values as a table"), rows)] if rows else out


def _samples(samples: Sequence[Facts]) -> list[Html] | Html:
    """Generated texts; or a table of inputs, outputs and references."""
    if not any("references" in sample for sample in samples):
        return [_sample(sample) for sample in samples]
    cells = [(s.get("prompt"), s.get("text"), s.get("references")) for s in samples]
    joined = [[" | ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row] for row in cells]
    texts = [[tag("td", _truncated(str(cell or "")), dir="auto") for cell in row] for row in joined]
    images = [_image(sample.get("image")) for sample in samples]
    rows = [tag("tr", image, row) for image, row in zip(images, texts, strict=True)]
    names = [""] * any(images) + ["input", "this model", "references"]
    head = tag("tr", [tag("th", name, scope="col") for name in names])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="wide texts")


def _image(png: Any) -> Html | None:
    """A table cell with an image, if there is one."""
    if not isinstance(png, bytes):
        return None
    image = tag("img", src=f"data:image/png;base64,{b64encode(png).decode()}", alt="", class_="shot")
    return tag("td", Html(image.removesuffix("</img>")))


def _truncated(text: str) -> str:
    n_left = len(text) - MAX_CHARACTERS
    return text[:MAX_CHARACTERS] + (f" … and {n_left:,} more characters" if n_left > 0 else "")


def _attention(svg: Any) -> list[Html]:
    """An attention map that is already drawn, with a caption."""
    rows = "Each row is a generated token; a darker cell is a larger attention weight on that part of the input."
    caption = f"{rows} Mean over the heads of the last cross-attention layer."
    return [tag("p", caption, class_="soft"), tag("div", svg, class_="wide")] if svg else []


def _sample(sample: Facts) -> Html:
    """A generated text after its prompt."""
    temperature, text = sample.get("temperature"), _truncated(str(sample.get("text") or ""))
    caption = tag("div", f"temperature {temperature}", class_="soft") if temperature is not None else None
    return tag("div", caption, tag("blockquote", tag("b", sample.get("prompt")), text, dir="auto"))


def _audit(audit: Facts) -> Html:
    """The outcome of every check, and the first diverging layer of a failed one."""
    checks = checks if isinstance(checks := audit.get("checks"), list) else []
    rows = {format_number(c.get("name")): {"outcome": "", **c, "name": None} for c in checks if isinstance(c, Mapping)}
    return html_table(format_number(audit.get("summary")), rows)


def _data(data: Facts, reason: Any) -> list[Html]:
    """The sizes of the splits, a description of the data, and what was excluded."""
    counts = {key: nested(data, key) for key in (str(data.get("unit", "tokens")), "tokens", "characters")}
    if "pairs" in data:
        counts = {name: nested(data, key) for key, name in PAIR_COUNTS.items()}
        for key, name in (("tokens", "tokens"), ("length", "tokens per sentence")):
            for side in ("source", "target"):
                counts[f"{name}, {side}"] = {split: nested(data, key, split).get(side) for split in nested(data, key)}
    vocab = data.get("vocab")
    rest = {"vocabulary": " and ".join(dict.fromkeys(map(format_number, vocab))) if isinstance(vocab, list) else vocab}
    rest |= {"token": data.get("token"), "description": data.get("summary"), "detected as": reason}
    rest |= {name: data.get(key) for key, name in EXCLUDED.items()}
    rest |= {"malformed lines": nested(data, "skipped").get("count"), "SHA-256": data.get("sha256")}
    return [html_table("Size of each split", counts), *definition_list(rest)]


def _cost(cost: Facts) -> Html:
    """The resources used, the estimate made before training, and the source of each number."""
    reference = nested(cost, "compared_with")
    known = {key: format_number(value) for key, value in cost.items()} | {
        "each": format_quantity(cost.get("flops_per_token"), "flop")
    }
    known |= {f"other_{key}": format_number(value) for key, value in reference.items()}
    fraction = finite_float(reference.get("fraction")) or 0.0
    size = "" if fraction <= 0 else f"1/{1 / fraction:,.0f}" if fraction < 1 else f"{format_number(fraction)} times"

    def join(**formats: str) -> str:
        return " ".join(text.format(known[key]) for key, text in formats.items() if known.get(key))

    energy = join(energy_source="{}", watts_source="({})", pue="· times PUE {}", pue_source="({})")
    carbon = join(co2e_lb="{} lb", lb_per_kwh="at {} lb per kWh", intensity_source="({})")
    rows = (
        ("time", format_duration(cost.get("seconds")), "wall-clock time of the training"),
        ("memory", _memory(cost), "peak during training: of this process, or of the tensors on the GPU"),
        ("arithmetic", format_quantity(cost.get("flops"), "flop"), join(each="{} per token")),
        ("energy", format_quantity(cost.get("kwh"), "energy"), energy),
        ("CO₂e", format_quantity(cost.get("co2e_kg"), "mass"), carbon),
        ("price", join(price_usd="{} USD"), join(price_source="{}")),
        ("compared", size, join(other_model="of {}:", other_co2e_lb="{} lb", other_source="({})")),
    )
    predicted = nested(cost, "predicted")
    estimates = {"time": format_duration(predicted.get("seconds")), "memory": _memory(predicted)}
    estimates["energy"] = format_quantity(predicted.get("kwh"), "energy")
    shown = {n: {"amount": x, "predicted": estimates.get(n) or None, "source": why} for n, x, why in rows if x}
    return html_table("Resources used by the training", shown)


def _memory(cost: Facts) -> str:
    return f"{x:,.0f} MiB" if (x := finite_float(cost.get("memory_mib"))) else ""


def _recipe(text: str, origins: Facts) -> list[Html]:
    """The recipe; the origin of each value follows it as a comment, so a copy is still a valid recipe."""
    section, lines, remaining = "", [], dict(origins)
    for line in text.splitlines():
        stripped = line.strip()
        section = f"{stripped.strip('[] ')}." if stripped.startswith("[") else section
        origin = remaining.pop(section + stripped.partition("=")[0].strip(), None)
        lines += [line, tag("i", f"{'':{max(2, 36 - len(line))}}# {origin}") if origin is not None else None, "\n"]
    return [tag("pre", lines, tabindex="0"), *definition_list(remaining)] if lines else definition_list(remaining)


def html_table(caption: str, rows: Facts, style: str = "wide") -> Html:
    """Named rows of named values, numbers right-aligned; empty if there is no value."""
    rows = {name: row for name, row in rows.items() if isinstance(row, Mapping) and row}
    keys = list({key: 0 for row in rows.values() for key, value in row.items() if value is not None})
    align = {k: None if any(isinstance(row.get(k), str) for row in rows.values()) else "n" for k in keys}
    head = tag("tr", tag("td"), [tag("th", display_name(key), scope="col", class_=align[key]) for key in keys])
    body = [
        tag(
            "tr", tag("th", name, scope="row"), [tag("td", format_number(row.get(k), 4), class_=align[k]) for k in keys]
        )
        for name, row in rows.items()
    ]
    element = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", element, class_=style) if keys else Html()


def definition_list(values: Facts) -> list[Html]:
    """A list of names and values; empty values are omitted."""
    rows = [
        (tag("dt", DISPLAY_NAMES.get(k, k)), tag("dd", format_number(value)))
        for k, value in values.items()
        if format_number(value)
    ]
    return [tag("dl", *rows, class_="pairs")] if rows else []
