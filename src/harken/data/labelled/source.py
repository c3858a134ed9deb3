"""Texts with labels: rows of a table or of JSON lines, with one text or two, and a label, a number, or several labels.

A held-out share is drawn label by label, so that each has as much of a label as the whole, and by a hash of the text,
so that no text stands on two sides and adding rows moves little.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from harken.data.detect.kinds import sniff
from harken.data.detect.preview import columns_of
from harken.data.pairs.files import clean
from harken.data.pairs.source import key
from harken.data.sets.columns import NUMBERS, table_of
from harken.data.split import LABELS, MOST, Positive, kept
from harken.data.tables.read import Asked, Flaws, rows_of
from harken.data.targets import KINDS, amount, answer_of, order, unknown
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.pairs import Ids, Side, apart, encode_lines
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.settings import Outputs

from .batch import Texts
from .examples import ExampleSource, LabelWords

Answer = Literal["label", "number", "multilabel"]
YES, NO = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")  # in a column of its own for each label


class Row(NamedTuple):
    """One or two texts, what is said of them, and where that stands."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]  # one; of several at once, those that apply
    place: str


@dataclass(frozen=True, eq=False)
class TextLabels(LabelWords):
    """Tokens, the labels of a text, and what is asked: one of them, a number (its mean and spread), or several."""

    target_type: Answer = "label"
    mean: float = 0.0
    spread: Positive = 1.0
    pair: bool = False

    @property
    def vocab(self) -> Outputs:
        return Outputs(self.tokenizer.vocab, len(self.labels))

    def files(self) -> dict[str, bytes]:
        said = {name: getattr(self, name) for name in ("labels", "target_type", "mean", "spread", "pair")}
        return {**self.tokenizer.files(), LABELS: json.dumps(said, ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "TextLabels":
        return kept(cls, folder, "the labels of a text", tokenizer=pretrained.load(folder / "tokenizer.json"))

    def texts(self, given: Sequence[tuple[str, ...]], longest: int) -> tuple[Side, Ids, int]:
        """Texts between their marks, where the second of each begins, and how many were cut: the longer one first."""
        first, *other = (self._ids(list(map(clean, side))) for side in zip(*given, strict=True))
        begin, edge = np.array(self.begin or [self.edge]), np.array([self.edge])
        room = longest - len(begin) - 1 - len(other)
        rows, second, cut = [], [], 0
        for n, a in enumerate(first):
            b = other[0][n] if other else a[:0]
            kept = min(len(b), max(room // 2, room - len(a)))
            cut += len(a) + len(b) > room
            a, b = a[: room - kept], b[:kept]
            rows.append(np.concatenate([begin, a, edge, b] if other else [begin, a]))
            second.append(len(begin) + len(a) + 1 if other else longest)
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Side(np.concatenate(rows), starts, self.edge), np.array(second), cut

    def _ids(self, texts: list[str]) -> list[Ids]:
        if self.tokenizer.kind == "wordpiece" or isinstance(self.tokenizer, pretrained.Foreign):  # no lines together
            return [self.tokenizer.encode(text) for text in texts]
        full = [n for n, text in enumerate(texts) if text]  # an empty line is none
        ids, lengths = encode_lines(self.tokenizer, [texts[n] for n in full])
        found = [ids[:0]] * len(texts)
        for n, end, length in zip(full, np.cumsum(lengths), lengths, strict=True):
            found[n] = ids[end - length : end]
        return found

    def targets(self, rows: Sequence[Row]) -> Ids:
        """What is asked of each row."""
        if self.target_type == "number":
            amounts = np.array([amount(row.labels[0], row.place) for row in rows], np.float64)
            return ((amounts - self.mean) / self.spread).astype(np.float32)[:, None]
        number = {label: n for n, label in enumerate(self.labels)}
        found = np.zeros((len(rows), len(self.labels)), np.float32)
        for n, row in enumerate(rows):
            for label in row.labels:
                if label not in number:
                    raise unknown(label, self.labels, row.place)
                found[n, number[label]] = 1
        return found if self.target_type == "multilabel" else found.argmax(1)


@dataclass(frozen=True, eq=False)
class Labelled:
    """The rows of a split, and the texts they are read as."""

    texts: Texts
    rows: list[Row]
    cut: int  # texts that were longer than they may be

    def __len__(self) -> int:
        return len(self.rows)

    def facts(self) -> dict[str, Any]:
        return {"texts": len(self.rows), "cut": self.cut}


class TableSource(ExampleSource):
    """The settings of texts with labels."""

    task: ClassVar[str] = "classify"

    kind: Literal["table"] = "table"
    text: int | str | list[int | str] | None = Field(
        None, description="the column of the text, by name or number, or a list of two; none: found"
    )
    label: int | str | list[int | str] | None = Field(
        None, description="the column of the label; a list: a column of 0 and 1 for each of several; none: found"
    )
    separator: str | None = Field(None, description="what stands between several labels in one cell; none: one label")
    target_type: Literal["auto", "label", "number", "multilabel"] = Field(
        "auto", description="what is asked; auto: a number if all are and some are no whole ones, else a label"
    )
    examples: int | None = Field(None, ge=1, description="learn from so many texts only, drawn by a hash of each")
    max_length: int = Field(256, ge=8, description="most tokens of a text with its marks; a longer one is cut")

    def words(self, folder: Path) -> TextLabels:
        return TextLabels.load(folder)

    # --- read ---------------------------------------------------------------------------------------------------------

    def columns(self, path: Path) -> tuple[Asked, Asked]:
        """The columns of the texts and of the labels, found where they are not named."""
        text, label = self.text, self.label
        if text is None or label is None:
            guess = sniff(self._telling(path))
            text = guess.settings.get("data.text") if text is None else text
            label = guess.settings.get("data.label") if label is None else label
            if text is None or label is None:
                way = "name the columns: data.text=... data.label=..."
                table = table_of(path)
                if table and any(c.number >= NUMBERS for c in columns_of(table)):
                    way += "; or, where several rows of numbers make one thing, data.group=... data.label=..."
                raise BadInput(f"{path}: no text with a label was found in it ({guess.reason}); {way}")
        texts = text if isinstance(text, list) else [text]
        if not 0 < len(texts) < 3:
            raise BadInput(f"data.text = {texts}: one text or two are read; name one column or two")
        labels = label if isinstance(label, list) else [label]
        return [("data.text", place) for place in texts], [("data.label", place) for place in labels]

    def _telling(self, path: Path) -> Path:
        """The file that tells the columns of this one: the first to learn from, if this one belongs to it."""
        with suppress(BadInput):  # which may be gone
            files = self._files()
            return files["train"][0] if any(path in some for some in files.values()) else path
        return path

    def read(self, path: Path, listen: Listener) -> list[Row]:
        texts, labels = self.columns(path)
        flaws, found = Flaws("no text with a label"), list[Row]()
        for line, cells in rows_of(path, [*texts, *labels], flaws):
            given = tuple(map(clean, cells[: len(texts)]))
            said = self._said([cell.strip() for cell in cells[len(texts) :]], [str(place) for _, place in labels])
            if not all(given):
                flaws(path, line, "the text is empty")
            elif said is None:
                flaws(path, line, "the label is neither 0 nor 1" if len(labels) > 1 else "the label is empty")
            else:
                found.append(Row(given, said, f"{path}:{line}"))
        if flaws.count > len(found) or not found:
            what = (
                f"{flaws.count} of its {flaws.count + len(found)} lines are {flaws.what} ({', '.join(flaws.first[:1])})"
            )
            raise BadInput(f"{path}: {what}; check data.text and data.label, or mend the file")
        if flaws.count:
            listen("notice", text=str(flaws))
        return found

    def _said(self, cells: list[str], names: list[str]) -> tuple[str, ...] | None:
        """The labels that a row has; None where it does not say."""
        if len(names) > 1:
            known = all(cell.lower() in YES + NO for cell in cells)
            return tuple(n for n, cell in zip(names, cells, strict=True) if cell.lower() in YES) if known else None
        between = self.separator or ("\n" if "\n" in cells[0] or self.target_type == "multilabel" else None)
        if between is None:
            return (cells[0],) if cells[0] else None
        return tuple(dict.fromkeys(label for part in cells[0].split(between) if (label := part.strip())))

    # --- what is asked ------------------------------------------------------------------------------------------------

    def about(self, example: Row) -> str:
        return "\t".join(example.texts)

    def texts(self, examples: Iterable[Row]) -> Iterator[str]:
        every = (text for row in examples for text in row.texts)
        return map(apart, every) if self.tokenizer == "word" else every

    def labels(self, examples: Iterable[Row]) -> list[str]:
        rows = list(examples)
        if self._answer(rows) == "number":
            return [str(self.label if self.label is not None else "number")]
        found = sorted({label for row in rows for label in row.labels}, key=order)
        if len(found) < 2:
            only = f"the only label is {found[0]!r}" if found else "there is no label"
            raise BadInput(f"{self._home}: {only}, so there is nothing to learn; give rows with two labels or more")
        if len(found) > max(KINDS, len(rows) / 2):
            many = f"{len(found):,} different labels of {len(rows):,} rows, such as {found[0][:40]!r}"
            raise BadInput(f"{self._home}: {many}; a label is one of a few; name another column: data.label=...")
        return found

    def _answer(self, rows: Sequence[Row]) -> Answer:
        if self.target_type != "auto":
            return self.target_type
        if self.separator or isinstance(self.label, list) or any(len(row.labels) != 1 for row in rows):
            return "multilabel"
        return answer_of(row.labels[0] for row in rows)

    def open(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> Any:
        opened = super().open(stateful=stateful, tokenizer=tokenizer, listen=listen)
        if cut := opened.train.cut:
            many = f"{cut:,} of the {len(opened.train):,} texts to learn from are cut to {self.max_length} tokens"
            listen("notice", text=f"{many}; data.max_length=... keeps more of them")
        return opened

    def encoded(self, examples: list[Row], words: LabelWords, *, learn: bool) -> Labelled:
        assert isinstance(words, TextLabels)
        if alone := next((row for row in examples if (len(row.texts) == 2) != words.pair), None):
            many = ("one text", "two texts")
            raise BadInput(
                f"{alone.place}: {many[not words.pair]} where {many[words.pair]} were learned; name them: data.text"
            )
        side, second, cut = words.texts([row.texts for row in examples], self.max_length)
        return Labelled(Texts(side, second, words.targets(examples)), examples, cut)

    def _words(self, learn: list[Row], given: Any, listen: Listener) -> TextLabels:
        made = super()._words(learn, given, listen)
        if isinstance(made, TextLabels):
            return made
        told = TextLabels(made.tokenizer, made.labels, self._answer(learn), pair=len(learn[0].texts) == 2)
        if told.target_type != "number":
            return told
        values = np.array([amount(row.labels[0], row.place) for row in learn])
        if not (spread := float(values.std())):
            raise BadInput(f"{self._home}: the only number is {values[0]:g}, so there is nothing to learn")
        return replace(told, mean=float(values.mean()), spread=spread)

    def _drawn(self, found: dict[str, list[Row]]) -> dict[str, list[Row]]:
        """Of each label its share, MOST in all: test from one end of the keys' range, valid from the other."""
        rows, strata = dict[str, list[Row]](), dict[tuple[str, ...], list[str]]()
        for row in found["train"]:
            rows.setdefault(self.about(row), []).append(row)
        amounts = self._answer(found["train"]) == "number"
        for about, (first, *_) in rows.items():
            strata.setdefault(() if amounts else first.labels, []).append(about)
        drawn: dict[str, list[Row]] = {}
        for split in ("test", "valid"):
            share = getattr(self, split)
            if split in found:
                continue
            if not 0 <= share < 1:
                raise BadSetting(f"data.{split} = {share}: a share of the texts lies between 0 and 1")
            taken = {self.about(row) for some in drawn.values() for row in some}
            drawn[split] = []
            for texts in strata.values():
                texts.sort(key=key, reverse=split == "valid")
                many = min(round(min(share, MOST / len(rows)) * len(texts)), len(texts) - 1)
                drawn[split] += [row for about in texts[:many] if about not in taken for row in rows[about]]
        if self.examples is not None:  # the first ones of a file may all have one label
            drawn["train"] = sorted(found["train"], key=lambda row: key(self.about(row)))
        return drawn
