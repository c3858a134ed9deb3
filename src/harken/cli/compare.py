"""harken compare DATA [section.key=a,b,c ...]"""

from typing import Any, ClassVar

import click

from harken.console import Teller, table
from harken.experiments.report.line_chart import duration, figure

from . import as_json, show

SHORT = {"models": "model.kind", "transfer": "transfer", "distributions": "data.operands", "minutes": "train.minutes"}


@click.command()
@click.argument("what", metavar="DATA|RECIPE|COMPARISON")
@click.argument("settings", nargs=-1, metavar="[section.key=a,b,c ...]")
@click.option("--models", metavar="A,B", help="The same as model.kind=A,B.")
@click.option(
    "--transfer", metavar="A,B", help="The same as transfer=A,B: scratch, frozen, finetune, 4-shot (from=RUN)."
)
@click.option("--distributions", metavar="A,B", help="Of maths: the same as data.operands=uniform,log-uniform.")
@click.option("--minutes", type=float, help="How long to train each trial; set-up is not counted.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="How often each is trained. Default: 3.")
@click.option(
    "--eval",
    "evals",
    multiple=True,
    metavar="section.key=a,b",
    help="Judge each trained model under these settings too.",
)
@click.option("--out", metavar="DIR", help="The folder to write. Default: runs/<name of the data>-compare.")
@click.option("--resume", is_flag=True, help="Go on with a comparison: what is finished is not trained again.")
@as_json
def compare(what: str, settings: tuple[str, ...], json_: bool, **options: Any) -> None:
    """Train on the same data with the same budget under several settings, and say what made a difference.

    A setting with several values (model.heads=1,2,8) is compared; several such settings are combined.
    """
    from harken.recipe import refuse_start

    short = [f"transfer={options['transfer']}"] if options["transfer"] else []
    for path, _, said in (text.partition("=") for text in (*settings, *short)):
        for value in said.split(","):
            refuse_start(path, value.strip())
    from harken.experiments.compare.comparison import compare as compare_
    from harken.experiments.compare.comparison import values
    from harken.experiments.compare.summary import elsewhere, grid, refused

    given = dict(map(values, settings))
    evals = options.pop("evals")
    for name, path in SHORT.items():
        said = options.pop(name)
        if said is not None and path in given:
            raise click.UsageError(f"--{name} and {path} say the same; give one of them")
        given |= {} if said is None else dict([values(f"{path}={said}")])
    axes = {path: some for path, some in given.items() if len(some) > 1}
    shared = {path: some[0] for path, some in given.items() if len(some) == 1}
    with Trials(aside=json_) as teller:
        made = compare_(what, axes, settings=shared, evals=dict(map(values, evals)), listen=teller, **options)
    found = made.facts
    if json_:
        show({**found, "files": [str(made.path / name) for name in ("compare.json", "report.html", "compare.svg")]})
        return
    click.echo()
    table(*grid(found))
    heads, lines = elsewhere(found)
    if lines:
        click.echo()
        table(heads, lines)
    for name, reason in refused(found).items():
        click.echo(f"  failed  {name}: {reason}")
    click.echo(f"\n  {made.verdict}")
    click.echo(f"  report  {made.path / 'report.html'}      picture: {made.path / 'compare.svg'}")


class Trials(Teller):
    """Tells a line for each trial, and what happens inside one only while it lasts."""

    # the rest is in its report
    told: ClassVar = frozenset(
        ("notice", "fetch", "vocabulary", "encode", "answer", "step", "planned", "trial", "tried")
    )

    def __call__(self, event: str, /, **facts: Any) -> None:
        if event in self.told:
            super().__call__(
                event, **{name: fact for name, fact in facts.items() if (event, name) != ("step", "valid")}
            )

    def _planned(self, rows: int, seeds: int, minutes: float) -> None:
        many = f"{rows} setting{'s' * (rows > 1)} x {seeds} seed{'s' * (seeds > 1)}"
        self.line(f"  compare {many}" + (f": {duration(minutes * 60)} of training" if minutes else ""))

    def _trial(self, number: int, trials: int, name: str, seed: int) -> None:
        self._away()
        self.line(f"  trial {number} of {trials}: {name or 'the recipe'}, seed {seed}")

    def _tried(self, trial: Any, **_: Any) -> None:
        self._away()
        told = f"failed: {trial.failed}"
        if not trial.failed:
            scores = [(split, trial.judged_by(split), x) for split, x in trial.facts["metrics"].items()]
            said = ", ".join(f"{split} {by.replace('_', ' ')} {figure(x[by], 4)}" for split, by, x in scores)
            told = f"{said}, {(n := trial.facts['steps']):,} step{'s' * (n != 1)} in {duration(trial.cost['seconds'])}"
        self.line(f"    {told}")
