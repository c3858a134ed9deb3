"""The plan of a comparison: axes, shared settings, evaluation settings and seeds, and how they are typed."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from harken import recipe as recipes
from harken import run_folder
from harken.errors import BadInput, BadRun
from harken.events import Listener, silent
from harken.experiments.choose import choose
from harken.experiments.few_shot import prompt_from_recipe
from harken.recipe import OVERRIDE, SettingsDict
from harken.suggestions import COMPARISON_FILE

QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'')  # a TOML string
PLAIN = re.compile(r"[\w./@+-]+")
MAX_NAME_LENGTH = 100  # characters of a folder name
DEFAULT_SEEDS = 3  # the fewest that give a useful interval


@dataclass(frozen=True)
class ComparisonPlan:
    """The data, the axes with their values, the settings of all trials, the settings to evaluate under, and seeds."""

    what: str
    axes: dict[str, list[object]] = field(default_factory=dict)
    settings: SettingsDict = field(default_factory=dict)
    evals: dict[str, list[object]] = field(default_factory=dict)
    seeds: int = DEFAULT_SEEDS

    def rows(self) -> list[SettingsDict]:
        return list(combinations(self.axes))

    def shared(self) -> str:
        """What must be equal for a comparison to be resumed."""
        return json.dumps([self.what, self.settings], sort_keys=True)

    def command(self) -> str:
        """The command that repeats the comparison."""
        words = ["harken", "compare", self.what]
        words += [f"{path}={','.join(map(format_value, values))}" for path, values in self.axes.items()]
        words += [f"{path}={format_value(value)}" for path, value in self.settings.items()]
        for path, values in self.evals.items():
            words += ["--eval", f"{path}={','.join(map(format_value, values))}"]
        return " ".join(map(quote, [*words, "--seeds", str(self.seeds)]))

    def with_seeds(self, seeds: int | None, folder: Path) -> "ComparisonPlan":
        """The plan with this many seeds, not fewer than before: finished trials are not dropped."""
        if isinstance(seeds, int) and 0 < seeds < self.seeds:
            fix = f"use {self.seeds} or more, or another folder"
            raise BadInput(f"{folder}: seeds = {seeds}, but this comparison has {self.seeds}; {fix}")
        return self if seeds is None else replace(self, seeds=seeds)


def read_plan(folder: Path) -> ComparisonPlan:
    """The plan in the folder of a comparison."""
    facts: dict[str, Any] = run_folder.read_json(folder / COMPARISON_FILE)
    try:
        return ComparisonPlan(**{name: facts[name] for name in ComparisonPlan.__dataclass_fields__})
    except KeyError as error:
        raise BadRun(f"{folder / COMPARISON_FILE}: {error.args[0]} is missing; harken did not write this") from None


def check_plan(plan: ComparisonPlan, listen: Listener = silent) -> None:
    """Raise before the first training for a plan with invalid recipes."""
    if not isinstance(plan.seeds, int) or plan.seeds < 1:
        raise BadInput(f"seeds = {plan.seeds!r}: at least 1 is required, and 2 for an interval")
    if "train.seed" in plan.axes:
        raise BadInput("train.seed cannot be a comparison axis; use --seeds N")
    if repeated := [path for path in plan.axes if path in plan.settings]:
        raise BadInput(f"{repeated[0]}: is both an axis and a setting; give it once")
    if invalid := [path for path in plan.evals if not path.startswith(("model.", "task."))]:
        raise BadInput(f"{invalid[0]}: --eval accepts settings of model and task only")
    for row in plan.rows():
        recipe = choose(plan.what, plan.settings | row, listen=listen).recipe
        if recipe.start.shots is not None:
            prompt_from_recipe(recipe)
        for overrides in combinations(plan.evals):
            recipes.resolve(("the recipe", recipe.settings()), (OVERRIDE, overrides))


def check_axes(axes: Mapping[str, Sequence[object]] | None) -> dict[str, list[object]]:
    """The axes as lists, after a check that each is a list of different values."""
    if not isinstance(axes or {}, Mapping):
        raise BadInput(f'axes = {axes!r}: expected a dictionary, such as {{"model.heads": [1, 2, 8]}}')
    for path, values in (axes or {}).items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise BadInput(f"{path} = {values!r}: expected a list of values, such as [1, 2, 8]")
        if duplicates := [value for n, value in enumerate(values) if value in values[:n]]:
            raise BadInput(f"{path}: {duplicates[0]!r} is listed twice; list each value once")
    return {path: list(values) for path, values in (axes or {}).items()}


def parse_axis(text: str) -> tuple[str, list[object]]:
    """model.heads=1,2,8 -> ("model.heads", [1, 2, 8]). Commas in brackets, braces or quotes belong to a value."""
    path, equals, values = text.partition("=")
    if values == ",":  # data.decimal=,
        return path, [values]
    pieces, depth, start = [""], 0, 0
    while start < len(values):
        quoted = QUOTED.match(values, start) if depth or not pieces[-1].strip() else None  # it's.txt has no quotes
        piece = quoted[0] if quoted else values[start]
        depth, start = depth + (piece in ("[", "{")) - (piece in ("]", "}")), start + len(piece)
        if piece == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += piece
    if len(pieces) > 1 and not all(map(str.strip, pieces)):
        raise BadInput(f"{text}: a value is missing before or after a comma; expected {path}=1,2,8")
    parsed = [recipes.parse_override(f"{path}{equals}{piece.strip() if pieces[1:] else piece}") for piece in pieces]
    return parsed[0][0], [value for _, value in parsed]


def format_value(value: object) -> str:
    """A value as it is typed: unquoted where that parses to the same value, else TOML."""
    plain = isinstance(value, str) and PLAIN.fullmatch(value) and recipes.parse_override(f"x.x={value}")[1] == value
    return str(value) if plain else recipes.to_toml_value(value)


def combinations(axes: Mapping[str, Sequence[object]]) -> Iterator[SettingsDict]:
    """Every combination of the values of the axes."""
    return (dict(zip(axes, combination, strict=True)) for combination in itertools.product(*axes.values()))


def trial_name(settings: SettingsDict, seed: int) -> str:
    """A unique folder name of a trial."""
    name = "-".join([*(f"{path}={format_value(value)}" for path, value in sorted(settings.items())), f"seed={seed}"])
    safe = re.sub(r"[^\w.=+-]+", "_", name)
    if safe == name and len(safe) <= MAX_NAME_LENGTH:
        return safe
    return f"{safe[:MAX_NAME_LENGTH]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
