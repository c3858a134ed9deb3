"""Classifiers and readers of file inputs, by the task of a run."""

from collections.abc import Callable, Sequence
from typing import Any

from .answers import LabelScore
from .answers.classify import classify_texts
from .answers.images import classify_images, list_images
from .answers.nodes import classify_nodes, list_nodes
from .answers.sets import classify_sets, list_sets
from .loaded_model import LoadedModel

# task: the function behind `classify`
CLASSIFIERS: dict[str, Callable[[LoadedModel, Sequence[Any]], list[list[LabelScore]]]] = {
    "classify": classify_texts,
    "image": classify_images,
    "nodes": classify_nodes,
    "set": classify_sets,
}
# task: what its inputs are called, and the function that expands file names into named inputs
INPUT_READERS: dict[str, tuple[str, Callable[..., tuple[list[str], list[Any]]]]] = {
    "image": ("files", list_images),
    "nodes": ("names", list_nodes),
    "set": ("sets", list_sets),
}
