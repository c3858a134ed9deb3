"""Locate a model to import: a local folder or file, a catalogue name, or org/name@revision of the hub.

Only config.json, safetensors and tokenizer.json of one commit are fetched from the hub, once per commit.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.errors import BadInput, HarkenError, MissingExtra
from harken.events import Listener
from harken.suggestions import similar_path

HUB_NAME = re.compile(r"(?!.*\.\.)([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w-][\w./-]*))?", re.ASCII)
COMMIT_HASH = re.compile("[0-9a-f]{40}")
FETCHED_FILES = re.compile(
    r"(preprocessor_)?config\.json|tokenizer\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"
)
DONE_MARKER = ".fetched"


@dataclass(frozen=True)
class ModelLocation:
    """A model on this machine: its folder or file, and its origin for the manifest."""

    path: Path
    origin: dict[str, str]


def locate_model(source: str | Path, listen: Listener) -> ModelLocation:
    """The local copy of a model, fetched if necessary."""
    path, name = Path(source), str(source)
    weights = [known for known, entry in catalogue.ENTRIES.items() if entry.kind == "weights"]
    accepted = f"accepted: a folder, a .gguf file, org/name@revision, or {', '.join(weights)}"
    if path.is_file() and path.suffix != ".gguf":
        raise BadInput(f"{name}: is a file, but not .gguf; {accepted}; to train on data use harken train {name}")
    if path.exists():
        return ModelLocation(path, {"source": name})
    if name in catalogue.ENTRIES:
        if catalogue.ENTRIES[name].kind != "weights":
            raise BadInput(f"{name}: this catalogue entry has no weights; to train on it use harken train {name}")
        fetched = catalogue.fetch(name, listen=listen)
        used = {"fetched_from": fetched.source.get("source", ""), "files": fetched.source.get("files", "")}
        license_ = {"license": fetched.license, "attribution": fetched.attribution}
        return ModelLocation(fetched.path, {"source": name, "sha256": fetched.sha256, **used, **license_})
    if match := HUB_NAME.fullmatch(name):
        return _hub_location(match[1], match[2] or "main", listen)
    raise BadInput(f"{name}: no such model; {accepted}{similar_path(path, weights)}")


def default_run_name(source: str) -> str:
    """The name of a run that is imported from this source."""
    return Path(source.partition("@")[0]).resolve().name.removesuffix(".gguf")


def _hub_location(repo: str, revision: str, listen: Listener) -> ModelLocation:
    home = cache_folder("hub", repo.replace("/", "--"))
    if not COMMIT_HASH.fullmatch(revision) or not (home / revision / DONE_MARKER).is_file():
        try:
            revision = _fetch(repo, revision, home, listen)
        except ImportError:
            raise MissingExtra("the hub", "hf") from None
    return ModelLocation(home / revision, {"source": f"{repo}@{revision}", "revision": revision})


def _fetch(repo: str, revision: str, home: Path, listen: Listener) -> str:
    """Fetch the needed files of the commit that this revision resolves to; returns the commit."""
    import huggingface_hub as hub
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # the listener reports progress

    endpoint: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT")}
    try:
        repository = hub.HfApi(**endpoint).model_info(repo, revision=revision, files_metadata=True)
        commit = str(repository.sha)
        sizes = {file.rfilename: file.size or 0 for file in repository.siblings or ()}
        files = {name: size for name, size in sizes.items() if FETCHED_FILES.fullmatch(name)}
        if not COMMIT_HASH.fullmatch(commit) or not any(name.endswith(".safetensors") for name in files):
            raise BadInput(f"{repo}: has no safetensors files at revision {revision}; harken reads no other weights")
        if (home / commit / DONE_MARKER).is_file():
            return commit
        for name, size in files.items():
            listen("fetch", name=f"{repo}/{name}", done=0, total=size)
            hub.hf_hub_download(repo, name, revision=commit, local_dir=home / commit, **endpoint)
            listen("fetch", name=f"{repo}/{name}", done=size, total=size)
    except HarkenError:
        raise
    except Exception as error:  # huggingface_hub and its HTTP clients raise many kinds
        message = " ".join(str(error).split())[:200]
        problem = f"could not be fetched from the hub ({message}); check name and network"
        raise HarkenError(f"{repo}@{revision}: {problem}") from None
    (home / commit / DONE_MARKER).touch()
    return commit
