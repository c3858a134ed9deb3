"""From what the user names (a file, a folder, a catalogue name, a recipe) to a resolved recipe, and why."""

import hashlib
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from harken import machine, recipe, registry
from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.data.detect.kinds import AS_TEXT, Guess, sniff
from harken.data.maths.source import SCHEME, named
from harken.data.text.source import TextSource
from harken.errors import BadInput, how_to_go_on, near_name
from harken.events import Listener, silent
from harken.recipe import Recipe, Settings

from .transfer import inherited

LARGE = 8 << 20  # bytes; a text above this is learned in byte pairs, below it in characters
KIND = {"trees": "pairs"}
LABELLED = {"table": "labels", "tags": "tags", "spans": "spans"}  # data with labels, and the recipe that suits it
SUITS: dict[str, Settings] = {  # a tree is a long line, several times its sentence
    "trees": {
        "task.metric": "bracket_f1",
        "task.grammar": "trees",
        "task.max_new_tokens": 301,
        "data.max_length": 300,
        "data.tokenizer": "symbol",
        "data.target_tokenizer": "symbol",
        "data.shared_vocab": False,
        "model.share_embeddings": False,
        "model.positions": "learned",  # the n-th number looks at the n-th word
    }
}
NEEDS = {"data.caption": "captions", "data.group": "sets", "data.label": "table"}  # whose columns these are
NEEDS |= {"data.source": "pairs", "data.target": "pairs"}
LOOSE = {"text", "pairs", "table"}  # what a table with such columns may look like
WRITTEN = ("pairs", "table", "tags")  # kinds of the catalogue whose files are text, if one insists
PATHS = ("path", "train", "valid", "test", "mix")  # settings that name files
SIDES = ("source", "target")  # they too where no other says what is read; else they are columns or languages


@dataclass(frozen=True)
class Chosen:
    """A resolved recipe, and what the data was taken for."""

    recipe: Recipe
    guess: Guess | None


def choose(what: str | None, settings: Settings | None = None, *, listen: Listener = silent) -> Chosen:
    """The recipe for this data or recipe file, with these settings on top."""
    given = dict(settings or {})
    on_top = (recipe.GIVEN, given)
    if what is None:
        return Chosen(recipe.resolve(on_top), None)
    if what.endswith(".toml"):
        if not Path(what).exists():
            raise BadInput(f"{what}: there is no such recipe; check the name{near_name(what)}")
        read = recipe.read(Path(what))
        names = PATHS if {"data.path", "data.train"} & (read.keys() | given.keys()) else PATHS + SIDES
        if any(f"data.{name}" in given for name in names):
            read.pop("data.sha256", None)  # the fingerprint of another text
        if read.get("from", "none") != "none":  # a path of the file too
            read["from"] = str(Path(what).parent / str(read["from"]))
        return Chosen(_beside(what, names, recipe.resolve(*_begun(read | given), (what, read), on_top)), None)
    # a name of both, such as stories, is the recipe where data is named, else the set of the catalogue
    named = next((name for name in ("data.path", "data.train", "data.mix") if name in given), None)
    if not Path(what).exists() and what in recipe.shipped_names() and (named or what not in catalogue.ENTRIES):
        shipped = recipe.shipped(what)
        return Chosen(recipe.resolve((f"recipe {what}", shipped), *_begun(shipped | given), on_top), None)
    if named:
        way = f"leave one of them out; with {named}, name a recipe instead: harken train char {named}=..."
        raise BadInput(f"{what}: {named} says too what is read; {way}")
    entry = catalogue.ENTRIES.get(what) if _hidden(what) or not Path(what).exists() else None
    if "data.kind" not in given and entry:
        _refuse_unread(what, Guess(entry.kind, entry.what, {}, (AS_TEXT,) if entry.kind in WRITTEN else ()))
    path = located(what, listen=listen)
    kind, guess = _kind(what, path, given)
    there = {} if what.startswith(SCHEME) else {"data.path": str(path)}
    found = {"data.kind": kind, **there, **_found(what, kind, guess, listen)}
    placed = given.get("model.kind", "transformer") == "transformer"
    found |= {name: value for name, value in SUITS.get(guess.kind, {}).items() if placed or name != "model.positions"}
    suits = entry.settings if entry and kind == entry.kind else {}
    begun = _begun({"data.kind": kind} | given)
    known = begun[0][1] | given if begun else given
    ours = {**_template(kind, path, known), **suits, **_room(kind, dict(suits), known)}
    layers = ("harken's choice for such data", ours), (what, found), *begun
    return Chosen(recipe.resolve(*layers, on_top), guess)


