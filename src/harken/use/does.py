"""What a run does, by its task: the verb that asks for it, and how labels are found."""

from .classify import label_texts
from .nodes import label_nodes
from .pictures import label_pictures

DOES = {  # what a run does, and the verb
    "next-word": ("writes text", "generate"),
    "translate": ("translates", "translate"),
    "solve": ("answers problems of mathematics", "translate"),
    "masked-words": ("fills in hidden words", "fill"),
    "classify": ("says what a text is", "classify"),
    "tag": ("tags words", "tag"),
    "span": ("finds answers in a text", "ask"),
    "image": ("says what a picture shows", "classify"),
    "nodes": ("says what nodes of a graph are", "classify"),
    "answer": ("answers questions about a story", "ask"),
}
LABELS = {
    "classify": label_texts,
    "image": label_pictures,
    "nodes": label_nodes,
}  # by the task: how `classify` finds the labels of what it is given
