"""SQuAD JSON, v1.1 and v2: paragraphs, questions about them, and answers that are substrings of the paragraph."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harken.data.text.encode import Span, read_blocks
from harken.errors import BadInput

MAX_IDS_SHOWN = 3  # question ids listed in a notice
WORD = re.compile(r"\w+|[^\w\s]")  # punctuation marks are words
FIX = "the SQuAD layout is required; fix the file"


@dataclass(frozen=True)
class SquadQuestion:
    """A question, the span of its first answer in the context (None: not in it), and all answers (v2: may be none)."""

    id: str
    text: str
    context: str
    answer_span: tuple[int, int] | None  # characters
    answers: tuple[str, ...]


@dataclass
class AnswerMismatches:
    """Ids of questions with an answer that is not at answer_start: elsewhere in the context, or nowhere."""

    moved: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def notices(self) -> Iterator[str]:
        for ids, problem in (
            (self.moved, "answers not at answer_start, located elsewhere in the context"),
            (self.missing, "answers not in their context"),
        ):
            if ids:
                shown = ", ".join([*ids[:MAX_IDS_SHOWN], *["..."] * (len(ids) > MAX_IDS_SHOWN)])
                yield f"{problem}: {len(ids):,} ({shown})"


def read_questions(path: Path, mismatches: AnswerMismatches | None = None) -> Iterator[SquadQuestion]:
    """The questions of a file, in order, including those with a missing answer (answer_span None)."""
    mismatches = AnswerMismatches() if mismatches is None else mismatches
    try:
        document = json.loads("".join(read_blocks(Span(path))))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON ({str(error)[:80]}); {FIX}") from None
    for a, article in enumerate(_list(path, document, "data")):
        for p, paragraph in enumerate(_list(path, article, "paragraphs", f"data[{a}]")):
            key = f"data[{a}].paragraphs[{p}]"
            context = _text(path, paragraph, "context", key)
            for q, entry in enumerate(_list(path, paragraph, "qas", key)):
                yield _parse_question(path, entry, context, f"{key}.qas[{q}]", mismatches)


def _parse_question(path: Path, entry: Any, context: str, key: str, mismatches: AnswerMismatches) -> SquadQuestion:
    text, id_ = _text(path, entry, "question", key), str(entry.get("id", key))
    answers = [] if entry.get("is_impossible") is True else _list(path, entry, "answers", key)
    texts = [_text(path, answer, "text", f"{key}.answers") for answer in answers]
    span = None
    if texts:
        expected = answers[0].get("answer_start")
        start = find_nearest(context, texts[0], expected if type(expected) is int else 0)
        if start is None:
            mismatches.missing.append(id_)
        else:
            span = (start, start + len(texts[0]))
            if start != expected:
                mismatches.moved.append(id_)
    return SquadQuestion(id_, text.strip(), context, span, tuple(dict.fromkeys(texts)))


def find_nearest(context: str, text: str, start: int) -> int | None:
    """The occurrence of text in the context that is nearest to start."""
    if context[max(0, start) :].startswith(text):
        return max(0, start)
    occurrences = [m.start() for m in re.finditer(re.escape(text), context)] if text else []
    return min(occurrences, key=lambda position: abs(position - start), default=None)


def _list(path: Path, parent: Any, name: str, key: str = "") -> list[Any]:
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, list):
        raise BadInput(f"{path}: {'.'.join(filter(None, [key, name]))} is not a list; {FIX}")
    return value


def _text(path: Path, parent: Any, name: str, key: str) -> str:
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, str):
        raise BadInput(f"{path}: {key}.{name} is not a string; {FIX}")
    return value


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and stop of each word of a text."""
    return [match.span() for match in WORD.finditer(text)]
