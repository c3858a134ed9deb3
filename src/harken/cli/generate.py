"""harken generate RUN [PROMPT]"""

import time
from typing import Any

import click

from . import as_json, show
from .files import through_files, work_through
from .say import lines, piped


@click.command()
@click.argument("run")
@click.argument("prompt", required=False)
@click.option("--tokens", type=click.IntRange(0), default=200, show_default=True, help="How many tokens to write.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 is greedy; higher is bolder.")
@click.option("--top-k", type=int, metavar="K", help="Choose among the k likeliest only.")
@click.option("--top-p", type=float, metavar="P", help="Choose among the likeliest that together have probability P.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", help="Same seed, same text.")
@click.option("--stop", metavar="TEXT", help="End before this text.")
@click.option("--n", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many continuations.")
@click.option("--next", "next_", type=int, metavar="K", help="Print the K likeliest next tokens instead.")
@through_files
@as_json
def generate(run: str, prompt: str | None, json_: bool, next_: int | None, **options: Any) -> None:
    """Continue PROMPT with a language model. With -, or piped, each line of stdin is a prompt: one answer a line."""
    in_, out_ = options.pop("in_"), options.pop("out_")
    from harken.use.model import load
    from harken.use.sample import Choice

    Choice(**{name: options[name] for name in ("temperature", "top_k", "top_p")})  # said before anything is loaded
    model = load(run)
    if in_ is not None:
        count = work_through(in_, out_, lambda text: _written(model, text, next_, options))
        show({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        return
    if prompt == "-" or (prompt is None and piped()):
        _each_line(model, json_, next_, options)
        return
    prompt = (prompt or "").encode("utf-8", "replace").decode()  # bytes of the command line that are no text
    if json_:
        show(_written(model, prompt, next_, options))
    elif next_ is not None:
        for word in model.next(prompt, next_):
            click.echo(f"{word['probability']:8.4f}  {word['text']!r}")
    elif options["n"] > 1:
        for number, text in enumerate(model.generate(prompt, **options), 1):
            click.echo(f"--- {number}\n{prompt}{text}")
    else:
        click.echo(prompt, nl=False)
        for piece in model.stream(prompt, **{name: value for name, value in options.items() if name != "n"}):
            click.echo(piece, nl=False)  # echo flushes: the text is read while it is written
        click.echo()


def _each_line(model: Any, json_: bool, next_: int | None, options: dict[str, Any]) -> None:
    """Answer each prompt as soon as it comes; in JSON, every key is then a list with one entry a line."""
    keys = ("prompt", "next") if next_ is not None else ("prompt", "text", "tokens", "tokens_per_second")
    listed: dict[str, list[Any]] = {key: [] for key in keys}
    for prompt in lines():
        result = _written(model, prompt, next_, options)
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


def _written(model: Any, prompt: str, next_: int | None, options: dict[str, Any]) -> dict[str, Any]:
    if next_ is not None:
        return {"prompt": prompt, "next": model.next(prompt, next_)}
    start = time.perf_counter()
    text = model.generate(prompt, **options)
    seconds = time.perf_counter() - start
    made = options["n"] * options["tokens"]
    if options["stop"]:  # then fewer may have been written
        made = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"prompt": prompt, "text": text, "tokens": made, "tokens_per_second": round(made / max(seconds, 1e-9), 1)}
