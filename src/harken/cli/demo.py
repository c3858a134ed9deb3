"""harken demo"""

from typing import Any

import click

from . import as_json, show
from .say import Teller, cost_line, verdict


@click.command()
@click.argument("name", type=click.Choice(["text"]), default="text")
@click.option("--minutes", type=float, default=4.0, show_default=True, help="How long to train.")
@click.option("--out", metavar="DIR", help="The run folder to write. Default: runs/shakespeare.")
@as_json
def demo(name: str, minutes: float, out: str | None, json_: bool) -> None:
    """A first success: learn to write from Shakespeare (or, without the registry, from harken's own tales)."""
    from harken.study.demo import demo as demo_

    with Teller(quiet=json_) as teller:
        run, notes = demo_(minutes=minutes, out=out, listen=teller)
    if json_:
        from .train import outcome

        result: dict[str, Any] = outcome(run)
        show({**result, "files": [str(run.path / name) for name in result["files"]], "attribution": notes})
        return
    click.echo(f"  text    {notes}")
    for line in verdict(run.facts):
        click.echo(line)
    click.echo("\n  It writes (temperature 0.8):\n")
    click.echo("    " + run.generate(tokens=400, temperature=0.8, top_p=0.95).strip().replace("\n", "\n    "))
    from harken.run import read_json

    click.echo()
    click.echo(cost_line(read_json(run.path / "cost.json")))
    click.echo(f"  report  {run.path / 'report.html'}")
    click.echo("  next    harken train my.txt                         your own text")
    click.echo(f'          harken generate {run.path} "ROMEO:"          let it go on')
    click.echo(f'          harken generate {run.path} "To be" --next 5  what comes next, with probabilities')
