"""Several seeds of one recipe: trained together, judged one by one, and one of them kept as the run."""

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from harken import run
from harken.errors import BadSetting
from harken.recipe import Recipe
from harken.tasks import Learning
from harken.training.loop import rank
from harken.training.many import ManyTrainer, Several, Together

from . import transfer


def together(recipe: Recipe, opened: Any, *, weights: bool = True) -> tuple[Together, Several]:
    """A model and a task for each seed, as one of each."""
    models, tasks = [], []
    for seed in range(recipe.train.seed, recipe.train.seed + recipe.train.seeds):
        mine = recipe.change(train__seed=seed)
        torch.manual_seed(seed)
        model, task = mine.build(opened.vocab), mine.bind(opened)
        transfer.begin(model, mine, weights=weights)
        models.append(model)
        tasks.append(task)
    many, several = Together(models), Several(tasks)
    if recipe.train.pick == "valid" and "valid" not in several.splits:
        raise BadSetting("train.pick=valid: nothing is held out to pick a seed by; hold some out, or pick=train")
    _try(many, several, recipe)
    return many, several


@torch.no_grad()
def _try(many: Together, several: Several, recipe: Recipe) -> None:
    """Refuse before the first step what has no rule for a model axis, such as the fused loops of RNNs."""
    try:
        several.loss(many, several.batch(0, 0))
    except RuntimeError as error:
        why = f"a {recipe.model.kind} cannot be learned along a model axis ({str(error).splitlines()[0]})"
        raise BadSetting(f"train.seeds: {why}; train its seeds one by one: harken compare DATA --seeds N") from None


def kept(trainer: ManyTrainer, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Judge all members, go on with the one the recipe picks as if it had been alone, and tell of all of them."""
    many, tasks, first = trainer.model, trainer.task.tasks, recipe.train.seed
    scores = {split: trainer.task.scores(many, split) for split in trainer.task.splits}
    n = _picked(trainer, recipe, scores)
    if recipe.train.members == "all":
        for m in range(many.members):
            _write(folder, first + m, recipe, many.alone(m))
    trainer.model, trainer.task, trainer.course.step = many.alone(n), tasks[n], trainer.course.each[n].step
    each = [
        {"seed": first + m, "metrics": {split: some[m].metrics for split, some in scores.items()}}
        for m in range(many.members)
    ]
    return {"picked": first + n, "rule": recipe.train.pick, "each": each, "together": _spread(scores)}


def _picked(trainer: ManyTrainer, recipe: Recipe, scores: dict[str, Any]) -> int:
    """Which member is the best, by what the recipe says."""
    if recipe.train.pick == "valid":
        ranks = [rank(score.metrics, score.by) for score in scores["valid"]]
    else:
        ranks = [_loss(task, trainer.model.alone(n)) for n, task in enumerate(trainer.task.tasks)]
    return min(range(len(ranks)), key=ranks.__getitem__)


@torch.no_grad()
def _loss(task: Learning, model: Any) -> float:
    """The mean loss on what was learned from, without dropout."""
    model.eval()
    device = next(model.parameters()).device
    batches = [task.batch(0, step) for step in range(task.steps)]
    return sum(float(task.loss(model, b.to(device)).total) for b in batches) / sum(b.count for b in batches)


def _spread(scores: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation of each metric over the seeds."""
    told = {}
    for split, some in scores.items():
        columns = {name: [score.metrics[name] for score in some] for name in some[0].metrics}
        told[split] = {
            f"mean of {len(some)} seeds": {name: fmean(values) for name, values in columns.items()},
            f"spread of {len(some)} seeds": {name: stdev(values) for name, values in columns.items()},
        }
    return told


def _write(folder: Path, seed: int, recipe: Recipe, model: Any) -> None:
    """A member as a run of its own, but for what is told of all: log, cost and report."""
    place, mine = folder / "seeds" / str(seed), recipe.change(train__seed=seed, train__seeds=1, train__members="best")
    place.mkdir(parents=True, exist_ok=True)
    run.write(place / "recipe.toml", mine.toml())
    for name in run.TOKENS:
        if (folder / name).exists():
            run.write(place / name, (folder / name).read_bytes())
    run.write_tensors(place / "model.safetensors", run.weights(model))
    about = {"name": place.name, "kind": recipe.model.kind, "data_kind": recipe.data.kind, "task": recipe.task.kind}
    run.finish(place, {**about, "parameters": run.size(model), "metrics": {}, "baseline": {}})
