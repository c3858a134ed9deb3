"""Processors with fields: saved in a run folder as labels.json beside the files of their tokenizers."""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, create_model

from harken.errors import BadRun

from .source import Processor

LABELS_FILE = "labels.json"
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
LabelList = Annotated[list[str], Field(min_length=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, eq=False)
class SavedProcessor:
    """Base of the processors with fields: a run folder has their tokenizers in files, the other fields in labels.json.

    If there is only one other field, labels.json is its value.
    """

    def files(self) -> dict[str, bytes]:
        """The files of the run folder from which the processor can be loaded."""
        files, values = dict[str, bytes](), dict[str, object]()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Processor):
                files |= value.files()
            else:
                values[field.name] = value
        content = values if len(values) > 1 else next(iter(values.values()))
        return files | {LABELS_FILE: json.dumps(content, ensure_ascii=False).encode()}

    @classmethod
    def current_fields(cls, saved: object) -> object:
        """The content of labels.json; one that an earlier version wrote, in the form of this one."""
        return saved

    @classmethod
    def load(cls, folder: Path, **tokenizers: Processor) -> Self:
        """The processor of a run folder, given its tokenizers; labels.json must match the other fields."""
        in_file = [field for field in fields(cls) if field.name not in tokenizers]
        schema: Any = {f.name: (f.type, ... if f.default is MISSING else f.default) for f in in_file}
        try:
            content = cls.current_fields(json.loads((folder / LABELS_FILE).read_bytes()))
            values = content if len(in_file) > 1 else {in_file[0].name: content}
            return cls(**dict(create_model("Strict", __config__=STRICT, **schema).model_validate(values)), **tokenizers)
        except (OSError, ValueError, RecursionError):
            problem = "cannot read the processor: missing or invalid"
            raise BadRun(f"{folder / LABELS_FILE}: {problem}; restore it from a copy, or train again") from None
