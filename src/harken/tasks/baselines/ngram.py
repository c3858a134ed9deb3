"""Counting baselines: what a language model has to beat before its loss means anything.

`Unigram` knows how often each token occurs. `KneserNey` is the best that counting short contexts has to offer:
interpolated modified Kneser-Ney (Chen and Goodman 1998). For the context h of n-1 tokens, and h' = h without its first,

    p_n(w | h) = (c(h w) - D(c(h w))) / c(h) + gamma(h) p_n-1(w | h'),      p_0(w) = 1 / vocab

c counts occurrences at the highest order, and different tokens seen before (h w) below it; c(h) sums c(h w) over w, and
gamma(h) is the share that the discounts D took away. A context never seen hands everything on: gamma = 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer[Any]]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CHUNK = 1_000_000  # tokens looked up at once, so that a long stream needs no more memory than its answer
DISCOUNT = 0.75  # where counts of counts are too few to estimate one


class Unigram:
    """p(w) = (count(w) + 1) / (tokens + vocab): how often each token occurs, whatever stands before it."""

    def __init__(self, tokens: Tokens, vocab: int) -> None:
        self.vocab = vocab
        count = frequencies(tokens, vocab) + 1
        self._nll: Floats = 0.0 - np.log(count / count.sum())

    def nll(self, tokens: Tokens) -> Floats:
        """-ln p(w_t) of every token, in nats."""
        _check(tokens, self.vocab)
        out = np.empty(len(tokens), np.float64)
        for start in range(0, len(tokens), CHUNK):
            out[start : start + CHUNK] = self._nll[_words(tokens, start, start + CHUNK, self.vocab)]
        return out


class KneserNey:
    """p(w | up to order-1 tokens before it), interpolated over all shorter contexts down to the uniform 1 / vocab.

    The start of the stream counts as one more different token before the n-grams that stand there.
    """

    def __init__(self, tokens: Tokens, vocab: int, order: int = 5) -> None:
        if order < 1:
            raise ValueError(f"order={order} is not an n-gram order; it must be 1 or more")
        _check(tokens, vocab)
        self.vocab, self.order = vocab, order
        words = _words(tokens, 0, len(tokens), vocab)
        self._levels = _levels(words, vocab, order)

    def nll(self, tokens: Tokens) -> Floats:
        """-ln p(w_t | the tokens before it in this stream) of every token, in nats; the first have shorter contexts."""
        _check(tokens, self.vocab)
        out = np.empty(len(tokens), np.float64)
        for start in range(0, len(tokens), CHUNK):
            first = max(start - self.order + 1, 0)
            p = self._p(_words(tokens, first, start + CHUNK, self.vocab))[start - first :]
            out[start : start + CHUNK] = 0.0 - np.log(p)  # a certain token costs 0.0, not -0.0
        return out

    def _p(self, words: Ints) -> Floats:
        """p of every word given the words before it in this piece."""
        p = np.full(len(words), 1 / self.vocab)
        before = np.zeros(len(words), np.int64)
        for level in self._levels:
            gram = level.find(before * self.vocab + words)
            p = level.seen[gram] + level.gamma[before] * p
            before = np.concatenate([[-1], gram[:-1]])[: len(words)]
        return p


class _Level:
    """One order n: what each n-gram seen adds to p, and what each context of n-1 tokens hands on to the order below.

    An n-gram is named by its rank among the n-grams seen, sorted by key = name of its first n-1 tokens * vocab + last.
    The name -1 means never seen: each array ends with the answer for it.
    """

    def __init__(self, keys: Ints, counts: Ints, vocab: int, contexts: int) -> None:
        context = keys // vocab
        D = _discounts(counts)[np.minimum(counts, 3)]
        total = np.bincount(context, counts, contexts)
        taken = np.bincount(context, D, contexts)
        self._keys = np.append(keys, np.iinfo(np.int64).max)
        self.seen: Floats = np.append((counts - D) / total[context], 0.0)
        self.gamma: Floats = np.append(np.divide(taken, total, out=np.ones(contexts), where=total > 0), 1.0)

    def find(self, keys: Ints) -> Ints:
        """The names of n-grams, -1 where never seen; after a context named -1 the key is negative, so never found."""
        at = np.searchsorted(self._keys, keys)
        return np.where(self._keys[at] == keys, at, -1)


def _levels(words: Ints, vocab: int, order: int) -> list[_Level]:
    """The levels 1 to order. grams[j] names the n-gram that starts at j; the empty one also starts at the very end."""
    keys: list[Ints] = []
    counts: list[Ints] = []
    grams, sizes = np.zeros(len(words) + 1, np.int64), [1]
    for n in range(1, order + 1):
        spelled = grams[:-1] * vocab + words[n - 1 :]
        unique, first, longer, often = np.unique(spelled, return_index=True, return_inverse=True, return_counts=True)
        if counts:
            # each different n-gram is one different token before its last n-1; the stream's start is one more
            counts[-1] = np.bincount(np.concatenate([grams[:1], grams[first + 1]]))
        keys.append(unique)
        counts.append(often)
        sizes.append(len(unique))
        grams = longer
    return [_Level(k, c, vocab, contexts) for k, c, contexts in zip(keys, counts, sizes[:-1], strict=True)]


def _discounts(counts: Ints) -> Floats:
    """D(0) D(1) D(2) D(3 or more) from n_k, the number of n-grams counted k times.

    D(k) = k - (k+1) Y n_k+1 / n_k with Y = n1 / (n1 + 2 n2). Where an n it needs is 0, or the result is not positive,
    there is nothing to estimate from and the constant stands in; so 0 < D(k) < k, and no probability becomes 0.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    D = [0.0, DISCOUNT, DISCOUNT, DISCOUNT]
    if n[1] and n[2]:
        Y = n[1] / (n[1] + 2 * n[2])
        for k in (1, 2, 3):
            if n[k] and n[k + 1] and (estimate := k - (k + 1) * Y * n[k + 1] / n[k]) > 0:
                D[k] = estimate
    return np.array(D)


def frequencies(tokens: Tokens, vocab: int) -> Ints:
    """How often each token of the vocabulary occurs."""
    _check(tokens, vocab)
    count = np.zeros(vocab, np.int64)
    for start in range(0, len(tokens), CHUNK):
        count += np.bincount(_words(tokens, start, start + CHUNK, vocab), minlength=vocab)
    return count


def _check(tokens: Tokens, vocab: int) -> None:
    """Refuse a vocabulary or a stream of a kind that cannot be counted."""
    if vocab < 1:
        raise ValueError(f"vocab={vocab} leaves nothing to predict; it must be 1 or more")
    if tokens.ndim != 1 or (len(tokens) and not np.issubdtype(tokens.dtype, np.integer)):
        raise ValueError(f"tokens are {tokens.dtype} of shape {tokens.shape}; give one row of integers")


def _words(tokens: Tokens, start: int, stop: int, vocab: int) -> Ints:
    """One piece of the stream as int64, so that keys do not overflow, with every token inside the vocabulary."""
    words = np.asarray(tokens[start:stop], dtype=np.int64)
    if len(words) and (words.min() < 0 or words.max() >= vocab):
        wrong = words[(words < 0) | (words >= vocab)][0]
        raise ValueError(f"token {wrong} is outside the vocabulary of {vocab}; give the vocab of the tokenizer")
    return words
