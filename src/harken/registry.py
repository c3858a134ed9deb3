"""The table of kinds: what `model.kind`, `data.kind` and `task.kind` may be, and where each one lives.

A kind is a Part (its settings) that knows how to make the thing. Built-in kinds are listed here; a plug-in adds its own
through the entry-point groups `harken.models` and `harken.data`. Only the kind that is named gets imported.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from .errors import BadSetting, did_you_mean
from .settings import Part

BUILT_IN: dict[str, dict[str, str]] = {
    "data": {
        "text": "harken.data.text.source:TextSource",
        "pairs": "harken.data.pairs.source:PairSource",
        "table": "harken.data.labelled.source:TableSource",
        "tags": "harken.data.labelled.tags:TagSource",
        "spans": "harken.data.labelled.spans:SpanSource",
        "stories": "harken.data.stories.source:StorySource",
        "images": "harken.data.images.source:ImageSource",
        "graph": "harken.data.graphs.source:GraphSource",
        "maths": "harken.data.maths.source:MathsSource",
        "sets": "harken.data.sets.source:SetSource",
        "captions": "harken.data.captions.source:CaptionSource",
    },
    "model": {
        "gpt": "harken.models.gpt:Shape",
        "bert": "harken.models.bert:Shape",
        "rnn": "harken.models.rnn:RNNShape",
        "gru": "harken.models.rnn:GRUShape",
        "lstm": "harken.models.rnn:LSTMShape",
    },
    "model of pairs": {
        "transformer": "harken.models.seq2seq:TransformerShape",
        "rnn": "harken.models.rnn_seq2seq:RNNSeq2SeqShape",
        "gru": "harken.models.rnn_seq2seq:GRUSeq2SeqShape",
        "lstm": "harken.models.rnn_seq2seq:LSTMSeq2SeqShape",
        "rnn-attention": "harken.models.rnn_seq2seq:RNNAttentionShape",
        "conv": "harken.models.conv_seq2seq:ConvShape",
    },
    "model of labels": {
        "bert": "harken.models.heads:BERTShape",
        "gpt": "harken.models.heads:GPTShape",
        "rnn": "harken.models.heads:RNNShape",
        "gru": "harken.models.heads:GRUShape",
        "lstm": "harken.models.heads:LSTMShape",
    },
    "model of stories": {
        "memnet": "harken.models.memnet:Shape",
        "gpt": "harken.models.heads:GPTShape",
        "bert": "harken.models.heads:BERTShape",
    },
    "model of images": {"vit": "harken.models.vit:Shape"},
    "model of captions": {"caption": "harken.models.caption:Shape"},
    "model of sets": {"set": "harken.models.sets:Shape"},
    "model of graphs": {
        "gcn": "harken.models.graph:GCNShape",
        "gat": "harken.models.graph:GATShape",
        "graph-transformer": "harken.models.graph:TransformerShape",
    },
    "task": {
        "next-word": "harken.tasks.next_word:Task",
        "masked-words": "harken.tasks.masked_words:Task",
        "translate": "harken.tasks.translate:Task",
        "classify": "harken.tasks.classify:Task",
        "tag": "harken.tasks.tag:Task",
        "span": "harken.tasks.span:Task",
        "answer": "harken.tasks.answer:Task",
        "solve": "harken.tasks.solve:Task",
        "image": "harken.tasks.image:Task",
        "caption": "harken.tasks.caption:Task",
        "nodes": "harken.tasks.nodes:Task",
        "set": "harken.tasks.sets:Task",
    },
    "train": {"loop": "harken.training.settings:Train"},
}
GROUPS = {"data": "harken.data", "model": "harken.models"}


def shelves() -> list[tuple[str, str]]:
    """Every section and whose models stand on it: ("model", ""), ("model", " of pairs") ..."""
    return [(section, key.removeprefix(section)) for key in BUILT_IN for section in [key.split()[0]]]


def names(section: str, of: str = "") -> list[str]:
    """Every kind this section of a recipe may have, plug-ins included; of models: those that read such data."""
    plugged = [point.name for point in entry_points(group=GROUPS[section])] if section in GROUPS else []
    return sorted({*BUILT_IN[section + of], *plugged})


def find(section: str, kind: str, of: str = "") -> type[Any]:
    """The Part class of a kind, imported now. The same name may stand for two models that read different data."""
    if kind in BUILT_IN[section + of]:
        module, name = BUILT_IN[section + of][kind].split(":")
        found: object = getattr(import_module(module), name)
    else:
        points = [p for p in entry_points(group=GROUPS.get(section, "harken.none")) if p.name == kind]
        if not points:
            known, missing = names(section, of), " A plug-in that brings it may be missing." * (section in GROUPS)
            if any(kind in BUILT_IN[s + other] for s, other in shelves() if s == section):
                reads = f"is a kind of {section}, but none{of or ' of text'}"
                raise BadSetting(f"{section}.kind = {kind!r} {reads}; accepted: {', '.join(known)}")
            accepted = f"accepted: {', '.join(known)}.{did_you_mean(kind, known) or missing}"
            raise BadSetting(f"{section}.kind = {kind!r} is not a kind of {section}; {accepted}")
        found = points[0].load()
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise BadSetting(
            f"{section}.kind = {kind!r}: the plug-in names {found!r}; it must name a harken.part.Part class"
        )
    return found
