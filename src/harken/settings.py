"""A Part is one section of a recipe: frozen, strict, and documented by its own fields.

A setting is declared once, beside the code that obeys it; its description is the docs, the error hint and
`harken check --settings`. A dial is a setting that sets others: `size = "small"` stands for d, layers, heads, context.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

FAR = 6  # hops between two nodes of a graph that are told apart: data lists them, and models weigh them


class Part(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # groups of settings of which only one counts: the one that was said last
    one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # field name -> its value -> the settings it stands for; later dials win over earlier ones
    dials: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}

    @classmethod
    def dialled(cls, given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
        """What the dials stand for when these settings are given: each setting with its dial and its value."""
        found: dict[str, tuple[str, Any]] = {}
        for dial, table in cls.dials.items():
            chosen = given.get(dial, cls.model_fields[dial].default)
            row = table.get(chosen, {}) if isinstance(chosen, str) else {}
            found |= {name: (f"{dial} = {chosen}", value) for name, value in row.items()}
        return found

    @model_validator(mode="before")
    @classmethod
    def _turn(cls, given: Any) -> Any:
        """A dial sets what was not given itself, in a recipe and in Python alike."""
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, (_, value) in cls.dialled(given).items()} | dict(given)

    @classmethod
    def accepts(cls, setting: str) -> str:
        """What a setting accepts, in a few words."""
        return _in_words(cls.model_json_schema()["properties"][setting])


class Outputs(NamedTuple):
    """What data with labels asks of a model: its words, how many numbers it gives, and for each token or each text.

    Where an answer is a word of a story, `words` has the number of each.
    """

    vocab: int
    outputs: int
    each_token: bool = False
    words: tuple[int, ...] = ()


class Pixels(NamedTuple):
    """What pictures ask of a model: their side and channels, and how many numbers it gives for each."""

    image_size: int
    channels: int
    outputs: int


class Pictured(NamedTuple):
    """What captions ask of a model: the pictures, their numbers of 0 to 1 by channel, and the words with the edge."""

    pixels: Pixels
    mean: tuple[float, ...]
    spread: tuple[float, ...]
    words: int


WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "object": "table {name = number}"}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _in_words(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_in_words(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema:
        return ", ".join(str(v) for v in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}, each a {_in_words(schema['prefixItems'][0])}"
    if schema.get("type") == "array":
        return "list"
    bounds = " and ".join(f"{sign} {schema[key]}" for key, sign in LIMITS.items() if key in schema)
    return f"{WORDS.get(schema.get('type', ''), 'text')} {bounds}".strip()
