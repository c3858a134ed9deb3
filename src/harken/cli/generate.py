"""harken generate RUN [PROMPT]"""

import time
from collections.abc import Iterator
from typing import Any

import click

from harken.console import Teller, lines, piped, typed

from . import as_json, as_precision, as_seed, refuse, show
from .files import check_files, through_files, work_through


@click.command()
@click.argument("run")
@click.argument("prompt", required=False)
@click.option("--tokens", type=click.IntRange(0), default=200, show_default=True, help="How many tokens to write.")
@click.option(
    "--temperature", type=click.FloatRange(0), default=0.8, show_default=True, help="0 is greedy; higher is bolder."
)
@click.option("--top-k", type=click.IntRange(1), metavar="K", help="Choose among the k likeliest only.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="P",
    help="Choose among the likeliest that together have probability P.",
)
@as_seed("text; each of many prompts has draws of its own.")
@click.option("--stop", metavar="TEXT", help="End before this text.")
@click.option("--n", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many continuations.")
@click.option("--next", "next_", type=click.IntRange(1), metavar="K", help="Print the K likeliest next tokens instead.")
@through_files
@as_precision
@as_json
def generate(run: str, prompt: str | None, json_: bool, next_: int | None, precision: str, **options: Any) -> None:
    """Continue PROMPT with a language model. With -, or piped, each line of stdin is a prompt: one answer a line."""
    in_, out_, column = (options.pop(name) for name in ("in_", "out_", "column"))
    if next_ is not None:
        refuse("with --next", *options)
    check_files(in_, out_)
    from harken.inference.run import load

    model = load(run, precision=precision)
    model.must("generate")
    with Teller(aside=True) as teller:
        options["listen"] = teller
        if in_ is not None:
            where = {"column": column, "listen": teller}
            count = work_through(in_, out_, lambda texts: _each(model, texts, next_, options), **where)
            show({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        elif prompt == "-" or (prompt is None and piped()):
            _each_line(model, lines(must=prompt is None), json_, next_, options)
        else:
            prompt = typed(prompt or "")
            show(_written(model, prompt, next_, options)) if json_ else _tell(model, prompt, next_, options)


def _tell(model: Any, prompt: str, next_: int | None, options: dict[str, Any]) -> None:
    """One prompt, for people: the text is read while it is written."""
    if next_ is not None:
        for word in model.next(prompt, next_, listen=options["listen"]):
            click.echo(f"{word['probability']:8.4f}  {word['text']!r}")
    elif options["n"] > 1:
        for number, text in enumerate(model.generate(prompt, **options), 1):
            click.echo(f"--- {number}\n{prompt}{text}")
    else:
        pieces = model.stream(prompt, **{name: value for name, value in options.items() if name != "n"})
        click.echo(prompt, nl=False)
        for piece in pieces:
            click.echo(piece, nl=False)  # echo flushes
        click.echo()


def _each_line(model: Any, prompts: Iterator[str], json_: bool, next_: int | None, options: dict[str, Any]) -> None:
    """Answer each prompt as soon as it comes; in JSON, every key is then a list with one entry a line."""
    keys = ("prompt", "next") if next_ is not None else ("prompt", "text", "tokens", "tokens_per_second")
    listed: dict[str, list[Any]] = {key: [] for key in keys}
    for result in _each(model, prompts, next_, options):
        if json_:
            for key in keys:
                listed[key].append(result[key])
        elif next_ is not None:
            click.echo("\t".join(f"{w['probability']:.4f} {w['text']!r}" for w in result["next"]))
        else:
            for text in [result["text"]] if isinstance(result["text"], str) else result["text"]:
                click.echo(text.replace("\n", "\\n"))
    if json_:
        show(listed)


def _each(model: Any, prompts: Iterator[str], next_: int | None, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (_written(model, prompt, next_, options | {"index": index}) for index, prompt in enumerate(prompts))


def _written(model: Any, prompt: str, next_: int | None, options: dict[str, Any]) -> dict[str, Any]:
    if next_ is not None:
        return {"prompt": prompt, "next": model.next(prompt, next_, listen=options["listen"])}
    start = time.perf_counter()
    text = model.generate(prompt, **options)
    seconds = time.perf_counter() - start
    made = options["n"] * options["tokens"]
    if options["stop"]:  # then fewer may have been written
        made = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"prompt": prompt, "text": text, "tokens": made, "tokens_per_second": round(made / max(seconds, 1e-9), 1)}
