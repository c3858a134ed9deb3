"""Ablation of a regression: which columns of the data it predicts as well or better without."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import Array
from harken.data.labelled.batch import evenly_spaced

from .linear import fit_linear

MAX_COLUMNS, MIN_ROWS, MAX_ROWS, N_FOLDS = 16, 10, 400, 5
CLEAR = 2.0  # standard errors between two losses that differ clearly


class Columns(NamedTuple):
    """The features (N F) of the training examples, and those that belong to each column of the data."""

    X: Tensor
    features: Mapping[str, Sequence[int]]
    setting: str  # that selects columns
    required: bool  # whether a model needs at least one column


def ablate(
    columns: Columns, n_outputs: int, losses: Callable[[Tensor, Array], Tensor]
) -> tuple[list[str], list[str], float, float, bool] | None:
    """The columns to leave out, those to keep, the cross-validated loss with and without, and whether it is clear.

    `losses(y, rows)` is the loss of each of these examples. A column is left out if the loss without it is at most one
    standard error larger. None if there is no such column.
    """
    rows = evenly_spaced(len(columns.X), MAX_ROWS)
    if not 0 < len(columns.features) <= MAX_COLUMNS or len(rows) < MIN_ROWS:
        return None
    fold = np.random.default_rng(0).permutation(len(rows)) % N_FOLDS

    def cross_validate(dropped: Sequence[str]) -> Array:
        removed = {n for name in dropped for n in columns.features[name]}
        X = columns.X[:, [n for n in range(columns.X.shape[1]) if n not in removed]]
        out = np.zeros(len(rows))
        for n in range(N_FOLDS):
            train, held_out = rows[fold != n], rows[fold == n]
            predict = fit_linear(X[train], n_outputs, lambda y, train=train: losses(y, train).sum())  # type: ignore[misc]
            out[fold == n] = losses(predict(X[held_out]), held_out).detach().numpy()
        return out

    everything = cross_validate([])
    outcomes: dict[tuple[str, ...], Array] = {(name,): cross_validate([name]) for name in columns.features}
    names = list(columns.features)
    dropped = tuple(name for name in names if _standard_errors(outcomes[name,] - everything) <= 1)
    if len(dropped) > 1:
        outcomes[dropped] = cross_validate(dropped)
        if _standard_errors(outcomes[dropped] - everything) > 1:  # one of them can replace another one
            dropped = min(((name,) for name in dropped), key=lambda names: float(outcomes[names].mean()))
    remaining = [name for name in names if name not in dropped]
    if not dropped or (columns.required and not remaining):
        return None
    without = outcomes[dropped]
    clear = _standard_errors(everything - without) > CLEAR
    return list(dropped), remaining, float(everything.mean()), float(without.mean()), clear


def _standard_errors(differences: Array) -> float:
    """The mean of paired differences in units of its standard error; 0 if they are all 0."""
    return float(differences.mean() / max(1e-12, differences.std(ddof=1) / np.sqrt(len(differences))))


def row_losses(target_type: str, targets: Array) -> Callable[[Tensor, Array], Tensor]:
    """The loss of each example with a label, or with a number."""
    dtype = np.int64 if target_type == "label" else np.float64
    values = torch.from_numpy(targets.astype(dtype))

    def losses(y: Tensor, rows: Array) -> Tensor:
        if target_type == "label":
            return torch.nn.functional.cross_entropy(y, values[rows], reduction="none")
        return (y - values[rows]).square().mean(1)

    return losses
