"""Several seeds of one recipe: trained together, and one of them kept as the run; or each as a run of its own."""

import copy
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from harken import run_folder
from harken.errors import BadSetting
from harken.recipe import Recipe
from harken.tasks import Apart, Learning
from harken.training.loop import Trainer, rank
from harken.training.stacked_seeds import ManyTrainer, Several, Together, sound

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
    if recipe.train.select_seed_on == "valid" and "valid" not in several.splits:
        raise BadSetting(
            "train.select_seed_on=valid: nothing is held out to pick a seed by; hold some out, or pick=train"
        )
    _try(many, several, recipe)
    return many, several


@torch.no_grad()
def _try(many: Together, several: Several, recipe: Recipe) -> None:
    """Refuse before the first step what has no rule for a model axis, such as the fused loops of RNNs."""
    try:
        several.loss(many, several.batch(0, 0))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        why = f"a {recipe.model.kind} on such data cannot be learned along a model axis ({reason[:120]})"
        raise BadSetting(f"train.seeds: {why}; train its seeds one by one: harken compare DATA --seeds N") from error


def told(trainer: ManyTrainer, recipe: Recipe) -> dict[str, Any]:
    """How good all members are, and which of them the recipe picks."""
    scores = {split: trainer.task.scores(trainer.model, split) for split in trainer.task.splits}
    first = recipe.train.seed
    each = [
        {"seed": first + m, "metrics": {split: some[m].metrics for split, some in scores.items()}}
        for m in range(trainer.model.members)
    ]
    picked = first + _picked(trainer, recipe, scores)
    return {"picked": picked, "rule": recipe.train.select_seed_on, "each": each, "together": _spread(scores)}


def alone(trainer: ManyTrainer, n: int) -> Trainer:
    """A trainer whose model is one of the members, until the next is asked for."""
    one: Trainer = copy.copy(trainer)
    one.model, one.task, one.course = trainer.model.alone(n), trainer.task.tasks[n], trainer.course.each[n]
    return one


def _picked(trainer: ManyTrainer, recipe: Recipe, scores: dict[str, Any]) -> int:
    """Which member is the best, by what the recipe says."""
    if recipe.train.select_seed_on == "valid":
        ranks = [rank(score.metrics, score.by) for score in scores["valid"]]
    else:
        ranks = [rank({"loss": loss}, "loss") for loss in learned(trainer)]
    return ranks.index(min(ranks))


def learned(trainer: ManyTrainer) -> list[float]:
    """The mean loss of each member on what was learned from, as a split is judged: nothing is noisy, nothing linear."""
    many, several = trainer.model, trainer.task
    if isinstance(several.tasks[0], Apart):
        return [score.metrics["loss"] for score in several.scores(many, "train")]
    last = max(0, trainer.step - 1) // several.steps  # what comes first may be easier
    return [_loss(task, many.alone(n), last) for n, task in enumerate(several.tasks)]


@torch.no_grad()
def _loss(task: Learning, model: Any, epoch: int) -> float:
    """The mean loss of an epoch without dropout, as it is told."""
    model.eval()
    device = next(model.parameters()).device
    batches = [task.batch(epoch, step).to(device) for step in range(task.steps)]
    found = [task.loss(model, batch) for batch in batches]
    sums = [float(loss.total if loss.told is None else loss.told) for loss in found]
    return sum(sums) / sum(batch.count for batch in batches)


def _spread(scores: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation of each metric over the seeds, without those that broke."""
    told = {}
    for split, every in scores.items():
        some = sound(every)
        columns = {name: [score.metrics[name] for score in some] for name in some[0].metrics}
        told[split] = {
            f"mean of {len(some)} seeds": {name: fmean(values) for name, values in columns.items()},
            f"spread of {len(some)} seeds": {
                name: stdev(values) if some[1:] else 0.0 for name, values in columns.items()
            },
        }
    return told


def begun(folder: Path, n: int, recipe: Recipe, model: Any) -> tuple[Path, Recipe]:
    """A member as a run of its own, but for its judgement: its folder and its recipe.

    Its log is that of all, with what was seen of this one; the time of all is shared evenly.
    """
    seed = recipe.train.seed + n
    place, mine = (
        folder / "seeds" / str(seed),
        recipe.change(train__seed=seed, train__seeds=1, train__keep_seeds="best"),
    )
    place.mkdir(parents=True, exist_ok=True)
    run_folder.write(place / "recipe.toml", mine.toml())
    for name in run_folder.TOKENS:
        if (folder / name).exists():
            run_folder.write(place / name, (folder / name).read_bytes())
    run_folder.write_tensors(place / "model.safetensors", run_folder.weights(model))
    log = run_folder.read_log(folder)
    own = [line.pop("seeds")[n] if "seeds" in line else {} for line in log]
    lines = [line | seen for line, seen in zip(log, own, strict=True)]
    run_folder.write(place / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return place, mine
