"""Question answering about stories: choose one of the answers of the training data. Loss in nats.

An answer that does not occur in the training data cannot be predicted and counts as wrong.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import IGNORE, Array
from harken.data.labelled.batch import evenly_spaced
from harken.data.stories.babi import BabiQuestion, normalize_words
from harken.data.stories.batch import StoryBatch, StoryBatches, StoryTable
from harken.data.stories.source import Stories, StoryData, answer_token, memory_overflow, token_overflow
from harken.events import Overflow
from harken.models import ModelSettings
from harken.models.heads import ModelWithHead
from harken.models.memnet import MemNet, MemNetSettings

from . import Baseline, BoundTask, Loss, OutputScoredTask, Score, Task, TaskSettings, evaluating
from .classify import ClassifySettings, ClassifyTask
from .classify import predict as predict_texts
from .label_task import example_losses, label_loss, label_predictions
from .metrics import weighted

QUICK_QUESTIONS = 1000  # of a quick evaluation
EVAL_BATCH = 250  # questions


class AnswerSettings(TaskSettings[StoryData, ModelSettings]):
    """Settings of question answering about stories."""

    kind: Literal["answer"] = "answer"
    noise: float = Field(
        0.0, ge=0, le=1, description="memnet: maximum fraction of empty lines inserted into a story during training"
    )
    linear_start: int = Field(0, ge=0, description="memnet: number of first epochs without the softmax of the hops")

    def bind(self, data: StoryData, model: ModelSettings, *, batch: int, seed: int) -> BoundTask:
        if model.by_line:
            return AnswerTask(self, data, model, batch=batch, seed=seed)  # type: ignore[arg-type]
        return FlatAnswerTask(ClassifySettings(), data, model, batch=batch, seed=seed)


class StoryTask(Task[Any, StoryData, Any, Any]):
    """Questions about stories, with their baselines."""

    explains_mistakes = True

    def label_counts(self) -> dict[str, dict[str, int]]:
        parts = self.data.parts if self.data.has_train else self.data.splits
        return {name: dict(Counter(q.answer for q in part.questions)) for name, part in parts.items()}

    def input_text(self, split: str, n: int) -> str:
        question: BabiQuestion = self.data.parts[split].questions[n]
        return "\n".join([*question.lines, question.question])

    def input_sizes(self, split: str) -> tuple[str, Array] | None:
        """The number of lines of each story."""
        return "lines", np.array([len(question.lines) for question in self.data.parts[split].questions])

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The most frequent answer, that to the same question, and the last answer named in the story."""
        if not self.data.has_train:
            return {}
        questions: list[BabiQuestion] = self.data.splits[split].questions
        heuristics = _heuristics(self.data.train.questions).items()
        correct = {name: [guess(q) == q.answer for q in questions] for name, guess in heuristics}
        return {
            name: Baseline({"accuracy": float(np.mean(rows))}, {"accuracy": weighted.mean(rows)})
            for name, rows in correct.items()
        }


class AnswerTask(StoryTask, OutputScoredTask[AnswerSettings, StoryData, MemNet, StoryBatch]):
    """Questions about one set of stories, for a model that reads stories line by line."""

    batches: StoryBatches

    def __init__(self, settings: AnswerSettings, data: StoryData, model: MemNetSettings, batch: int, seed: int) -> None:
        self.data, self.memory, self.tables = data, model.memory, dict[tuple[str, torch.device], StoryTable]()
        table, linear = self._table("train", torch.device("cpu")), settings.linear_start
        batches = StoryBatches(table, batch, model.memory, seed=seed, noise=settings.noise, linear=linear)
        self.set_up(settings, data, batches, max(1, batches.batch(0, 0).n_tokens))

    def sample_on(self, device: torch.device) -> None:
        self.batches.device = device

    def _table(self, split: str, device: torch.device) -> StoryTable:
        if (split, device) not in self.tables:
            self.tables[split, device] = StoryTable(self.data.parts[split], self.memory, device)
        return self.tables[split, device]

    def overflows(self) -> list[Overflow]:
        lines = [len(rows) for part in self.data.parts.values() for rows in part.story]
        return [memory_overflow(lines, self.memory)]

    def epoch_batch(self, epoch: int) -> StoryBatch:
        return self.batches.epoch(epoch)

    def loss(self, model: MemNet, batch: StoryBatch, start: int = 0) -> Loss:
        inputs: Any = self._table("train", batch.tokens.device).model_inputs(batch.tokens[:, 0], batch.blank_positions)
        return Loss(label_loss(precise(model(**inputs, linear=batch.linear)), batch.targets, "label"))

    def split_outputs(self, model: MemNet, split: str, *, quick: bool = False) -> Tensor:  # N answers
        table = self._table(split, next(model.parameters()).device)
        return predict(model, table, _question_indices(self.data.parts[split], quick=quick))

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        return _score(y, self.data.parts[split], self.data.processor.labels, quick=quick)


