"""A recipe: TOML -> four validated parts (data, model, task, train). It is data: no includes, no code, no expressions.

Above its sections may stand `from`, a run whose weights and words are begun with, and `transfer`, what is done to them.

Precedence: defaults < dials (size, style, optimizer) < file < what is given with the command or the call. A dial that
is given beats what an earlier layer says of the settings it stands for, and so does a budget (minutes beat the steps
of the file). Where each value came from is remembered.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from . import registry
from .errors import BadInput, BadSetting, did_you_mean, no_such_run
from .events import Listener, silent
from .settings import Part

SECTIONS = ("data", "model", "task", "train")
TRANSFERS = ("finetune", "frozen", "scratch")  # all weights go on learning, only those of the head, or all begin anew
SHOTS = re.compile(r"(\d{1,4})-shot")  # nothing is learned: the run is asked with a prompt, behind so many examples
GIVEN = "given"  # where the settings of the command line, or of a call, come from
ABOVE = ("from", "transfer", "from_sha256")
OTHERS_SAY = {"ema": "moving", "swa": "last", "rope": "rotary", "bf16": "bfloat16", "fp32": "float32"}
Settings = dict[str, Any]  # {"model.layers": 4, ...}


@dataclass(frozen=True)
class Start:
    """Where the weights come from: a run (`from`) and what is done to them (`transfer`), or chance."""

    run: str | None = None
    transfer: str = "finetune"
    sha256: str | None = None  # of that run's weights: other ones are refused

    @classmethod
    def of(cls, given: Settings, origins: Mapping[str, str]) -> "Start":
        """Take `from`, `transfer` and `from_sha256` out of these settings."""
        run, digest = given.pop("from", None), given.pop("from_sha256", None)
        digest = digest if origins.get("from_sha256") == origins.get("from") else None  # the one of another run
        found = cls(None if run == "none" else run, given.pop("transfer", cls.transfer), digest)
        if found.run is None and "transfer" in origins and run is None:
            raise BadSetting(f"transfer = {found.transfer!r}: of which run? Say it with from=runs/NAME")
        if found.run is not None and not isinstance(found.run, str):
            raise BadSetting(f"from = {found.run!r}: accepted: the folder of a run")
        found.refuse()
        return found

    def refuse(self) -> None:
        """Refuse a transfer that is none."""
        if self.transfer not in TRANSFERS and self.shots is None:
            near = did_you_mean(str(self.transfer), TRANSFERS)
            raise BadSetting(f"transfer = {self.transfer!r}: accepted: {', '.join(TRANSFERS)}, 4-shot.{near}")

    @property
    def shots(self) -> int | None:
        """How many examples stand in the prompt that the run is asked with; None where something is learned."""
        said = SHOTS.fullmatch(str(self.transfer))
        return int(said[1]) if said else None

    def located(self) -> "Start":
        """The same with an absolute path."""
        return self if self.run is None else replace(self, run=str(Path(self.run).absolute()))

    def settings(self) -> Settings:
        sealed = {} if self.sha256 is None else {"from_sha256": self.sha256}
        return {} if self.run is None else {"from": self.run, "transfer": self.transfer, **sealed}


@dataclass(frozen=True)
class Recipe:
    """The four parts of a run, where its weights begin, and where each setting came from."""

    data: Any
    model: Any
    task: Any
    train: Any
    origins: Mapping[str, str] = field(default_factory=dict)
    start: Start = Start()

    def settings(self) -> Settings:
        """Every setting by its dotted path; those that are none are left out."""
        return self.start.settings() | {
            f"{section}.{name}": value
            for section in SECTIONS
            for name, value in getattr(self, section).model_dump(mode="json").items()
            if value is not None
        }

    def toml(self) -> str:
        """The resolved recipe as a file that repeats the run."""
        return as_file(self.settings())

    def change(self, **settings: Any) -> "Recipe":
        """The same recipe with these settings (train__steps=100); those that are new are marked as worked out."""
        parts, before = {s: getattr(self, s) for s in SECTIONS}, self.settings()
        changed = {p: v for k, v in settings.items() if before.get(p := k.replace("__", ".")) != v}
        for path, value in changed.items():
            section, name = path.split(".")
            parts[section] = parts[section].model_copy(update={name: value})
        return replace(self, **parts, origins={**self.origins, **dict.fromkeys(changed, "worked out")})

    def open(self, tokenizer: Any = None, *, other: tuple[str, str] | None = None, listen: Listener = silent) -> Any:
        """The data, or another text (path, split) to judge by; its tokens are learned, unless they are given."""
        how = {"stateful": getattr(self.model, "stateful", False), "tokenizer": tokenizer, "listen": listen}
        return self.data.open(**how) if other is None else self.data.other(*other, **how)

    def bind(self, opened: Any) -> Any:
        """The task on data that is open."""
        return self.task.bind(opened, self.model, batch=self.train.batch, seed=self.train.seed)

    def build(self, vocab: Any) -> Any:
        """The model with its first weights, for so many words (of each side, where there are two)."""
        try:
            return self.model.build(vocab)
        except ValueError as error:
            raise BadSetting(f"model: {error}") from None


def resolve(*layers: tuple[str, Settings]) -> Recipe:
    """Merge layers of settings, each with the name of where it comes from; a later layer wins. Then validate."""
    given: Settings = {}
    origins: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for rank, (origin, settings) in enumerate(layers):
        for path, value in settings.items():
            given[path], origins[path], ranks[path] = value, origin, rank
    start = Start.of(given, origins)
    _known_sections(given, origins)
    parts: dict[str, Part] = {}
    for section, default in (("data", "text"), ("model", "gpt"), ("task", "next-word"), ("train", "loop")):
        default = getattr(parts.get("data"), section, default) if section in ("model", "task") else default
        of = getattr(parts["data"], "of", "") if section == "model" else ""
        if section == "task" and not hasattr(parts["data"], "of"):  # of a text, a model may know what it is for
            default = getattr(parts["model"], "task", default)
        part = _find(section, str(given.get(f"{section}.kind", default)), origins, of)
        _one_each(section, part, origins)
        for name in _overruled(section, part, given, ranks):
            del given[f"{section}.{name}"], origins[f"{section}.{name}"]
        parts[section] = _part(section, part, given, origins, parts)
    return Recipe(**parts, origins=origins, start=start)


def _at(origin: str) -> str:
    """The place that stands before a message; what was given just now needs none."""
    return "" if origin == GIVEN else f"{origin}: "


def _known_sections(given: Settings, origins: Mapping[str, str]) -> None:
    for path in given:
        section = path.partition(".")[0]
        if section not in SECTIONS or "." not in path:
            accepted = f"the sections are {', '.join(SECTIONS)}.{did_you_mean(section, SECTIONS)}"
            raise BadSetting(f"{_at(origins[path])}{path} is not a setting; {accepted}")


def _find(section: str, kind: str, origins: Mapping[str, str], of: str) -> type[Part]:
    try:
        return registry.find(section, kind, of)
    except BadSetting as error:
        raise BadSetting(f"{_at(origins.get(f'{section}.kind', GIVEN))}{error}") from None


def _one_each(section: str, part: type[Part], origins: Mapping[str, str]) -> None:
    """Refuse two settings given at once of which only one counts."""
    for group in part.one_of:
        both = [path for name in group if origins.get(path := f"{section}.{name}") == GIVEN]
        if len(both) > 1:
            raise BadSetting(f"{' and '.join(both)}: only one of them counts; give one")


def _overruled(section: str, part: type[Part], given: Settings, ranks: Mapping[str, int]) -> set[str]:
    """Settings that a later layer replaced: by a dial that stands for them, or by another where only one counts."""

    def rank(name: str) -> int:
        return ranks.get(f"{section}.{name}", -1)

    stands = [(dial, table.get(str(given.get(f"{section}.{dial}")), {})) for dial, table in part.dials.items()]
    beaten = {name for dial, row in stands for name in row if 0 <= rank(name) < rank(dial)}
    for group in part.one_of:
        beaten |= {name for name in group if 0 <= rank(name) < max(map(rank, group))}
    return beaten


def _part(section: str, part: type[Part], given: Settings, origins: dict[str, str], others: Mapping[str, Part]) -> Part:
    own = {path.partition(".")[2]: value for path, value in given.items() if path.startswith(f"{section}.")}
    for name in own:
        if name not in part.model_fields:
            there = [f"{other}.{name}" for other, its in others.items() if name in type(its).model_fields]
            guess = did_you_mean(name, part.model_fields).replace("Did you mean ", f"Did you mean {section}.")
            guess = f" Did you mean {there[0]}?" if there else guess
            see = f"harken check --settings {own.get('kind', part.model_fields['kind'].default)} lists them"
            way = f".{guess}" if guess else f"; {see}"
            raise BadSetting(f"{_at(origins[f'{section}.{name}'])}{section}.{name} is not a setting{way}")
    for name, (dial, _) in part.dialled(own).items():
        origins.setdefault(f"{section}.{name}", dial)
    try:
        return part.model_validate(own)
    except ValidationError as error:
        raise BadSetting(_explain(section, part, error, origins)) from None


def _explain(section: str, part: type[Part], error: ValidationError, origins: Mapping[str, str]) -> str:
    """Our one line for the first of pydantic's: the setting, its value, and what is accepted instead."""
    first = error.errors()[0]
    name, *inside = map(str, first["loc"] or ("",))
    accepted, value = part.accepts(name) if name else "", first["input"]
    near = did_you_mean(OTHERS_SAY.get(value, value), accepted.split(", ")) if isinstance(value, str) else ""
    said = f"accepted: {accepted}{near and '.' + near}"
    if first["type"] == "value_error":
        said = first["msg"].removeprefix("Value error, ")
    elif first["type"] == "finite_number" or (inside and first["type"].startswith("float_")):
        said = "accepted: a finite number"
    path = f"{section}.{name}".removesuffix(".")
    place = f": {inside[0]}" if inside and accepted.startswith("table") else ""
    shown = "" if isinstance(value, dict) or not name else f" = {value!r}"
    return f"{_at(origins.get(path, GIVEN))}{path}{place}{shown}: {said}"


