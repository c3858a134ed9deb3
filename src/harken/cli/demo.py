"""harken demo"""

from shlex import quote

import click

from . import as_json, show
from .say import Teller, cost_line, verdict


@click.command()
@click.argument("name", default="text", metavar="[NAME]")
@click.option("--minutes", type=float, default=4.0, show_default=True, help="How long to train.")
@click.option("--out", metavar="DIR", help="The run folder to write. Default: runs/shakespeare.")
@as_json
def demo(name: str, minutes: float, out: str | None, json_: bool) -> None:
    """A first success: learn to write from Shakespeare (or, without the registry, from harken's own tales).

    NAME is text, the only demo there is yet.
    """
    if name != "text":
        raise click.UsageError(f"{name!r} is no demo; there is text")
    from harken.study.demo import demo as demo_

    from .train import outcome

    with Teller(aside=json_) as teller:
        run, whose = demo_(minutes=minutes, out=out, listen=teller)
    result = outcome(run)
    if json_:
        show({**result, "files": [str(run.path / name) for name in result["files"]], "attribution": whose})
        return
    click.echo(f"  text    {whose}")
    for line in verdict(run.facts):
        click.echo(line)
    click.echo("\n  It writes (temperature 0.8):\n")
    click.echo("    " + run.generate(tokens=400, temperature=0.8, top_p=0.95).strip().replace("\n", "\n    "))
    click.echo()
    click.echo(cost_line(result["cost"]))
    click.echo(f"  run     {run.path}")
    click.echo(f"  report  {run.path / 'report.html'}      open it in a browser")
    path, begin = quote(str(run.path)), "Tom" if str(run.recipe.data.path).endswith("tales.txt") else "To be"
    hints = {
        f'harken generate {path} "{begin}"': "let it go on",
        f'harken generate {path} "{begin}" --next 5': "what comes next, with probabilities",
        "harken train my.txt": "your own text",
    }
    for number, (command, why) in enumerate(hints.items()):
        click.echo(f"  {'next' if number == 0 else '':<6}  {command:<{max(map(len, hints))}}   {why}")
