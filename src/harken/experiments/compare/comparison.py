"""harken.compare: the same data and budget under several settings and seeds; each trial is an ordinary training.

    runs/my-compare/  compare.json  report.html  compare.svg  model.heads=1-seed=0/  model.heads=1-seed=1/ ...

compare.json holds the plan from the start, so that a comparison that was stopped goes on where it was: a trial that is
finished is only read.
"""

import gc
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

import torch

from harken import recipe as recipes
from harken import run_folder
from harken.errors import COMPARISON, BadInput, BadRun, HarkenError, Stopped, how_to_go_on
from harken.events import Listener, silent
from harken.experiments.choose import choose, located, run_name
from harken.experiments.few_shot import by_asking, prompt_of
from harken.experiments.operation_counts import formula
from harken.experiments.report.line_chart import number
from harken.experiments.train import is_free, next_free, numbered, take, train
from harken.inference.run import Run, fitted
from harken.recipe import GIVEN, Recipe, Settings
from harken.training.settings import Train

from .page import compare_page, compare_svg
from .summary import Trial, name_of, tally

QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'')  # a text as TOML writes it
PLAIN = re.compile(r"[\w./@+-]+")
LONGEST = 100  # letters of a folder's name
BUDGETS = [f"train.{name}" for name in Train.one_of[0]]
TO = "-to-"  # of the folder of seeds that are trained together: model.heads=1-seed=0-to-4
SEEDS = 3  # the fewest that give an interval of some use


@dataclass(frozen=True)
class Plan:
    """What is compared: the axes and their values, what all trials share, how often, and what is asked of each."""

    what: str
    axes: dict[str, list[Any]] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    evals: dict[str, list[Any]] = field(default_factory=dict)
    seeds: int = SEEDS

    def rows(self) -> list[Settings]:
        return list(product(self.axes))

    def shared(self) -> str:
        """What must be the same for a comparison to go on."""
        return json.dumps([self.what, self.settings], sort_keys=True)

    def command(self) -> str:
        """What to type to repeat it."""
        words = ["harken", "compare", self.what]
        words += [f"{path}={','.join(map(as_word, some))}" for path, some in self.axes.items()]
        words += [f"{path}={as_word(value)}" for path, value in self.settings.items()]
        for path, some in self.evals.items():
            words += ["--eval", f"{path}={','.join(map(as_word, some))}"]
        return " ".join(map(quote, [*words, "--seeds", str(self.seeds)]))


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: its folder and what was found, as in its compare.json."""

    path: Path
    facts: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each combination of settings: metrics and intervals over the seeds, seconds, weights, cost."""
        return list(self.facts["rows"])

    @property
    def verdict(self) -> str:
        return str(self.facts["verdict"])


def compare(
    what: str | Path,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    evals: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    listen: Listener = silent,
) -> Comparison:
    """Train under each combination of the axes' values, with several seeds, and judge side by side.

    axes={"model.heads": [1, 2, 8]} are compared; settings are the same for all; evals={"model.context": [128, 256]}
    asks each finished trial how it does under other settings. With resume a comparison goes on, also with more seeds.
    """
    given = dict(settings or {})
    if (Path(what) / COMPARISON).is_file():
        folder = place = Path(what)
        if not resume:
            raise BadInput(f"{what}: this is a comparison, not data; {how_to_go_on(folder)}")
        if axes or given or evals or out:
            way = "leave them and out (--out) away, or repeat the first command with more values and --resume"
            raise BadInput(f"{what}: this comparison goes on with the settings it has; {way}")
        plan = _with_seeds(_read(folder), seeds, folder)
        check(plan, listen)
    else:
        place = Path(out) if out else Path("runs") / f"{run_name(str(what), given)}-compare"
        kept = located("-", listen=listen) if what == "-" else Path(what)  # stdin is read once
        source = str(kept.absolute()) if kept.exists() else str(what)
        plan = Plan(source, _lists(axes), given, _lists(evals), SEEDS if seeds is None else seeds)
        check(plan, listen)
        if seeds is None and not plan.axes and not plan.evals:
            way = "give a setting several values, such as model.heads=1,2; or say how often with seeds (--seeds 3)"
            raise BadInput(f"{what}: there is nothing to compare; {way}")
        folder = _folder(plan, place, named=bool(out), resume=resume, listen=listen)
        if (folder / COMPARISON).is_file():
            plan = replace(plan, seeds=_with_seeds(_read(folder), seeds, folder).seeds)
    with ExitStack() as held:
        if out or (folder / COMPARISON).is_file():
            held.enter_context(run_folder.writing(folder))
        else:  # one that began in this moment may have taken the name
            folder = take(place, held)
        run_folder.write_json(folder / COMPARISON, asdict(plan))
        return _compare(plan, folder, listen)


