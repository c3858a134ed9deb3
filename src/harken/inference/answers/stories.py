"""A story in the memory of a run: lines are written one by one, and it may be asked at any time."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from harken.core import watching
from harken.data.stories.babi import Told, statements
from harken.data.stories.source import StoryWords, encoded
from harken.errors import BadInput
from harken.tasks.classify import answers

if TYPE_CHECKING:
    from harken.inference.run import Run


class Story:
    """What a run was told. A memory network keeps the latest lines as vectors, through which gradients flow."""

    def __init__(self, run: "Run", lines: Iterable[str] = ()) -> None:
        run.must("ask")
        if not isinstance(run.tokenizer, StoryWords):
            raise BadInput(f"{run.path}: this run finds answers in a text, and reads no story; give it a context")
        self.run, self.model, self.words = run, cast(Any, run.model), run.tokenizer
        self.by_line = getattr(run.recipe.model, "by_line", False)
        self.lines: list[str] = []
        self.memory = deque[Tensor](maxlen=run.recipe.model.memory if self.by_line else 0)  # of each line, T 1 1 d
        for line in lines:
            self.write(line)

    def write(self, line: str) -> "Story":
        """Tell it one more line."""
        ids = self._ids(line, "line")
        if self.by_line:
            self.memory.append(self.model.write(ids[None]))
        self.lines.append(line)
        return self

    def scores(self, question: str) -> Tensor:
        """A score for each answer that was learned (`run.tokenizer.labels`); gradients reach what was written."""
        ids = self._ids(question, "question")
        if not self.lines:
            raise BadInput("the story: there is no line in it; tell one before it is asked, such as: Joe went home.")
        if not self.by_line:
            asked = Told(tuple(self.lines), question, "", (), "", "", "")
            return answers(self.model, encoded([asked], self.words, self.run.recipe.data.max_length).texts)[0]
        memory = torch.cat(list(self.memory), 2)
        ages = torch.arange(memory.shape[2] - 1, -1, -1, device=ids.device)[None]
        real = torch.ones_like(ages, dtype=torch.bool)
        y: Tensor = self.model.read(memory, ids, ages, real)
        return y[0]

    @torch.no_grad()
    def ask(self, question: str) -> dict[str, Any]:
        """The answer, its probability, and how much of each hop's attention each line had."""
        with watching(self.model) as views:
            p = self.scores(question).softmax(-1)
        some = self.lines[-self.run.recipe.model.memory :] if self.by_line else []  # older ones are no longer kept
        looks = [view.whole()[0, 0, 0, : len(some)].tolist() for view in views.values()] if some else []
        old = len(self.lines) - len(some)
        best = int(p.argmax())
        return {
            "question": question,
            "answer": self.words.labels[best],
            "score": float(p[best]),
            "lines": self.lines.copy(),
            "hops": [[0.0] * old + look for look in looks],
            "unknown": sorted({word for text in (*self.lines, question) for word in self.words.missing(text)}),
        }

    def _ids(self, text: str, what: str) -> Tensor:  # 1 W
        if not isinstance(text, str):
            raise BadInput(f"{what}={text!r}: a text is accepted")
        if not len(ids := self.words.line(text)):
            raise BadInput(f"{what}={text!r}: there is no word in it; give a {what}")
        return torch.from_numpy(ids + 1)[None].to(self.run.device)


def ask_story(run: "Run", question: str, context: str) -> dict[str, Any]:
    """The answer to a question about the story in this text, whose own questions are passed over."""
    return Story(run, only(statements(context.splitlines()))).ask(question)


def only(stories: Sequence[list[str]]) -> list[str]:
    """The one story that there is."""
    if len(stories) > 1:
        raise BadInput(f"there are {len(stories)} stories in it; give one, or leave the question out to answer theirs")
    return stories[0] if stories else []
