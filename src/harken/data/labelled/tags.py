"""Tagged words in CoNLL columns: one word with its tags per line, a blank line after each sentence."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.detect.kinds import detect_kind
from harken.data.duplicates import near_duplicate_key
from harken.data.targets import unknown_labels_error
from harken.data.text.encode import Span, read_blocks
from harken.data.tokenizers.tokenizer import WordPieces, word_windows
from harken.errors import BadInput
from harken.events import Listener, Overflow

from .batch import EncodedTexts, evenly_spaced
from .examples import ExampleSource, TokenLabelProcessor, concat_texts, select_windows

OUTSIDE = "O"
ENTITY_TAG = re.compile(r"([BIESLU])-(.+)")
START_PREFIXES, END_PREFIXES = frozenset("BSU"), frozenset("ESLU")  # in BIO, BIOES and BILOU
SKIPPED_ID = re.compile(r"\d+[-.]\d+")  # CoNLL-U: multiword tokens (1-2) and empty nodes (2.1)


# --- CoNLL columns ----------------------------------------------------------------------------------------------------

# a word of a plain text as in CoNLL: U.N, 1996-08-22 and Jean-Paul are one word, 's and punctuation are separate
# a combining mark belongs to the letter before it
LETTERS = r"[\w\u0300-\u036f]+"
WORD = re.compile(rf"{LETTERS}(?:[-.,:/&]{LETTERS})*|['’]{LETTERS}|[^\w\s]")


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


def read_sentences(path: Path, word_column: int, tag_column: int, encoding: str | None = None) -> Iterator[Sentence]:
    """The sentences of a file; columns are counted from 1. Entity tags are converted to BIO2."""
    words, tags, layout, location = list[str](), list[str](), (False, 0), ""
    text = "".join(read_blocks(Span(path, encoding=encoding)))
    for n, line in enumerate([*text.split("\n"), ""], 1):  # the last sentence ends, too
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


# --- settings and encoding --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TaggedSentences:
    """Sentences, and their encoded texts: one per sentence, several if it exceeds the maximum length."""

    texts: EncodedTexts
    sentences: list[Sentence]
    sentence_index: list[int]  # of each text
    used_words: list[slice]  # of each text: those whose tags are used; every word of a sentence once
    overflow: Overflow  # the words that are truncated

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, count: int) -> "TaggedSentences":
        """At most `count` sentences, evenly spaced."""
        indices = evenly_spaced(len(self.sentences), count)
        windows, sentence_index = select_windows(self.sentence_index, indices)
        sentences, used_words = [self.sentences[n] for n in indices], [self.used_words[n] for n in windows]
        return TaggedSentences(self.texts.select(windows), sentences, sentence_index, used_words, self.overflow)

    def facts(self) -> dict[str, int]:
        return {"sentences": len(self.sentences), "words": sum(len(s.words) for s in self.sentences)}


class TagSource(ExampleSource[Sentence, TokenLabelProcessor, TaggedSentences]):
    """Settings of tagged sentences."""

    task: ClassVar[str] = "tag"

    kind: Literal["tags"] = "tags"
    text: int | None = Field(None, ge=1, description="column of the words, counted from 1; default: detected")
    label: int | None = Field(None, ge=1, description="column of the tags, counted from 1; default: detected")
    max_length: int = Field(256, ge=8, description="maximum number of tokens of a text; longer sentences are split")

    def read(self, path: Path, listen: Listener) -> list[Sentence]:
        word_column, tag_column = self.text, self.label
        if word_column is None or tag_column is None:
            detection = detect_kind(path, self.encoding)
            if detection.kind != "tags":
                hint = "name the columns: data.text=1 data.label=4"
                raise BadInput(f"{path}: no columns of words and tags ({detection.reason}); {hint}")
            word_column = word_column or detection.settings["data.text"]
            tag_column = tag_column or detection.settings["data.label"]
        return list(read_sentences(path, word_column, tag_column, self.encoding))

    def split_key(self, example: Sentence) -> str:
        return " ".join(example.words)

    def near_duplicate_key(self, example: Sentence) -> str:
        return near_duplicate_key(" ".join(example.words))

    def location(self, example: Sentence) -> str:
        return example.location

    def labels_of(self, examples: Sequence[Sentence]) -> list[tuple[str, ...]]:
        """The entities of each sentence, or the tags if they mark no entities."""
        has_entities = any(ENTITY_TAG.fullmatch(tag) for sentence in examples for tag in sentence.tags)
        return [
            tuple(entity.label for entity in extract_entities(s.tags)) if has_entities else tuple(s.tags)
            for s in examples
        ]

    def overflow(self, part: TaggedSentences) -> Overflow:
        return part.overflow

    def examples_in(self, part: TaggedSentences) -> list[Sentence]:
        return part.sentences

    def texts(self, examples: Iterable[Sentence]) -> Iterator[str]:
        return (" ".join(sentence.words) for sentence in examples)

    def labels(self, examples: list[Sentence]) -> list[str]:
        """The tags in order, with I- for every entity label, even if no training entity has two words."""
        tags = {tag for sentence in examples for tag in sentence.tags}
        tags |= {f"I-{tag[2:]}" for tag in tags if ENTITY_TAG.fullmatch(tag)}
        if len(tags) < 2:
            only = next(iter(tags), "O")
            raise BadInput(f"{self.train_path}: the only tag is {only!r}; tagging needs at least two; set data.label")
        return sorted(tags, key=lambda tag: (tag != "O", tag[2:] if ENTITY_TAG.fullmatch(tag) else tag, tag))

    def encode_examples(self, examples: list[Sentence], processor: TokenLabelProcessor) -> TaggedSentences:
        return encode_sentences(examples, processor, self.max_length)


def encode_sentences(
    sentences: Sequence[Sentence], processor: TokenLabelProcessor, max_length: int, *, overlapping: bool = False
) -> TaggedSentences:
    """Encode sentences with the tag of each word as the target of its first piece.

    A sentence that is too long is split into windows. If they are overlapping, the tag of a word is that of the window
    in which the word is most central.
    """
    pieces, label_ids = WordPieces(processor.tokenizer), {label: n for n, label in enumerate(processor.labels)}
    rows, sentence_index, used_words, n_start = [], [], list[slice](), len(processor.start_ids)
    if unknown := [(tag, s) for s in sentences for tag in s.tags if tag not in label_ids]:
        places = [(tag, f"{s.location}: {' '.join(s.words)[:40]!r}") for tag, s in unknown]
        raise unknown_labels_error(places, processor.labels, "sentences")
    word_lengths = list[int]()
    for n, sentence in enumerate(sentences):
        ids, lengths, offsets = pieces((word, k > 0) for k, word in enumerate(sentence.words))
        starts, room = np.cumsum(lengths) - lengths, max_length - n_start - 1
        targets = np.full(len(ids), IGNORE)
        targets[starts + offsets] = [label_ids[tag] for tag in sentence.tags]
        word_lengths += lengths.tolist()
        windows = list(word_windows(lengths, room, room // 2 if overlapping else 0))
        used_words += _central_words(windows)
        for i, j in windows:
            window = slice(starts[i], min(starts[j - 1] + lengths[j - 1], starts[i] + room))
            tokens, window_targets = [*processor.start_ids, *ids[window]], targets[window].tolist()
            rows.append((tokens, [IGNORE] * n_start + window_targets, max_length))
            sentence_index.append(n)
    overflow = Overflow.of(word_lengths, max_length - n_start - 1, inputs="words", remedy="increase data.max_length")
    texts = concat_texts(rows, processor.end_id)
    return TaggedSentences(texts, list(sentences), sentence_index, used_words, overflow)


def _central_words(windows: Sequence[tuple[int, int]]) -> list[slice]:
    """The words of each window that are nearer to its middle than in the next and the previous window."""
    cuts = [0, *((i + j + 1) // 2 for (_, j), (i, _) in pairwise(windows)), *(j for _, j in windows[-1:])]
    return [slice(a - i, b - i) for (i, _), a, b in zip(windows, cuts, cuts[1:], strict=False)]
