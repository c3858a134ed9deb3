"""What nodes of a graph are, whether two have an edge, or what whole graphs are, by a run that was trained on graphs.

Asked by name: of the run's own graph, or of another, whose file is named first. A file alone asks for all it has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harken.data.graphs.files import Ints
from harken.errors import BadInput, did_you_mean

from .classify import ranked, said

if TYPE_CHECKING:
    from harken.data.graphs.source import GraphData
    from harken.inference.run import Run

BETWEEN = ("\t", "--")  # two nodes


def label_nodes(run: "Run", given: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """For each name its labels, the likeliest first; of a number its value; of two nodes whether they have an edge."""
    asked = [str(one) for one in given]
    if not asked:
        return []
    data, task = _bound(run, asked)
    words = data.words
    names = {name: n for n, name in enumerate(_names(data))}
    if words.target_level == "edge":
        y = task.answers(run.model, _pairs(asked, names, data))
        return ranked(words.labels, torch.stack([(-y).sigmoid(), y.sigmoid()], 1))
    which = [_number(one, names, data) for one in asked] if asked else list(names.values())
    y = task.answers(run.model, which)
    return said(words, y)


def named_nodes(run: "Run", given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of all that is asked about, and what was given: a file may stand first."""
    asked = list(given)
    data = _bound(run, asked)[0] if asked else None
    return (_names(data) if data and not asked else asked), list(given)


def _names(data: "GraphData") -> list[str]:
    return data.raw.graphs if data.words.target_level == "graph" else data.raw.names


def _bound(run: "Run", asked: list[str]) -> tuple["GraphData", Any]:
    """The graph that is asked about, bound to the run's task; the name of its file is taken off."""
    path = asked.pop(0) if Path(asked[0]).exists() and not _known(run, asked[0]) else None
    return _opened(run, path)


def _opened(run: "Run", path: str | None) -> tuple["GraphData", Any]:
    """A graph, read once for many questions; beside the run's own one other is kept."""
    kept = run.__dict__.setdefault("_graph", {})
    if path not in kept:
        opened = run.recipe.open(run.tokenizer, other=None if path is None else (path, "test"))
        own = {None: kept[None]} if None in kept else {}
        run.__dict__["_graph"] = kept = own | {path: (opened, run.recipe.bind(opened))}
    found: tuple[GraphData, Any] = kept[path]
    return found


def _known(run: "Run", name: str) -> bool:
    """Whether a name that is also a file's is one of the run's own graph, if that is still there."""
    try:
        raw = _opened(run, None)[0].raw
    except BadInput:
        return False
    return name in raw.names or name in raw.graphs


def _number(name: str, names: dict[str, int], data: "GraphData") -> int:
    if name not in names:
        what = f"no {'graph' if data.words.target_level == 'graph' else 'node'} of {data.raw.place}"
        some = f"it has {len(names):,}, such as {', '.join([*names][:3])}.{did_you_mean(name, names)}"
        raise BadInput(f"{name!r}: {what}; {some}")
    return names[name]


def _pairs(asked: list[str], names: dict[str, int], data: "GraphData") -> Ints:
    found, wanted = [], f"two nodes are accepted, with -- between them, such as {'--'.join([*names][:2])}"
    if not asked:
        raise BadInput(f"{data.raw.place}: no edge of it is asked about; {wanted}")
    for one in asked:
        ends = next((parts for sign in BETWEEN if len(parts := one.split(sign)) == 2), None)
        if ends is None:
            raise BadInput(f"{one!r}: {wanted}")
        found.append([_number(end.strip(), names, data) for end in ends])
    return np.array(found, np.int64).reshape(-1, 2)
