"""Readers of pair files: tables, aligned files, JSON lines, trees. Lines that are no pairs are skipped and reported."""

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path

from harken.data.detect import preview
from harken.data.detect.detection import Detection
from harken.data.detect.kinds import detect_kind
from harken.data.partition import MAX_HELD_OUT, split_hash, split_rank
from harken.data.sets.columns import header_names
from harken.data.split import group_by_split
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.read import LIST_SEPARATOR, OnSkip, SkippedRows, check_skipped
from harken.data.tables.text_file import JSON_SUFFIXES, iter_lines, text_file
from harken.errors import BadInput
from harken.events import silent
from harken.suggestions import similar_path

from .trees import leaves, linearize, parse_trees

MAX_GROUPS = 100  # distinct values of data.group; with more, each group has too few pairs
PAIRS_PER_BLOCK = 4096  # pairs tokenized at once
References = dict[str, list[str]]  # of each source
PairRow = tuple[int, str, str]  # line number, source, target


def normalize_text(text: str) -> str:
    """A sentence in NFC on one line, without surrounding white space."""
    line = text.replace("\n", " ").replace(LIST_SEPARATOR, " ").strip()
    return line if line.isascii() else unicodedata.normalize("NFC", line)


def pair_blocks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The pairs in blocks for the tokenizers."""
    iterator = iter(pairs)
    return iter(lambda: list(islice(iterator, PAIRS_PER_BLOCK)), [])


@dataclass(frozen=True)
class PairFile:
    """A file of pairs, or (with `target_path`) aligned files of sources and targets."""

    path: Path
    source: ColumnRef = None
    target: ColumnRef = None
    target_path: Path | None = None
    encoding: str | None = None

    def pairs(self, skipped: SkippedRows | None = None) -> Iterator[tuple[str, str]]:
        """The normalized pairs. Skipped lines are reported; a file with more of them than pairs is refused."""
        skipped_here, n_pairs = SkippedRows(), 0
        try:
            for line, *sides in self.rows(skipped_here):
                source, target = map(normalize_text, sides)
                if source and target:
                    n_pairs += 1
                    yield source, target
                else:
                    skipped_here(self.path, line, "the source is empty" if target else "the target is empty")
        except OSError as error:
            raise BadInput(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None
        check_skipped(skipped_here, self.path, n_pairs, "data.source and data.target", silent)
        if skipped is not None:
            skipped.add(skipped_here)

    def column_warning(self) -> str:
        """Which columns are used if the file looks like labelled texts and they are not set by name, else empty."""
        detection = None if self.target_path else self._detect()
        by_name = isinstance(self.source, str) and isinstance(self.target, str)
        if detection is None or detection.kind != "table" or by_name:
            return ""
        columns = f"source and target are columns {self.source or 1!r} and {self.target or 2!r}"
        return f"{self.path}: looks like labelled texts ({detection.reason}); {columns} (data.source, data.target)"

    def locate(self, sources: Collection[str]) -> dict[str, str]:
        """The first place (path:line) of each of these sources that is in this file."""
        places: dict[str, str] = {}
        for line, source, target in self.rows(SkippedRows()):
            if (text := normalize_text(source)) in sources and target.strip():
                places.setdefault(text, f"{self.path}:{line}")
        return places

    def columns(self) -> list[str]:
        """The names of the columns of a table."""
        with suppress(BadInput):  # a line is not UTF-8
            is_table = not self.target_path and self.path.suffix.lower() != ".mrg"
            return header_names(self.path, self.encoding) if is_table else []
        return []

    def paths(self) -> list[Path]:
        return [self.path, self.target_path] if self.target_path else [self.path]

    def _detect(self) -> Detection | None:
        with suppress(BadInput):
            return detect_kind(self.path, self.encoding, (self.source, self.target))
        return None

    def rows(self, on_skip: OnSkip) -> Iterator[PairRow]:
        """The rows with their line numbers, not normalized; some sides may be empty."""
        if self.target_path:
            return _read_aligned(self.path, self.target_path, on_skip, self.encoding)
        detection = self._detect()
        if self.path.suffix.lower() == ".mrg" or (detection and detection.kind == "trees"):
            return _read_trees(self.path, on_skip, self.encoding)
        columns = {"data.source": self.source, "data.target": self.target}
        if text_file(self.path).suffix in JSON_SUFFIXES:  # objects have no numbers of columns
            columns = {name: None if isinstance(ref, int) else ref for name, ref in columns.items()}
        detected = detection.settings.items() if detection and detection.kind == "pairs" else ()
        unused = {name: column for name, column in detected if column not in columns.values()}
        request = [(name, column or unused.get(name)) for name, column in columns.items()]
        return (
            (line, source, target)
            for line, (source, target) in iter_columns(self.path, request, on_skip, self.encoding)
        )


def read_pairs(
    files: list[PairFile], skipped: SkippedRows | None = None, max_words: int | None = None
) -> Iterator[tuple[str, str]]:
    """The pairs of these files with at most max_words source words."""
    pairs = chain.from_iterable(file.pairs(skipped) for file in files)
    return pairs if max_words is None else (pair for pair in pairs if len(pair[0].split()) <= max_words)


def locate(files: list[PairFile], sources: Collection[str]) -> dict[str, str]:
    """The places (path:line) of these sources, in the last file that has them: held-out files follow train."""
    return {source: place for file in files for source, place in file.locate(sources).items()} if sources else {}


def _read_aligned(source_path: Path, target_path: Path, on_skip: OnSkip, encoding: str | None) -> Iterator[PairRow]:
    end, counts = (0, None), [0, 0]
    files = (iter_lines(path, on_skip, encoding) for path in (source_path, target_path))
    for source, target in zip_longest(*files, fillvalue=end):
        counts = [max(n, line[0]) for n, line in zip(counts, (source, target), strict=True)]
        if source[1] is not None and target[1] is not None and counts[0] == counts[1]:
            yield source[0], source[1], target[1]
    if counts[0] != counts[1]:
        problem = f"{source_path} has {counts[0]} lines and {target_path} has {counts[1]}"
        raise BadInput(f"{problem}; aligned files need one pair per line; fix the shorter one")


def _read_trees(path: Path, on_skip: OnSkip, encoding: str | None) -> Iterator[PairRow]:
    for line, tree in parse_trees(text_file(path, encoding, plain=True).path.read_text("utf-8", "replace")):
        if tree is None:
            on_skip(path, line, "brackets that are no tree")
        else:
            yield line, " ".join(leaves(tree)), linearize(tree)


def read_groups(files: Iterable[PairFile], column: ColumnRef, held_out: Collection[str]) -> dict[str, str]:
    """The value of the group column for each held-out source (the first, if a source has several)."""
    groups: dict[str, str] = {}
    for file in files if column is not None else ():
        if file.target_path:
            raise BadInput(f"{file.path}: aligned files have no columns; remove data.group={column}")
        try:
            for source, group in replace(file, target=column).pairs():
                if source in held_out:
                    groups.setdefault(source, group)
        except BadInput as error:  # read as the target column, but the user set data.group
            raise BadInput(str(error).replace("data.target", "data.group")) from None
    if (n_groups := len(set(groups.values()))) > MAX_GROUPS:
        raise BadInput(f"data.group = {column!r}: {n_groups:,} values; name a column with at most {MAX_GROUPS}")
    return groups


def read_column(files: Iterable[PairFile], setting: str, column: ColumnRef) -> Iterator[tuple[str, str, str]]:
    """The source, the cell of a column that decides the split, and the place of each row."""
    for file in files:
        if file.target_path:
            raise BadInput(f"{file.path}: aligned files have no columns; remove {setting}={column}")
        try:
            for line, source, cell in replace(file, target=column).rows(SkippedRows()):
                yield normalize_text(source), cell.strip(), f"{file.path}:{line}"
        except BadInput as error:  # read as the target column, but the user set another one
            raise BadInput(str(error).replace("data.target", setting)) from None


def read_units(files: Iterable[PairFile], column: ColumnRef) -> dict[str, str]:
    """The value of data.split_group of each source (the first, if a source has several)."""
    units = dict[str, str]()
    for source, unit, _ in read_column(files, "data.split_group", column) if column is not None else ():
        units.setdefault(source, unit)
    return units


def references_by_source(pairs: Iterable[tuple[str, str]]) -> References:
    """The distinct references of each source."""
    references: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        references.setdefault(source, {})[target] = None
    return {source: list(targets) for source, targets in references.items()}


# --- files of each split ----------------------------------------------------------------------------------------------


def find_pair_file(name: str, source: ColumnRef, target: ColumnRef, encoding: str | None = None) -> PairFile:
    """A file of pairs, or two aligned files, named by their common stem (val for val.de, val.en) or by one of them."""
    path, suffixes = Path(name), _suffixes(source, target)
    stem = path.with_suffix("") if path.suffix in suffixes else path
    source_path, target_path = (stem.with_name(stem.name + suffix) for suffix in suffixes)
    if source and source_path != target_path and source_path.is_file() and target_path.is_file():
        return PairFile(source_path, target_path=target_path, encoding=encoding)
    if not path.is_file():
        raise BadInput(f"{path}: no such file; check the name{similar_path(path)}")
    return PairFile(path, source, target, encoding=encoding)


def _suffixes(*sides: ColumnRef) -> list[str]:
    """The suffixes of aligned files, from a language (de) or a file name (train.de)."""
    return [f".{str(side).rpartition('.')[2]}" for side in sides]


def files_by_split(
    folder: Path, source: ColumnRef, target: ColumnRef, encoding: str | None = None
) -> dict[str, list[PairFile]]:
    """The files of a folder by split: aligned files of the two languages if there are any, else files of pairs."""
    if source is None:
        with suppress(BadInput):
            settings = detect_kind(folder, encoding).settings
            source, target = settings.get("data.source"), settings.get("data.target")
    paths = sorted(path for path in preview.data_files(folder) if path.parent == folder)
    source_suffix, target_suffix = _suffixes(source, target)
    source_paths = [
        path for path in paths if source and path.suffix == source_suffix and path.with_suffix(target_suffix) in paths
    ]
    if source_paths and source_suffix == target_suffix:
        problem = f"{source_suffix[1:]} is both source and target"
        raise BadInput(f"{folder}: {problem}; set data.source and data.target to two languages")
    files = [PairFile(path, target_path=path.with_suffix(target_suffix), encoding=encoding) for path in source_paths]
    files = files or [PairFile(path, source, target, encoding=encoding) for path in paths]
    return group_by_split(files, lambda file: file.path) or {"train": files}


def draw_sources(
    pairs: Iterable[tuple[str, str]], fractions: dict[str, float], excluded: set[int]
) -> tuple[dict[str, References], int, int]:
    """The references of the drawn sources of each split, the number of pairs, and that of pairs with an excluded hash.

    A split has the sources with the lowest ranks, so another fraction of one split changes nothing in the other.
    """
    bounds = {split: int(fraction * 2**64) for split, fraction in fractions.items()}
    drawn = {split: dict[int, list[tuple[str, str]]]() for split in fractions}
    n_pairs, n_excluded = 0, 0
    for source, target in pairs:
        hash_ = split_hash(source)
        n_pairs, n_excluded = n_pairs + 1, n_excluded + (hash_ in excluded)
        for split, bound in bounds.items() if hash_ not in excluded else ():
            if (rank := split_rank(split, hash_)) < bound:
                drawn[split].setdefault(rank, []).append((source, target))
                if len(drawn[split]) > 2 * MAX_HELD_OUT:
                    drawn[split] = dict(sorted(drawn[split].items())[:MAX_HELD_OUT])
                    bounds[split] = max(drawn[split]) + 1
    lowest = {split: sorted(by_rank.items())[:MAX_HELD_OUT] for split, by_rank in drawn.items()}
    texts = {split: references_by_source(p for _, pairs in ranked for p in pairs) for split, ranked in lowest.items()}
    return texts, n_pairs, n_excluded
