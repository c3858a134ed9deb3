"""Resolve a recipe from data, a catalogue name or a recipe file, with the reason for the detected kind."""

import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from harken import machine, recipe, registry
from harken.data import catalogue
from harken.data.cache import cache_folder
from harken.data.detect.detection import AS_TEXT, Detection
from harken.data.detect.kinds import detect_kind
from harken.data.detect.preview import column_stats
from harken.data.maths.source import SCHEME, parse_problem_name
from harken.data.sets.columns import preview_rows
from harken.data.tables.frame import frame_column_type
from harken.data.tables.text_file import JSON_SUFFIXES, TABLE_SUFFIXES, check_encoding, text_file
from harken.data.text.source import TextSource
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.files import replace_atomic
from harken.recipe import Recipe, SettingsDict
from harken.settings import Settings
from harken.suggestions import resume_command, similar_path

from .copying import copy_layer
from .transfer import inherited_settings

CATALOGUE = "default for this data set"  # origin of the settings of a catalogue entry
LARGE = 8 << 20  # bytes; larger texts use byte pairs, smaller ones characters
KIND = {"trees": "pairs"}
COLUMN_KINDS = {"data.caption": "captions", "data.group": "sets", "data.label": "table"}  # the kind a column implies
COLUMN_KINDS |= {"data.source": "pairs", "data.target": "pairs"}
COLUMNS = (*COLUMN_KINDS, "data.text", "data.time", "data.image", "data.split_group")  # settings that name a column
MIN_TEXT_WORDS = 2  # mean words of a text column of a table whose data.group is not the name of a set
AMBIGUOUS = {"text", "pairs", "table", "numbers", "picture questions"}  # kinds that such a column overrides
TEXT_FILES = ("pairs", "table", "tags")  # kinds of the catalogue that can also be read as text
PATHS = ("path", "train", "valid", "test", "mix")  # settings that name files
GRAPH_RECIPES: dict[object, str] = {"pair": "graph-pairs", "edge": "graph-links"}  # by data.target_level
MAX_SEGMENTS = 16  # embeddings; further columns share the last one
SIDES = ("source", "target")  # files too if no other setting names the data; otherwise columns or languages


@dataclass(frozen=True)
class RecipeChoice:
    """A resolved recipe, and the detected kind of the data (None for a recipe file)."""

    recipe: Recipe
    detection: Detection | None


def choose(what: str | None, settings: SettingsDict | None = None, *, listen: Listener = silent) -> RecipeChoice:
    """The recipe for this data or recipe file, with these settings on top."""
    overrides = dict(settings or {})
    top = (recipe.OVERRIDE, overrides)
    if what is None:
        return RecipeChoice(_resolve([], [top]), None)
    if what.endswith(".toml"):
        return RecipeChoice(_from_file(what, overrides), None)
    # a recipe that shares its name with a catalogue entry is meant only if the settings name the data
    data_setting = next((name for name in ("data.path", "data.train", "data.mix") if name in overrides), None)
    is_recipe = what in recipe.shipped_names() and (data_setting or what not in catalogue.ENTRIES)
    if not Path(what).exists() and is_recipe:
        shipped = recipe.shipped(what)
        layers = [(f"recipe {what}", shipped), *_inherited(shipped | overrides)]
        return RecipeChoice(_resolve(layers, [top]), None)
    if data_setting:
        fix = f"remove one of them, or name a recipe: harken train char {data_setting}=..."
        raise BadInput(f"{what}: {data_setting} also names the data; {fix}")
    entry = catalogue.ENTRIES.get(what) if _is_catalogue_name(what) or not Path(what).exists() else None
    if "data.kind" not in overrides and entry:
        alternatives = (AS_TEXT,) if entry.kind in TEXT_FILES else ()
        _require_reader(what, Detection(entry.kind, entry.description, {}, alternatives))
    path = find_data(what, listen=listen)
    kind, detection = _kind(what, path, overrides)
    if detection.notice and not any(isinstance(overrides.get(name), int) for name in COLUMNS):
        listen("notice", text=f"{what}: {detection.notice}")
    path_setting = {} if what.startswith(SCHEME) else {"data.path": str(path)}
    detected = {"data.kind": kind, **path_setting, **_detected_settings(what, kind, detection, overrides, listen)}
    if detection.kind == "trees":
        trees = recipe.read(Path(str(resources.files(__package__) / "trees.toml")))
        is_transformer = overrides.get("model.kind", "transformer") == "transformer"
        detected |= {name: value for name, value in trees.items() if is_transformer or name != "model.positions"}
    entry_settings = dict(entry.settings) if entry and kind == entry.kind else {}

    def resolved(*extra: tuple[str, SettingsDict]) -> Recipe:
        known = {name: value for _, layer in extra for name, value in layer.items()} | overrides
        inherited = _inherited({"data.kind": kind} | known)
        known = inherited[0][1] | known if inherited else known
        context = _min_context(kind, entry_settings, known) | _segments(kind, known)
        template = _template(kind, path, detected | known)
        defaults = (recipe.DEFAULTS, template), (CATALOGUE, entry_settings), (recipe.DEFAULTS, context)
        return recipe.resolve(*defaults, (what, detected), *inherited, *extra, top)

    chosen = resolved()
    copying = copy_layer(chosen, listen) if kind == "pairs" else None
    return RecipeChoice(resolved(copying) if copying else chosen, detection)


