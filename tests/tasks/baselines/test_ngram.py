"""The counting baselines against a second implementation: dictionaries, plain Python, straight from the definition."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from harken.tasks.baselines import ngram
from harken.tasks.baselines.ngram import KneserNey, Unigram


class ByHand:
    """Interpolated modified Kneser-Ney as Chen and Goodman write it down, one probability at a time."""

    def __init__(self, stream, vocab, order):
        self.vocab, self.order = vocab, order
        self.followers = defaultdict(dict)  # context -> {word: count}; the length of the context says the order
        self.D = {}
        for n in range(1, order + 1):
            counts = self.counted(stream, n)
            for gram, count in counts.items():
                self.followers[gram[:-1]][gram[-1]] = count
            self.D[n] = self.discounts(Counter(counts.values()))

    def counted(self, stream, n):
        places = range(len(stream) - n + 1)
        if n == self.order:
            return Counter(tuple(stream[i : i + n]) for i in places)
        before = defaultdict(set)
        for i in places:
            before[tuple(stream[i : i + n])].add(stream[i - 1] if i else "start")
        return {gram: len(different) for gram, different in before.items()}

    @staticmethod
    def discounts(n):
        """Chen and Goodman's three formulas, each written out; 0.75 wherever one cannot be used."""
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
    """A stream with rare and frequent tokens, where the token before pulls half of the time."""
    draw = np.random.default_rng(seed)
    free = np.minimum(draw.geometric(0.25, length) - 1, vocab - 1)
    pulled = draw.random(length) < 0.5
    stream = free.copy()
    for t in range(1, length):
        if pulled[t]:
            stream[t] = (stream[t - 1] * 3 + 1) % vocab
    return stream


def distribution(model, context, vocab):
    """p of every word after the context."""
    return np.exp([-model.nll(np.array([*context, w]))[-1] for w in range(vocab)])


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("length", "vocab"), [(30, 3), (400, 7), (3000, 40)])
def test_kneser_ney_is_the_definition(order, length, vocab):
    for seed in range(3):
        train, test = zipf(seed, length, vocab), zipf(seed + 100, 300, vocab)
        want = ByHand(train.tolist(), vocab, order).nll(test.tolist())
        np.testing.assert_allclose(KneserNey(train, vocab, order).nll(test), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("order", [1, 2, 5])
def test_streams_shorter_than_the_order_follow_the_definition(length, order):
    train, test = zipf(length, length, 3), zipf(9, 20, 3)
    want = ByHand(train.tolist(), 3, order).nll(test.tolist())
    np.testing.assert_allclose(KneserNey(train, 3, order).nll(test), want, rtol=0, atol=1e-10)


def test_three_tokens_worked_out_on_paper():
    # a b a: before a stand {start, b}, before b stands {a}; so c(a) = 2, c(b) = 1, n1 = n2 = 1, D1 = Y = 1/3, D2 = 0.75
    handed_on = (1 / 3 + 0.75) / 3
    a, b = (2 - 0.75) / 3 + handed_on / 4, (1 - 1 / 3) / 3 + handed_on / 4
    nll = KneserNey(np.array([0, 1, 0]), 4, 2).nll(np.array([0, 1, 1, 3]))
    p_b_after_a = 0.25 + 0.75 * b
    p_b_after_b = 0.75 * b
    p_unseen_after_b = 0.75 * handed_on / 4
    np.testing.assert_allclose(np.exp(-nll), [a, p_b_after_a, p_b_after_b, p_unseen_after_b], rtol=1e-14)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_probabilities_sum_to_one_after_every_context(order):
    vocab = 11
    train = zipf(3, 500, vocab - 2)  # the last two words never occur
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
def test_degenerate_counts_still_sum_to_one(train):
    for order in (1, 2, 3, 5):
        model = KneserNey(np.array(train, dtype=np.int64), 4, order)
        for context in ([], [0], [0, 1, 2], [1, 1, 1, 1], [3, 3]):
            p = distribution(model, context, 4)
            assert p.min() > 0
            assert p.sum() == pytest.approx(1, abs=1e-12)


def test_a_vocabulary_of_one_token_is_certain():
    for length in (0, 1, 2, 50):
        tokens = np.zeros(length, np.int64)
        for model in (KneserNey(tokens, 1), Unigram(tokens, 1)):
            nll = model.nll(np.zeros(9, np.int64))
            np.testing.assert_allclose(nll, 0, atol=1e-12)
            assert not np.signbit(nll).any()


def test_an_empty_training_stream_gives_the_uniform_distribution():
    nothing = np.array([], np.uint16)
    for model in (KneserNey(nothing, 8), Unigram(nothing, 8)):
        np.testing.assert_allclose(model.nll(np.arange(8)), math.log(8), rtol=1e-14)


@pytest.mark.parametrize("model", [Unigram, KneserNey])
def test_an_empty_text_has_an_empty_answer(model):
    nll = model(zipf(0, 50, 5), 5).nll(np.array([], np.int64))
    assert nll.shape == (0,)
    assert nll.dtype == np.float64


def test_discounts_stay_between_nothing_and_the_count():
    draw = np.random.default_rng(0)
    for size in (0, 1, 2, 5, 20, 200):
        for p in (0.05, 0.3, 0.9):
            D = ngram._discounts(draw.geometric(p, size))
            assert D[0] == 0
            assert all(0 < D[k] < k for k in (1, 2, 3))


def test_a_discount_that_would_be_negative_becomes_the_constant():
    counts = np.array([1] * 9 + [2] + [3] * 9 + [4])  # 2 - 3 * 9/11 * 9 < 0
    np.testing.assert_allclose(ngram._discounts(counts), [0, 9 / 11, 0.75, 3 - 4 * 9 / 11 / 9])


def test_without_n_grams_counted_twice_no_discount_is_estimated():
    counts = np.array([1] * 9 + [3] * 9 + [4])
    np.testing.assert_array_equal(ngram._discounts(counts), [0, 0.75, 0.75, 0.75])


def test_unigram_is_add_one():
    nll = Unigram(np.array([0, 0, 2]), 4).nll(np.array([0, 1, 2, 3]))
    np.testing.assert_allclose(np.exp(-nll), np.array([3, 1, 2, 1]) / 7, rtol=1e-14)


def test_kneser_ney_beats_unigram_where_the_past_matters():
    train, test = zipf(1, 20_000, 20), zipf(2, 2_000, 20)
    assert KneserNey(train, 20).nll(test).mean() < Unigram(train, 20).nll(test).mean() - 0.3


def test_kneser_ney_gains_nothing_where_the_past_does_not_matter():
    draw = np.random.default_rng(0)
    train, test = draw.integers(0, 20, 20_000), draw.integers(0, 20, 5_000)
    assert KneserNey(train, 20).nll(test).mean() > Unigram(train, 20).nll(test).mean() - 0.01


def test_a_word_met_in_one_context_only_is_less_likely_in_a_new_one():
    # "San Francisco": word 1 is frequent but only after 0; word 2 is rarer but stands after many words
    train = np.array([0, 1] * 60 + [w for other in range(3, 13) for w in (other, 2)] * 2)
    after_the_unseen = distribution(KneserNey(train, 14), [13], 14)
    assert Unigram(train, 14).nll(np.array([1]))[0] < Unigram(train, 14).nll(np.array([2]))[0]
    assert after_the_unseen[1] < after_the_unseen[2]


def test_a_repeated_fit_gives_identical_numbers():
    train, test = zipf(5, 2000, 30), zipf(6, 500, 30)
    for model in (KneserNey, Unigram):
        np.testing.assert_array_equal(model(train, 30).nll(test), model(train.copy(), 30).nll(test))


def test_a_later_token_changes_nothing_before_it():
    model, test = KneserNey(zipf(5, 2000, 9), 9), zipf(6, 50, 9)
    changed = test.copy()
    changed[30] = (changed[30] + 1) % 9
    before, after = model.nll(test), model.nll(changed)
    np.testing.assert_array_equal(before[:30], after[:30])
    np.testing.assert_array_equal(before[35:], after[35:])
    assert before[30] != after[30]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_looking_up_in_pieces_changes_no_bit(chunk, monkeypatch):
    train, test = zipf(7, 1000, 12), zipf(8, 100, 12)
    for model in (lambda: KneserNey(train, 12), lambda: KneserNey(train, 12, 1), lambda: Unigram(train, 12)):
        whole = model().nll(test)
        with monkeypatch.context() as patch:
            patch.setattr(ngram, "CHUNK", chunk)
            np.testing.assert_array_equal(model().nll(test), whole)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.uint64])
