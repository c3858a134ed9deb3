"""Several small models trained at once: seeds along a leading model axis M, each as if it were trained alone.

Every weight of `StackedModels` and every batch of `StackedTask` has a leading model axis, and one vmapped call computes
all losses. The sum of the losses is differentiated: no model's weight is in another model's loss, so each has its own
gradient. Each model has its own initial weights, dropout masks and data order.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from harken.data.batch import Batch
from harken.errors import BadSetting
from harken.events import Overflow
from harken.tasks import BoundTask, Loss, OutputScoredTask, Score, Task, evaluating

from .loop import Trainer, selection_score
from .optimizers import StackedModule
from .settings import Train
from .validation_state import ValidationState

ModelFunction = Callable[..., Tensor]  # function(model, **tensors)
SHAPE_ERROR = (
    "train.seeds: batches of different shapes cannot be stacked; "
    "train the seeds one by one: harken compare DATA --seeds N"
)


class StackedModels(StackedModule):
    """Models of one shape as one module: each weight has a leading model axis. `vmap` calls them."""

    compiles = False

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.n_models, self.stacked = len(models), copy.deepcopy(models[0])
        self.template = (copy.deepcopy(models[0]),)  # in a tuple: its weights are no parameters of this module
        self.register_buffer("finite", torch.ones(self.n_models, dtype=torch.bool), persistent=False)
        self.register_buffer("n_skipped", torch.zeros(self.n_models, dtype=torch.long), persistent=False)
        parameters: dict[int, nn.Parameter] = {}
        for name, p in self.stacked.named_parameters():
            weights = torch.stack([model.get_parameter(name).detach() for model in models])
            parameters[id(p)] = nn.Parameter(weights, requires_grad=p.requires_grad)
        for module in self.stacked.modules():
            for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                setattr(module, name, parameters[id(p)])

    def member(self, n: int) -> nn.Module:
        """Model n. All calls return the same module, so it is valid until the next call."""
        (model,) = self.template
        model.to(next(self.stacked.parameters()).device).train(self.training)
        weights = dict(self.stacked.named_parameters())
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(weights[name][n])
        torch.clear_autocast_cache()  # the cache holds the low-precision weights of the previous member
        return model

    def vmap(self, f: ModelFunction, tensors: dict[str, Tensor], start: int = 0, stop: int | None = None) -> Tensor:
        """f(model, **tensors) for the models start to stop, each with its slice of the tensors."""
        wrapper = _FunctionModule(self.stacked, f)
        weights = {f"stacked.{name}": p[start:stop] for name, p in self.stacked.named_parameters()}

        def call(model_weights: dict[str, Tensor], inputs: dict[str, Tensor]) -> Any:
            return torch.func.functional_call(wrapper, model_weights, (inputs,))

        return torch.func.vmap(call, randomness="different")(weights, tensors)


class _FunctionModule(nn.Module):
    """A function of a model as a module: functional_call replaces the weights inside the function."""

    def __init__(self, stacked: nn.Module, function: ModelFunction) -> None:
        super().__init__()
        self.stacked, self.function = stacked, function

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.function(self.stacked, **inputs)


@dataclass(frozen=True, kw_only=True)
class StackedBatch(Batch):
    """One batch per model. Its rows are the models: a micro-batch has some of the models."""

    template: Batch  # one of the batches, for everything but the tensors
    stacked: dict[str, Tensor]  # M ...
    counts: Tensor  # M: number of targets of each batch

    @property
    def n_targets(self) -> int:
        return 1  # the loss of each model is a mean already

    @property
    def static_shape(self) -> bool:
        return self.template.static_shape

    @property
    def n_tokens(self) -> int:
        return self.template.n_tokens * len(self.tokens)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.stacked, "counts": self.counts}

    def _map(self, change: Callable[[Tensor], Tensor]) -> "StackedBatch":
        return build_batch({name: change(x) for name, x in self.stacked.items()}, self.template, change(self.counts))


def build_batch(tensors: dict[str, Tensor], template: Batch, counts: Tensor) -> StackedBatch:
    return StackedBatch(tensors["tokens"], tensors["targets"], template=template, stacked=tensors, counts=counts)


def stack_batches(batches: Sequence[Batch]) -> StackedBatch:
    """The batches of all models as one."""
    parts = [batch.tensors() for batch in batches]
    shapes = [{name: x.shape for name, x in part.items()} for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise BadSetting(SHAPE_ERROR)
    tensors = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    counts = torch.tensor([batch.n_targets for batch in batches], device=tensors["tokens"].device)
    return build_batch(tensors, batches[0], counts)


class StackedTask(Task[Any, Any, StackedModels, StackedBatch]):
    """The tasks of all models as one."""

    def __init__(self, tasks: Sequence[BoundTask]) -> None:
        self.tasks, first = tasks, tasks[0]
        self.steps, self.splits, self.tokens_per_batch = first.steps, first.splits, first.tokens_per_batch * len(tasks)
        self._epoch: tuple[int, StackedBatch | None] = (-1, None)
        if not first.fixed_shapes:
            raise BadSetting(SHAPE_ERROR)
        if any(task.steps != self.steps for task in tasks):
            raise BadSetting("train.seeds: the seeds have epochs of different lengths; train them one by one")

    def overflows(self) -> list[Overflow]:
        return self.tasks[0].overflows()

    def sample_on(self, device: torch.device) -> None:
        for task in self.tasks:
            task.sample_on(device)

    def batch(self, epoch: int, step: int) -> StackedBatch:
        if self._epoch[0] != epoch:
            batches = [x for task in self.tasks if (x := task.epoch_batch(epoch)) is not None]
            self._epoch = epoch, stack_batches(batches) if batches else None
        batch = self._epoch[1]
        if batch is None:
            return stack_batches([task.batch(epoch, step) for task in self.tasks])
        rows = len(batch.tokens[0]) // self.steps  # the tasks draw an epoch at once: a step is a slice
        tensors = {name: x[:, step * rows : (step + 1) * rows] for name, x in batch.stacked.items()}
        return build_batch(tensors, batch.template, batch.counts // self.steps)

    def loss(self, model: StackedModels, batch: StackedBatch, start: int = 0) -> Loss:
        """Sum of the models' mean losses, without non-finite ones: `clip_gradients` zeroes their gradients."""

        def model_loss(member: nn.Module, **tensors: Tensor) -> Tensor:
            fields: Any = tensors
            return self.tasks[0].loss(member, replace(batch.template, **fields)).total

        mean = model.vmap(model_loss, batch.stacked, start, start + len(batch.tokens)) / batch.counts
        finite = mean.isfinite()
        total = (mean * torch.where(finite, 1.0, torch.nan)).sum()
        return Loss(total, reported=torch.where(finite, mean, 0.0).sum().detach())

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, model: StackedModels, split: str, *, quick: bool = False) -> Score:
        """Mean over the models with a finite loss; the metrics of each model are the parts."""
        scores = self.scores(model, split, quick=quick)
        finite = finite_scores(scores)
        mean = {name: fmean(score.metrics[name] for score in finite) for name in scores[0].metrics}
        parts = {f"seed {n}": score.metrics for n, score in enumerate(scores)}
        return Score(mean, {**scores[0].protocol, "seeds": len(scores)}, parts, primary_metric=scores[0].primary_metric)

    def scores(self, model: StackedModels, split: str, *, quick: bool = False) -> list[Score]:
        """Score of each model; in one vmapped call where the task can score outputs without the model."""
        first = self.tasks[0]
        if not isinstance(first, OutputScoredTask):
            return [task.evaluate(model.member(n), split, quick=quick) for n, task in enumerate(self.tasks)]
        with evaluating(model):
            outputs = model.vmap(lambda member: first.split_outputs(member, split, quick=quick), {})
        return [first.score_outputs(y, split, quick=quick) for y in outputs.cpu()]

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        return self.tasks[0].baselines(split)


