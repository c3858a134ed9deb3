"""Several seeds of one recipe, trained together as stacked models; one of them, or each, becomes a run."""

import copy
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from harken import run_folder
from harken.data.source import Dataset
from harken.errors import BadSetting
from harken.files import write_atomic
from harken.recipe import Recipe
from harken.tasks import BoundTask, OutputScoredTask
from harken.training.loop import Trainer, selection_score
from harken.training.stacked_seeds import StackedModels, StackedTask, StackedTrainer, finite_scores

from . import transfer


def stack_seeds(recipe: Recipe, dataset: Dataset, *, weights: bool = True) -> tuple[StackedModels, StackedTask]:
    """A model and a task per seed, stacked."""
    models, tasks = [], []
    for seed in range(recipe.train.seed, recipe.train.seed + recipe.train.seeds):
        seed_recipe = recipe.change(train__seed=seed)
        torch.manual_seed(seed)
        model, task = seed_recipe.build(dataset.vocab), seed_recipe.bind(dataset)
        transfer.init_from_run(model, seed_recipe, weights=weights)
        models.append(model)
        tasks.append(task)
    stacked, stacked_task = StackedModels(models), StackedTask(tasks)
    if recipe.train.select_seed_on == "valid" and "valid" not in stacked_task.splits:
        fix = "set data.valid, or train.select_seed_on=train"
        raise BadSetting(f"train.select_seed_on=valid: there is no validation split; {fix}")
    _check_stackable(stacked, stacked_task, recipe)
    return stacked, stacked_task


@torch.no_grad()
def _check_stackable(stacked: StackedModels, task: StackedTask, recipe: Recipe) -> None:
    """Raise before the first step for operations that vmap does not support, such as fused RNN loops."""
    try:
        task.loss(stacked, task.batch(0, 0))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        problem = f"seeds of a {recipe.model.kind} on this data cannot be trained together ({reason[:120]})"
        raise BadSetting(f"train.seeds: {problem}; train them one by one: harken compare DATA --seeds N") from error


def evaluate_seeds(trainer: StackedTrainer, recipe: Recipe) -> dict[str, object]:
    """The metrics of all seeds, their mean and standard deviation, and the selected seed."""
    scores = {split: trainer.task.scores(trainer.model, split) for split in trainer.task.splits}
    first, n_seeds = recipe.train.seed, trainer.model.n_models
    metrics = [{split: rows[n].metrics for split, rows in scores.items()} for n in range(n_seeds)]
    seeds = [{"seed": seed, "metrics": row} for seed, row in enumerate(metrics, first)]
    selection = {"selected": first + _best_seed(trainer, recipe, scores), "selected_on": recipe.train.select_seed_on}
    return {**selection, "per_seed": seeds, "summary": _statistics(scores)}


def single_seed_trainer(trainer: StackedTrainer, n: int) -> Trainer:
    """A trainer with the model of one seed; valid until the next call."""
    single: Trainer = copy.copy(trainer)
    single.model, single.task = trainer.model.member(n), trainer.task.tasks[n]
    single.validation = trainer.validation.members[n]
    return single


def _best_seed(trainer: StackedTrainer, recipe: Recipe, scores: dict[str, Any]) -> int:
    """The index of the best seed on the split that the recipe selects on."""
    if recipe.train.select_seed_on == "valid":
        ranks = [selection_score(score.metrics, score.primary_metric) for score in scores["valid"]]
    else:
        ranks = [selection_score({"loss": loss}, "loss") for loss in train_losses(trainer)]
    return ranks.index(min(ranks))


def train_losses(trainer: StackedTrainer) -> list[float]:
    """The mean training loss of each seed, in evaluation mode."""
    stacked, task = trainer.model, trainer.task
    if isinstance(task.tasks[0], OutputScoredTask):
        return [score.metrics["loss"] for score in task.scores(stacked, "train")]
    epoch = max(0, trainer.step - 1) // task.steps  # earlier epochs of a curriculum may be easier
    return [_epoch_loss(seed_task, stacked.member(n), epoch) for n, seed_task in enumerate(task.tasks)]


@torch.no_grad()
def _epoch_loss(task: BoundTask, model: Any, epoch: int) -> float:
    """The mean loss of an epoch without dropout, as it is logged."""
    model.eval()
    device = next(model.parameters()).device
    batches = [task.batch(epoch, step).to(device) for step in range(task.steps)]
    losses = [task.loss(model, batch) for batch in batches]
    sums = [float(loss.total if loss.reported is None else loss.reported) for loss in losses]
    return sum(sums) / sum(batch.n_targets for batch in batches)


def _statistics(scores: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation of each metric over the seeds with finite scores."""
    rows = {}
    for split, split_scores in scores.items():
        finite = finite_scores(split_scores)
        columns = {name: [score.metrics[name] for score in finite] for name in finite[0].metrics}
        deviations = {name: stdev(values) if finite[1:] else 0.0 for name, values in columns.items()}
        means, seeds = {name: fmean(values) for name, values in columns.items()}, f"of {len(finite)} seeds"
        rows[split] = {f"mean {seeds}": means, f"standard deviation {seeds}": deviations}
    return rows


def write_seed_run(folder: Path, n: int, recipe: Recipe, model: nn.Module) -> tuple[Path, Recipe]:
    """Write one seed as a run with its values of the common log, without an evaluation; return folder and recipe."""
    seed = recipe.train.seed + n
    seed_folder = folder / "seeds" / str(seed)
    seed_recipe = recipe.change(train__seed=seed, train__seeds=1, train__keep_seeds="best")
    seed_folder.mkdir(parents=True, exist_ok=True)
    write_atomic(seed_folder / "recipe.toml", seed_recipe.toml())
    for name in run_folder.TOKENIZER_FILES:
        if (folder / name).exists():
            write_atomic(seed_folder / name, (folder / name).read_bytes())
    run_folder.write_tensors(seed_folder / "model.safetensors", run_folder.weights(model))
    log: list[dict[str, Any]] = run_folder.read_log(folder)
    seed_values = [line.pop("seeds")[n] if "seeds" in line else {} for line in log]
    lines = [line | values for line, values in zip(log, seed_values, strict=True)]
    write_atomic(seed_folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return seed_folder, seed_recipe
