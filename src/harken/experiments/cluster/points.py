"""The points to cluster: an array, a table of numbers, or the vectors that a run computes for its inputs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt

from harken.analysis.clusters import Start
from harken.data.tables.numbers import Decimal
from harken.data.tables.texts import read_texts
from harken.data.tables.vectors import read_vectors, to_floats
from harken.errors import BadInput
from harken.events import Listener
from harken.inference.answers import OverflowMode, check_texts, to_list
from harken.inference.answers.embed import CHUNK, EmbeddingOptions, ExampleRequest, NamedInputs
from harken.inference.run import Run, load

Floats = npt.NDArray[np.floating[Any]]


class ClusterOptions(TypedDict, total=False):
    """The options of `cluster`."""

    k: str | int
    restarts: int
    start: Start
    seed: int
    pool: str | None
    layer: int | None
    overflow: OverflowMode
    raw: bool  # do not normalize the vectors of a run
    split: str | None  # of the data of a run; None: all
    scale: bool  # divide each column by its standard deviation
    column: str | None  # text column of a table
    columns: str | None  # columns of a table of vectors, by name or number, separated by commas
    decimal: Decimal  # decimal sign in a table of vectors
    regress: str | None  # target column of a principal component regression on a table of vectors
    components: int | None  # of the regression; None: chosen by cross-validation


DEFAULTS: ClusterOptions = {"k": "2-8", "restarts": 10, "start": "k-means++", "seed": 0, "pool": None, "layer": None}
DEFAULTS |= {"overflow": "truncate", "raw": False, "scale": False, "column": None, "columns": None, "decimal": "."}
DEFAULTS |= {"split": None, "regress": None, "components": None}


class Points(NamedTuple):
    """The vectors to cluster, their origin, and where known their names, their lines in a file and their labels."""

    x: Floats  # N d
    names: Sequence[str] | None
    origin: str
    lines: Sequence[int] = ()
    labels: Sequence[str] = ()  # "": without a label
    columns: Sequence[str] = ()  # names of the columns of a table
    target: Floats | None = None  # N: of a regression
    are_texts: bool = True  # the names are texts


def load_points(what: object, texts: object, options: ClusterOptions, listen: Listener) -> Points:
    """The points of an array, a file or a run. `texts`: the inputs of the run, or the names of the rows of a file."""
    run, columns = what if isinstance(what, Run) else None, options["columns"] or ""
    if isinstance(what, str | Path) and Path(what).is_dir():
        run = load(what)
    if columns and (run is not None or not isinstance(what, str | Path)):
        raise BadInput(f"columns={columns}: is for a file of vectors; for a table of texts use column")
    if run is not None:
        return _embedded_points(run, texts, options, listen)
    for name in ("split", "pool", "layer"):
        if options[name] is not None:
            raise BadInput(f"{name}={options[name]}: is for a run; leave it out")
    if not isinstance(what, str | Path):
        try:
            x = to_floats(np.asarray(what))
        except (TypeError, ValueError):
            fix = "to cluster texts, give a run that embeds them: harken.cluster(run, texts)"
            raise BadInput(f"{type(what).__name__}: an array of numbers is expected; {fix}") from None
        if x.ndim != 2 or not x.size or not np.isfinite(x).all():
            raise BadInput(f"an array of shape {x.shape}: expected finite numbers of shape (n_points, n_columns)")
        return Points(x, None if texts is None else list(cast(Iterable[str], texts)), "an array")
    wanted = [name.strip() for name in columns.split(",") if name]
    vectors = read_vectors(Path(what), listen, wanted, options["decimal"], options["regress"])
    names: Sequence[str] | None = vectors.names
    if texts is not None:
        names = list(read_texts(Path(str(texts)), listen, options["column"]).values())
        if len(names) != len(vectors.x):
            raise BadInput(f"{texts}: {len(names):,} texts, but {what} has {len(vectors.x):,} vectors; both must agree")
    return Points(vectors.x, names, str(what), vectors.lines, columns=vectors.columns, target=vectors.target)


def _embedded_points(run: Run, texts: object, options: ClusterOptions, listen: Listener) -> Points:
    """A run's vectors of these inputs, of those of a file, or of those it was trained on."""
    run.require("embed")
    if options["split"] is not None and texts is not None:
        raise BadInput(f"split={options['split']}: is for the data of the run; leave it out, or the inputs")
    if options["column"] is not None and run.embedder.reader is not None:
        raise BadInput(f"column={options['column']}: is for a table of texts; leave it out")
    origin = f"the data of {run.path}"
    if texts is None or isinstance(texts, str | Path):
        request = ExampleRequest(None if texts is None else str(texts), options["column"], options["split"])
        examples = run.embedder.examples(run, request, listen)
        origin = origin if texts is None else f"{texts} by {run.path}"
    else:
        inputs = to_list(cast(Iterable[object], texts))
        if run.embedder.reader is None:
            check_texts(inputs)
        names = [str(x) if isinstance(x, str | Path) else f"array {n}" for n, x in enumerate(inputs, 1)]
        examples, origin = NamedInputs(inputs, names), f"{len(inputs):,} inputs by {run.path}"
    x = embed_points(run, [*examples.place, *examples.inputs], options, listen)
    are_texts = run.embedder.reader is None
    return Points(x, examples.names, origin, examples.lines, examples.labels, are_texts=are_texts)


def embed_points(run: Run, inputs: Sequence[object], options: ClusterOptions, listen: Listener) -> Floats:  # N d
    """A run's vectors of inputs, with progress; inputs that select each other are embedded at once."""
    pool, layer, overflow = options["pool"], options["layer"], options["overflow"]
    embedding: EmbeddingOptions = {"pool": pool, "layer": layer, "overflow": overflow}
    reader, vectors = run.embedder.reader, []
    size = len(inputs) if reader is not None and reader.one_batch else CHUNK
    for start in range(0, len(inputs), size):
        chunk = list(inputs[start : start + size])
        vectors.append(run.embed(cast(list[str], chunk), normalize=not options["raw"], listen=listen, **embedding))
        listen("answer", done=start + len(chunk), total=len(inputs))
    return np.concatenate(vectors)
