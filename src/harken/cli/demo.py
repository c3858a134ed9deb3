"""harken demo [NAME]"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from harken.console import Teller, columns, cost_line, table, verdict
from harken.errors import did_you_mean

from . import as_json, show
from .compare import Trials


class Watcher(Teller):
    """Tells the translations of a model that is learning, too."""

    def _watch(self, texts: Mapping[str, str]) -> None:
        for n, row in enumerate(columns([[source, "->", text] for source, text in texts.items()])):
            self.line(f"  {'' if n else 'watch':<6}  {row}")


class Rivals(Trials):
    """Tells what each training of several will take, too."""

    told = Trials.told | {"begin"}


class Demo(NamedTuple):
    """A demo: what it shows, the function of `study` that makes it, how long it trains, and who tells of it."""

    what: str
    made_by: str  # module:function, imported when it is asked for
    minutes: float = 3.7
    teller: type[Teller] = Teller


DEMOS = {
    "translate": Demo(
        "short English sentences into French, from Tatoeba (Lab 02)", "demos.translate:translate", teller=Watcher
    ),
    "text": Demo("write like Shakespeare (Lab 01)", "demos.translate:text"),
    "stories": Demo("where is the milk? The lecture's story of Joe, read in hops", "demos.stories:stories", 3.0),
    "reviews": Demo("is the film good? MiniLM beside learning from scratch", "demos.reviews:reviews", 3.0, Rivals),
    "digits": Demo("read handwritten digits, in seconds", "demos.digits:digits", 0.5),
    "gcd": Demo("greatest common divisors from examples alone: which are learned, and why", "demos.gcd:gcd", 2.0),
    "scenes": Demo("say what stands where in a picture, of things that never met", "demos.scenes:scenes", 4.0),
    "clouds": Demo("on which solid do these points lie? Sets, in no order", "demos.clouds:clouds", 1.0),
    "karate": Demo("who goes with whom when a club splits, from two of its members", "demos.karate:karate", 0.05),
}
DEFAULT = "translate"
MINUTES = ", ".join(f"{name} {demo.minutes:g}" for name, demo in DEMOS.items())
LISTED = "\b\n" + "\n".join(f"{name:<10} {demo.what}" for name, demo in DEMOS.items())


@click.command(
    help=f"""A first success: learn from real data in minutes (or, without the registry, from data of harken's own).

NAME is one of these; {DEFAULT}, if none is given.

{LISTED}"""
)
@click.argument("name", default=DEFAULT, metavar="[NAME]")
@click.option("--minutes", type=float, help=f"How long to train in all. Default: {MINUTES}.")
@click.option(
    "--out", metavar="DIR", help="The run folder to write. Default: in runs, -2, -3 ... if the name is taken."
)
@as_json
def demo(name: str, minutes: float | None, out: str | None, json_: bool) -> None:
    if name not in DEMOS:
        raise click.UsageError(f"{name!r} is no demo.{did_you_mean(name, DEMOS)} There are {', '.join(DEMOS)}")
    from .train import outcome

    asked = DEMOS[name]
    module, function = asked.made_by.split(":")
    make = getattr(import_module(f"harken.experiments.{module}"), function)
    with asked.teller(aside=json_) as teller:
        shown = make(minutes=asked.minutes if minutes is None else minutes, out=out, listen=teller)
    run, result = shown.run, outcome(shown.run)
    cost = shown.cost or result["cost"]
    if json_:
        several = {"rows": shown.rows} if shown.rows else {}
        files = [str(run.path / name) for name in result["files"]]
        show({**result, "cost": cost, **several, "files": files, "attribution": shown.whose})
        return
    click.echo(f"  thanks  {shown.whose}")
    if shown.table:
        click.echo()
        table(*shown.table)
    for line in verdict(run.facts) if not shown.table else ():
        click.echo(line)
    if shown.title:
        click.echo(f"\n  {shown.title}\n")
    for line in shown.said():
        click.echo(f"    {line}")
    click.echo()
    if shown.picture:
        click.echo(f"  looks   {shown.picture}      which English word each French one looks at")
    click.echo(cost_line(cost))
    click.echo(f"  run     {run.path}")
    click.echo(f"  report  {run.path / 'report.html'}      open it in a browser")
    _then(shown.hints, cost)


def _then(hints: Mapping[str, str], cost: Mapping[str, Any]) -> None:
    """What to type next, and why; and what it was beside a large training."""
    for number, (command, why) in enumerate(hints.items()):
        click.echo(f"  {'next' if number == 0 else '':<6}  {command:<{max(map(len, hints))}}   {why}")
    than = cost["compared_with"]
    whose = f"{than['co2e_lb']:g} lb CO2e of the lecture's {than['model']}"
    click.echo(f"  beside  {cost['co2e_lb']:.2g} lb CO2e here, {whose}: 1/{1 / than['fraction']:,.0f}")
