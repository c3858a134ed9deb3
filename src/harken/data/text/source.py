"""Text for language models: from files to streams of tokens, in train, valid and test, encoded once into the cache."""

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from harken.data.cache import cache_folder
from harken.data.detect import preview
from harken.data.detect.kinds import sniff
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.tokenizer import Tokenizer, train
from harken.errors import BadInput, BadRun, BadSetting, near_name
from harken.events import Listener, silent
from harken.settings import Part

from .documents import Layout, layout
from .encode import Encoded, Span, encode_files, read_blocks

NAMED = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
LINE = 1 << 20  # bytes; a longer line is cut
VOCAB = {"char": 0, "byte": 256, "word": 10_000, "bpe": 4096, "wordpiece": 8192}


class TextSource(Part):
    """The settings of a text."""

    task: ClassVar[str] = "next-word"
    one_of: ClassVar = (("path", "mix"),)  # the last that was said counts

    kind: Literal["text"] = "text"
    path: str | None = Field(None, description="a file or a folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="the file to learn from, instead of path")
    valid: str | float = Field(
        0.1, description="a file, or the share of the text's end that is held out while learning"
    )
    test: str | float = Field(
        0.0, description="a file, or the share of the text's end that is kept for the last judgement"
    )
    mix: dict[str, float] | None = Field(
        None, description="several texts and how often each is drawn: {a.txt = 0.6, b.txt = 0.4}"
    )
    tokenizer: Literal["char", "byte", "word", "bpe", "wordpiece"] = Field(
        "char", description="what a token is; words are split at white space only: hat. is not hat; wordpiece: BERT's"
    )
    lowercase: bool = Field(True, description="wordpiece: read capitals as small letters, and letters without accents")
    vocab_size: int | None = Field(
        None, ge=3, le=1_000_000, description="most tokens; none: 10,000 words, 4,096 byte pairs, 8,192 word pieces"
    )
    examples: int | None = Field(None, ge=1, description="learn from the first so many lines only")
    batching: Literal["auto", "windows", "stream", "packed", "sentences"] = Field(
        "auto",
        description="shuffled windows, readers that go on where they stopped, whole documents packed into rows, or"
        " sentences of documents, for masked words",
    )
    documents: Literal["auto", "file", "blank", "line"] = Field(
        "auto",
        description="what a document is: a file, what stands between blank lines, or a line; auto: a file if packed, of"
        " sentences the one by which the text is parted",
    )
    sha256: str | None = Field(None, description="fingerprint of the text; a run refuses to be repeated on another one")

    @field_validator("mix", mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        """TOML reads the name a.txt as a table in a table; here it is a file's name."""

        def flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
            for key, value in table.items():
                yield from flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]

        return dict(flat(given)) if isinstance(given, dict) else given

    @field_validator("mix")
    @classmethod
    def _weighted(cls, mix: dict[str, float] | None) -> dict[str, float] | None:
        if mix is not None and not (all(w >= 0 for w in mix.values()) and 0 < sum(mix.values()) < math.inf):
            raise ValueError("weights are 0 or more, and one of them is more")
        return mix

    def located(self) -> "TextSource":
        """The same settings with absolute paths."""
        paths = {name: getattr(self, name) for name in ("path", "train", "valid", "test")}
        found: dict[str, Any] = {n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)}
        if self.mix:
            found["mix"] = {str(Path(p).absolute()): w for p, w in self.mix.items()}
        return self.model_copy(update=found)

    def open(
        self, *, stateful: bool = False, tokenizer: Tokenizer | None = None, listen: Listener = silent
    ) -> "TextData":
        """Read, split and encode the text; what is in the cache already is only mapped."""
        spans = self._split()
        home, learn = cache_folder("text"), [s for part in spans["train"] for s in part]

        def blocks() -> Iterator[str]:
            return (block for span in learn for block in read_blocks(span))

        tokenizer = tokenizer or learned(
            self.tokenizer,
            self.vocab_size or VOCAB[self.tokenizer],
            blocks,
            home,
            lowercase=self.lowercase,
            listen=listen,
        )
        apart = self.batching == "packed"
        ends = apart or tokenizer.kind == "bpe"  # byte pairs have a mark for the end of a file

        how = self._layout(learn, tokenizer) or ends

        def encode(part: list[Span]) -> Encoded:
            cut = _documents(part, self.documents) if apart else part
            return encode_files(cut, tokenizer, home, documents=how, listen=listen)

        splits = {name: [encode(part) for part in parts if part] for name, parts in spans.items()}
        for name, streams in list(splits.items()):
            if sum(len(s.tokens) for s in streams) < 2:
                if name == "train":
                    raise BadInput(
                        f"{' + '.join(self._texts())}: there are fewer than 2 tokens to learn from; give a longer text"
                    )
                del splits[name]
                if getattr(self, name):
                    listen("notice", text=f"data.{name}: the text is too short to hold a part of it out")
        paths = (span.path for parts in spans.values() for part in parts for span in part)
        digest = fingerprint(paths, self.sha256, " + ".join(self._texts()))
        batches = self._cut(stateful)
        if self.mix and batches != "windows":
            raise BadSetting(f"data.mix: mixed texts are drawn as windows, not as {batches}; set data.batching=windows")
        names = _short(self.mix) if self.mix else ("text",)
        weights = list(self.mix.values()) if self.mix else None
        held = {n: s for n, s in splits.items() if n != "train"}
        asked = {n: tuple(name for name, part in zip(names, spans[n], strict=False) if part) for n in held}
        return TextData(tokenizer, splits["train"], held, names, weights, batches, digest, asked)

    def other(
        self, path: str, split: str, *, tokenizer: Tokenizer, stateful: bool = False, listen: Listener = silent
    ) -> "TextData":
        """The same data with another text as one of its splits.

        A run may have travelled without the text it learned from: then the other text stands alone.
        """
        self._refuse(path)
        spans = [Span(file) for file in self.files(Path(path))]
        how = self._layout(spans, tokenizer) or False
        found = [encode_files(spans, tokenizer, cache_folder("text"), documents=how, listen=listen)]
        if len(found[0].tokens) < 2:
            raise BadInput(f"{path}: there are fewer than 2 tokens to judge; give a longer text")
        try:
            known = self.model_copy(update={"sha256": None})
            opened = known.open(stateful=stateful, tokenizer=tokenizer, listen=listen)
        except BadInput as error:
            listen("notice", text=f"the free baselines are left out, for lack of what they learn from: {error}")
            digest = found[0].sha256
            batches = self._cut(stateful)
            return TextData(tokenizer, found, {split: found}, ("text",), None, batches, digest, learned=False)
        return replace(opened, splits={**opened.splits, split: found})

    def _cut(self, stateful: bool) -> str:
        return ("stream" if stateful else "windows") if self.batching == "auto" else self.batching

    def _layout(self, spans: list[Span], tokenizer: Tokenizer) -> Layout | None:
        """How the text shows its sentences, where they are asked for."""
        if self.batching != "sentences":
            return None
        if tokenizer.kind != "wordpiece":
            raise BadSetting(
                f"data.batching=sentences: {tokenizer.kind} tokens have no marks; set data.tokenizer=wordpiece"
            )
        return layout(next((block for span in spans for block in read_blocks(span)), ""), self.documents)

    def words(self, folder: Path) -> Tokenizer:
        """The tokens that a run kept."""
        return pretrained.load(folder / "tokenizer.json")

    def files(self, path: Path) -> list[Path]:
        """The file, or the files of a folder in the order of their names; hidden ones and read-mes are left out.

        A plug-in that reads another format answers files of text instead: all texts of a run come through here.
        """
        if path.is_dir():
            return sorted(preview.files_of(path))
        if not path.is_file():
            raise BadInput(f"{path}: there is no such file; check the name{near_name(path)}")
        return [path]

    def _texts(self) -> list[str]:
        """The text to learn from, or the mixed ones."""
        return list(self.mix or filter(None, [self.train or self.path]))

    def _refuse(self, path: str) -> None:
        """Refuse what training refuses as no text, unless the run itself was told to take such data for text."""
        if self.kind != "text" or (guess := sniff(path)).plain:  # a plug-in's kind is never guessed
            return
        with suppress(BadInput):
            own = sniff(next(iter(self._texts()), ""))
            if own.kind == guess.kind and not own.plain:
                return
        raise BadInput(f"{path}: this is {guess.kind} ({guess.reason}), and this run reads text; give it a plain text")

    def _split(self) -> dict[str, list[list[Span]]]:
        """For each split, for each mixed text, the spans of files it is made of."""
        texts, by_name = self._texts(), self.mix is not None or self.train is None
        if not texts:
            raise BadSetting("data.path is not given; name a file or a folder: data.path=my.txt")
        parts = [self._parts(self.files(Path(name)), by_name=by_name) for name in texts]
        found = {split: [part[split] for part in parts] for split in NAMED}
        if not all(found["train"]):
            raise BadInput(f"{texts[found['train'].index([])]}: there is nothing to learn from; give a longer text")
        for split in ("valid", "test"):
            if isinstance(given := getattr(self, split), str):
                found[split] = [[Span(f) for f in self.files(Path(given))]]
        return found | {"train": [self._first(spans) for spans in found["train"]]}

    def _parts(self, found: list[Path], *, by_name: bool) -> dict[str, list[Span]]:
        """The splits of one text: files that are named so, and a share of the end for those that are not."""
        named = {split: [Span(f) for f in found if by_name and is_named(f, words)] for split, words in NAMED.items()}
        if sum(map(bool, named.values())) < (2 if named["train"] else 1):
            return self._tail([Span(f) for f in found])  # one name alone says nothing: a-train-ride.txt
        apart = {span.path for split in ("valid", "test") for span in named[split]}
        learn = named["train"] or [Span(f) for f in found if f not in apart]
        rest = self._tail(learn, valid=not named["valid"], test=not named["test"])
        return rest | {split: named[split] for split in ("valid", "test") if named[split]}

    def _tail(self, spans: list[Span], *, valid: bool = True, test: bool = True) -> dict[str, list[Span]]:
        """Hold out the end of the text: whole lines for words and byte pairs, whole characters otherwise."""
        held = {"valid": self.valid if valid else 0.0, "test": self.test if test else 0.0}
        shares = [share if isinstance(share, float) else 0.0 for share in held.values()]
        if any(not 0 <= s < 1 for s in shares) or sum(shares) >= 1:
            raise BadSetting(
                f"data.valid = {self.valid}, data.test = {self.test}: shares of the text lie between 0 and 1"
            )
        total = sum(_size(s) for s in spans)
        lines = self.tokenizer in ("word", "bpe", "wordpiece")
        cuts = [0, int(total * (1 - sum(shares))), int(total * (1 - shares[1])), total]
        if shares[1] == 0:
            cuts[2] = total
        return {name: _cut(spans, a, b, lines) for name, (a, b) in zip(NAMED, pairwise(cuts), strict=True)}

    def _first(self, spans: list[Span]) -> list[Span]:
        """The first `examples` lines."""
        left, kept = self.examples, []
        for span in spans if left else ():
            with span.path.open("rb") as file:
                file.seek(span.start)
                while left and file.tell() < (span.stop or span.path.stat().st_size) and file.readline():
                    left -= 1
                kept.append(Span(span.path, span.start, min(file.tell(), span.stop or file.tell())))
            if not left:
                break
        return kept if self.examples else spans


