"""Logistic and linear regression on sparse or dense features, e.g. a bag of words."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
    """The tokens of each segment of a text, and those that are in several of its segments."""
    tokens, n_segments = texts.tokens, max(2, texts.segment_starts.shape[1] + 1)
    n_features = (n_segments + 1) * vocab
    rows = np.repeat(np.arange(len(tokens)), tokens.lengths)
    position = np.arange(len(tokens.ids)) - tokens.starts[rows]
    segments = (position[:, None] >= texts.segment_starts[rows]).sum(1)
    cells = np.unique(rows * n_features + segments * vocab + tokens.ids)
    token, count = np.unique(cells // n_features * n_features + cells % vocab, return_counts=True)
    all_cells = np.sort(np.concatenate([cells, token[count > 1] + n_segments * vocab]))
    offsets = np.searchsorted(all_cells, np.arange(len(tokens) + 1) * n_features)
    return BagOfWords(torch.from_numpy(all_cells % n_features), torch.from_numpy(offsets), n_features)


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
