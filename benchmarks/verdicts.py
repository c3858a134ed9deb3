"""How often a verdict is "better" or "worse" without a real difference, and "better" with one (ten minutes on a core).

    python benchmarks/verdicts.py                          the table of docs/results.md: 2,000 pairs per metric
    python benchmarks/verdicts.py --pairs 200 --metrics accuracy f1

Each pair is two systems that predict the same examples. Without a difference, the predictions of both are drawn from
the same distribution and exchanged at random for each example. With one, the quality of the first system is raised
until the mean difference is three standard errors. The verdicts are those of `harken.tasks.metrics.paired_difference`.
Without a difference each of both words should appear in 2.5 % of the pairs; with three standard errors, "better" in
85 % of them: P(Z > 1.96 - 3).
"""

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from harken.tasks.metrics import generation, weighted
from harken.tasks.metrics.paired_difference import Difference, compare_outcomes
from harken.tasks.metrics.weighted import Outcomes

SEED = 0
QUALITY, RAISED = 0.7, 0.8  # share of easy examples; the raised quality only scales to three standard errors
POOL = 4000  # sentences of which each pair draws some
VOCABULARY = [f"w{n}" for n in range(40)]
Floats = NDArray[np.float64]
Simulate = Callable[[Generator, int, float], tuple[Outcomes, Outcomes]]  # n examples, quality of the first system


class Rates(NamedTuple):
    """Shares of the pairs."""

    better: float
    worse: float
    power: float  # "better" with a difference of three standard errors


def label_pair(rng: Generator, n: int, quality: float) -> tuple[Outcomes, Outcomes]:
    """Two classifiers of three labels of different frequency."""
    targets = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    predictions = exchange(rng, quality, *(_predict_labels(rng, targets, q) for q in (quality, QUALITY)))
    return weighted.label_metrics(targets, predictions[0], 3), weighted.label_metrics(targets, predictions[1], 3)


def _predict_labels(rng: Generator, targets: Floats, quality: float) -> Floats:
    return np.where(rng.random(len(targets)) < quality, targets, rng.integers(3, size=len(targets)))


def number_pair(rng: Generator, n: int, quality: float) -> tuple[Outcomes, Outcomes]:
    """Two regressions of numbers with normal noise."""
    targets = rng.normal(size=n)
    y = exchange(rng, quality, *(targets + (1.5 - q) * rng.normal(size=n) for q in (quality, QUALITY)))
    rows = [weighted.number_metrics(targets, x) | weighted.squared_error_metrics(targets, x) for x in y]
    return rows[0], rows[1]


def loss_pair(rng: Generator, n: int, quality: float) -> tuple[Outcomes, Outcomes]:
    """Two language models: skewed losses of passages of different length, which are hard for both."""
    tokens, hard = rng.integers(20, 200, size=n), rng.gamma(2.0, size=n)
    losses = exchange(rng, quality, *(tokens * (hard + rng.gamma(2.0, size=n) - q) for q in (quality, QUALITY)))
    return {"loss": weighted.ratio(losses[0], tokens)}, {"loss": weighted.ratio(losses[1], tokens)}


def text_pair(rng: Generator, n: int, quality: float) -> tuple[Outcomes, Outcomes]:
    """Two translation models that replace some words of the references."""
    pools = _text_pool(quality), _text_pool(QUALITY, 1)
    rows = rng.integers(POOL, size=n)
    swap = (rng.random(n) < 0.5) & (quality == QUALITY)
    outcomes = []
    for first, second in (pools, pools[::-1]):
        exact, bleu, chrf = (np.where(swap if x.ndim == 1 else swap[:, None], y[rows], x[rows])
                             for x, y in zip(first, second, strict=True))  # fmt: skip
        outcomes.append({"exact_match": weighted.mean(exact), "bleu": weighted.bleu(bleu), "chrf": weighted.chrf(chrf)})
    return outcomes[0], outcomes[1]


_pools: dict[tuple[float, int], list[Floats]] = {}


