"""Count-based language models: baselines for the loss of a neural one.

`Unigram` uses the frequency of each token. `KneserNey` is interpolated modified Kneser-Ney smoothing (Chen and Goodman
1998). For a context h of n-1 tokens, and h' = h without its first token,

    p_n(w | h) = (c(h w) - D(c(h w))) / c(h) + gamma(h) p_n-1(w | h'),      p_0(w) = 1 / vocab

c counts occurrences at the highest order, and distinct preceding tokens of (h w) at lower orders; c(h) is the sum of
c(h w) over w, and gamma(h) is the probability mass that the discounts D free. For an unseen context gamma = 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.integer[Any]]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CHUNK = 1_000_000  # tokens processed at once: bounds the memory for a long stream
DEFAULT_DISCOUNT = 0.75  # if there are too few counts to estimate one


class Unigram:
    """p(w) = (count(w) + 1) / (tokens + vocab), independent of the context."""

    def __init__(self, tokens: TokenIds, vocab: int) -> None:
        self.vocab = vocab
        counts = frequencies(tokens, vocab) + 1
        self._nll: Floats = 0.0 - np.log(counts / counts.sum())

    def nll(self, tokens: TokenIds) -> Floats:
        """-ln p(w_t) of every token, in nats."""
        _check(tokens, self.vocab)
        out = np.empty(len(tokens), np.float64)
        for start in range(0, len(tokens), CHUNK):
            out[start : start + CHUNK] = self._nll[_as_int64(tokens, start, start + CHUNK, self.vocab)]
        return out


class KneserNey:
    """p(w | up to order-1 preceding tokens), interpolated over all shorter contexts down to the uniform 1 / vocab.

    The start of the stream counts as one more distinct token before the n-grams that occur there.
    """

    def __init__(self, tokens: TokenIds, vocab: int, order: int = 5) -> None:
        if order < 1:
            raise ValueError(f"order={order}: must be ≥ 1")
        _check(tokens, vocab)
        self.vocab, self.order = vocab, order
        self._levels = _levels(_as_int64(tokens, 0, len(tokens), vocab), vocab, order)

    def nll(self, tokens: TokenIds) -> Floats:
        """-ln p(w_t | preceding tokens of this stream) of every token, in nats."""
        _check(tokens, self.vocab)
        out = np.empty(len(tokens), np.float64)
        for start in range(0, len(tokens), CHUNK):
            first = max(start - self.order + 1, 0)
            p = self._probabilities(_as_int64(tokens, first, start + CHUNK, self.vocab))[start - first :]
            out[start : start + CHUNK] = 0.0 - np.log(p)  # p = 1 gives 0.0, not -0.0
        return out

    def _probabilities(self, tokens: Ints) -> Floats:
        """p of every token given the preceding tokens of this chunk."""
        p = np.full(len(tokens), 1 / self.vocab)
        context = np.zeros(len(tokens), np.int64)
        for level in self._levels:
            ngram = level.find(context * self.vocab + tokens)
            p = level.seen[ngram] + level.gamma[context] * p
            context = np.concatenate([[-1], ngram[:-1]])[: len(tokens)]
        return p


class _Level:
    """One order n: what each seen n-gram adds to p, and the weight gamma of the order below for each context.

    The id of an n-gram is its rank among the seen n-grams, sorted by key = id of its first n-1 tokens * vocab + last
    token. The id -1 means unseen: the last element of each array belongs to it.
    """

    def __init__(self, keys: Ints, counts: Ints, vocab: int, n_contexts: int) -> None:
        context = keys // vocab
        D = _discounts(counts)[np.minimum(counts, 3)]
        total = np.bincount(context, counts, n_contexts)
        freed = np.bincount(context, D, n_contexts)
        self._keys = np.append(keys, np.iinfo(np.int64).max)
        self.seen: Floats = np.append((counts - D) / total[context], 0.0)
        self.gamma: Floats = np.append(np.divide(freed, total, out=np.ones(n_contexts), where=total > 0), 1.0)

    def find(self, keys: Ints) -> Ints:
        """The ids of n-grams, -1 if unseen; after an unseen context the key is negative, so it is unseen, too."""
        rank = np.searchsorted(self._keys, keys)
        return np.where(self._keys[rank] == keys, rank, -1)


def _levels(tokens: Ints, vocab: int, order: int) -> list[_Level]:
    """The levels 1 to order. ngrams[j] is the id of the n-gram at position j; the empty one also starts at the end."""
    keys: list[Ints] = []
    counts: list[Ints] = []
    ngrams, sizes = np.zeros(len(tokens) + 1, np.int64), [1]
    for n in range(1, order + 1):
        key = ngrams[:-1] * vocab + tokens[n - 1 :]
        unique, first, longer, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        if counts:
            # each distinct n-gram is one distinct token before its last n-1 tokens; the start of the stream is one more
            counts[-1] = np.bincount(np.concatenate([ngrams[:1], ngrams[first + 1]]))
        keys.append(unique)
        counts.append(count)
        sizes.append(len(unique))
        ngrams = longer
    return [_Level(k, c, vocab, n_contexts) for k, c, n_contexts in zip(keys, counts, sizes[:-1], strict=True)]


def _discounts(counts: Ints) -> Floats:
    """D(0) D(1) D(2) D(3 or more) from n_k, the number of n-grams with count k.

    D(k) = k - (k+1) Y n_k+1 / n_k with Y = n1 / (n1 + 2 n2). If one of these n is 0, or D(k) is not positive, the
    default is used; so 0 < D(k) < k, and no probability is 0.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    D = [0.0, DEFAULT_DISCOUNT, DEFAULT_DISCOUNT, DEFAULT_DISCOUNT]
    if n[1] and n[2]:
        Y = n[1] / (n[1] + 2 * n[2])
        for k in (1, 2, 3):
            if n[k] and n[k + 1] and (estimate := k - (k + 1) * Y * n[k + 1] / n[k]) > 0:
                D[k] = estimate
    return np.array(D)


def frequencies(tokens: TokenIds, vocab: int) -> Ints:
    """Number of occurrences of each token of the vocabulary."""
    _check(tokens, vocab)
    counts = np.zeros(vocab, np.int64)
    for start in range(0, len(tokens), CHUNK):
        counts += np.bincount(_as_int64(tokens, start, start + CHUNK, vocab), minlength=vocab)
    return counts


def _check(tokens: TokenIds, vocab: int) -> None:
    if vocab < 1:
        raise ValueError(f"vocab={vocab}: must be ≥ 1")
    if tokens.ndim != 1 or (len(tokens) and not np.issubdtype(tokens.dtype, np.integer)):
        raise ValueError(f"tokens: {tokens.dtype} array of shape {tokens.shape}; give one row of integers")


def _as_int64(tokens: TokenIds, start: int, stop: int, vocab: int) -> Ints:
    """A slice of the stream as int64, so that keys do not overflow; every token must be in the vocabulary."""
    ids = np.asarray(tokens[start:stop], dtype=np.int64)
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
        invalid = ids[(ids < 0) | (ids >= vocab)][0]
        raise ValueError(f"token {invalid}: outside the vocabulary of {vocab}; give the vocab of the tokenizer")
    return ids
