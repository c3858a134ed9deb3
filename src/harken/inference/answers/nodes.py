"""Classify nodes, edges, whole graphs or pairs of graphs, and compute vectors of nodes or graphs.

Inputs are names in the run's own graph, or in another graph if a file name comes first; a pair is a--b, in Python also
two names. A file alone selects all its nodes, graphs or pairs.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from harken.data.graphs.files import Ints
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.inference.loaded_model import LoadedModel
from harken.models.graph import GraphModel, graph_means
from harken.suggestions import did_you_mean
from harken.tasks.nodes import EVAL_BATCH

from . import InputReader, LabelScore
from .classify import format_labels, rank_labels
from .embed import Embedder, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors

if TYPE_CHECKING:
    from harken.data.graphs.source import GraphData

PAIR_SEPARATORS = ("\t", "--")  # between the two nodes of an edge, or the two graphs of a pair


def classify_nodes(run: LoadedModel, inputs: Sequence[object], listen: Listener = silent) -> list[list[LabelScore]]:
    """The labels of each name, most probable first; for two nodes, whether they share an edge."""
    names = [PAIR_SEPARATORS[0].join(map(str, x)) if isinstance(x, tuple | list) else str(x) for x in inputs]
    if not names:
        return []
    data, task = _graph_of(run, names)
    processor = data.processor
    level = processor.target_level
    indices = {name: n for n, name in enumerate(_names(data))}
    if level == "pair":
        of_file = not names and data.tables.pairs is not None
        pairs = data.tables.pairs if of_file else _read_pairs(names, indices, data)
        return format_labels(processor, task.predict_pairs(run.model, pairs))
    if level == "edge":
        y = task.predict(run.model, _read_pairs(names, indices, data))
        return rank_labels(processor.labels, torch.stack([(-y).sigmoid(), y.sigmoid()], 1))
    selected = [_node_index(name, indices, data) for name in names] if names else [*indices.values()]
    return format_labels(processor, task.predict(run.model, selected))


def _target_names(data: "GraphData") -> list[str]:
    """The names of the nodes, graphs or pairs that have labels."""
    return data.unit_names()


def _names(data: "GraphData") -> list[str]:
    """The names of the nodes, or of the graphs."""
    is_graph = data.processor.target_level in ("graph", "pair")
    return data.tables.graph_names if is_graph else data.tables.node_names


def list_nodes(
    run: LoadedModel,
    inputs: Sequence[str],
    listen: Listener = silent,
    *,
    names_of: Callable[["GraphData"], list[str]] = _target_names,
) -> tuple[list[str], list[str]]:
    """The names that these inputs select, of a file alone all its names, and the inputs themselves."""
    names = list(inputs)
    data = _graph_of(run, names)[0] if names else None
    return (names_of(data) if data and not names else names), list(inputs)


def _graph_of(run: LoadedModel, names: list[str]) -> tuple["GraphData", Any]:
    """The graph and the task bound to it. A leading file name, unless it is also a node, is removed from `names`."""
    if not Path(names[0]).exists():
        return _load_graph(run, None)
    try:
        own = _load_graph(run, None)[0].tables
    except BadInput:  # the run's own graph is gone
        return _load_graph(run, names.pop(0))
    is_node = names[0] in own.node_names or names[0] in own.graph_names
    return _load_graph(run, None if is_node else names.pop(0))


def _load_graph(run: LoadedModel, path: str | None) -> tuple["GraphData", Any]:
    """Cached: the run's own graph and one other."""
    if path not in run.graph_cache:
        data = run.recipe.load_data(run.tokenizer, other=None if path is None else (path, ""))
        for other in [key for key in run.graph_cache if key is not None]:
            del run.graph_cache[other]
        run.graph_cache[path] = data, run.recipe.bind(data)
    graph: tuple[GraphData, Any] = run.graph_cache[path]
    return graph


def _node_index(name: str, indices: dict[str, int], data: "GraphData") -> int:
    if name not in indices:
        level = "graph" if data.processor.target_level in ("graph", "pair") else "node"
        examples = f"it has {len(indices):,}, such as {', '.join([*indices][:3])}.{did_you_mean(name, indices)}"
        raise BadInput(f"{name!r}: not a {level} of {data.tables.location}; {examples}")
    return indices[name]