# --- reading and writing ----------------------------------------------------------------------------------------------


def read(path: Path) -> Settings:
    """The settings of a TOML file."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(
            f"{path}: is not valid TOML ({error}); a recipe has sections like [model] with lines d = 128"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from None
    flat: Settings = {}
    for section, values in tables.items():
        if section in ABOVE and not isinstance(values, dict):
            flat[section] = values
            continue
        if not isinstance(values, dict):
            raise BadSetting(
                f"{path}: {section} stands outside a section; put it under one of [{'], ['.join(SECTIONS)}]"
            )
        flat |= {f"{section}.{name}": value for name, value in values.items()}
    return flat


def shipped(name: str) -> Settings:
    """The settings of a recipe that comes with harken."""
    found = files("harken.recipes") / f"{name}.toml"
    if not found.is_file():
        raise BadInput(f"recipe {name!r} is not one of harken's; there are {', '.join(shipped_names())}")
    return read(Path(str(found)))


def shipped_names() -> list[str]:
    return sorted(p.name.removesuffix(".toml") for p in files("harken.recipes").iterdir() if p.name.endswith(".toml"))


def override(text: str) -> tuple[str, Any]:
    """model.layers=6 -> ("model.layers", 6). The value is TOML, else plain text."""
    path, equals, value = text.partition("=")
    if not equals or ("." not in path and path.strip() not in ABOVE):
        raise BadInput(f"{text!r} is not a setting; settings look like model.layers=6")
    try:
        return path.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value


def refuse_start(path: str, value: Any) -> None:
    """Refuse what is typed for `from` or `transfer` if it can be no beginning: seen at once, before torch is there."""
    if path == "transfer":
        Start(None, value).refuse()
    if path == "from" and value != "none" and not Path(str(value)).exists():
        raise no_such_run(Path(str(value)))


def as_file(settings: Settings) -> str:
    """The text of a recipe.toml that says this."""
    lines = ["# The resolved recipe of this run: harken train <this file> --out other repeats it."]
    lines += [f"{name} = {as_toml(settings[name])}" for name in ABOVE if name in settings]
    for section in SECTIONS:
        own = {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{section}.")}
        lines += [f"[{section}]", *(f"{name} = {as_toml(value)}" for name, value in own.items()), ""]
    return "\n".join(lines)


def as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(v) for v in value) + "]"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise BadInput(f"{text!r}: this name is not UTF-8, and a recipe is; rename the file")
    plain = "".join(escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{plain}"'
