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
    """Continue PROMPT with a language model. Without PROMPT, or with -, each line of standard input is a prompt."""
    from harken.use.model import load

    model = load(run)
    prompts = [prompt] if prompt is not None and prompt != "-" else None
    if prompts is None:
        prompts = [line.rstrip("\n") for line in sys.stdin] if prompt == "-" or piped() else [""]
    one = len(prompts) == 1
    results = [_one(model, p, next_, options, live=not json_ and one) for p in prompts]
    if json_:
        show(results[0] if one else {"results": results})


def _one(model: Any, prompt: str, next_: int | None, options: dict[str, Any], *, live: bool) -> dict[str, Any]:
    show_text = live or (not live and False)
    if next_ is not None:
        words = model.next(prompt, next_)
        for word in words if live else ():
            click.echo(f"{word['probability']:8.4f}  {word['text']!r}")
        return {"next": words}
    start = time.perf_counter()
    if show_text and options["n"] == 1:
        pieces = []
        click.echo(prompt, nl=False)
        for piece in model.stream(prompt, **{k: v for k, v in options.items() if k != "n"}):
            click.echo(piece, nl=False)
            sys.stdout.flush()
            pieces.append(piece)
        click.echo()
        text: Any = "".join(pieces)
    else:
        text = model.generate(prompt, **options)
        for number, each in enumerate([text] if isinstance(text, str) else text, 1) if live else ():
            click.echo(f"--- {number}\n{prompt}{each}")
    seconds = time.perf_counter() - start
    made = sum(len(model.tokenizer.encode(t)) for t in ([text] if isinstance(text, str) else text))
    return {"prompt": prompt, "text": text, "tokens": made, "tokens_per_second": round(made / max(seconds, 1e-9), 1)}
