"""Sequence tagging: named entities, parts of speech. Loss in nats per word; strict F1 of entities."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import IGNORE, Array
from harken.data.labelled.batch import LabelBatch
from harken.data.labelled.examples import ExampleData
from harken.data.labelled.tags import ENTITY_TAG, TaggedSentences, extract_entities, to_bio2
from harken.models import ModelSettings
from harken.models.heads import ModelWithHead

from . import Baseline, Loss, Metrics, Score, TaskSettings
from .head_task import HeadTask, token_outputs
from .label_task import ClassWeights, balanced_weights
from .metrics import weighted
from .metrics.confusions import entity_confusions, tag_confusions

QUICK_SENTENCES = 500  # sentences of a quick evaluation
Tags = Sequence[Sequence[str]]  # of each sentence


class TagSettings(TaskSettings[ExampleData, ModelSettings]):
    """Settings of tagging."""

    kind: Literal["tag"] = "tag"
    class_weights: ClassWeights = "none"

    def bind(self, data: ExampleData, model: ModelSettings, *, batch: int, seed: int) -> "TagTask":
        return TagTask(self, data, model, batch=batch, seed=seed)


class TagTask(HeadTask[TagSettings]):
    """Tagging of one set of sentences."""

    explains_mistakes = True

    def __init__(
        self, settings: TagSettings, data: ExampleData, model: ModelSettings, *, batch: int, seed: int
    ) -> None:
        super().__init__(settings, data, model, batch=batch, seed=seed)
        targets, balanced = data.train.texts.targets, settings.class_weights == "balanced"
        self.class_weights = balanced_weights(targets, len(data.processor.labels)) if balanced else None

    def loss(self, model: ModelWithHead, batch: LabelBatch, start: int = 0) -> Loss:
        y = model.predict(model(batch.tokens, **batch.model_inputs()))
        plain = nll(y, batch.targets)
        if self.class_weights is None:
            return Loss(plain)
        return Loss(nll(y, batch.targets, self.class_weights.to(y.device)), reported=plain.detach())

    def evaluate(self, model: ModelWithHead, split: str, *, quick: bool = False) -> Score:
        part, labels = self.data.splits[split], self.data.processor.labels
        sentences: TaggedSentences = part.subset(QUICK_SENTENCES) if quick else part
        predictions, _, losses = predict_tags(model, sentences, labels)
        targets = [sentence.tags for sentence in sentences.sentences]
        primary = "f1" if _has_entities(labels) else "accuracy"
        n_words = list(map(len, targets))
        protocol = {"sentences": len(targets), "words": sum(n_words), "primary_metric": primary}
        metrics = tag_metrics(targets, predictions, labels) | {"loss": float(losses.sum()) / max(1, sum(n_words))}
        if quick:
            return Score(metrics, protocol, primary_metric=primary)
        explain = entity_confusions if _has_entities(labels) else tag_confusions
        confusions = explain(sentences.sentences, predictions)
        outcomes = tag_outcomes(targets, predictions, labels) | {"loss": weighted.ratio(losses, n_words)}
        parts = entity_f1_by_label(targets, predictions)
        return Score(metrics, protocol, parts, primary, confusions=confusions, outcomes=outcomes)

    def label_counts(self) -> dict[str, dict[str, int]]:
        """The entities of each label; the words of each tag if the tags mark no entities."""
        entities = _has_entities(self.data.processor.labels)
        counts = dict[str, dict[str, int]]()
        for name, part in (self.data.parts if self.data.has_train else self.data.splits).items():
            rows = [sentence.tags for sentence in part.sentences]
            names = (entity.label for _, entity in _all_entities(rows)) if entities else chain.from_iterable(rows)
            counts[name] = dict(Counter(names))
        return counts

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The most frequent tag of each word; of an unknown word that of all words."""
        if not self.data.has_train:
            return {}
        by_word, counts = dict[str, Counter[str]](), Counter[str]()
        for words, tags, _ in self.data.train.sentences:
            counts.update(tags)
            for word, tag in zip(words, tags, strict=True):
                by_word.setdefault(word, Counter())[tag] += 1
        best, default = {word: c.most_common(1)[0][0] for word, c in by_word.items()}, counts.most_common(1)[0][0]
        sentences = self.data.splits[split].sentences
        predictions = [to_bio2([best.get(word, default) for word in sentence.words]) for sentence in sentences]
        targets = [sentence.tags for sentence in sentences]
        rows = targets, predictions, self.data.processor.labels
        return {"most frequent tag of each word": Baseline(tag_metrics(*rows), tag_outcomes(*rows))}


def nll(y: Tensor, targets: Tensor, weight: Tensor | None = None) -> Tensor:  # B L C, B L, C
    """The summed -ln p of the tags."""
    return F.cross_entropy(y.flatten(0, 1).float(), targets.flatten(), weight, ignore_index=IGNORE, reduction="sum")