def _from_file(what: str, overrides: SettingsDict) -> Recipe:
    """The recipe of a TOML file; its relative paths start at its folder."""
    if not Path(what).exists():
        raise BadInput(f"{what}: no such recipe; check the name{similar_path(what)}")
    settings = recipe.read(Path(what))
    _reject_table(what, settings, overrides)
    names = PATHS if {"data.path", "data.train"} & (settings.keys() | overrides.keys()) else PATHS + SIDES
    if any(f"data.{name}" in overrides for name in names):
        settings.pop("data.sha256", None)  # the checksum of other data
    if settings.get("from", "none") != "none":
        settings["from"] = str(Path(what).parent / str(settings["from"]))
    resolved = _resolve(_inherited(settings | overrides), [(what, settings), (recipe.OVERRIDE, overrides)])
    return _relative_to_file(what, names, resolved)


def _reject_table(what: str, settings: SettingsDict, overrides: SettingsDict) -> None:
    """Raise for a recipe without data.kind whose file is a table: the default kind would read it as plain text."""
    path = Path(str(overrides.get("data.path") or Path(what).parent / str(settings.get("data.path", ""))))
    if "data.kind" not in settings | overrides and path.suffix.lower() in TABLE_SUFFIXES and path.is_file():
        fix = f"set data.kind={KIND.get(kind := detect_kind(path).kind, kind)}, as detected, or data.kind=text"
        raise BadSetting(f"{what}: data.kind is not set, and data.path={path.name} is a table; {fix}")


def _resolve(defaults: Sequence[tuple[str, SettingsDict]], top: Sequence[tuple[str, SettingsDict]]) -> Recipe:
    """The recipe of these layers; where they set model.copy, with the defaults of copying."""
    chosen = recipe.resolve(*defaults, *top)
    copying = copy_layer(chosen) if "model.copy" in chosen.origins else None
    return recipe.resolve(*defaults, copying, *top) if copying else chosen


def _inherited(settings: SettingsDict) -> list[tuple[str, SettingsDict]]:
    """The layer of settings inherited from the run in `from`, if there is one."""
    run, kind = str(settings.get("from", "none")), str(settings.get("data.kind", "text"))
    return [] if run == "none" else [(f"from {run}", inherited_settings(run, kind, settings))]


def _encoding(overrides: SettingsDict) -> str | None:
    """The setting data.encoding of a text, which detection needs before the recipe is resolved."""
    if overrides.get("data.kind") == "maths":  # it has another setting of this name
        return None
    try:
        return check_encoding(None if (name := overrides.get("data.encoding")) is None else str(name))
    except ValueError as error:
        raise BadSetting(f"data.encoding: {error}") from None


