"""Labelled texts: rows of a table or JSON lines with one or several texts and a label, a number, or several labels.

Held-out splits are stratified by label and drawn by a hash of the text: no text is in two splits, and adding rows
moves few of the old ones.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self
from unicodedata import normalize

import numpy as np
from pydantic import Field

from harken.data.detect.kinds import detect_kind
from harken.data.detect.preview import column_stats
from harken.data.detect.table_kinds import cluster_command
from harken.data.duplicates import near_duplicate_key
from harken.data.label_warnings import numbers_notice, separator_notice
from harken.data.pairs.files import normalize_text
from harken.data.partition import MAX_HELD_OUT, check_fraction, draw_stratified, split_hash
from harken.data.processor import PositiveFloat
from harken.data.sets.columns import NUMERIC_FRACTION, header_names, preview_rows
from harken.data.split import Column
from harken.data.tables.columns import ColumnRequest, iter_columns
from harken.data.tables.frame import frame_column_type
from harken.data.tables.numbers import DECIMAL_DESCRIPTION, MISSING_DESCRIPTION, Decimal, MissingLabels
from harken.data.tables.read import LIST_SEPARATOR, SkippedRows, check_skipped
from harken.data.tables.text_file import JSON_SUFFIXES, text_file
from harken.data.targets import (
    fit_labels,
    fit_numbers,
    infer_target_type,
    missing_targets,
    normalize_numbers,
    standardize_numbers,
    unknown_labels_error,
)
from harken.data.times import parse_times
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.pairs import Array, PairTokenizers, RaggedTokens, detach_punctuation, encode_lines
from harken.errors import BadInput, BadSetting
from harken.events import Listener, Overflow
from harken.settings import LabelOutputs

from .batch import EncodedTexts
from .examples import ExampleData, ExampleSource, LabelledRow, LabelledTexts, TokenLabelProcessor, has_input
from .folders import SUFFIXES, TextFolders, read_folder, text_folders
from .truncation import text_rows

TargetType = Literal["label", "number", "multilabel"]
Columns = int | str | list[int | str] | None
TRUE_VALUES, FALSE_VALUES = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")  # with one column per label
LINE_BREAKS = re.compile(r"[\r\n]+")


class TextWindows(NamedTuple):
    """Encoded texts, one or several windows each, and how many texts exceed the maximum length."""

    tokens: RaggedTokens
    segment_starts: Array  # windows S-1
    text_index: Array  # of each window
    overflow: Overflow


@dataclass(frozen=True, eq=False)
class TextLabelProcessor(TokenLabelProcessor):
    """A tokenizer, the labels of a text, and the target type: one label, a number (with mean and std), or several."""

    target_type: TargetType = "label"
    mean: float = 0.0
    std: PositiveFloat = 1.0
    n_texts: Annotated[int, Field(ge=1)] = 1  # of an input

    @property
    def vocab(self) -> LabelOutputs:
        return LabelOutputs(self.tokenizer.vocab, len(self.labels))

    @classmethod
    def current_fields(cls, saved: object) -> object:
        if isinstance(saved, dict) and isinstance(pair := saved.get("pair"), bool):
            return {name: value for name, value in saved.items() if name != "pair"} | {"n_texts": 1 + pair}
        return saved

    def unknown_words(self, text: str) -> list[str]:
        return PairTokenizers(self.tokenizer, self.tokenizer).unknown_pieces(text)

    def encode_texts(self, rows: Sequence[tuple[str, ...]], max_length: int, *, windows: bool = False) -> TextWindows:
        """The tokens of each row: its texts with the end token between them.

        A longer row is truncated (its longest text first), or split into windows.
        """
        columns = [self.encode_column(list(map(normalize_text, texts))) for texts in zip(*rows, strict=True)]
        start_ids, end_id = np.array(self.start_ids or [self.end_id]), np.array([self.end_id])
        room = max_length - len(start_ids) - len(columns)
        encoded, segment_starts, text_index = list[Array](), list[Array](), list[int]()
        for n, texts in enumerate(zip(*columns, strict=True)):
            for parts in text_rows(texts, room, windows=windows):
                ended = [np.concatenate([part, end_id]) for part in parts[:-1]]
                encoded.append(np.concatenate([start_ids, *ended, parts[-1]]))
                segment_starts.append(len(start_ids) + np.cumsum([len(part) for part in ended], dtype=np.int64))
                text_index.append(n)
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        tokens = RaggedTokens(np.concatenate(encoded), starts, self.end_id)
        lengths = [max_length - room + sum(map(len, texts)) for texts in zip(*columns, strict=True)]
        overflow = Overflow.of(lengths, max_length, inputs="pairs" if len(columns) == 2 else "texts")
        return TextWindows(tokens, np.stack(segment_starts), np.array(text_index), overflow)

    def encode_column(self, texts: list[str]) -> list[Array]:
        """The tokens of each of these normalized texts."""
        if isinstance(self.tokenizer, pretrained.PretrainedTokenizer):
            return [self.tokenizer.encode(text) for text in texts]  # cannot encode many lines at once
        if self.tokenizer.kind == "wordpiece":
            return self.tokenizer.encode_word_pieces(texts)
        non_empty = [n for n, text in enumerate(texts) if text]
        ids, lengths = encode_lines(self.tokenizer, [texts[n] for n in non_empty])
        encoded = [ids[:0]] * len(texts)
        for n, end, length in zip(non_empty, np.cumsum(lengths), lengths, strict=True):
            encoded[n] = ids[end - length : end]
        return encoded

    def targets(self, rows: Sequence[LabelledRow]) -> Array:
        if self.target_type == "number":
            return standardize_numbers([(row.labels[0], row.location) for row in rows], self.mean, self.std)
        label_ids = {label: n for n, label in enumerate(self.labels)}
        pairs = [(label, row.location) for row in rows for label in row.labels]
        if unknown := [(label, place) for label, place in pairs if label not in label_ids]:
            raise unknown_labels_error(unknown, self.labels)
        one_hot = np.zeros((len(rows), len(self.labels)), np.float32)
        for n, row in enumerate(rows):
            for label in row.labels:
                one_hot[n, label_ids[label]] = 1
        return one_hot if self.target_type == "multilabel" else one_hot.argmax(1)


class LabelledTextData(ExampleData):
    """Loaded texts by split."""

    def with_windows(self, split: str) -> Self:
        """The data with a split of full texts and their windows."""
        part: LabelledTexts = self.splits[split]
        texts, limit, targets = [row.texts for row in part.rows], self.settings.max_length, part.texts.targets
        windows = self.processor.encode_texts(texts, limit, windows=True)
        each = self.processor.encode_texts(texts, max(limit, part.overflow.longest)), windows
        full, split_up = (EncodedTexts(x.tokens, x.segment_starts, targets[x.text_index]) for x in each)
        part = replace(part, texts=full, windows=split_up, text_index=windows.text_index)
        return replace(self, splits=self.splits | {split: part})

    def _facts(self) -> dict[str, object]:
        first, label = self.settings.first_file, self.settings.label
        columns = [] if first.is_dir() else header_names(first, self.settings.encoding)
        kind = frame_column_type(first, label) if isinstance(label, str) else ""
        return {**super()._facts(), "columns": columns, **({"label_type": kind} if kind else {})}


class TableSource(ExampleSource[LabelledRow, TextLabelProcessor, LabelledTexts]):
    """Settings of labelled texts."""

    task: ClassVar[str] = "classify"
    dataset_class: ClassVar[type[LabelledTextData]] = LabelledTextData
    processor_class: ClassVar[type[TextLabelProcessor]] = TextLabelProcessor
    input_setting: ClassVar[str] = "text"
    drawn_by: ClassVar[str] = "fractions by a hash of each text, stratified by label"

    kind: Literal["table"] = "table"
    text: Columns = Field(
        None, description="text column, by name or number, or a list of columns: each is a segment; default: detected"
    )
    label: Columns = Field(
        None, description="label column; a list: one 0/1 column per label (multi-label); default: detected"
    )
    group: Column = Field(None, description="column with the group of each row; all rows of a group are in one split")
    time: Column = Field(None, description="column with the time of each row; the newest rows are test, then valid")
    separator: str | None = Field(None, description="separator of several labels in one cell; default: a single label")
    target_type: Literal["auto", "label", "number", "multilabel"] = Field(
        "auto", description="target type; auto: number if all labels are numbers and some are fractional, else label"
    )
    decimal: Decimal = Field(".", description=DECIMAL_DESCRIPTION)
    missing: MissingLabels = Field("keep", description=MISSING_DESCRIPTION)
    examples: int | None = Field(None, ge=1, description="number of training texts, drawn by a hash of each text")
    max_length: int = Field(
        256, ge=8, description="maximum number of tokens of a text with special tokens; longer texts are truncated"
    )

    # --- reading ------------------------------------------------------------------------------------------------------

    def columns(self, path: Path) -> tuple[ColumnRequest, ColumnRequest]:
        """The text columns and the label columns, detected if they are not set."""
        text, label = self.text, self.label
        if text_file(path).suffix in JSON_SUFFIXES:  # objects have no numbers of columns
            text, label = (None if isinstance(ref, int) else ref for ref in (text, label))
        if text is None or label is None:
            names = (text, label, self.group, self.time)
            detection = detect_kind(self._column_file(path), self.encoding, names)
            text = detection.settings.get("data.text") if text is None else text
            sides = [detection.settings.get(f"data.{side}") for side in ("source", "target")]
            if text is None and label in sides:  # detected as pairs: the label is one of two columns of text
                text = sides[1 - sides.index(label)]
            label = detection.settings.get("data.label") if label is None else label
            if text is None or label is None:
                hint = "name the columns: data.text=... data.label=..."
                table = preview_rows(path, self.encoding)
                if table and any(c.number_fraction >= NUMERIC_FRACTION for c in column_stats(table)):
                    hint += f"; to group rows of numbers: {cluster_command(path)}"
                    hint += "; or, if several numeric rows form one example, data.group=... data.label=..."
                if (tree := text_folders(path.parent.parent)) and tree.has_labels and path.suffix in SUFFIXES:
                    hint = f"{path.parent} has texts of one label; give the folder above it, {path.parent.parent}"
                raise BadInput(f"{path}: no text column with a label column ({detection.reason}); {hint}")
        texts = text if isinstance(text, list) else [text]
        if not 0 < 2 * len(texts) < self.max_length:
            fits = (self.max_length - 1) // 2
            raise BadInput(f"data.text = {texts}: 1 to {fits} columns fit into data.max_length={self.max_length}")
        labels = label if isinstance(label, list) else [label]
        return [("data.text", column) for column in texts], [("data.label", column) for column in labels]

    def _column_file(self, path: Path) -> Path:
        """The file to detect columns in: the first training file if `path` belongs to this data, else `path`."""
        with suppress(BadInput):  # the training files may not exist any more
            files = self._files()
            return files["train"][0] if any(path in paths for paths in files.values()) else path
        return path

    def _text_folders(self, path: str | Path) -> TextFolders | None:
        """The folders of a tree of texts; None for tables, which may have set columns."""
        tree, has_columns = text_folders(Path(path)), self.text is not None or self.label is not None
        is_tree = tree and not (has_columns and not detect_kind(tree.samples[0], self.encoding).is_plain_text)
        return tree if is_tree else None

    def _files(self) -> dict[str, list[Path]]:
        if self.train or not (tree := self._text_folders(self.train_path)):
            return super()._files()
        held_out = {split: path for split in ("valid", "test") if isinstance(path := getattr(self, split), str)}
        files = {split: list(folders.values()) for split, folders in tree.splits.items()}
        return files | {split: self._paths(Path(path)) for split, path in held_out.items()}

    def _paths(self, path: Path) -> list[Path]:
        tree = self._text_folders(path)
        return [folder for part in tree.splits.values() for folder in part.values()] if tree else super()._paths(path)

    def read(self, path: Path, listen: Listener) -> list[LabelledRow]:
        if path.is_dir():
            if self.split_columns != (None, None):
                raise BadSetting(f"{path}: a folder of texts has no columns; remove data.group and data.time")
            files = read_folder(path, self.encoding, listen)
            return [LabelledRow((normalize_text(text),), (normalize_text(path.name),), place) for text, place in files]
        texts, labels = self.columns(path)
        skipped, rows = SkippedRows("no text with a label"), list[LabelledRow]()
        split_by: ColumnRequest = [("data.group", self.group), ("data.time", self.time)]
        split_by = [(name, column) for name, column in split_by if column is not None]
        n_inputs, names = len(texts) + len(labels), [str(c) for _, c in labels]
        for line, cells in iter_columns(path, [*texts, *labels, *split_by], skipped, self.encoding):
            row_texts = tuple(map(normalize_text, cells[: len(texts)]))
            row_labels = self._row_labels(
                [normalize("NFC", LINE_BREAKS.sub(" ", cell).strip()) for cell in cells[len(texts) : n_inputs]], names
            )
            split_cells = dict(zip([name[5:] for name, _ in split_by], map(str.strip, cells[n_inputs:]), strict=True))
            if not has_input(row_texts):
                skipped(path, line, "the text is empty")
            elif row_labels is None:
                skipped(path, line, "the label is neither 0 nor 1" if len(labels) > 1 else "the label is empty")
            else:
                rows.append(LabelledRow(row_texts, row_labels, f"{path}:{line}", **split_cells))
        settings = " and ".join(["data.text", "data.label", *(name for name, _ in split_by)])
        check_skipped(skipped, path, len(rows), settings, listen)
        if self.target_type in ("label", "multilabel") or any(len(row.labels) != 1 for row in rows):
            return rows
        targets = normalize_numbers([(row.labels[0], row.location) for row in rows], self.decimal, str(path))
        return [row._replace(labels=(target,)) for row, target in zip(rows, targets, strict=True)]

    def as_trained(self, processor: TextLabelProcessor) -> Self:
        return self.model_copy(update={"target_type": processor.target_type})

    def _row_labels(self, cells: list[str], names: list[str]) -> tuple[str, ...] | None:
        """The labels of a row; None if they are missing or invalid."""
        if len(names) > 1:
            valid = all(cell.lower() in TRUE_VALUES + FALSE_VALUES for cell in cells)
            labels = tuple(n for n, cell in zip(names, cells, strict=True) if cell.lower() in TRUE_VALUES)
            return labels if valid else None
        if LIST_SEPARATOR not in cells[0] and not self.separator and self.target_type != "multilabel":
            return (cells[0],) if cells[0] else None
        parts = (
            part for text in cells[0].split(LIST_SEPARATOR) for part in text.split(self.separator or LIST_SEPARATOR)
        )
        return tuple(dict.fromkeys(label for part in parts if (label := part.strip())))

    def examples_in(self, part: LabelledTexts) -> list[LabelledRow]:
        return part.rows

    # --- targets ------------------------------------------------------------------------------------------------------

    @property
    def split_columns(self) -> tuple[Column, Column]:
        return self.group, self.time

    def without_split(self, path: Path) -> Self:
        names = [] if path.is_dir() else header_names(path, self.encoding)
        return self.model_copy(update={"group": self.group if self.group in names else None, "time": None})

    def split_key(self, example: LabelledRow) -> str:
        return "\t".join(example.texts)

    def drop_missing(self, examples: dict[str, list[LabelledRow]], listen: Listener) -> dict[str, list[LabelledRow]]:
        rows = [row for part in examples.values() for row in part]
        labels, location = [label for row in rows for label in row.labels], rows[0].location.rpartition(":")[0]
        target_type = self._resolve_target_type(examples.get("train", rows))
        if not (dropped := missing_targets(labels, target_type, self.missing, location, listen)):
            return examples
        return {split: [row for row in part if not {*row.labels} & dropped] for split, part in examples.items()}

    def near_duplicate_key(self, example: LabelledRow) -> str:
        return "\t".join(map(near_duplicate_key, example.texts)).strip("\t")

    def location(self, example: LabelledRow) -> str:
        return example.location

    def labels_of(self, examples: Sequence[LabelledRow]) -> list[tuple[str, ...]]:
        is_number = self._resolve_target_type(examples) == "number"
        return [() if is_number else row.labels for row in examples]

    def _label_notices(self, examples: list[LabelledRow]) -> Iterator[str]:
        yield from super()._label_notices(examples)
        if self.target_type == "auto" and self.separator is None and not isinstance(self.label, list):
            suggestion = separator_notice(row.labels[0] for row in examples if len(row.labels) == 1)
            targets = [(row.labels[0], row.location) for row in examples if len(row.labels) == 1]
            yield from filter(None, [suggestion, numbers_notice(targets, self.label or "label")])

    def group_of(self, example: LabelledRow) -> str:
        return example.group

    def times_of(self, examples: Sequence[LabelledRow]) -> list[float] | None:
        return None if self.time is None else parse_times([(e.time, e.location) for e in examples], self.time)

    def texts(self, examples: Iterable[LabelledRow]) -> Iterator[str]:
        texts = (text for row in examples for text in row.texts)
        return map(detach_punctuation, texts) if self.tokenizer == "word" else texts

    def labels(self, examples: list[LabelledRow]) -> list[str]:
        if self._resolve_target_type(examples) == "number":
            return [str(self.label if self.label is not None else "number")]
        return fit_labels((label for row in examples for label in row.labels), len(examples), "rows", self.train_path)

    def _resolve_target_type(self, rows: Sequence[LabelledRow]) -> TargetType:
        if self.target_type != "auto":
            return self.target_type
        if self.separator or isinstance(self.label, list) or any(len(row.labels) != 1 for row in rows):
            return "multilabel"
        return infer_target_type(row.labels[0] for row in rows)

    def overflow(self, part: LabelledTexts) -> Overflow:
        return replace(part.overflow, remedy="increase data.max_length to keep more")

    def encode_examples(self, examples: list[LabelledRow], processor: TextLabelProcessor) -> LabelledTexts:
        if mismatch := next((row for row in examples if len(row.texts) != processor.n_texts), None):
            problem = f"it has {len(mismatch.texts)} texts, but the model was trained on {processor.n_texts}"
            raise BadInput(f"{mismatch.location}: {problem}; name the columns: data.text=...")
        tokens, segment_starts, _, overflow = processor.encode_texts([row.texts for row in examples], self.max_length)
        return LabelledTexts(EncodedTexts(tokens, segment_starts, processor.targets(examples)), examples, overflow)

    def _build_processor(self, examples: list[LabelledRow], known: Any, listen: Listener) -> TextLabelProcessor:
        processor: TextLabelProcessor = super()._build_processor(examples, known, listen)
        if processor is known:
            return processor
        target_type, (mean, std) = self._resolve_target_type(examples), (0.0, 1.0)
        if target_type == "number":
            mean, std = fit_numbers([(row.labels[0], row.location) for row in examples], self.train_path)
        return replace(processor, target_type=target_type, mean=mean, std=std, n_texts=len(examples[0].texts))

    def _draw_splits(self, rows_by_split: dict[str, list[LabelledRow]]) -> dict[str, list[LabelledRow]]:
        """A fraction of the texts of every label, at most MAX_HELD_OUT in total; or by group, by time, or a fold."""
        if (self.group, self.time, self.fold) != (None, None, None):
            return self._draw_units(rows_by_split) | self._sampled(rows_by_split)
        rows, strata = dict[str, list[LabelledRow]](), dict[tuple[str, ...], list[str]]()
        for row in rows_by_split["train"]:
            rows.setdefault(self.split_key(row), []).append(row)
        numeric = self._resolve_target_type(rows_by_split["train"]) == "number"
        for text, (first, *_) in rows.items():
            strata.setdefault(() if numeric else first.labels, []).append(text)
        drawn: dict[str, list[LabelledRow]] = {}
        for split in ("test", "valid"):
            if split in rows_by_split:
                continue
            fraction = min(check_fraction(split, getattr(self, split), "texts"), MAX_HELD_OUT / max(1, len(rows)))
            in_test = {self.split_key(row) for test_rows in drawn.values() for row in test_rows}
            texts = draw_stratified(strata.values(), lambda text: text, split, fraction)
            drawn[split] = [row for text in texts if text not in in_test for row in rows[text]]
        return drawn | self._sampled(rows_by_split)

    def _sampled(self, rows_by_split: dict[str, list[LabelledRow]]) -> dict[str, list[LabelledRow]]:
        """With data.examples, the training rows by hash: the first rows of a file may all have the same label."""
        if self.examples is None:
            return {}
        return {"train": sorted(rows_by_split["train"], key=lambda row: split_hash(self.split_key(row)))}
