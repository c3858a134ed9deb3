"""Text classification and regression: a label, several labels or a number per text. Loss in nats or squared error."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.labelled.batch import EncodedTexts, LabelBatch, eval_batches, evenly_spaced
from harken.data.labelled.examples import ExampleData, LabelledTexts, marked_texts
from harken.models import ModelSettings
from harken.models.heads import ModelWithHead

from . import Loss, Score, TaskSettings, evaluating, in_order
from .baselines.linear import BagOfWords, bag_of_words
from .head_task import EVAL_BATCH_TOKENS, HeadTask, frozen_features
from .label_task import ClassWeights, LabelTask
from .metrics.weighted import TINY

QUICK_TEXTS = 1000  # texts of a quick evaluation
BASELINE_TEXTS = 100_000  # training texts of the bag of words


class ClassifySettings(TaskSettings[ExampleData, ModelSettings]):
    """Settings of text classification."""

    kind: Literal["classify"] = "classify"
    metric: Literal["auto", "loss", "accuracy", "f1", "f1_micro", "matthews", "pearson", "spearman"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy, of several labels f1, else pearson"
    )
    class_weights: ClassWeights = "none"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    eval_examples: int = Field(
        10_000, ge=0, description="maximum number of texts of a split to evaluate, evenly spaced over it; 0: all"
    )
    prompt: str | None = Field(
        None, description='prompt of few-shot transfer (transfer=4-shot), e.g. "Review: {text} Sentiment:"'
    )
    labels: dict[str, str] | None = Field(
        None, description='text of each label in a prompt, e.g. {0 = "negative", 1 = "positive"}'
    )

    def bind(self, data: ExampleData, model: ModelSettings, *, batch: int, seed: int) -> "ClassifyTask":
        limit = self.eval_examples
        large = {name: part for name, part in data.splits.items() if 0 < limit < len(part)}
        limited = {name: part.select(evenly_spaced(len(part), limit)) for name, part in large.items()}
        task = ClassifyTask(self, replace(data, splits=data.splits | limited), model, batch=batch, seed=seed)
        task.split_sizes |= {name: len(part) for name, part in large.items()}
        return task


class ClassifyTask(HeadTask[ClassifySettings], LabelTask[ClassifySettings, LabelledTexts, ModelWithHead, LabelBatch]):
    """Classification of one set of texts."""

    regression_name = "bag of words"

    def __init__(
        self, settings: ClassifySettings, data: ExampleData, model: ModelSettings, *, batch: int, seed: int
    ) -> None:
        self.split_sizes = {name: len(part) for name, part in data.splits.items()}  # with texts that are not evaluated
        super().__init__(settings, data, model, batch=batch, seed=seed)
        self.processor = data.processor
        self.set_targets(self.processor.labels, self.processor.target_type, settings.metric)
        self.frozen: Tensor | None = None  # features of all training texts, if the body is frozen
        self.set_class_weights(settings.class_weights)

    def loss(self, model: ModelWithHead, batch: LabelBatch, start: int = 0) -> Loss:
        if model.frozen:  # the body runs once per text
            if self.frozen is None:
                self.frozen = frozen_features(model, self.data.train.texts)
            y = model.predict(self.frozen[batch.text_index.flatten()]).float()
        else:
            y = batch_outputs(model, batch)
        return self.smoothed_loss(y, batch.targets.flatten(0, 1), self.settings.label_smoothing)

    def evaluate(self, model: ModelWithHead, split: str, *, quick: bool = False) -> Score:
        part: LabelledTexts = self.data.splits[split]
        if part.windows is not None and not quick:
            score = self.score(self._window_outputs(model, part), part.texts.targets, groups=self.groups_of(part))
            return replace(score, protocol=score.protocol | {"windows": len(part.windows), **self._limits(split)})
        texts = part.texts.select(evenly_spaced(len(part), QUICK_TEXTS)) if quick else part.texts
        groups = () if quick else self.groups_of(part)
        score = self.score(predict(model, texts, cached=model.frozen), texts.targets, parts=not quick, groups=groups)
        return replace(score, protocol=score.protocol | self._limits(split))

    def _limits(self, split: str) -> dict[str, int]:
        """For the protocol: the size of the split, and the texts of the baseline, where not all of them are used."""
        train, sizes = len(self.data.train) if self.data.has_train else 0, {}
        if len(self.data.splits[split]) < self.split_sizes[split]:
            sizes["texts_of_the_split"] = self.split_sizes[split]
        return sizes | ({"baseline_texts": BASELINE_TEXTS} if train > BASELINE_TEXTS else {})

    def read_windows(self, split: str) -> None:
        """Evaluate the mean over the overlapping windows of each text of a split; baselines read whole texts."""
        data: Any = self.data
        self.data = data.with_windows(split)

    def _window_outputs(self, model: ModelWithHead, part: LabelledTexts) -> Tensor:  # N C
        """Outputs whose probabilities, or values, are the mean over the windows of each text."""
        assert part.windows is not None
        assert part.text_index is not None
        y = predict(model, part.windows).double()
        if self.target_type == "number":
            return average_windows(y, part.text_index).float()
        p = y.softmax(-1) if self.target_type == "label" else y.sigmoid()
        p = average_windows(p, part.text_index).clamp(TINY, 1 - TINY)
        return p.log() if self.target_type == "label" else p.logit()

    def choose_thresholds(self, model: ModelWithHead) -> dict[str, float]:
        if self.target_type != "multilabel" or "valid" not in self.splits:
            return {}
        texts = self.data.splits["valid"].texts
        y = predict(model, texts, cached=model.frozen)
        self.thresholds = self.best_thresholds(y, texts.targets)
        return dict(zip(self.labels, self.thresholds.tolist(), strict=True))

    def _targets_of(self, part: LabelledTexts) -> np.ndarray:
        return part.texts.targets

    def groups_of(self, part: LabelledTexts) -> list[str]:
        return [row.group for row in part.rows]

    def input_text(self, split: str, n: int) -> str:
        return marked_texts(self.data.parts[split].rows[n].texts, self.data.settings.text)

    def input_sizes(self, split: str) -> tuple[str, np.ndarray] | None:
        return "tokens", self.data.parts[split].texts.lengths

    @property
    def _regression_part(self) -> LabelledTexts:
        train: LabelledTexts = self.data.train
        return train.select(evenly_spaced(len(train), BASELINE_TEXTS)) if len(train) > BASELINE_TEXTS else train

    def features(self, part: LabelledTexts) -> BagOfWords:
        """The tokens of each text."""
        return bag_of_words(part.texts, self.processor.tokenizer.vocab)


def batch_outputs(model: ModelWithHead, batch: LabelBatch) -> Tensor:  # N C
    """Outputs of each text of a batch; unused text slots of a packed batch have outputs, too."""
    h = model(batch.tokens, **batch.model_inputs())
    return model.predict(model.pool_texts(h, *batch.text_ids())).float()


def average_windows(values: Tensor, text_index: np.ndarray) -> Tensor:  # windows C -> texts C
    """The mean over the windows of each text."""
    index = torch.from_numpy(text_index)
    counts = index.bincount()
    return values.new_zeros(len(counts), values.shape[1]).index_add(0, index, values) / counts[:, None]


def predict(model: ModelWithHead, texts: EncodedTexts, *, cached: bool = False) -> Tensor:  # N C
    """Outputs of each text; `cached` takes the features of a frozen body from the cache."""
    device, batches = next(model.parameters()).device, eval_batches(texts, EVAL_BATCH_TOKENS)
    with evaluating(model):
        if cached:
            return model.predict(frozen_features(model, texts)[:-1]).float().cpu()
        return in_order((i, batch_outputs(model, b.to(device)).cpu()) for i, b in batches)
