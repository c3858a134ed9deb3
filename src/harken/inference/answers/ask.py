"""Answer questions: a span of a text, or about a story that is written line by line."""

from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from harken.core import watching
from harken.data.labelled.spans import SquadQuestion, encode_questions
from harken.data.stories.babi import BabiQuestion, normalize_words, parse_statements
from harken.data.stories.source import StoryProcessor, encode_stories, memory_overflow, token_overflow
from harken.errors import BadInput
from harken.events import Listener, report_overflow, silent
from harken.inference.loaded_model import LoadedModel
from harken.models.heads import ModelWithHead
from harken.tasks.classify import predict
from harken.tasks.span import predict_answers

from . import SpanAnswer, StoryAnswer, check_text
from .unknown import UNKNOWN, check_probability

Answer = SpanAnswer | StoryAnswer


def answer_question(
    run: LoadedModel, question: str, context: str, min_probability: float = 0.0, listen: Listener = silent
) -> SpanAnswer:
    """The best span, its probability and its offsets; it may be empty if the training data had such questions.

    Below the minimum probability the answer is `unknown`, without offsets.
    """
    check_probability(min_probability)
    for name, text in (("question", question), ("context", context)):
        if not text.strip():
            raise BadInput(f"{name}={text!r}: is empty; give a {name}")
    source, unanswerable = run.recipe.data, run.facts.get("data", {}).get("unanswerable", {})
    questions = [SquadQuestion("", question, context, None, ())]
    windows = encode_questions(questions, run.tokenizer, source.max_length, source.overlap)
    report_overflow(listen, windows.overflow)
    allow_no_answer, max_length = bool(unanswerable.get("train")), run.recipe.task.max_answer_length
    model = cast(ModelWithHead, run.model)
    (best,), _ = predict_answers(model, windows, max_length, allow_no_answer=allow_no_answer)
    if best.score < min_probability:
        return {"answer": UNKNOWN, "score": best.score, "start": 0, "end": 0}
    return {"answer": best.text, "score": best.score, "start": best.start, "end": best.end}


class Story:
    """A story and the model that answers questions about it.

    A memory network stores the latest lines as vectors, and gradients flow through them; other models read the whole
    story with each question.
    """

    def __init__(self, run: LoadedModel, lines: Iterable[str] = (), listen: Listener = silent) -> None:
        run.require("ask")
        if not isinstance(run.tokenizer, StoryProcessor):
            raise BadInput(f"{run.path}: this run extracts answers from a text, not from a story; use run.ask")
        self.run, self.model, self.processor, self.listen = run, cast(Any, run.model), run.tokenizer, listen
        self.by_line = run.recipe.model.by_line
        self.lines: list[str] = []
        self.memory = deque[Tensor](maxlen=run.recipe.model.memory if self.by_line else 0)  # per line: T 1 1 d
        for line in lines:
            self.write(line)

    def write(self, line: str) -> "Story":
        """Append a line."""
        ids = self._ids(line, "line")
        if self.by_line:
            self.memory.append(self.model.write(ids[None]))
        self.lines.append(line)
        return self

    def scores(self, question: str) -> Tensor:
        """A logit for each answer in `run.tokenizer.labels`; differentiable with respect to the memory."""
        ids = self._ids(question, "question")
        if not self.lines:
            raise BadInput("story: has no lines; write one before asking, such as: Joe went home.")
        if not self.by_line:
            example = BabiQuestion(tuple(self.lines), question, "", (), "", "", "")
            encoded = encode_stories([example], self.processor, max_length := self.run.recipe.data.max_length)
            report_overflow(self.listen, token_overflow(encoded, max_length))
            return predict(self.model, encoded.texts)[0]
        report_overflow(self.listen, memory_overflow([len(self.lines)], self.run.recipe.model.memory))
        memory = torch.cat(list(self.memory), 2)
        ages = torch.arange(memory.shape[2] - 1, -1, -1, device=ids.device)[None]
        real = torch.ones_like(ages, dtype=torch.bool)
        y: Tensor = self.model.read(memory, ids, ages, real)
        return y[0]

    @torch.no_grad()
    def ask(self, question: str, *, min_probability: float = 0.0) -> StoryAnswer:
        """The answer, its probability, and the attention of each hop to each line."""
        check_probability(min_probability)
        with watching(self.model) as views:
            p = self.scores(question).softmax(-1)
        stored = self.lines[-self.run.recipe.model.memory :] if self.by_line else []  # older lines were dropped
        weights = [view.full()[0, 0, 0, : len(stored)].tolist() for view in views.values()] if stored else []
        n_dropped = len(self.lines) - len(stored)
        best, texts = int(p.argmax()), (*self.lines, question)
        unknown = {word for text in texts for word in self.processor.unknown_words(text)}
        return {
            "question": question,
            "answer": self.processor.labels[best] if p[best] >= min_probability else UNKNOWN,
            "score": float(p[best]),
            "lines": self.lines.copy(),
            "hops": [[0.0] * n_dropped + row for row in weights],
            "unknown_words": sorted(unknown),
            "unasked_words": sorted(self._unasked_words(question) - unknown),
        }

    def _unasked_words(self, question: str) -> set[str]:
        """The words of a question that no training question has; the run learned no answer that depends on them."""
        known = self.run.facts.get("data", {}).get("question_words")  # missing in older runs
        return set() if known is None else {*normalize_words(question).split()} - {*known}

    def _ids(self, text: str, name: str) -> Tensor:  # 1 W
        check_text(**{name: text})
        if not len(ids := self.processor.encode_line(text)):
            raise BadInput(f"{name}={text!r}: has no words; give a {name}")
        return torch.from_numpy(ids + 1)[None].to(self.run.device)


def answer_story(
    run: LoadedModel, question: str, context: str, min_probability: float = 0.0, listen: Listener = silent
) -> StoryAnswer:
    """The answer to a question about the story in this text; questions in the text are skipped."""
    stories = parse_statements(context.splitlines())
    if len(stories) > 1:
        raise BadInput(f"context: has {len(stories)} stories; give one story, or omit the question to answer all")
    return Story(run, stories[0] if stories else (), listen).ask(question, min_probability=min_probability)
