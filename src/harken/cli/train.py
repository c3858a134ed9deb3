"""harken train DATA|RECIPE|RUN"""

from shlex import quote
from typing import Any

import click

from harken.console import Teller, cost_line, judged, verdict
from harken.errors import HarkenError
from harken.experiments.report.page import doubtful

from . import as_json, refuse, show

PROMPT = '"Once upon a time"'
# what is typed where nothing is held out that could be shown
TYPED = {"images": "my.png", "captions": "my.png", "sets": "my.csv", "stories": "Where is Joe?"}


@click.command()
@click.argument("what", metavar="DATA|RECIPE|RUN")
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option(
    "--out", metavar="DIR", help="The run folder to write. Default: runs/<name of the data>, -2, -3 ... if taken."
)
@click.option("--minutes", type=float, help="How long to train; set-up is not counted.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint, bit for bit.")
@click.option("--force", is_flag=True, help="Write over a run folder that is not empty.")
@click.option("--show", "show_", is_flag=True, help="Print the recipe with each value's origin; train nothing.")
@as_json
def train(what: str, settings: tuple[str, ...], json_: bool, show_: bool, **options: Any) -> None:
    """Train a model on DATA (a file, a folder, -, or a name of `harken data`), by a RECIPE, or go on with a RUN."""
    from harken.recipe import override, refuse_start

    given = dict(override(text) for text in settings)
    for path, value in given.items():
        refuse_start(path, value)
    with Teller(aside=json_) as teller:
        if show_:
            refuse("with --show", "out", "resume", "force")
            _show(what, given | ({} if options["minutes"] is None else {"train.minutes": options["minutes"]}), teller)
            return
        from harken.experiments.train import train as train_
        from harken.training.parallel import first

        run = train_(what, settings=given, listen=teller, **options)
    if not first():
        return
    result = outcome(run)
    if json_:
        show(result)
        return _refuse_unsound(run)
    for line in verdict(run.facts):
        click.echo(line)
    click.echo(cost_line(result["cost"]))
    click.echo(f"  run     {run.path}      report: {run.path / 'report.html'}")
    _refuse_unsound(run)
    usual = "A [MASK] sentence." if run.verb == "fill" else TYPED.get(run.recipe.data.kind, "A sentence.")
    place, example = quote(str(run.path)), quote(run.facts.get("example", usual))
    next_ = {"generate": PROMPT, "ask": f"my.txt {example}"}.get(run.verb, example)
    click.echo(f"  next    harken {run.verb} {place} {next_}")


def _refuse_unsound(run: Any) -> None:
    """A model that came out as no numbers, or that does not obey its mask, is no success."""
    odd = [split for split, found in run.facts["metrics"].items() if found.get("loss") is None]
    if odd:
        raise HarkenError(f"{run.path}: the {odd[0]} loss is not finite; train again with a lower train.lr")
    if doubt := doubtful(run.facts):
        raise HarkenError(f"{run.path}: {doubt}")


def _show(what: str, given: dict[str, Any], teller: Teller) -> None:
    from harken.experiments.choose import choose

    from .check import recipe_lines

    recipe = choose(what, given, listen=teller).recipe
    if teller.aside:
        show({"recipe": recipe.settings(), "origins": dict(recipe.origins)})
    else:
        click.echo("\n".join(recipe_lines(recipe)))


def outcome(run: Any) -> dict[str, Any]:
    """What --json says of a finished training."""
    from harken.run_folder import read_json

    facts = run.facts
    first = judged(facts["metrics"])
    kept = {name: facts[name] for name in ("kind", "parameters", "steps", "seconds")}
    return {
        "run": str(run.path),
        **kept,
        "split": first,
        "metrics": facts["metrics"].get(first, {}),
        "baseline": facts["baseline"].get(first, {}),
        "splits": facts["metrics"],
        "audit": facts.get("audit"),  # the first runs were not audited
        "cost": read_json(run.path / "cost.json"),
        "files": sorted(p.name for p in run.path.iterdir() if p.is_file() and not p.name.startswith(".")),
    }
