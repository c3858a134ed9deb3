"""Heads on BERT and GPT-2: text classification, tagging, answer spans. The mapping of the body plus one linear map.

The architecture of a config selects the head. Spans and GPT-2 classifiers are exported only: in transformers an answer
ends with the last piece of a word (ours: the first), and a GPT-2 text has no end token.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.bridge.weight_mapping import ModelMapping, TensorMapping
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.source import TextLabelProcessor
from harken.data.tokenizers.pretrained import PretrainedTokenizer
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.run import Run

from .bert import BERTMapping, DistilBERTMapping
from .gpt2 import GPT2Mapping

MAX_LENGTH = 512  # tokens of a text, if the body reads more
PROBLEM_TYPES = {
    "label": "single_label_classification",
    "multilabel": "multi_label_classification",
    "number": "regression",
}
Label = Annotated[str, Field(min_length=1, max_length=1000)]


class HeadMapping(ModelMapping):
    """Common to all heads. It precedes the body in the bases, so its methods come first."""

    check: ClassVar = "head"
    head_name: ClassVar = "classifier"
    importable: ClassVar = True

    id2label: dict[str, Label] = Field({"0": "LABEL_0", "1": "LABEL_1"}, max_length=100_000)
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None

    def settings(self) -> dict[str, object]:
        settings = super().settings()
        context = settings["model.context"]
        max_length = min(MAX_LENGTH, context) if isinstance(context, int) else MAX_LENGTH
        return settings | {"data.kind": self.data_kind, "data.max_length": max_length}

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        return super().config(settings) | {"architectures": [cls.architecture]}

    def weight_map(self) -> dict[str, TensorMapping]:
        body = {f"body.{ours}": item for ours, item in super().weight_map().items()}
        return body | {f"W_y.{part}": TensorMapping(f"{self.head_name}.{part}") for part in ("weight", "bias")}

    def processor(self, tokenizer: Tokenizer, location: str) -> TokenLabelProcessor:
        """Labels in the order of their ids. Only WordPiece tokenizers are accepted."""
        if isinstance(tokenizer, PretrainedTokenizer):
            raise BadInput(f"{location}: a model with labels needs a WordPiece tokenizer such as BERT's")
        return TokenLabelProcessor(tokenizer, ordered_labels(self.id2label, location))


class BERTClassifierMapping(HeadMapping, BERTMapping):
    """A label for each text: CLS through the pooler."""

    architecture: ClassVar = "BertForSequenceClassification"
    auto_class: ClassVar = "AutoModelForSequenceClassification"
    data_kind: ClassVar = "table"

    def settings(self) -> dict[str, object]:
        return super().settings() | {"model.pooler": True}

    def processor(self, tokenizer: Tokenizer, location: str) -> TextLabelProcessor:
        labels = super().processor(tokenizer, location).labels
        target_type = {problem: kind for kind, problem in PROBLEM_TYPES.items()}.get(self.problem_type or "", "label")
        return TextLabelProcessor(tokenizer, labels, "number" if len(labels) == 1 else target_type)  # type: ignore[arg-type]


class GPT2ClassifierMapping(HeadMapping, GPT2Mapping):
    """A label for each text: the last token, with a linear map without a bias."""

    architecture: ClassVar = "GPT2ForSequenceClassification"
    auto_class: ClassVar = "AutoModelForSequenceClassification"
    data_kind: ClassVar = "table"
    head_name: ClassVar = "score"
    importable: ClassVar = False

    def weight_map(self) -> dict[str, TensorMapping]:
        return {ours: item for ours, item in super().weight_map().items() if ours != "W_y.bias"}


class TaggerMapping(HeadMapping):
    """A tag for each word, at its first piece."""

    auto_class: ClassVar = "AutoModelForTokenClassification"
    data_kind: ClassVar = "tags"


class BERTTaggerMapping(TaggerMapping, BERTMapping):
    architecture: ClassVar = "BertForTokenClassification"


class DistilBERTTaggerMapping(TaggerMapping, DistilBERTMapping):
    architecture: ClassVar = "DistilBertForTokenClassification"


class SpanMapping(HeadMapping):
    """Start and end of an answer."""

    auto_class: ClassVar = "AutoModelForQuestionAnswering"
    data_kind: ClassVar = "spans"
    head_name: ClassVar = "qa_outputs"
    importable: ClassVar = False


class BERTSpanMapping(SpanMapping, BERTMapping):
    architecture: ClassVar = "BertForQuestionAnswering"


class DistilBERTSpanMapping(SpanMapping, DistilBERTMapping):
    architecture: ClassVar = "DistilBertForQuestionAnswering"


def ordered_labels(id2label: Mapping[str, str], location: str) -> list[str]:
    """The labels of a config in the order of their ids, which must be 0, 1, 2, ..."""
    numbers = [str(n) for n in range(len(id2label))]
    if {*id2label} != {*numbers}:
        problem = "keys must be 0, 1, 2, ... without gaps; fix the config"
        raise BadInput(f"{location}: config id2label = {str(id2label)[:60]}: {problem}")
    return [id2label[n] for n in numbers]


def label_config(run: Run) -> dict[str, object]:
    """config.json fields of the labels."""
    processor = run.tokenizer
    id2label = {str(n): label for n, label in enumerate(processor.labels)}
    fields = {"id2label": id2label, "label2id": {label: int(n) for n, label in id2label.items()}}
    is_text = isinstance(processor, TextLabelProcessor)
    return fields | ({"problem_type": PROBLEM_TYPES[processor.target_type]} if is_text else {})


def fold_head(run: Run, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fold the scale of a regression target into the head, and the bias of a GPT head into the last norm."""
    W, b, processor = weights["W_y.weight"], weights["W_y.bias"], run.tokenizer
    if isinstance(processor, TextLabelProcessor) and processor.target_type == "number":
        W, b = W * processor.std, b * processor.std + processor.mean
    weights = weights | {"W_y.weight": W, "W_y.bias": b}
    if run.recipe.model.kind == "gpt":
        shift = torch.linalg.pinv(W.double()) @ b.double()  # W (h + shift) = W h + b
        weights["body.norm.bias"] = weights["body.norm.bias"] + shift.to(b)
    return weights
