"""Unknown words in training: words that targets copy, and words of one source only, get temporary ids, as words outside
the vocabulary have.

Without them a model that copies would never see a temporary id where the vocabulary has all words of the training data.
Which words are drawn, and the order of the ids of a pair, differ in each epoch, so an id has no meaning of its own.
"""

import numpy as np

from harken.data.batch import Array
from harken.data.rng import RngStream, rng_for
from harken.data.tokenizers.pairs import RaggedTokens

MAX_FREQUENCY = 0.05  # of the targets; a more frequent word, such as a bracket, belongs to the vocabulary
Side = tuple[Array, Array]  # concatenated ids, and lengths


class UnknownWordDraws:
    """Draws the unknown words of a batch: a pure function of (seed, epoch, step)."""

    def __init__(self, source: RaggedTokens, target: RaggedTokens, n_temporary: int, rate: float, seed: int) -> None:
        self.first, self.n_temporary, self.rate, self.seed = source.edge - n_temporary, n_temporary, rate, seed
        self.width = source.edge + 1
        self.copied = self._copied_words(source, target)

    def _copied_words(self, source: RaggedTokens, target: RaggedTokens) -> Array:
        """Whether each id is a word that all targets that contain it copy from their source, or of one source only."""
        in_source, in_target = (np.unique(self._keys(side.ids, side.lengths)) for side in (source, target))
        sets = in_source, in_target, np.intersect1d(in_source, in_target, assume_unique=True)
        n_sources, n_targets, n_copies = (np.bincount(keys % self.width, minlength=self.width) for keys in sets)
        rare = n_targets <= max(1, MAX_FREQUENCY * len(target))
        copied: Array = (n_copies == n_targets) & rare & ((n_targets > 0) | (n_sources == 1))
        copied[self.first :] = False
        return copied

    def _keys(self, ids: Array, lengths: Array) -> Array:
        """The row and the id of each token as one number."""
        return np.repeat(np.arange(len(lengths)), lengths) * self.width + ids.astype(np.int64)

    def replace(self, source: Side, target: Side, epoch: int, step: int) -> list[Side]:
        """Both sides with temporary ids for the drawn words of each pair, and new numbers for all temporary ids."""
        rng, n_rows = rng_for(self.seed, RngStream.UNKNOWN_WORDS, epoch, step), len(source[1])
        keys = [self._keys(*side) for side in (source, target)]
        # of all copied words of a source: if only those of its target were drawn, their ids would reveal the target
        candidates = np.unique(keys[0][self.copied[keys[0] % self.width]])
        drawn = candidates[rng.random(len(candidates)) < self.rate]
        row, used = drawn // self.width, np.zeros(n_rows, np.int64)  # used: temporary ids that a row has already
        np.maximum.at(used, keys[0] // self.width, keys[0] % self.width - self.first + 1)
        number = used[row] + np.arange(len(row)) - np.searchsorted(row, row)
        drawn, row, number = (x[number < self.n_temporary] for x in (drawn, row, number))
        counts = used + np.bincount(row, minlength=n_rows)  # the words of a row get its first numbers in random order
        ranks = np.where(np.arange(self.n_temporary) < counts[:, None], 0, np.arange(1, self.n_temporary + 1))
        order = np.argsort(ranks + rng.random(ranks.shape), axis=1)

        def renumber(side: Array) -> Array:
            rows, ids = np.divmod(side, self.width)
            is_drawn = np.isin(side, drawn)
            numbers = np.maximum(ids - self.first, 0)
            numbers[is_drawn] = number[np.searchsorted(drawn, side[is_drawn])]
            return np.where(is_drawn | (ids >= self.first), self.first + order[rows, numbers], ids)

        return [(renumber(keys[0]), source[1]), (renumber(keys[1]), target[1])]
