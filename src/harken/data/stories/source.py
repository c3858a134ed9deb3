"""Stories with questions: each is answered with a word, or a few that belong together, from the lines told before it.

A memory network reads a story line by line; for other models it is one text, the question behind it, and only the
latest `longest` tokens are kept. All questions about a story stand on one side of a split.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE, Tokens
from harken.data.labelled.batch import Texts
from harken.data.labelled.examples import ExampleData, ExampleSource, LabelWords
from harken.data.tables.read import Flaws, lines_of
from harken.data.tokenizers.pairs import Side
from harken.errors import BadInput
from harken.events import Listener
from harken.settings import Outputs

from .babi import TASK, Told, told, words_of


@dataclass(frozen=True, eq=False)
class StoryWords(LabelWords):
    """The words of stories, and the answers that were learned."""

    target_type: ClassVar[str] = "label"  # one of several

    @property
    def vocab(self) -> Outputs:
        return Outputs(self.tokenizer.vocab, len(self.labels), words=tuple(int(i) + 1 for i in self._answers()))

    def _answers(self) -> Tokens:
        return self.tokenizer.encode(" ".join(map(as_word, self.labels)))

    def line(self, text: str) -> Tokens:
        """The ids of a line's words."""
        return self.tokenizer.encode(words_of(text)).astype(np.int64)

    def missing(self, text: str) -> list[str]:
        """The words of a line that were not learned."""
        return self.tokenizer.missing(words_of(text))


def as_word(answer: str) -> str:
    """An answer as one word of the vocabulary: the same as in a line, where it is a word there."""
    return ",".join(words_of(answer).split() or answer.split())


@dataclass(frozen=True, eq=False)
class Stories:
    """Questions and what they are about. `table` has every different line once, 0 behind its words; row 0 is none."""

    asked: list[Told]
    texts: Texts  # each as one text
    table: Tokens  # lines W
    story: list[Tokens]  # the rows of each question's lines
    question: Tokens  # N: the row of the question itself

    def __len__(self) -> int:
        return len(self.asked)

    @property
    def targets(self) -> Tokens:  # N; IGNORE: an answer that was not learned
        return self.texts.targets

    def facts(self) -> dict[str, Any]:
        return {
            "questions": len(self.asked),
            "stories": len({question.story for question in self.asked}),
            "most lines": max(map(len, self.story), default=0),
        }


class StoryData(ExampleData):
    """Opened stories by split."""

    def facts(self) -> dict[str, Any]:
        found, tasks = super().facts(), {question.task for question in self.train.asked}
        many = f"{len(tasks)} tasks, " * (len(tasks) > 1)
        told = f"{many}{found['labels']} answers, {found['vocab']} words, up to {found['most lines']['train']} lines"
        return {**found, "unit": "questions", "told": told}


