"""The contract of a data kind: its settings load a Dataset, and a run folder stores its Processor."""

from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Annotated, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

from pydantic import AfterValidator, Field, PrivateAttr

from harken.data.tables.text_file import check_encoding
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.settings import CaptionInputs, ImageShape, LabelOutputs, Settings

Vocab = int | tuple[int, int] | LabelOutputs | ImageShape | CaptionInputs  # the model dimensions that the data require
ProcessorT = TypeVar("ProcessorT", bound="Processor")
Encoding = Annotated[
    str | None,
    AfterValidator(check_encoding),
    Field(description="encoding of text files that are not UTF-8, such as cp1252; UTF-16 with a BOM needs none"),
]


@runtime_checkable
class Processor(Protocol):
    """Maps raw inputs to tensors and back: a tokenizer, label names, the mean and standard deviation of features."""

    @property
    def vocab(self) -> Vocab: ...
    def files(self) -> dict[str, bytes]: ...  # of the run folder, from which the processor can be loaded


class Dataset(Protocol):
    """Loaded examples, split and encoded."""

    @property
    def splits(self) -> Mapping[str, Sized]: ...  # the held-out ones, valid and test, as far as they exist
    @property
    def vocab(self) -> Vocab: ...
    def facts(self) -> dict[str, object]: ...  # counts and descriptions for the progress lines and the report


class DataSource(Settings, Generic[ProcessorT]):
    """Base class of the settings of a data kind."""

    task: ClassVar[str] = "next-word"  # default of task.kind; registry.FAMILIES lists its models
    _train_encoding: dict[str, object] = PrivateAttr(default_factory=dict)  # if other data has another encoding
    input_setting: ClassVar[str] = ""  # the setting that names the input column of a table

    def load_data(
        self, *, stateful: bool = False, tokenizer: ProcessorT | None = None, listen: Listener = silent
    ) -> Dataset:
        """Read, split and encode the examples; a given processor is reused."""
        raise NotImplementedError

    def load_split(
        self, path: str, split: str, *, tokenizer: ProcessorT, stateful: bool = False, listen: Listener = silent
    ) -> Dataset:
        """The data with one split read from another file; only that split if the training data is missing."""
        raise NotImplementedError

    def with_encoding(self, encoding: str) -> Self:
        """The settings to read other data in another encoding; the training data is read in its own."""
        if "encoding" not in type(self).model_fields:
            raise BadInput(f"encoding={encoding}: this kind of data is not read as text; remove the option")
        source = self.model_copy(update={"encoding": encoding})
        source._train_encoding = {"encoding": dict(self)["encoding"]}
        return source

    @property
    def train_settings(self) -> Self:
        """The settings to read the training data next to other data."""
        return self.model_copy(update={"sha256": None, **self._train_encoding})

    def load_processor(self, folder: Path) -> ProcessorT:
        """The processor saved in a run folder."""
        raise NotImplementedError

    def with_absolute_paths(self) -> Self:
        """The same settings with absolute paths."""
        raise NotImplementedError

    @property
    def input_column(self) -> int | str | list[int | str] | None:
        """The column of a table that holds the model input, if one is set."""
        return dict(self).get(self.input_setting)

    @property
    def file_encoding(self) -> str | None:
        """The encoding of files that are not UTF-8, if the data is read from files."""
        encoding: str | None = dict(self).get("encoding")
        return encoding


def no_baselines(error: BadInput) -> str:
    """Notice for a run that is evaluated without its training data."""
    return f"no baselines: they need the training data, which cannot be loaded ({error})"
