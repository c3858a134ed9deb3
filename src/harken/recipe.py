"""A recipe: TOML -> six validated sections (data, model, task, train, cost, report). It is data: no includes, no code,
no expressions.

Two settings stand before the sections: `from`, a run with the initial weights and the tokenizer, and `transfer`, how
these weights are used.

Precedence: defaults < dials (size, style, optimizer) < file < overrides of the command line or the call. A dial takes
precedence over settings of earlier layers that it sets, and so does a budget (minutes over the steps of the file). The
origin of each value is recorded.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from . import registry, renamed
from .errors import BadInput, BadSetting
from .events import Listener, silent
from .settings import Settings
from .suggestions import did_you_mean, missing_run_error

if TYPE_CHECKING:
    from .data.source import Dataset, Processor, Vocab
    from .models import Model
    from .tasks import BoundTask

SECTIONS = ("data", "model", "task", "train", "cost", "report")
TRANSFERS = ("finetune", "frozen", "scratch")  # train all weights, only the head, or all from a new initialization
SHOTS = re.compile(r"(\d{1,4})-shot")  # no training: a prompt with this number of examples
OVERRIDE = "override"  # origin of the settings of the command line or of a call
DEFAULTS = "default for this data"  # origin of the settings that a kind of data suggests
TOP_LEVEL = ("from", "transfer", "from_sha256")
SYNONYMS = {"swa": "last", "rope": "rotary", "bf16": "bfloat16", "fp32": "float32"}
SettingsDict = dict[str, object]  # {"model.layers": 4, ...}


@dataclass(frozen=True)
class InitialWeights:
    """Source of the initial weights: a run (`from`) and how its weights are used (`transfer`), or random numbers."""

    run: str | None = None
    transfer: str = "finetune"
    sha256: str | None = None  # of the weights of the run; other weights are an error

    @classmethod
    def pop_from(cls, settings: SettingsDict, origins: Mapping[str, str]) -> "InitialWeights":
        """Remove `from`, `transfer` and `from_sha256` from the settings and return their values."""
        run, sha256 = settings.pop("from", None), settings.pop("from_sha256", None)
        if run is not None and not isinstance(run, str):
            raise BadSetting(f"from = {run!r}: accepted: the folder of a run")
        same_run = origins.get("from_sha256") == origins.get("from")  # else the checksum belongs to another run
        checksum = str(sha256) if sha256 and same_run else None
        initial = cls(None if run == "none" else run, str(settings.pop("transfer", cls.transfer)), checksum)
        if run is None and "transfer" in origins:
            raise BadSetting(f"transfer = {initial.transfer!r} needs a run; set from=runs/NAME")
        initial.check_transfer()
        return initial

    def check_transfer(self) -> None:
        """Raise for an unknown transfer."""
        if self.transfer not in TRANSFERS and self.shots is None:
            hint = did_you_mean(self.transfer, TRANSFERS)
            raise BadSetting(f"transfer = {self.transfer!r}: accepted: {', '.join(TRANSFERS)}, 4-shot.{hint}")

    @property
    def shots(self) -> int | None:
        """Number of examples in the prompt; None if the model is trained."""
        match = SHOTS.fullmatch(self.transfer)
        return int(match[1]) if match else None

    def with_absolute_paths(self) -> "InitialWeights":
        return self if self.run is None else replace(self, run=str(Path(self.run).absolute()))

    def settings(self) -> SettingsDict:
        sha256 = {} if self.sha256 is None else {"from_sha256": self.sha256}
        return {} if self.run is None else {"from": self.run, "transfer": self.transfer, **sha256}


@dataclass(frozen=True)
class Recipe:
    """The six sections, the initial weights, and the origin of each setting."""

    data: Any
    model: Any
    task: Any
    train: Any
    cost: Any
    report: Any
    origins: Mapping[str, str] = field(default_factory=dict)
    start: InitialWeights = InitialWeights()

    def settings(self) -> SettingsDict:
        """Every setting by its dotted path, without those that are None."""
        return self.start.settings() | {
            f"{section}.{name}": value
            for section in SECTIONS
            for name, value in getattr(self, section).model_dump(mode="json").items()
            if value is not None
        }

    def toml(self) -> str:
        """The resolved recipe as a file that repeats the run."""
        return to_toml_file(self.settings())

    def change(self, **settings: object) -> "Recipe":
        """The same recipe with these settings (train__steps=100); changed ones get the origin "computed"."""
        sections, before = {s: getattr(self, s) for s in SECTIONS}, self.settings()
        changed = {p: v for k, v in settings.items() if before.get(p := k.replace("__", ".")) != v}
        for path, value in changed.items():
            section, name = path.split(".")
            sections[section] = sections[section].model_copy(update={name: value})
        return replace(self, **sections, origins={**self.origins, **dict.fromkeys(changed, "computed")})

    def load_data(
        self,
        tokenizer: "Processor | None" = None,
        *,
        other: tuple[str, str] | None = None,
        encoding: str = "",
        listen: Listener = silent,
    ) -> "Dataset":
        """Load the data, or another data set (path, split) to evaluate; trains a tokenizer unless one is passed.

        `encoding` is that of the other data if it differs from the encoding of the training data.
        """
        options = {"stateful": self.model.stateful, "tokenizer": tokenizer, "listen": listen}
        data = self.data.with_encoding(encoding) if encoding else self.data
        return self.data.load_data(**options) if other is None else data.load_split(*other, **options)

    def bind(self, dataset: "Dataset") -> "BoundTask":
        """The task on a loaded data set."""
        return self.task.bind(dataset, self.model, batch=self.train.batch, seed=self.train.seed)

    def build(self, vocab: "Vocab") -> "Model":
        """The model with initial weights, for the vocabulary size of the data (a pair for two sides)."""
        try:
            return self.model.build(vocab)
        except ValueError as error:
            raise BadSetting(f"model: {error}") from None


def resolve(*layers: tuple[str, SettingsDict]) -> Recipe:
    """Merge layers of (origin, settings), where a later layer takes precedence, and validate the settings."""
    merged: SettingsDict = {}
    origins: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for rank, (origin, settings) in enumerate(layers):
        for former, value in settings.items():
            path = renamed.MOVED.get(former, former)
            merged[path], origins[path], ranks[path] = value, origin, rank
    start = InitialWeights.pop_from(merged, origins)
    _check_sections(merged, origins)
    sections: dict[str, Settings] = {}
    for section in SECTIONS:
        default, group = _default_kind(section, sections)
        settings_class = _find_kind(section, str(merged.get(f"{section}.kind", default)), origins, group)
        if section == "task":
            _check_task(str(merged.get("task.kind", default)), sections["data"], origins)
        _check_exclusive(section, settings_class, origins)
        for name in _overridden(section, settings_class, merged, ranks):
            del merged[f"{section}.{name}"], origins[f"{section}.{name}"]
        sections[section] = _validate(section, settings_class, merged, origins, sections)
    return Recipe(**sections, origins=origins, start=start)


def _default_kind(section: str, sections: Mapping[str, Settings]) -> tuple[str, str]:
    """The default kind of a section after the earlier sections, and the group of models for the data."""
    if fixed := {"data": "text", "train": "loop", "cost": "energy", "report": "page"}.get(section):
        return fixed, "text"
    family = _data_family(sections["data"])
    if section == "model":
        return family.default_model, family.models
    by_model = sections["model"].task if family.models == "text" else ""  # a model of text sets the task
    return by_model or sections["data"].task, family.models


def _data_family(source: Settings) -> registry.Family:
    """The family of a data kind; raises for a plug-in with an unknown task."""
    if source.task not in registry.FAMILIES:
        accepted = f"accepted: {', '.join(registry.FAMILIES)}"
        raise BadSetting(f"{type(source).__name__}.task = {source.task!r}: not a task; {accepted}")
    return registry.FAMILIES[source.task]


def _check_task(kind: str, source: Settings, origins: Mapping[str, str]) -> None:
    """Raise for a task of another data kind."""
    data = _data_family(source).data
    if registry.FAMILIES[kind].data != data:
        accepted = [task for task, family in registry.FAMILIES.items() if family.data == data]
        problem = f"task.kind = {kind!r} is not a task of {data}; accepted: {', '.join(accepted)}"
        raise BadSetting(_prefix(origins.get("task.kind", OVERRIDE)) + problem)


def _prefix(origin: str) -> str:
    """Prefix of a message with the origin of the setting; overrides have none."""
    return "" if origin == OVERRIDE else f"{origin}: "


def _check_sections(merged: SettingsDict, origins: Mapping[str, str]) -> None:
    for path in merged:
        section = path.partition(".")[0]
        if section not in SECTIONS or "." not in path:
            accepted = f"the sections are {', '.join(SECTIONS)}.{did_you_mean(section, SECTIONS)}"
            raise BadSetting(f"{_prefix(origins[path])}{path} is not a setting; {accepted}")


def _find_kind(section: str, kind: str, origins: Mapping[str, str], group: str) -> type[Settings]:
    try:
        return registry.find_kind(section, kind, group)
    except BadSetting as error:
        raise BadSetting(f"{_prefix(origins.get(f'{section}.kind', OVERRIDE))}{error}") from None


def _check_exclusive(section: str, settings_class: type[Settings], origins: Mapping[str, str]) -> None:
    """Raise for two overrides of the same exclusive group."""
    for group in settings_class.exclusive:
        paths = [path for name in group if origins.get(path := f"{section}.{name}") == OVERRIDE]
        if len(paths) > 1:
            raise BadSetting(f"{' and '.join(paths)}: these settings exclude each other; set one")


def _overridden(
    section: str, settings_class: type[Settings], merged: SettingsDict, ranks: Mapping[str, int]
) -> set[str]:
    """Settings that a later layer replaces: by a dial that sets them, or by another setting of an exclusive group."""

    def rank(name: str) -> int:
        return ranks.get(f"{section}.{name}", -1)

    dials = settings_class.dials.items()
    rows = [(dial, table.get(str(merged.get(f"{section}.{dial}")), {})) for dial, table in dials]
    names = {name for dial, row in rows for name in row if 0 <= rank(name) < rank(dial)}
    for group in settings_class.exclusive:
        names |= {name for name in group if 0 <= rank(name) < max(map(rank, group))}
    return names


def _validate(
    section: str,
    settings_class: type[Settings],
    merged: SettingsDict,
    origins: dict[str, str],
    earlier: Mapping[str, Settings],
) -> Settings:
    values = {path.partition(".")[2]: value for path, value in merged.items() if path.startswith(f"{section}.")}
    for name in values:
        if name not in settings_class.model_fields:
            problem = _unknown_setting(section, name, settings_class, earlier)
            raise BadSetting(f"{_prefix(origins[f'{section}.{name}'])}{problem}")
    for name, (dial, _) in settings_class.dial_values(values).items():
        origins.setdefault(f"{section}.{name}", dial)
    try:
        return settings_class.model_validate(values)
    except ValidationError as error:
        raise BadSetting(_explain(section, settings_class, error, origins)) from None


def _unknown_setting(section: str, name: str, settings_class: type[Settings], earlier: Mapping[str, Settings]) -> str:
    """The message for an unknown setting: its new name, a similar one, or where all are listed."""
    fields = settings_class.model_fields
    for new in renamed.SETTINGS.get(f"{section}.{name}", ()):
        if new in fields:
            return f"{section}.{name} is now {section}.{new}"
    if section == "model" and (kinds := _models_with(name, earlier["data"])):
        return f"model.{name} is not a setting of {fields['kind'].default}; models with it: {', '.join(kinds)}"
    elsewhere = [f"{other}.{name}" for other, settings in earlier.items() if name in type(settings).model_fields]
    hint = did_you_mean(name, fields).replace("Did you mean ", f"Did you mean {section}.")
    hint = f" Did you mean {elsewhere[0]}?" if elsewhere else hint
    listing = f"harken check --settings {fields['kind'].default} lists them"
    return f"{section}.{name} is not a setting{f'.{hint}' if hint else f'; {listing}'}"


def _models_with(name: str, source: Settings) -> list[str]:
    """The models for this data that have a setting."""
    group = _data_family(source).models
    kinds = registry.kind_names("model", group)
    return [kind for kind in kinds if name in registry.find_kind("model", kind, group).model_fields]


def _explain(section: str, settings_class: type[Settings], error: ValidationError, origins: Mapping[str, str]) -> str:
    """One line for the first error of pydantic: the setting, its value and the accepted values."""
    first = error.errors()[0]
    name, *inner = map(str, first["loc"] or ("",))
    accepted, value = settings_class.accepts(name) if name else "", first["input"]
    path = f"{section}.{name}".removesuffix(".")
    prefix = _prefix(origins.get(path, OVERRIDE))
    if isinstance(value, str) and (new := renamed.VALUES.get(f"{path}={value}")):
        return f"{prefix}{path}={value} is now {path}={new}"
    hint = did_you_mean(SYNONYMS.get(value, value), accepted.split(", ")) if isinstance(value, str) else ""
    reason = f"accepted: {accepted}{hint and '.' + hint}"
    if first["type"] == "value_error":
        reason = first["msg"].removeprefix("Value error, ")
    elif first["type"] == "finite_number" or (inner and first["type"].startswith("float_")):
        reason = "accepted: a finite number"
    place = f": {inner[0]}" if inner and accepted.startswith("table") else ""
    shown = "" if isinstance(value, dict) or not name else f" = {value!r}"
    return f"{prefix}{path}{place}{shown}: {reason}"


# --- reading and writing ----------------------------------------------------------------------------------------------


def read(path: Path) -> SettingsDict:
    """The settings of a TOML file."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(
            f"{path}: is not valid TOML ({error}); a recipe has sections like [model] with lines like d = 128"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from None
    flat: SettingsDict = {}
    for section, values in tables.items():
        if section in TOP_LEVEL and not isinstance(values, dict):
            flat[section] = values
            continue
        if not isinstance(values, dict):
            raise BadSetting(f"{path}: {section} is outside a section; move it to one of [{'], ['.join(SECTIONS)}]")
        flat |= {f"{section}.{name}": value for name, value in values.items()}
    return flat


