"""Cross-validation of a small data set: a run for each fold, then one on all data.

Every fold is an ordinary run with data.fold, so an interrupted cross-validation is resumed where it stopped.
"""

import csv
import io
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypedDict

from harken import run_folder
from harken.data.labelled.examples import LabelledRow, LabelledTexts
from harken.data.labelled.source import TableSource
from harken.data.split import FileSource
from harken.data.tables.columns import json_objects, read_rows, table_head
from harken.data.tables.read import SkippedRows
from harken.data.tables.text_file import JSON_SUFFIXES, TABLE_SUFFIXES, iter_lines, text_file
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.files import write_atomic
from harken.inference.answers.rows import best_label, label_cell, label_probability
from harken.inference.run import Run, load
from harken.recipe import Recipe
from harken.tasks.metrics.intervals import BOUNDS, student_t

from .choose import choose, run_name
from .folders import RESULTS, is_available, is_cross_validation, next_available, numbered_folders
from .report.formatting import display_name, format_number
from .report.verdict import (
    Facts,
    best_baseline,
    by_priority,
    capitalized,
    describe_difference,
    difference_word,
    metric_sign,
)
from .train import train

PREDICTIONS, FINAL = "predictions.csv", "final"
EQUAL = 1e-9  # smaller differences are rounding errors
RANGES = dict.fromkeys(("accuracy", "f1", "f1_micro", "exact_match", "auc", "em"), (0.0, 1.0))
RANGES |= BOUNDS | dict.fromkeys(("loss", "perplexity", "mse", "mae", "rmse"), (0.0, math.inf))


class FoldMean(TypedDict):
    """A metric on the test splits of the folds: the mean, its 95 % confidence interval, and each value."""

    mean: float
    low: float
    high: float
    folds: list[float]


class FoldDifference(FoldMean):
    """How much better the model is than the best baseline, paired by fold; positive if it is better."""

    metric: str
    baseline: str


@dataclass(frozen=True)
class CrossValidation:
    """The outcome of a cross-validation: metrics of the folds, mean baselines, and the run on all data."""

    folder: Path
    metrics: dict[str, FoldMean]
    baseline: dict[str, dict[str, float]]
    primary_metric: str
    final: Run
    difference: FoldDifference | None = None  # from the best baseline

    @property
    def verdict(self) -> str:
        """The mean beside the best baseline: "better" or "worse" only if the interval excludes 0; "" without one."""
        if self.difference is None:
            return ""
        metric, name, n_folds = self.difference["metric"], self.difference["baseline"], len(self.difference["folds"])
        ends = {"value": self.difference["mean"], "low": self.difference["low"], "high": self.difference["high"]}
        word = difference_word(ends)
        comparison = f"{word} over {n_folds} folds than" if word else f"no clear difference over {n_folds} folds from"
        means = format_number(self.metrics[metric]["mean"]), format_number(self.baseline[name][metric])
        head = f"{capitalized(display_name(metric))} {means[0]}"
        return f"{head}, {comparison} the best baseline {means[1]} ({name}): {describe_difference(ends, metric)}."

    @property
    def n_folds(self) -> int:
        return len(next(iter(self.metrics.values()))["folds"])

    @property
    def predictions(self) -> Path | None:
        """The file with the out-of-fold prediction of every row; None if the data is not a table of texts."""
        path = self.folder / PREDICTIONS
        return path if path.exists() else None

    def facts(self) -> dict[str, object]:
        """What folds.json holds of it."""
        facts = {"metrics": self.metrics, "baseline": self.baseline, "primary_metric": self.primary_metric}
        return {**facts, "difference": self.difference, "verdict": self.verdict}


class FoldPlan(NamedTuple):
    """What is trained in every fold."""

    what: str
    n_folds: int
    settings: dict[str, object]

    def facts(self) -> dict[str, object]:
        return {"data": self.what, "n_folds": self.n_folds, "settings": self.settings}