def _kind(what: str, path: Path, overrides: SettingsDict) -> tuple[str, Detection]:
    """The kind of the data: the one that is set, the one a set column implies, or the detected one; with its reason."""
    if what.startswith(SCHEME):
        operation = {"data.operation": parse_problem_name(what)}
        return "maths", Detection("maths", "examples are generated", operation, (), user_specified=True)
    encoding, names = _encoding(overrides), [overrides[name] for name in COLUMNS if name in overrides]
    if "data.kind" in overrides:
        kind = str(overrides["data.kind"])
        recipe.resolve((recipe.OVERRIDE, {"data.kind": kind}))  # raises for an unknown kind
        try:
            detection = detect_kind(path, encoding, names)
        except BadInput:  # a plug-in may read it
            return kind, Detection(kind, "set by data.kind", {}, (), user_specified=True)
        same = kind == KIND.get(detection.kind, detection.kind)
        return kind, detection if same else _overridden(kind, "data.kind", detection, overrides)
    detection = detect_kind(path, encoding, names)
    for name, kind in COLUMN_KINDS.items():
        if name not in overrides or detection.kind not in AMBIGUOUS:
            continue
        if name == "data.group" and detection.kind == "table" and not _has_text(path, overrides):
            return kind, _overridden(kind, name, detection, overrides)  # without a text, the rows of a group are a set
        is_read = registry.is_kind("data", detection.kind)
        if not is_read or name[5:] not in registry.find_kind("data", detection.kind).model_fields:
            without_text = "data.group" in overrides and "data.text" not in overrides
            if name == "data.label" and without_text:  # pairs have a group, but no label
                name, kind = "data.group", "sets"
            return kind, _overridden(kind, name, detection, overrides)
    if not COLUMN_KINDS.keys() & overrides.keys():
        _require_reader(what, detection)
    return KIND.get(detection.kind, detection.kind), detection


def _has_text(path: Path, overrides: SettingsDict) -> bool:
    """Whether a table has a text column: the one that is set, or one of several words."""
    if "data.text" in overrides or path.is_dir():
        return True
    reserved = [overrides.get("data.group"), overrides.get("data.label")]
    columns = column_stats(table) if (table := preview_rows(path, _encoding(overrides))) else []
    return any(c.text_fraction >= 0.5 and c.mean_words >= MIN_TEXT_WORDS and c.ref not in reserved for c in columns)


def _overridden(kind: str, setting: str, detection: Detection, overrides: SettingsDict) -> Detection:
    """The detection where a setting overrides it; a labelled table keeps the detected column of text."""
    reason = f"set by {setting}; detected as {detection.kind}: {detection.reason}"
    text = _text_beside(detection, overrides["data.label"]) if kind == "table" and "data.label" in overrides else None
    settings: SettingsDict = {} if text is None else {"data.text": text}
    return Detection(kind, reason, settings, (), user_specified=True, notice=detection.notice)


def _text_beside(detection: Detection, label: object) -> object:
    """The detected column of text: of pairs the one that is not the label; None if there is none."""
    sides = [detection.settings.get(f"data.{side}") for side in ("source", "target")]
    text = sides[1 - sides.index(label)] if label in sides else detection.settings.get("data.text")
    return None if text == label else text


def _require_reader(what: str, detection: Detection) -> None:
    """Raise for data of a kind without a reader, and for a table with one text column among others."""
    if detection.refusal:
        raise BadInput(f"{what}: {detection.refusal}")
    kind = KIND.get(detection.kind, detection.kind)
    if not registry.is_kind("data", kind):
        problem = f"harken has no reader for {kind}; it reads {', '.join(registry.kind_names('data'))}"
    elif kind == "text" and not detection.is_plain_text:
        column = detection.settings["data.text"]
        suffix = Path(what).suffix.lower()
        copy = f"write column {column!r} to a text file" + f" (jq -r .{column})" * (suffix in JSON_SUFFIXES[1:])
        accepted = "a text and a label, or two texts, are needed"
        problem = f"{accepted}; name the column to predict (data.label=...), or {copy}"
    else:
        return
    as_text = kind == "text" or any(name == "text" for name, _ in detection.alternatives)
    fix = ". To read it as text: data.kind=text" if as_text else ""
    raise BadInput(f"{what}: detected as {detection.kind} ({detection.reason}), but {problem}{fix}")


def _relative_to_file(file: str, names: tuple[str, ...], resolved: Recipe) -> Recipe:
    """The recipe with the relative paths of its file resolved against the folder of the file."""
    folder, data = Path(file).parent, resolved.data
    own = {name: vars(data)[name] for name in names if resolved.origins.get(f"data.{name}") == file}
    moved: SettingsDict = {name: str(folder / path) for name, path in own.items() if isinstance(path, str)}
    for name, mix in own.items():
        moved |= {name: {str(folder / path): w for path, w in mix.items()}} if isinstance(mix, dict) else {}
    return replace(resolved, data=data.model_copy(update=moved))


