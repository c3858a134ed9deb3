"""Download a pinned file over HTTP.

Only http and https; a redirect to another host is refused unless the catalogue names that host. Connecting takes at
most CONNECT_SECONDS with name resolution and TLS, and a transfer that stalls or crawls is given up. The size limit and
the digests are checked before the file is used; a transfer that is cut off starts again from its beginning.
"""

import base64
import hashlib
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection, responses
from pathlib import Path
from threading import Thread
from typing import IO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit

from harken.errors import HarkenError

CONNECT_SECONDS = 3.0
STALL_SECONDS = 30.0  # without a byte, or before the average speed counts
MIN_SPEED = 20_000  # bytes per second
ATTEMPTS = 2  # for a transfer that is cut off
BLOCK = 1 << 16
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # further certificate files; as pip and requests do


class SourceUnavailable(HarkenError):
    """A source cannot provide its file; the text is the reason, without the name of the data set."""


class TransferCutOff(SourceUnavailable):
    """The connection ended before the file was complete."""


class DiskFull(HarkenError):
    """There is no space for the file; another source would not help."""


@dataclass(frozen=True)
class RemoteFile:
    """A file with its exact size and published digests. It may be redirected to its own host, or to one of these."""

    url: str
    bytes: int
    sha256: str = ""
    md5: str = ""  # of a publisher that gives no SHA-256
    redirect_hosts: tuple[str, ...] = ()  # and their subdomains


def download(file: RemoteFile, path: Path, progress: Callable[[int], None]) -> None:
    """Write the file to `path` and verify it; `progress` receives the number of bytes after each block."""
    require_space(path.parent, file.bytes)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _download_once(file, path, progress)
        except TransferCutOff:
            if attempt == ATTEMPTS:
                raise


def _download_once(file: RemoteFile, path: Path, progress: Callable[[int], None]) -> None:
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in ("sha256", "md5")}
    received = 0
    with path.open("wb") as out:
        for block in stream(file.url, file.bytes, file.redirect_hosts):
            for digest in digests.values():
                digest.update(block)
            out.write(block)
            received += len(block)
            progress(received)
    host = host_of(file.url)
    if received < file.bytes:
        raise TransferCutOff(f"{host} sent {received:,} of {file.bytes:,} bytes")
    for name, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected and digests[name].hexdigest() != expected:
            raise SourceUnavailable(f"{host} sent a file with another {name.upper()} than the pinned one; deleted")


def require_space(folder: Path, count: int) -> None:
    """Raise unless the folder has room for this number of bytes."""
    if (free := shutil.disk_usage(folder).free) < count:
        raise DiskFull(f"{count / 1e6:.1f} MB are needed and {free / 1e6:.1f} MB are free")


def read_page(url: str, max_bytes: int, accept: str = "*/*") -> tuple[str, str]:
    """A small text page, and its address after redirects."""
    addresses = list[str]()
    content = b"".join(stream(url, max_bytes, accept=accept, opened=addresses.append))
    return content.decode(errors="replace"), addresses[0]


def stream(
    url: str,
    max_bytes: int,
    redirect_hosts: tuple[str, ...] = (),
    *,
    accept: str = "*/*",
    opened: Callable[[str], None] = lambda _: None,
) -> Iterator[bytes]:
    """The blocks of a page. Every network problem is a SourceUnavailable that names the host, not the address."""
    host, blocks = host_of(url), _blocks(url, max_bytes, redirect_hosts, accept, opened)
    while True:
        try:
            block = next(blocks, None)
        except HarkenError:
            raise
        except HTTPError as error:
            error.close()
            raise SourceUnavailable(f"{host} answers {error.code} {responses.get(error.code, '')}".strip()) from None
        except URLError as error:
            raise _unreachable(host, error.reason) from None
        except TimeoutError:
            raise SourceUnavailable(f"{host} sent nothing for {STALL_SECONDS:.0f} s") from None
        except (OSError, HTTPException) as error:
            raise TransferCutOff(f"{host} closed the connection ({error or type(error).__name__})") from None
        if block is None:
            return
        yield block


