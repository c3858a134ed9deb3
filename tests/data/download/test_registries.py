"""Package registries: the address of a file on the index that the user has configured."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from file_server import FileServer, file_server
from harken.data.download import registries
from harken.data.download.http import SourceUnavailable
from harken.data.download.registries import npm_address, pip_indexes, pypi_address

FILE = "toy_set-1.0.tar.gz"


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without settings of pip, uv or npm; returns the .npmrc."""
    for name in (*registries.INDEX_VARIABLES, "PIP_EXTRA_INDEX_URL", "NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / ".npmrc"))
    return tmp_path / ".npmrc"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


def test_a_file_is_looked_up_in_the_index_of_the_environment(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url + "simple")
    links = f'<a href="../../f/{FILE}.asc">x</a> <a data-x="1" href="../../f/a%20b/{FILE}#sha256=1&amp;x">x</a>'
    server.files["/simple/toy-set/"] = links.encode()
    assert pypi_address("Toy_Set", FILE) == f"{server.url}f/a%20b/{FILE}"
    assert server.requests == ["/simple/toy-set/"]


def test_a_second_index_is_used_for_what_the_first_does_not_list(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url + "one/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file:///srv/simple {server.url}two")
    server.files["/two/toy/"] = f"<a href='/f/{FILE}'>".encode()
    assert pypi_address("toy", FILE) == f"{server.url}f/{FILE}"


def test_a_file_that_no_index_lists_is_reported_for_every_index(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//ada:secret@") + "one")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", server.url + "two")
    server.files["/two/toy/"] = b"<a href='/f/other.tar.gz'>"
    with pytest.raises(SourceUnavailable, match=rf"^127.0.0.1 answers 404 Not Found; 127.0.0.1 does not list {FILE}$"):
        pypi_address("toy", FILE)


def test_credentials_of_an_index_are_used_for_files_on_its_host_only(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//ada:secret@"))
    server.files["/toy/"] = f"<a href='/f/{FILE}'>".encode()
    assert pypi_address("toy", FILE) == server.url.replace("//", "//ada:secret@") + f"f/{FILE}"
    server.files["/toy/"] = f"<a href='https://files.example/{FILE}'>".encode()
    assert pypi_address("toy", FILE) == f"https://files.example/{FILE}"


@pytest.mark.process
def test_the_configuration_of_pip_decides_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = "[global]\nindex-url = https://a.example/simple\nextra-index-url = https://b.example/simple\n"
    (tmp_path / "pip.conf").write_text(config + "[download]\nindex-url = https://c.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert pip_indexes() == ["https://c.example/simple", "https://b.example/simple"]


def test_without_a_configuration_pypi_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries.sys, "executable", "/no/such/python")
    assert pip_indexes() == ["https://pypi.org/simple"]


def test_npm_packages_come_from_npm_by_default() -> None:
    assert npm_address("toy", "1.2.3") == "https://registry.npmjs.org/toy/-/toy-1.2.3.tgz"


def test_the_address_of_a_scoped_package_has_the_scope_in_its_path_only() -> None:
    assert npm_address("@org/toy", "1.2.3") == "https://registry.npmjs.org/@org/toy/-/toy-1.2.3.tgz"


@pytest.mark.parametrize("variable", ["NPM_CONFIG_REGISTRY", "npm_config_registry"])
def test_the_environment_decides_the_npm_registry(
    variable: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.write_text("registry=https://a.example/npm/\n")
    monkeypatch.setenv(variable, "https://b.example/npm")
    assert npm_address("toy", "1.0") == "https://b.example/npm/toy/-/toy-1.0.tgz"


def test_npmrc_decides_the_registry_of_all_packages_and_of_a_scope(settings: Path) -> None:
    settings.write_text(
        "; registry=https://x.example\nregistry = https://a.example/npm/\n//a.example/npm/:_authToken=abc\n"
        '@org:registry="https://c.example"\n'
    )
    assert npm_address("toy", "1.0") == "https://a.example/npm/toy/-/toy-1.0.tgz"
    assert npm_address("@org/toy", "1.0") == "https://c.example/@org/toy/-/toy-1.0.tgz"
    assert npm_address("@other/toy", "1.0") == "https://a.example/npm/@other/toy/-/toy-1.0.tgz"