class FlatAnswerTask(StoryTask, ClassifyTask):
    """The same task for a model that reads a story and its question as one text."""

    def overflows(self) -> list[Overflow]:
        return [token_overflow(part, self.data.settings.max_length) for part in self.data.parts.values()]

    def evaluate(self, model: ModelWithHead, split: str, *, quick: bool = False) -> Score:
        part: Stories = self.data.splits[split]
        texts = part.texts.select(_question_indices(part, quick=quick)) if quick else part.texts
        return _score(predict_texts(model, texts), part, self.labels, quick=quick)


def _question_indices(part: Stories, *, quick: bool) -> Array:
    """The questions to evaluate: all, or an evenly spaced subset."""
    return evenly_spaced(len(part), QUICK_QUESTIONS if quick else len(part))


def predict(model: MemNet, table: StoryTable, indices: Array) -> Tensor:  # N answers
    """Outputs of a model that reads line by line for these questions."""
    batches = torch.from_numpy(indices).to(table.counts.device).split(EVAL_BATCH)
    with evaluating(model):
        return torch.cat([model(**table.model_inputs(batch)).float() for batch in batches]).cpu()


def _score(y: Tensor, part: Stories, answers: list[str], *, quick: bool) -> Score:  # N answers
    """Loss and accuracy; unless `quick`, also the accuracy of each bAbI task and the predictions."""
    indices = _question_indices(part, quick=quick)
    targets = torch.from_numpy(part.targets[indices])
    correct, known = (y.argmax(1) == targets).double(), targets != IGNORE
    loss = F.cross_entropy(y[known], targets[known]) if known.any() else torch.tensor(torch.nan)
    metrics = {"loss": float(loss), "accuracy": float(correct.mean())}
    protocol: dict[str, Any] = {"questions": len(indices), "primary_metric": "accuracy"}
    if n_unknown := int((~known).sum()):
        protocol["unknown_answers"] = n_unknown
    tasks = np.array([part.questions[n].task for n in indices.tolist()])
    names = sorted(set(tasks.tolist()), key=lambda name: (len(name), name)) if not quick else []
    by_task = {name: correct[torch.from_numpy(tasks == name)] for name in names}
    per_task = {name: {"accuracy": float(x.mean()), "questions": len(x)} for name, x in by_task.items()}
    if quick:
        return Score(metrics, protocol, primary_metric="accuracy")
    losses = example_losses(y, targets, "label")
    outcomes: weighted.Outcomes = {"loss": weighted.ratio(losses, known), "accuracy": weighted.mean(correct)}
    predictions = label_predictions(answers, y, targets.numpy())
    shown = per_task if len(per_task) > 1 else {}
    return Score(metrics, protocol, shown, "accuracy", predictions, outcomes=outcomes)


def _heuristics(train: list[BabiQuestion]) -> dict[str, Callable[[BabiQuestion], str]]:
    counts, by_question = Counter(q.answer for q in train), dict[str, Counter[str]]()
    for q in train:
        by_question.setdefault(normalize_words(q.question), Counter())[q.answer] += 1
    most_frequent = counts.most_common(1)[0][0]
    answers = {answer_token(answer): answer for answer in counts}

    def to_question(q: BabiQuestion) -> str:
        return by_question.get(normalize_words(q.question), counts).most_common(1)[0][0]

    def named_last(q: BabiQuestion) -> str:
        words = (word for line in reversed(q.lines) for word in reversed(normalize_words(line).split()))
        return next((answers[word] for word in words if word in answers), most_frequent)

    return {
        "most frequent answer": lambda q: most_frequent,
        "most frequent answer to this question": to_question,
        "answer named last": named_last,
    }