def _unreachable(host: str, reason: str | BaseException) -> SourceUnavailable:
    if isinstance(reason, ssl.SSLCertVerificationError):
        fix = "set SSL_CERT_FILE to the certificates of your network"
        return SourceUnavailable(f"the certificate of {host} cannot be verified ({reason.verify_message}); {fix}")
    if isinstance(reason, TimeoutError):
        return SourceUnavailable(f"no connection to {host} within {CONNECT_SECONDS:.0f} s")
    text = reason.strerror if isinstance(reason, OSError) else None
    return SourceUnavailable(f"no connection to {host} ({text or reason})")


def _blocks(
    url: str, max_bytes: int, redirect_hosts: tuple[str, ...], accept: str, opened: Callable[[str], None]
) -> Iterator[bytes]:
    wanted, received, start = _request(url, accept), 0, time.monotonic()
    with _opener(redirect_hosts).open(wanted, timeout=STALL_SECONDS) as response:
        opened(response.geturl())
        while block := response.read1(BLOCK):
            received += len(block)
            seconds = time.monotonic() - start
            if received > max_bytes:
                raise SourceUnavailable(f"{host_of(url)} sends more than the expected {max_bytes:,} bytes")
            if seconds > STALL_SECONDS and received < MIN_SPEED * seconds:
                raise SourceUnavailable(f"{host_of(url)} sends less than {MIN_SPEED / 1000:.0f} kB/s")
            yield block


def host_of(url: str) -> str:
    """The host of an address, without a user name or password."""
    return urlsplit(url).hostname or url


def _request(url: str, accept: str) -> request.Request:
    """A GET request. A user name and password in the address become a header, which no redirect carries on."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceUnavailable(f"only http and https addresses are used, not {parts.scheme or 'a relative one'}")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    wanted = request.Request(bare.geturl(), headers={"User-Agent": "harken", "Accept": accept})
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        wanted.add_unredirected_header("Authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}")
    return wanted


def _opener(redirect_hosts: tuple[str, ...]) -> request.OpenerDirector:
    """An opener for http and https alone, through the proxies of the environment."""
    opener = request.OpenerDirector()
    handlers = (
        request.ProxyHandler(),
        request.UnknownHandler(),
        _HTTPHandler(),
        _HTTPSHandler(),
        _SameHostRedirects(redirect_hosts),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
    )
    for handler in handlers:
        opener.add_handler(handler)
    return opener


class _SameHostRedirects(request.HTTPRedirectHandler):
    """Follows a redirect to the same host, or to one that the catalogue names; never from https to http."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if not self._is_allowed(old, new):
            fp.close()
            target = f"{new.scheme}://{new.hostname}"
            raise SourceUnavailable(f"{old.hostname} redirects to {target!a}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def _is_allowed(self, old: SplitResult, new: SplitResult) -> bool:
        named = any(f".{new.hostname}".endswith(f".{host}") for host in self.hosts)
        return (new.hostname == old.hostname or named) and new.scheme in {old.scheme, "https"}


class _Connection(HTTPConnection):
    def connect(self) -> None:
        _connect_in_time(self, super().connect)


class _SecureConnection(HTTPSConnection):
    def connect(self) -> None:
        _connect_in_time(self, super().connect)


def _connect_in_time(connection: HTTPConnection, connect: Callable[[], None]) -> None:
    """Connect within CONNECT_SECONDS. In a thread, because the resolution of a name has no timeout of its own."""
    errors = list[OSError]()

    def attempt() -> None:
        try:
            connect()
        except OSError as error:
            errors.append(error)

    connection.timeout = CONNECT_SECONDS
    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if thread.is_alive():
        raise TimeoutError
    if errors:
        raise errors[0]
    connection.sock.settimeout(STALL_SECONDS)


class _HTTPHandler(request.HTTPHandler):
    def http_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _HTTPSHandler(request.HTTPSHandler):
    def https_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req, context=_context(*map(os.environ.get, CERTIFICATES)))


@cache
def _context(*certificates: str | None) -> ssl.SSLContext:
    """The certificates of the system and those of these files."""
    context = ssl.create_default_context()
    for path in filter(None, certificates):
        if Path(path).is_file():
            context.load_verify_locations(path)
    return context
