"""The report of a finished run: one offline HTML page. It has no script and fetches nothing."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from . import advice, formatting, verdict
from .charts import KEYS, MARKS, Chart, Line, draw_chart, smooth
from .formatting import (
    VALIDATION_METRICS,
    display_name,
    finite_float,
    format_duration,
    format_number,
    format_price,
    format_quantity,
)
from .html import Html, escape, tag
from .label_charts import calibration_chart, confusion_figure, size_chart, support_rows, table_rows
from .settings import MAX_SAMPLES
from .verdict import Facts, best_baseline, finite_metrics, log_series, nested

MAX_CHARACTERS, MAX_PARTS, MAX_VALIDATIONS = 4000, 100, 12
DATA_NOTICE = """This page shows samples: rows of the data, or texts that the model learned from them. Check them before
you share it. With report.samples=0 it shows none; harken report RUN report.samples=0 builds it again without them."""
MAX_PAIRED_METRICS = 3  # tables with more columns are not shown side by side
PAIR_COUNTS = {"pairs": "pairs", "sources": "different sources", "references": "references per source"}
EXCLUDED = {
    "overlap": "held-out sources that are also in the training split",
    "in_held_out": "training pairs removed because their source or group is held out",
    "too_long": "training pairs removed because they are too long",
    "padding": "fraction of padding in the batches",
}
HEAD = """<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">"""
CSS = files(__package__).joinpath("page.css").read_text("utf-8") + KEYS + MARKS


def report_page(facts: Facts) -> str:
    """The page. Only `name` and `metrics` are required; a section without facts is omitted."""
    samples = table_rows(facts.get("samples"))[:MAX_SAMPLES]
    sections = (
        ("Result", _results(facts)),
        ("Labels", _labels(nested(facts, "labels"))),
        ("Calibration", _figure(calibration_chart(nested(facts, "labels", "calibration")))),
        ("Mistakes", _mistakes(nested(facts, "labels"))),
        ("Learning curves", _curves(facts)),
        ("Samples", _samples(samples)),
        ("Attention", _attention(facts.get("attention"))),
        ("Audit", _audit(nested(facts, "audit"))),
        ("Data", [*_data(nested(facts, "data"), facts.get("reason"), facts.get("notices")), *_data_sources(facts)]),
        ("Cost", _cost(nested(facts, "cost"))),
        ("Machine", definition_list(nested(facts, "machine"))),
        ("Recipe", _recipe(str(facts.get("recipe") or ""), nested(facts, "origins"))),
        ("Reproduce", [tag("pre", command) for command in facts.get("repeat") or ()]),
        ("Next steps", [tag("pre", command) for command in facts.get("next") or ()]),
    )
    about = [str(facts[key]) for key in ("kind", "task", "date") if facts.get(key) is not None]
    conclusion, problem = verdict.run_verdict(facts)
    lead = (
        tag("p", DATA_NOTICE, class_="notice") if _shows_rows(facts) else None,
        tag("p", warning, class_="verdict worse") if (warning := verdict.audit_warning(facts)) else None,
        tag("p", conclusion, class_="verdict worse" if problem else "verdict"),
        [tag("p", text, class_="advice") for text in advice.advise(facts)],
        _cards(facts, verdict.verdict_split(facts)),
    )
    return html_page(str(facts["name"]), "training report", about, lead, sections)


def _shows_rows(facts: Facts) -> bool:
    """Whether the page shows samples, mistakes or the attention for a sample."""
    labels = nested(facts, "labels")
    examples = [row for row in table_rows(labels.get("confusions")) if row.get("example")]
    return bool(
        table_rows(facts.get("samples")) or table_rows(labels.get("mistakes")) or examples or facts.get("attention")
    )


def html_page(name: str, what: str, about: Sequence[str], lead: object, sections: Iterable[tuple[str, object]]) -> str:
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
    head = HEAD + tag("title", f"{name}: {what}") + tag("style", Html(CSS))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{tag("body", tag("main", body))}</html>\n'


