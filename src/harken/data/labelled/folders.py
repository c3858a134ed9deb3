"""Folders of texts: every file in news/sport/ is a text with the label sport. Folders train and test are splits."""

import re
from pathlib import Path
from typing import NamedTuple

from harken.data.detect.preview import not_utf8_error, without_conversion
from harken.data.partition import SPLIT_FILE_NAMES, SPLIT_OF_NAME
from harken.data.tables.read import SkippedRows, check_skipped
from harken.data.tables.text_file import read_text
from harken.events import Listener

SUFFIXES = (".txt", ".text", ".md")
MAX_LABELS, MIN_TEXTS = 100, 5  # labels, and texts per label on average
N_SAMPLES = 5  # labels that a message lists
MIN_TEXT_FRACTION = 0.9  # of the files in the folders of the labels


class TextFolders(NamedTuple):
    """The folders with texts of each split and label; without splits, all are in train."""

    splits: dict[str, dict[str, Path]]
    ignored: list[Path]  # folders of labels that another split does not have

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of the training texts, by label."""
        return self.splits.get("train") or next(iter(self.splits.values()))

    @property
    def samples(self) -> list[Path]:
        """A text of each of the first labels."""
        return [text_files(folder)[0] for folder in list(self.folders.values())[:N_SAMPLES]]

    @property
    def n_texts(self) -> int:
        return sum(len(text_files(folder)) for folder in self.folders.values())

    @property
    def has_labels(self) -> bool:
        """Whether the names of the folders can be labels: at most 100, with enough texts on average."""
        return len(self.folders) <= MAX_LABELS and self.n_texts >= MIN_TEXTS * len(self.folders)

    def describe(self, path: Path) -> str:
        """The numbers of texts and labels, and the folders that are ignored."""
        labels = ", ".join([*list(self.folders)[:N_SAMPLES], *["..."] * (len(self.folders) > N_SAMPLES)])
        ignored = ", ".join(str(folder.relative_to(path)) for folder in self.ignored)
        note = f"; not read, because not every split has this label: {ignored}" if ignored else ""
        splits = f" in {' and '.join(self.splits)}" if len(self.splits) > 1 else ""
        return f"{self.n_texts:,} texts, each in a folder that is its label ({labels}){splits}{note}"


def text_folders(path: Path) -> TextFolders | None:
    """The folders of each split and label; None if this is not a folder of at least two folders of texts."""
    if not path.is_dir():
        return None
    folders = _folders(path)
    splits = {split: folder for folder in folders if (split := _split_of(folder)) and _folders(folder)}
    by_split = {split: _label_folders(folder) for split, folder in splits.items()} if "train" in splits else {}
    by_split = {split: by_split[split] for split in SPLIT_FILE_NAMES if by_split.get(split)}
    if not by_split:
        has_files = any(not re.match(r"\.|readme|licen[sc]e", file.name, re.I) for file in _files(path))
        by_split = {} if has_files else {"train": _label_folders(path)}
    labels = set.intersection(*map(set, by_split.values())) if by_split else set()
    if len(labels) < 2:
        return None
    ignored = [folder for part in by_split.values() for label, folder in part.items() if label not in labels]
    return TextFolders(
        {s: {label: part[label] for label in part if label in labels} for s, part in by_split.items()}, ignored
    )


def text_files(folder: Path) -> list[Path]:
    """The texts directly in a folder, by name."""
    return [
        file for file in _files(folder) if file.suffix.lower() in SUFFIXES or not re.search("[a-z]", file.suffix, re.I)
    ]


def read_folder(folder: Path, encoding: str | None, listen: Listener) -> list[tuple[str, str]]:
    """The texts directly in a folder with their places."""
    texts, skipped = list[tuple[str, str]](), SkippedRows("no text")
    for file in text_files(folder):
        try:
            text = read_text(file, encoding).strip()
        except UnicodeDecodeError as error:
            raise without_conversion(not_utf8_error(file, error.start)) from None
        if text:
            texts.append((text, f"{file}:1"))
        else:
            skipped(file, 1, "the text is empty")
    check_skipped(skipped, folder, len(texts), "the files", listen)
    return texts


def _label_folders(path: Path) -> dict[str, Path]:
    """The folders with texts in this one by name; none if they hold other files or folders of texts."""
    folders = [folder for folder in _folders(path) if text_files(folder)]
    n_files, n_texts = (sum(len(list_(folder)) for folder in folders) for list_ in (_files, text_files))
    return {folder.name: folder for folder in folders} if n_texts >= MIN_TEXT_FRACTION * n_files else {}


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in _entries(path) if entry.is_dir())


def _files(path: Path) -> list[Path]:
    return sorted(entry for entry in _entries(path) if entry.is_file())


def _entries(path: Path) -> list[Path]:
    """The entries that are not hidden; none if the folder cannot be read."""
    try:
        return [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []


def _split_of(folder: Path) -> str | None:
    """The split that a part of the name states: 20news-bydate-train is train."""
    return next(
        (SPLIT_OF_NAME[part] for part in re.split(r"[._\-]", folder.name.lower()) if part in SPLIT_OF_NAME), None
    )