# --- the plan ---------------------------------------------------------------------------------------------------------


def values(text: str) -> tuple[str, list[Any]]:
    """model.heads=1,2,8 -> ("model.heads", [1, 2, 8]). A comma inside brackets, braces or quotes is part of a value."""
    path, equals, said = text.partition("=")
    pieces, depth, at = [""], 0, 0
    while at < len(said):
        quoted = QUOTED.match(said, at) if depth or not pieces[-1].strip() else None  # it's.txt has no quotes
        piece = quoted[0] if quoted else said[at]
        depth, at = depth + (piece in ("[", "{")) - (piece in ("]", "}")), at + len(piece)
        if piece == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += piece
    if len(pieces) > 1 and not all(map(str.strip, pieces)):
        raise BadInput(f"{text}: there is nothing before or after a comma; values look like {path}=1,2,8")
    given = [recipes.override(f"{path}{equals}{piece.strip() if pieces[1:] else piece}") for piece in pieces]
    return given[0][0], [value for _, value in given]


def as_word(value: Any) -> str:
    """A value as it is typed: plain text where it reads as itself, else TOML."""
    plain = isinstance(value, str) and PLAIN.fullmatch(value) and recipes.override(f"x.x={value}")[1] == value
    return value if plain else recipes.as_toml(value)


def product(axes: Mapping[str, Sequence[Any]]) -> Iterator[Settings]:
    """Every combination of the axes' values."""
    return (dict(zip(axes, combination, strict=True)) for combination in itertools.product(*axes.values()))


def _lists(axes: Mapping[str, Sequence[Any]] | None) -> dict[str, list[Any]]:
    """The axes, after each was found to be a list of different values."""
    if not isinstance(axes or {}, Mapping):
        raise BadInput(f'axes = {axes!r}: a dictionary is accepted, such as {{"model.heads": [1, 2, 8]}}')
    for path, given in (axes or {}).items():
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise BadInput(f"{path} = {given!r}: an axis is a list of values, such as [1, 2, 8]")
        if twice := [value for n, value in enumerate(given) if value in given[:n]]:
            raise BadInput(f"{path}: {twice[0]!r} is there twice; name each value once")
    return {path: list(given) for path, given in (axes or {}).items()}


def check(plan: Plan, listen: Listener = silent) -> None:
    """Refuse, before anything is trained, what no recipe can be made of."""
    if not isinstance(plan.seeds, int) or plan.seeds < 1:
        raise BadInput(f"seeds = {plan.seeds!r}: at least 1 is needed, and 2 for an interval")
    if "train.seed" in plan.axes:
        raise BadInput("train.seed: seeds are repetitions, not rivals; say how many with seeds (--seeds N)")
    if both := [path for path in plan.axes if path in plan.settings]:
        raise BadInput(f"{both[0]}: is given with one value and with several; give it once")
    if outside := [path for path in plan.evals if not path.startswith(("model.", "task."))]:
        raise BadInput(f"{outside[0]}: what was learned is judged under other settings of model and task only")
    for row in plan.rows():
        recipe = choose(plan.what, plan.settings | row, listen=listen).recipe
        if recipe.start.shots is not None:
            prompt_of(recipe)
        for under in product(plan.evals):
            recipes.resolve(("the recipe", recipe.settings()), (GIVEN, under))


def _with_seeds(begun: Plan, seeds: int | None, folder: Path) -> Plan:
    """The plan of a comparison that goes on, with as many seeds as before or more: what is trained is not dropped."""
    if isinstance(seeds, int) and 0 < seeds < begun.seeds:
        way = f"take {begun.seeds} or more, or another folder"
        raise BadInput(f"{folder}: seeds = {seeds}: the comparison there has {begun.seeds}; {way}")
    return begun if seeds is None else replace(begun, seeds=seeds)


def _read(folder: Path) -> Plan:
    found = run_folder.read_json(folder / COMPARISON)
    try:
        return Plan(**{name: found[name] for name in Plan.__dataclass_fields__})
    except KeyError as error:
        raise BadRun(f"{folder / COMPARISON}: holds no {error.args[0]}; this is not a file harken wrote") from None


def _folder(plan: Plan, wanted: Path, *, named: bool, resume: bool, listen: Listener) -> Path:
    """The folder to write. A comparison that was begun goes on if it shares data and settings; more may be compared."""
    if resume:
        known = {p: _read(p) for p in ([wanted] if named else numbered(wanted)) if (p / COMPARISON).is_file()}
        if mine := [p for p, begun in known.items() if begun.shared() == plan.shared()]:
            return mine[-1]
        if named and known:
            raise BadInput(f"{wanted}: the comparison there has other data or settings; take another folder")
        listen("notice", text=f"{wanted}: there is nothing to go on with; the comparison starts anew")
    if named and not is_free(wanted):
        raise BadInput(f"{wanted}: is not empty; resume the comparison there, or take another folder")
    return next_free(wanted)