@dataclass(frozen=True)
class TextData:
    """An opened text: its tokens by split."""

    tokenizer: Tokenizer
    train: list[Encoded]  # one for each mixed text
    splits: dict[str, list[Encoded]]  # valid and test, where there are any
    names: tuple[str, ...]
    weights: list[float] | None
    batching: str
    sha256: str
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)  # which of the mixed texts each split is made of
    learned: bool = True  # train is what the run learned from; else that is gone, and a judged text stands in for it

    @property
    def vocab(self) -> int:
        return self.tokenizer.vocab

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        parts = {"train": self.train, **self.splits}
        return {
            "tokens": {name: sum(len(s.tokens) for s in streams) for name, streams in parts.items()},
            "characters": {name: sum(s.characters for s in streams) for name, streams in parts.items()},
            "vocab": self.vocab,
            "token": self.tokenizer.kind,
            "sha256": self.sha256,
        }


def _short(paths: Iterable[str]) -> tuple[str, ...]:
    """Names without the folder they share: the same from wherever they are opened."""
    full = [os.path.abspath(path) for path in paths]
    home = os.path.commonpath([os.path.dirname(path) for path in full])
    return tuple(os.path.relpath(path, home) for path in full)


def fingerprint(paths: Iterable[Path], expected: str | None, name: str) -> str:
    """SHA-256 over the contents of the files, each once: the same however they are split. Another one is refused."""
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    if expected not in (None, found := digest.hexdigest()):
        raise BadInput(
            f"{name}: the text is not the one this recipe was made for (its SHA-256 differs); "
            f"bring that one back, or train anew on this one: harken train {name}"
        )
    return found


