"""Evaluate a run on a split of its data or on other data."""

from dataclasses import replace
from typing import TypedDict, cast

from harken.data.tables.frame import Data, data_path, naming_rows, rows_in_errors
from harken.errors import BadInput
from harken.events import Listener, report_overflow, silent, without_overflow
from harken.tasks import Evaluation
from harken.tasks.classify import ClassifyTask

from .answers import OverflowMode, check_overflow
from .loaded_model import LoadedModel


class EvaluationOptions(TypedDict, total=False):
    """Options of `evaluate`."""

    encoding: str
    overflow: OverflowMode
    listen: Listener


@rows_in_errors()
def evaluate_run(
    run: LoadedModel,
    split: str | None = None,
    data: Data | None = None,
    *,
    encoding: str = "",
    overflow: OverflowMode = "truncate",
    listen: Listener = silent,
) -> Evaluation:
    """The metrics of a model and of baselines on a split (test, else valid) or other data.

    overflow="windows" averages over the overlapping windows of a long text.
    """
    listen = naming_rows(listen)
    check_overflow(overflow, allowed=run.recipe.task.kind == "classify")
    split = split or ("test" if data is not None or "test" in run.metrics else "valid")
    other = None if data is None else (data := data_path(data, listen), split)
    reading = without_overflow(listen) if overflow == "windows" else listen
    loaded = run.recipe.load_data(run.tokenizer, other=other, encoding=encoding, listen=reading)
    if split not in loaded.splits:
        known = f"has {', '.join(loaded.splits)}" if loaded.splits else "has no held-out split"
        raise BadInput(f"split {split}: not in this run, which {known}; or give other data to evaluate")
    task = run.recipe.bind(loaded)
    report_overflow(listen, *task.overflows())
    if overflow == "windows":
        cast(ClassifyTask, task).read_windows(split)
    task.use_thresholds(run.facts.get("thresholds") or {})
    score = task.evaluate(run.model, split)
    if data is not None and (fraction := score.protocol.get("unknown")):
        listen("notice", text=f"{data}: {100 * fraction:.3g} % of its tokens are unknown and evaluated as <unk>")
    baselines = task.evaluate_baselines(split)
    score = replace(score, differences=score.compare(baselines))
    return Evaluation(score, {name: baseline.metrics for name, baseline in baselines.items()})
