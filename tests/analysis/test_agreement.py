"""Agreement of clusters and labels, next to scikit-learn and to a count by hand."""

from collections import Counter

import numpy as np
import pytest

from harken.analysis.agreement import adjusted_rand_index, normalized_mutual_information, purity


@pytest.mark.parametrize("seed", range(5))
def test_the_agreement_equals_that_of_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    labels, noise = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    clusters = np.where(rng.random(60) < 0.7, labels, noise)
    names = [f"label {n}" for n in labels]
    expected = metrics.normalized_mutual_info_score(labels, clusters)
    assert normalized_mutual_information(clusters, names) == pytest.approx(expected, abs=1e-12)
    assert adjusted_rand_index(clusters, names) == pytest.approx(metrics.adjusted_rand_score(labels, clusters))
    hits = sum(Counter(labels[clusters == k]).most_common(1)[0][1] for k in {*clusters.tolist()})
    assert purity(clusters, names) == pytest.approx(hits / 60)


def test_equal_partitions_agree_completely_and_one_cluster_says_nothing():
    labels = ["a", "a", "b", "b"]
    assert normalized_mutual_information([1, 1, 0, 0], labels) == pytest.approx(1)
    assert purity([1, 1, 0, 0], labels) == 1
    assert normalized_mutual_information([0, 0, 0, 0], labels) == pytest.approx(0)
    assert purity([0, 0, 0, 0], labels) == 0.5
    assert normalized_mutual_information([0, 0], ["a", "a"]) == 1
