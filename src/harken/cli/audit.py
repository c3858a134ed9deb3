"""harken audit RUN|RECIPE"""

from typing import Any

import click

from harken.console import ConsoleListener, columns
from harken.errors import HarkenError

from . import json_option, print_json


@click.command()
@click.argument("what", metavar="RUN|RECIPE")
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option(
    "--length", type=click.IntRange(2), metavar="N", help="Tokens per row.  [default: 32, limited by the context]"
)
@json_option
def audit(what: str, settings: tuple[str, ...], length: int | None, json_: bool) -> None:
    """Check that the model of a RUN, or a new model of a RECIPE, obeys its mask; name the first layer that does not.

    A later token must not change earlier outputs; padding, packed documents, the KV cache, other rows of the batch and
    micro-batches must not change any output. Exit code 1 if a check fails.
    """
    from harken.experiments.audit.audit import audit as audit_
    from harken.recipe import parse_override

    with ConsoleListener(to_stderr=json_) as listener:
        outcome = audit_(what, settings=dict(parse_override(text) for text in settings), length=length, listen=listener)
    if json_:
        print_json({"audited": what, **outcome.facts()})
    else:
        click.echo("\n".join(columns([_row(vars(check)) for check in outcome.checks])))
    if not outcome.passed:
        raise HarkenError(f"{what}: {outcome}")
    if not json_:
        click.echo(str(outcome))


def _row(check: dict[str, Any]) -> tuple[str, ...]:
    """Name, outcome, difference and tolerance, and the claim or the reason of the failure."""
    off, limit = check["difference"], check["tolerance"]
    sizes = "" if off is None else f"{off:.2g} {'<=' if off <= limit else '>'} {limit:.0e}"
    reasons = [text for text in (check["layer"], check["why"]) if text] or [check["claim"]]
    return f"  {check['name']}", check["outcome"], sizes, ": ".join(reasons)
