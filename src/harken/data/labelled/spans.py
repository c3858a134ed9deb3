"""Extractive question answering in the SQuAD format. Long paragraphs are split into overlapping windows.

A text is the question, a separator, and the paragraph or a window of it. Answers start and end at words; the separator
is the target if the window holds no answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.tokenizers.word_pieces import WordPieces, word_windows
from harken.events import Listener

from .batch import EncodedTexts, evenly_spaced
from .examples import ExampleSource, TokenLabelProcessor, concat_texts, select_windows
from .squad import AnswerMismatches, SquadQuestion, read_questions, word_spans

START, END = 1, 2  # flags of a word's target: first and last word of the answer; 0: neither
MAX_QUESTION_TOKENS = 64


@dataclass(frozen=True, eq=False)
class SquadWindows:
    """Questions, and one encoded text per window of their paragraphs."""

    texts: EncodedTexts
    questions: list[SquadQuestion]
    question_index: list[int]  # of each window
    word_spans: list[list[tuple[int, int]]]  # of each window: character spans of its words in the paragraph

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, count: int) -> "SquadWindows":
        """At most `count` questions, evenly spaced."""
        indices = evenly_spaced(len(self.questions), count)
        windows, question_index = select_windows(self.question_index, indices)
        questions, spans = [self.questions[n] for n in indices], [self.word_spans[n] for n in windows]
        return SquadWindows(self.texts.select(windows), questions, question_index, spans)

    def facts(self) -> dict[str, Any]:
        return {
            "questions": len(self.questions),
            "paragraphs": len({question.context for question in self.questions}),
            "unanswerable": sum(not question.answers for question in self.questions),
            "windows": len(self.texts),
        }


class SpanSource(ExampleSource):
    """Settings of extractive question answering."""

    task: ClassVar[str] = "span"

    kind: Literal["spans"] = "spans"
    max_length: int = Field(
        384, ge=80, description="maximum number of tokens of question and paragraph; longer paragraphs use windows"
    )
    overlap: int = Field(128, ge=0, description="number of tokens shared by consecutive windows of a paragraph")

    def read(self, path: Path, listen: Listener) -> list[SquadQuestion]:
        mismatches = AnswerMismatches()
        questions = list(read_questions(path, mismatches))
        for text in mismatches.notices():
            listen("notice", text=f"{path}: {text}")
        return questions

    def split_key(self, example: SquadQuestion) -> str:
        return example.context

    def texts(self, examples: Iterable[SquadQuestion]) -> Iterator[str]:
        seen = set[str]()
        for question in examples:
            yield question.text
            if question.context not in seen:
                seen.add(question.context)
                yield question.context

    def labels(self, examples: Iterable[SquadQuestion]) -> list[str]:
        return ["start", "end"]

    def encode_examples(
        self, examples: list[SquadQuestion], processor: TokenLabelProcessor, *, learn: bool
    ) -> SquadWindows:
        questions = [q for q in examples if q.answer_span or not q.answers] if learn else examples
        return encode_questions(questions, processor, self.max_length, self.overlap)


def encode_questions(
    questions: Sequence[SquadQuestion], processor: TokenLabelProcessor, max_length: int, overlap: int
) -> SquadWindows:
    """Encode questions and their paragraphs, one text per window."""
    pieces = WordPieces(processor.tokenizer)

    @lru_cache(4)  # consecutive questions share a paragraph
    def encode(text: str) -> tuple[list[tuple[int, int]], Any]:
        spans = word_spans(text)
        return spans, pieces((text[a:b], a > 0 and text[a - 1].isspace()) for a, b in spans)

    rows, question_index, window_spans = [], [], []
    for n, question in enumerate(questions):
        head = [*processor.start_ids, *encode(question.text)[1][0][:MAX_QUESTION_TOKENS], processor.end_id]
        spans, (ids, lengths, offsets) = encode(question.context)  # offsets: the piece with a word's target
        starts, room = np.cumsum(lengths) - lengths, max_length - len(head) - 1
        answer = _answer_words(question, spans)
        for i, j in word_windows(lengths, room, overlap):
            in_window = answer if answer and i <= answer[0] and answer[1] < j else ()
            window = slice(starts[i], min(starts[j - 1] + lengths[j - 1], starts[i] + room))
            targets = np.full(window.stop - window.start, IGNORE)
            targets[starts[i:j] + offsets[i:j] - starts[i]] = 0
            for word, flag in zip(in_window, (START, END), strict=False):
                targets[starts[word] + offsets[word] - starts[i]] += flag
            head_targets = [IGNORE] * (len(head) - 1) + [0 if in_window else START + END]
            rows.append(([*head, *ids[window]], [*head_targets, *targets], len(head)))
            question_index.append(n)
            window_spans.append(spans[i:j])
    return SquadWindows(concat_texts(rows, processor.end_id), list(questions), question_index, window_spans)


def _answer_words(question: SquadQuestion, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first and last word of the answer, extended to word boundaries."""
    if question.answer_span is None:
        return None
    a, b = question.answer_span
    inside = [n for n, (start, stop) in enumerate(spans) if stop > a and start < b]
    return (inside[0], inside[-1]) if inside else None
