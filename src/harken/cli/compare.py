"""harken compare DATA [section.key=a,b,c ...]"""

from typing import Any, ClassVar

import click

from harken.console import ConsoleListener, table
from harken.experiments.report.formatting import format_duration, format_number

from . import json_option, print_json

PATHS = {"models": "model.kind", "transfer": "transfer", "distributions": "data.operands", "minutes": "train.minutes"}
TRANSFER_HELP = "Short for transfer=A,B: scratch, frozen, finetune, 4-shot (needs from=RUN)."


@click.command()
@click.argument("what", metavar="DATA|RECIPE|COMPARISON")
@click.argument("settings", nargs=-1, metavar="[section.key=a,b,c ...]")
@click.option("--models", metavar="A,B", help="Short for model.kind=A,B.")
@click.option("--transfer", metavar="A,B", help=TRANSFER_HELP)
@click.option("--distributions", metavar="A,B", help="Maths: short for data.operands=A,B.")
@click.option("--minutes", type=float, help="Training time of each trial in minutes, without set-up.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Number of seeds per setting.  [default: 3]")
@click.option("--eval", "evals", multiple=True, metavar="section.key=a,b", help="Also evaluate with these settings.")
@click.option(
    "--out", metavar="DIR", help="Folder to write.  [default: runs/<name of the data>-compare, -2 ... if it exists]"
)
@click.option("--resume", is_flag=True, help="Resume a comparison; finished trials are kept.")
@json_option
def compare(what: str, settings: tuple[str, ...], json_: bool, **arguments: object) -> None:
    """Train on the same data with the same budget and several settings, and compare the metrics.

    A setting with several values (model.heads=1,2,8) is an axis; all combinations of the axes are trained.
    """
    from harken.recipe import check_initial_weights

    options: dict[str, Any] = arguments
    short = [f"transfer={options['transfer']}"] if options["transfer"] else []
    for path, _, text in (setting.partition("=") for setting in (*settings, *short)):
        for value in text.split(","):
            check_initial_weights(path, value.strip())
    from harken.experiments.compare.comparison import compare as compare_
    from harken.experiments.compare.plan import parse_axis
    from harken.experiments.compare.summary import comparison_table, eval_table, failures

    values = dict(map(parse_axis, settings))
    evals = dict(map(parse_axis, options.pop("evals")))
    for name, path in PATHS.items():
        text = options.pop(name)
        if text is not None and path in values:
            raise click.UsageError(f"--{name} and {path} set the same thing; give one of them")
        values |= {} if text is None else dict([parse_axis(f"{path}={text}")])
    axes = {path: axis for path, axis in values.items() if len(axis) > 1}
    shared = {path: axis[0] for path, axis in values.items() if len(axis) == 1}
    with TrialListener(to_stderr=json_) as listener:
        comparison = compare_(what, axes, settings=shared, evals=evals, listen=listener, **options)
    facts = comparison.facts
    if json_:
        files = [str(comparison.path / name) for name in ("compare.json", "report.html", "compare.svg")]
        return print_json({**facts, "files": files})
    click.echo()
    table(*comparison_table(facts))
    heads, lines = eval_table(facts)
    if lines:
        click.echo()
        table(heads, lines)
    for name, reason in failures(facts).items():
        click.echo(f"  failed  {name}: {reason}")
    click.echo(f"\n  {comparison.verdict}")
    click.echo(f"  report  {comparison.path / 'report.html'}      plot: {comparison.path / 'compare.svg'}")


class TrialListener(ConsoleListener):
    """Prints one line per trial; progress inside a trial is shown only on a terminal."""

    # other events are in the report of each trial
    events: ClassVar = {"notice", "fetch", "vocabulary", "encode", "answer", "step"}
    events |= {"comparison_start", "trial_start", "trial_end"}

    def __call__(self, event: str, /, **facts: object) -> None:
        if event == "step":
            facts.pop("valid", None)
        if event in self.events:
            super().__call__(event, **facts)

    def _notice(self, text: str, **_: Any) -> None:
        if text not in self.notices:  # of an earlier trial on the same data
            super()._notice(text)

    def _comparison_start(self, rows: int, seeds: int, minutes: float) -> None:
        many = f"{rows} setting{'s' * (rows > 1)} x {seeds} seed{'s' * (seeds > 1)}"
        self.line(f"  compare {many}" + (f": {format_duration(minutes * 60)} of training" if minutes else ""))

    def _trial_start(self, number: int, trials: int, name: str, seed: int) -> None:
        self._stop_progress()
        self.line(f"  trial {number} of {trials}: {name or 'the recipe'}, seed {seed}")

    def _trial_end(self, trial: Any, **_: Any) -> None:
        self._stop_progress()
        line = f"failed: {trial.failed}"
        if not trial.failed:
            scores = [(split, trial.primary_metric(split), x) for split, x in trial.facts["metrics"].items()]
            metrics = [f"{split} {by.replace('_', ' ')} {format_number(x[by], 4)}" for split, by, x in scores]
            steps = f"{(n := trial.facts['steps']):,} step{'s' * (n != 1)}"
            line = f"{', '.join(metrics)}, {steps} in {format_duration(trial.cost['seconds'])}"
        self.line(f"    {line}")