class StorySource(ExampleSource):
    """The settings of stories with questions."""

    model: ClassVar[str] = "memnet"
    task: ClassVar[str] = "answer"
    of: ClassVar[str] = " of stories"
    opened: ClassVar[type[Any]] = StoryData

    kind: Literal["stories"] = "stories"
    tokenizer: Literal["word"] = Field("word", description="what a token is: a word in small letters, without signs")
    tasks: int | list[int] | None = Field(None, description="of a folder: only the files of these (qa1_..., qa2_...)")
    max_length: int = Field(512, ge=16, description="most tokens of a story as one text; older ones are cut off")
    duplicate_questions: Literal["drop", "keep"] = Field(
        "drop", description="training questions that valid or test ask of the same lines; keep: as published for bAbI"
    )

    def words(self, folder: Path) -> StoryWords:
        return StoryWords.load(folder)  # type: ignore[return-value]

    def read(self, path: Path, listen: Listener) -> list[Told]:
        flaws = Flaws("no line of a story")
        found = told(path, lines_of(path, flaws), flaws)
        for question in found:
            if not question.answer:
                flaws(path, int(question.place.rpartition(":")[2]), "the question has no answer")
        if flaws.count:
            listen("notice", text=str(flaws))
        if not (known := [question for question in found if question.answer]):
            way = "a line with a question, a tab and its answer is needed, as in: 3 Where is Joe?<tab>kitchen"
            raise BadInput(f"{path}: there is no question with an answer in it; {way}")
        return known

    def about(self, example: Told) -> str:
        return example.story

    def same(self, example: Told) -> str:
        return example.place if self.duplicate_questions == "keep" else "\n".join((*example.lines, example.question))

    def _drawn(self, found: dict[str, list[Told]]) -> dict[str, list[Told]]:
        """Held-out shares are of whole stories: of the last one too, where there are enough."""
        drawn = super()._drawn(found)
        for some in drawn.values():
            last = [q for q in found["train"] if some and q.story == some[-1].story]
            some += [q for q in last if q not in some]
        return drawn

    def texts(self, examples: Iterable[Told]) -> Iterator[str]:
        seen = set[str]()
        for question in examples:
            yield as_word(question.answer)
            for line in (*question.lines, question.question):  # in order: words are numbered as they come
                if line not in seen:
                    seen.add(line)
                    yield words_of(line)

    def labels(self, examples: Iterable[Told]) -> list[str]:
        return sorted({question.answer for question in examples})

    def encoded(self, examples: list[Told], words: LabelWords, *, learn: bool) -> Stories:
        assert isinstance(words, StoryWords)
        return encoded(examples, words, self.max_length)

    def _files(self) -> dict[str, list[Path]]:
        every = super()._files()
        if self.tasks is None:
            return every
        wanted = {str(n) for n in ([self.tasks] if isinstance(self.tasks, int) else self.tasks)}
        mine = {
            split: [path for path in some if (found := TASK.search(path.name)) and found[1] in wanted]
            for split, some in every.items()
        }
        there = sorted({int(found[1]) for some in every.values() for p in some if (found := TASK.search(p.name))})
        if missing := wanted - {str(n) for n in there}:
            said = f"the tasks here are {', '.join(map(str, there)) or 'not numbered'}"
            raise BadInput(f"data.tasks = {self.tasks}: {self._home} has no file qa{min(missing)}_...; {said}")
        return {split: some for split, some in mine.items() if some}

    def _words(self, learn: list[Told], given: Any, listen: Listener) -> StoryWords:
        made = super()._words(learn, given, listen)
        return made if isinstance(made, StoryWords) else StoryWords(made.tokenizer, made.labels)


def encoded(asked: Sequence[Told], words: StoryWords, longest: int) -> Stories:
    """Questions as rows of numbers."""
    ids: list[Tokens] = [np.zeros(0, np.int64)]
    rows = dict[str, int]()

    def row(line: str) -> int:
        if line not in rows:
            rows[line] = len(ids)
            ids.append(words.line(line))
        return rows[line]

    story = [np.array([row(line) for line in each.lines], np.int64) for each in asked]
    question = np.array([row(each.question) for each in asked], np.int64)
    table = np.zeros((len(ids), max(map(len, ids))), np.int64)
    for n, line in enumerate(ids):
        table[n, : len(line)] = line + 1
    number = {label: n for n, label in enumerate(words.labels)}
    targets = np.array([number.get(each.answer, IGNORE) for each in asked], np.int64)
    return Stories(list(asked), _flat(ids, story, question, targets, words.edge, longest), table, story, question)


def _flat(ids: list[Tokens], story: list[Tokens], question: Tokens, targets: Tokens, edge: int, longest: int) -> Texts:
    """Each story as one text, a mark before every line and before the question."""
    marked, texts, second = [np.append(edge, line) for line in ids], list[Tokens](), list[int]()
    for lines, asked in zip(story, question, strict=True):
        texts.append(np.concatenate([*(marked[n] for n in lines), marked[asked]])[1 - longest :])  # with its edge
        second.append(max(0, len(texts[-1]) - len(ids[asked])))
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return Texts(Side(np.concatenate([*texts, ids[0]]), starts, edge), np.array(second), targets)
