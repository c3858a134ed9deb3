"""harken train DATA|RECIPE|RUN"""

from shlex import quote
from typing import TYPE_CHECKING

import click

from harken.console import ConsoleListener, cost_line, evaluation_lines, fold_lines, main_split
from harken.errors import HarkenError
from harken.experiments.report.verdict import audit_warning

from . import json_option, print_json, reject_options

if TYPE_CHECKING:
    from harken.inference.run import Run


@click.command()
@click.argument("what", metavar="DATA|RECIPE|RUN")
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option(
    "--out", metavar="DIR", help="Run folder to write.  [default: runs/<name of the data>, -2, -3 ... if it exists]"
)
@click.option("--minutes", type=float, help="Training time in minutes, without set-up.")
@click.option("--resume", is_flag=True, help="Resume from the last checkpoint.")
@click.option("--force", is_flag=True, help="Overwrite the run folder of --out.")
@click.option(
    "--folds", type=int, metavar="N", help="Cross-validation: train on N folds and on all data, which share the time."
)
@click.option("--show", "show_", is_flag=True, help="Print the recipe with the origin of each value; train nothing.")
@json_option
def train(
    what: str,
    settings: tuple[str, ...],
    out: str | None,
    minutes: float | None,
    folds: int | None,
    show_: bool,
    json_: bool,
    **existing: bool,
) -> None:
    """Train a model on DATA (a file, a folder, - for stdin, a name that `harken data` lists) or with a RECIPE.

    With --resume, continue an unfinished RUN, or the folder of an unfinished cross-validation.

    With --folds, a small table is cross-validated: every row is in one of N test splits.
    """
    from harken.recipe import check_initial_weights, parse_override

    overrides = dict(parse_override(text) for text in settings)
    for path, value in overrides.items():
        check_initial_weights(path, value)
    with ConsoleListener(to_stderr=json_) as listener:
        if show_:
            reject_options("with --show", "out", "resume", "force", "folds")
            budget = {} if minutes is None else {"train.minutes": minutes}
            return _print_recipe(what, overrides | budget, listener)
        from harken.experiments.folders import is_cross_validation

        if folds is not None or (existing["resume"] and is_cross_validation(what)):
            overrides |= {} if minutes is None else {"train.minutes": minutes}
            return _cross_validate(what, folds, out, overrides, existing, listener)
        from harken.experiments.train import FolderOptions
        from harken.experiments.train import train as train_
        from harken.training.parallel import is_first_process

        options: FolderOptions = {"resume": existing["resume"], "force": existing["force"]}
        run = train_(what, out=out, minutes=minutes, settings=overrides, listen=listener, **options)
    if not is_first_process():
        return
    if json_:
        print_json(run_summary(run))
        return _fail_if_unsound(run)
    _print_run(run)


def _print_run(run: "Run") -> None:
    """Print the evaluation, the cost and the next step; fail if the run is unsound."""
    from harken.run_folder import read_json

    for line in evaluation_lines(run.facts):
        click.echo(line)
    click.echo(cost_line(read_json(run.path / "cost.json")))
    click.echo(f"  run     {run.path}      report: {run.path / 'report.html'}")
    _fail_if_unsound(run)
    click.echo(_next_step(run))


def _next_step(run: "Run") -> str:
    """The lines with the commands that use this run."""
    example = run.family.example if run.verb == "generate" else run.facts.get("example", run.family.example)
    file = "my.txt " * (run.verb == "ask")
    command = f"  next    harken {run.verb} {quote(str(run.path))} {file}{quote(example)}"
    if dict(run.recipe.task).get("objective", "mlm") == "mlm":
        return command
    next_sentence = f"harken classify {quote(str(run.path))} --pair 'The first sentence.' 'The next one.'"
    return f"{command}\n          {next_sentence}   does the second text follow the first?"


def _cross_validate(
    what: str,
    folds: int | None,
    out: str | None,
    overrides: dict[str, object],
    existing: dict[str, bool],
    listen: ConsoleListener,
) -> None:
    from harken.experiments.cross_validation import cross_validate

    outcome = cross_validate(what, folds, out=out, settings=overrides, listen=listen, **existing)
    if listen.to_stderr:
        predictions = outcome.predictions and str(outcome.predictions)
        paths = {"run": str(outcome.final.path), "predictions": predictions}
        return print_json({**outcome.facts(), "n_folds": outcome.n_folds, **paths})
    for line in fold_lines(outcome.metrics, outcome.baseline, outcome.n_folds):
        click.echo(line)
    if outcome.verdict:
        click.echo(f"  verdict {outcome.verdict}")
    if outcome.predictions:
        click.echo(f"  rows    {outcome.predictions} (the prediction for every row, by a model that did not see it)")
    run = outcome.final
    click.echo(f"  run     {run.path} (trained on all data, except the validation fraction)")
    click.echo(_next_step(run))


def _fail_if_unsound(run: "Run") -> None:
    """Fail if a loss is not finite or the audit failed."""
    non_finite = [split for split, metrics in run.facts["metrics"].items() if metrics.get("loss") is None]
    if non_finite:
        raise HarkenError(f"{run.path}: the {non_finite[0]} loss is not finite; train again with a lower train.lr")
    if doubt := audit_warning(run.facts):
        raise HarkenError(f"{run.path}: {doubt}")


def _print_recipe(what: str, overrides: dict[str, object], listener: ConsoleListener) -> None:
    from harken.experiments.choose import choose

    from .check import recipe_lines

    recipe = choose(what, overrides, listen=listener).recipe
    if listener.to_stderr:
        print_json({"recipe": recipe.settings(), "origins": dict(recipe.origins)})
    else:
        click.echo("\n".join(recipe_lines(recipe)))


def run_summary(run: "Run") -> dict[str, object]:
    """The JSON summary of a finished training."""
    from harken.run_folder import read_json

    facts = run.facts
    first = main_split(facts["metrics"])
    counts = {name: facts[name] for name in ("kind", "parameters", "steps", "seconds")}
    return {
        "run": str(run.path),
        **counts,
        "split": first,
        "metrics": facts["metrics"].get(first, {}),
        "baseline": facts["baseline"].get(first, {}),
        "splits": facts["metrics"],
        "audit": facts.get("audit"),  # absent in imported runs
        "cost": read_json(run.path / "cost.json"),
        "files": sorted(p.name for p in run.path.iterdir() if p.is_file() and not p.name.startswith(".")),
    }
