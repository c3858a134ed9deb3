"""What a run does, by its task: the verb that asks for it, and how labels are found."""

from collections.abc import Callable
from typing import Any

from .answers.classify import label_texts
from .answers.images import label_pictures, listed
from .answers.nodes import label_nodes, named_nodes
from .answers.sets import label_sets, named_sets

DOES = {  # what a run does, and the verb
    "next-word": ("writes text", "generate"),
    "translate": ("translates", "translate"),
    "solve": ("answers problems of mathematics", "translate"),
    "masked-words": ("fills in hidden words", "fill"),
    "classify": ("says what a text is", "classify"),
    "tag": ("tags words", "tag"),
    "span": ("finds answers in a text", "ask"),
    "image": ("says what a picture shows", "classify"),
    "caption": ("says in words what a picture shows", "caption"),
    "nodes": ("says what nodes of a graph are", "classify"),
    "set": ("says what a set of rows is", "classify"),
    "answer": ("answers questions about a story", "ask"),
}
LABELS = {
    "classify": label_texts,
    "image": label_pictures,
    "nodes": label_nodes,
    "set": label_sets,
}  # by the task: how `classify` finds the labels of what it is given
NAMED: dict[str, tuple[str, Callable[..., tuple[list[str], list[Any]]]]] = {
    "image": ("files", listed),
    "nodes": ("names", named_nodes),
    "set": ("sets", named_sets),
}  # by the task: where what is typed may be files, what is in them, by its names
