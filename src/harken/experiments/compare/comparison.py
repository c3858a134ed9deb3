"""harken.compare: train on the same data and budget under several settings and seeds, and compare.

    runs/my-compare/  compare.json  report.html  compare.svg  model.heads=1-seed=0/  model.heads=1-seed=1/ ...

compare.json holds the plan from the start, so an interrupted comparison can be resumed: finished trials are read.
"""

import gc
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, TypedDict, cast

import torch

from harken import recipe as recipes
from harken import run_folder
from harken.data.tables.frame import Frame, rows_in_errors, save_frame
from harken.errors import BadInput, BadRun, HarkenError, Stopped
from harken.events import Listener, silent
from harken.experiments.choose import choose, find_data, run_name
from harken.experiments.few_shot import evaluate_few_shot
from harken.experiments.folders import claim_folder, is_available, next_available, numbered_folders
from harken.experiments.report.charts import standalone_svg
from harken.experiments.report.formatting import finite_float
from harken.experiments.train import train
from harken.files import check_path, write_atomic
from harken.inference.loaded_model import build_model
from harken.inference.run import Run
from harken.recipe import OVERRIDE, Recipe, SettingsDict
from harken.suggestions import COMPARISON_FILE, resume_command
from harken.tasks.metrics.weighted import Outcomes
from harken.training.settings import Train

from .page import compare_page, comparison_charts
from .plan import DEFAULT_SEEDS, ComparisonPlan, check_axes, check_plan, combinations, read_plan, trial_name
from .summary import SPLITS, Intervals, Metrics, Trial, row_name, summarize
from .verdict import add_verdict

BUDGETS = [f"train.{name}" for name in Train.exclusive[0]]
TO = "-to-"  # in the folder name of stacked seeds: model.heads=1-seed=0-to-4


class ComparisonRow(TypedDict):
    """One row of a comparison: a combination of settings; numbers are means over the seeds."""

    name: str
    model: str | None
    settings: dict[str, object]
    metrics: Metrics  # on the split of the verdict
    interval: Intervals
    splits: dict[str, dict[str, object]]  # "metrics" and "interval" of each split
    parts: dict[str, dict[str, object]]
    protocol: dict[str, object]
    baseline_differences: dict[str, object]  # by split, baseline and metric; with one seed
    seconds: float | None
    seconds_to_quality: float | None
    steps: float | None
    parameters: int | None
    tokens_per_second: int | None
    flops: float | None
    kwh: float | None
    co2e_kg: float | None
    price_usd: float | None
    evals: list[dict[str, object]]
    seeds: list[int]
    runs: list[str]
    failed: list[dict[str, object]]


