"""A Part is one section of a recipe: frozen, strict, and documented by its own fields.

A setting is declared once, beside the code that obeys it; its description is the docs, the error hint and
`harken check --settings`. A dial is a setting that sets others: `size = "small"` stands for d, layers, heads, context.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # groups of settings of which only one counts: the one that was said last
    one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # field name -> its value -> the settings it stands for; later dials win over earlier ones
    dials: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
