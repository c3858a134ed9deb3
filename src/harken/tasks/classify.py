"""Text classification and regression: a label, several labels or a number per text. Loss in nats or squared error."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.labelled.batch import EncodedTexts, LabelBatch, eval_batches, evenly_spaced
from harken.errors import BadSetting
from harken.models import ModelSettings

from . import Loss, Metrics, Score, TaskSettings, evaluating
from .baselines.linear import BagOfWords, Features, bag_of_words, fit_linear
from .frozen_features import frozen_features, is_frozen
from .head_task import EVAL_BATCH_TOKENS, HeadTask
from .label_task import LabelTask, label_loss
from .metrics.regression import bootstrap_half_width

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData
    from harken.data.labelled.source import LabelledTexts
    from harken.models.heads import ModelWithHead

QUICK_TEXTS = 1000  # texts of a quick evaluation


class ClassifySettings(TaskSettings):
    """Settings of text classification."""

    kind: Literal["classify"] = "classify"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "pearson", "spearman"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy, of several labels f1, else pearson"
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="weights of the labels in the training loss; balanced: inverse label frequency"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    prompt: str | None = Field(
        None, description='prompt of few-shot transfer (transfer=4-shot), e.g. "Review: {text} Sentiment:"'
    )
    labels: dict[str, str] | None = Field(
        None, description='text of each label in a prompt, e.g. {0 = "negative", 1 = "positive"}'
    )

    def bind(self, data: "ExampleData", model: ModelSettings, *, batch: int, seed: int) -> "ClassifyTask":
        return ClassifyTask(self, data, model, batch=batch, seed=seed)


class ClassifyTask(LabelTask, HeadTask):
    """Classification of one set of texts."""

    def __init__(
        self, settings: ClassifySettings, data: "ExampleData", model: ModelSettings, *, batch: int, seed: int
    ) -> None:
        super().__init__(data, model, batch=batch, seed=seed)
        self.settings, self.processor = settings, data.processor
        self.set_targets(self.processor.labels, self.processor.target_type, settings.metric)
        self.features: Tensor | None = None  # of all training texts, if the body is frozen
        self.class_weights = self._balanced_weights() if settings.class_weights == "balanced" else None

    def _balanced_weights(self) -> Tensor:
        """Weight of each label; with several labels per text, the weight of its positive examples."""
        if self.target_type == "number":
            raise BadSetting("task.class_weights=balanced: the targets are numbers; set task.class_weights=none")
        targets, one_label = self.data.train.texts.targets, self.target_type == "label"
        counts = np.bincount(targets, minlength=self.n_outputs) if one_label else targets.sum(0)
        expected = len(targets) / self.n_outputs if one_label else len(targets) - counts
        return torch.from_numpy((expected / np.maximum(1, counts)).astype(np.float32))

    def loss(self, model: "ModelWithHead", batch: LabelBatch, start: int = 0) -> Loss:
        y, targets = self._train_outputs(model, batch), batch.targets.flatten(0, 1)
        plain, smoothing = label_loss(y, targets, self.target_type), self.settings.label_smoothing
        if self.class_weights is None and not smoothing:
            return Loss(plain)
        weight = None if self.class_weights is None else self.class_weights.to(y.device)
        return Loss(label_loss(y, targets, self.target_type, weight, smoothing), reported=plain.detach())

    def _train_outputs(self, model: "ModelWithHead", batch: LabelBatch) -> Tensor:
        """Outputs of a training batch; a frozen body runs once per text."""
        if not is_frozen(model):
            return batch_outputs(model, batch)
        if self.features is None:
            self.features = frozen_features(model, self.data.train.texts)
        return model.predict(self.features[batch.text_index.flatten()]).float()

    def evaluate(self, model: "ModelWithHead", split: str, *, quick: bool = False) -> Score:
        part: LabelledTexts = self.data.splits[split]
        texts = part.texts.select(evenly_spaced(len(part), QUICK_TEXTS)) if quick else part.texts
        y, targets, metric = predict(model, texts, cached=is_frozen(model)), texts.targets, self.primary_metric
        score = self.score(y, targets, parts=not quick)
        if not quick:
            half_width = bootstrap_half_width(lambda rows: self.metrics(y[rows], targets[rows])[metric], len(texts))
            score.protocol[f"{metric}_interval"] = half_width
        return score

    def baselines(self, split: str) -> dict[str, Metrics]:
        """The most frequent label (or the mean), and logistic (or linear) regression on a bag of words."""
        if not self.data.has_train:
            return {}
        texts: EncodedTexts = self.data.splits[split].texts
        prior = self.prior_outputs(self.data.train.texts.targets).expand(len(texts), -1)
        name = "mean of all" if self.target_type == "number" else "most frequent label"
        return {
            name: self.metrics(prior, texts.targets),
            "bag of words": self.metrics(self._regression(self._bag_of_words(texts)).float(), texts.targets),
        }

    def _bag_of_words(self, texts: EncodedTexts) -> BagOfWords:
        return bag_of_words(texts, self.processor.tokenizer.vocab)

    @cached_property
    def _regression(self) -> Callable[[Features], Tensor]:
        train: EncodedTexts = self.data.train.texts
        targets = torch.from_numpy(train.targets.astype(np.int64 if self.target_type == "label" else np.float64))
        features = self._bag_of_words(train)
        return fit_linear(features, self.n_outputs, lambda y: label_loss(y, targets, self.target_type))


def batch_outputs(model: "ModelWithHead", batch: LabelBatch) -> Tensor:  # N C
    """Outputs of each text of a batch; unused text slots of a packed batch have outputs, too."""
    h = model(batch.tokens, **batch.model_inputs())
    return model.predict(model.pool_texts(h, *batch.text_ids())).float()


@torch.no_grad()
def predict(model: "ModelWithHead", texts: EncodedTexts, *, cached: bool = False) -> Tensor:  # N C
    """Outputs of each text; `cached` takes the features of a frozen body from the cache."""
    device, rows = next(model.parameters()).device, cast(list[Tensor], [None] * len(texts))
    with evaluating(model):
        if cached:
            return model.predict(frozen_features(model, texts)[:-1]).float().cpu()
        for indices, batch in eval_batches(texts, EVAL_BATCH_TOKENS):
            y = batch_outputs(model, cast(LabelBatch, batch.to(device)))
            for n, row in zip(indices.tolist(), y.cpu(), strict=True):
                rows[n] = row
    return torch.stack(rows)
