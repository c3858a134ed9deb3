"""From what the user names (a file, a folder, a catalogue name, a recipe) to a resolved recipe, and why."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harken import kinds, recipe
from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.data.sniff import Guess, sniff
from harken.errors import BadInput, did_you_mean
from harken.events import Listener, silent
from harken.recipe import Recipe, Settings

LARGE = 8 << 20  # bytes; a text above this is learned in byte pairs, below it in characters
KIND = {"trees": "pairs"}


@dataclass(frozen=True)
class Chosen:
    """A resolved recipe, what the data was taken for, and the name a run of it would have."""

    recipe: Recipe
    guess: Guess | None
    name: str


def choose(what: str | None, settings: Settings | None = None, *, listen: Listener = silent) -> Chosen:
    """The recipe for this data or recipe file, with these settings on top."""
    given = dict(settings or {})
    origin = "command line"
    if what is None:
        return Chosen(recipe.resolve((origin, given)), None, _name(given))
    if what.endswith(".toml"):
        return Chosen(
            recipe.resolve((what, recipe.read(Path(what))), (origin, given)),
            None,
            _name(given, recipe.read(Path(what))),
        )
    if not Path(what).exists() and what in recipe.shipped_names():
        base = recipe.shipped(what)
        return Chosen(
            recipe.resolve((f"recipe {what}", base), (origin, given)),
            None,
            _name(given, base) if "data.path" in given else what,
        )
    path = located(what, listen=listen)
    guess = sniff(path)
    kind = str(given.get("data.kind", KIND.get(guess.kind, guess.kind)))
    if kind not in kinds.names("data"):
        raise BadInput(
            f"{what}: this is {guess.kind} ({guess.reason}), and this harken has no reader for {kind} yet; "
            f"it reads {', '.join(kinds.names('data'))}. To take it for text all the same: data.kind=text"
        )
    found: Settings = {"data.kind": kind, "data.path": str(path)} | (guess.settings if kind == guess.kind else {})
    tokens = str(given.get("data.tokens", _tokens(path)))
    template = (
        recipe.shipped(tokens)
        if kind == "text" and given.get("model.kind", "gpt") == "gpt"
        else {"data.tokens": tokens}
    )
    known = recipe.shipped_names()
    if kind == "text" and (other := str(given.get("model.kind", "gpt"))) != "gpt" and f"{other}" in known:
        template = {**recipe.shipped(other), "data.tokens": tokens}
    layers = ("harken's choice for such data", template if kind == "text" else {}), (what, found), (origin, given)
    return Chosen(recipe.resolve(*layers), guess, _name({"data.path": what if what != "-" else "stdin"}))


def located(what: str, *, listen: Listener = silent) -> Path:
    """The path of the data: stdin is kept in the cache, a catalogue name is fetched."""
    if what == "-":
        return _stdin()
    path = Path(what)
    if path.exists() or path.is_symlink():
        return path.absolute()
    if what in catalogue.names():
        return catalogue.fetch(what, listen=listen).path
    near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
    near = near or did_you_mean(what, [*catalogue.names(), *recipe.shipped_names()])
    raise BadInput(
        f"{what}: there is no such file, folder, catalogue name (harken data) or recipe;{near or ' check the name'}"
    )


def _stdin() -> Path:
    """Standard input as a file: it is read once, and a run must be repeatable."""
    digest, home = hashlib.sha256(), cache_folder("stdin")
    partial = home / f".tmp-{id(digest)}"
    with partial.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            digest.update(block)
            file.write(block)
    place = home / f"{digest.hexdigest()[:16]}.txt"
    return partial.replace(place)


def _tokens(path: Path) -> str:
    """Words if the text is marked as words (<unk> as in Lab 01's data), characters if it is short, else byte pairs."""
    files = (
        [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    )
    for file in files[:3]:
        with file.open("rb") as opened:
            if b" <unk> " in opened.read(1 << 16):
                return "word"
    return "bpe" if sum(f.stat().st_size for f in files) > LARGE else "char"


def _name(*layers: dict[str, Any]) -> str:
    for settings in layers:
        for key in ("data.path", "data.train"):
            if key in settings:
                return Path(str(settings[key])).stem or "run"
    return "run"
