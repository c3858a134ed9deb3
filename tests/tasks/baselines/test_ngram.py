"""The count-based baselines against a second implementation in plain Python, directly from the definition."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from harken.tasks.baselines import ngram
from harken.tasks.baselines.ngram import KneserNey, Unigram


class Reference:
    """Interpolated modified Kneser-Ney as defined by Chen and Goodman, one probability at a time."""

    def __init__(self, stream, vocab, order):
        self.vocab, self.order = vocab, order
        self.followers = defaultdict(dict)  # context -> {word: count}; the length of the context is the order
        self.D = {}
        for n in range(1, order + 1):
            counts = self.counts(stream, n)
            for gram, count in counts.items():
                self.followers[gram[:-1]][gram[-1]] = count
            self.D[n] = self.discounts(Counter(counts.values()))

    def counts(self, stream, n):
        positions = range(len(stream) - n + 1)
        if n == self.order:
            return Counter(tuple(stream[i : i + n]) for i in positions)
        preceding = defaultdict(set)
        for i in positions:
            preceding[tuple(stream[i : i + n])].add(stream[i - 1] if i else "start")
        return {gram: len(distinct) for gram, distinct in preceding.items()}

    @staticmethod
    def discounts(n):
        """The three formulas of Chen and Goodman; 0.75 where one is undefined or not positive."""
        if n[1] == 0 or n[2] == 0:
            return (0.75, 0.75, 0.75)
        Y = n[1] / (n[1] + 2 * n[2])
        D1 = 1 - 2 * Y * n[2] / n[1]
        D2 = 2 - 3 * Y * n[3] / n[2] if n[3] else 0
        D3 = 3 - 4 * Y * n[4] / n[3] if n[3] and n[4] else 0
        return tuple(D if D > 0 else 0.75 for D in (D1, D2, D3))

    def p(self, word, context):
        if len(context) >= self.order:
            raise ValueError("the context is too long")
        lower = self.p(word, context[1:]) if context else 1 / self.vocab
        seen = self.followers.get(context)
        if not seen:
            return lower
        D1, D2, D3 = self.D[len(context) + 1]
        total, c = sum(seen.values()), seen.get(word, 0)
        ones = sum(count == 1 for count in seen.values())
        twos = sum(count == 2 for count in seen.values())
        more = sum(count >= 3 for count in seen.values())
        D = 0 if c == 0 else D1 if c == 1 else D2 if c == 2 else D3
        return (c - D) / total + (D1 * ones + D2 * twos + D3 * more) / total * lower

    def nll(self, stream):
        return [-math.log(self.p(w, tuple(stream[max(t - self.order + 1, 0) : t]))) for t, w in enumerate(stream)]


def zipf(seed, length, vocab):
    """A stream with rare and frequent tokens; half of them are determined by the preceding token."""
    rng = np.random.default_rng(seed)
    stream = np.minimum(rng.geometric(0.25, length) - 1, vocab - 1)
    determined = rng.random(length) < 0.5
    for t in range(1, length):
        if determined[t]:
            stream[t] = (stream[t - 1] * 3 + 1) % vocab
    return stream


def distribution(model, context, vocab):
    """p of every token after the context."""
    return np.exp([-model.nll(np.array([*context, w]))[-1] for w in range(vocab)])


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("length", "vocab"), [(30, 3), (400, 7), (3000, 40)])
def test_kneser_ney_follows_the_definition(order, length, vocab):
    for seed in range(3):
        train, test = zipf(seed, length, vocab), zipf(seed + 100, 300, vocab)
        expected = Reference(train.tolist(), vocab, order).nll(test.tolist())
        np.testing.assert_allclose(KneserNey(train, vocab, order).nll(test), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("order", [1, 2, 5])
def test_streams_shorter_than_the_order_follow_the_definition(length, order):
    train, test = zipf(length, length, 3), zipf(9, 20, 3)
    expected = Reference(train.tolist(), 3, order).nll(test.tolist())
    np.testing.assert_allclose(KneserNey(train, 3, order).nll(test), expected, rtol=0, atol=1e-10)


def test_a_worked_example_of_three_tokens():
    # a b a: {start, b} precede a and {a} precedes b; so c(a) = 2, c(b) = 1, n1 = n2 = 1, D1 = Y = 1/3, D2 = 0.75
    gamma = (1 / 3 + 0.75) / 3
    a, b = (2 - 0.75) / 3 + gamma / 4, (1 - 1 / 3) / 3 + gamma / 4
    nll = KneserNey(np.array([0, 1, 0]), 4, 2).nll(np.array([0, 1, 1, 3]))
    p_b_after_a = 0.25 + 0.75 * b
    p_b_after_b = 0.75 * b
    p_unseen_after_b = 0.75 * gamma / 4
    np.testing.assert_allclose(np.exp(-nll), [a, p_b_after_a, p_b_after_b, p_unseen_after_b], rtol=1e-14)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_probabilities_sum_to_one_after_every_context(order):
    vocab = 11
    train = zipf(3, 500, vocab - 2)  # the last two tokens never occur
    model = KneserNey(train, vocab, order)
    seen = [train[i : i + n].tolist() for n in range(5) for i in range(0, 490, 70)]
    at_the_end = [train[-n:].tolist() for n in range(1, 5)]
    unseen = [[10], [10, 9], [0, 10, 0], [10, 0, 1, 4], [9, 9, 9, 9, 9]]
    for context in seen + at_the_end + unseen:
        p = distribution(model, context, vocab)
        assert p.min() > 0
        assert p.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    "train",
    [[], [0], [2, 2], [0, 1, 2], [1] * 50, [0, 1] * 40, [0, 0, 0, 1, 1, 1, 2, 2, 2] * 5, [0, 1, 2, 3] * 3],
    ids=["empty", "one", "two", "three", "repeated", "alternating", "triples", "cycle"],
)
def test_probabilities_of_degenerate_counts_sum_to_one(train):
    for order in (1, 2, 3, 5):
        model = KneserNey(np.array(train, dtype=np.int64), 4, order)
        for context in ([], [0], [0, 1, 2], [1, 1, 1, 1], [3, 3]):
            p = distribution(model, context, 4)
            assert p.min() > 0
            assert p.sum() == pytest.approx(1, abs=1e-12)


def test_the_loss_of_a_one_token_vocabulary_is_0():
    for length in (0, 1, 2, 50):
        tokens = np.zeros(length, np.int64)
        for model in (KneserNey(tokens, 1), Unigram(tokens, 1)):
            nll = model.nll(np.zeros(9, np.int64))
            np.testing.assert_allclose(nll, 0, atol=1e-12)
            assert not np.signbit(nll).any()


def test_an_empty_training_stream_gives_the_uniform_distribution():
    empty = np.array([], np.uint16)
    for model in (KneserNey(empty, 8), Unigram(empty, 8)):
        np.testing.assert_allclose(model.nll(np.arange(8)), math.log(8), rtol=1e-14)


@pytest.mark.parametrize("model", [Unigram, KneserNey])
def test_an_empty_text_has_an_empty_loss(model):
    nll = model(zipf(0, 50, 5), 5).nll(np.array([], np.int64))
    assert nll.shape == (0,)
    assert nll.dtype == np.float64


def test_discounts_are_between_0_and_the_count():
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 5, 20, 200):
        for p in (0.05, 0.3, 0.9):
            D = ngram._discounts(rng.geometric(p, size))
            assert D[0] == 0
            assert all(0 < D[k] < k for k in (1, 2, 3))


def test_a_negative_discount_is_replaced_by_the_default():
    counts = np.array([1] * 9 + [2] + [3] * 9 + [4])  # 2 - 3 * 9/11 * 9 < 0
    np.testing.assert_allclose(ngram._discounts(counts), [0, 9 / 11, 0.75, 3 - 4 * 9 / 11 / 9])


def test_without_ngrams_of_count_2_all_discounts_are_the_default():
    counts = np.array([1] * 9 + [3] * 9 + [4])
    np.testing.assert_array_equal(ngram._discounts(counts), [0, 0.75, 0.75, 0.75])


def test_unigram_uses_add_one_smoothing():
    nll = Unigram(np.array([0, 0, 2]), 4).nll(np.array([0, 1, 2, 3]))
    np.testing.assert_allclose(np.exp(-nll), np.array([3, 1, 2, 1]) / 7, rtol=1e-14)


def test_kneser_ney_beats_unigram_if_the_context_is_informative():
    train, test = zipf(1, 20_000, 20), zipf(2, 2_000, 20)
    assert KneserNey(train, 20).nll(test).mean() < Unigram(train, 20).nll(test).mean() - 0.3


def test_kneser_ney_does_not_beat_unigram_if_the_context_is_uninformative():
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 20, 20_000), rng.integers(0, 20, 5_000)
    assert KneserNey(train, 20).nll(test).mean() > Unigram(train, 20).nll(test).mean() - 0.01


def test_a_token_with_few_contexts_is_unlikely_in_a_new_context():
    # "San Francisco": token 1 is frequent, but only after 0; token 2 is rarer, but follows many tokens
    train = np.array([0, 1] * 60 + [token for preceding in range(3, 13) for token in (preceding, 2)] * 2)
    after_unseen = distribution(KneserNey(train, 14), [13], 14)
    assert Unigram(train, 14).nll(np.array([1]))[0] < Unigram(train, 14).nll(np.array([2]))[0]
    assert after_unseen[1] < after_unseen[2]


def test_a_repeated_fit_gives_identical_numbers():
    train, test = zipf(5, 2000, 30), zipf(6, 500, 30)
    for model in (KneserNey, Unigram):
        np.testing.assert_array_equal(model(train, 30).nll(test), model(train.copy(), 30).nll(test))


def test_a_token_changes_only_the_losses_of_its_context():
    model, test = KneserNey(zipf(5, 2000, 9), 9), zipf(6, 50, 9)
    changed = test.copy()
    changed[30] = (changed[30] + 1) % 9
    before, after = model.nll(test), model.nll(changed)
    np.testing.assert_array_equal(before[:30], after[:30])
    np.testing.assert_array_equal(before[35:], after[35:])
    assert before[30] != after[30]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_the_chunk_size_changes_no_bit(chunk, monkeypatch):
    train, test = zipf(7, 1000, 12), zipf(8, 100, 12)
    for model in (lambda: KneserNey(train, 12), lambda: KneserNey(train, 12, 1), lambda: Unigram(train, 12)):
        expected = model().nll(test)
        with monkeypatch.context() as patch:
            patch.setattr(ngram, "CHUNK", chunk)
            np.testing.assert_array_equal(model().nll(test), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.uint64])
def test_a_memory_mapped_stream_scores_like_one_in_memory(tmp_path, dtype):
    train, test = zipf(7, 1000, 200), zipf(8, 100, 200)
    train.astype(dtype).tofile(tmp_path / "train.bin")
    mapped = np.memmap(tmp_path / "train.bin", dtype=dtype, mode="r")
    for model in (KneserNey, Unigram):
        np.testing.assert_array_equal(model(mapped, 200).nll(test.astype(dtype)), model(train, 200).nll(test))


def test_keys_of_a_large_vocabulary_do_not_overflow():
    vocab = 60_000
    train = np.random.default_rng(0).integers(vocab - 50, vocab, 5000).astype(np.uint16)
    expected = Reference(train.tolist(), vocab, 5).nll(train[:200].tolist())
    np.testing.assert_allclose(KneserNey(train, vocab).nll(train[:200]), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", [Unigram, KneserNey])
def test_invalid_tokens_are_rejected_with_a_reason(model):
    tokens = np.array([0, 1, 2])
    with pytest.raises(ValueError, match="token 3: outside the vocabulary of 3"):
        model(np.array([0, 3]), 3)
    with pytest.raises(ValueError, match="token -1: outside the vocabulary of 3"):
        model(tokens, 3).nll(np.array([-1]))
    with pytest.raises(ValueError, match="vocab=0: must be ≥ 1"):
        model(tokens[:0], 0)
    with pytest.raises(ValueError, match=r"float64 array of shape \(2,\); give one row of integers"):
        model(np.array([0.0, 1.0]), 3)
    with pytest.raises(ValueError, match=r"shape \(1, 3\); give one row of integers"):
        model(tokens, 3).nll(tokens[None])


def test_an_order_below_one_is_rejected():
    with pytest.raises(ValueError, match="order=0: must be ≥ 1"):
        KneserNey(np.array([0]), 1, 0)