class ComparisonFacts(TypedDict):
    """The content of compare.json."""

    comparison: str
    what: str
    axes: dict[str, list[object]]
    settings: dict[str, object]
    evals: dict[str, list[object]]
    seeds: int
    split: str
    metric: str
    curve_metric: str
    level: float | None
    baseline: dict[str, Metrics]
    baselines: dict[str, dict[str, Metrics]]
    rows: list[ComparisonRow]
    differences: dict[str, dict[str, object]]  # of the best row to each other row
    verdict: str
    command: str
    implied_settings: dict[str, list[object]]


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: its folder, and the facts in its compare.json.

    >>> settings = {"train.steps": 2, "model.size": "tiny"}
    >>> comparison = harken.compare("text.txt", {"model.heads": [1, 2]}, settings=settings, seeds=1)
    >>> [row["name"] for row in comparison.rows][:2], len(comparison.verdict) > 0
    (['model.heads=1', 'model.heads=2'], True)
    """

    path: Path
    facts: ComparisonFacts

    @property
    def rows(self) -> list[ComparisonRow]:
        """One row per combination of settings: metrics, intervals over the seeds, seconds, parameters, cost."""
        return self.facts["rows"]

    @property
    def verdict(self) -> str:
        """The conclusion in one sentence."""
        return self.facts["verdict"]


def compare(
    what: str | Path | Frame,
    axes: Mapping[str, Sequence[object]] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    evals: Mapping[str, Sequence[object]] | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    listen: Listener = silent,
) -> Comparison:
    """Train under each combination of the values of the axes, with several seeds, and compare the metrics.

    `settings` are the same for all trials; evals={"model.context": [128, 256]} evaluates each trained model under
    other settings. `resume` continues a comparison, also with more seeds or values.

    >>> settings = {"train.steps": 2, "model.size": "tiny"}
    >>> comparison = harken.compare("text.txt", {"model.layers": [1, 2]}, settings=settings, seeds=1)
    >>> [row["settings"] for row in comparison.rows]
    [{'model.layers': 1}, {'model.layers': 2}]
    """
    what, shared = save_frame(what) if isinstance(what, Frame) else what, dict(settings or {})
    check_path("what", what)
    if (Path(what) / COMPARISON_FILE).is_file():
        folder = wanted = Path(what)
        if not resume:
            raise BadInput(f"{what}: a comparison, not data; {resume_command(folder)}")
        if axes or shared or evals or out:
            fix = "remove them and out (--out), or repeat the first command with more values and --resume"
            raise BadInput(f"{what}: a comparison is resumed with its own settings; {fix}")
        plan = read_plan(folder).with_seeds(seeds, folder)
        check_plan(plan, listen)
    else:
        wanted = Path(out) if out else Path("runs") / f"{run_name(str(what), shared)}-compare"
        data = find_data("-", listen=listen) if what == "-" else Path(what)  # stdin can be read only once
        source = str(data.absolute()) if data.exists() else str(what)
        n_seeds = DEFAULT_SEEDS if seeds is None else seeds
        plan = ComparisonPlan(source, check_axes(axes), shared, check_axes(evals), n_seeds)
        check_plan(plan, listen)
        if seeds is None and not plan.axes and not plan.evals:
            fix = "give a setting several values, such as model.heads=1,2, or set seeds (--seeds 3)"
            raise BadInput(f"{what}: there is nothing to compare; {fix}")
        folder = _choose_folder(plan, wanted, explicit=bool(out), resume=resume, listen=listen)
        if (folder / COMPARISON_FILE).is_file():
            plan = replace(plan, seeds=read_plan(folder).with_seeds(seeds, folder).seeds)
    with rows_in_errors(), ExitStack() as locks:
        if out or (folder / COMPARISON_FILE).is_file():
            locks.enter_context(run_folder.lock_folder(folder))
        else:  # another process may have claimed the name meanwhile
            folder = claim_folder(wanted, locks)
        run_folder.write_json(folder / COMPARISON_FILE, asdict(plan))
        return _run_trials(plan, folder, listen)


def _choose_folder(plan: ComparisonPlan, wanted: Path, *, explicit: bool, resume: bool, listen: Listener) -> Path:
    """The folder to write. A comparison with the same data and settings is resumed."""
    if resume:
        folders = [p for p in ([wanted] if explicit else numbered_folders(wanted)) if (p / COMPARISON_FILE).is_file()]
        if matching := [p for p in folders if read_plan(p).shared() == plan.shared()]:
            return matching[-1]
        if explicit and folders:
            raise BadInput(f"{wanted}: this comparison has other data or settings; choose another folder")
        listen("notice", text=f"{wanted}: there is no comparison to resume; a new one starts")
    if explicit and not is_available(wanted):
        raise BadInput(f"{wanted}: is not empty; resume the comparison (--resume) or choose another folder")
    return next_available(wanted)


# --- the trials -------------------------------------------------------------------------------------------------------


def _run_trials(plan: ComparisonPlan, folder: Path, listen: Listener) -> Comparison:
    rows = plan.rows()
    row_recipes = [choose(plan.what, plan.settings | row).recipe for row in rows]
    first, budgets = row_recipes[0].train.seed, [r.train for r in row_recipes if r.start.shots is None]
    todo = [(n, seed) for seed in range(first, first + plan.seeds) for n in range(len(rows))]  # every row per seed
    groups: list[list[Trial]] = [[] for _ in rows]
    folders = [_trial_folders(folder, row, range(first, first + plan.seeds)) for row in rows]
    not_stacked = set[int]()  # rows with seeds that are trained one by one
    minutes = sum(train.minutes for train in budgets if _by_minutes(train)) * plan.seeds
    listen("comparison_start", rows=len(rows), seeds=plan.seeds, minutes=minutes)
    for number, (n, seed) in enumerate(todo, 1):
        listen("trial_start", number=number, trials=len(todo), name=row_name(rows[n]), seed=seed)
        try:
            if not (n in not_stacked or (folders[n][seed] / "recipe.toml").is_file()):
                remaining = {s: trial_folder for s, trial_folder in folders[n].items() if s >= seed}
                if not _train_stacked(plan, rows[n], remaining, groups[n], listen):
                    not_stacked.add(n)
                folders[n] = _trial_folders(folder, rows[n], folders[n])
            trial = _run_trial(plan, rows[n], seed, folders[n][seed], groups[n], listen)
        except Stopped as error:
            place = f"{folder}: stopped in trial {number} of {len(todo)}"
            raise Stopped(f"{place}; {resume_command(folder)}", error.exit_code - 128) from None
        groups[n].append(trial)
        listen("trial_end", name=row_name(rows[n]), seed=seed, trial=trial)
    return _write(plan, folder, groups, row_recipes)


def _by_minutes(train: Train) -> bool:
    return train.steps is train.tokens is train.epochs is None


def _write(plan: ComparisonPlan, folder: Path, groups: list[list[Trial]], row_recipes: Sequence[Recipe]) -> Comparison:
    """Write compare.json, the page and the charts."""
    checksums = {trial.facts["data"].get("sha256") for group in groups for trial in group if not trial.failed}
    if len(checksums) > 1 and not any(path.startswith("data.") for path in plan.axes):
        raise BadInput(f"{folder}: {plan.what} changed between two trials; compare again in another folder")
    summary = add_verdict(summarize(groups), groups)
    facts = {"comparison": str(folder), **asdict(plan), **summary, "command": plan.command()}
    facts["implied_settings"] = _implied_settings(plan, [recipe.settings() for recipe in row_recipes])
    charts = comparison_charts(facts, groups)
    write_atomic(folder / "report.html", compare_page(facts, charts))
    write_atomic(folder / "compare.svg", standalone_svg(facts["verdict"], charts))
    run_folder.write_json(folder / COMPARISON_FILE, facts)
    if not any(row["seeds"] for row in facts["rows"]):
        raise HarkenError(f"{folder}: every trial failed; the first: {facts['rows'][0]['failed'][0]['reason']}")
    return Comparison(folder, cast(ComparisonFacts, facts))


def _implied_settings(plan: ComparisonPlan, rows: Sequence[SettingsDict]) -> dict[str, list[Any]]:
    """Settings that differ between the rows without being an axis: an axis such as model.kind implies them."""
    paths = [path for path in dict.fromkeys(itertools.chain(*rows)) if path not in plan.axes]
    columns = {path: [row.get(path) for row in rows] for path in paths}
    return {path: values for path, values in columns.items() if values != values[:1] * len(values)}


def _trial_folders(folder: Path, row: SettingsDict, seeds: Iterable[int]) -> dict[int, Path]:
    """The folder of each trial of a row: its own, or the one of the seeds it was stacked with."""
    single = {seed: folder / trial_name(row, seed) for seed in seeds}
    stacked = (p for path in single.values() for p in folder.glob(f"{escape(path.name)}{TO}*/seeds/*"))
    return single | {int(p.name): p for p in stacked if (p.parents[1] / "harken.json").is_file()}


def _train_stacked(
    plan: ComparisonPlan, row: SettingsDict, folders: Mapping[int, Path], finished: Sequence[Trial], listen: Listener
) -> bool:
    """Train these seeds as stacked models where the model is faster that way; return whether they may be stacked.

    A budget in minutes becomes steps in a first trial, which is trained alone.
    """
    first, last = min(folders), max(folders)
    first_folder = folders[first]
    settings = trial_settings(plan, row, finished) | {"train.seed": first}
    recipe = choose(plan.what, settings).recipe
    started = any((folder / "recipe.toml").is_file() for folder in folders.values())
    if not recipe.model.stack_seeds or recipe.start.shots is not None or recipe.train.seeds > 1 or started:
        return False
    if _by_minutes(recipe.train) or first == last:
        return True
    listen("notice", text=f"seeds {first} to {last} are trained together; the time is divided evenly")
    existing = first_folder.parent.glob(f"{escape(first_folder.name)}{TO}*")
    group = next(existing, first_folder.with_name(f"{first_folder.name}{TO}{last}"))
    resume = (group / "recipe.toml").is_file()
    settings |= {"train.seeds": last - first + 1, "train.keep_seeds": "all"}
    try:
        train(plan.what, out=group, settings={} if resume else settings, resume=resume, listen=listen)
    except Stopped:
        raise
    except Exception as error:  # single trainings may succeed
        listen("notice", text=f"seeds are trained one by one: {' '.join(str(error).split())}")
        return False
    return True


def _run_trial(
    plan: ComparisonPlan, row: SettingsDict, seed: int, folder: Path, finished: Sequence[Trial], listen: Listener
) -> Trial:
    """Train, resume or read one trial, or evaluate a few-shot row. A failure is recorded with its reason."""
    trial = Trial(row, seed, folder)
    started, done = (folder / "recipe.toml").is_file(), (folder / "harken.json").is_file()
    gc.collect()  # free the memory of the trial before
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # and its compiled code: torch caches only a few versions
    try:
        recipe = choose(plan.what, plan.settings | row | {"train.seed": seed}).recipe
        if recipe.start.shots is not None:
            facts, cost, outcomes = evaluate_few_shot(recipe, folder, listen)
            return replace(trial, facts=facts, cost=cost, outcomes=outcomes)
        settings = {} if started else trial_settings(plan, row, finished) | {"train.seed": seed}
        run = train(plan.what, out=folder, settings=settings, resume=started, listen=silent if done else listen)
        evals = [_evaluation(run, overrides) for overrides in combinations(plan.evals)] if plan.evals else []
        cost, log = run_folder.read_json(folder / "cost.json"), run_folder.read_log(folder)
        outcomes = _outcomes(run) if plan.seeds == 1 and len(plan.rows()) > 1 else {}
        trial = replace(trial, facts=run.facts, cost=cost, log=log, evals=evals, outcomes=outcomes)
        non_finite = [split for split, metrics in run.metrics.items() if finite_float(metrics["loss"]) is None]
        return replace(trial, failed=f"its {non_finite[0]} loss is not finite") if non_finite else trial
    except Stopped:
        raise
    except Exception as error:  # the other trials continue, for instance after an out-of-memory error
        reason = " ".join(str(error).split())
        return replace(trial, failed=reason if isinstance(error, HarkenError) else f"{type(error).__name__}: {reason}")


def _outcomes(run: Run) -> dict[str, Outcomes]:
    """The outcomes of the split of the verdict; a run of an earlier process is evaluated again."""
    split = next((s for s in SPLITS if s in run.metrics), None)
    if split is None:
        return {}
    score = run.final_scores[split] if split in run.final_scores else run.evaluate(split).score
    return {split: score.outcomes}


def trial_settings(plan: ComparisonPlan, row: SettingsDict, finished: Sequence[Trial]) -> SettingsDict:
    """The settings of a trial: the first seed of a row converts minutes to steps, the other seeds use these steps."""
    settings = plan.settings | row
    done = next((trial for trial in finished if not trial.failed), None)
    if done is None:
        return settings
    stored = recipes.read(done.run / "recipe.toml")
    steps = {path: stored[path] for path in ("train.steps", "train.eval_every") if path in stored}
    return {path: value for path, value in settings.items() if path not in BUDGETS} | steps


def _evaluation(run: Run, settings: SettingsDict) -> dict[str, Any]:
    """The metrics of a trained model under other settings, or why they cannot be computed."""
    try:
        return {"settings": settings, "metrics": evaluate_under(run, settings), "failed": ""}
    except HarkenError as error:
        return {"settings": settings, "metrics": {}, "failed": str(error)}


def evaluate_under(run: Run, settings: SettingsDict) -> dict[str, float]:
    """The validation metrics of the trained weights, with other settings of model and task."""
    recipe = recipes.resolve((str(run.path), run.recipe.settings()), (OVERRIDE, settings))
    dataset = recipe.load_data(run.tokenizer)
    split = next((s for s in SPLITS if s in dataset.splits), None)
    if split is None:
        raise BadInput(f"{run.path}: no split was held out; evaluation needs one; set data.valid=0.1")
    try:
        model = build_model(recipe, dataset.vocab, run_folder.weights(run.model)).to(run.device).eval()
    except BadRun:
        raise BadInput(_mismatch(run.recipe, recipe)) from None
    task = recipe.bind(dataset)
    task.use_thresholds(run.facts.get("thresholds") or {})
    return dict(task.evaluate(model, split).metrics)


def _mismatch(trained: Recipe, requested: Recipe) -> str:
    """Why trained weights do not fit a model with other settings, and what to do."""
    learned = dict(requested.model).get("positions") == "learned"
    if learned and trained.model.context != requested.model.context:
        fix = f"train with model.context={requested.model.context}, or with model.positions=rotary, alibi or sinusoid"
        return f"learned positions exist only for the context of the training, {trained.model.context}; {fix}"
    return "the trained weights do not fit this model; train with this setting instead"