def _cards(facts: Facts, split: str) -> list[Html]:
    """The most important numbers, and the evaluation protocol."""
    metrics, cost, n = nested(facts, "metrics", split), nested(facts, "cost"), facts.get("parameters")
    units = dict.fromkeys(metrics, f"{display_name(split)} split")
    units |= {"loss": "nats per token", "perplexity": "per token"} if "perplexity" in metrics else {}
    units |= {key: f"{units[key]}, 95 % interval {text}" for key, text in verdict.interval_texts(facts, split).items()}
    steps = f"{format_number(facts['steps'])} steps" if facts.get("steps") else ""
    source = format_number(cost.get("energy_source")).partition(":")[0]
    cards = [(display_name(key), format_number(x), units[key]) for key, x in metrics.items()]
    cards += [("parameters", format_quantity(n, "count"), f"{format_number(n)} in total")]
    cards += [("time", format_duration(facts.get("seconds")), steps)]
    cards += [("energy", format_quantity(cost.get("kwh"), "energy"), source)]
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
        ends = {key: row for key, row in nested(facts, "intervals", split).items() if isinstance(row, list | tuple)}
        rows = {
            f"95 % interval, {name}": {key: row[n] for key, row in ends.items() if len(row) == 2}
            for n, name in enumerate(("lower end", "upper end"))
        }
        rows |= {**nested(facts, "seeds", "summary", split), **nested(facts, "baseline", split)}
        tables.append(html_table(_protocol(facts, split), {"this model": metrics, **rows}, "wide mine"))
    for split in nested(facts, "parts"):
        parts = nested(facts, "parts", split)
        scores = {name: finite_metrics(part) for name, part in parts.items()}
        order = sorted(parts, key=lambda name: scores[name].get("f1", -scores[name].get("loss", 0.0)))
        column = nested(facts, "protocol", split).get("grouped_by")
        keys = {key for part in scores.values() for key in part}
        noun = "labels" if keys & {"precision", "entities"} else "sources" if "loss" in keys else "parts"
        caption = f"by {format_number(column)}" if column else f"{len(order):,} {noun}, worst first"
        shown = {name: verdict.displayed_metrics(nested(parts, name)) for name in order[:MAX_PARTS]}
        tables.append(html_table(f"{display_name(split)} split: {caption}", shown))
    narrow = all(len(nested(facts, "metrics", split)) <= MAX_PAIRED_METRICS for split in nested(facts, "metrics"))
    return tag("div", tables, class_="pair" if narrow else None) if any(tables) else None


