"""SQuAD JSON, v1.1 and v2: paragraphs, questions about them, and answers that stand in them word for word."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harken.data.text.encode import Span, read_blocks
from harken.errors import BadInput

NAMED = 3  # ids of lost answers that are told
WORD = re.compile(r"\w+|[^\w\s]")  # a sign is a word of its own


@dataclass(frozen=True)
class Question:
    """A question; where its first answer stands in the context, if it does; and all answers, none if it has none."""

    id: str
    text: str
    context: str
    place: tuple[int, int] | None  # characters
    answers: tuple[str, ...]


@dataclass
class Lost:
    """Questions whose answer does not stand where it should: found elsewhere in the context, or nowhere."""

    moved: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def notices(self) -> Iterator[str]:
        told = {"moved": "answers not at their place, found elsewhere", "lost": "answers not in their context"}
        for name, what in told.items():
            if ids := getattr(self, name):
                yield f"{what}: {len(ids):,} ({', '.join(ids[:NAMED])}{', ...' * (len(ids) > NAMED)})"


def questions(path: Path, lost: Lost | None = None) -> Iterator[Question]:
    """The questions of a file, in order; those whose answer is lost too, with no place."""
    lost = Lost() if lost is None else lost
    try:
        found = json.loads("".join(read_blocks(Span(path))))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON ({str(error)[:80]}); SQuAD's layout is needed; mend it") from None
    for a, article in enumerate(_list(path, found, "data")):
        for p, paragraph in enumerate(_list(path, article, "paragraphs", f"data[{a}]")):
            place = f"data[{a}].paragraphs[{p}]"
            context = _text(path, paragraph, "context", place)
            for q, asked in enumerate(_list(path, paragraph, "qas", place)):
                yield _question(path, asked, context, f"{place}.qas[{q}]", lost)


def _question(path: Path, asked: Any, context: str, place: str, lost: Lost) -> Question:
    text, id_ = _text(path, asked, "question", place), str(asked.get("id", place))
    answers = [] if asked.get("is_impossible") is True else _list(path, asked, "answers", place)
    texts = [_text(path, answer, "text", f"{place}.answers") for answer in answers]
    where = None
    if texts:
        given = answers[0].get("answer_start")
        where = nearest(context, texts[0], given if type(given) is int else 0)
        if where is None:
            lost.lost.append(id_)
        elif where != given:
            lost.moved.append(id_)
    return Question(
        id_,
        text.strip(),
        context,
        None if where is None else (where, where + len(texts[0])),
        tuple(dict.fromkeys(texts)),
    )


def nearest(context: str, text: str, start: int) -> int | None:
    """Where the text stands in the context, nearest to the place that is told."""
    if context[max(0, start) :].startswith(text):
        return max(0, start)
    found = [m.start() for m in re.finditer(re.escape(text), context)] if text else []
    return min(found, key=lambda at: abs(at - start), default=None)


def _list(path: Path, given: Any, name: str, place: str = "") -> list[Any]:
    found = given.get(name) if isinstance(given, dict) else None
    if not isinstance(found, list):
        raise BadInput(f"{path}: {'.'.join(filter(None, [place, name]))} is no list; SQuAD's layout is needed; mend it")
    return found


def _text(path: Path, given: Any, name: str, place: str) -> str:
    found = given.get(name) if isinstance(given, dict) else None
    if not isinstance(found, str):
        raise BadInput(f"{path}: {place}.{name} is no text; SQuAD's layout is needed; mend it")
    return found


def words(text: str) -> list[tuple[int, int]]:
    """Where each word of a text begins and ends."""
    return [match.span() for match in WORD.finditer(text)]
