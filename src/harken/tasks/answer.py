"""Answer a question about a story with one of the answers that were learned. Accuracy; the loss in nats.

An answer that was not learned cannot be given, and counts as wrong.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import IGNORE, Tokens
from harken.data.labelled.batch import evenly
from harken.data.stories.babi import Told, words_of
from harken.data.stories.batch import Shelf, StoryBatch, StoryBatches
from harken.data.stories.source import as_word
from harken.settings import Part

from . import Apart, Loss, Score, classify

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData
    from harken.data.stories.source import Stories, StoryData

QUICK = 1000  # questions that a look during the training answers
AT_ONCE = 250  # questions answered at a time


class Task(Part):
    """The settings of answers about stories."""

    kind: Literal["answer"] = "answer"
    noise: float = Field(
        0.0, ge=0, le=1, description="memnet: share of empty lines put between a story's, at most, while learning"
    )
    linear_start: int = Field(0, ge=0, description="memnet: epochs, the first, in which hops do without their softmax")

    def bind(self, data: "StoryData", model: Any, *, batch: int, seed: int) -> Any:
        if getattr(model, "by_line", False):
            return Answer(self, data, model, batch=batch, seed=seed)
        return FlatAnswer(data, model, batch=batch, seed=seed)


class Answer(Apart):
    """Answers about one set of stories, by a model that reads them line by line."""

    def __init__(self, task: Task, data: "StoryData", shape: Any, *, batch: int, seed: int) -> None:
        self.data, self.shape, self.shelves = data, shape, dict[tuple[str, torch.device], Shelf]()
        how: Any = {"seed": seed, "noise": task.noise, "linear": task.linear_start}
        self.batches = StoryBatches(self.shelf("train", torch.device("cpu")), batch, shape.memory, **how)
        self.steps, self.splits, self.epoch = self.batches.steps, tuple(data.splits), self.batches.epoch
        self.tokens = max(1, self.batch(0, 0).size)

    def made_on(self, device: torch.device) -> None:
        """Batches are made of what lies where it is learned from."""
        self.batches.device = device

    def shelf(self, split: str, device: torch.device) -> Shelf:
        """The stories of a split on a device."""
        if (split, device) not in self.shelves:
            self.shelves[split, device] = Shelf(self.data.parts[split], self.shape.memory, device)
        return self.shelves[split, device]

    def batch(self, epoch: int, step: int) -> StoryBatch:
        return self.batches.batch(epoch, step)

    def loss(self, model: Any, batch: StoryBatch, start: int = 0) -> Loss:
        told = self.shelf("train", batch.tokens.device).told(batch.tokens[:, 0], batch.blanks)
        y = precise(model(**told, linear=batch.linear))
        return Loss(F.cross_entropy(y, batch.targets, ignore_index=IGNORE, reduction="sum"))

    def outputs_of(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N answers
        shelf = self.shelf(split, next(model.parameters()).device)
        return scores(model, shelf, some(self.data.parts[split], quick=quick))

    def judged_of(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        part = self.data.parts[split]
        return judged(y, part, some(part, quick=quick), parts=not quick)

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        return free(self.data, split)


class FlatAnswer(classify.Classify):
    """The same by a model that reads a story as one text, with its question at the end."""

    def __init__(self, data: "StoryData", shape: Any, *, batch: int, seed: int) -> None:
        super().__init__(classify.Task(), data, shape, batch=batch, seed=seed)

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        part, picks = self.data.splits[split], some(self.data.splits[split], quick=quick)
        texts = part.texts.some(picks) if quick else part.texts
        return judged(classify.answers(model, texts), part, picks, parts=not quick)

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        return free(self.data, split)


def some(part: "Stories", *, quick: bool) -> Tokens:
    """Which questions are answered: all, or a few from everywhere."""
    return evenly(len(part), QUICK if quick else len(part))


@torch.no_grad()
def scores(model: Any, shelf: Shelf, picks: Tokens) -> Tensor:  # N answers
    """What a model that reads line by line says of these questions."""
    was = model.training
    model.eval()
    every = torch.from_numpy(picks).to(shelf.counts.device).split(AT_ONCE)
    y = torch.cat([model(**shelf.told(few)).float() for few in every]).cpu()
    model.train(was)
    return y


def judged(y: Tensor, part: "Stories", picks: Tokens, *, parts: bool) -> Score:  # N answers
    """What these scores are worth; of several tasks, also those of each."""
    targets = torch.from_numpy(part.targets[picks])
    right, known = (y.argmax(1) == targets).double(), targets != IGNORE
    loss = F.cross_entropy(y[known], targets[known]) if known.any() else torch.tensor(torch.nan)
    metrics = {"loss": float(loss), "accuracy": float(right.mean())}
    protocol: dict[str, Any] = {"questions": len(picks), "judged_by": "accuracy"}
    if unknown := int((~known).sum()):
        protocol["answers not learned"] = unknown
    tasks = np.array([part.asked[n].task for n in picks.tolist()])
    names = sorted(set(tasks.tolist()), key=lambda name: (len(name), name)) if parts else []
    each = {name: right[torch.from_numpy(tasks == name)] for name in names}
    apart = {name: {"accuracy": float(some.mean()), "questions": len(some)} for name, some in each.items()}
    return Score(metrics, protocol, apart if len(apart) > 1 else {}, by="accuracy")


# --- what costs nothing -----------------------------------------------------------------------------------------------


def free(data: "ExampleData", split: str) -> dict[str, dict[str, float]]:
    """The most frequent answer, that to a question of these words, and the answer that was named last in the story."""
    if not data.learned:
        return {}
    asked: list[Told] = data.splits[split].asked
    guesses = _guesses(data.train.asked)
    return {name: {"accuracy": _mean(guess(q) == q.answer for q in asked)} for name, guess in guesses.items()}


def _mean(right: Any) -> float:
    return float(np.mean(list(right)))


def _guesses(learned: list[Told]) -> dict[str, Callable[[Told], str]]:
    often, to = Counter(q.answer for q in learned), dict[str, Counter[str]]()
    for q in learned:
        to.setdefault(words_of(q.question), Counter())[q.answer] += 1
    best = often.most_common(1)[0][0]
    answers = {as_word(answer): answer for answer in often}

    def last(q: Told) -> str:
        words = (word for line in reversed(q.lines) for word in reversed(words_of(line).split()))
        return next((answers[word] for word in words if word in answers), best)

    return {
        "most frequent answer": lambda q: best,
        "most frequent to this question": lambda q: to.get(words_of(q.question), often).most_common(1)[0][0],
        "answer named last": last,
    }