def cross_validate(
    what: str | Path,
    n_folds: int | None,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    resume: bool = False,
    force: bool = False,
    listen: Listener = silent,
) -> CrossValidation:
    """Train a model for each fold and one on all data, which share the training time; write folds.json and the
    out-of-fold predictions. With `resume`, `what` may be the folder of a cross-validation, with no n_folds."""
    if str(what) == "-":
        raise BadInput("stdin: is read once, and every fold needs the data; save it to a file")
    if resume and is_cross_validation(what):
        plan, out = _saved_plan(Path(what), n_folds, settings or {}), out or what
    else:
        plan = _plan(str(what), n_folds or 0, dict(settings or {}), listen)
    folder, n_folds = _folder(plan, out, resume=resume, force=force), plan.n_folds
    folder.mkdir(parents=True, exist_ok=True)
    planned = plan.facts()
    write_atomic(folder / RESULTS, json.dumps(planned, ensure_ascii=False, indent=1))
    runs = list[Run]()
    for number in range(1, n_folds + 1):
        if runs and "train.minutes" in plan.settings:  # as many steps as in the first fold, which measured their time
            timed = {name: value for name, value in plan.settings.items() if name != "train.minutes"}
            first = runs[0].recipe.train
            timed |= {} if first.eval_every is None else {"train.eval_every": first.eval_every}
            plan = plan._replace(settings=timed | {"train.steps": first.steps})
        run = _train(plan, folder / f"fold-{number}", {"data.fold": f"{number}/{n_folds}"}, _quiet(listen, number))
        if "test" not in run.metrics:
            raise BadInput(f"{what}: fold {number} of {n_folds} has no test examples; use fewer folds")
        listen("fold", number=number, n_folds=n_folds, metrics=run.metrics["test"])
        runs.append(run)
    final = _train(plan, folder / FINAL, {"data.test": 0.0}, _quiet(listen, n_folds))
    for text in _write_predictions(folder, runs):
        listen("notice", text=text)
    values = {name: [run.metrics["test"][name] for run in runs] for name in runs[0].metrics["test"]}
    metrics = {name: _mean(name, numbers, runs[0]) for name, numbers in values.items()}
    primary = str(runs[0].facts["protocol"]["test"].get("primary_metric", "loss"))
    baselines = _mean_baselines(runs)
    outcome = CrossValidation(folder, metrics, baselines, primary, final, _difference(runs, baselines, primary))
    write_atomic(folder / RESULTS, json.dumps(planned | outcome.facts(), ensure_ascii=False, indent=1))
    return outcome


def _saved_plan(folder: Path, n_folds: int | None, settings: Mapping[str, object]) -> FoldPlan:
    """The plan of an interrupted cross-validation, with these changes, which `_folder` refuses."""
    saved: Any = run_folder.read_json(folder / RESULTS)
    try:
        return FoldPlan(str(saved["data"]), n_folds or int(saved["n_folds"]), {**saved["settings"], **settings})
    except (LookupError, TypeError, ValueError):
        problem = "does not name its data, n_folds and settings"
        raise BadInput(f"{folder / RESULTS}: {problem}; start a new cross-validation") from None


def _plan(what: str, n_folds: int, settings: dict[str, object], listen: Listener) -> FoldPlan:
    """The settings of every fold, with its part of the training time; raises if the data has no folds."""
    if n_folds < 2:
        raise BadSetting(f"folds={n_folds}: at least 2 are needed; 5 and 10 are common")
    recipe = choose(what, settings, listen=listen).recipe
    if not isinstance(recipe.data, FileSource):
        raise BadInput(f"{what}: data of kind {recipe.data.kind} has no folds; train without them")
    if recipe.data.fold is not None:
        raise BadSetting(f"data.fold={recipe.data.fold}: is set for each fold; remove it")
    fold = f"1/{n_folds}"
    try:
        assert recipe.change(data__fold=fold).data.test_fold  # raises for a test file or a split by time
    except BadSetting as error:
        raise BadSetting(str(error).replace(f"data.fold={fold}", f"folds={n_folds} (--folds)")) from None
    return FoldPlan(what, n_folds, settings | _time_per_run(recipe, n_folds + 1))


