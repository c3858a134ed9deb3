"""bAbI with memory networks: all tasks and restarts as one batch of models, compared with the published errors.

    python benchmarks/babi.py tasks_1-20/en                          20 tasks x 10 restarts, 3 hops, one model per task
    python benchmarks/babi.py tasks_1-20/en --joint                  10 restarts of one model for all tasks
    python benchmarks/babi.py tasks_1-20/en --hops 1,3 --tasks 1,2,3
    python benchmarks/babi.py tasks_1-20 --size en-10k
    python benchmarks/babi.py tasks_1-20/en --select-on valid --eval-on valid      tune settings without the test split

The restart with the lowest training loss is selected per task, as published (`--select-on valid`: a tenth of the
training stories is held out and selects). Models of several tasks share vocabulary and stories; each predicts only the
answers of its task. On a GPU, tasks with short stories form one batch of models and tasks with long stories another. On
a CPU, where padding costs time, the restarts of each task form one batch (`--together yes`: one batch for all tasks;
`no`: one batch per task). Training stories that also occur in a test file (135 of 1,000 in task 4) are kept, as in the
published figures; data.duplicate_questions=drop removes them.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import machine
from harken.data.batch import IGNORE, Array
from harken.data.stories.babi import TASK
from harken.data.stories.batch import StoryBatch, StoryBatches, StoryTable
from harken.events import silent
from harken.experiments.choose import choose
from harken.recipe import OVERRIDE, Recipe, parse_override, resolve
from harken.tasks import BoundTask, Loss
from harken.training.stacked_seeds import StackedModels, StackedTask, StackedTrainer

# error in %, 1,000 questions per task, 3 hops, position encoding, linear start, random noise (Sukhbaatar 2015)
SEPARATE = (0.1, 8.2, 41.8, 4.4, 13.7, 7.9, 20.3, 11.7, 13.6, 9.7, 0.7, 0, 0.3, 0.9, 0, 0.4, 51.0, 10.5, 81.4, 0)
JOINT = (0, 13.1, 23.4, 5.9, 12.9, 3.7, 22.9, 9.1, 2.7, 7.2, 0.8, 0.1, 0.1, 4.2, 0, 1.2, 43.6, 10.5, 86.7, 0)
MEAN_10K = 4.2  # of 20 separate tasks with 10,000 questions each
EXCLUDED = -1e9  # logit of an answer of another task
EVAL_BATCH = 100  # questions per model and evaluation batch
SHORT = 20  # maximum number of lines of a short story


class SharedData:
    """Data shared by all models: the stories on each device and the answers of each task."""

    def __init__(self, recipe: Recipe, data: Any, *, joint: bool) -> None:
        self.data, self.memory, self.joint, self.cache = data, recipe.model.memory, joint, dict[Any, Any]()
        self.names = {
            name: n for n, name in enumerate(dict.fromkeys(question.task for question in data.train.questions))
        }

    def cached(self, make: Callable[..., Any], *key: Any) -> Any:
        if (make.__name__, *key) not in self.cache:
            self.cache[make.__name__, *key] = make(*key)
        return self.cache[make.__name__, *key]

    def table(self, split: str, device: torch.device) -> StoryTable:
        return StoryTable(self.data.parts[split], self.memory, device)

    def indices(self, split: str, name: str | None) -> Array:
        """Return the indices of the questions of a task, or of all tasks."""
        return np.flatnonzero([name in (None, question.task) for question in self.data.parts[split].questions])

    def choices(self, split: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return a mask of logits that excludes the answers of other tasks, and the task index of each question."""
        train = self.data.train
        excluded = torch.full((len(self.names), len(self.data.processor.labels)), 0.0 if self.joint else EXCLUDED)
        excluded[[self.names[question.task] for question in train.questions], train.targets] = 0
        task_ids = torch.tensor([self.names[question.task] for question in self.data.parts[split].questions])
        return excluded.to(device), task_ids.to(device)

    def answer_logits(self, model: Any, split: str, picks: Tensor, **options: Any) -> Tensor:  # B answers
        excluded, task_ids = self.cached(self.choices, split, picks.device)
        inputs = self.cached(self.table, split, picks.device).model_inputs(picks, options.pop("blank_positions", None))
        y: Tensor = model(**inputs, **options).float()
        return y + excluded[task_ids[picks]]


