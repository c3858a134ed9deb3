"""Labels and vectors of sets of rows: all sets of a table, one of them (points.csv[7]), or arrays of rows."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from harken.data.sets.columns import header_names
from harken.data.sets.source import Floats, SetExample, SetProcessor, Sets, collate_sets, read_sets, set_overflow
from harken.data.tables.numbers import Decimal
from harken.errors import BadInput
from harken.events import Listener, report_overflow, silent
from harken.inference.loaded_model import LoadedModel
from harken.models import EncoderWithHead
from harken.suggestions import did_you_mean, similar_path
from harken.tasks.sets import predict

from . import Array, InputReader, LabelScore
from .classify import format_labels
from .embed import Embedder, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors, own_splits


def classify_sets(
    run: LoadedModel, inputs: Sequence[str | Path | Array], listen: Listener = silent
) -> list[list[LabelScore]]:
    """The labels of each set, most probable first, or its regression value."""
    sets = _model_inputs(run, inputs, listen)
    return format_labels(cast(SetProcessor, run.tokenizer), predict(run.model, sets)) if sets else []


def _model_inputs(run: LoadedModel, inputs: Sequence[str | Path | Array], listen: Listener) -> Sets | None:
    """All sets of these inputs, standardized; None if there are none."""
    processor, sets = cast(SetProcessor, run.tokenizer), [item for x in inputs for item in _read_sets(run, x)]
    if not sets:
        return None
    report_overflow(listen, set_overflow([len(item.rows) for item in sets], run.recipe.data.max_rows))
    rows = [processor.standardize(item.sample_rows(run.recipe.data.max_rows)) for item in sets]
    return collate_sets(rows, np.zeros(len(rows), np.int64), [item.name for item in sets])


def list_sets(
    run: LoadedModel, paths: Sequence[str], listen: Listener = silent, *, encoding: str | None = None
) -> tuple[list[str], list[Floats]]:
    """The names and the rows of all sets of these tables. The default encoding is that of the training data."""
    sets = [item for path in paths for item in _read_sets(run, path, listen, encoding)]
    return [item.name for item in sets], [item.rows for item in sets]


def _read_sets(
    run: LoadedModel, source: str | Path | Array, listen: Listener = silent, encoding: str | None = None
) -> list[SetExample]:
    processor = cast(SetProcessor, run.tokenizer)
    if isinstance(source, str | Path):
        data = run.recipe.data
        return _table_sets(str(source), processor, listen, data.decimal, encoding or data.encoding)
    rows, columns = np.asarray(source), processor.columns
    if rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.shape[1] != len(columns) or not len(rows):
        accepted = f"give rows of {len(columns)} numbers ({', '.join(map(str, columns))}), or the path of a table"
        raise BadInput(f"array of {rows.dtype}, shape {rows.shape}: {accepted}")
    if not np.isfinite(rows).all():
        raise BadInput("array: has NaN or infinite values; every value must be finite; fix or drop these rows")
    return [SetExample("", rows.astype(np.float64), "", "")]


def _table_sets(
    name: str,
    processor: SetProcessor,
    listen: Listener,
    decimal: Decimal,
    encoding: str | None,
    label: int | str | None = None,
) -> list[SetExample]:
    indexed = re.fullmatch(r"(.+)\[(.+)\]", name)
    path, set_name = (Path(indexed[1]), indexed[2]) if indexed and Path(indexed[1]).is_file() else (Path(name), None)
    if not path.is_file():
        raise BadInput(f"{name}: no such table; check the name{similar_path(name)}")
    sets = read_sets(path, processor.group, label, processor.columns, listen, decimal=decimal, encoding=encoding)
    selected = sets if set_name is None else [item for item in sets if item.name == set_name]
    if not selected:
        names = [item.name for item in sets]
        examples = f"it has {len(names):,}, such as {', '.join(names[:3])}.{did_you_mean(str(set_name), names)}"
        raise BadInput(f"{path}: has no set {set_name!r}; {examples}")
    return selected


INPUTS = InputReader("sets", list_sets, is_table=True)


# --- vectors ----------------------------------------------------------------------------------------------------------


def embed_sets(
    run: LoadedModel, inputs: Sequence[str | Path | Array], settings: EmbeddingSettings, listen: Listener
) -> Vectors:
    """The vector of each set that the head reads."""
    sets = _model_inputs(run, inputs, listen)
    width = cast(EncoderWithHead, run.model).W_y.in_features
    return np.empty((0, width), np.float32) if sets is None else predict(run.backbone, sets).numpy()


def set_examples(run: LoadedModel, request: ExampleRequest, listen: Listener) -> NamedInputs:
    """The sets of a table, with their labels if it has the label column; or those of the training data."""
    processor, data = cast(SetProcessor, run.tokenizer), run.recipe.data
    if request.path is not None:
        label = processor.label if processor.label in header_names(Path(request.path), data.encoding) else None
        sets = _table_sets(request.path, processor, listen, data.decimal, data.encoding, label)
        labels = [item.target for item in sets] if label and processor.target_type == "label" else []
        return NamedInputs([item.rows for item in sets], [item.name for item in sets], labels)
    parts = own_splits(run, request.split, listen)[1]
    mean, std = np.array(processor.feature_mean), np.array(processor.feature_std)
    rows = [part.rows[a:b].numpy() * std + mean for part in parts for a, b in pairwise(part.starts)]
    targets = [target for part in parts for target in part.targets]
    labels = [processor.labels[target] for target in targets] if processor.target_type == "label" else []
    return NamedInputs(rows, [name for part in parts for name in part.names], labels)


EMBEDDER = Embedder(embed_sets, set_examples, "sets", reader=INPUTS)