def _begun(said: Settings) -> list[tuple[str, Settings]]:
    """The layer of what a recipe that says this takes over from the run it begins from; none, if from none."""
    start, kind = str(said.get("from", "none")), str(said.get("data.kind", "text"))
    return [] if start == "none" else [(f"from {start}", inherited(start, kind, said))]


def _kind(what: str, path: Path, given: Settings) -> tuple[str, Guess]:
    """The kind of the data: the one that was named, or that a named column needs, else the one it looks like; why."""
    if what.startswith(SCHEME):
        return "maths", Guess("maths", "examples are drawn, not read", {"data.operation": named(what)}, (), named=True)
    if "data.kind" in given:
        kind = str(given["data.kind"])
        recipe.resolve((recipe.GIVEN, {"data.kind": kind}))  # refuses a kind that is none
        try:  # a plug-in may read what harken does not know
            guess = sniff(path)
        except BadInput:
            return kind, Guess(kind, "as data.kind says", {}, (), named=True)
        return kind, guess if kind == KIND.get(guess.kind, guess.kind) else _named(kind, "data.kind", guess)
    guess = sniff(path)
    for name, kind in NEEDS.items():
        if name in given and guess.kind in LOOSE and name[5:] not in registry.find("data", guess.kind).model_fields:
            if name == "data.label" and "data.group" in given:  # pairs have a group too, but no label
                name, kind = "data.group", "sets"
            return kind, _named(kind, name, guess)
    _refuse_unread(what, guess)
    return KIND.get(guess.kind, guess.kind), guess


def _named(kind: str, setting: str, guess: Guess) -> Guess:
    """What is told where a setting overrules what the data looks like."""
    return Guess(kind, f"as {setting} says; it looks like {guess.kind}: {guess.reason}", {}, (), named=True)


def _refuse_unread(what: str, guess: Guess) -> None:
    """Refuse data of a kind that has no reader, and text that is one column among others."""
    kind, known = KIND.get(guess.kind, guess.kind), registry.names("data")
    if kind not in known:
        why = f"this harken has no reader for {kind} yet; it reads {', '.join(known)}"
    elif kind == "text" and not guess.plain:
        column = guess.settings["data.text"]
        why = f"this harken reads plain text; write column {column!r} out as one (of JSONL: jq -r .{column})"
    else:
        return
    as_text = kind == "text" or any(other == "text" for other, _ in guess.others)
    way = ". To take it for text all the same: data.kind=text" if as_text else ""
    raise BadInput(f"{what}: this is {guess.kind} ({guess.reason}), and {why}{way}")


def _beside(file: str, names: tuple[str, ...], found: Recipe) -> Recipe:
    """The same recipe with the relative paths that its file gives under these names seen from the file's folder."""
    home, data = Path(file).parent, found.data
    said = [name for name in names if found.origins.get(f"data.{name}") == file]
    given = {name: value for name in said if isinstance(value := getattr(data, name), str | dict)}
    moved = {
        name: str(home / value) if isinstance(value, str) else {str(home / path): w for path, w in value.items()}
        for name, value in given.items()
    }
    return replace(found, data=data.model_copy(update=moved))


def _found(what: str, kind: str, guess: Guess, listen: Listener) -> Settings:
    """The settings found in the data; one that its reader does not have is left aside, and that is said."""
    found, fields = guess.settings, registry.find("data", kind).model_fields
    for key in (aside := [key for key in found if key.partition(".")[2] not in fields]):
        why = f"but the reader of {kind} has no such setting; the data is read as it is"
        listen("notice", text=f"{what}: {key}={recipe.as_toml(found[key])} would fit, {why}")
    return {key: value for key, value in found.items() if key not in aside}


def _template(kind: str, path: Path, given: Settings) -> Settings:
    """The settings that suit such data: a recipe that comes with harken, by its tokens or by its model."""
    if kind == "pairs":
        model = str(given.get("model.kind", "transformer"))
        if model in ("gru", "lstm"):  # a recurrent rung with a cell of its own
            return {k: v for k, v in recipe.shipped("pairs-rnn").items() if k != "model.cell"}
        if (name := f"pairs-{model}") in recipe.shipped_names():
            return recipe.shipped(name)
        every = recipe.shipped("translate")
        if model != "transformer":
            return {k: v for k, v in every.items() if not k.startswith("model.")}
        gpu = machine.pick_device(str(given.get("train.device", "auto"))).type == "cuda"
        return every | {"task.packed": gpu and not given.get("data.bpe_dropout")}  # one shape, so one recording
    if (name := LABELLED.get(kind, kind)) in recipe.shipped_names():
        own_model = registry.find("data", kind).model
        model, every = str(given.get("model.kind", own_model)), recipe.shipped(name)
        if (own := f"{name}-{model}") in recipe.shipped_names():
            return recipe.shipped(own)
        same = model == own_model  # the shape of another model is its own, but for the longest text it reads
        return {k: v for k, v in every.items() if same or not k.startswith("model.") or k == "model.context"}
    if kind != "text":
        return {}
    tokens, model = str(given.get("data.tokenizer", _tokens(path))), str(given.get("model.kind", "gpt"))
    name = tokens if model == "gpt" else model
    return {"data.tokenizer": tokens, **(recipe.shipped(name) if name in recipe.shipped_names() else {})}


