"""Tags of words: sentences in CoNLL columns, each word with its tag. The first piece of a word carries the tag."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.detect.kinds import sniff
from harken.data.tokenizers.word_pieces import WordPieces, windows
from harken.errors import BadInput, did_you_mean
from harken.events import Listener

from .batch import Texts, evenly
from .conll import INSIDE, Sentence, sentences
from .examples import ExampleSource, LabelWords, joined, within


@dataclass(frozen=True, eq=False)
class Tagged:
    """Sentences, and the texts they are read as: one each, several where one is longer than a text may be."""

    texts: Texts
    sentences: list[Sentence]
    of: list[int]  # which sentence each text is of

    def __len__(self) -> int:
        return len(self.texts)

    def some(self, many: int) -> "Tagged":
        """So many of the sentences, from everywhere."""
        picks = evenly(len(self.sentences), many)
        texts, of = within(self.of, picks)
        return Tagged(self.texts.some(texts), [self.sentences[n] for n in picks], of)

    def facts(self) -> dict[str, Any]:
        return {"sentences": len(self.sentences), "words": sum(len(s.words) for s in self.sentences)}


class TagSource(ExampleSource):
    """The settings of sentences with tags."""

    task: ClassVar[str] = "tag"

    kind: Literal["tags"] = "tags"
    text: int | None = Field(None, ge=1, description="the column of the words, counted from 1; none: found")
    label: int | None = Field(None, ge=1, description="the column of the tags, counted from 1; none: found")
    lowercase: bool = Field(False, description="wordpiece reads capitals, which mark names, as small letters")
    max_length: int = Field(256, ge=8, description="most tokens of a text; a longer sentence is read in parts")

    def read(self, path: Path, listen: Listener) -> list[Sentence]:
        word, tag = self.text, self.label
        if word is None or tag is None:
            guess = sniff(path)
            if guess.kind != "tags":
                way = "name the columns: data.text=1 data.label=4"
                raise BadInput(f"{path}: no columns of words and tags were found in it ({guess.reason}); {way}")
            word, tag = word or guess.settings["data.text"], tag or guess.settings["data.label"]
        return list(sentences(path, word, tag))

    def about(self, example: Sentence) -> str:
        return " ".join(example.words)

    def texts(self, examples: Iterable[Sentence]) -> Iterator[str]:
        return (" ".join(sentence.words) for sentence in examples)

    def labels(self, examples: Iterable[Sentence]) -> list[str]:
        """The tags in order; an entity that has begun may go on, even if none of the seen ones did."""
        found = {tag for sentence in examples for tag in sentence.tags}
        found |= {f"I-{tag[2:]}" for tag in found if INSIDE.fullmatch(tag)}
        if len(found) < 2:
            only = next(iter(found), "O")
            raise BadInput(f"{self._home}: the only tag is {only!r}, so there is nothing to learn; set data.label")
        return sorted(found, key=lambda tag: (tag != "O", tag[2:] if INSIDE.fullmatch(tag) else tag, tag))

    def encoded(self, examples: list[Sentence], words: LabelWords, *, learn: bool) -> Tagged:
        return tagged(examples, words, self.max_length)


def tagged(some: Sequence[Sentence], words: LabelWords, longest: int) -> Tagged:
    """Sentences as texts of tokens."""
    pieces, number = WordPieces(words.tokenizer), {label: n for n, label in enumerate(words.labels)}
    rows, of, begin = [], [], len(words.begin)
    for n, sentence in enumerate(some):
        if unknown := next((tag for tag in sentence.tags if tag not in number), None):
            known = f"known are {', '.join(words.labels[:12])}{', ...' * (len(words.labels) > 12)}"
            said = f"the tag {unknown!r} (in {' '.join(sentence.words)[:40]!r}) was not learned; {known}"
            raise BadInput(f"{sentence.place}: {said}; mend it.{did_you_mean(unknown, words.labels)}")
        ids, lengths, stands = pieces((word, k > 0) for k, word in enumerate(sentence.words))
        starts, room = np.cumsum(lengths) - lengths, longest - begin - 1
        targets = np.full(len(ids), IGNORE)
        targets[starts + stands] = [number[tag] for tag in sentence.tags]
        for i, j in windows(lengths, room):
            part = slice(starts[i], min(starts[j - 1] + lengths[j - 1], starts[i] + room))
            rows.append(([*words.begin, *ids[part]], [IGNORE] * begin + targets[part].tolist(), longest))
            of.append(n)
    return Tagged(joined(rows, words.edge), list(some), of)
