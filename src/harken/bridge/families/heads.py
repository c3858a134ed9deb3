"""Heads on BERT and GPT-2: labels of texts, tags of words, spans. The body's table of names, and one map on top of it.

Which one it is, the architecture of a config says. Spans, and labels by GPT-2, are written and not read: there an
answer ends with the last piece of a word, where ours does with the first, and a text ends without a mark.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.bridge.weight_mapping import Config, Take
from harken.data.labelled.examples import LabelWords
from harken.data.labelled.source import TextLabels
from harken.data.tokenizers.pretrained import Foreign
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.run import Run

from .bert import BERT, DistilBERT
from .gpt2 import GPT2

LONGEST = 512  # tokens of a text, where a body reads more
ANSWERS = {"label": "single_label_classification", "multilabel": "multi_label_classification", "number": "regression"}
Label = Annotated[str, Field(min_length=1, max_length=1000)]


class Head(Config):
    """What all have in common. It stands before its body among the parents, and so speaks first."""

    check: ClassVar = "head"
    data: ClassVar[str]
    top: ClassVar = "classifier"

    id2label: dict[str, Label] = Field({"0": "LABEL_0", "1": "LABEL_1"}, max_length=100_000)
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        return found | {"data.kind": self.data, "data.max_length": min(LONGEST, found["model.context"])}

    def names(self) -> dict[str, Take]:
        body = {f"body.{ours}": take for ours, take in super().names().items()}
        return body | {f"W_y.{part}": Take(f"{self.top}.{part}") for part in ("weight", "bias")}

    def labels(self, tokenizer: Tokenizer) -> list[str]:
        """In order, where they are numbered without a gap; and tokens with which a run of labels can be loaded."""
        if isinstance(tokenizer, Foreign):
            raise BadInput("a model with labels is read with word pieces such as BERT's; its tokenizer.json has others")
        numbers = [str(n) for n in range(len(self.id2label))]
        if {*self.id2label} != {*numbers}:
            raise BadInput(f"config id2label = {str(self.id2label)[:60]}: labels are numbered 0, 1, 2, ...; mend it")
        return [self.id2label[n] for n in numbers]


class Labels(Head):
    """A label for each text."""

    auto: ClassVar = "AutoModelForSequenceClassification"
    data: ClassVar = "table"

    def words(self, tokenizer: Tokenizer) -> TextLabels:
        labels = self.labels(tokenizer)
        said = {problem: answer for answer, problem in ANSWERS.items()}.get(self.problem_type or "", "label")
        return TextLabels(tokenizer, labels, "number" if len(labels) == 1 else said)  # type: ignore[arg-type]


class Tags(Head):
    """A tag for each word, at its first piece."""

    auto: ClassVar = "AutoModelForTokenClassification"
    data: ClassVar = "tags"

    def words(self, tokenizer: Tokenizer) -> LabelWords:
        return LabelWords(tokenizer, self.labels(tokenizer))


class Spans(Head):
    """Where an answer begins and ends."""

    auto: ClassVar = "AutoModelForQuestionAnswering"
    data: ClassVar = "spans"
    top: ClassVar = "qa_outputs"


class BERTLabels(Labels, BERT):
    """BertForSequenceClassification: CLS through the pooler."""

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"model.pooler": True}


class BERTTags(Tags, BERT):
    """BertForTokenClassification."""


class BERTSpans(Spans, BERT):
    """BertForQuestionAnswering."""


class DistilBERTTags(Tags, DistilBERT):
    """DistilBertForTokenClassification."""


class DistilBERTSpans(Spans, DistilBERT):
    """DistilBertForQuestionAnswering."""


class GPT2Labels(Labels, GPT2):
    """GPT2ForSequenceClassification: the last token, by a map without a bias."""

    top: ClassVar = "score"

    def names(self) -> dict[str, Take]:
        return {ours: take for ours, take in super().names().items() if ours != "W_y.bias"}


def written(run: Run) -> dict[str, Any]:
    """What a config says of the labels."""
    words: Any = run.tokenizer
    named = {str(n): label for n, label in enumerate(words.labels)}
    found = {"id2label": named, "label2id": {label: int(n) for n, label in named.items()}}
    return found | ({"problem_type": ANSWERS[words.target_type]} if isinstance(words, TextLabels) else {})


def folded(run: Run, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a head that gives numbers as they are, and whose bias, at a GPT, the last norm says."""
    W, b, words = own["W_y.weight"], own["W_y.bias"], run.tokenizer
    if isinstance(words, TextLabels) and words.target_type == "number":
        W, b = W * words.spread, b * words.spread + words.mean
    own = own | {"W_y.weight": W, "W_y.bias": b}
    if run.recipe.model.kind == "gpt":
        moved = torch.linalg.pinv(W.double()) @ b.double()  # W (h + moved) = W h + b
        own["body.norm.bias"] = own["body.norm.bias"] + moved.to(b)
    return own