def _curves(facts: Facts) -> list[Html]:
    """Loss, validation metrics, learning rate, gradient norm and speed over the steps; validation as a table too."""
    small = {"lr": "Learning rate", "gradient": "Gradient norm", "tokens_per_second": "Tokens per second"}
    metrics = {key: f"Validation {display_name(key)}" for key in VALIDATION_METRICS if log_series(facts, key)}
    values = {key: dict(log_series(facts, key)) for key in ("loss", "valid", *metrics, *small)}
    series = {key: [*points.items()] for key, points in values.items()}
    smoothed, valid = smooth(series["loss"]), series["valid"]
    lines = [Line("training", series["loss"], "faint" if smoothed else "line"), Line("training, smoothed", smoothed)]
    best = best_baseline(nested(facts, "baseline", "valid"), "loss")
    level = (f"baseline, {best[0]}", best[1]) if best else None
    out = [_figure(draw_chart("Loss", [*lines, Line("validation", valid, "dots")], note="nats", level=level))]
    texts = advice.curve_summary(facts), verdict.skipped_updates(facts)
    out += [tag("p", text, class_="soft") for text in texts if text]
    out += [_figure(draw_chart(name, [Line(name, series[key], "dots")])) for key, name in metrics.items()]
    trio = [_figure(draw_chart(name, [Line(name, series[key])], small=True)) for key, name in small.items()]
    out += [tag("div", trio, class_="trio")] if any(trio) else []
    steps = [step for step, _ in valid[:: -1 - len(valid) // MAX_VALIDATIONS][::-1]]  # includes the last one
    rows = {f"step {step:,.0f}": {key: values[key].get(step) for key in values} for step in steps}
    table = html_table("Validation", rows)
    return [*out, tag("details", tag("summary", "The values as a table"), table)] if table else out


def _labels(labels: Facts) -> list[Html | None]:
    """The confusion matrix, the accuracy by the size of the input, and the number of examples of each label."""
    support = support_rows(labels)
    shown = dict(list(support.items())[:MAX_PARTS])
    caption = f"Examples of each label in each split, {len(support):,} labels, rarest first"
    table = html_table(caption, shown)
    return [confusion_figure(labels), _figure(size_chart(nested(labels, "sizes"))), table]


def _mistakes(labels: Facts) -> list[Html]:
    """The commonest confusions, and the mistakes with the highest probability."""
    columns = {"actual": "actual", "predicted": "predicted", "times": "times", "example": "first example"}
    rows = {
        str(n): {name: row.get(key) if key == "times" else _truncated(str(row.get(key) or "")) or None
                 for key, name in columns.items()}
        for n, row in enumerate(table_rows(labels.get("confusions"))[:MAX_SAMPLES], 1)
    }  # fmt: skip
    out = [html_table("Commonest confusions", rows)]
    if mistakes := table_rows(labels.get("mistakes"))[:MAX_SAMPLES]:
        caption = f"Mistakes with the highest probability, {display_name(format_number(labels.get('split')))} split"
        out += [tag("p", caption, class_="soft"), *_samples(mistakes, "true label")]
    return out


def _figure(chart: Chart | None) -> Html:
    return chart.figure() if chart else Html()


def _samples(samples: Sequence[Facts], correct: str = "references") -> list[Html]:
    """Generated texts; or a table of inputs, outputs and references."""
    if not any("references" in sample for sample in samples):
        return [_sample(sample) for sample in samples]
    cells = [(s.get("shown", s.get("prompt")), s.get("text"), s.get("references")) for s in samples]
    joined = [[" | ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row] for row in cells]
    texts = [[tag("td", _truncated(str(cell or "")), dir="auto") for cell in row] for row in joined]
    images = [_image(sample.get("image")) for sample in samples]
    rows = [tag("tr", image, row) for image, row in zip(images, texts, strict=True)]
    names = [""] * any(images) + ["input", "this model", correct]
    head = tag("tr", [tag("th", name, scope="col") for name in names])
    return [tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="wide texts")]


def _image(png: object) -> Html | None:
    """A table cell with an image, if there is one."""
    if not isinstance(png, bytes):
        return None
    image = tag("img", src=f"data:image/png;base64,{b64encode(png).decode()}", alt="", class_="shot")
    return tag("td", Html(image.removesuffix("</img>")))


def _truncated(text: str) -> str:
    n_left = len(text) - MAX_CHARACTERS
    return text[:MAX_CHARACTERS] + (f" … and {n_left:,} more characters" if n_left > 0 else "")


def _attention(svg: object) -> list[Html]:
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


def _data(data: Facts, reason: object, notices: object) -> list[Html]:
    """The sizes of the splits, a description of the data, what was excluded, and the notices of its reader."""
    counts = {key: nested(data, key) for key in (str(data.get("unit", "tokens")), "tokens", "characters")}
    if "pairs" in data:
        counts = {name: nested(data, key) for key, name in PAIR_COUNTS.items()}
        for key, name in (("tokens", "tokens"), ("length", "tokens per sentence")):
            for side in ("source", "target"):
                counts[f"{name}, {side}"] = {split: nested(data, key, split).get(side) for split in nested(data, key)}
    vocab = data.get("vocab")
    rest = {"vocabulary": " and ".join(dict.fromkeys(map(format_number, vocab))) if isinstance(vocab, list) else vocab}
    rest |= {"token": data.get("token"), "description": data.get("summary"), "detected as": reason}
    rest |= {"held-out splits": data.get("split")}
    rest |= {name: data.get(key) for key, name in EXCLUDED.items()}
    rest |= {"malformed lines": nested(data, "skipped").get("count"), "SHA-256": data.get("sha256")}
    texts = [tag("li", _truncated(str(text))) for text in notices[:MAX_PARTS]] if isinstance(notices, list) else []
    noted = [tag("p", "Notices while the data was read", class_="soft"), tag("ul", texts)] if texts else []
    return [html_table("Size of each split", counts), *definition_list(rest), *noted]


def _data_sources(facts: Facts) -> list[Html]:
    """Where each data set of the catalogue comes from, with its license and attribution."""
    return [item for source in table_rows(facts.get("data_sources")) for item in definition_list(source)]


def _cost(cost: Facts) -> Html:
    """The resources used, the estimate made before training, and the source of each number."""
    reference = nested(cost, "compared_with")
    known = {key: format_number(value) for key, value in cost.items()}
    known["each"] = format_quantity(cost.get("flops_per_token"), "flop")
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
        ("FLOPs", format_quantity(cost.get("flops"), "flop"), join(each="{} per token")),
        ("energy", format_quantity(cost.get("kwh"), "energy"), energy),
        ("CO₂e", format_quantity(cost.get("co2e_kg"), "mass"), carbon),
        ("price", format_price(cost.get("price_usd")), join(price_source="{}")),
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
    body = []
    for name, row in rows.items():
        cells = [tag("td", format_number(row.get(key), 4), class_=align[key]) for key in keys]
        body.append(tag("tr", tag("th", name, scope="row"), cells))
    element = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", element, class_=style) if keys else Html()


def definition_list(values: Facts) -> list[Html]:
    """A list of names and values; empty values are omitted."""
    texts = {formatting.DISPLAY_NAMES.get(k, k): format_number(value) for k, value in values.items()}
    rows = [(tag("dt", name), tag("dd", text)) for name, text in texts.items() if text]
    return [tag("dl", *rows, class_="pairs")] if rows else []