def _time_per_run(recipe: Recipe, n_runs: int) -> dict[str, object]:
    """The training time divided among the runs; nothing if the number of steps is set."""
    settings = recipe.train
    if settings.steps is not None or settings.tokens is not None or settings.epochs is not None:
        return {}
    return {"train.minutes": settings.minutes / n_runs}


def _folder(plan: FoldPlan, out: str | Path | None, *, resume: bool, force: bool) -> Path:
    """The folder of the cross-validation: a new one, or an existing one to resume or to overwrite."""
    if resume and force:
        raise BadInput("resume continues a cross-validation and force overwrites it; set only one of them")
    folder = Path(out) if out else Path("runs") / f"{run_name(plan.what, plan.settings)}-folds"
    if resume:
        known = [path for path in ([folder] if out else numbered_folders(folder)) if (path / RESULTS).is_file()]
        if not known:
            raise BadInput(f"{folder}: there is no cross-validation to resume; start one without resume (--resume)")
        saved = run_folder.read_json(known[-1] / RESULTS)
        if different := [name for name, value in plan.facts().items() if saved.get(name) != value]:
            raise BadInput(f"{known[-1]}: was started with other {', '.join(different)}; a resumed one is not changed")
        return known[-1]
    if not out:
        return next_available(folder)
    if not is_available(folder):
        if not force or not (folder / RESULTS).is_file():
            options = "resume it (--resume), overwrite a cross-validation (--force) or choose another folder (--out)"
            raise BadInput(f"{folder}: is not empty; {options}")
        for path in [*folder.glob("fold-*"), folder / FINAL]:
            shutil.rmtree(path, ignore_errors=True)
        (folder / PREDICTIONS).unlink(missing_ok=True)
    return folder


def _train(plan: FoldPlan, folder: Path, settings: dict[str, object], listen: Listener) -> Run:
    """The run of this folder: finished, resumed or new."""
    if (folder / "harken.json").exists():
        return load(folder)
    if (folder / "recipe.toml").exists():
        return train(folder, resume=True, listen=listen)
    return train(plan.what, out=folder, settings=plan.settings | settings, listen=listen)


def _quiet(listen: Listener, number: int) -> Listener:
    """A listener that passes only the progress of the folds after the first: the rest is the same."""

    def forward(event: str, /, **facts: object) -> None:
        if number == 1 or event in ("step", "encode", "vocabulary", "evaluate"):
            listen(event, **facts)

    return forward


def _mean(name: str, values: list[float], run: Run, smallest: float = 0.0) -> FoldMean:
    """The mean of a metric with its corrected interval; the standard deviation is at least `smallest`.

    The training splits of the folds overlap, so the variance is multiplied by 1/k + n_test/n_train instead of 1/k
    (Nadeau and Bengio, 2003).
    """
    counts = _counts(run)
    factor = 1 / len(values) + counts["test"] / counts["train"]
    half = student_t(len(values) - 1) * math.sqrt(factor) * max(smallest, stdev(values))
    mean, (lowest, highest) = fmean(values), RANGES.get(name, (-math.inf, math.inf))
    return {"mean": mean, "low": max(lowest, mean - half), "high": min(highest, mean + half), "folds": values}


def _counts(run: Run) -> Any:
    """The number of examples of each split."""
    return run.facts["data"][run.facts["data"].get("unit", "pairs")]


def _difference(runs: list[Run], baselines: Facts, primary: str) -> FoldDifference | None:
    """The difference from the best baseline by the primary metric, else by the first one that a baseline has.

    If it is the same in all folds, which few examples make likely, its standard deviation is taken as one example.
    """
    for metric in (primary, *by_priority(runs[0].metrics["test"])):
        if best := best_baseline(baselines, metric):
            sign, name = metric_sign(metric), best[0]
            rows = [(run.facts["baseline"]["test"][name][metric], run.metrics["test"][metric]) for run in runs]
            values = [sign * (opponent - value) for opponent, value in rows]
            smallest = 1 / _counts(runs[0])["test"] if max(values) - min(values) < EQUAL else 0.0
            return {**_mean("", values, runs[0], smallest), "metric": metric, "baseline": name}
    return None


