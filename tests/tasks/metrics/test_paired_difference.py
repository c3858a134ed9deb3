"""Paired differences: sacrebleu's bootstrap test, SciPy's tests, and how often they claim a difference by chance."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import optimize, stats

from harken.tasks.metrics import generation, weighted
from harken.tasks.metrics.intervals import wilson_interval
from harken.tasks.metrics.paired_difference import (
    Difference,
    ShareDifference,
    compare_outcomes,
    newcombe_difference,
    welch_difference,
)

RNG = np.random.default_rng(0)
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "verdicts.py"


@pytest.fixture(scope="module")
def verdicts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdicts", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def difference(metric, first, second):
    return compare_outcomes({metric: first}, {"other": {metric: second}})["other"][metric]


# --- oracles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wins", "losses"), [(3, 0), (4, 0), (0, 4), (6, 1), (30, 15), (30, 16), (15, 30), (0, 0)])
def test_a_difference_of_accuracies_is_clear_if_mcnemars_score_test_is(wins, losses):
    a, b = (np.repeat(outcome, [wins, losses, 100]) for outcome in ([1, 0, 1], [0, 1, 1]))
    p = stats.chi2.sf((wins - losses) ** 2 / max(1, wins + losses), 1)
    d = difference("accuracy", weighted.mean(a), weighted.mean(b))
    assert d.value == pytest.approx((wins - losses) / (wins + losses + 100))
    assert (d.verdict != "unclear") == (p < 0.05)
    assert d.low < d.value < d.high


def brute_force_score(wins, losses, n, d):
    """The score of a difference with the constrained maximum likelihood estimate by numeric optimization."""

    def negative_log_likelihood(share):  # of losses
        p = np.array([share + d, share, 1 - 2 * share - d])
        return -stats.multinomial.logpmf([wins, losses, n - wins - losses], n, p / p.sum())

    bounds = max(0.0, -d) + 1e-12, (1 - d) / 2 - 1e-12
    share = optimize.minimize_scalar(negative_log_likelihood, bounds=bounds, options={"xatol": 1e-9}).x
    return (wins - losses - n * d) / np.sqrt(n * (2 * share + d * (1 - d)))


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("wins", "losses", "n"), [(1, 0, 31), (3, 1, 60), (0, 5, 40), (0, 0, 50), (9, 9, 20), (20, 0, 20)]
)
def test_the_interval_of_a_difference_of_shares_has_each_difference_that_the_score_test_accepts(wins, losses, n):
    d = ShareDifference.of(wins, losses, n)
    grid = np.linspace(-0.995, 0.995, 200)
    accepted = np.array([abs(brute_force_score(wins, losses, n, x)) < stats.norm.ppf(0.975) for x in grid])
    assert (accepted == ((d.low < grid) & (grid < d.high))).all()
    assert accepted.any()


@pytest.mark.parametrize(
    ("n", "won", "lost"), [(31, 0.10, 0.0), (200, 0.03, 0.0), (60, 0.05, 0.01), (100, 0.04, 0.01), (500, 0.05, 0.02)]
)
def test_intervals_of_differences_of_shares_cover_the_true_difference(n, won, lost):
    draws = np.random.default_rng(0).multinomial(n, [won, lost, 1 - won - lost], 10_000)
    counts, times = np.unique(draws[:, :2], axis=0, return_counts=True)
    ends = [ShareDifference.of(*row, n) for row in counts.tolist()]
    covered = [d.low <= won - lost <= d.high for d in ends]
    assert np.average(covered, weights=times) >= 0.93


def test_the_interval_of_a_difference_of_shares_is_wider_with_more_examples_that_differ():
    rows = [ShareDifference.of(k + 2, k, 100) for k in range(10)]
    widths = [d.high - d.low for d in rows]
    assert widths == sorted(widths)
    assert all(d.high > d.value + 0.01 for d in rows)


@pytest.mark.oracle
def test_a_difference_of_bleu_and_chrf_equals_that_of_sacrebleu(monkeypatch):
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    words = [f"w{n}" for n in range(30)]
    references = [" ".join(RNG.choice(words, size=10)) for _ in range(200)]
    texts = [
        [" ".join(w if RNG.random() < q else RNG.choice(words) for w in ref.split()) for ref in references]
        for q in (0.75, 0.8)
    ]
    systems = [("baseline", texts[0]), ("model", texts[1])]
    monkeypatch.setenv("SACREBLEU_SEED", "3")
    test = PairedTest(systems, {"BLEU": BLEU(), "chrF": CHRF()}, [references], "bs", n_samples=2000)
    _, scores = test()
    refs = [[ref] for ref in references]
    rows = [
        {"bleu": weighted.bleu(generation.bleu_rows(x, refs)), "chrf": weighted.chrf(generation.chrf_rows(x, refs))}
        for x in texts
    ]
    for name, ours in (("BLEU", "bleu"), ("chrF2", "chrf")):
        baseline, model = scores[name]
        d = difference(ours, rows[1][ours], rows[0][ours])
        assert d.value == pytest.approx(model.score - baseline.score, abs=1e-6)
        assert (d.verdict == "better") == (model.p_value < 0.05)
        assert d.verdict == "better"


def test_a_difference_of_losses_equals_the_paired_t_interval_and_is_narrower_than_an_unpaired_one():
    hard, n = RNG.gamma(2.0, size=300), 300
    a, b = hard + 0.1 * RNG.normal(size=n), hard + 0.1 * RNG.normal(size=n) + 0.03
    expected = stats.ttest_rel(b, a).confidence_interval()
    d = difference("loss", weighted.mean(a), weighted.mean(b))
    assert (d.low, d.high) == pytest.approx((expected.low, expected.high), abs=0.1 * (expected.high - expected.low))
    assert d.verdict == "better"
    other = difference("loss", weighted.mean(a), weighted.mean(b[:-1]))  # not the same examples
    assert other.high - other.low > 5 * (d.high - d.low)


def test_the_difference_over_the_seeds_is_welchs_test():
    first, second = [0.91, 0.93, 0.92], [0.85, 0.89, 0.80, 0.86]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    d = welch_difference(first, second, sign=1)
    assert (d.low, d.high) == pytest.approx((expected.low, expected.high))
    halved = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.975)
    assert welch_difference(first, second, sign=-1, comparisons=2)[1:] == pytest.approx((-halved.high, -halved.low))


def test_seeds_without_variance_give_no_difference_unless_all_values_are_equal():
    assert welch_difference([0.5, 0.5], [0.4, 0.4], sign=1) is None
    assert welch_difference([0.5, 0.5], [0.5, 0.5], sign=1) == (0.0, 0.0, 0.0)
    assert welch_difference([0.5, 0.5], [0.4, 0.41], sign=1) is not None


def test_the_difference_of_two_shares_has_the_interval_that_newcombe_published():
    ends = [wilson_interval(56, 70), wilson_interval(48, 80)]
    assert newcombe_difference(56 / 70, 48 / 80, ends, sign=1) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    assert newcombe_difference(56 / 70, 48 / 80, ends, sign=-1) == pytest.approx((-0.2, -0.3339, -0.0524), abs=1e-4)


def test_welchs_test_sees_a_gap_of_three_standard_deviations_in_two_of_three_cases():
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(3, 1, 3).tolist(), rng.normal(0, 1, 3).tolist()) for _ in range(400)]
    assert np.mean([welch_difference(a, b, sign=1).verdict == "better" for a, b in pairs]) == pytest.approx(
        0.68, abs=0.06
    )


# --- statements -------------------------------------------------------------------------------------------------------


def test_a_faultless_model_on_three_examples_is_not_clearly_better():
    right, wrong = np.ones(3, int), np.zeros(3, int)
    rows = compare_outcomes(weighted.label_metrics(right, right, 2), {"b": weighted.label_metrics(right, wrong, 2)})
    assert {name: d.verdict for name, d in rows["b"].items() if name != "matthews"} == {
        "accuracy": "unclear",
        "f1": "unclear",
    }


def test_a_choice_among_candidates_and_opponents_widens_its_end_of_the_interval():
    d = Difference(1.0, 0.02, 1.98)
    assert d.adjusted() == pytest.approx(d)
    assert d.adjusted(better=4).low < 0 < d.adjusted(worse=4).low
    assert d.adjusted(worse=4).high > d.high == pytest.approx(d.adjusted(better=4).high)


def test_a_choice_widens_the_score_interval_to_its_confidence():
    d = ShareDifference.of(8, 1, 100).adjusted(better=2, worse=5)
    assert ShareDifference.of(8, 1, 100).verdict == "better"
    for end, k in ((d.low, 2), (d.high, 5)):
        assert abs(brute_force_score(8, 1, 100, end)) == pytest.approx(stats.norm.ppf(1 - 0.025 / k), abs=1e-4)


@pytest.mark.parametrize(("wins", "losses", "better"), [(3, 1, 1), (1, 3, 1), (25, 15, 3)])
def test_the_score_test_excludes_0_with_the_needed_number_of_examples(wins, losses, better):
    n, size = ShareDifference.of(wins, losses, 100).adjusted(better=better).needed(100, "accuracy")
    more = ShareDifference.of(round(wins * n / 100), round(losses * n / 100), n).adjusted(better=better)
    assert more.verdict == ("better" if wins > losses else "worse")
    assert size == abs(wins - losses) / 100
    assert ShareDifference.of(0, 0, 100).needed(100, "accuracy") == (390, 0.01)


def test_the_needed_number_of_examples_makes_the_interval_exclude_0():
    d = Difference(0.05, -0.05, 0.15)
    n, size = d.needed(100, "accuracy")
    assert (n, size) == (400, 0.05)
    assert Difference(-0.05, -0.15, 0.05).needed(100, "accuracy") == (400, 0.05)
    assert Difference(0.0, -0.1, 0.1).needed(100, "accuracy") == (10_000, 0.01)
    assert Difference(0.5, -1.0, 2.0).needed(1234, "bleu") == (2800, 1.0)


def test_the_needed_number_of_examples_is_one_at_which_a_difference_is_seen_in_half_of_the_cases():
    rng = np.random.default_rng(0)
    wins, losses = 25, 15
    a, b = (np.repeat(outcome, [wins, losses, 160]) for outcome in ([1, 0, 1], [0, 1, 1]))
    n, _ = difference("accuracy", weighted.mean(a), weighted.mean(b)).needed(200, "accuracy")
    words = []
    for _ in range(200):
        rows = rng.integers(200, size=n)
        words.append(difference("accuracy", weighted.mean(a[rows]), weighted.mean(b[rows])).verdict)
    assert 0.35 < words.count("better") / 200 < 0.65


# --- calibration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_few_verdicts_on_equal_systems_claim_a_difference(verdicts, metric):
    words = [d.verdict for d in verdicts.simulate(metric, 60, 200)]
    assert words.count("better") <= 14  # 7 %; 2.5 % are expected, and 14 or fewer appear in 99.9 % of such tests
    assert words.count("worse") <= 14


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric", ["accuracy", "f1", "matthews", "pearson", "spearman", "loss", "exact_match", "bleu", "chrf"]
)
def test_verdicts_are_calibrated(verdicts, metric):
    rates = verdicts.verdict_rates(metric, 200, pairs=2000, power_pairs=500)
    assert 0.01 <= rates.better <= 0.035
    assert 0.01 <= rates.worse <= 0.035
    assert rates.power >= 0.8


def test_verdicts_on_groups_with_noise_of_their_own_rarely_claim_a_difference():
    rng, words, without_groups = np.random.default_rng(0), [], []
    groups = weighted.index_groups([f"g{n // 10}" for n in range(300)])
    for _ in range(400):
        quality = 1 / (1 + np.exp(-1.5 * rng.normal(size=(2, 30))))  # of each system in each group
        a, b = (weighted.mean(row) for row in rng.random((2, 300)) < quality.repeat(10, 1))
        without_groups.append(difference("accuracy", a, b).verdict)
        first, second = (weighted.by_group({"accuracy": x}, groups)["accuracy"] for x in (a, b))
        words.append(difference("accuracy", first, second).verdict)
    assert 400 - words.count("unclear") <= 28
    assert 400 - without_groups.count("unclear") > 60


def test_few_groups_have_no_difference():
    right, wrong = weighted.mean(np.ones(300)), weighted.mean(np.zeros(300))
    for n_groups, names in ((7, set()), (8, {"accuracy"})):
        groups = np.arange(300) % n_groups
        rows = [weighted.by_group({"accuracy": x}, groups) for x in (right, wrong)]
        assert compare_outcomes(rows[0], {"b": rows[1]})["b"].keys() == names