def shipped(name: str) -> SettingsDict:
    """The settings of a recipe that is part of harken."""
    path = files("harken.recipes") / f"{name}.toml"
    if not path.is_file():
        raise BadInput(f"recipe {name!r} is not one of harken's; there are {', '.join(shipped_names())}")
    return read(Path(str(path)))


def shipped_names() -> list[str]:
    return sorted(p.name.removesuffix(".toml") for p in files("harken.recipes").iterdir() if p.name.endswith(".toml"))


def parse_override(text: str) -> tuple[str, object]:
    """model.layers=6 -> ("model.layers", 6). The value is TOML, else plain text."""
    path, equals, value = text.partition("=")
    if not equals or ("." not in path and path.strip() not in TOP_LEVEL):
        near = registry.similar_setting(path.strip()) if equals else ""
        hint = f". Did you mean {near}={value}?" if near else ""
        raise BadInput(f"{text!r} is not a setting; settings look like model.layers=6{hint}")
    try:
        return path.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value


def check_initial_weights(path: str, value: object) -> None:
    """Raise for an invalid `from` or `transfer` of the command line, before torch is imported."""
    if path == "transfer":
        InitialWeights(None, str(value)).check_transfer()
    if path == "from" and value != "none" and not Path(str(value)).exists():
        raise missing_run_error(Path(str(value)))


def to_toml_file(settings: SettingsDict) -> str:
    """The text of a recipe.toml with these settings."""
    lines = ["# The resolved recipe of this run: harken train <this file> --out other repeats it."]
    lines += [f"{name} = {to_toml_value(settings[name])}" for name in TOP_LEVEL if name in settings]
    for section in SECTIONS:
        values = {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{section}.")}
        lines += [f"[{section}]", *(f"{name} = {to_toml_value(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


def to_toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quote(k)} = {to_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml_value(v) for v in value) + "]"
    return _quote(str(value))


def _quote(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise BadInput(f"{text!r}: this name is not UTF-8, and a recipe is UTF-8; rename the file")
    escaped = "".join(escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{escaped}"'