def is_named(path: Path, words: Iterable[str]) -> bool:
    return any(piece in words for piece in re.split(r"[._\-]", path.name.lower()))


def _size(span: Span) -> int:
    return (span.path.stat().st_size if span.stop is None else span.stop) - span.start


def _cut(spans: Sequence[Span], a: int, b: int, lines: bool) -> list[Span]:
    """The bytes a to b of the spans taken one after the other, moved on to where a character (or a line) begins."""
    kept, at = [], 0
    for span in spans:
        size = _size(span)
        low, high = max(a - at, 0), min(b - at, size)
        if low < high:
            edges = (_edge(span, low, size, lines), _edge(span, high, size, lines))
            if edges[0] < edges[1]:
                kept.append(Span(span.path, span.start + edges[0], span.start + edges[1]))
        at += size
    return kept


def _edge(span: Span, offset: int, size: int, lines: bool) -> int:
    if offset in (0, size):
        return offset
    with span.path.open("rb") as file:
        file.seek(span.start + offset - 1)
        if lines:
            line = file.readline(LINE)
            if line.endswith(b"\n") and offset + len(line) - 1 < size:
                return offset + len(line) - 1
            if space := re.search(rb"\s+", line):  # no line ends here: between two words, then
                return min(size, offset - 1 + space.end())
            file.seek(span.start + offset - 1)  # an endless word: between two characters
        ahead = file.read(5)
    if ahead.startswith(b"\r\n"):
        return offset + 1  # one newline, not two halves
    return min(size, offset + next((n for n, byte in enumerate(ahead[1:]) if byte & 0xC0 != 0x80), len(ahead) - 1))


