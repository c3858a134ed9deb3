"""Text for language models: files to token streams in train, valid and test, encoded once into the cache."""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from harken.data.cache import cache_folder
from harken.data.detect.kinds import detect_kind
from harken.data.partition import SPLIT_FILE_NAMES
from harken.data.source import DataSource, Encoding, no_baselines
from harken.data.split import SplitData, files_sha256, group_by_split, list_files
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.tokenizer import Tokenizer, train_or_load_tokenizer
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent

from .documents import DocumentLayout, detect_layout
from .encode import EncodedText, Span, encode_files, read_blocks

MAX_LINE_BYTES = 1 << 20  # a longer line may be split between two splits
DEFAULT_VOCAB_SIZE = {"char": 0, "byte": 256, "word": 10_000, "bpe": 4096, "wordpiece": 8192}


class TextSource(DataSource[Tokenizer]):
    """Settings of a text."""

    exclusive: ClassVar = (("path", "mix"),)  # the last one set wins

    kind: Literal["text"] = "text"
    path: str | None = Field(None, description="file or folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="training file, instead of path")
    valid: str | float = Field(0.1, description="validation file, or fraction held out from the end of the text")
    test: str | float = Field(0.0, description="test file, or fraction held out from the end of the text")
    mix: dict[str, float] | None = Field(None, description="texts with sampling weights: {a.txt = 0.6, b.txt = 0.4}")
    tokenizer: Literal["char", "byte", "word", "bpe", "wordpiece"] = Field(
        "char", description="tokenizer; word splits at white space only (hat. is not hat), wordpiece is BERT's"
    )
    lowercase: bool = Field(False, description="whether wordpiece lowercases the text and strips accents")
    vocab_size: int | None = Field(
        None,
        ge=3,
        le=1_000_000,
        description="maximum vocabulary size; none: 10,000 for word, 4,096 for bpe, 8,192 for wordpiece",
    )
    examples: int | None = Field(None, ge=1, description="number of training lines to use; none: all")
    batching: Literal["auto", "windows", "stream", "packed", "sentences"] = Field(
        "auto",
        description="shuffled windows, contiguous streams (stateful models), documents packed into rows, or sentences"
        " of documents (masked language models)",
    )
    documents: Literal["auto", "file", "blank", "line"] = Field(
        "auto", description="document boundary: file, blank line or line; auto: file if packed, detected for sentences"
    )
    encoding: Encoding = None
    sha256: str | None = Field(None, description="SHA-256 of the text; training refuses another text")

    @field_validator("mix", mode="before")
    @classmethod
    def _flatten_names(cls, mix: Any) -> Any:
        """File names as keys: TOML parses a.txt as a nested table."""

        def items(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
            for key, value in table.items():
                yield from items(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]

        return dict(items(mix)) if isinstance(mix, dict) else mix

    @field_validator("mix")
    @classmethod
    def _check_weights(cls, mix: dict[str, float] | None) -> dict[str, float] | None:
        if mix is not None and not (all(w >= 0 for w in mix.values()) and 0 < sum(mix.values()) < math.inf):
            raise ValueError("weights must be at least 0, and one of them above 0")
        return mix

    def with_absolute_paths(self) -> Self:
        paths = {name: getattr(self, name) for name in ("path", "train", "valid", "test")}
        absolute: dict[str, Any] = {n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)}
        if self.mix:
            absolute["mix"] = {str(Path(p).absolute()): w for p, w in self.mix.items()}
        return self.model_copy(update=absolute)

    def load_data(
        self, *, stateful: bool = False, tokenizer: Tokenizer | None = None, listen: Listener = silent
    ) -> "TextData":
        """Read, split and encode the text; cached ids are memory-mapped."""
        spans = self._split()
        train_spans, text_name = [s for part in spans["train"] for s in part], " + ".join(self._texts())
        if tokenizer is None:
            size, read = self.vocab_size or DEFAULT_VOCAB_SIZE[self.tokenizer], partial(read_blocks, *train_spans)
            tokenizer = train_or_load_tokenizer(self.tokenizer, size, read, lowercase=self.lowercase, listen=listen)
        packed = self.batching == "packed"
        documents = self._layout(train_spans, tokenizer) or packed or tokenizer.kind == "bpe"  # <|endoftext|>

        def encode(part: list[Span]) -> EncodedText:
            pieces = _document_spans(part, self.documents) if packed else part
            return encode_files(pieces, tokenizer, cache_folder("text"), documents=documents, listen=listen)

        splits = {name: [encode(part) for part in parts if part] for name, parts in spans.items()}
        too_short = [name for name, texts in splits.items() if sum(len(text.tokens) for text in texts) < 2]
        if "train" in too_short:
            raise BadInput(f"{text_name}: fewer than 2 tokens of training text; give a longer text")
        for name in too_short:
            del splits[name]
            if getattr(self, name):
                listen("notice", text=f"data.{name}: the text is too short to hold out a split")
        paths = (span.path for parts in spans.values() for part in parts for span in part)
        digest, batching = files_sha256(paths, self.sha256, text_name), self._resolve_batching(stateful)
        if self.mix and batching != "windows":
            raise BadSetting(f"data.mix: mixed texts need data.batching=windows, not {batching}")
        names = _relative_names(self.mix) if self.mix else ("text",)
        weights, train = list(self.mix.values()) if self.mix else None, splits.pop("train")
        split_names = {n: tuple(name for name, part in zip(names, spans[n], strict=False) if part) for n in splits}
        more: dict[str, Any] = {"names": names, "weights": weights, "batching": batching, "split_names": split_names}
        return TextData(self, tokenizer, train, splits, digest, **more)

    def load_split(
        self, path: str, split: str, *, tokenizer: Tokenizer, stateful: bool = False, listen: Listener = silent
    ) -> "TextData":
        self._check_is_text(path)
        spans = [Span(file, encoding=self.encoding) for file in self.files(Path(path))]
        documents = self._layout(spans, tokenizer) or False
        encoded = [encode_files(spans, tokenizer, cache_folder("text"), documents=documents, listen=listen)]
        if len(encoded[0].tokens) < 2:
            raise BadInput(f"{path}: fewer than 2 tokens to evaluate; give a longer text")
        try:
            data = self.train_settings.load_data(stateful=stateful, tokenizer=tokenizer, listen=listen)
        except BadInput as error:
            listen("notice", text=no_baselines(error))
            more: dict[str, Any] = {"has_train": False, "batching": self._resolve_batching(stateful)}
            return TextData(self, tokenizer, encoded, {split: encoded}, encoded[0].sha256, **more)
        return replace(data, splits={**data.splits, split: encoded})

    def _resolve_batching(self, stateful: bool) -> str:
        return ("stream" if stateful else "windows") if self.batching == "auto" else self.batching

    def _layout(self, spans: list[Span], tokenizer: Tokenizer) -> DocumentLayout | None:
        """Sentence and document boundaries of the text, if batching needs them."""
        if self.batching != "sentences":
            return None
        if tokenizer.kind != "wordpiece":
            problem = f"{tokenizer.kind} has no [SEP] and [CLS]"
            raise BadSetting(f"data.batching=sentences: {problem}; set data.tokenizer=wordpiece")
        return detect_layout(next(read_blocks(*spans), ""), self.documents)

    def load_processor(self, folder: Path) -> Tokenizer:
        return pretrained.load_tokenizer(folder / "tokenizer.json")

    def files(self, path: Path) -> list[Path]:
        """The file, or the files of a folder sorted by name.

        A plug-in for another format converts it here and returns text files: all texts of a run are read through it.
        """
        return list_files(path)

    def _texts(self) -> list[str]:
        """Path of the training text, or of the mixed texts."""
        return list(self.mix or filter(None, [self.train or self.path]))

    def _check_is_text(self, path: str) -> None:
        """Raise for data that training does not detect as text, unless the run trained on such data as text."""
        if (
            self.kind != "text" or (detection := detect_kind(path, self.encoding)).is_plain_text
        ):  # plug-in kinds are not detected
            return
        with suppress(BadInput):
            trained_on = detect_kind(next(iter(self._texts()), ""), self.encoding)
            if trained_on.kind == detection.kind and not trained_on.is_plain_text:
                return
        problem = f"detected as {detection.kind} ({detection.reason})"
        raise BadInput(f"{path}: {problem}; this run needs plain text; give a text file")

    def _split(self) -> dict[str, list[list[Span]]]:
        """For each split, for each mixed text, its spans."""
        texts, by_name = self._texts(), self.mix is not None or self.train is None
        if not texts:
            raise BadSetting("data.path is missing; name a file or a folder: data.path=my.txt")
        parts = [self._split_files(self.files(Path(name)), by_name=by_name) for name in texts]
        splits = {split: [part[split] for part in parts] for split in SPLIT_FILE_NAMES}
        if not all(splits["train"]):
            raise BadInput(f"{texts[splits['train'].index([])]}: no training text; give a longer text")
        for split in ("valid", "test"):
            if isinstance(path := getattr(self, split), str):
                splits[split] = [[Span(f, encoding=self.encoding) for f in self.files(Path(path))]]
        return splits | {"train": [self._first_lines(spans) for spans in splits["train"]]}

    def _split_files(self, files: list[Path], *, by_name: bool) -> dict[str, list[Span]]:
        """The splits of one text: by file name, otherwise a fraction of the end."""
        named = (group_by_split(files, lambda path: path) if by_name else {}) or {"train": files}
        spans = {split: [Span(f, encoding=self.encoding) for f in named.get(split, ())] for split in SPLIT_FILE_NAMES}
        tail = self._split_tail(spans["train"], valid=not spans["valid"], test=not spans["test"])
        return tail | {split: spans[split] for split in ("valid", "test") if spans[split]}

    def _split_tail(self, spans: list[Span], *, valid: bool = True, test: bool = True) -> dict[str, list[Span]]:
        """Hold out the end of the text: whole lines for word, bpe and wordpiece, otherwise whole characters."""
        settings = {"valid": self.valid if valid else 0.0, "test": self.test if test else 0.0}
        fractions = [value if isinstance(value, float) else 0.0 for value in settings.values()]
        if any(not 0 <= f < 1 for f in fractions) or sum(fractions) >= 1:
            values = f"data.valid = {self.valid}, data.test = {self.test}"
            raise BadSetting(f"{values}: fractions and their sum must lie in [0, 1)")
        total = sum(_span_size(s) for s in spans)
        by_line = self.tokenizer in ("word", "bpe", "wordpiece")
        bounds = [0, int(total * (1 - sum(fractions))), int(total * (1 - fractions[1])), total]
        if fractions[1] == 0:
            bounds[2] = total
        ranges = zip(SPLIT_FILE_NAMES, pairwise(bounds), strict=True)
        return {name: _slice_spans(spans, a, b, by_line) for name, (a, b) in ranges}

    def _first_lines(self, spans: list[Span]) -> list[Span]:
        """The first `examples` lines."""
        remaining, shortened = self.examples, []
        for span in spans if remaining else ():
            with span.file.open("rb") as file:
                file.seek(span.start)
                while remaining and file.tell() < (span.stop or span.file.stat().st_size) and file.readline():
                    remaining -= 1
                shortened.append(replace(span, stop=min(file.tell(), span.stop or file.tell())))
            if not remaining:
                break
        return shortened if self.examples else spans


@dataclass(frozen=True, eq=False, kw_only=True)
class TextData(SplitData[Tokenizer, list[EncodedText]]):
    """Encoded text by split; each has one EncodedText per mixed text."""

    batching: str
    names: tuple[str, ...] = ("text",)  # of the mixed texts
    weights: list[float] | None = None  # of the mixed texts
    split_names: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of the mixed texts in each split

    def facts(self) -> dict[str, object]:
        """Data statistics for the report."""
        return {
            "tokens": {name: sum(len(s.tokens) for s in streams) for name, streams in self.parts.items()},
            "characters": {name: sum(s.n_characters for s in streams) for name, streams in self.parts.items()},
            "vocab": self.vocab,
            "token": self.tokenizer.kind,
            "sha256": self.sha256,
        }


def _relative_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Names relative to the common folder: independent of the working directory."""
    absolute = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in absolute])
    return tuple(os.path.relpath(path, common) for path in absolute)


def _span_size(span: Span) -> int:
    return (span.file.stat().st_size if span.stop is None else span.stop) - span.start


def _slice_spans(spans: Sequence[Span], a: int, b: int, by_line: bool) -> list[Span]:
    """Bytes a to b of the concatenated spans, each bound moved to the next character (or line) start."""
    parts, offset = [], 0
    for span in spans:
        size = _span_size(span)
        low, high = max(a - offset, 0), min(b - offset, size)
        if low < high:
            start, stop = (_align_offset(span, bound, size, by_line) for bound in (low, high))
            if start < stop:
                parts.append(replace(span, start=span.start + start, stop=span.start + stop))
        offset += size
    return parts


def _align_offset(span: Span, offset: int, size: int, by_line: bool) -> int:
    if offset in (0, size):
        return offset
    with span.file.open("rb") as file:
        file.seek(span.start + offset - 1)
        if by_line:
            line = file.readline(MAX_LINE_BYTES)
            if line.endswith(b"\n") and offset + len(line) - 1 < size:
                return offset + len(line) - 1
            if space := re.search(rb"\s+", line):  # no newline: split between two words
                return min(size, offset - 1 + space.end())
            file.seek(span.start + offset - 1)  # one very long word: split between two characters
        ahead = file.read(5)
    if ahead.startswith(b"\r\n"):
        return offset + 1  # keep CRLF together
    return min(size, offset + next((n for n, byte in enumerate(ahead[1:]) if byte & 0xC0 != 0x80), len(ahead) - 1))


def _document_spans(spans: Iterable[Span], boundary: str) -> list[Span]:
    """One span per document."""
    if boundary in ("auto", "file"):
        return list(spans)
    documents = []
    for span in spans:
        start = offset = span.start
        stop = start + _span_size(span)
        with span.file.open("rb") as file:
            file.seek(start)
            while offset < stop and (line := file.readline()):
                offset = min(offset + len(line), stop)
                if offset == stop or boundary == "line" or not line.strip():
                    documents.append(replace(span, start=start, stop=offset))
                    start = offset
    return documents
