"""Tagged words in CoNLL columns. The first piece of a word carries its tag."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.detect.kinds import detect_kind
from harken.data.tokenizers.word_pieces import WordPieces, word_windows
from harken.errors import BadInput
from harken.events import Listener
from harken.suggestions import did_you_mean

from .batch import EncodedTexts, evenly_spaced
from .conll import ENTITY_TAG, Sentence, read_sentences
from .examples import ExampleSource, TokenLabelProcessor, concat_texts, select_windows


@dataclass(frozen=True, eq=False)
class TaggedSentences:
    """Sentences, and their encoded texts: one per sentence, several if it exceeds the maximum length."""

    texts: EncodedTexts
    sentences: list[Sentence]
    sentence_index: list[int]  # of each text

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, count: int) -> "TaggedSentences":
        """At most `count` sentences, evenly spaced."""
        indices = evenly_spaced(len(self.sentences), count)
        windows, sentence_index = select_windows(self.sentence_index, indices)
        return TaggedSentences(self.texts.select(windows), [self.sentences[n] for n in indices], sentence_index)

    def facts(self) -> dict[str, Any]:
        return {"sentences": len(self.sentences), "words": sum(len(s.words) for s in self.sentences)}


class TagSource(ExampleSource):
    """Settings of tagged sentences."""

    task: ClassVar[str] = "tag"

    kind: Literal["tags"] = "tags"
    text: int | None = Field(None, ge=1, description="column of the words, counted from 1; default: detected")
    label: int | None = Field(None, ge=1, description="column of the tags, counted from 1; default: detected")
    lowercase: bool = Field(False, description="whether wordpiece lowercases the text; capitals often mark names")
    max_length: int = Field(256, ge=8, description="maximum number of tokens of a text; longer sentences are split")

    def read(self, path: Path, listen: Listener) -> list[Sentence]:
        word_column, tag_column = self.text, self.label
        if word_column is None or tag_column is None:
            detection = detect_kind(path)
            if detection.kind != "tags":
                hint = "name the columns: data.text=1 data.label=4"
                raise BadInput(f"{path}: no columns of words and tags ({detection.reason}); {hint}")
            word_column = word_column or detection.settings["data.text"]
            tag_column = tag_column or detection.settings["data.label"]
        return list(read_sentences(path, word_column, tag_column))

    def split_key(self, example: Sentence) -> str:
        return " ".join(example.words)

    def texts(self, examples: Iterable[Sentence]) -> Iterator[str]:
        return (" ".join(sentence.words) for sentence in examples)

    def labels(self, examples: Iterable[Sentence]) -> list[str]:
        """The tags in order, with I- for every entity label, even if no training entity has two words."""
        tags = {tag for sentence in examples for tag in sentence.tags}
        tags |= {f"I-{tag[2:]}" for tag in tags if ENTITY_TAG.fullmatch(tag)}
        if len(tags) < 2:
            only = next(iter(tags), "O")
            raise BadInput(f"{self._home}: the only tag is {only!r}; tagging needs at least two; set data.label")
        return sorted(tags, key=lambda tag: (tag != "O", tag[2:] if ENTITY_TAG.fullmatch(tag) else tag, tag))

    def encode_examples(
        self, examples: list[Sentence], processor: TokenLabelProcessor, *, learn: bool
    ) -> TaggedSentences:
        return encode_sentences(examples, processor, self.max_length)


def encode_sentences(sentences: Sequence[Sentence], processor: TokenLabelProcessor, max_length: int) -> TaggedSentences:
    """Encode sentences with the tag of each word as the target of its first piece."""
    pieces, label_ids = WordPieces(processor.tokenizer), {label: n for n, label in enumerate(processor.labels)}
    rows, sentence_index, n_start = [], [], len(processor.start_ids)
    for n, sentence in enumerate(sentences):
        if unknown := next((tag for tag in sentence.tags if tag not in label_ids), None):
            labels = f"{', '.join(processor.labels[:12])}{', ...' * (len(processor.labels) > 12)}"
            problem = f"unknown tag {unknown!r} (in {' '.join(sentence.words)[:40]!r})"
            hint = did_you_mean(unknown, processor.labels)
            raise BadInput(f"{sentence.location}: {problem}; the model knows {labels}; fix the tag.{hint}")
        ids, lengths, offsets = pieces((word, k > 0) for k, word in enumerate(sentence.words))
        starts, room = np.cumsum(lengths) - lengths, max_length - n_start - 1
        targets = np.full(len(ids), IGNORE)
        targets[starts + offsets] = [label_ids[tag] for tag in sentence.tags]
        for i, j in word_windows(lengths, room):
            window = slice(starts[i], min(starts[j - 1] + lengths[j - 1], starts[i] + room))
            tokens, window_targets = [*processor.start_ids, *ids[window]], targets[window].tolist()
            rows.append((tokens, [IGNORE] * n_start + window_targets, max_length))
            sentence_index.append(n)
    return TaggedSentences(concat_texts(rows, processor.end_id), list(sentences), sentence_index)
