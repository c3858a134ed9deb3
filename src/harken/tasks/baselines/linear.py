"""A bag of words with logistic regression: which tokens a text has, and a weight for each. No model is needed."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import Tokens
from harken.data.labelled.batch import Texts

STEPS = 40  # of L-BFGS: more take time and change little


class Features(Protocol):
    """Rows of numbers, one for each example; a regression only multiplies them."""

    @property
    def many(self) -> int: ...  # numbers in a row
    def __matmul__(self, W: Tensor) -> Tensor: ...


class Rows(NamedTuple):
    """Numbers as they are, sparse or not."""

    x: Tensor

    @property
    def many(self) -> int:
        return self.x.shape[1]

    def __matmul__(self, W: Tensor) -> Tensor:
        return self.x @ W


class Bags(NamedTuple):
    """Which words stand in each text: their numbers, text by text, and where each text begins."""

    words: Tensor
    starts: Tensor  # one more than texts
    many: int  # different words there may be

    def __matmul__(self, W: Tensor) -> Tensor:  # many C -> N C
        """For each text the sum of its words' rows."""
        return F.embedding_bag(self.words, W, self.starts, mode="sum", include_last_offset=True)


def bags(texts: Texts, vocab: int) -> Bags:
    """Which tokens stand in each text; of two texts, which stand in the first, in the second, and in both."""
    side = texts.side
    rows = np.repeat(np.arange(len(side)), side.lengths)
    place = np.arange(len(side.ids)) - side.starts[rows]
    second = place >= texts.second[rows]

    def cells(block: int, chosen: Tokens) -> Tokens:
        return np.unique(rows[chosen] * 3 * vocab + block * vocab + side.ids[chosen])

    first, other = cells(0, ~second), cells(1, second)
    both = np.intersect1d(first, other - vocab) + 2 * vocab
    every = np.sort(np.concatenate([first, other, both]))
    starts = np.searchsorted(every, np.arange(len(side) + 1) * 3 * vocab)
    return Bags(torch.from_numpy(every % (3 * vocab)), torch.from_numpy(starts), 3 * vocab)


def fit(X: Features, outputs: int, loss: Callable[[Tensor], Tensor]) -> Callable[[Features], Tensor]:
    """The weights that make loss(X W + b) + ||W||^2 / 2 least, as a function of other rows."""
    W = torch.zeros(X.many, outputs, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    rule = torch.optim.LBFGS([W, b], max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-7)

    def objective() -> Tensor:
        rule.zero_grad()
        total = loss(X @ W + b) + W.square().sum() / 2
        total.backward()
        return total

    with torch.inference_mode(False), torch.enable_grad():
        rule.step(objective)
    return lambda other: (other @ W + b).detach()
