"""Answers that stand in a text: questions about paragraphs, as SQuAD writes them. Long paragraphs are read in windows.

A text is the question, a mark, and the paragraph or a window of it. An answer begins and ends with a word; the mark
stands for: there is no answer here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.tokenizers.word_pieces import WordPieces, windows
from harken.events import Listener

from .batch import Texts, evenly
from .examples import ExampleSource, LabelWords, joined, within
from .squad import Lost, Question, questions
from .squad import words as words_of

START, END = 1, 2  # what a target may say of a word, both together too; 0: neither
QUESTION = 64  # tokens of a question that are read


@dataclass(frozen=True, eq=False)
class Asked:
    """Questions and the texts they are read as, one for each window of a paragraph."""

    texts: Texts
    questions: list[Question]
    of: list[int]  # which question each text is of
    places: list[list[tuple[int, int]]]  # of each text: where each word of its window stands in the paragraph

    def __len__(self) -> int:
        return len(self.texts)

    def some(self, many: int) -> "Asked":
        """So many of the questions, from everywhere."""
        picks = evenly(len(self.questions), many)
        texts, of = within(self.of, picks)
        return Asked(self.texts.some(texts), [self.questions[n] for n in picks], of, [self.places[n] for n in texts])

    def facts(self) -> dict[str, Any]:
        return {
            "questions": len(self.questions),
            "paragraphs": len({question.context for question in self.questions}),
            "unanswerable": sum(not question.answers for question in self.questions),
            "windows": len(self.texts),
        }


class SpanSource(ExampleSource):
    """The settings of questions whose answers stand in a text."""

    task: ClassVar[str] = "span"

    kind: Literal["spans"] = "spans"
    max_length: int = Field(
        384, ge=80, description="most tokens of question and paragraph; a longer one is read in windows"
    )
    overlap: int = Field(128, ge=0, description="tokens that two windows of a paragraph share")

    def read(self, path: Path, listen: Listener) -> list[Question]:
        lost = Lost()
        found = list(questions(path, lost))
        for text in lost.notices():
            listen("notice", text=f"{path}: {text}")
        return found

    def about(self, example: Question) -> str:
        return example.context

    def texts(self, examples: Iterable[Question]) -> Iterator[str]:
        seen = set[str]()
        for question in examples:
            yield question.text
            if question.context not in seen:
                seen.add(question.context)
                yield question.context

    def labels(self, examples: Iterable[Question]) -> list[str]:
        return ["start", "end"]

    def encoded(self, examples: list[Question], words: LabelWords, *, learn: bool) -> Asked:
        known = [q for q in examples if q.place or not q.answers] if learn else examples
        return asked(known, words, self.max_length, self.overlap)


def asked(some: Sequence[Question], words: LabelWords, longest: int, overlap: int) -> Asked:
    """Questions as texts of tokens."""
    pieces = WordPieces(words.tokenizer)

    @lru_cache(4)  # questions about a paragraph follow each other, each between two looks at it
    def read(text: str) -> tuple[list[tuple[int, int]], Any]:
        places = words_of(text)
        return places, pieces((text[a:b], a > 0 and text[a - 1].isspace()) for a, b in places)

    rows, of, spots = [], [], []
    for n, question in enumerate(some):
        head = [*words.begin, *read(question.text)[1][0][:QUESTION], words.edge]
        places, (ids, lengths, stands) = read(question.context)
        starts, room = np.cumsum(lengths) - lengths, longest - len(head) - 1
        marks = _marks(question, places)
        for i, j in windows(lengths, room, overlap):
            here = marks if marks and i <= marks[0] and marks[1] < j else ()
            part = slice(starts[i], min(starts[j - 1] + lengths[j - 1], starts[i] + room))
            targets = np.full(part.stop - part.start, IGNORE)
            targets[starts[i:j] + stands[i:j] - starts[i]] = 0
            for place, mark in zip(here, (START, END), strict=False):
                targets[starts[place] + stands[place] - starts[i]] += mark
            none = [IGNORE] * (len(head) - 1) + [0 if here else START + END]
            rows.append(([*head, *ids[part]], [*none, *targets], len(head)))
            of.append(n)
            spots.append(places[i:j])
    return Asked(joined(rows, words.edge), list(some), of, spots)


def _marks(question: Question, places: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first and the last word of the answer: whole words, even if it begins or ends inside of one."""
    if question.place is None:
        return None
    a, b = question.place
    inside = [n for n, (start, stop) in enumerate(places) if stop > a and start < b]
    return (inside[0], inside[-1]) if inside else None