def _text_pool(quality: float, system: int = 0) -> list[Floats]:
    """Exact match and n-gram counts of generated sentences: the same references and noise for every quality."""
    if (quality, system) not in _pools:
        rng, noise = np.random.default_rng(SEED), np.random.default_rng([SEED, 1 + system])
        references = [list(rng.choice(VOCABULARY, size=rng.integers(3, 12))) for _ in range(POOL)]
        texts = []
        for words in references:
            wrong = noise.random(len(words)) > 0.5 + quality / 2
            changed = np.where(wrong, noise.choice(VOCABULARY, size=len(words)), words)
            texts.append(" ".join(changed.tolist()))
        expected = [[" ".join(map(str, words))] for words in references]
        exact = np.array(generation.row_values("exact_match", texts, expected))
        _pools[quality, system] = [exact, generation.bleu_rows(texts, expected), generation.chrf_rows(texts, expected)]
    return _pools[quality, system]


def exchange(rng: Generator, quality: float, a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Both predictions, exchanged at random for each example if the systems are equally good."""
    swap = (rng.random(len(a)) < 0.5) & (quality == QUALITY)
    return np.where(swap, b, a), np.where(swap, a, b)


SIMULATIONS: dict[str, tuple[Simulate, str]] = {
    "accuracy": (label_pair, "3 labels"),
    "f1": (label_pair, "3 labels, mean"),
    "matthews": (label_pair, "3 labels"),
    "pearson": (number_pair, "normal noise"),
    "spearman": (number_pair, "normal noise"),
    "r2": (number_pair, "normal noise"),
    "loss": (loss_pair, "passages of 20 to 200 tokens"),
    "exact_match": (text_pair, "sentences of 3 to 11 words"),
    "bleu": (text_pair, "sentences of 3 to 11 words"),
    "chrf": (text_pair, "sentences of 3 to 11 words"),
}


def simulate(metric: str, n: int, pairs: int, quality: float = QUALITY) -> list[Difference]:
    """The difference of each pair of systems."""
    draw = SIMULATIONS[metric][0]
    differences = []
    for number in range(pairs):
        first, second = draw(np.random.default_rng([SEED, number]), n, quality)
        outcome = compare_outcomes({metric: first[metric]}, {"other": {metric: second[metric]}})
        differences.append(outcome["other"][metric])
    return differences


def three_errors(metric: str, n: int, pairs: int = 4000) -> float:
    """The quality of the first system whose mean difference is three standard errors."""
    draw, quality = SIMULATIONS[metric][0], RAISED
    weights = np.ones((1, n))
    sign = -1 if metric in weighted.LOWER_IS_BETTER else 1
    for _ in range(3):  # the standard error changes with the quality
        rows = [draw(np.random.default_rng([SEED, 1, number]), n, quality) for number in range(pairs)]
        values = [sign * float(a[metric](weights)[0] - b[metric](weights)[0]) for a, b in rows]
        quality = QUALITY + (quality - QUALITY) * 3 * float(np.std(values)) / float(np.mean(values))
        quality = round(quality, 4)
    return quality


def verdict_rates(metric: str, n: int, pairs: int, power_pairs: int) -> Rates:
    """How often each word appears."""
    words = [difference.verdict for difference in simulate(metric, n, pairs)]
    quality = three_errors(metric, n) if power_pairs else QUALITY
    better = [difference.verdict == "better" for difference in simulate(metric, n, power_pairs, quality)]
    return Rates(words.count("better") / pairs, words.count("worse") / pairs, sum(better) / max(1, power_pairs))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--power-pairs", type=int, default=500)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--metrics", nargs="+", choices=SIMULATIONS, default=list(SIMULATIONS))
    options = parser.parse_args(arguments)
    print("| metric | systems | better | worse | better at 3 standard errors |\n|---|---|---|---|---|")
    for metric in options.metrics:
        rates = verdict_rates(metric, options.examples, options.pairs, options.power_pairs)
        cells = " | ".join(f"{100 * rate:.1f} %" for rate in rates)
        print(f"| {metric.replace('_', ' ')} | {SIMULATIONS[metric][1]} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