def finite_scores(scores: Sequence[Score]) -> Sequence[Score]:
    """Scores with a finite loss; all scores if there is none."""
    return [score for score in scores if math.isfinite(score.metrics["loss"])] or scores


class StackedValidationState(ValidationState):
    """Validation state of each model. All models train to the end; one that stops early keeps its best weights."""

    def __init__(self, members: Sequence[ValidationState]) -> None:
        super().__init__()
        self.members = members

    def stops_early(self, train: Train) -> bool:
        return all(member.stops_early(train) for member in self.members)

    @property
    def best_weights_name(self) -> str:
        return "the best weights of each seed"

    def to_dict(self) -> dict[str, object]:
        return {"members": [member.to_dict() for member in self.members], "skipped": self.skipped}


class StackedTrainer(Trainer):
    """Trainer of stacked models; the best weights are selected per model."""

    model: Any
    task: Any
    validation: StackedValidationState

    def new_validation_state(self, saved: Mapping[str, object] | None = None) -> StackedValidationState:
        if self.train.schedule == "plateau":
            raise BadSetting("train.seeds: plateau has one learning rate for all seeds; use another train.schedule")
        if self.train.early_stopping_patience is not None and not self.train.keep_best:
            why = "a seed that stops early keeps its best weights"
            raise BadSetting(f"train.seeds: {why}; remove train.keep_best=false or train.early_stopping_patience")
        state: dict[str, Any] = {"members": [{}] * len(self.task.tasks), "skipped": 0, **(saved or {})}
        members = [ValidationState.from_dict(member) for member in state["members"]]
        validation = StackedValidationState(members)
        validation.skipped = state["skipped"]
        self.model.n_skipped.copy_(torch.tensor([member.skipped for member in members]))
        return validation

    def _read(self) -> None:
        """Mean loss of the updated models; notify once about each model with a non-finite loss or gradient."""
        super()._read()
        self.last_read["loss"] /= max(1, int(self.model.finite.sum()))
        members = self.validation.members
        before = sum(member.skipped > 0 for member in members)
        for member, n_skipped in zip(members, self.model.n_skipped.tolist(), strict=True):
            member.skipped = n_skipped
        seeds = [str(self.train.seed + n) for n, member in enumerate(members) if member.skipped]
        if len(seeds) > before:
            problem = f"the loss or the gradient of {len(seeds)} of {self.model.n_models} seeds is not finite"
            self.listen("notice", text=f"step {self.step}: {problem}; their updates are skipped: {', '.join(seeds)}")

    def _validate(self) -> dict[str, object]:
        """The mean metrics, and the metrics of each model."""
        return super()._validate() | {"seeds": self.seed_metrics}

    def record_validation(self, score: Score, weights: dict[str, Tensor]) -> None:
        """Keep the weights of each model with its best score so far."""
        names = {"loss": "valid"}
        names.setdefault(score.primary_metric, score.primary_metric)
        self.seed_metrics = [{names[name]: metrics[name] for name in names} for metrics in score.parts.values()]
        improved = [
            not member.stops_early(self.train)
            and member.record(selection_score(metrics, score.primary_metric), self.step, self.train)
            for member, metrics in zip(self.validation.members, score.parts.values(), strict=True)
        ]
        if not self.train.keep_best:
            return
        chosen, stacked_names = torch.tensor(improved), {name for name, _ in self.model.named_parameters()}
        for name, new in weights.items():
            old = self.best_weights.get(name, new)
            rows = chosen.to(new.device).view(-1, *[1] * (new.dim() - 1)) if name in stacked_names else True
            self.best_weights[name] = torch.where(torch.as_tensor(rows, device=new.device), new, old)
