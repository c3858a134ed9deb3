"""harken generate RUN [PROMPT]"""

import time
from collections.abc import Iterator
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, stdin_is_piped, stdin_lines

from . import json_option, precision_option, print_json, reject_options, seed_option
from .files import file_options, process_file, validate_files


@click.command()
@click.argument("run")
@click.argument("prompt", required=False)
@click.option(
    "--tokens",
    "max_new_tokens",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="Number of tokens to generate.",
)
@click.option(
    "--temperature", type=click.FloatRange(0), default=0.8, show_default=True, help="Sampling temperature; 0 is greedy."
)
@click.option("--top-k", type=click.IntRange(1), metavar="K", help="Sample from the K most probable tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="P",
    help="Sample from the most probable tokens with total probability P.",
)
@seed_option("text.")
@click.option("--stop", metavar="TEXT", help="Stop before this text.")
@click.option("--n", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of continuations.")
@click.option("--next", "next_", type=click.IntRange(1), metavar="K", help="Print the K most probable next tokens.")
@file_options
@precision_option
@json_option
def generate(run: str, prompt: str | None, json_: bool, next_: int | None, precision: str, **options: Any) -> None:
    """Continue PROMPT with a language model. With -, or piped, each line of stdin is a prompt."""
    in_, out_, column = (options.pop(name) for name in ("in_", "out_", "column"))
    if next_ is not None:
        reject_options("with --next", *options)
    validate_files(in_, out_)
    from harken.inference.run import load

    model = load(run, precision=precision)
    model.require("generate")
    with ConsoleListener(to_stderr=True) as listener:
        options["listen"] = listener
        if in_ is not None:
            where = {"column": column, "listen": listener}
            count = process_file(in_, out_, lambda texts: _generate_all(model, texts, next_, options), **where)
            print_json({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        elif prompt == "-" or (prompt is None and stdin_is_piped()):
            _answer_lines(model, stdin_lines(required=prompt is None), json_, next_, options)
        else:
            prompt = decode_argument(prompt or "")
            print_json(_generate_one(model, prompt, next_, options)) if json_ else _print_text(
                model, prompt, next_, options
            )


def _print_text(model: Any, prompt: str, next_: int | None, options: dict[str, Any]) -> None:
    """Print the continuation of one prompt as it is generated."""
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


def _answer_lines(model: Any, prompts: Iterator[str], json_: bool, next_: int | None, options: dict[str, Any]) -> None:
    """Answer each prompt as it arrives; with --json every key is a list with one entry per line."""
    keys = ("prompt", "next") if next_ is not None else ("prompt", "text", "tokens", "tokens_per_second")
    listed: dict[str, list[Any]] = {key: [] for key in keys}
    for answer in _generate_all(model, prompts, next_, options):
        if json_:
            for key in keys:
                listed[key].append(answer[key])
        elif next_ is not None:
            click.echo("\t".join(f"{w['probability']:.4f} {w['text']!r}" for w in answer["next"]))
        else:
            for text in [answer["text"]] if isinstance(answer["text"], str) else answer["text"]:
                click.echo(text.replace("\n", "\\n"))
    if json_:
        print_json(listed)


def _generate_all(
    model: Any, prompts: Iterator[str], next_: int | None, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    return (_generate_one(model, prompt, next_, options | {"index": index}) for index, prompt in enumerate(prompts))


def _generate_one(model: Any, prompt: str, next_: int | None, options: dict[str, Any]) -> dict[str, Any]:
    if next_ is not None:
        return {"prompt": prompt, "next": model.next(prompt, next_, listen=options["listen"])}
    start = time.perf_counter()
    text = model.generate(prompt, **options)
    seconds = time.perf_counter() - start
    count = options["n"] * options["max_new_tokens"]
    if options["stop"]:  # fewer tokens may have been generated
        count = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"prompt": prompt, "text": text, "tokens": count, "tokens_per_second": round(count / max(seconds, 1e-9), 1)}