def _documents(spans: Iterable[Span], what: str) -> list[Span]:
    """Each document as a span of its own."""
    if what in ("auto", "file"):
        return list(spans)
    found: list[Span] = []
    for span in spans:
        start = at = span.start
        with span.path.open("rb") as file:
            file.seek(start)
            for line in iter(file.readline, b""):
                at += len(line)
                if at >= (span.stop or at + 1) or what == "line" or not line.strip():
                    found += [Span(span.path, start, min(at, span.stop or at))] if at > start else []
                    start = at
                if span.stop is not None and at >= span.stop:
                    break
        if at > start:
            found.append(Span(span.path, start, min(at, span.stop or at)))
    return found


def learned(
    kind: str,
    vocab: int,
    texts: Callable[[], Iterable[str]],
    home: Path,
    *,
    lowercase: bool = True,
    listen: Listener = silent,
) -> Tokenizer:
    """The tokens learned from the training text. Byte pairs take a while: they are kept, by the text's fingerprint."""
    if kind not in ("bpe", "wordpiece"):
        return train(kind, texts, vocab, listen=listen)
    digest = hashlib.sha256(f"{kind} {vocab} {lowercase} 1".encode())
    for block in texts():
        digest.update(block.encode())
    kept = home / f"tokenizer-{digest.hexdigest()[:32]}.json"
    with suppress(BadRun, OSError):  # not there yet, or left half-written
        return Tokenizer.load(kept)
    made = train(kind, texts, vocab, lowercase=lowercase, listen=listen)
    beside = kept.with_name(f".tmp-{os.getpid()}-{kept.name}")
    made.save(beside)
    beside.replace(kept)
    return made
