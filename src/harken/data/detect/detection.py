"""The detected kind of a data set."""

from dataclasses import dataclass
from typing import Any

AS_TEXT = ("text", "every UTF-8 file can be read as plain text, but its structure would be lost")


@dataclass(frozen=True)
class Detection:
    """The kind of data, the reason, detected settings, and alternatives as (kind, reason against it)."""

    kind: str
    reason: str
    settings: dict[str, Any]
    alternatives: tuple[tuple[str, str], ...]
    user_specified: bool = False
    overrides: tuple[str, ...] = ("data.kind",)  # settings that overrule it
    refusal: str = ""  # why no model can be trained on it without such a setting, what is accepted and what to do
    notice: str = ""  # for the user: what may be detected wrongly
    left_out: str = ""  # the columns that are not read, and how to read them

    @property
    def override_hint(self) -> str:
        """How to overrule the detection."""
        return "override with " + ", ".join(f"{name}=..." for name in self.overrides)

    @property
    def is_plain_text(self) -> bool:
        """Whether it is text and not a text column of a table."""
        return self.kind == "text" and "data.text" not in self.settings


def join_names(names: list[str]) -> str:
    """The first names with commas between them."""
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
