"""harken check DATA|RECIPE, harken check --settings KIND"""

from typing import Any

import click

from . import as_json, show
from .say import Teller, duration, energy, number


@click.command()
@click.argument("what", metavar="DATA|RECIPE", required=False)
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option(
    "--settings", "kind", metavar="KIND", help="List every setting of a kind (gpt, text, train, ...) instead."
)
@as_json
def check(what: str | None, settings: tuple[str, ...], kind: str | None, json_: bool) -> None:
    """Say what the data is and why, the recipe with each value's origin, and what a training costs. Trains nothing."""
    if kind is not None:
        rows = settings_of(kind)
        if json_:
            show({"kind": kind, "settings": rows})
        for row in rows if not json_ else ():
            click.echo(f"{row['path']:<24} {row['default']:<14} {row['description']}")
        return
    if what is None:
        raise click.UsageError("name the data or the recipe to check, or a kind with --settings")
    from harken.recipe import override
    from harken.study.choose import choose
    from harken.study.estimate import estimate

    with Teller(quiet=json_) as teller:
        chosen = choose(what, dict(override(text) for text in settings), listen=teller)
        cost = estimate(chosen.recipe, listen=teller)
    guess = chosen.guess
    if json_:
        others = [{"kind": k, "why": why} for k, why in guess.others] if guess else []
        taken = {
            "kind": chosen.recipe.data.kind,
            "reason": guess.reason if guess else "named by the recipe",
            "others": others,
        }
        show({**taken, "recipe": chosen.recipe.settings(), "origins": dict(chosen.recipe.origins), "estimate": cost})
        return
    if guess:
        click.echo(f"{what} is {guess.kind}: {guess.reason}")
        for other, why in guess.others:
            click.echo(f"  not {other}: {why}")
        click.echo("  overrule with data.kind=...\n")
    click.echo("\n".join(recipe_lines(chosen.recipe)))
    needs = f"{number(cost['parameters'])} weights, {number(cost['tokens'])} tokens to learn from"
    click.echo(f"\n{needs}, about {cost['memory_mib']:.0f} MiB of memory")
    time, used = duration(cost["minutes"] * 60), energy(cost["kwh"])
    click.echo(f"{cost['steps']:,} steps, {time}, about {used} ({cost['machine']})")


def recipe_lines(recipe: Any) -> list[str]:
    """Every setting with where its value comes from."""
    from harken.recipe import as_toml

    lines = []
    for path, value in recipe.settings().items():
        lines.append(f"{path:<24} = {as_toml(value):<24} # {recipe.origins.get(path, 'default')}")
    return lines


def settings_of(kind: str) -> list[dict[str, Any]]:
    """The settings of a kind: dotted path, default, what is accepted, the sentence."""
    from harken import kinds
    from harken.errors import BadInput, did_you_mean
    from harken.recipe import as_toml

    for section in ("model", "data", "task", "train"):
        if kind in kinds.names(section) or kind == section:
            name = kind if kind in kinds.names(section) else kinds.names(section)[0]
            part = kinds.find(section, name)
            properties = part.model_json_schema()["properties"]
            return [
                {
                    "path": f"{section}.{field}",
                    "default": "none" if spec.default is None else as_toml(spec.default),
                    "accepted": accepted(properties[field]),
                    "description": spec.description or "which kind this is",
                }
                for field, spec in part.model_fields.items()
            ]
    known = sorted({n for s in ("model", "data", "task", "train") for n in kinds.names(s)})
    raise BadInput(f"--settings {kind}: not a kind; there are {', '.join(known)}.{did_you_mean(kind, known)}")


def accepted(schema: dict[str, Any]) -> str:
    """What a setting accepts, in a few words."""
    if "anyOf" in schema:
        return " or ".join(accepted(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema:
        return ", ".join(str(v) for v in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    words = {
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
        "array": "list",
        "object": "table",
    }
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = " ".join(f"{sign} {schema[key]}" for key, sign in limits.items() if key in schema)
    return f"{words.get(schema.get('type', ''), 'text')} {bounds}".strip()
