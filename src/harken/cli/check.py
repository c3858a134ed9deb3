"""harken check DATA|RECIPE, harken check --settings KIND"""

from shlex import join
from typing import TYPE_CHECKING

import click

from harken.console import ConsoleListener, columns, table
from harken.experiments.report.formatting import format_duration, format_price, format_quantity

from . import json_option, print_json, reject_options

if TYPE_CHECKING:
    from harken.data.detect.detection import Detection
    from harken.recipe import Recipe


MIN_EXAMPLES = 500  # with fewer, cross-validation is recommended


@click.command()
@click.argument("what", metavar="DATA|RECIPE", required=False)
@click.argument("settings", nargs=-1, metavar="[section.key=value ...]")
@click.option("--settings", "kind", metavar="KIND", help="List every setting of a kind (gpt, text, train ...).")
@json_option
def check(what: str | None, settings: tuple[str, ...], kind: str | None, json_: bool) -> None:
    """Show the detected kind of data and why, the recipe with the origin of each value, and the expected cost."""
    if kind is not None:
        reject_options("with --settings", "what")
        rows = describe_settings(kind)
        cells = [[row["path"], row["default"], row["description"], row["accepted"]] for row in rows]
        heads = ("setting", "default", "description", "accepted")
        return print_json({"kind": kind, "settings": rows}) if json_ else table(heads, cells)
    if what is None:
        raise click.UsageError("give the data or recipe to check, or a kind with --settings")
    from harken.experiments.choose import choose
    from harken.experiments.estimate import estimate
    from harken.recipe import parse_override

    with ConsoleListener(to_stderr=json_) as listener:
        chosen = choose(what, dict(parse_override(text) for text in settings), listen=listener)
        recipe, guess = chosen.recipe, chosen.detection
        left_out = guess.left_out if guess and not any(s.startswith("data.text=") for s in settings) else ""
        if not json_:
            click.echo("\n".join([*_detection_lines(what, guess, recipe.data.kind, left_out), ""]))
        cost = estimate(recipe, listen=listener)
    if json_:
        runners_up = [{"kind": other, "why": why} for other, why in guess.alternatives] if guess else []
        reason = guess.reason if guess else "given by the settings"
        detected = {"kind": recipe.data.kind, "reason": reason, "alternatives": runners_up}
        detected["left_out"] = left_out
        detected["override"] = ", ".join(guess.overrides) if guess else "data.kind"
        return print_json({**detected, "recipe": recipe.settings(), "origins": dict(recipe.origins), "estimate": cost})
    click.echo("\n".join(["", *recipe_lines(recipe), ""]))
    weights, examples = (format_quantity(cost[name], "count") for name in ("parameters", "tokens"))
    needs = f"{weights} weights, {examples} {cost['unit']} for training"
    click.echo(f"{needs}, about {cost['memory_mib']:,.0f} MiB of memory in total")
    time, used = format_duration(cost["minutes"] * 60), format_quantity(cost["kwh"], "energy")
    steps = f"{cost['steps']:,} step{'s' * (cost['steps'] != 1)}"
    why = "" if cost["timed"] else "; a rough estimate, as timing enough steps would take too long"
    emitted, price = format_quantity(cost["co2e_kg"], "mass"), format_price(cost.get("price_usd"))
    amounts = [time, f"{used} ({cost['energy_source']})", f"{emitted} CO2e", *[price] * bool(price)]
    click.echo(f"{steps}, about {', '.join(amounts[:-1])} and {amounts[-1]} on {cost['machine']}{why}")
    if advice := _folds_advice([what, *settings], recipe, int(cost["examples"])):
        click.echo(advice)


def _folds_advice(arguments: list[str], recipe: "Recipe", n_examples: int) -> str:
    """The recommendation to cross-validate a small data set of which a fraction is the test split; else ""."""
    from harken.data.split import FileSource

    data = recipe.data
    suitable = isinstance(data, FileSource) and not isinstance(data.test, str) and data.split_columns[1] is None
    if not suitable or data.fold is not None or not 0 < n_examples < MIN_EXAMPLES:
        return ""
    test = f"{n_examples:,} examples make a small test split, and its metrics are uncertain"
    return f"{test}; cross-validation tests on all of them: harken train {join(arguments)} --folds 5"


def _detection_lines(what: str, guess: "Detection | None", kind: str, left_out: str) -> list[str]:
    """The detected kind and its reason, the runners-up, and the setting that overrides it."""
    if guess is None:
        return [f"{what}: {kind}, given by the settings"]
    lines = [f"{what} is {guess.kind}: {guess.reason}"]
    lines += [f"  not {other}: {why}" for other, why in guess.alternatives]
    lines += [f"  {left_out}"] * bool(left_out)
    return lines + [f"  {guess.override_hint}"] * (not guess.user_specified)


def recipe_lines(recipe: "Recipe") -> list[str]:
    """Every setting with its origin."""
    from harken.recipe import to_toml_value

    settings = recipe.settings().items()
    return columns([(path, f"= {to_toml_value(value)}", f"# {_origin(recipe, path)}") for path, value in settings])


def _origin(recipe: "Recipe", path: str) -> str:
    """The origin of a value; for a dial, also the settings that override it."""
    section, _, name = path.partition(".")
    origin = recipe.origins.get(path, "default")
    if not name:  # from, transfer
        return origin
    part = getattr(recipe, section)
    row = part.dials.get(name, {}).get(str(getattr(part, name)), {})
    changed = [setting for setting, value in row.items() if getattr(part, setting) != value]
    return f"{origin}, except {', '.join(changed)}" if changed else origin


def describe_settings(kind: str) -> list[dict[str, str]]:
    """The settings of a kind: dotted path, default, accepted values, description."""
    from harken import registry
    from harken.errors import BadInput
    from harken.recipe import to_toml_value
    from harken.suggestions import did_you_mean

    kinds = [(s, name, of) for s, of in registry.sections_and_groups() for name in registry.kind_names(s, of)]
    for section, name, group in kinds:
        if kind in (registry.title(name, group), name, section):
            settings_class = registry.find_kind(section, name, group)
            return [
                {
                    "path": f"{section}.{field}",
                    "default": "none" if spec.default is None else to_toml_value(spec.default),
                    "accepted": settings_class.accepts(field),
                    "description": spec.description or "kind of this section",
                }
                for field, spec in settings_class.model_fields.items()
            ]
    single = ("train", "cost", "report")  # named by their section
    names = [*(registry.title(name, group) for section, name, group in kinds if section not in single), *single]
    raise BadInput(f"--settings {kind}: not a kind; accepted: {', '.join(names)}.{did_you_mean(kind, names)}")
