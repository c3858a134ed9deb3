"""A Part is one section of a recipe: frozen, strict, and documented by its own fields.

A setting is declared once, beside the code that obeys it; its description is the docs, the error hint and
`harken check --settings`.
"""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)
