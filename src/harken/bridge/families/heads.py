"""Heads on BERT and GPT-2: text classification, tagging, answer spans. The mapping of the body plus one linear map.

The architecture of a config selects the head. Spans and GPT-2 classifiers are exported only: in transformers an answer
ends with the last piece of a word (ours: the first), and a GPT-2 text has no end token.
"""

from typing import Annotated, Any, ClassVar, Literal

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
    data_kind: ClassVar[str]
    head_name: ClassVar = "classifier"

    id2label: dict[str, Label] = Field({"0": "LABEL_0", "1": "LABEL_1"}, max_length=100_000)
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        return settings | {"data.kind": self.data_kind, "data.max_length": min(MAX_LENGTH, settings["model.context"])}

    def weight_map(self) -> dict[str, TensorMapping]:
        body = {f"body.{ours}": item for ours, item in super().weight_map().items()}
        return body | {f"W_y.{part}": TensorMapping(f"{self.head_name}.{part}") for part in ("weight", "bias")}

    def labels(self, tokenizer: Tokenizer) -> list[str]:
        """The labels in the order of their ids. Only WordPiece tokenizers are accepted."""
        if isinstance(tokenizer, PretrainedTokenizer):
            raise BadInput("tokenizer.json: a model with labels needs a WordPiece tokenizer such as BERT's")
        numbers = [str(n) for n in range(len(self.id2label))]
        if {*self.id2label} != {*numbers}:
            raise BadInput(
                f"config id2label = {str(self.id2label)[:60]}: keys must be 0, 1, 2, ... without gaps; fix the config"
            )
        return [self.id2label[n] for n in numbers]


class ClassifierMapping(HeadMapping):
    """A label for each text."""

    auto_class: ClassVar = "AutoModelForSequenceClassification"
    data_kind: ClassVar = "table"

    def processor(self, tokenizer: Tokenizer) -> TextLabelProcessor:
        labels = self.labels(tokenizer)
        target_type = {problem: kind for kind, problem in PROBLEM_TYPES.items()}.get(self.problem_type or "", "label")
        return TextLabelProcessor(tokenizer, labels, "number" if len(labels) == 1 else target_type)  # type: ignore[arg-type]


class TaggerMapping(HeadMapping):
    """A tag for each word, at its first piece."""

    auto_class: ClassVar = "AutoModelForTokenClassification"
    data_kind: ClassVar = "tags"

    def processor(self, tokenizer: Tokenizer) -> TokenLabelProcessor:
        return TokenLabelProcessor(tokenizer, self.labels(tokenizer))


class SpanMapping(HeadMapping):
    """Start and end of an answer."""

    auto_class: ClassVar = "AutoModelForQuestionAnswering"
    data_kind: ClassVar = "spans"
    head_name: ClassVar = "qa_outputs"


class BERTClassifierMapping(ClassifierMapping, BERTMapping):
    """BertForSequenceClassification: CLS through the pooler."""

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"model.pooler": True}


class BERTTaggerMapping(TaggerMapping, BERTMapping):
    """BertForTokenClassification."""


class BERTSpanMapping(SpanMapping, BERTMapping):
    """BertForQuestionAnswering."""


class DistilBERTTaggerMapping(TaggerMapping, DistilBERTMapping):
    """DistilBertForTokenClassification."""


class DistilBERTSpanMapping(SpanMapping, DistilBERTMapping):
    """DistilBertForQuestionAnswering."""


class GPT2ClassifierMapping(ClassifierMapping, GPT2Mapping):
    """GPT2ForSequenceClassification: the last token, with a linear map without a bias."""

    head_name: ClassVar = "score"

    def weight_map(self) -> dict[str, TensorMapping]:
        return {ours: item for ours, item in super().weight_map().items() if ours != "W_y.bias"}


def label_config(run: Run) -> dict[str, Any]:
    """config.json fields of the labels."""
    processor: Any = run.tokenizer
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
