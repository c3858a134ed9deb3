"""Where a model to import lies: a folder or file here, a name of the catalogue, or org/name@revision of the hub.

Of the hub only config.json, safetensors and tokenizer.json are fetched, of one commit; what has been fetched of a
commit is not asked for again.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.errors import BadInput, HarkenError, MissingExtra, near_name
from harken.events import Listener

NAME = re.compile(r"(?!.*\.\.)([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w-][\w./-]*))?", re.ASCII)
COMMIT = re.compile("[0-9a-f]{40}")
WANTED = re.compile(r"(preprocessor_)?config\.json|tokenizer\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
DONE = ".fetched"


@dataclass(frozen=True)
class Found:
    """A model on this machine: its folder or file, and what is said of where it comes from."""

    path: Path
    origin: dict[str, str]


def located(source: str | Path, listen: Listener) -> Found:
    """The model of this name, fetched where it has to be."""
    path, name = Path(source), str(source)
    weights = [known for known, entry in catalogue.ENTRIES.items() if entry.kind == "weights"]
    accepted = f"accepted are a folder, a .gguf file, org/name@revision, and {', '.join(weights)}"
    if path.is_file() and path.suffix != ".gguf":
        raise BadInput(
            f"{name}: is a file, and no .gguf one; {accepted}; of data, make a run with: harken train {name}"
        )
    if path.exists():
        return Found(path, {"source": name})
    if name in catalogue.ENTRIES:
        if catalogue.ENTRIES[name].kind != "weights":
            raise BadInput(f"{name}: this set of the catalogue holds no weights; harken train {name} learns from it")
        got = catalogue.fetch(name, listen=listen)
        thanks = {"licence": got.licence, "attribution": got.attribution}
        return Found(got.path, {"source": name, "sha256": got.sha256, **thanks})
    if found := NAME.fullmatch(name):
        return _from_hub(found[1], found[2] or "main", listen)
    raise BadInput(f"{name}: there is no such model; {accepted}{near_name(path, weights)}")


def named(source: str) -> str:
    """How a run of this source is called."""
    return Path(source.partition("@")[0]).resolve().name.removesuffix(".gguf")


def _from_hub(repo: str, revision: str, listen: Listener) -> Found:
    home = cache_folder("hub", repo.replace("/", "--"))
    if not COMMIT.fullmatch(revision) or not (home / revision / DONE).is_file():
        try:
            revision = _fetch(repo, revision, home, listen)
        except ImportError:
            raise MissingExtra("the hub", "hf") from None
    return Found(home / revision, {"source": f"{repo}@{revision}", "revision": revision})


def _fetch(repo: str, revision: str, home: Path, listen: Listener) -> str:
    """Fetch the files that are read, of the commit this revision stands for now; the commit."""
    import huggingface_hub as hub
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # whoever listens is told

    where: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT")}
    try:
        info = hub.HfApi(**where).model_info(repo, revision=revision, files_metadata=True)
        commit = str(info.sha)
        files = {file.rfilename: file.size or 0 for file in info.siblings or () if WANTED.fullmatch(file.rfilename)}
        if not COMMIT.fullmatch(commit) or not any(name.endswith(".safetensors") for name in files):
            raise BadInput(f"{repo}: has no safetensors at revision {revision}; harken reads no other weights")
        if (home / commit / DONE).is_file():
            return commit
        for name, size in files.items():
            listen("fetch", name=f"{repo}/{name}", done=0, total=size)
            hub.hf_hub_download(repo, name, revision=commit, local_dir=home / commit, **where)
            listen("fetch", name=f"{repo}/{name}", done=size, total=size)
    except HarkenError:
        raise
    except Exception as error:  # the library has many of its own, and of those whom it asks
        said = " ".join(str(error).split())[:200]
        raise HarkenError(
            f"{repo}@{revision}: could not be fetched from the hub ({said}); check name and network"
        ) from None
    (home / commit / DONE).touch()
    return commit