class TaskBatches(StoryBatches):
    """Batches of a subset of the stories; an epoch has the same number of steps for all models."""

    def __init__(self, indices: Array, steps: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.indices, self.steps = indices, steps

    def order(self, rng: np.random.Generator) -> Array:
        laps = -(-self.steps * self.rows // len(self.indices))
        return np.concatenate([rng.permutation(self.indices) for _ in range(laps)])


class OneTask(BoundTask):
    """The questions of one task, or of all."""

    splits, tokens_per_batch = (), 1

    def __init__(self, recipe: Recipe, shared: SharedData, name: str | None, steps: int, seed: int) -> None:
        self.stock, self.steps = shared, steps
        kwargs: Any = {"seed": seed, "noise": recipe.task.noise, "linear": recipe.task.linear_start}
        args = shared.cached(shared.table, "train", torch.device("cpu")), recipe.train.batch, recipe.model.memory
        self.batches = TaskBatches(shared.cached(shared.indices, "train", name), steps, *args, **kwargs)
        self.batch, self.epoch_batch = self.batches.batch, self.batches.epoch

    def sample_on(self, device: torch.device) -> None:
        self.batches.device = device

    def loss(self, model: Any, batch: StoryBatch, start: int = 0) -> Loss:
        y = self.stock.answer_logits(
            model, "train", batch.tokens[:, 0], blank_positions=batch.blank_positions, linear=batch.linear
        )
        return Loss(F.cross_entropy(y, batch.targets, reduction="sum"))


def train_models(
    recipe: Recipe, shared: SharedData, names: Sequence[str | None], restarts: int
) -> tuple[StackedModels, float]:
    """Train `restarts` models per task as one batch; return them with the seconds of training."""
    steps = max(len(shared.cached(shared.indices, "train", name)) for name in names) // recipe.train.batch
    models, tasks = list[Any](), list[Any]()
    for name in names:
        for seed in range(restarts):
            torch.manual_seed(seed)
            models.append(recipe.model.build(shared.data.vocab))
            tasks.append(OneTask(recipe, shared, name, steps, seed))
    trainer = StackedTrainer(StackedModels(models), StackedTask(tasks), recipe.train, listen=silent)
    trainer.model.train()
    total = round((recipe.train.epochs or 1) * steps)
    begin = time.perf_counter()
    for _ in range(total):
        trainer.update(total, read=False)
    machine.synchronize(trainer.device)
    return trainer.model, time.perf_counter() - begin


@torch.no_grad()
def evaluate_models(
    models: StackedModels, shared: SharedData, split: str, names: Sequence[str | None]
) -> tuple[Tensor, Tensor]:
    """Return the error rate and the loss of each model: tasks restarts."""
    device = next(models.parameters()).device
    indices = [torch.from_numpy(shared.cached(shared.indices, split, name)) for name in names]
    n_max, per = max(map(len, indices)), models.n_models // len(names)
    picks = (
        torch.stack([chunk[torch.arange(n_max) % len(chunk)] for chunk in indices]).to(device).repeat_interleave(per, 0)
    )
    real = torch.stack([torch.arange(n_max) < len(chunk) for chunk in indices]).to(device).repeat_interleave(per, 0)
    gold = shared.cached(shared.table, split, device).targets[picks]
    models.eval()

    def logits(model: Any, picks: Tensor) -> Tensor:
        return shared.answer_logits(model, split, picks)

    y = torch.cat(
        [models.vmap(logits, {"picks": chunk}) for chunk in picks.split(EVAL_BATCH, 1)], 1
    )  # models N answers
    wrong = (y.argmax(-1) != gold) & real
    loss = F.cross_entropy(y.transpose(1, 2), gold, ignore_index=IGNORE, reduction="none") * real
    return tuple((x.sum(1) / real.sum(1)).cpu().view(len(names), per) for x in (wrong, loss))  # type: ignore[return-value]


def best(options: argparse.Namespace, recipe: Recipe, data: Any) -> tuple[dict[str, list[float]], float]:
    """Return per task the errors of all restarts in %, the selected one first, and the seconds of training."""
    shared = SharedData(recipe, data, joint=options.joint)
    names: list[str | None] = [None] if options.joint else [*shared.names]
    models, seconds = train_models(recipe, shared, names, options.restarts)
    chosen = (
        evaluate_models(models, shared, options.select_on, names)[1].nan_to_num(torch.inf).argmin(1).tolist()
    )  # never a restart with a non-finite loss
    if options.joint:  # the same models, evaluated per task
        task_error_rates = {
            name: evaluate_models(models, shared, options.eval_on, [name])[0][0] for name in shared.names
        }
        chosen *= len(task_error_rates)
    else:
        task_error_rates = dict(
            zip(shared.names, evaluate_models(models, shared, options.eval_on, names)[0], strict=True)
        )
    errors = {name: (100 * task_errors).tolist() for name, task_errors in task_error_rates.items()}
    return {
        name: [task_errors[n], *task_errors] for (name, task_errors), n in zip(errors.items(), chosen, strict=True)
    }, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with qa1_..._train.txt, qa1_..._test.txt, ...")
    parser.add_argument("--size", help="subfolder, such as en-10k")
    parser.add_argument("--tasks", default=",".join(map(str, range(1, 21))), help="comma-separated task numbers")
    parser.add_argument("--hops", default="3", help="comma-separated numbers of hops, such as 1,3")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--joint", action="store_true", help="one model for all tasks")
    parser.add_argument(
        "--select-on", default="train", choices=("train", "valid"), help="split of the loss that selects a restart"
    )
    parser.add_argument("--eval-on", default="test", choices=("valid", "test"), help="split to evaluate")
    parser.add_argument("--together", default="auto", choices=("auto", "yes", "no"), help="all tasks in one batch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("settings", nargs="*", help="such as train.epochs=50")
    options = parser.parse_intermixed_args()
    home = options.folder / options.size if options.size else options.folder
    available = {int(match[1]) for p in home.glob("*train*") if (match := TASK.search(p.name))}
    tasks = [int(n) for n in options.tasks.split(",")]
    if missing := [n for n in tasks if n not in available]:
        print(f"skipped, no training file in {home}: task {', '.join(map(str, missing))}")
    tasks = [n for n in tasks if n in available]
    settings = {
        "data.valid": 0.1 if "valid" in (options.select_on, options.eval_on) else 0.0,
        "data.duplicate_questions": "keep",
        "train.device": options.device,
        **({"model.d": 50, "train.epochs": 60, "task.linear_start": 30} if options.joint else {}),
        **dict(map(parse_override, options.settings)),
    }
    for hops in map(int, options.hops.split(",")):
        run_tasks(options, home, tasks, {**settings, "model.hops": hops})


def run_tasks(options: argparse.Namespace, home: Path, tasks: list[int], settings: dict[str, Any]) -> None:
    recipe = choose(str(home), {**settings, "data.tasks": tasks}).recipe
    device, errors, seconds = machine.pick_device(options.device), dict[str, list[float]](), 0.0
    for group in groups(options, recipe, tasks, on_gpu=device.type == "cuda"):
        group_recipe = resolve(("the recipe", recipe.settings()), (OVERRIDE, {"data.tasks": group}))
        group_errors, group_seconds = best(options, group_recipe, group_recipe.load_data())
        errors, seconds = errors | group_errors, seconds + group_seconds
        text = ", ".join(f"{name} {rates[0]:.1f}" for name, rates in group_errors.items())
        print(f"  {text} after {group_seconds:.0f} s", file=sys.stderr, flush=True)  # a group takes minutes on a CPU
    published = JOINT if options.joint else SEPARATE
    how = "one model for all tasks" if options.joint else "one model per task"
    print(f"{home.name}, {recipe.model.hops} hops, d = {recipe.model.d}, {recipe.train.epochs:g} epochs, {how}")
    print(f"{options.eval_on} error in % of the restart with the lowest {options.select_on} loss |")
    print(f"  mean and minimum over {options.restarts} restarts | published for 3 hops, 1,000 questions per task")
    for n in tasks:
        picked, *restarts = errors[f"task {n}"]
        mean = statistics.fmean(restarts)
        print(f"  task {n:2d} {picked:6.1f} | {mean:6.1f} {min(restarts):6.1f} | {published[n - 1]:6.1f}")
    mean = statistics.fmean(errors[f"task {n}"][0] for n in tasks)
    published_mean = statistics.fmean(published[n - 1] for n in tasks)
    note = f", with 10,000 questions {MEAN_10K}" if "10k" in home.name else ""
    failed = sum(errors[f"task {n}"][0] > 5 for n in tasks)
    print(f"  mean    {mean:6.1f}, {failed} tasks above 5 | published {published_mean:.1f}{note}")
    models, threads = options.restarts * (1 if options.joint else len(tasks)), torch.get_num_threads()
    print(f"  {models} models trained in {seconds:.1f} s on {device}, {threads} threads\n")


def groups(options: argparse.Namespace, recipe: Recipe, tasks: list[int], *, on_gpu: bool) -> list[list[int]]:
    """Return the tasks of each batch of models: all, split by story length, or one per batch."""
    if options.joint or options.together == "yes":
        return [tasks]
    if options.together == "no" or not on_gpu:
        return [[n] for n in tasks]
    questions = [question for question in recipe.load_data().train.questions if len(question.lines) > SHORT]
    long = {int(question.task.split()[1]) for question in questions}
    return [group for group in ([n for n in tasks if n not in long], [n for n in tasks if n in long]) if group]


if __name__ == "__main__":
    main()