# --- the trials -------------------------------------------------------------------------------------------------------


def _compare(plan: Plan, folder: Path, listen: Listener) -> Comparison:
    rows = plan.rows()
    chosen = [choose(plan.what, plan.settings | row).recipe for row in rows]
    first, budgets = chosen[0].train.seed, [recipe.train for recipe in chosen if recipe.start.shots is None]
    todo = [(n, seed) for seed in range(first, first + plan.seeds) for n in range(len(rows))]  # all rows, then again
    groups: list[list[Trial]] = [[] for _ in rows]
    places = [_places(folder, row, range(first, first + plan.seeds)) for row in rows]
    apart = set[int]()  # rows whose seeds are trained one by one
    minutes = [train.minutes for train in budgets if (train.steps, train.tokens, train.epochs) == (None, None, None)]
    listen("planned", rows=len(rows), seeds=plan.seeds, minutes=sum(minutes) * plan.seeds)
    for turn, (n, seed) in enumerate(todo, 1):
        listen("trial", number=turn, trials=len(todo), name=name_of(rows[n]), seed=seed)
        try:
            if not (n in apart or (places[n][seed] / "recipe.toml").is_file()):
                rest = {s: place for s, place in places[n].items() if s >= seed}
                if not _together(plan, rows[n], rest, groups[n], listen):
                    apart.add(n)
                places[n] = _places(folder, rows[n], places[n])
            place = places[n][seed]
            trial = _trial(plan, rows[n], seed, place, groups[n], listen)
        except Stopped as error:
            where = f"{folder}: stopped in trial {turn} of {len(todo)}"
            raise Stopped(f"{where}; {how_to_go_on(folder)}", error.exit_code - 128) from None
        groups[n].append(trial)
        listen("tried", name=name_of(rows[n]), seed=seed, trial=trial)
    texts = {trial.facts["data"].get("sha256") for group in groups for trial in group if not trial.failed}
    if len(texts) > 1 and not any(path.startswith("data.") for path in plan.axes):
        raise BadInput(f"{folder}: {plan.what} was changed between two trials; compare anew in another folder")
    found = {"comparison": str(folder), **asdict(plan), **tally(groups), "command": plan.command()}
    found["follows"] = _follows(plan, [recipe.settings() for recipe in chosen])
    run_folder.write(folder / "report.html", compare_page(found, groups))
    run_folder.write(folder / "compare.svg", compare_svg(found, groups))
    run_folder.write_json(folder / COMPARISON, found)
    if not any(row["seeds"] for row in found["rows"]):
        raise HarkenError(f"{folder}: every trial failed, the first by: {found['rows'][0]['failed'][0]['reason']}")
    return Comparison(folder, found)


def _follows(plan: Plan, rows: Sequence[Settings]) -> dict[str, list[Any]]:
    """What differs between the rows and is no axis: a dial (optimizer, size) or another model's recipe brings it."""
    each = {path: [row.get(path) for row in rows] for path in dict.fromkeys(itertools.chain(*rows))}
    return {path: some for path, some in each.items() if path not in plan.axes and some != some[:1] * len(some)}


def trial_name(settings: Settings, seed: int) -> str:
    """A folder's name that says which trial is in it, and is no other's."""
    said = "-".join([*(f"{path}={as_word(value)}" for path, value in sorted(settings.items())), f"seed={seed}"])
    plain = re.sub(r"[^\w.=+-]+", "_", said)
    if plain == said and len(plain) <= LONGEST:
        return plain
    return f"{plain[:LONGEST]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _places(folder: Path, row: Settings, seeds: Iterable[int]) -> dict[int, Path]:
    """Where the trials of a row are: in folders of their own, or in that of the seeds they were trained with."""
    alone = {seed: folder / trial_name(row, seed) for seed in seeds}
    several = (p for own in alone.values() for p in folder.glob(f"{escape(own.name)}{TO}*/seeds/*"))
    return alone | {int(p.name): p for p in several if (p.parents[1] / "harken.json").is_file()}


