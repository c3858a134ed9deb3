"""The contract of a data kind: its settings load a Dataset, and a run folder stores its Processor."""

from collections.abc import Mapping, Sized
from typing import ClassVar, Protocol, runtime_checkable

from harken.settings import CaptionInputs, ImageShape, LabelOutputs, Settings

Vocab = int | tuple[int, int] | LabelOutputs | ImageShape | CaptionInputs  # the model dimensions that the data require


@runtime_checkable
class Processor(Protocol):
    """Maps raw inputs to tensors and back: a tokenizer, label names, the mean and standard deviation of features."""

    @property
    def vocab(self) -> Vocab: ...
    def files(self) -> dict[str, bytes]:
        """The files of the run folder from which the processor can be loaded."""
        ...


class Dataset(Protocol):
    """Loaded examples, split and encoded."""

    @property
    def splits(self) -> Mapping[str, Sized]:
        """The held-out splits, valid and test, as far as they exist."""
        ...

    @property
    def vocab(self) -> Vocab: ...
    def facts(self) -> dict[str, object]:
        """Counts and descriptions for the progress lines and the report."""
        ...


class DataSource(Settings):
    """Base class of the settings of a data kind.

    A kind implements `load_data(stateful, tokenizer, listen)`, `load_split(path, split, ...)` for other data,
    `load_processor(folder)` and `with_absolute_paths()`.
    """

    task: ClassVar[str] = "next-word"  # default of task.kind; registry.FAMILIES lists its models
    input_setting: ClassVar[str] = ""  # the setting that names the input column of a table

    @property
    def input_column(self) -> int | str | list[int | str] | None:
        """The column of a table that holds the model input, if one is set."""
        return dict(self).get(self.input_setting)
