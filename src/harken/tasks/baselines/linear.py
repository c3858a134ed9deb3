"""Logistic and linear regression on sparse or dense features, e.g. a bag of words."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import Array
from harken.data.labelled.batch import EncodedTexts

MAX_ITERATIONS = 40  # of L-BFGS: more take time and change little


class Features(Protocol):
    """Feature rows X, N F: a dense or sparse tensor, or a bag of words. A regression needs the product X W only."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __matmul__(self, W: Tensor, /) -> Tensor: ...


class BagOfWords(NamedTuple):
    """Binary bag of words: the feature ids of all texts in sequence, and the offset of each text."""

    ids: Tensor
    offsets: Tensor  # number of texts + 1
    n_features: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.offsets) - 1, self.n_features

    def __matmul__(self, W: Tensor) -> Tensor:  # F C -> N C
        return F.embedding_bag(self.ids, W, self.offsets, mode="sum", include_last_offset=True)


def bag_of_words(texts: EncodedTexts, vocab: int) -> BagOfWords:
    """The tokens of each text; of a pair of texts: those of the first, of the second, and of both."""
    side = texts.tokens
    rows = np.repeat(np.arange(len(side)), side.lengths)
    position = np.arange(len(side.ids)) - side.starts[rows]
    in_second = position >= texts.second_start[rows]

    def cells(block: int, mask: Array) -> Array:
        return np.unique(rows[mask] * 3 * vocab + block * vocab + side.ids[mask])

    first, second = cells(0, ~in_second), cells(1, in_second)
    common = np.intersect1d(first, second - vocab) + 2 * vocab
    all_cells = np.sort(np.concatenate([first, second, common]))
    offsets = np.searchsorted(all_cells, np.arange(len(side) + 1) * 3 * vocab)
    return BagOfWords(torch.from_numpy(all_cells % (3 * vocab)), torch.from_numpy(offsets), 3 * vocab)


def fit_linear(X: Features, n_outputs: int, loss: Callable[[Tensor], Tensor]) -> Callable[[Features], Tensor]:
    """Minimize loss(X W + b) + ||W||^2 / 2 with L-BFGS; returns the prediction function."""
    W = torch.zeros(X.shape[1], n_outputs, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(n_outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([W, b], max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe", tolerance_change=1e-7)

    def objective() -> Tensor:
        optimizer.zero_grad()
        total = loss(X @ W + b) + W.square().sum() / 2
        total.backward()
        return total

    with torch.inference_mode(False), torch.enable_grad():
        optimizer.step(objective)
    return lambda features: (features @ W + b).detach()
