"""CoNLL columns: one word with its tags per line, a blank line after each sentence; and entity tags as spans."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harken.data.text.encode import Span, read_blocks
from harken.errors import BadInput

OUTSIDE = "O"
ENTITY_TAG = re.compile(r"([BIESLU])-(.+)")
START_PREFIXES, END_PREFIXES = frozenset("BSU"), frozenset("ESLU")  # in BIO, BIOES and BILOU
SKIPPED_ID = re.compile(r"\d+[-.]\d+")  # CoNLL-U: multiword tokens (1-2) and empty nodes (2.1)


class Sentence(NamedTuple):
    """Words, their tags, and the location of the first word (path:line)."""

    words: list[str]
    tags: list[str]
    location: str = ""


class Entity(NamedTuple):
    """The words start..stop-1 with their entity label."""

    label: str
    start: int
    stop: int


def read_sentences(path: Path, word_column: int, tag_column: int) -> Iterator[Sentence]:
    """The sentences of a file; columns are counted from 1. Entity tags are converted to BIO2."""
    words, tags, layout, location = list[str](), list[str](), (False, 0), ""
    for n, line in enumerate(_read_lines(path), 1):
        tabs = "\t" in line or layout[0]
        cells = line.split("\t") if tabs else line.split()
        if not line.strip():
            if words:
                yield Sentence(words, to_bio2(tags), location)
                words, tags = [], []
            continue
        if cells[0] == "-DOCSTART-" or (line.startswith("#") and "\t" not in line and (tabs, len(cells)) != layout):
            continue  # start of a document, or a comment
        word, tag = ("".join(cells[column - 1 : column]).strip() for column in (word_column, tag_column))
        if not (word and tag):
            accepted = f"a line needs a word in column {word_column} and a tag in column {tag_column}"
            raise BadInput(f"{path}:{n}: {line.strip()[:40]!r}: {accepted}; fix it, or set data.text and data.label")
        layout = tabs, len(cells)
        if word_column == 1 or not SKIPPED_ID.fullmatch(cells[0]):
            location = location if words else f"{path}:{n}"
            words.append(word)
            tags.append(tag)
    if words:
        yield Sentence(words, to_bio2(tags), location)


def _read_lines(path: Path) -> Iterator[str]:
    rest = ""
    for block in read_blocks(Span(path)):
        *lines, rest = (rest + block).split("\n")
        yield from lines
    if rest:
        yield rest


def to_bio2(tags: Sequence[str]) -> list[str]:
    """BIO2 tags from BIO, IOB1, BIOES or BILOU: B- on the first word of an entity, I- on the rest. Others unchanged."""
    converted, open_label = list[str](), ""  # label of the entity that the next I- continues
    for tag in tags:
        match = ENTITY_TAG.fullmatch(tag)
        if match is None:
            converted.append(tag)
            open_label = ""
            continue
        prefix, label = match.groups()
        converted.append(f"{'B' if prefix in START_PREFIXES or label != open_label else 'I'}-{label}")
        open_label = "" if prefix in END_PREFIXES else label
    return converted


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sequence of BIO2 tags."""
    entities = list[Entity]()
    for n, tag in enumerate(tags):
        if tag.startswith("B-"):
            entities.append(Entity(tag[2:], n, n + 1))
        elif tag.startswith("I-"):
            entities[-1] = entities[-1]._replace(stop=n + 1)
    return entities