def test_a_stream_on_disk_scores_like_one_in_memory(tmp_path, dtype):
    train, test = zipf(7, 1000, 200), zipf(8, 100, 200)
    train.astype(dtype).tofile(tmp_path / "train.bin")
    on_disk = np.memmap(tmp_path / "train.bin", dtype=dtype, mode="r")
    for model in (KneserNey, Unigram):
        np.testing.assert_array_equal(model(on_disk, 200).nll(test.astype(dtype)), model(train, 200).nll(test))


def test_keys_of_a_large_vocabulary_do_not_overflow():
    vocab = 60_000
    train = np.random.default_rng(0).integers(vocab - 50, vocab, 5000).astype(np.uint16)
    want = ByHand(train.tolist(), vocab, 5).nll(train[:200].tolist())
    np.testing.assert_allclose(KneserNey(train, vocab).nll(train[:200]), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", [Unigram, KneserNey])
def test_what_cannot_be_counted_is_refused_with_a_reason(model):
    good = np.array([0, 1, 2])
    with pytest.raises(ValueError, match="token 3 is outside the vocabulary of 3"):
        model(np.array([0, 3]), 3)
    with pytest.raises(ValueError, match="token -1 is outside the vocabulary of 3"):
        model(good, 3).nll(np.array([-1]))
    with pytest.raises(ValueError, match="vocab=0 leaves nothing to predict"):
        model(good[:0], 0)
    with pytest.raises(ValueError, match=r"float64 of shape \(2,\); give one row of integers"):
        model(np.array([0.0, 1.0]), 3)
    with pytest.raises(ValueError, match=r"shape \(1, 3\); give one row of integers"):
        model(good, 3).nll(good[None])


def test_an_order_below_one_is_refused():
    with pytest.raises(ValueError, match="order=0"):
        KneserNey(np.array([0]), 1, 0)
