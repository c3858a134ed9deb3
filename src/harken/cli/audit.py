"""harken audit RUN|RECIPE"""

from typing import Any

import click

from harken.console import Teller, columns
from harken.errors import HarkenError

from . import as_json, show


@click.command()
@click.argument("what", metavar="RUN|RECIPE")
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option("--length", type=click.IntRange(min=2), metavar="N", help="Tokens in a row. Default: 32, or the context.")
@as_json
def audit(what: str, settings: tuple[str, ...], length: int | None, json_: bool) -> None:
    """Prove that the model of a RUN, or a fresh one by a RECIPE, obeys its mask; name the first layer that does not.

    A later token changes nothing before it; padding, packed documents, a memory, the other rows of a batch and
    micro-batches change nothing at all. Exit code 1 if a check fails.
    """
    from harken.experiments.audit.audit import audit as audit_
    from harken.recipe import override

    with Teller(aside=json_) as teller:
        found = audit_(what, settings=dict(override(text) for text in settings), length=length, listen=teller)
    facts = found.facts()
    if json_:
        show({"audited": what, **facts})
    else:
        click.echo("\n".join(columns([_row(check) for check in facts["checks"]])))
    if not found.passed:
        raise HarkenError(f"{what}: {found}")
    if not json_:
        click.echo(str(found))


def _row(check: dict[str, Any]) -> tuple[str, ...]:
    """Name, outcome, difference beside what is allowed, and the claim, or what is to be said against it."""
    off, limit = check["difference"], check["tolerance"]
    sizes = "" if off is None else f"{off:.2g} {'<=' if off <= limit else '>'} {limit:.0e}"
    said = [text for text in (check["layer"], check["why"]) if text] or [check["claim"]]
    return f"  {check['name']}", check["outcome"], sizes, ": ".join(said)