def _detected_settings(
    what: str, kind: str, detection: Detection, overrides: SettingsDict, listen: Listener
) -> SettingsDict:
    """The detected settings that the reader has; the others are reported."""
    settings, fields = detection.settings, registry.find_kind("data", kind).model_fields
    for key in (unknown := [key for key in settings if key.partition(".")[2] not in fields]):
        value = recipe.to_toml_value(settings[key])
        listen("notice", text=f"{what}: ignored {key}={value}: the reader of {kind} has no such setting")
    if overrides.get("data.label", settings.get("data.label")) != settings.get("data.label"):
        unknown.append("data.target_type")  # of another column
    if {"data.label", "data.node_type"} & overrides.keys():
        unknown.append("data.target_level")
    return {key: value for key, value in settings.items() if key not in unknown}


def _template(kind: str, path: Path, overrides: SettingsDict) -> SettingsDict:
    """The settings of the shipped recipe for this data, by its tokenizer or its model."""
    if kind == "pairs":
        return _pairs_template(overrides)
    family = registry.FAMILIES[registry.find_kind("data", kind).task]
    name = GRAPH_RECIPES.get(overrides.get("data.target_level"), family.recipe or kind)
    if name in recipe.shipped_names():
        default_model = family.default_model
        model, settings = str(overrides.get("model.kind", default_model)), recipe.shipped(name)
        if (specific := f"{name}-{model}") in recipe.shipped_names():
            return recipe.shipped(specific)
        same = model == default_model  # another model keeps its own sizes, except for the context
        return {k: v for k, v in settings.items() if same or not k.startswith("model.") or k == "model.context"}
    if kind != "text":
        return {}
    tokenizer = str(overrides.get("data.tokenizer", _default_tokenizer(path, _encoding(overrides))))
    model = str(overrides.get("model.kind", "gpt"))
    name = tokenizer if model == "gpt" else model
    return {"data.tokenizer": tokenizer, **(recipe.shipped(name) if name in recipe.shipped_names() else {})}


def _pairs_template(overrides: SettingsDict) -> SettingsDict:
    """The settings of the shipped recipe for pairs with this model."""
    model = str(overrides.get("model.kind", "transformer"))
    if model in ("gru", "lstm"):  # the recurrent recipe with another cell
        return {k: v for k, v in recipe.shipped("pairs-rnn").items() if k != "model.cell"}
    if (name := f"pairs-{model}") in recipe.shipped_names():
        return recipe.shipped(name)
    settings = recipe.shipped("translate")
    if model != "transformer":
        return {k: v for k, v in settings.items() if not k.startswith("model.")}
    gpu = machine.pick_device(str(overrides.get("train.device", "auto"))).type == "cuda"
    return settings | {"task.packed": gpu and not overrides.get("data.bpe_dropout")}  # one shape: one CUDA graph


def _min_context(kind: str, entry_settings: SettingsDict, overrides: SettingsDict) -> SettingsDict:
    """A context for the longest sentence of a catalogue entry, if it exceeds the default of the model."""
    max_length = entry_settings.get("data.max_length")
    if kind != "pairs" or not isinstance(max_length, int) or "data.max_length" in overrides:
        return {}
    model = registry.find_kind("model", str(overrides.get("model.kind", "transformer")), "pairs")
    field = model.model_fields.get("context")
    default = field and field.default
    return {"model.context": max_length + 1} if isinstance(default, int) and max_length >= default else {}


def _segments(kind: str, overrides: SettingsDict) -> SettingsDict:
    """A segment embedding for each of several text columns; a BERT has two, for pairs."""
    columns, model = overrides.get("data.text"), overrides.get("model.kind", "bert")
    if kind == "table" and model == "bert" and isinstance(columns, list) and len(columns) > 2:
        return {"model.segments": min(len(columns), MAX_SEGMENTS)}
    return {}


