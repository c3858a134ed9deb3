"""harken demo [NAME]"""

from importlib import import_module
from typing import Any, NamedTuple

import click

from harken.console import ConsoleListener, cost_line, evaluation_lines, table
from harken.suggestions import did_you_mean

from . import json_option, print_json
from .compare import TrialListener


class DemoTrialListener(TrialListener):
    """Also prints the expected cost of each training."""

    events = TrialListener.events | {"start"}


class Demo(NamedTuple):
    """A demo: its summary, the module with the function of its name, its training time and its listener."""

    what: str
    module: str  # of harken.experiments.demos
    minutes: float = 3.7
    listener: type[ConsoleListener] = ConsoleListener


DEMOS = {
    "translate": Demo("translate short English sentences into French (Lab 02)", "translate"),
    "text": Demo("generate text in the style of Shakespeare (Lab 01)", "translate"),
    "stories": Demo("answer questions about a story with a memory network", "lectures", 3.0),
    "reviews": Demo("classify film reviews: MiniLM next to training from scratch", "reviews", 3.0, DemoTrialListener),
    "sql": Demo("questions about tables with unseen names to SQL, by copying", "translate", 2.0),
    "vocabulary": Demo(
        "classify uses of science words: an LSTM and a GPT, both pretrained", "vocabulary", 7.0, DemoTrialListener
    ),
    "digits": Demo("classify handwritten digits, in seconds", "pictures", 0.5),
    "gcd": Demo("learn greatest common divisors from examples", "lectures", 2.0),
    "scenes": Demo("caption images with unseen combinations of objects", "pictures", 4.0),
    "clouds": Demo("classify point clouds by the solid they lie on", "pictures", 1.0),
    "karate": Demo("predict the two groups of the karate club from two labelled members", "lectures", 0.05),
}
DEFAULT = "translate"
MINUTES = ", ".join(f"{name} {demo.minutes:g}" for name, demo in DEMOS.items())
DEMO_LIST = "\b\n" + "\n".join(f"{name:<10} {demo.what}" for name, demo in DEMOS.items())


@click.command(
    help=f"""Train an example model in minutes on real data (or on generated data without network access).

NAME is one of the following (default: {DEFAULT}).

{DEMO_LIST}"""
)
@click.argument("name", default=DEFAULT, metavar="[NAME]")
@click.option("--minutes", type=float, help=f"Training time in minutes.  [default: {MINUTES}]")
@click.option("--out", metavar="DIR", help="Run folder to write.  [default: runs/<name>, -2, -3 ... if it exists]")
@json_option
def demo(name: str, minutes: float | None, out: str | None, json_: bool) -> None:
    if name not in DEMOS:
        raise click.UsageError(f"{name!r} is not a demo.{did_you_mean(name, DEMOS)} Accepted: {', '.join(DEMOS)}")
    from .train import run_summary

    demo_ = DEMOS[name]
    make = getattr(import_module(f"harken.experiments.demos.{demo_.module}"), name)
    with demo_.listener(to_stderr=json_) as listener:
        shown = make(minutes=demo_.minutes if minutes is None else minutes, out=out, listen=listener)
    run, summary = shown.run, dict[str, Any](run_summary(shown.run))
    cost = shown.cost or summary["cost"]
    if json_:
        several = {"rows": shown.rows} if shown.rows else {}
        files = [str(run.path / name) for name in summary["files"]]
        return print_json({**summary, "cost": cost, **several, "files": files, "attribution": shown.attribution})
    click.echo(f"  credits {shown.attribution}")
    if shown.table:
        click.echo()
        table(*shown.table)
    else:
        click.echo("\n".join(evaluation_lines(run.facts)))
    if shown.title:
        click.echo(f"\n  {shown.title}\n")
    for line in shown.text_lines():
        click.echo(f"    {line}")
    click.echo()
    if shown.attention_map:
        click.echo(f"  map     {shown.attention_map}      attention of each French word to the English words")
    click.echo(cost_line(cost))
    click.echo(f"  run     {run.path}")
    click.echo(f"  report  {run.path / 'report.html'}      open it in a browser")
    for n, (command, why) in enumerate(shown.hints.items()):
        click.echo(f"  {'' if n else 'next':<6}  {command:<{max(map(len, shown.hints))}}   {why}")
    large = cost["compared_with"]
    whose = f"{large['co2e_lb']:g} lb CO2e of the lecture's {large['model']}"
    click.echo(f"  compare {cost['co2e_lb']:.2g} lb CO2e here, {whose}: 1/{1 / large['fraction']:,.0f}")
