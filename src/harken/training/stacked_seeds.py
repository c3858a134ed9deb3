"""Many small models at once: seeds and restarts along a leading model axis, M, each as if it were trained alone.

Every weight of `Together` has the model axis first, every batch of `Several` too, and one call under vmap gives the
losses of all. Their sum is learned from: no member's weight is in another's loss, so each has its own gradient. Each
has its own first weights, its own dropout and its own order of the data.
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
from harken.tasks import Learning, Loss, Score, Stateless

from .loop import Trainer, rank
from .validation_state import Course

Ask = Callable[..., Any]  # ask(model, **tensors)
SHAPES = (
    "train.seeds: batches of different shapes cannot be learned together; "
    "train the seeds one by one: harken compare DATA --seeds N"
)


class Together(nn.Module):
    """Models of one shape as one: each weight has a leading axis, that of the models."""

    axis, compiles = 1, False  # dimensions of a weight before its own; it is asked by `each`, not called
    sound: Tensor  # M: whether the last update was one
    odds: Tensor  # M: how many were none, as a number was not finite

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members, self.one = len(models), copy.deepcopy(models[0])
        self.plain = (copy.deepcopy(models[0]),)  # in a tuple, so that its weights are not among those learned
        self.register_buffer("sound", torch.ones(self.members, dtype=torch.bool), persistent=False)
        self.register_buffer("odds", torch.zeros(self.members, dtype=torch.long), persistent=False)
        stacked: dict[int, nn.Parameter] = {}
        for name, p in self.one.named_parameters():
            every = torch.stack([model.get_parameter(name).detach() for model in models])
            stacked[id(p)] = nn.Parameter(every, requires_grad=p.requires_grad)
        for module in self.one.modules():
            for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                setattr(module, name, stacked[id(p)])

    def alone(self, n: int) -> nn.Module:
        """One member as a model of its own, until the next is asked for."""
        (model,) = self.plain
        model.to(next(self.one.parameters()).device).train(self.training)
        mine = dict(self.one.named_parameters())
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(mine[name][n])
        torch.clear_autocast_cache()  # in a lower precision the member before would answer once more
        return model

    def each(self, ask: Ask, given: Mapping[str, Tensor], start: int = 0, stop: int | None = None) -> Any:
        """What `ask(model, **given)` says for some members, each with its own weights and its own slice of the rest."""
        question = _Question(self.one, ask)
        weights = {f"one.{name}": p[start:stop] for name, p in self.one.named_parameters()}

        def one(mine: dict[str, Tensor], told: dict[str, Tensor]) -> Any:
            return torch.func.functional_call(question, mine, (told,))

        return torch.func.vmap(one, randomness="different")(weights, dict(given))


class _Question(nn.Module):
    """A question to a model as a module: the weights are a member's wherever the question comes to use them."""

    def __init__(self, one: nn.Module, ask: Ask) -> None:
        super().__init__()
        self.one, self.ask = one, ask

    def forward(self, told: dict[str, Tensor]) -> Any:
        return self.ask(self.one, **told)


@dataclass(frozen=True, kw_only=True)
class MemberBatch(Batch):
    """A batch for each member. Its rows are the members: a micro-batch is some of them."""

    like: Batch  # one of them, for all that is no tensor
    given: dict[str, Tensor]  # the tensors of each: M ...
    counts: Tensor  # M: how much each is asked

    @property
    def count(self) -> int:
        return 1  # the loss of each is a mean already

    @property
    def steady(self) -> bool:
        return self.like.steady

    @property
    def size(self) -> int:
        return self.like.size * len(self.tokens)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.given, "counts": self.counts}

    def _each(self, change: Any) -> "MemberBatch":
        return members({name: change(x) for name, x in self.given.items()}, self.like, change(self.counts))


def members(given: dict[str, Tensor], like: Batch, counts: Tensor) -> MemberBatch:
    return MemberBatch(given["tokens"], given["targets"], like=like, given=given, counts=counts)


