"""Registry: the families of models, and the class of each value of `data.kind`, `model.kind` and `task.kind`.

A family is one record: its data kind, models, task, command and report samples. Classes and functions are
named as "module:name" below harken and imported when they are used. A plug-in adds models and data kinds through the
entry-point groups `harken.models` and `harken.data`.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points

from .errors import BadSetting
from .settings import Settings
from .suggestions import did_you_mean


@dataclass(frozen=True)
class Family:
    """What belongs to one task: the data and models it is for, and what a trained run can do."""

    data: str  # data.kind
    source: str  # settings class of the data
    models: str  # group of models in MODELS
    settings: str  # settings class of the task
    verb: str  # command, and method of Run, that predicts
    ability: str  # "this run ..."
    samples: str  # examples and commands of the report
    embed: str = ""  # Embedder: how inputs become vectors
    recipe: str = ""  # shipped recipe; "": the name of the data kind
    example: str = "A sentence."  # input of the printed example command
    classify: str = ""  # predictions of `classify`
    inputs: str = ""  # InputReader of file inputs; "": inputs are texts
    trace: str = ""  # attention weights for an input; "": of a text

    @property
    def default_model(self) -> str:
        """The default of model.kind: the first model of the group."""
        return next(iter(MODELS[self.models]))


MODELS: dict[str, dict[str, str]] = {
    "text": {
        "gpt": "models.gpt:GPTSettings",
        "bert": "models.bert:BERTSettings",
        "rnn": "models.rnn:RNNSettings",
        "gru": "models.rnn:GRUSettings",
        "lstm": "models.rnn:LSTMSettings",
    },
    "pairs": {
        "transformer": "models.seq2seq:TransformerSettings",
        "rnn": "models.rnn_seq2seq:RNNSeq2SeqSettings",
        "gru": "models.rnn_seq2seq:GRUSeq2SeqSettings",
        "lstm": "models.rnn_seq2seq:LSTMSeq2SeqSettings",
        "rnn-attention": "models.rnn_seq2seq:RNNAttentionSettings",
        "conv": "models.conv_seq2seq:ConvSeq2SeqSettings",
        "bert": "models.bert_seq2seq:BERTSeq2SeqSettings",
    },
    "labels": {
        "bert": "models.heads:BERTHeadSettings",
        "gpt": "models.heads:GPTHeadSettings",
        "rnn": "models.heads:RNNHeadSettings",
        "gru": "models.heads:GRUHeadSettings",
        "lstm": "models.heads:LSTMHeadSettings",
    },
    "stories": {
        "memnet": "models.memnet:MemNetSettings",
        "gpt": "models.heads:GPTHeadSettings",
        "bert": "models.heads:BERTHeadSettings",
    },
    "images": {"vit": "models.vit:ViTSettings"},
    "captions": {"caption": "models.caption:CaptionerSettings"},
    "sets": {"set": "models.sets:SetTransformerSettings"},
    "graphs": {
        "gcn": "models.graph:GCNSettings",
        "gat": "models.graph:GATSettings",
        "graph-transformer": "models.graph:GraphTransformerSettings",
    },
}

# fmt: off
FAMILIES: dict[str, Family] = {  # by task.kind
    "next-word": Family(data="text", source="data.text.source:TextSource", models="text",
        settings="tasks.next_word:NextWordSettings", verb="generate", ability="generates text",
        samples="experiments.report.sections:generated_texts",
        embed="inference.answers.text_vectors:TEXTS", example="Once upon a time"),
    "masked-words": Family(data="text", source="data.text.source:TextSource", models="text",
        settings="tasks.masked_words:MaskedWordsSettings", verb="fill", ability="fills in masked words",
        samples="experiments.report.sections:filled_texts",
        embed="inference.answers.text_vectors:TEXTS", example="A [MASK] sentence.",
        classify="inference.answers.next_sentence:classify_next_sentences"),
    "translate": Family(data="pairs", source="data.pairs.source:PairSource", models="pairs",
        settings="tasks.translate:TranslateSettings", verb="translate", ability="translates",
        samples="experiments.report.sections:translated_texts",
        embed="inference.answers.text_vectors:SOURCES"),
    "classify": Family(data="table", source="data.labelled.source:TableSource", models="labels",
        settings="tasks.classify:ClassifySettings", verb="classify", ability="classifies texts",
        samples="experiments.report.sections:classified_texts",
        embed="inference.answers.text_vectors:LABELLED_TEXTS", recipe="labels",
        classify="inference.answers.classify:classify_texts"),
    "tag": Family(data="tags", source="data.labelled.tags:TagSource", models="labels",
        settings="tasks.tag:TagSettings", verb="tag", ability="tags words",
        samples="experiments.report.sections:tagged_texts",
        embed="inference.answers.text_vectors:TAGGED_TEXTS"),
    "span": Family(data="spans", source="data.labelled.spans:SpanSource", models="labels",
        settings="tasks.span:SpanSettings", verb="ask", ability="extracts answers from a text",
        samples="experiments.report.sections:answered_questions",
        embed="inference.answers.text_vectors:PARAGRAPHS"),
    "answer": Family(data="stories", source="data.stories.source:StorySource", models="stories",
        settings="tasks.answer:AnswerSettings", verb="ask", ability="answers questions about a story",
        samples="experiments.report.sections:answered_stories",
        embed="inference.answers.stories:STORIES", example="Where is Joe?"),
    "image": Family(data="images", source="data.images.source:ImageSource", models="images",
        settings="tasks.image:ImageTaskSettings", verb="classify", ability="classifies images",
        samples="experiments.report.sections:classified_images",
        embed="inference.answers.images:EMBEDDER", example="my.png",
        classify="inference.answers.images:classify_images", inputs="inference.answers.images:INPUTS",
        trace="inference.answers.images:trace_image"),
    "nodes": Family(data="graph", source="data.graphs.source:GraphSource", models="graphs",
        settings="tasks.nodes:GraphTaskSettings", verb="classify", ability="classifies graph nodes",
        samples="experiments.report.sections:classified_nodes",
        embed="inference.answers.nodes:EMBEDDER",
        classify="inference.answers.nodes:classify_nodes", inputs="inference.answers.nodes:INPUTS"),
    "solve": Family(data="maths", source="data.maths.source:MathsSource", models="pairs",
        settings="tasks.solve:SolveSettings", verb="translate", ability="solves mathematics problems",
        samples="experiments.report.sections:translated_texts",
        embed="inference.answers.text_vectors:PROBLEMS"),
    "set": Family(data="sets", source="data.sets.source:SetSource", models="sets",
        settings="tasks.sets:SetTaskSettings", verb="classify", ability="classifies sets of rows",
        samples="experiments.report.sections:classified_sets",
        embed="inference.answers.sets:EMBEDDER", example="my.csv",
        classify="inference.answers.sets:classify_sets", inputs="inference.answers.sets:INPUTS"),
    "caption": Family(data="captions", source="data.captions.source:CaptionSource", models="captions",
        settings="tasks.caption:CaptionTaskSettings", verb="caption", ability="captions images",
        samples="experiments.report.sections:captioned_images",
        embed="inference.answers.caption:EMBEDDER", example="my.png",
        trace="inference.answers.caption:trace_caption"),
}
# fmt: on
TRAINING = {"loop": "training.settings:Train"}  # the only value of train.kind
COSTS = {"energy": "training.settings:CostSettings"}  # the only value of cost.kind
REPORTS = {"page": "experiments.report.settings:ReportSettings"}  # the only value of report.kind
ENTRY_POINT_GROUPS = {"data": "harken.data", "model": "harken.models"}


def load_object(path: str) -> object:
    """The class or function that "module:name" names."""
    module, name = path.split(":")
    return getattr(import_module(f"harken.{module}"), name)


def built_in(section: str, group: str = "text") -> dict[str, str]:
    """The kinds of a section that come with harken, each with its class; for models, those of a group."""
    if section == "model":
        return MODELS[group]
    if section in (single := {"train": TRAINING, "cost": COSTS, "report": REPORTS}):
        return single[section]
    if section == "data":
        return {family.data: family.source for family in FAMILIES.values()}
    return {task: family.settings for task, family in FAMILIES.items()}


def sections_and_groups() -> list[tuple[str, str]]:
    """Every section with its group of models: ("data", "text"), ("model", "text"), ("model", "pairs") ..."""
    single = [(section, "text") for section in ("task", "train", "cost", "report")]
    return [("data", "text"), *(("model", group) for group in MODELS), *single]


def title(kind: str, group: str) -> str:
    """The name of a model kind among all groups: "gpt", "gpt of labels"."""
    return kind if group == "text" else f"{kind} of {group}"


def kind_names(section: str, group: str = "text") -> list[str]:
    """All kinds of a section, including plug-ins; for models, those of a group."""
    return sorted({*built_in(section, group), *(point.name for point in _plugins(section))})


def is_kind(section: str, kind: str, group: str = "text") -> bool:
    """Whether a section has this kind; plug-ins are searched only for another name than the built-in ones."""
    return kind in built_in(section, group) or kind in kind_names(section, group)


def similar_setting(name: str) -> str:
    """The path of the setting with this name in any kind that comes with harken, else of a similar one; or nothing."""
    paths: dict[str, str] = {}
    for section, group in sections_and_groups():
        for path in built_in(section, group).values():
            settings_class = load_object(path)
            assert isinstance(settings_class, type)
            assert issubclass(settings_class, Settings)
            for field in settings_class.model_fields:
                if section == "train" or field not in paths:  # steps, batch, lr ... are settings of the training first
                    paths[field] = f"{section}.{field}"
    paths.pop("kind")  # of every section
    close = get_close_matches(name, paths, n=1, cutoff=0.8)
    return paths[close[0]] if close else ""


def find_kind(section: str, kind: str, group: str = "text") -> type[Settings]:
    """The settings class of a kind. Two groups of models may use the same name for different classes."""
    if kind in (kinds := built_in(section, group)):
        settings_class = load_object(kinds[kind])
    else:
        points = [point for point in _plugins(section) if point.name == kind]
        if not points:
            raise _unknown_kind(section, kind, group)
        settings_class = points[0].load()
    if not (isinstance(settings_class, type) and issubclass(settings_class, Settings)):
        fix = "it must name a subclass of harken.settings.Settings"
        raise BadSetting(f"{section}.kind = {kind!r}: the plug-in names {settings_class!r}; {fix}")
    return settings_class


def _plugins(section: str) -> EntryPoints:
    return entry_points(group=ENTRY_POINT_GROUPS.get(section, "harken.none"))


def _unknown_kind(section: str, kind: str, group: str) -> BadSetting:
    accepted = kind_names(section, group)
    if section == "model" and any(kind in kinds for kinds in MODELS.values()):
        return BadSetting(f"model.kind = {kind!r} is not a model of {group}; accepted: {', '.join(accepted)}")
    hint = did_you_mean(kind, accepted) or " Is the plug-in installed?" * (section in ENTRY_POINT_GROUPS)
    return BadSetting(f"{section}.kind = {kind!r} is not a kind of {section}; accepted: {', '.join(accepted)}.{hint}")
