"""Reading pairs, line by line: tables, two aligned files, JSON lines, trees. Which files they are, split by split.

A line that is no pair is left out, counted, and told by its place and the reason.
"""

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from harken.data.detect import preview
from harken.data.detect.kinds import sniff
from harken.data.tables.read import Bad, Flaws, Place, lines_of, rows_of
from harken.data.text.source import NAMED, is_named
from harken.errors import BadInput, near_name

from .trees import linear, numbered, words

GROUPS = 100  # values of a column that groups: of more, each has too few pairs
Row = tuple[int, str, str]  # line, source, target


def clean(text: str) -> str:
    """A sentence as it is compared: one line, characters composed, no white space around it."""
    return unicodedata.normalize("NFC", text.replace("\n", " ").strip())


@dataclass(frozen=True)
class PairFile:
    """A file of pairs, or (with `other`) a file of sources and one of targets, line by line."""

    path: Path
    source: Place = None
    target: Place = None
    other: Path | None = None

    def pairs(self, flaws: Flaws | None = None) -> Iterator[tuple[str, str]]:
        """The cleaned pairs. Flaws are told of; a file that has more of them than pairs is refused."""
        heard, good = Flaws(), 0
        try:
            for line, *sides in self._rows(heard):
                source, target = map(clean, sides)
                if source and target:
                    good += 1
                    yield source, target
                else:
                    heard(self.path, line, "the source is empty" if target else "the target is empty")
        except OSError as error:
            raise BadInput(f"{error.filename}: cannot be read ({error.strerror}); a readable file is needed") from None
        if heard.count > good:
            said = f"{heard.count} of its {heard.count + good} lines are no pair ({heard.first[0]})"
            raise BadInput(f"{self.path}: {said}; check data.source and data.target, or mend the file")
        if not good:
            raise BadInput(f"{self.path}: no pair in it; lines with two sides are needed; check how it was written")
        if flaws is not None:
            flaws.add(heard)

    def doubt(self) -> str:
        """Which columns are taken of a file that looks like texts with labels, if none was told by its name."""
        guess = None
        with suppress(BadInput):
            guess = None if self.other else sniff(self.path)
        if guess is None or guess.kind != "table" or (isinstance(self.source, str) and isinstance(self.target, str)):
            return ""
        taken = f"source and target are read from columns {self.source or 1!r} and {self.target or 2!r}"
        return f"{self.path}: looks like texts with labels ({guess.reason}); {taken} (data.source, data.target)"

    def paths(self) -> list[Path]:
        return [self.path, self.other] if self.other else [self.path]

    def _rows(self, bad: Bad) -> Iterator[Row]:
        if self.other:
            return _aligned(self.path, self.other, bad)
        guess = None
        with suppress(BadInput):
            guess = sniff(self.path)
        if self.path.suffix.lower() == ".mrg" or (guess and guess.kind == "trees"):
            return _trees(self.path, bad)
        found = guess.settings if guess and guess.kind == "pairs" else {}
        mine = {"data.source": self.source, "data.target": self.target}
        taken = mine.values()  # what is given for one side is not guessed for the other
        asked = [
            (name, place or (None if found.get(name) in taken else found.get(name))) for name, place in mine.items()
        ]
        return ((line, source, target) for line, (source, target) in rows_of(self.path, asked, bad))


def _aligned(source: Path, target: Path, bad: Bad) -> Iterator[Row]:
    ended, count = (0, None), [0, 0]
    for a, b in zip_longest(lines_of(source, bad), lines_of(target, bad), fillvalue=ended):
        count = [max(n, line[0]) for n, line in zip(count, (a, b), strict=True)]
        if a[1] is not None and b[1] is not None and count[0] == count[1]:
            yield a[0], a[1], b[1]
    if count[0] != count[1]:
        raise BadInput(
            f"{source} has {count[0]} lines and {target} has {count[1]}; line by line they must be pairs; "
            "mend the shorter one"
        )


def _trees(path: Path, bad: Bad) -> Iterator[Row]:
    for line, tree in numbered(path.read_text("utf-8", "replace")):
        if tree is None:
            bad(path, line, "brackets that are no tree")
        else:
            yield line, " ".join(words(tree)), linear(tree)


def grouping(files: Iterable[PairFile], column: Place, held: Collection[str]) -> dict[str, str]:
    """What this column says of each held-out source; where it says several things, the first."""
    found: dict[str, str] = {}
    for file in files if column is not None else ():
        if file.other:
            raise BadInput(f"{file.path}: aligned files have no columns; leave data.group={column} out")
        try:
            for source, group in replace(file, target=column).pairs():
                if source in held:
                    found.setdefault(source, group)
        except BadInput as error:  # read as a target, but that is not what the user named
            raise BadInput(str(error).replace("data.target", "data.group")) from None
    if (many := len(set(found.values()))) > GROUPS:
        raise BadInput(f"data.group = {column!r}: {many:,} values; name a column with at most {GROUPS}")
    return found


# --- which files ------------------------------------------------------------------------------------------------------


def one(named: str, source: Place, target: Place) -> PairFile:
    """A file of pairs; or two aligned ones, named by what they share (val, for val.de and val.en) or by one of them."""
    whole, ends = Path(named), _endings(source, target)
    stem = whole.with_suffix("") if whole.suffix in ends else whole
    first, second = (stem.with_name(stem.name + end) for end in ends)
    if source and first != second and first.is_file() and second.is_file():
        return PairFile(first, other=second)
    if not whole.is_file():
        raise BadInput(f"{whole}: there is no such file; check the name{near_name(whole)}")
    return PairFile(whole, source, target)


def _endings(*sides: Place) -> list[str]:
    """How aligned files end, from a language (de) or from one of the files (train.de)."""
    return [f".{str(side).rpartition('.')[2]}" for side in sides]


def in_folder(folder: Path, source: Place, target: Place) -> dict[str, list[PairFile]]:
    """The files of a folder, by split: aligned ones with the two languages, else files of pairs."""
    if source is None:
        with suppress(BadInput):
            guess = sniff(folder).settings
            source, target = guess.get("data.source"), guess.get("data.target")
    found = sorted(file for file in preview.files_of(folder) if file.parent == folder)
    first, second = _endings(source, target)
    firsts = [file for file in found if source and file.suffix == first and file.with_suffix(second) in found]
    if firsts and first == second:
        raise BadInput(f"{folder}: {first[1:]} is both sides; set data.source and data.target to two languages")
    pairs = [PairFile(file, other=file.with_suffix(second)) for file in firsts]
    pairs = pairs or [PairFile(file, source, target) for file in found]
    named = {split: [pair for pair in pairs if is_named(pair.path, NAMED[split])] for split in NAMED}
    if sum(map(bool, named.values())) < (2 if named["train"] else 1):
        return {"train": pairs}  # one name alone says nothing: a-train-ride.tsv
    apart = [*named["valid"], *named["test"]]
    return named | {"train": named["train"] or [pair for pair in pairs if pair not in apart]}
