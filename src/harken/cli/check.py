"""harken check DATA|RECIPE, harken check --settings KIND"""

from typing import Any

import click

from harken.console import Teller, columns, table
from harken.experiments.report.line_chart import duration, scaled

from . import as_json, refuse, show

SECTIONS = ("model", "data", "task", "train")


@click.command()
@click.argument("what", metavar="DATA|RECIPE", required=False)
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option("--settings", "kind", metavar="KIND", help="List every setting of a kind (gpt, text, train ...) instead.")
@as_json
def check(what: str | None, settings: tuple[str, ...], kind: str | None, json_: bool) -> None:
    """Say what the data is and why, the recipe with each value's origin, and what a training costs. Trains nothing."""
    if kind is not None:
        refuse("with --settings", "what")
        _settings(kind, json_)
        return
    if what is None:
        raise click.UsageError("name the data or the recipe to check, or a kind with --settings")
    from harken.experiments.choose import choose
    from harken.experiments.estimate import estimate
    from harken.recipe import override

    with Teller(aside=json_) as teller:
        chosen = choose(what, dict(override(text) for text in settings), listen=teller)
        recipe, guess = chosen.recipe, chosen.guess
        if not json_:
            click.echo("\n".join([*_taken(what, guess, recipe.data.kind), ""]))
        cost = estimate(recipe, listen=teller)
    if json_:
        others = [{"kind": other, "why": why} for other, why in guess.others] if guess else []
        reason = guess.reason if guess else "named by the settings"
        taken = {"kind": recipe.data.kind, "reason": reason, "others": others, "overrule": "data.kind"}
        show({**taken, "recipe": recipe.settings(), "origins": dict(recipe.origins), "estimate": cost})
        return
    click.echo("\n".join(["", *recipe_lines(recipe), ""]))
    needs = (
        f"{scaled(cost['parameters'], 'count')} weights, {scaled(cost['tokens'], 'count')} {cost['unit']} to learn from"
    )
    click.echo(f"{needs}, about {cost['memory_mib']:,.0f} MiB of memory in all")
    time, used = duration(cost["minutes"] * 60), scaled(cost["kwh"], "energy")
    steps = f"{cost['steps']:,} step{'s' * (cost['steps'] != 1)}"
    click.echo(f"{steps}, about {time} and {used} ({cost['energy_source']}) on {cost['machine']}")


def _taken(what: str, guess: Any, kind: str) -> list[str]:
    """What the data was taken for and why, the runners-up, and how to overrule the choice."""
    if guess is None:
        return [f"{what}: {kind}, as the settings say"]
    others = [f"  not {other}: {why}" for other, why in guess.others]
    return [f"{what} is {guess.kind}: {guess.reason}", *others, *["  overrule with data.kind=..."] * (not guess.named)]


def recipe_lines(recipe: Any) -> list[str]:
    """Every setting with where its value comes from."""
    from harken.recipe import as_toml

    settings = recipe.settings().items()
    return columns([(path, f"= {as_toml(value)}", f"# {_origin(recipe, path)}") for path, value in settings])


def _origin(recipe: Any, path: str) -> str:
    """Where a value comes from; of a dial also which of the settings it stands for have other values."""
    section, name = path.split(".")
    part, origin = getattr(recipe, section), recipe.origins.get(path, "default")
    row = part.dials.get(name, {}).get(str(getattr(part, name)), {})
    other = [setting for setting, value in row.items() if getattr(part, setting) != value]
    return f"{origin}, but for {', '.join(other)}" if other else str(origin)


def _settings(kind: str, json_: bool) -> None:
    rows = settings_of(kind)
    if json_:
        show({"kind": kind, "settings": rows})
        return
    heads = ("setting", "default", "what it is", "accepted")
    table(heads, [[row["path"], row["default"], row["description"], row["accepted"]] for row in rows])


def settings_of(kind: str) -> list[dict[str, Any]]:
    """The settings of a kind: dotted path, default, what is accepted, the sentence."""
    from harken import registry
    from harken.errors import BadInput, did_you_mean
    from harken.recipe import as_toml

    for section, of in registry.shelves():
        known = {name + of: name for name in registry.names(section, of)}
        name = known.get(kind) or (kind if kind in known.values() else None)
        if name or kind == section:
            part = registry.find(section, name or registry.names(section, of)[0], of)
            return [
                {
                    "path": f"{section}.{field}",
                    "default": "none" if spec.default is None else as_toml(spec.default),
                    "accepted": part.accepts(field),
                    "description": spec.description or "which kind this is",
                }
                for field, spec in part.model_fields.items()
            ]
    every = [*(name + of for section, of in registry.shelves()[:-1] for name in registry.names(section, of)), "train"]
    raise BadInput(f"--settings {kind}: not a kind; there are {', '.join(every)}.{did_you_mean(kind, every)}")
