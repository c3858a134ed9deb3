"""Metrics of labels (fractions from 0 to 1, or correlations) and of numbers."""

import numpy as np

from harken.data.batch import Array

from .weighted import TINY


def accuracy(targets: Array, predictions: Array) -> float:
    """Fraction of correct rows; with several labels per row all of them must be correct."""
    correct = targets == predictions
    return float(np.mean(correct if correct.ndim == 1 else correct.all(1)))


def one_hot(labels: Array, n_labels: int) -> Array:  # N -> N C
    return labels[:, None] == np.arange(n_labels)


def precision_recall_f1(targets: Array, predictions: Array) -> tuple[Array, Array, Array]:  # N C -> C, C, C
    """Precision, recall and F1 of each label; 0 where the denominator is 0."""
    targets, predictions = targets.astype(bool), predictions.astype(bool)
    correct, predicted, actual = (targets & predictions).sum(0), predictions.sum(0), targets.sum(0)
    f1 = 2 * correct / np.maximum(1, predicted + actual)
    return correct / np.maximum(1, predicted), correct / np.maximum(1, actual), f1


def micro_f1(targets: Array, predictions: Array) -> float:  # N C
    """F1 of all labels of all examples together."""
    targets, predictions = targets.astype(bool), predictions.astype(bool)
    return float(2 * (targets & predictions).sum() / max(1, predictions.sum() + targets.sum()))


def best_thresholds(targets: Array, p: Array, min_positives: int = 1) -> list[float]:  # N C
    """The threshold of each label with the highest F1; 0.5 if none is better, or if positives are few."""
    thresholds = []
    for actual, scores in zip(targets.T.astype(bool), p.T, strict=True):
        order = np.argsort(-scores, kind="stable")
        scores, correct = scores[order], np.cumsum(actual[order])
        f1 = 2 * correct / (np.arange(1, len(scores) + 1) + max(1, actual.sum()))  # of the k highest
        cuts = (scores + np.append(scores[1:], 0.0)) / 2
        is_cut = np.append(scores[1:] < scores[:-1], True)  # equal scores are on one side
        cuts, f1 = cuts[is_cut], f1[is_cut]
        n_above = int((scores > 0.5).sum())
        at_half = 2 * correct[n_above - 1] / (n_above + max(1, actual.sum())) if n_above else 0.0
        best = np.flatnonzero(f1 == f1.max()) if len(f1) else np.zeros(0, int)
        if actual.sum() < min_positives or not len(best) or f1[best[0]] <= at_half:
            thresholds.append(0.5)
        else:
            thresholds.append(float(min(cuts[best], key=lambda cut: abs(cut - 0.5))))
    return thresholds


def matthews(targets: Array, predictions: Array, n_labels: int) -> float:
    """Matthews correlation coefficient for any number of labels; 0 if one side is constant."""
    a, b = one_hot(targets, n_labels).astype(float), one_hot(predictions, n_labels).astype(float)
    ab, aa, bb = (((x - x.mean(0)) * (y - y.mean(0))).sum() for x, y in ((a, b), (a, a), (b, b)))
    return _without_rounding_error(ab / np.sqrt(aa * bb)) if aa * bb > 0 else 0.0


def _without_rounding_error(value: float) -> float:
    return 0.0 if abs(value) < TINY else float(value)


def auc(targets: Array, scores: Array) -> float:
    """Area under the ROC curve: probability that a positive row outranks a negative one; ties count half."""
    n_positive = int(targets.sum())
    pairs = n_positive * (len(targets) - n_positive)
    return float((ranks(scores)[targets].sum() - n_positive * (n_positive + 1) / 2) / pairs) if pairs else 0.5


# --- numbers ----------------------------------------------------------------------------------------------------------


def pearson(targets: Array, predictions: Array) -> float:
    """Pearson correlation; 0 if one side is constant."""
    a, b = targets - targets.mean(), predictions - predictions.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return _without_rounding_error((a * b).sum() / scale) if scale > 0 else 0.0


def spearman(targets: Array, predictions: Array) -> float:
    """Spearman rank correlation; ties have the mean of their ranks."""
    return pearson(ranks(targets), ranks(predictions))


def errors(targets: Array, predictions: Array) -> dict[str, float]:
    """Mean absolute error, and root mean squared error, in the unit of the targets."""
    difference = targets - predictions
    return {"mae": float(np.abs(difference).mean()), "rmse": float(np.sqrt((difference**2).mean()))}


def r2(mse: float, variance: float) -> float:
    """Coefficient of determination; negative if the mean of the targets is a better prediction."""
    return 1 - mse / variance if variance > 0 else 0.0


def ranks(values: Array) -> Array:
    """Ranks from 1; ties have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
