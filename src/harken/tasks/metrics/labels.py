"""Scores of single labels, and the thresholds of several labels; `weighted` has the metrics of a split."""

import numpy as np

from harken.data.batch import Array


def one_hot(labels: Array, n_labels: int) -> Array:  # N -> N C
    return labels[:, None] == np.arange(n_labels)


def precision_recall_f1(targets: Array, predictions: Array) -> tuple[Array, Array, Array]:  # N C -> C, C, C
    """Precision, recall and F1 of each label; 0 where the denominator is 0."""
    targets, predictions = targets.astype(bool), predictions.astype(bool)
    correct, predicted, actual = (targets & predictions).sum(0), predictions.sum(0), targets.sum(0)
    f1 = 2 * correct / np.maximum(1, predicted + actual)
    return correct / np.maximum(1, predicted), correct / np.maximum(1, actual), f1


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