def _together(plan: Plan, row: Settings, places: Mapping[int, Path], before: Sequence[Trial], listen: Listener) -> bool:
    """Train these seeds along the model axis where the model says that this pays; whether they may be trained so.

    Minutes become steps in a first trial, which is trained alone.
    """
    first, last = min(places), max(places)
    own = places[first]
    given = trial_settings(plan, row, before) | {"train.seed": first}
    how = choose(plan.what, given).recipe
    begun = any((place / "recipe.toml").is_file() for place in places.values())
    if not getattr(how.model, "abreast", False) or how.start.shots is not None or how.train.seeds > 1 or begun:
        return False
    if (how.train.steps, how.train.tokens, how.train.epochs) == (None, None, None) or first == last:
        return True
    listen("notice", text=f"seeds {first} to {last} are trained together; each gets its share of the time")
    group = next(own.parent.glob(f"{escape(own.name)}{TO}*"), own.with_name(f"{own.name}{TO}{last}"))
    resume, more = (group / "recipe.toml").is_file(), {"train.seeds": last - first + 1, "train.keep_seeds": "all"}
    try:
        train(plan.what, out=group, settings={} if resume else given | more, resume=resume, listen=listen)
    except Stopped:
        raise
    except Exception as error:  # alone, each may go well, or says why not
        listen("notice", text=f"not trained together: {' '.join(str(error).split())}")
        return False
    return True


def _trial(plan: Plan, row: Settings, seed: int, folder: Path, before: Sequence[Trial], listen: Listener) -> Trial:
    """Train one (or ask it), go on with one that was begun, or read one that is finished. One that fails says why."""
    trial = Trial(row, seed, folder)
    begun, done = (folder / "recipe.toml").is_file(), (folder / "harken.json").is_file()
    _forget()
    try:
        recipe = choose(plan.what, plan.settings | row | {"train.seed": seed}).recipe
        if recipe.start.shots is not None:
            return replace(trial, **by_asking(recipe, folder, listen))
        # a run that was begun has its own
        given = {} if begun else trial_settings(plan, row, before) | {"train.seed": seed}
        made = train(plan.what, out=folder, settings=given, resume=begun, listen=silent if done else listen)
        asked = [_under(made, under) for under in product(plan.evals)] if plan.evals else []
        cost, log = run_folder.read_json(folder / "cost.json"), run_folder.read_log(folder)
        trial = replace(trial, facts=made.facts, cost=cost, log=log, evals=asked)
        trial = replace(trial, formula=formula(made.recipe.model, _length(made.facts["data"])))
        odd = [split for split, found in made.metrics.items() if number(found["loss"]) is None]
        return replace(trial, failed=f"its {odd[0]} loss is not a finite number") if odd else trial
    except Stopped:
        raise
    except Exception as error:  # a night of trials does not end with the first that is out of memory
        said = " ".join(str(error).split())
        return replace(trial, failed=said if isinstance(error, HarkenError) else f"{type(error).__name__}: {said}")


def _length(data: Mapping[str, Any]) -> float | None:
    """The mean length of the sentences that are learned from, of both sides; a text has none."""
    sides = data.get("length", {}).get("train", {})
    return fmean(sides.values()) if sides else None


def trial_settings(plan: Plan, row: Settings, before: Sequence[Trial]) -> Settings:
    """What to train with: the minutes of a row are measured once, and become the same steps for all its seeds."""
    given = plan.settings | row
    done = next((trial for trial in before if not trial.failed), None)
    if done is None:
        return given
    steps = {"train.steps": recipes.read(done.run / "recipe.toml")["train.steps"]}
    return {path: value for path, value in given.items() if path not in BUDGETS} | steps


def _forget() -> None:
    """Let go of the trial before: its memory, and its compiled code, of which torch keeps only so many of a kind."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _under(made: Run, settings: Settings) -> dict[str, Any]:
    """How a trained model does under other settings."""
    try:
        return {"settings": settings, "metrics": judged_under(made, settings), "failed": ""}
    except HarkenError as error:
        return {"settings": settings, "metrics": {}, "failed": str(error)}


def judged_under(made: Run, settings: Settings) -> dict[str, float]:
    """The metrics on the valid split of the trained weights in the model, and by the task, that these settings make."""
    recipe = recipes.resolve((str(made.path), made.recipe.settings()), (GIVEN, settings))
    opened = recipe.open(made.tokenizer)
    split = next((s for s in ("valid", "test") if s in opened.splits), None)
    if split is None:
        raise BadInput(f"{made.path}: nothing was held out, so nothing can be judged; data.valid=0.1 holds out a part")
    try:
        model = fitted(recipe, opened.vocab, run_folder.weights(made.model)).to(made.device).eval()
    except BadRun:
        raise BadInput(_unfit(made.recipe, recipe)) from None
    return dict(recipe.bind(opened).evaluate(model, split).metrics)


def _unfit(trained: Recipe, asked: Recipe) -> str:
    """Why weights do not fit the model of other settings, and what to do."""
    if getattr(asked.model, "positions", None) == "learned" and trained.model.context != asked.model.context:
        way = f"train with model.context={asked.model.context}, or with model.positions=rotary, alibi or sinusoid"
        return f"learned positions are those of the training, {trained.model.context}; {way}"
    return "the trained weights do not fit this model; train with this setting instead"