def _mean_baselines(runs: list[Run]) -> dict[str, dict[str, float]]:
    """The mean metrics of each baseline that every fold has."""
    rows: list[dict[str, dict[str, float]]] = [run.facts["baseline"].get("test", {}) for run in runs]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: {key: fmean(row[name][key] for row in rows) for key in rows[0][name]} for name in names}


# --- out-of-fold predictions ------------------------------------------------------------------------------------------


def _write_predictions(folder: Path, runs: list[Run]) -> Iterator[str]:
    """Write the prediction for every row of a table of texts by the model that did not see it; yields notices."""
    answers = [answer for number, run in enumerate(runs, 1) for answer in _answers(run, number)]
    if not answers:
        return
    if n_missing := sum(runs[0].facts["data"]["texts"].values()) - len(answers):
        rows = f"{n_missing:,} row{'s are' if n_missing > 1 else ' is'} in no test fold"
        yield f"{rows}, because no row of another fold has the same label or group"
    data: TableSource = runs[0].recipe.data
    tables = {path: _user_columns(Path(path), data) for path in dict.fromkeys(answer.path for answer in answers)}
    names = list(dict.fromkeys(name for table in tables.values() for row in table.values() for name in row))
    several = ["file"] if len(tables) > 1 else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*several, "line", *names, "prediction", "probability", "fold"])
    for answer in sorted(answers, key=lambda answer: (answer.path, answer.line)):
        cells = tables[answer.path].get(answer.line, {})
        place = [answer.path] * len(several) + [answer.line]
        writer.writerow([*place, *(cells.get(name, "") for name in names), *answer[2:]])
    write_atomic(folder / PREDICTIONS, text.getvalue())


class FoldAnswer(NamedTuple):
    """The prediction for a row."""

    path: str
    line: int
    prediction: str
    probability: str
    fold: int


def _answers(run: Run, number: int) -> Iterator[FoldAnswer]:
    """The predictions for the test split of a fold; none if its examples are not texts with labels."""
    part = run.recipe.load_data(run.tokenizer).splits.get("test")
    if not isinstance(part, LabelledTexts):
        return
    rows: list[LabelledRow] = part.rows
    answers = run.classify([row.texts for row in rows])
    for row, labels in zip(rows, answers, strict=True):
        path, _, line = row.location.rpartition(":")
        answer = best_label(run, labels)
        probability = label_probability(answer, labels)
        shown = "" if probability is None else f"{probability:.6g}"
        yield FoldAnswer(path, int(line), label_cell(run, answer), shown, number)


def _user_columns(path: Path, data: TableSource) -> dict[int, dict[str, str]]:
    """All columns of a table, or all keys of JSON lines, by line; none of a text. A row may have fewer cells."""
    suffix, skipped = text_file(path, data.encoding).suffix, SkippedRows()
    if suffix in JSON_SUFFIXES:
        objects = json_objects(path, iter_lines(path, skipped, data.encoding), skipped)
        return {n: {key: _json_cell(value) for key, value in row.items()} for n, row in objects}
    if suffix not in TABLE_SUFFIXES:
        return {}
    refs = [data.group, data.time]
    for columns in (data.text, data.label):
        refs += columns if isinstance(columns, list) else [columns]
    head = table_head(path, refs, data.encoding)
    cells = [cell.strip() if head.has_header else "" for cell in head.cells]
    names = [name if name and cells.count(name) == 1 else str(n) for n, name in enumerate(cells, 1)]
    return {line: dict(zip(names, row, strict=False)) for line, row in read_rows(path, refs, data.encoding)}


def _json_cell(value: object) -> str:
    """A value as a cell: a text as it is, a missing value empty, any other as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
