"""Registry of kinds: the values of `model.kind`, `data.kind` and `task.kind`, and the class of each.

A kind is a Settings class that can build the model, load the data or bind the task. Built-in kinds are listed here; a
plug-in adds kinds through the entry-point groups `harken.models` and `harken.data`. A kind is imported when it is used.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from .errors import BadSetting
from .settings import Settings
from .suggestions import did_you_mean

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
        "gpt": "harken.models.gpt:GPTSettings",
        "bert": "harken.models.bert:BERTSettings",
        "rnn": "harken.models.rnn:RNNSettings",
        "gru": "harken.models.rnn:GRUSettings",
        "lstm": "harken.models.rnn:LSTMSettings",
    },
    "model of pairs": {
        "transformer": "harken.models.seq2seq:TransformerSettings",
        "rnn": "harken.models.rnn_seq2seq:RNNSeq2SeqSettings",
        "gru": "harken.models.rnn_seq2seq:GRUSeq2SeqSettings",
        "lstm": "harken.models.rnn_seq2seq:LSTMSeq2SeqSettings",
        "rnn-attention": "harken.models.rnn_seq2seq:RNNAttentionSettings",
        "conv": "harken.models.conv_seq2seq:ConvSeq2SeqSettings",
    },
    "model of labels": {
        "bert": "harken.models.heads:BERTHeadSettings",
        "gpt": "harken.models.heads:GPTHeadSettings",
        "rnn": "harken.models.heads:RNNHeadSettings",
        "gru": "harken.models.heads:GRUHeadSettings",
        "lstm": "harken.models.heads:LSTMHeadSettings",
    },
    "model of stories": {
        "memnet": "harken.models.memnet:MemNetSettings",
        "gpt": "harken.models.heads:GPTHeadSettings",
        "bert": "harken.models.heads:BERTHeadSettings",
    },
    "model of images": {"vit": "harken.models.vit:ViTSettings"},
    "model of captions": {"caption": "harken.models.caption:CaptionerSettings"},
    "model of sets": {"set": "harken.models.sets:SetTransformerSettings"},
    "model of graphs": {
        "gcn": "harken.models.graph:GCNSettings",
        "gat": "harken.models.graph:GATSettings",
        "graph-transformer": "harken.models.graph:GraphTransformerSettings",
    },
    "task": {
        "next-word": "harken.tasks.next_word:NextWordSettings",
        "masked-words": "harken.tasks.masked_words:MaskedWordsSettings",
        "translate": "harken.tasks.translate:TranslateSettings",
        "classify": "harken.tasks.classify:ClassifySettings",
        "tag": "harken.tasks.tag:TagSettings",
        "span": "harken.tasks.span:SpanSettings",
        "answer": "harken.tasks.answer:AnswerSettings",
        "solve": "harken.tasks.solve:SolveSettings",
        "image": "harken.tasks.image:ImageTaskSettings",
        "caption": "harken.tasks.caption:CaptionTaskSettings",
        "nodes": "harken.tasks.nodes:GraphTaskSettings",
        "set": "harken.tasks.sets:SetTaskSettings",
    },
    "train": {"loop": "harken.training.settings:Train"},
}
ENTRY_POINT_GROUPS = {"data": "harken.data", "model": "harken.models"}


def sections_and_groups() -> list[tuple[str, str]]:
    """Every section with its group of models: ("model", ""), ("model", " of pairs") ..."""
    return [(section, key.removeprefix(section)) for key in BUILT_IN for section in [key.split()[0]]]


def kind_names(section: str, group: str = "") -> list[str]:
    """All kinds of a section, including plug-ins; for models, those of a group, such as " of pairs"."""
    plugins = (
        [point.name for point in entry_points(group=ENTRY_POINT_GROUPS[section])]
        if section in ENTRY_POINT_GROUPS
        else []
    )
    return sorted({*BUILT_IN[section + group], *plugins})


def find_kind(section: str, kind: str, group: str = "") -> type[Any]:
    """The Settings class of a kind. Two groups of models may use the same name for different classes."""
    if kind in BUILT_IN[section + group]:
        module, name = BUILT_IN[section + group][kind].split(":")
        settings_class: object = getattr(import_module(module), name)
    else:
        points = [p for p in entry_points(group=ENTRY_POINT_GROUPS.get(section, "harken.none")) if p.name == kind]
        if not points:
            raise _unknown_kind(section, kind, group)
        settings_class = points[0].load()
    if not (isinstance(settings_class, type) and issubclass(settings_class, Settings)):
        fix = "it must name a subclass of harken.settings.Settings"
        raise BadSetting(f"{section}.kind = {kind!r}: the plug-in names {settings_class!r}; {fix}")
    return settings_class


def _unknown_kind(section: str, kind: str, group: str) -> BadSetting:
    accepted = kind_names(section, group)
    if any(kind in BUILT_IN[s + other] for s, other in sections_and_groups() if s == section):
        problem = f"{section}.kind = {kind!r} is not a {section}{group or ' of text'}"
        return BadSetting(f"{problem}; accepted: {', '.join(accepted)}")
    hint = did_you_mean(kind, accepted) or " Is the plug-in installed?" * (section in ENTRY_POINT_GROUPS)
    return BadSetting(f"{section}.kind = {kind!r} is not a kind of {section}; accepted: {', '.join(accepted)}.{hint}")