def predict_tags(
    model: ModelWithHead, part: TaggedSentences, labels: Sequence[str]
) -> tuple[list[list[str]], list[list[float]], Array]:
    """The most likely tags of each sentence with their probabilities and their summed loss."""
    logs, losses = list[Any]([None] * len(part.texts)), np.zeros(len(part.sentences))
    for n, batch, y in token_outputs(model, part.texts):
        losses[part.sentence_index[n]] += float(nll(y[None], batch.targets[batch.target_mask][None]))
        logs[n] = y.log_softmax(-1).numpy()
    pieces = [list[Any]() for _ in part.sentences]  # a long sentence has several texts
    for n, log, used in zip(part.sentence_index, logs, part.used_words, strict=True):
        pieces[n].append(log[used])
    transitions, tags, probabilities = transition_scores(labels), list[list[str]](), list[list[float]]()
    for piece in pieces:
        log_p = np.concatenate([np.empty((0, len(labels)), np.float32), *piece])  # words C
        path = viterbi(log_p, transitions)
        tags.append(to_bio2([labels[i] for i in path]))
        probabilities.append(np.exp(log_p[np.arange(len(log_p)), path]).tolist())
    return tags, probabilities, losses


def transition_scores(labels: Sequence[str]) -> Array:  # C C
    """0 if the second tag may follow the first, else -inf: I-X follows only B-X and I-X."""
    inside = [tag[2:] if tag.startswith("I-") else None for tag in labels]
    return np.array([[0.0 if i is None or tag[1:] == f"-{i}" else -np.inf for i in inside] for tag in labels])


def viterbi(log_p: Array, transitions: Array) -> list[int]:  # words C, C C
    """The allowed tag sequence with the highest probability."""
    if not len(log_p):
        return []
    start = np.where((transitions == 0).all(0), 0.0, -np.inf)  # a tag that may follow every tag may start a sentence
    best, backpointers = start + log_p[0], list[Any]()
    for row in log_p[1:]:
        scores = best[:, None] + transitions
        backpointers.append(scores.argmax(0))
        best = scores.max(0) + row
    path = [int(best.argmax())]
    for pointers in reversed(backpointers):
        path.append(int(pointers[path[-1]]))
    return path[::-1]


def _has_entities(labels: Sequence[str]) -> bool:
    """Whether the tags mark entities."""
    return any(map(ENTITY_TAG.fullmatch, labels))


def tag_metrics(targets: Tags, predictions: Tags, labels: Sequence[str]) -> Metrics:
    """Accuracy of the tags; for entity tags also micro-averaged strict F1, precision and recall of the entities."""
    rows = zip(targets, predictions, strict=True)
    correct = sum(a == b for target, prediction in rows for a, b in zip(target, prediction, strict=True))
    accuracy = correct / max(1, sum(map(len, targets)))
    if not _has_entities(labels):
        return {"accuracy": accuracy}
    actual, predicted = Counter(_all_entities(targets)), Counter(_all_entities(predictions))
    matched = (actual & predicted).total()
    precision, recall = matched / max(1, predicted.total()), matched / max(1, actual.total())
    f1 = 2 * matched / max(1, actual.total() + predicted.total())
    return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}


def tag_outcomes(targets: Tags, predictions: Tags, labels: Sequence[str]) -> dict[str, weighted.WeightedMetric]:
    """The same metrics as functions of the weights of the sentences."""
    rows = list(zip(targets, predictions, strict=True))
    correct = [sum(a == b for a, b in zip(target, prediction, strict=True)) for target, prediction in rows]
    accuracy: dict[str, weighted.WeightedMetric] = {}
    accuracy["accuracy"] = weighted.ratio(correct, [len(target) for target in targets])
    if not _has_entities(labels):
        return accuracy
    entities = [(set(extract_entities(target)), set(extract_entities(prediction))) for target, prediction in rows]
    matched, predicted, actual = zip(*((len(a & b), len(b), len(a)) for a, b in entities), strict=True)
    f1 = weighted.micro_f1(matched, predicted, actual)
    return {
        "f1": f1,
        "precision": weighted.ratio(matched, predicted),
        "recall": weighted.ratio(matched, actual),
        **accuracy,
    }


def entity_f1_by_label(targets: Tags, predictions: Tags) -> dict[str, Metrics]:
    """F1 and number of the entities of each label."""
    actual, predicted = _all_entities(targets), _all_entities(predictions)
    matched = Counter(label for _, (label, *_) in {*actual} & {*predicted})
    n_actual, n_predicted = (Counter(label for _, (label, *_) in entities) for entities in (actual, predicted))
    f1 = {label: 2 * matched[label] / (n + n_predicted[label]) for label, n in sorted(n_actual.items())}
    return {label: {"f1": value, "entities": n_actual[label]} for label, value in f1.items()}


def _all_entities(sentences: Tags) -> list[tuple[int, Any]]:
    """All entities with the index of their sentence."""
    return [(n, entity) for n, tags in enumerate(sentences) for entity in extract_entities(tags)]
