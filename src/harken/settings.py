"""Settings: one section of a recipe, frozen, strict, and documented by its fields.

A setting is declared once, beside the code that uses it. Its description is the documentation, the hint in an error
message and the text of `harken check --settings`. A dial is a setting that sets other settings: `size = "small"` sets
d, layers, heads and context.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

MAX_HOPS = 6  # largest hop count between two nodes that data lists and models distinguish


class Settings(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: ClassVar[str] = ""  # of data, and of models of text: the default of task.kind
    # groups of mutually exclusive settings: the one that was set last is used
    exclusive: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # dial -> value of the dial -> settings it sets; later dials take precedence over earlier ones
    dials: ClassVar[Mapping[str, Mapping[str, Mapping[str, object]]]] = {}

    @classmethod
    def dial_values(cls, explicit: Mapping[str, object]) -> dict[str, tuple[str, object]]:
        """Settings that the dials set, each with its dial and its value, for these explicit settings."""
        values: dict[str, tuple[str, object]] = {}
        for dial, table in cls.dials.items():
            position = explicit.get(dial, cls.model_fields[dial].default)
            row = table.get(position, {}) if isinstance(position, str) else {}
            values |= {name: (f"{dial} = {position}", value) for name, value in row.items()}
        return values

    @model_validator(mode="before")
    @classmethod
    def _apply_dials(cls, explicit: object) -> object:
        """Apply the dials to all settings that are not set explicitly."""
        if not isinstance(explicit, Mapping):
            return explicit
        return {name: value for name, (_, value) in cls.dial_values(explicit).items()} | dict(explicit)

    @classmethod
    def accepts(cls, setting: str) -> str:
        """Short description of the values that a setting accepts."""
        return _describe_schema(_properties(cls)[setting])


class LabelOutputs(NamedTuple):
    """Model dimensions that labelled data require."""

    vocab_size: int
    n_outputs: int
    per_token: bool = False  # outputs per token instead of per text
    answer_ids: tuple[int, ...] = ()  # token id of each answer, where answers are words of a story
    edge_types: int = 0  # number of types of the edges of a graph; 0: they have none
    of_pairs: bool = False  # outputs per pair of graphs


class ImageShape(NamedTuple):
    """Model dimensions that images require."""

    image_size: int  # side length
    channels: int
    n_outputs: int


class CaptionInputs(NamedTuple):
    """Model dimensions that captions require."""

    image_shape: ImageShape
    mean: tuple[float, ...]  # of each channel, like std
    std: tuple[float, ...]
    vocab_size: int  # with the end token


class PairVocab(tuple[int, int]):
    """The vocabulary sizes of source and target. The `temporary` ids before the edge token are words of one pair."""

    temporary: int

    def __new__(cls, source: int, target: int, temporary: int = 0) -> "PairVocab":
        vocab = super().__new__(cls, (source, target))
        vocab.temporary = temporary
        return vocab


TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "object": "table {name = number}"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@cache
def _properties(settings_class: type[Settings]) -> dict[str, Any]:
    return dict(settings_class.model_json_schema()["properties"])


def _describe_schema(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_describe_schema(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema:
        return ", ".join(str(v) for v in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}, each a {_describe_schema(schema['prefixItems'][0])}"
    if schema.get("type") == "array":
        return "list"
    bounds = " and ".join(f"{sign} {schema[key]}" for key, sign in BOUNDS.items() if key in schema)
    return f"{TYPES.get(schema.get('type', ''), 'text')} {bounds}".strip()
