"""Extractive question answering: the first and the last word of the answer in a text. EM and F1 as in SQuAD.

p(start) and p(end) are softmaxes over the words of a window and one position for "no answer"; the loss is the mean of
both -ln p. The answer is the span with the largest p(start) p(end) of all windows.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import IGNORE, Array
from harken.data.labelled.batch import LabelBatch
from harken.data.labelled.examples import ExampleData
from harken.data.labelled.spans import END, START, SquadWindows
from harken.models import ModelSettings
from harken.models.heads import ModelWithHead

from . import Baseline, Loss, Metrics, Score, TaskSettings
from .head_task import HeadTask, token_outputs
from .metrics import generation, weighted
from .metrics.confusions import span_confusions

QUICK_QUESTIONS = 300  # questions of a quick evaluation
SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+")


class SpanSettings(TaskSettings[ExampleData, ModelSettings]):
    """Settings of extractive question answering."""

    kind: Literal["span"] = "span"
    max_answer_length: int = Field(30, ge=1, description="maximum number of words of an answer")

    def bind(self, data: ExampleData, model: ModelSettings, *, batch: int, seed: int) -> "SpanTask":
        return SpanTask(self, data, model, batch=batch, seed=seed)


class SpanBatch(LabelBatch):
    """The target of a word has the bits START and END; each of them occurs once per text."""

    @property
    def n_targets(self) -> int:
        return int(_has_bit(self.targets, START).sum() + _has_bit(self.targets, END).sum())


def _has_bit(targets: Tensor, bit: int) -> Tensor:
    return (targets >= 0) & (targets & bit > 0)


class SpanTask(HeadTask[SpanSettings]):
    """Answers to one set of questions."""

    explains_mistakes = True

    def batch(self, epoch: int, step: int) -> SpanBatch:
        return SpanBatch(**vars(self.batches.batch(epoch, step)))

    def loss(self, model: ModelWithHead, batch: LabelBatch, start: int = 0) -> Loss:
        y = model.predict(model(batch.tokens, **batch.model_inputs())).float()  # B L 2
        return Loss(nll(y, batch))

    def evaluate(self, model: ModelWithHead, split: str, *, quick: bool = False) -> Score:
        part: SquadWindows = self.data.splits[split]
        windows = part.subset(QUICK_QUESTIONS) if quick else part
        max_length, allow = self.settings.max_answer_length, self.allows_no_answer(split)
        answers, losses = predict_answers(model, windows, max_length, allow_no_answer=allow)
        texts = [answer.text for answer in answers]
        metrics, parts = self.text_metrics(texts, windows)
        protocol = {"questions": len(answers), "windows": len(windows.texts), "primary_metric": "f1"}
        n_targets = 2 * np.bincount(windows.question_index, minlength=len(answers))
        metrics["loss"] = float(losses.sum()) / max(1, int(n_targets.sum()))
        if quick:
            return Score(metrics, protocol, primary_metric="f1")
        confusions = span_confusions(windows.questions, texts)
        outcomes = self.text_outcomes(texts, windows) | {"loss": weighted.ratio(losses, n_targets)}
        return Score(metrics, protocol, parts, "f1", confusions=confusions, outcomes=outcomes)

    def allows_no_answer(self, split: str) -> bool:
        """Whether some question of the training data or of the split has no answer."""
        parts = self.data.train, self.data.splits[split]
        return any(not question.answers for part in parts for question in part.questions)

    def text_metrics(self, texts: list[str], part: SquadWindows) -> tuple[Metrics, dict[str, Metrics]]:
        """EM and F1 of all questions, and of those with and without an answer if both occur."""
        scores = [em_f1(text, question.answers) for text, question in zip(texts, part.questions, strict=True)]
        groups: dict[str, list[tuple[float, float]]] = {"answerable": [], "unanswerable": []}
        for score, question in zip(scores, part.questions, strict=True):
            groups["answerable" if question.answers else "unanswerable"].append(score)
        parts = {name: {**_mean(group), "questions": len(group)} for name, group in groups.items() if group}
        return _mean(scores), parts if len(parts) > 1 else {}

    def text_outcomes(self, texts: list[str], part: SquadWindows) -> dict[str, weighted.WeightedMetric]:
        """EM and F1 as functions of the weights of the questions."""
        scores = [em_f1(text, question.answers) for text, question in zip(texts, part.questions, strict=True)]
        em, f1 = zip(*scores, strict=True)
        return {"em": weighted.mean(em), "f1": weighted.mean(f1)}

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The sentence with most words of the question; and no answer, if some question has none."""
        part: SquadWindows = self.data.splits[split]
        sentences = [best_overlap(q.text, q.context) for q in part.questions]
        baselines = {"sentence with most words of the question": sentences}
        if self.allows_no_answer(split):
            baselines["no answer"] = [""] * len(part.questions)
        return {
            name: Baseline(self.text_metrics(texts, part)[0], self.text_outcomes(texts, part))
            for name, texts in baselines.items()
        }


