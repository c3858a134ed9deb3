"""Find the answer in a text: the word it begins with and the word it ends with. EM and F1 as SQuAD counts them.

p(start) and p(end) are softmaxes over the words of a window and a place that stands for no answer; the loss is the mean
of -ln p of both. The answer is the span whose p(start) p(end) is largest in any window.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import IGNORE
from harken.data.labelled.batch import LabelBatch
from harken.data.labelled.spans import END, START
from harken.settings import Part

from . import Loss, Score
from .head_task import HeadTask, word_scores
from .metrics import generation

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData
    from harken.data.labelled.spans import Asked

QUICK = 300  # questions that a look during the training answers
SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Task(Part):
    """The settings of answers that stand in a text."""

    kind: Literal["span"] = "span"
    max_answer_length: int = Field(30, ge=1, description="most words of an answer")

    def bind(self, data: "ExampleData", model: Any, *, batch: int, seed: int) -> "Span":
        return Span(self, data, model, batch=batch, seed=seed)


class SpanBatch(LabelBatch):
    """A target says of a word whether the answer starts or ends there, or both; each of them is asked once a text."""

    @property
    def count(self) -> int:
        return int(_says(self.targets, START).sum() + _says(self.targets, END).sum())


def _says(targets: Tensor, mark: int) -> Tensor:
    return (targets >= 0) & (targets & mark > 0)


class Span(HeadTask):
    """Answers to one set of questions."""

    def __init__(self, task: Task, data: "ExampleData", shape: Any, *, batch: int, seed: int) -> None:
        super().__init__(data, shape, batch=batch, seed=seed)
        self.max_answer_length = task.max_answer_length

    def batch(self, epoch: int, step: int) -> SpanBatch:
        return SpanBatch(**vars(self.batches.batch(epoch, step)))

    def loss(self, model: Any, batch: LabelBatch, start: int = 0) -> Loss:
        y = model.answers(model(batch.tokens, **batch.told())).float()  # B L 2
        return Loss(nll(y, batch))

    # --- judge --------------------------------------------------------------------------------------------------------

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        """EM and F1 of the answers, and the loss; `quick` answers fewer questions."""
        part: Asked = self.data.splits[split]
        some = part.some(QUICK) if quick else part
        found, loss = answered(model, some, self.max_answer_length, none=self.none(split))
        metrics, parts = self.measured([answer.text for answer in found], some)
        protocol = {"questions": len(found), "windows": len(some.texts), "judged_by": "f1"}
        return Score(metrics | {"loss": loss}, protocol, {} if quick else parts, by="f1")

    def none(self, split: str) -> bool:
        """Whether there may be no answer: only if some question, learned from or asked, has none."""
        return any(
            not question.answers for part in (self.data.train, self.data.splits[split]) for question in part.questions
        )

    def measured(self, texts: list[str], part: "Asked") -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """The metrics of all questions, and of those with and without an answer where there are both."""
        each = [judged(text, question.answers) for text, question in zip(texts, part.questions, strict=True)]
        groups: dict[str, list[tuple[float, float]]] = {"answerable": [], "unanswerable": []}
        for marks, question in zip(each, part.questions, strict=True):
            groups["answerable" if question.answers else "unanswerable"].append(marks)
        parts = {name: {**_mean(some), "questions": len(some)} for name, some in groups.items() if some}
        return _mean(each), parts if len(parts) > 1 else {}

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: the sentence that shares most words with the question; no answer, where that may be."""
        part: Asked = self.data.splits[split]
        free = {"sentence with most words of the question": [overlapping(q.text, q.context) for q in part.questions]}
        if self.none(split):
            free["no answer"] = [""] * len(part.questions)
        return {name: self.measured(texts, part)[0] for name, texts in free.items()}


def nll(y: Tensor, batch: LabelBatch) -> Tensor:  # B L 2
    """The summed -ln p of the starts and the ends, each among the words of its own text."""
    text, many = batch.texts()
    of = torch.where(batch.targets == IGNORE, many, text).flatten()
    total = y.new_zeros(())
    for scores, mark in zip(y.flatten(0, 1).unbind(-1), (START, END), strict=True):
        top = scores.new_zeros(many + 1).scatter_reduce(0, of, scores.detach(), "amax", include_self=False)
        sums = scores.new_zeros(many + 1).index_add(0, of, (scores - top[of]).exp())
        each = sums.clamp_min(1e-30).log()[of] + top[of] - scores  # -ln p, which counts where the answer is
        total = total + torch.where(_says(batch.targets.flatten(), mark), each, 0.0).sum()
    return total


class Answer(NamedTuple):
    """The words of an answer, where they stand in the context, p(start) p(end), and the least p of none in a window."""

    text: str
    start: int
    end: int
    score: float
    none: float


def answered(model: Any, part: "Asked", longest: int, *, none: bool) -> tuple[list[Answer], float]:
    """The best answer to each question; and the mean loss of the windows."""
    best = [Answer("", 0, 0, 0.0, 1.0) for _ in part.questions]
    total = 0.0
    for n, batch, y in word_scores(model, part.texts):
        logs, targets = y.log_softmax(0), batch.targets[batch.asked]
        total -= float(logs[_says(targets, START), 0].sum() + logs[_says(targets, END), 1].sum())
        i, j, score = best_span(logs[1:, 0], logs[1:, 1], longest)
        (a, _), (_, b) = part.places[n][i], part.places[n][j]
        before, q = best[part.of[n]], part.questions[part.of[n]]
        found = Answer(q.context[a:b], a, b, score, 0.0) if score > before.score else before
        best[part.of[n]] = found._replace(none=min(before.none, float(logs[0].sum().exp())))
    if none:
        best = [Answer("", 0, 0, a.none, a.none) if a.none > a.score else a for a in best]
    return best, total / max(1, 2 * len(part.texts))


def best_span(start: Tensor, end: Tensor, longest: int) -> tuple[int, int, float]:
    """The first and the last word of the likeliest span of at most so many words, and its probability."""
    sums = start[:, None] + end[None]
    allowed = torch.ones_like(sums, dtype=torch.bool).triu().tril(longest - 1)
    place = int(sums.masked_fill(~allowed, -torch.inf).argmax())
    i, j = divmod(place, len(end))
    return i, j, float(sums[i, j].exp())


def judged(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """EM and F1 of an answer. Where there is none, none is right."""
    if not references:
        return (float(not answer),) * 2
    return generation.answer_exact([answer], [references]), generation.answer_f1([answer], [references])


def _mean(each: Sequence[tuple[float, float]]) -> dict[str, float]:
    em, f1 = (sum(column) / len(each) for column in zip(*each, strict=True))
    return {"em": em, "f1": f1}


def overlapping(question: str, context: str) -> str:
    """The sentence of a context that has most of a question's words; the shortest of several."""
    asked = {word.lower() for word in re.findall(r"\w+", question)}

    def shared(sentence: str) -> tuple[int, int]:
        return len(asked & {word.lower() for word in re.findall(r"\w+", sentence)}), -len(sentence)

    return max(SENTENCE.split(context.strip()), key=shared)