def find_data(what: str, *, listen: Listener = silent) -> Path:
    """The path of the data. Standard input is copied to the cache; a catalogue entry is downloaded."""
    if what == "-":
        return _copy_stdin()
    path = Path(what)
    if what.startswith(SCHEME):
        return Path(SCHEME + parse_problem_name(what))
    if what and not _is_catalogue_name(what) and (path.exists() or path.is_symlink()):
        _require_data(path)
        return path
    if what in catalogue.ENTRIES:
        return catalogue.fetch(what, listen=listen).path
    if "=" in what:
        fix = f"put the data or a recipe before it, as in: harken train translate {what}"
        raise BadInput(f"{what}: a setting where the data is expected; {fix}")
    problem = "no such file, folder, catalogue entry (harken data) or recipe"
    from .demos import all_texts  # imports this module

    if what in all_texts():
        raise BadInput(f"{what}: {problem}; the demo of this name trains on its own data: harken demo {what}")
    suggestion = similar_path(what, [*catalogue.ENTRIES, *recipe.shipped_names()])
    raise BadInput(f"{what or repr(what)}: {problem}; check the name{suggestion}")


def data_sources(data: Settings) -> list[dict[str, str]]:
    """What was used for each set of the catalogue that these settings name."""
    values = [vars(data).get(name) for name in PATHS]
    paths = [path for value in values for path in ([*value] if isinstance(value, dict) else [value])]
    sources = {path: catalogue.source_of(Path(path)) for path in paths if isinstance(path, str)}
    return [source for source in sources.values() if source]


def _require_data(path: Path) -> None:
    """Raise if the path is a run folder."""
    if (path / "harken.json").exists() or (path / "checkpoints").exists():
        if not (path / "recipe.toml").exists():
            raise BadInput(f"{path}: a run folder without recipe.toml; restore the file or train again")
        repeat = f"repeat it with: harken train {shlex.quote(str(path / 'recipe.toml'))}"
        raise BadInput(f"{path}: a run folder, not data; {resume_command(path)}; or {repeat}")
    if (path / ".lock").exists() and all(p.name.startswith(".") for p in path.iterdir()):
        raise BadInput(f"{path}: a run that stopped before its first step; train again from its data")


def _is_catalogue_name(what: str) -> bool:
    """Whether a catalogue entry is meant although a comparison was written to a folder of the same name."""
    return what in catalogue.ENTRIES and (Path(what) / "compare.json").is_file()


def _copy_stdin() -> Path:
    """Standard input as a file: it can be read only once, and a run must be repeatable."""
    digest, folder = hashlib.sha256(), cache_folder("stdin")
    partial = folder / f".tmp-{os.getpid()}"
    with partial.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            digest.update(block)
            file.write(block)
    if not partial.stat().st_size:
        partial.unlink()
        raise BadInput("stdin: it is empty; pipe a text into it: harken train - < my.txt")
    path = folder / f"{digest.hexdigest()[:16]}.txt"
    replace_atomic(partial, path)
    return path


def _default_tokenizer(path: Path, encoding: str | None) -> str:
    """Words for a text with <unk> marks (as in Lab 01), characters for a short text, else byte pairs."""
    files = [text_file(file, encoding, plain=True).path for file in TextSource().files(path)]
    for file in files[:3]:
        with file.open("rb") as stream:
            if b" <unk> " in stream.read(1 << 16):
                return "word"
    return "bpe" if sum(f.stat().st_size for f in files) > LARGE else "char"


def run_name(what: str | None, settings: SettingsDict) -> str:
    """The default name of a run: the stem of its data path, or of its recipe."""
    layers = [settings]
    if what is not None and what.endswith(".toml") and Path(what).exists():
        layers.append(recipe.read(Path(what)))
    elif what is not None and (Path(what).exists() or what not in recipe.shipped_names()):
        layers = [{"data.path": "stdin" if what == "-" else what.removeprefix(SCHEME)}]
    paths = [str(layer[key]) for layer in layers for key in ("data.path", "data.train") if key in layer]
    return Path(os.path.abspath(paths[0] if paths else what or "run")).stem or "run"


def target_settings(what: str | Path | None, target: str, settings: SettingsDict) -> SettingsDict:
    """The settings that name the column to predict, and the detected column to predict it from."""
    if what is None or not Path(what).is_file():
        return settings | {"data.target" if settings.get("data.kind") == "pairs" else "data.label": target}
    detection = detect_kind(Path(what), _encoding(settings))
    is_number = bool(frame_column_type(Path(what), target))  # which no model of pairs generates
    if settings.get("data.kind", "table" if is_number else detection.kind) == "pairs":
        source = detection.settings.get("data.source", target)
        return ({"data.source": source} if source != target else {}) | settings | {"data.target": target}
    text = _text_beside(detection, target)
    return ({"data.text": text} if text is not None else {}) | settings | {"data.label": target}
