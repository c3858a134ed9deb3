"""harken demo"""

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING

import click

from . import as_json, show
from .say import Teller, columns, cost_line, verdict

if TYPE_CHECKING:
    from harken.study.demo import Shown

NAMES = ("translate", "text")
REFERENCES = 3  # shown of a sentence at most


class Watcher(Teller):
    """Tells the translations of a model that is learning, too."""

    def _watch(self, texts: Mapping[str, str]) -> None:
        for n, row in enumerate(columns([[source, "->", text] for source, text in texts.items()])):
            self.line(f"  {'' if n else 'watch':<6}  {row}")


@click.command()
@click.argument("name", default=NAMES[0], metavar="[NAME]")
@click.option("--minutes", type=float, default=3.7, show_default=True, help="How long to train.")
@click.option(
    "--out", metavar="DIR", help="The run folder to write. Default: runs/<name of the data>, -2, -3 ... if taken."
)
@as_json
def demo(name: str, minutes: float, out: str | None, json_: bool) -> None:
    """A first success: learn from real data in minutes (or, without the registry, from data of harken's own).

    NAME is translate (Lab 02: short English sentences into French, from Tatoeba) or text (Lab 01: write like
    Shakespeare).
    """
    if name not in NAMES:
        raise click.UsageError(f"{name!r} is no demo; there are {' and '.join(NAMES)}")
    from harken.study import demo as demos

    from .train import outcome

    with Watcher(aside=json_) as teller:
        shown = (demos.translate if name == "translate" else demos.text)(minutes=minutes, out=out, listen=teller)
    run, result = shown.run, outcome(shown.run)
    if json_:
        show({**result, "files": [str(run.path / name) for name in result["files"]], "attribution": shown.whose})
        return
    click.echo(f"  thanks  {shown.whose}")
    for line in verdict(run.facts):
        click.echo(line)
    hints = _translated(shown) if name == "translate" else _written(shown)
    click.echo(cost_line(result["cost"]))
    click.echo(f"  run     {run.path}")
    click.echo(f"  report  {run.path / 'report.html'}      open it in a browser")
    for number, (command, why) in enumerate(hints.items()):
        click.echo(f"  {'next' if number == 0 else '':<6}  {command:<{max(map(len, hints))}}   {why}")
    than = result["cost"]["compared_with"]
    whose = f"{than['co2e_lb']:g} lb CO2e of the lecture's {than['model']}"
    click.echo(f"  beside  {result['cost']['co2e_lb']:.2g} lb CO2e here, {whose}: 1/{1 / than['fraction']:,.0f}")


def _translated(shown: "Shown") -> dict[str, str]:
    """Show what was translated; what to do next, and why."""
    if shown.samples:
        click.echo("\n  It translates sentences it has not seen (in brackets: what people wrote):\n")
    for sample in shown.samples:
        click.echo(
            f"    {sample['prompt']}\n      {sample['text']}   ({' | '.join(sample['references'][:REFERENCES])})"
        )
    click.echo()
    if shown.picture:
        click.echo(f"  looks   {shown.picture}      which English word each French one looks at")
    path = quote(str(shown.run.path))
    return {
        f'harken translate {path} "I have a red car."': "ask it",
        f"harken eval {path}": "its numbers again",
        "harken train my.tsv": "your own pairs",
    }


def _written(shown: "Shown") -> dict[str, str]:
    """Let it write; what to do next, and why."""
    run = shown.run
    click.echo("\n  It writes (temperature 0.8):\n")
    click.echo("    " + run.generate(tokens=400, temperature=0.8, top_p=0.95).strip().replace("\n", "\n    "))
    click.echo()
    path, begin = quote(str(run.path)), "Tom" if str(run.recipe.data.path).endswith("tales.txt") else "To be"
    return {
        f'harken generate {path} "{begin}"': "let it go on",
        f'harken generate {path} "{begin}" --next 5': "what comes next, with probabilities",
        "harken train my.txt": "your own text",
    }
