"""Say what a text is: one of some labels, several of them at once, or a number. Loss in nats (of a number, squared)."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.labelled.batch import LabelBatch, Texts, evenly, scoring
from harken.errors import BadSetting
from harken.settings import Part

from . import Loss, Score
from .baselines.linear import Bags, bags, fit
from .frozen_features import frozen, states
from .head_task import AT_ONCE, HeadTask
from .label_task import Answering, loss_of
from .metrics.classification import spread

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData
    from harken.data.labelled.source import Labelled

QUICK = 1000  # texts that a look during the training answers


class Task(Part):
    """The settings of classification."""

    kind: Literal["classify"] = "classify"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "pearson", "spearman"] = Field(
        "auto", description="what picks the weights that are kept; auto: accuracy, of several labels f1, else pearson"
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: a rare label counts more in the loss, as much as any; losses told are plain"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of each label spread over all, in training")
    prompt: str | None = Field(None, description='with transfer=4-shot, how it is asked: "Review: {text} Sentiment:"')
    labels: dict[str, str] | None = Field(
        None, description='what a prompt says for the labels of the data: {0 = "negative", 1 = "positive"}'
    )

    def bind(self, data: "ExampleData", model: Any, *, batch: int, seed: int) -> "Classify":
        return Classify(self, data, model, batch=batch, seed=seed)


class Classify(Answering, HeadTask):
    """Classification of one set of texts."""

    def __init__(self, task: Task, data: "ExampleData", shape: Any, *, batch: int, seed: int) -> None:
        super().__init__(data, shape, batch=batch, seed=seed)
        self.task, self.words = task, data.words
        self.asks(self.words.labels, self.words.target_type, task.metric)
        self.known: Tensor | None = None  # the states of all training texts, where they do not change
        self.rare = self._weights() if task.class_weights == "balanced" else None

    def _weights(self) -> Tensor:
        """How much each label counts; of several labels, how much more a text counts that has it."""
        if self.target_type == "number":
            raise BadSetting("task.class_weights=balanced: numbers have no labels to balance; leave it out")
        targets = self.data.train.texts.targets
        there = np.bincount(targets, minlength=self.outputs) if self.target_type == "label" else targets.sum(0)
        rest = len(targets) / self.outputs if self.target_type == "label" else len(targets) - there
        return torch.from_numpy((rest / np.maximum(1, there)).astype(np.float32))

    def loss(self, model: Any, batch: LabelBatch, start: int = 0) -> Loss:
        y, targets = self._outputs(model, batch), batch.targets.flatten(0, 1)
        told = loss_of(y, targets, self.target_type)
        if self.rare is None and not self.task.label_smoothing:
            return Loss(told)
        weight = None if self.rare is None else self.rare.to(y.device)
        return Loss(loss_of(y, targets, self.target_type, weight, self.task.label_smoothing), told=told.detach())

    def _outputs(self, model: Any, batch: LabelBatch) -> Tensor:
        """What is said of each text of a training batch; a body that does not learn is asked once."""
        if not frozen(model):
            return outputs(model, batch)
        if self.known is None:
            self.known = states(model, self.data.train.texts)
        y: Tensor = model.answers(self.known[batch.which.flatten()])
        return y.float()

    # --- judge --------------------------------------------------------------------------------------------------------

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        """The metrics that fit what is asked; `quick` answers few texts, for the curve."""
        part: Labelled = self.data.splits[split]
        some = part.texts.some(evenly(len(part), QUICK)) if quick else part.texts
        y = _from_states(model, some) if frozen(model) else answers(model, some)
        score = self.judged(y, some, parts=not quick)
        if not quick:
            half = spread(lambda drawn: self.metrics(y[drawn], some.targets[drawn])[self.by], len(some))
            score.protocol[f"{self.by}_interval"] = half
        return score

    # --- what costs nothing -------------------------------------------------------------------------------------------

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """The most frequent answer, and a bag of words with logistic (of numbers: linear) regression."""
        if not self.data.learned:
            return {}
        texts: Texts = self.data.splits[split].texts
        free = self.frequent(self.data.train.texts.targets).expand(len(texts), -1)
        name = "mean of all" if self.target_type == "number" else "most frequent label"
        return {
            name: self.metrics(free, texts.targets),
            "bag of words": self.metrics(self._regression(self._bags(texts)).float(), texts.targets),
        }

    def _bags(self, texts: Texts) -> Bags:
        return bags(texts, self.words.tokenizer.vocab)

    @cached_property
    def _regression(self) -> Any:
        train: Texts = self.data.train.texts
        targets = torch.from_numpy(train.targets.astype(np.int64 if self.target_type == "label" else np.float64))
        return fit(self._bags(train), self.outputs, lambda y: loss_of(y, targets, self.target_type))


def outputs(model: Any, batch: LabelBatch) -> Tensor:  # N C
    """What the model says of each text of a batch, and of the places for one where none stands."""
    h = model(batch.tokens, **batch.told())
    y: Tensor = model.answers(model.texts(h, *batch.texts()))
    return y.float()


@torch.no_grad()
def _from_states(model: Any, texts: Texts) -> Tensor:  # N C
    """What a model whose body does not learn says of each text; the body has read it at the first look."""
    was = model.training
    model.eval()
    y: Tensor = model.answers(states(model, texts)[:-1]).float().cpu()
    model.train(was)
    return y


@torch.no_grad()
def answers(model: Any, texts: Texts) -> Tensor:  # N C
    """What the model says of each text."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    found: Any = [None] * len(texts)
    for picks, batch in scoring(texts, AT_ONCE):
        y = outputs(model, batch.to(device))  # type: ignore[arg-type]  # it stays what it is
        for n, each in zip(picks.tolist(), y.cpu(), strict=True):
            found[n] = each
    model.train(was)
    return torch.stack(found)