def nll(y: Tensor, batch: LabelBatch) -> Tensor:  # B L 2
    """The summed -ln p of starts and ends, with a softmax over the words of each text of a packed row."""
    text, n_texts = batch.text_ids()
    segment = torch.where(batch.targets == IGNORE, n_texts, text).flatten()
    total = y.new_zeros(())
    for scores, bit in zip(y.flatten(0, 1).unbind(-1), (START, END), strict=True):
        top = scores.new_zeros(n_texts + 1).scatter_reduce(0, segment, scores.detach(), "amax", include_self=False)
        sums = scores.new_zeros(n_texts + 1).index_add(0, segment, (scores - top[segment]).exp())
        losses = sums.clamp_min(1e-30).log()[segment] + top[segment] - scores
        total = total + torch.where(_has_bit(batch.targets.flatten(), bit), losses, 0.0).sum()
    return total


class ScoredSpan(NamedTuple):
    """Text, character span and p(start) p(end) of an answer, and the minimum p("no answer") of the windows."""

    text: str
    start: int
    end: int
    score: float
    no_answer: float


def predict_answers(
    model: ModelWithHead, windows: SquadWindows, max_length: int, *, allow_no_answer: bool
) -> tuple[list[ScoredSpan], Array]:
    """The best answer to each question, and the summed loss of its windows, each with two targets."""
    best = [ScoredSpan("", 0, 0, 0.0, 1.0) for _ in windows.questions]
    losses = np.zeros(len(windows.questions))
    for n, batch, y in token_outputs(model, windows.texts):
        logs, targets = y.log_softmax(0), batch.targets[batch.target_mask]
        first, last, score = best_span(logs[1:, 0], logs[1:, 1], max_length)
        (start, _), (_, end) = windows.word_spans[n][first], windows.word_spans[n][last]
        index = windows.question_index[n]
        losses[index] -= float(logs[_has_bit(targets, START), 0].sum() + logs[_has_bit(targets, END), 1].sum())
        before, context = best[index], windows.questions[index].context
        answer = ScoredSpan(context[start:end], start, end, score, 0.0) if score > before.score else before
        best[index] = answer._replace(no_answer=min(before.no_answer, float(logs[0].sum().exp())))
    if allow_no_answer:
        best = [ScoredSpan("", 0, 0, a.no_answer, a.no_answer) if a.no_answer > a.score else a for a in best]
    return best, losses


def best_span(start: Tensor, end: Tensor, max_length: int) -> tuple[int, int, float]:
    """First and last word of the most likely span of at most `max_length` words, and its probability."""
    sums = start[:, None] + end[None]
    allowed = torch.ones_like(sums, dtype=torch.bool).triu().tril(max_length - 1)
    first, last = divmod(int(sums.masked_fill(~allowed, -torch.inf).argmax()), len(end))
    return first, last, float(sums[first, last].exp())


def em_f1(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """EM and F1 of an answer; without references the empty answer is correct."""
    if not references:
        return (float(not answer),) * 2
    return generation.answer_exact([answer], [references]), generation.answer_f1([answer], [references])


def _mean(scores: Sequence[tuple[float, float]]) -> Metrics:
    em, f1 = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    return {"em": em, "f1": f1}


def best_overlap(question: str, context: str) -> str:
    """The sentence with most words of the question; of several the shortest."""
    question_words = {word.lower() for word in re.findall(r"\w+", question)}

    def overlap(sentence: str) -> tuple[int, int]:
        words = {word.lower() for word in re.findall(r"\w+", sentence)}
        return len(question_words & words), -len(sentence)

    return max(SENTENCE_BREAK.split(context.strip()), key=overlap)
