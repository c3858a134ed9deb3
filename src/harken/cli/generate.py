"""harken generate RUN [PROMPT]"""

import time
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, stdin_is_piped
from harken.events import OverflowSum, report_overflow

from . import json_option, load_run, precision_option, print_json, reject_options, search_options, seed_option
from .answers import Answer, UnknownWords, answer_texts, null_line, parallel_lists
from .inputs import Inputs, file_options, refuse_file_names

if TYPE_CHECKING:
    from harken.inference.run import Run

NULL = {"text": None, "tokens": 0, "tokens_per_second": None}


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
    """Continue PROMPT with a language model. With - or piped input, each line of stdin is a prompt.

    Without a prompt the text starts from nothing; an empty line, or an empty cell of --in, has no continuation.
    """
    options: dict[str, Any] = settings
    inputs = Inputs.from_options(([] if stdin_is_piped() else [""]) if prompt is None else [prompt], options)
    refuse_file_names([prompt] if prompt else [])
    if next_ is not None:
        reject_options("with --next", *options)
    model = load_run(run, "generate", precision)
    inputs.use_encoding(model.recipe.data.file_encoding)
    with ConsoleListener(to_stderr=True) as listener:
        options["listen"] = listener  # names unknown words
        if not inputs.in_ and not inputs.stdin:
            text = next(inputs.lines())
            if json_:
                unknown = UnknownWords(model).of(text)
                return print_json({"prompt": text, **_generate(model, text, next_, options), **unknown})
            return _print_text(model, text, next_, options)

        def predict(batch: list[str], position: int) -> list[Answer]:
            lengths = OverflowSum()  # without the unknown words of each prompt, which are named once
            answer = _generate(model, batch[0], next_, {**options, "index": position, "listen": lengths})
            report_overflow(listener, *lengths.overflows)
            return [answer]

        answers = answer_texts(model, inputs.batches(1), predict, NULL if next_ is None else {"next": None}, listener)
        if inputs.in_:
            inputs.write((answer for _, answer in answers), ("text", "next", "tokens"), json_=json_, listen=listener)
        elif json_:
            rows = [{"prompt": text, **answer} for text, answer in answers]
            print_json(parallel_lists(rows, "prompt", *(NULL if next_ is None else ["next"])))
        else:
            for _, answer in answers:
                click.echo(null_line(answer) if "reason" in answer else _one_line(answer))


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
        return {"next": model.next(prompt, next_, listen=options["listen"])}
    start = time.perf_counter()
    text = model.generate(prompt, **options)
    seconds = time.perf_counter() - start
    count = options["n"] * options["max_new_tokens"]
    if options["stop"]:  # fewer tokens may have been generated
        count = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"text": text, "tokens": count, "tokens_per_second": round(count / max(seconds, 1e-9), 1)}
