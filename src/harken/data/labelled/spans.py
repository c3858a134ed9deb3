"""Extractive question answering in the SQuAD format (v1.1 and v2). Long paragraphs are split into overlapping windows.

Answers are substrings of a paragraph. A text is the question, a separator, and the paragraph or a window of it. Answers
start and end at words; the separator is the target if the window holds no answer.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.text.encode import Span, read_blocks
from harken.data.tokenizers.tokenizer import WordPieces, word_windows
from harken.errors import BadInput
from harken.events import Listener, Overflow, silent

from .batch import EncodedTexts, evenly_spaced
from .examples import ExampleSource, TokenLabelProcessor, concat_texts, select_windows

START, END = 1, 2  # flags of a word's target: first and last word of the answer; 0: neither
MAX_QUESTION_TOKENS = 64
MAX_IDS_SHOWN = 3  # question ids listed in a notice
WORD = re.compile(r"\w[\w\u0300-\u036f]*|[^\w\s]")  # with combining marks; punctuation marks are words
FIX = "the SQuAD layout is required; fix the file"
MOVED, MISSING = "answers not at answer_start, located elsewhere in the context", "answers not in their context"
T = TypeVar("T", str, list[Any])


# --- SQuAD JSON -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SquadQuestion:
    """A question, the span of its first answer in the context (None: not in it), and all answers (v2: may be none)."""

    id: str
    text: str
    context: str
    answer_span: tuple[int, int] | None  # characters
    answers: tuple[str, ...]


def read_questions(path: Path, listen: Listener = silent, encoding: str | None = None) -> list[SquadQuestion]:
    """The questions of a file, in order, including those with a missing answer (answer_span None)."""
    try:
        document = json.loads("".join(read_blocks(Span(path, encoding=encoding))))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON ({str(error)[:80]}); {FIX}") from None
    questions, mismatches = list[SquadQuestion](), dict[str, list[str]]({MOVED: [], MISSING: []})
    for a, article in enumerate(_get(path, document, "data", list)):
        for p, paragraph in enumerate(_get(path, article, "paragraphs", list, f"data[{a}].")):
            key = f"data[{a}].paragraphs[{p}]."
            context = _get(path, paragraph, "context", str, key)
            for q, entry in enumerate(_get(path, paragraph, "qas", list, key)):
                questions.append(_parse_question(path, entry, context, f"{key}qas[{q}]", mismatches))
    for problem, ids in mismatches.items():
        if ids:
            shown = ", ".join([*ids[:MAX_IDS_SHOWN], *["..."] * (len(ids) > MAX_IDS_SHOWN)])
            listen("notice", text=f"{path}: {problem}: {len(ids):,} ({shown})")
    return questions


def _parse_question(path: Path, entry: Any, context: str, key: str, mismatches: dict[str, list[str]]) -> SquadQuestion:
    text, id_ = _get(path, entry, "question", str, f"{key}."), str(entry.get("id", key))
    answers = [] if entry.get("is_impossible") is True else _get(path, entry, "answers", list, f"{key}.")
    texts = [_get(path, answer, "text", str, f"{key}.answers.") for answer in answers]
    span = None
    if texts:
        expected = answers[0].get("answer_start")
        start = find_nearest(context, texts[0], expected if type(expected) is int else 0)
        span = None if start is None else (start, start + len(texts[0]))
        if start != expected or start is None:
            mismatches[MISSING if start is None else MOVED].append(id_)
    return SquadQuestion(id_, text.strip(), context, span, tuple(dict.fromkeys(texts)))


def find_nearest(context: str, text: str, start: int) -> int | None:
    """The occurrence of text in the context that is nearest to start."""
    if context[max(0, start) :].startswith(text):
        return max(0, start)
    occurrences = [m.start() for m in re.finditer(re.escape(text), context)] if text else []
    return min(occurrences, key=lambda position: abs(position - start), default=None)


def _get(path: Path, parent: Any, name: str, kind: type[T], prefix: str = "") -> T:
    """The value of a key; raises if it has another type."""
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, kind):
        raise BadInput(f"{path}: {prefix}{name} is not a {'string' if kind is str else 'list'}; {FIX}")
    return value


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and stop of each word of a text."""
    return [match.span() for match in WORD.finditer(text)]


# --- settings and encoding --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SquadWindows:
    """Questions, and one encoded text per window of their paragraphs."""

    texts: EncodedTexts
    questions: list[SquadQuestion]
    question_index: list[int]  # of each window
    word_spans: list[list[tuple[int, int]]]  # of each window: character spans of its words in the paragraph
    overflow: Overflow  # the questions that are truncated

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, count: int) -> "SquadWindows":
        """At most `count` questions, evenly spaced."""
        indices = evenly_spaced(len(self.questions), count)
        windows, question_index = select_windows(self.question_index, indices)
        questions, spans = [self.questions[n] for n in indices], [self.word_spans[n] for n in windows]
        return replace(
            self, texts=self.texts.select(windows), questions=questions, question_index=question_index, word_spans=spans
        )

    def facts(self) -> dict[str, int]:
        paragraphs, unanswerable = {q.context for q in self.questions}, [q for q in self.questions if not q.answers]
        counted = {"questions": self.questions, "paragraphs": paragraphs, "unanswerable": unanswerable}
        return {name: len(items) for name, items in counted.items()} | {"windows": len(self.texts)}


class SpanSource(ExampleSource[SquadQuestion, TokenLabelProcessor, SquadWindows]):
    """Settings of extractive question answering."""

    task: ClassVar[str] = "span"

    kind: Literal["spans"] = "spans"
    max_length: int = Field(
        384, ge=80, description="maximum number of tokens of question and paragraph; longer paragraphs use windows"
    )
    overlap: int = Field(128, ge=0, description="number of tokens shared by consecutive windows of a paragraph")

    def read(self, path: Path, listen: Listener) -> list[SquadQuestion]:
        return read_questions(path, listen, self.encoding)

    def split_key(self, example: SquadQuestion) -> str:
        return example.context

    def has_target(self, example: SquadQuestion) -> bool:
        return bool(example.answer_span or not example.answers)

    def texts(self, examples: Iterable[SquadQuestion]) -> Iterator[str]:
        seen = set[str]()
        for question in examples:
            yield question.text
            if question.context not in seen:
                seen.add(question.context)
                yield question.context

    def labels(self, examples: list[SquadQuestion]) -> list[str]:
        return ["start", "end"]

    def overflow(self, part: SquadWindows) -> Overflow:
        return part.overflow

    def encode_examples(self, examples: list[SquadQuestion], processor: TokenLabelProcessor) -> SquadWindows:
        return encode_questions(examples, processor, self.max_length, self.overlap)


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
    lengths = [len(encode(question.text)[1][0]) for question in questions]
    overflow = Overflow.of(lengths, MAX_QUESTION_TOKENS, inputs="questions", remedy="ask shorter questions")
    texts = concat_texts(rows, processor.end_id)
    return SquadWindows(texts, list(questions), question_index, window_spans, overflow)


def _answer_words(question: SquadQuestion, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first and last word of the answer, extended to word boundaries."""
    if question.answer_span is None:
        return None
    a, b = question.answer_span
    inside = [n for n, (start, stop) in enumerate(spans) if stop > a and start < b]
    return (inside[0], inside[-1]) if inside else None
