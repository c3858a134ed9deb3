"""The facts of a report about labels: confusion matrix, calibration, accuracy by size, support, worst mistakes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harken.data.batch import Array
from harken.data.images.files import encode_png
from harken.tasks import BoundTask, LabelPredictions, Score
from harken.tasks.image import ImageTask
from harken.tasks.metrics.calibration import calibration_bins, expected_calibration_error
from harken.tasks.metrics.confusions import commonest
from harken.tasks.metrics.intervals import wilson_interval

MAX_MATRIX_LABELS = 20  # a larger matrix is unreadable
N_SIZES = 6  # groups of equal size by the length of the input
UNKNOWN = "(not a label of the training data)"


def label_report(task: BoundTask, split: str, score: Score, n_samples: int) -> dict[str, object]:
    """What a report shows of this evaluation; without samples (0) it has no row of the data."""
    counts = task.label_counts()
    facts: dict[str, object] = {"split": split, "support": _support(counts) if counts else {}}
    confusions = score.confusions
    if (predictions := score.predictions) is not None and len(predictions.targets):
        wrong = np.flatnonzero(~predictions.correct)
        names = [label_name(predictions, n) for n in predictions.targets[wrong]]
        predicted = [predictions.labels[n] for n in predictions.predicted[wrong]]
        confusions = commonest(zip(names, predicted, map(str, wrong), strict=True))
        confusions = [x._replace(example=task.input_text(split, int(x.example))) for x in confusions]
        bins = calibration_bins(predictions.probabilities.max(1), predictions.correct)
        facts |= {
            "matrix": _matrix(predictions),
            "calibration": {"bins": [x._asdict() for x in bins], "ece": expected_calibration_error(bins)},
            "mistakes": _confident_mistakes(task, split, predictions, wrong, n_samples),
        }
        if (sizes := task.input_sizes(split)) is not None:
            facts["sizes"] = {"unit": sizes[0], "groups": _accuracy_by_size(sizes[1], predictions.correct)}
    shown = [x._asdict() if n_samples else x._replace(example="")._asdict() for x in confusions]
    return facts | {"confusions": shown}


def label_name(predictions: LabelPredictions, target: int) -> str:
    """The label with this index."""
    return predictions.labels[target] if target >= 0 else UNKNOWN


def _support(counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The number of examples of each label in each split."""
    labels = dict.fromkeys(label for row in counts.values() for label in row)
    return {label: {split: row.get(label, 0) for split, row in counts.items()} for label in labels}


def _matrix(predictions: LabelPredictions) -> dict[str, object]:
    """Counts of true labels (rows) and predicted labels (columns); of many labels those with most mistakes."""
    known, n = predictions.targets >= 0, len(predictions.labels)
    counts = np.zeros((n, n), np.int64)
    np.add.at(counts, (predictions.targets[known], predictions.predicted[known]), 1)
    mistakes = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:MAX_MATRIX_LABELS])
    names = [predictions.labels[i] for i in shown]
    return {"labels": names, "counts": counts[np.ix_(shown, shown)].tolist(), "total": n}


def _accuracy_by_size(sizes: Array, correct: Array) -> list[dict[str, float]]:
    """Accuracy of groups of about equal size, from the smallest to the largest inputs; none if all are equal."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, N_SIZES + 1)[1:], method="inverted_cdf"))
    index = np.searchsorted(edges, sizes)
    groups = []
    for group in (index == n for n in range(len(edges))):
        if group.any() and len(edges) > 1:
            count, n_correct = int(group.sum()), int(correct[group].sum())
            low, high = wilson_interval(n_correct, count)
            ends = {"first": int(sizes[group].min()), "last": int(sizes[group].max())}
            groups.append({**ends, "count": count, "accuracy": n_correct / count, "low": low, "high": high})
    return groups


def _confident_mistakes(
    task: BoundTask, split: str, predictions: LabelPredictions, wrong: Array, n_samples: int
) -> list[dict[str, Any]]:
    """The wrong predictions with the highest probability."""
    confidence = predictions.probabilities.max(1)
    samples = []
    for n in wrong[np.argsort(-confidence[wrong], kind="stable")][:n_samples].tolist():
        target, row = int(predictions.targets[n]), predictions.probabilities[n]
        share = f" {100 * row[target]:.0f} %" if target >= 0 else ""
        sample: dict[str, Any] = {"prompt": task.input_text(split, n)}
        sample["text"] = f"{predictions.labels[int(row.argmax())]} {100 * row.max():.0f} %"
        sample["references"] = [label_name(predictions, target) + share]
        if isinstance(task, ImageTask):
            sample["image"] = encode_png(task.data.parts[split].pixels[n].permute(1, 2, 0).numpy())
        samples.append(sample)
    return samples