def _read_pairs(names: list[str], indices: dict[str, int], data: "GraphData") -> Ints:
    """The indices of the two nodes or graphs of each pair."""
    pair, units = ("a pair", "graphs") if data.processor.target_level == "pair" else ("an edge", "nodes")
    pairs, accepted = [], f"give two {units} with -- between them, such as {'--'.join([*indices][:2])}"
    if not names:
        raise BadInput(f"{data.tables.location}: no {pair.split()[1]}s were given; {accepted}")
    for name in names:
        ends = _possible_ends(name)
        if not ends:
            raise BadInput(f"{name!r}: not {pair}; {accepted}")
        known = next((both for both in ends if all(end in indices for end in both)), ends[0])
        pairs.append([_node_index(end, indices, data) for end in known])
    return np.array(pairs, np.int64).reshape(-1, 2)


def _possible_ends(name: str) -> list[list[str]]:
    """The two parts of a name around each separator: a name may contain separators itself."""
    return [
        [name[: match.start()].strip(), name[match.end() :].strip()]
        for separator in PAIR_SEPARATORS
        for match in re.finditer(separator, name)
    ]


INPUTS = InputReader("names", list_nodes, one_batch=True)


# --- vectors ----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def embed_nodes(run: LoadedModel, inputs: Sequence[object], settings: EmbeddingSettings, listen: Listener) -> Vectors:
    """The vectors of nodes or graphs: the input of the last layer, of a graph the mean over its nodes.

    For edge prediction they are the outputs, whose products are the scores of edges; for pairs of graphs the vectors of
    the graphs that are compared.
    """
    names, model = [str(name) for name in inputs], cast(GraphModel, run.model)
    data, task = _graph_of(run, names) if names else _load_graph(run, None)
    indices = {name: n for n, name in enumerate(_names(data))}
    only_file = bool(inputs) and not names
    rows = torch.tensor([*indices.values()] if only_file else [_node_index(name, indices, data) for name in names])
    if data.processor.target_level in ("graph", "pair"):
        h = torch.cat([_graph_vectors(model, task, batch) for batch in rows.long().split(EVAL_BATCH)])
    else:
        graph_inputs = task.graph_inputs(model)
        is_edge = data.processor.target_level == "edge"
        h = (model(**graph_inputs) if is_edge else model.node_states(**graph_inputs))[rows.long().to(run.device)]
    return np.asarray(h.float().cpu())


def _graph_vectors(model: GraphModel, task: Any, index: Tensor) -> Tensor:  # G -> G d
    """The mean of the node states of each of these graphs."""
    some = index if len(index) else torch.zeros(1, dtype=torch.long)  # no graphs have the width of one
    inputs = task.graph.subset(some.numpy()).model_inputs(next(model.parameters()))
    if model.comparison is not None:  # the vectors that are compared
        return model(**inputs)[: len(index)]
    return graph_means(model.node_states(**inputs), inputs["graph_ids"], len(some))[: len(index)]


def node_examples(run: LoadedModel, request: ExampleRequest, listen: Listener) -> NamedInputs:
    """The nodes or graphs of a file, or of the training data, with their labels."""
    file = [] if request.path is None else [request.path]
    data, _ = _load_graph(run, request.path)
    names = _names(data)
    selected: Sequence[int] = range(len(names))
    if request.split is not None:
        parts = {"train": data.train, **data.splits}
        if request.split not in parts or data.processor.target_level in ("edge", "pair"):
            raise BadInput(f"split {request.split}: not a split of nodes of this run; leave it out")
        selected = parts[request.split]
    has_labels = data.processor.target_type == "label" and data.processor.target_level != "pair"
    labels = data.tables.labels if has_labels else None
    chosen = [names[n] for n in selected]
    return NamedInputs(chosen, chosen, [labels[n] for n in selected] if labels else (), place=file)


EMBEDDED = InputReader("names", partial(list_nodes, names_of=_names), one_batch=True)
EMBEDDER = Embedder(embed_nodes, node_examples, "nodes and graphs", reader=EMBEDDED)
