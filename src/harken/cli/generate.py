"""harken generate RUN [PROMPT]"""

import sys
import time
from typing import Any

import click

from . import as_json, show
from .say import piped


@click.command()
@click.argument("run")
@click.argument("prompt", required=False)
@click.option("--tokens", type=click.IntRange(0), default=200, show_default=True, help="How many tokens to write.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 is greedy; higher is bolder.")
@click.option("--top-k", type=int, help="Choose among the k likeliest only.")
@click.option("--top-p", type=float, help="Choose among the likeliest that together have this probability.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same text.")
@click.option("--stop", metavar="TEXT", help="End before this text.")
@click.option("--n", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many continuations.")
@click.option("--next", "next_", type=int, metavar="K", help="Print the distribution of the next token instead.")
@as_json
def generate(run: str, prompt: str | None, json_: bool, next_: int | None, **options: Any) -> None:
    """Continue PROMPT with a language model. With -, or piped, each line of stdin is a prompt: one answer a line."""
    from harken.use.model import load

    model = load(run)
    if prompt == "-" or (prompt is None and piped()):
        prompts = [line.rstrip("\n") for line in sys.stdin]
        results = [_written(model, p, next_, options) for p in prompts]
        if json_:
            show({"results": results})
        for result in results if not json_ else ():
            click.echo(str(result.get("text", result.get("next"))).replace("\n", "\\n"))
    elif json_:
        show(_written(model, prompt or "", next_, options))
    elif next_ is not None:
        for word in model.next(prompt or "", next_):
            click.echo(f"{word['probability']:8.4f}  {word['text']!r}")
    elif options["n"] > 1:
        for number, text in enumerate(model.generate(prompt or "", **options), 1):
            click.echo(f"--- {number}\n{prompt or ''}{text}")
    else:
        _live(model, prompt or "", options)


def _live(model: Any, prompt: str, options: dict[str, Any]) -> None:
    """Print the text as it is made."""
    click.echo(prompt, nl=False)
    for piece in model.stream(prompt, **{name: value for name, value in options.items() if name != "n"}):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()


def _written(model: Any, prompt: str, next_: int | None, options: dict[str, Any]) -> dict[str, Any]:
    if next_ is not None:
        return {"prompt": prompt, "next": model.next(prompt, next_)}
    start = time.perf_counter()
    text = model.generate(prompt, **options)
    seconds = time.perf_counter() - start
    made = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"prompt": prompt, "text": text, "tokens": made, "tokens_per_second": round(made / max(seconds, 1e-9), 1)}