def _room(kind: str, suits: Settings, given: Settings) -> Settings:
    """A context that holds the longest sentence of a set of the catalogue, if that is more than the model's own."""
    longest = suits.get("data.max_length")
    if kind != "pairs" or not isinstance(longest, int) or "data.max_length" in given:
        return {}
    context = registry.find("model", str(given.get("model.kind", "transformer")), " of pairs").model_fields.get(
        "context"
    )
    own = context and context.default
    return {"model.context": longest + 1} if isinstance(own, int) and longest >= own else {}


def located(what: str, *, listen: Listener = silent) -> Path:
    """The path of the data, as it was named: stdin is kept in the cache, a catalogue name is fetched."""
    if what == "-":
        return _stdin()
    path = Path(what)
    if what.startswith(SCHEME):
        return Path(SCHEME + named(what))
    if what and not _hidden(what) and (path.exists() or path.is_symlink()):
        if (path / "harken.json").exists() or (path / "checkpoints").exists():
            if not (path / "recipe.toml").exists():
                raise BadInput(f"{what}: this is a run without its recipe.toml; take it from a copy, or train again")
            again = f"repeat it with: harken train {shlex.quote(str(path / 'recipe.toml'))}"
            raise BadInput(f"{what}: this is a run, not data; {how_to_go_on(path)}; or {again}")
        if (path / ".lock").exists() and all(p.name.startswith(".") for p in path.iterdir()):
            raise BadInput(f"{what}: a training that ended before its first step; begin it again with its data")
        return path
    if what in catalogue.names():
        return catalogue.fetch(what, listen=listen).path
    if "=" in what:
        way = f"name the data or a recipe before it, as in: harken train translate {what}"
        raise BadInput(f"{what}: a setting stands where the data is named; {way}")
    accepted = "there is no such file, folder, catalogue name (harken data) or recipe"
    near = near_name(what, [*catalogue.names(), *recipe.shipped_names()])
    raise BadInput(f"{what or repr(what)}: {accepted}; check the name{near}")


def _hidden(what: str) -> bool:
    """Whether a set of the catalogue is meant, though a comparison was written to a folder of the same name."""
    return what in catalogue.ENTRIES and (Path(what) / "compare.json").is_file()


def _stdin() -> Path:
    """Standard input as a file: it is read once, and a run must be repeatable."""
    digest, home = hashlib.sha256(), cache_folder("stdin")
    partial = home / f".tmp-{os.getpid()}"
    with partial.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            digest.update(block)
            file.write(block)
    if not partial.stat().st_size:
        partial.unlink()
        raise BadInput("stdin: there is nothing in it; give it a text: harken train - < my.txt")
    return partial.replace(home / f"{digest.hexdigest()[:16]}.txt")


def _tokens(path: Path) -> str:
    """Words if the text is marked as words (<unk> as in Lab 01's data), characters if it is short, else byte pairs."""
    found = TextSource().files(path)
    for file in found[:3]:
        with file.open("rb") as opened:
            if b" <unk> " in opened.read(1 << 16):
                return "word"
    return "bpe" if sum(f.stat().st_size for f in found) > LARGE else "char"


def run_name(what: str | None, given: Settings) -> str:
    """The name of a run: that of its data, without folder and ending; of its recipe, where that names no data."""
    layers = [given]
    if what is not None and what.endswith(".toml") and Path(what).exists():
        layers.append(recipe.read(Path(what)))
    elif what is not None and (Path(what).exists() or what not in recipe.shipped_names()):
        layers = [{"data.path": "stdin" if what == "-" else what.removeprefix(SCHEME)}]
    paths = [str(settings[key]) for settings in layers for key in ("data.path", "data.train") if key in settings]
    return Path(os.path.abspath(paths[0] if paths else what or "run")).stem or "run"