def stacked(some: Sequence[Batch]) -> MemberBatch:
    """The batches of all members as one."""
    parts = [batch.tensors() for batch in some]
    shapes = [{name: x.shape for name, x in part.items()} for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise BadSetting(SHAPES)
    given = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return members(given, some[0], torch.tensor([batch.count for batch in some], device=given["tokens"].device))


class Several(Stateless):
    """The tasks of all members as one."""

    def __init__(self, tasks: Sequence[Learning]) -> None:
        self.tasks, first = tasks, tasks[0]
        self.steps, self.splits, self.tokens = first.steps, first.splits, first.tokens * len(tasks)
        self.data = getattr(first, "data", None)
        self._epoch: tuple[int, MemberBatch | None] = (-1, None)
        if not getattr(first, "one_shape", True):
            raise BadSetting(SHAPES)
        if any(task.steps != self.steps for task in tasks):
            raise BadSetting("train.seeds: the seeds have epochs of different lengths; train them one by one")

    def made_on(self, device: torch.device) -> None:
        for task in self.tasks:
            if hasattr(task, "made_on"):
                task.made_on(device)

    def batch(self, epoch: int, step: int) -> MemberBatch:
        first: Any = self.tasks[0]
        if not hasattr(first, "epoch"):
            return stacked([task.batch(epoch, step) for task in self.tasks])
        if self._epoch[0] != epoch:  # where an epoch is drawn at once, its steps are parts of it
            self._epoch = epoch, stacked([task.epoch(epoch) for task in self.tasks])  # type: ignore[attr-defined]
        whole: Any = self._epoch[1]
        rows = len(whole.tokens[0]) // self.steps
        some = {name: x[:, step * rows : (step + 1) * rows] for name, x in whole.given.items()}
        return members(some, whole.like, whole.counts // self.steps)

    def loss(self, model: Together, batch: Any, start: int = 0) -> Loss:
        """The sum of the members' mean losses. One that is not finite counts nothing, so that the others go on: its
        gradient is none, and `clip` leaves it out.
        """

        def ask(one: nn.Module, **given: Tensor) -> Tensor:
            mine: Any = given
            return self.tasks[0].loss(one, replace(batch.like, **mine)).total

        mean: Tensor = model.each(ask, batch.given, start, start + len(batch.tokens)) / batch.counts
        finite = mean.isfinite()
        total = (mean * torch.where(finite, 1.0, torch.nan)).sum()
        return Loss(total, told=torch.where(finite, mean, 0.0).sum().detach())

    # --- judge --------------------------------------------------------------------------------------------------------

    def evaluate(self, model: Together, split: str, *, quick: bool = False) -> Score:
        """The mean over the members that are sound; the metrics of each are the parts."""
        scores = self.scores(model, split, quick=quick)
        some = sound(scores)
        mean = {name: fmean(score.metrics[name] for score in some) for name in scores[0].metrics}
        parts = {f"seed {n}": score.metrics for n, score in enumerate(scores)}
        return Score(mean, {**scores[0].protocol, "seeds": len(scores)}, parts, by=scores[0].by)

    def scores(self, model: Together, split: str, *, quick: bool = False) -> list[Score]:
        """How good each member is; all at once where the task's outputs can be judged apart from the model."""
        first: Any = self.tasks[0]
        if not hasattr(first, "outputs_of"):
            return [task.evaluate(model.alone(n), split, quick=quick) for n, task in enumerate(self.tasks)]
        was = model.training
        model.eval()
        with torch.no_grad():
            found = model.each(lambda one: first.outputs_of(one, split, quick=quick), {})
        model.train(was)
        return [first.judged_of(y, split, quick=quick) for y in found.cpu()]

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        return self.tasks[0].baselines(split)


def sound(scores: Sequence[Score]) -> Sequence[Score]:
    """Those whose loss is a number; all, where there is none."""
    return [score for score in scores if math.isfinite(score.metrics["loss"])] or scores


class Courses(Course):
    """The course of each member. All are trained to the end: one whose patience ended keeps the weights it had then."""

    def __init__(self, each: Sequence[Course]) -> None:
        super().__init__()
        self.each = each

    def over(self, train: Any) -> bool:
        return all(course.over(train) for course in self.each)

    @property
    def kept(self) -> str:
        return "the best weights of each seed"

    def facts(self) -> dict[str, Any]:
        return {"each": [course.facts() for course in self.each], "skipped": self.skipped}


class ManyTrainer(Trainer):
    """The same loop; which weights are the best is found for each member."""

    model: Any
    task: Any
    course: Courses

    def new_course(self, facts: Mapping[str, Any] | None = None) -> Courses:
        if self.train.schedule == "plateau":
            raise BadSetting("train.seeds: plateau has one rate for all members; take another train.schedule")
        if self.train.early_stopping_patience is not None and not self.train.keep_best:
            why = "a seed that stops early keeps its best weights"
            raise BadSetting(f"train.seeds: {why}; leave train.keep_best=false out, or train.early_stopping_patience")
        each = facts["each"] if facts else [{}] * len(self.task.tasks)
        found = Courses([Course.of(its) if its else Course() for its in each])
        found.skipped = facts["skipped"] if facts else 0
        self.model.odds.copy_(torch.tensor([course.skipped for course in found.each]))
        return found

    def _read(self) -> None:
        """The mean loss of the members that were updated; those that were not are told once."""
        super()._read()
        self.last["loss"] /= max(1, int(self.model.sound.sum()))
        before = sum(course.skipped > 0 for course in self.course.each)
        for course, odd in zip(self.course.each, self.model.odds.tolist(), strict=True):
            course.skipped = odd
        broken = [str(self.train.seed + n) for n, course in enumerate(self.course.each) if course.skipped]
        if len(broken) > before:
            what = f"the loss or the gradient of {len(broken)} of {self.model.members} seeds was not finite"
            self.listen("notice", text=f"step {self.step}: {what}, so they were not updated: {', '.join(broken)}")

    def _judge(self) -> dict[str, Any]:
        """The mean, and beside it what was seen of each member."""
        return super()._judge() | {"seeds": self.seen}

    def note(self, seen: Score, kept: dict[str, Tensor]) -> None:
        """Of each member that is better than ever, keep these weights."""
        courses = self.course.each
        names = {"loss": "valid", seen.by: "valid" if seen.by == "loss" else seen.by}
        self.seen = [{names[name]: metrics[name] for name in names} for metrics in seen.parts.values()]
        better = [
            not course.over(self.train) and course.note(rank(metrics, seen.by), self.step, self.train)
            for course, metrics in zip(courses, seen.parts.values(), strict=True)
        ]
        if not self.train.keep_best:
            return
        chosen, stacked = torch.tensor(better), {name for name, _ in self.model.named_parameters()}
        for name, new in kept.items():
            old = self.best_weights.get(name, new)
            rows = chosen.to(new.device).view(-1, *[1] * (new.dim() - 1)) if name in stacked else True
            self.best_weights[name] = torch.where(torch.as_tensor(rows, device=new.device), new, old)
