"""Import from the hub, with a local server: one commit, only the needed files, each fetched once."""

import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import harken
from harken.bridge.hub import default_run_name, locate_model
from harken.bridge.importer import import_model
from harken.errors import BadInput, HarkenError
from harken.events import silent

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the files of one folder as org/small at COMMIT."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.folder, self.requests = folder, list[str]()
        self.extra = {"pytorch_model.bin": b"pickle", "modeling_small.py": b"import os"}

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()} | self.extra


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def _send(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        path, files = unquote(self.path.partition("?")[0]), self.server.files()
        if path in ("/api/models/org/small/revision/main", f"/api/models/org/small/revision/{COMMIT}"):
            siblings = [{"rfilename": name, "size": len(body)} for name, body in files.items()]
            model_info = {"id": "org/small", "modelId": "org/small", "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(model_info).encode(), Content_Type="application/json")
        elif path.startswith(f"/org/small/resolve/{COMMIT}/") and (name := path.rpartition("/")[2]) in files:
            body = files[name]
            self._send(200, body, ETag=f'"{sha256(body).hexdigest()}"', X_Repo_Commit=COMMIT)
        else:
            self._send(404, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(small: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(small)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["org/small", "org/small@main", f"org/small@{COMMIT}"])
def test_a_hub_model_becomes_a_run_with_its_commit_in_the_manifest(name: str, hub: Hub, tmp_path: Path) -> None:
    import_model(name, tmp_path / "run")
    run = harken.load(tmp_path / "run")
    assert run.facts["imported"] == {"source": f"org/small@{COMMIT}", "revision": COMMIT, "family": "gpt2"}
    fetched = {line.rpartition("/")[2] for line in hub.requests if "/resolve/" in line}
    assert fetched == {"config.json", "model.safetensors", "tokenizer.json"}
    assert all(f"/resolve/{COMMIT}/" in line for line in hub.requests if "/resolve/" in line)


def test_a_fetched_commit_is_not_requested_again(hub: Hub) -> None:
    first = locate_model(f"org/small@{COMMIT}", silent)
    hub.requests.clear()
    assert locate_model(f"org/small@{COMMIT}", silent) == first
    assert hub.requests == []
    assert locate_model("org/small", silent) == first  # main has to be resolved, nothing else
    assert [line for line in hub.requests if "/resolve/" in line] == []


def test_fetching_reports_progress(hub: Hub) -> None:
    events: list[tuple[str, int, int]] = []
    locate_model("org/small", lambda event, /, **facts: events.append((facts["name"], facts["done"], facts["total"])))
    size = len(hub.files()["config.json"])
    assert ("org/small/config.json", 0, size) in events
    assert ("org/small/config.json", size, size) in events


def test_a_model_without_safetensors_is_refused(hub: Hub, small: Path) -> None:
    (small / "model.safetensors").unlink()
    with pytest.raises(BadInput, match="org/small: has no safetensors files at revision main"):
        locate_model("org/small", silent)


@pytest.mark.parametrize("name", ["org/other", "org/small@v2"])
def test_an_unknown_model_is_reported_in_one_line(name: str, hub: Hub) -> None:
    with pytest.raises(HarkenError, match=r"could not be fetched from the hub \(.*\); check name and network") as error:
        locate_model(name, silent)
    assert "\n" not in str(error.value)


def test_an_interrupted_fetch_is_repeated(hub: Hub, small: Path, tmp_path: Path) -> None:
    tokens = (small / "tokenizer.json").read_bytes()
    hub.extra["tokenizer.json"] = tokens
    real = Hub.files
    calls = 0

    def broken(self: Hub) -> dict[str, bytes]:
        nonlocal calls
        calls += 1
        return real(self) if calls == 1 else {k: v for k, v in real(self).items() if k != "tokenizer.json"}

    Hub.files = broken  # type: ignore[method-assign]
    try:
        with pytest.raises(HarkenError):
            locate_model("org/small", silent)
    finally:
        Hub.files = real  # type: ignore[method-assign]
    assert (locate_model("org/small", silent).path / "tokenizer.json").read_bytes() == tokens


@pytest.mark.parametrize("name", ["../small", "/etc/small", "org/../small", "org/small@../../x", "a/b/c", "org/"])
def test_a_name_that_is_a_path_never_reaches_the_hub(name: str, hub: Hub) -> None:
    with pytest.raises(HarkenError):
        locate_model(name, silent)
    assert [line for line in hub.requests if ".." in line] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [("org/small@abc", "small"), ("a/b/smollm2.gguf", "smollm2"), ("smollm2", "smollm2"), ("models/gpt2/", "gpt2")],
)
def test_the_default_run_name_is_that_of_the_source(source: str, name: str) -> None:
    assert default_run_name(source) == name
