"""CoNLL columns: a word and its tags on each line, a blank line behind each sentence; and tags of entities as spans."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harken.data.text.encode import Span, read_blocks
from harken.errors import BadInput

OUTSIDE = "O"
INSIDE = re.compile(r"([BIESLU])-(.+)")
BEGINS, ENDS = frozenset("BSU"), frozenset("ESLU")  # of an entity, in BIO, BIOES and BILOU
PARTS = re.compile(r"\d+[-.]\d+")  # CoNLL-U: words of which others are parts, and words that are not written


class Sentence(NamedTuple):
    """Words, the tag of each, and where the first one stands."""

    words: list[str]
    tags: list[str]
    place: str = ""


class Entity(NamedTuple):
    """Words from start up to stop, and what they are."""

    label: str
    start: int
    stop: int


def sentences(path: Path, word: int, tag: int) -> Iterator[Sentence]:
    """The sentences of a file; word and tag are columns, counted from 1. Tags of entities come as BIO2."""
    words, tags, width, place = list[str](), list[str](), (False, 0), ""
    for n, line in enumerate(_lines(path), 1):
        tabs = "\t" in line or width[0]
        cells = line.split("\t") if tabs else line.split()
        if not line.strip():
            if words:
                yield Sentence(words, bio2(tags), place)
                words, tags = [], []
            continue
        if cells[0] == "-DOCSTART-" or (line.startswith("#") and "\t" not in line and (tabs, len(cells)) != width):
            continue  # a comment, or the start of a document
        if len(cells) < max(word, tag) or not (cells[word - 1].strip() and cells[tag - 1].strip()):
            asked = f"a word in column {word} and its tag in column {tag} are needed"
            raise BadInput(f"{path}:{n}: {line.strip()[:40]!r}; {asked}; mend it, or set data.text and data.label")
        width = tabs, len(cells)
        if word == 1 or not PARTS.fullmatch(cells[0]):
            place = place if words else f"{path}:{n}"
            words.append(cells[word - 1].strip())
            tags.append(cells[tag - 1].strip())
    if words:
        yield Sentence(words, bio2(tags), place)


def _lines(path: Path) -> Iterator[str]:
    rest = ""
    for block in read_blocks(Span(path)):
        *whole, rest = (rest + block).split("\n")
        yield from whole
    if rest:
        yield rest


def bio2(tags: Sequence[str]) -> list[str]:
    """B- on the first word of each entity, I- on its others: from BIO, IOB1, BIOES or BILOU. Other tags stay."""
    made, open_ = list[str](), ""  # the label of an entity that may go on
    for tag in tags:
        found = INSIDE.fullmatch(tag)
        if found is None:
            made.append(tag)
            open_ = ""
            continue
        mark, label = found.groups()
        made.append(f"{'B' if mark in BEGINS or label != open_ else 'I'}-{label}")
        open_ = "" if mark in ENDS else label
    return made


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities that tags in BIO2 mark."""
    found = list[Entity]()
    for n, tag in enumerate(tags):
        if tag.startswith("B-"):
            found.append(Entity(tag[2:], n, n + 1))
        elif tag.startswith("I-"):
            found[-1] = found[-1]._replace(stop=n + 1)
    return found
