"""harken generate RUN [PROMPT]"""

import time
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, stdin_is_piped

from . import json_option, load_run, precision_option, print_json, reject_options, search_options, seed_option
from .inputs import FILE_OPTIONS, Inputs, file_options

if TYPE_CHECKING:
    from harken.inference.run import Run


@click.command()
@click.argument("run")
@click.argument("prompt", required=False)
@click.option("--tokens", "max_new_tokens", type=click.IntRange(0), default=200, help="Number of tokens to generate.")
@click.option("--temperature", type=click.FloatRange(0), default=0.8, help="Sampling temperature; 0 is greedy.")
@search_options("top-k", "top-p")
@seed_option("text.")
@click.option("--stop", metavar="TEXT", help="End the continuation before this text.")
@click.option("--n", type=click.IntRange(1, 1000), default=1, help="Number of continuations.")
@click.option("--next", "next_", type=click.IntRange(1), metavar="K", help="Print the K most probable next tokens.")
@file_options
@precision_option
@json_option
def generate(run: str, prompt: str | None, json_: bool, next_: int | None, precision: str, **settings: object) -> None:
    """Continue PROMPT with a language model. With - or piped input, each line of stdin is a prompt."""
    options: dict[str, Any] = settings
    files = {name: options.pop(name) for name in FILE_OPTIONS}
    if next_ is not None:
        reject_options("with --next", *options)
    inputs = Inputs(([] if stdin_is_piped() else [""]) if prompt is None else [prompt], **files)
    model = load_run(run, "generate", precision)
    with ConsoleListener(to_stderr=True) as listener:
        options["listen"] = listener
        answers = (_generate(model, text, next_, {**options, "index": n}) for n, text in enumerate(inputs.lines()))
        if inputs.in_:
            inputs.write(answers, json_=json_, listen=listener)
        elif inputs.stdin and json_:
            rows = list(answers)
            keys = ("prompt", "next") if next_ is not None else ("prompt", "text", "tokens", "tokens_per_second")
            print_json({key: [row[key] for row in rows] for key in keys})
        elif json_:
            print_json(next(answers))
        elif inputs.stdin:
            for answer in answers:
                click.echo(_one_line(answer))
        else:
            _print_text(model, next(inputs.lines()), next_, options)


def _print_text(model: "Run", prompt: str, next_: int | None, options: dict[str, Any]) -> None:
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


def _one_line(answer: dict[str, Any]) -> str:
    """The next tokens, or each continuation on a line of its own."""
    if "next" in answer:
        return "\t".join(f"{word['probability']:.4f} {word['text']!r}" for word in answer["next"])
    texts = [answer["text"]] if isinstance(answer["text"], str) else answer["text"]
    return "\n".join(text.replace("\n", "\\n") for text in texts)


def _generate(model: "Run", prompt: str, next_: int | None, options: dict[str, Any]) -> dict[str, Any]:
    if next_ is not None:
        return {"prompt": prompt, "next": model.next(prompt, next_, listen=options["listen"])}
    start = time.perf_counter()
    text = model.generate(prompt, **options)
    seconds = time.perf_counter() - start
    count = options["n"] * options["max_new_tokens"]
    if options["stop"]:  # fewer tokens may have been generated
        count = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"prompt": prompt, "text": text, "tokens": count, "tokens_per_second": round(count / max(seconds, 1e-9), 1)}
