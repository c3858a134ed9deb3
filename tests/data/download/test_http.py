"""Downloads over HTTP: verified, bounded in size and time, and from the expected host only."""

import base64
import errno
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from file_server import FileServer, file_server, redirect, send
from harken.data.download import http
from harken.data.download.http import DiskFull, RemoteFile, SourceUnavailable, TransferCutOff, download

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        running.files["/file"] = CONTENT
        yield running


def fetch(server: FileServer, path: Path, name: str = "file", **fields: object) -> None:
    values: dict[str, object] = {"url": server.url + name, "bytes": len(CONTENT), "sha256": SHA256, **fields}
    download(RemoteFile(**values), path, lambda count: None)  # type: ignore[arg-type]


def test_a_file_with_the_pinned_digests_is_written(server: FileServer, tmp_path: Path) -> None:
    fetch(server, tmp_path / "file", md5=hashlib.md5(CONTENT).hexdigest())
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_the_progress_ends_with_the_size(server: FileServer, tmp_path: Path) -> None:
    counts = list[int]()
    download(RemoteFile(server.url + "file", len(CONTENT), SHA256), tmp_path / "file", counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == len(CONTENT)


@pytest.mark.parametrize("digest", ["sha256", "md5"])
def test_another_digest_is_refused(digest: str, server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=f"127.0.0.1 sent a file with another {digest.upper()}"):
        fetch(server, tmp_path / "file", **{digest: "0" * 64})


def test_a_transfer_that_is_cut_off_once_starts_again(server: FileServer, tmp_path: Path) -> None:
    def cut_off_first(handler: BaseHTTPRequestHandler) -> None:
        send(handler, CONTENT[:1000] if len(server.requests) == 1 else CONTENT, declared=len(CONTENT))

    server.files["/file"] = cut_off_first
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_a_transfer_that_is_always_cut_off_is_given_up(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"] = lambda handler: send(handler, CONTENT[:1000], declared=len(CONTENT))
    with pytest.raises(TransferCutOff, match=r"127.0.0.1 sent 1,000 of 256,000 bytes"):
        fetch(server, tmp_path / "file")
    assert len(server.requests) == http.ATTEMPTS


def test_a_chunked_transfer_that_is_cut_off_is_detected(server: FileServer, tmp_path: Path) -> None:
    def chunk(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"3e8\r\n" + CONTENT[:100])

    server.files["/file"] = chunk
    with pytest.raises(TransferCutOff):
        fetch(server, tmp_path / "file")


def test_a_connection_that_is_reset_is_reported(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"] = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(TransferCutOff, match=r"127.0.0.1 closed the connection"):
        fetch(server, tmp_path / "file")


def test_a_file_that_is_longer_than_expected_is_stopped(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="sends more than the expected 1,000 bytes"):
        fetch(server, tmp_path / "file", bytes=1000)
    assert (tmp_path / "file").stat().st_size <= 1000


def test_a_missing_file_is_reported_with_its_status(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"^127.0.0.1 answers 404 Not Found$"):
        fetch(server, tmp_path / "file", "other")


def test_a_redirect_on_the_same_host_is_followed(server: FileServer, tmp_path: Path) -> None:
    server.files["/old"] = redirect("/file")
    fetch(server, tmp_path / "file", "old")
    assert server.requests == ["/old", "/file"]


def test_a_redirect_to_another_host_is_refused_before_a_connection(server: FileServer, tmp_path: Path) -> None:
    server.files["/old"] = redirect(server.url.replace("127.0.0.1", "localhost") + "file")
    with pytest.raises(SourceUnavailable, match=r"^127.0.0.1 redirects to 'http://localhost', which is refused$"):
        fetch(server, tmp_path / "file", "old")
    assert server.requests == ["/old"]


def test_a_redirect_to_a_host_of_the_catalogue_is_followed(server: FileServer, tmp_path: Path) -> None:
    server.files["/old"] = redirect(server.url.replace("127.0.0.1", "localhost") + "file")
    fetch(server, tmp_path / "file", "old", redirect_hosts=("localhost",))
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/file", "data:,x"])
def test_a_redirect_to_another_scheme_is_refused(address: str, server: FileServer, tmp_path: Path) -> None:
    server.files["/old"] = redirect(address)
    with pytest.raises(SourceUnavailable):
        fetch(server, tmp_path / "file", "old")


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("https://a.org/x", "https://a.org/y", True),
        ("http://a.org/x", "https://a.org/x", True),
        ("https://a.org/x", "http://a.org/x", False),
        ("https://a.org/x", "https://cdn.b.org/x", True),
        ("https://a.org/x", "https://evilb.org/x", False),
        ("https://a.org/x", "https://a.org.evil.org/x", False),
    ],
)
def test_a_redirect_stays_on_known_hosts_and_on_https(old: str, new: str, allowed: bool) -> None:
    assert http._SameHostRedirects(("b.org",))._is_allowed(urlsplit(old), urlsplit(new)) is allowed


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://a.org/x", "//a.org/x", "https:///x"])
def test_only_http_addresses_are_opened(address: str, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="only http and https"):
        download(RemoteFile(address, 1), tmp_path / "file", lambda count: None)


def test_low_free_space_is_reported_before_the_download(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = http.shutil.disk_usage(tmp_path)._replace(free=255_999)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DiskFull, match=r"^0.3 MB are needed and 0.3 MB are free$"):
        fetch(server, tmp_path / "file")
    assert server.requests == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_network_error_and_is_not_tried_again(server: FileServer) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        fetch(server, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC
    assert len(server.requests) == 1


def test_a_server_that_sends_nothing_is_given_up(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    server.files["/file"] = lambda handler: released.wait(30) and None
    monkeypatch.setattr(http, "STALL_SECONDS", 0.1)
    with pytest.raises(SourceUnavailable, match=r"127.0.0.1 sent nothing for"):
        fetch(server, tmp_path / "file")
    released.set()


def test_a_server_that_trickles_is_given_up(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trickle(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"", declared=len(CONTENT))
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.02)

    server.files["/file"] = trickle
    monkeypatch.setattr(http, "STALL_SECONDS", 0.2)
    with pytest.raises(SourceUnavailable, match=r"127.0.0.1 sends less than 20 kB/s"):
        fetch(server, tmp_path / "file")


def test_connecting_with_name_resolution_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def resolve(*_: object, **__: object) -> None:
        released.wait(30)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.1)
    with pytest.raises(SourceUnavailable, match=r"no connection to data.example within 0 s"):
        download(RemoteFile("http://data.example/x", 1), tmp_path / "file", lambda count: None)
    released.set()


def test_connecting_with_the_tls_handshake_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts the connection, and nothing answers
        address, start = f"https://127.0.0.1:{silent.getsockname()[1]}/x", time.monotonic()
        with pytest.raises(SourceUnavailable, match=r"^no connection to 127.0.0.1 within 0 s$"):
            download(RemoteFile(address, 1), tmp_path / "file", lambda count: None)
    assert time.monotonic() - start < 0.8 * http.STALL_SECONDS  # the limit without CONNECT_SECONDS


def test_a_closed_port_is_reported_with_its_host(tmp_path: Path) -> None:
    with file_server() as stopped:
        address = stopped.url
    with pytest.raises(SourceUnavailable, match=r"^no connection to 127.0.0.1 \(Connection refused\)$"):
        download(RemoteFile(address + "file", 1), tmp_path / "file", lambda count: None)


def test_credentials_are_sent_to_their_host_only_and_appear_in_no_message(server: FileServer, tmp_path: Path) -> None:
    with_user = server.url.replace("//", "//ada:s%40cret@")
    server.files["/old"] = redirect(server.url.replace("127.0.0.1", "localhost") + "file")
    file = RemoteFile(with_user + "old", len(CONTENT), SHA256, redirect_hosts=("localhost",))
    download(file, tmp_path / "file", lambda count: None)
    expected = "Basic " + base64.b64encode(b"ada:s@cret").decode()
    assert [headers.get("Authorization") for headers in server.headers] == [expected, None]
    with pytest.raises(SourceUnavailable) as caught:
        download(RemoteFile(with_user + "missing", 1), tmp_path / "file", lambda count: None)
    assert "ada" not in str(caught.value)
    assert "cret" not in str(caught.value)
