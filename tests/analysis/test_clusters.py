"""k-means, the choice of k and principal components equal scikit-learn and the lecture's algorithm as a loop."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import adjusted_rand_score, silhouette_score

from harken.analysis import clusters, n_clusters
from harken.analysis.clusters import kmeans
from harken.analysis.principal_components import component_regression, pca
from harken.errors import BadInput


def make_points(n: int = 1500, d: int = 12, k: int = 9, seed: int = 0, std: float = 1.5) -> np.ndarray:
    """Points of k overlapping clusters."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(0, 2, (k, d))
    return (centers[rng.integers(k, size=n)] + std * rng.normal(size=(n, d)) + 7).astype(np.float32)


def random_starts(x: np.ndarray, k: int, restarts: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([x[rng.choice(len(x), k, replace=False)] for _ in range(restarts)])


def sklearn_kmeans(x: np.ndarray, start: np.ndarray) -> KMeans:
    return KMeans(len(start), init=start, n_init=1, algorithm="lloyd").fit(x)


@pytest.mark.parametrize("k", [1, 2, 9, 40])
def test_every_restart_equals_scikit_learn_from_the_same_centers(k):
    x = make_points()
    starts = random_starts(x, k, 5)
    for start in starts:
        ours, expected = kmeans(x, k, start=start), sklearn_kmeans(x, start)
        assert ours.inertia == pytest.approx(expected.inertia_, rel=1e-5)
        assert ours.n_iter == [expected.n_iter_]
        assert ours.centers == pytest.approx(expected.cluster_centers_, abs=1e-4)
        assert np.array_equal(ours.labels, expected.labels_)


def test_parallel_restarts_equal_single_restarts_and_the_smallest_inertia_is_returned():
    x = make_points()
    starts = random_starts(x, 9, 6)
    parallel, single = kmeans(x, 9, start=starts), [kmeans(x, 9, start=start) for start in starts]
    assert parallel.inertias == pytest.approx([restart.inertia for restart in single], rel=1e-6)
    assert parallel.n_iter == [restart.n_iter[0] for restart in single]
    best = min(single, key=lambda restart: restart.inertia)
    assert parallel.inertia == pytest.approx(best.inertia, rel=1e-6)
    assert np.array_equal(parallel.labels, best.labels)


def test_skipped_comparisons_do_not_change_the_clusters(monkeypatch):
    x = make_points()
    reference = kmeans(x, 9, start=random_starts(x, 9, 4))
    n_compared = []
    nearest = clusters._Lloyd._nearest
    monkeypatch.setattr(
        clusters._Lloyd,
        "_nearest",
        lambda self, restarts, labels, *rest: (
            n_compared.append(labels.numel()) or nearest(self, restarts, labels, *rest)
        ),
    )
    repeated = kmeans(x, 9, start=random_starts(x, 9, 4))
    n_bounded, n_compared[:] = sum(n_compared), []
    update = clusters._Lloyd._update
    monkeypatch.setattr(clusters._Lloyd, "_update", lambda self, active: _update_without_bounds(self, update, active))
    exhaustive = kmeans(x, 9, start=random_starts(x, 9, 4))
    assert n_bounded < 0.8 * sum(n_compared)
    assert reference.inertias == repeated.inertias == pytest.approx(exhaustive.inertias, rel=1e-7)
    assert np.array_equal(reference.labels, exhaustive.labels)


def _update_without_bounds(lloyd, update, active):
    """An update that discards the bounds, so that all points are compared."""
    shifts = update(lloyd, active)
    lloyd.gap[:] = -torch.inf
    return shifts


def test_the_block_size_and_gathering_do_not_change_the_clusters(monkeypatch):
    x = make_points()
    reference = kmeans(x, 9, start=random_starts(x, 9, 4))
    monkeypatch.setattr(clusters, "BLOCK", 100)
    monkeypatch.setattr(clusters, "GATHER_COST", 0)  # no restarts are computed together
    small_blocks = kmeans(x, 9, start=random_starts(x, 9, 4))
    assert small_blocks.inertias == pytest.approx(reference.inertias, rel=1e-6)
    assert np.array_equal(small_blocks.labels, reference.labels)


def test_a_random_start_equals_the_algorithm_of_the_lecture():
    x = make_points(300, 3, 4)
    ours = kmeans(x, 4, start="random", restarts=1, tolerance=0)
    rng = torch.Generator().manual_seed(0)
    start = torch.randint(4, (300,), generator=rng)
    start[torch.randperm(300, generator=rng)[:4]] = torch.arange(4)
    labels, previous = start.numpy(), None
    while not np.array_equal(labels, previous):  # Algorithm 12.2
        previous = labels
        means = np.stack([x[labels == i].mean(0) for i in range(4)])
        labels = ((x[:, None] - means) ** 2).sum(2).argmin(1)
    assert np.array_equal(ours.labels, labels)
    sum_of_variances = sum((labels == i).sum() * x[labels == i].var(0).sum() for i in range(4))
    assert ours.inertia == pytest.approx(sum_of_variances, rel=1e-5)


def test_an_empty_cluster_takes_the_farthest_point_as_in_scikit_learn():
    x = np.concatenate([make_points(200, 2, 3), np.array([[60.0, 60.0]])]).astype(np.float32)
    start = np.array([[7, 7], [8, 8], [-500, -500]], np.float32)  # no point is near the third
    ours, expected = kmeans(x, 3, start=start), sklearn_kmeans(x, start)
    assert np.array_equal(ours.labels, expected.labels_)
    assert ours.inertia == pytest.approx(expected.inertia_, rel=1e-5)
    assert ours.sizes.min() == 1  # the outlier


def test_more_clusters_than_distinct_points_leave_some_empty():
    x = np.repeat(np.eye(3, dtype=np.float32), 5, 0)
    ours = kmeans(x, 7, restarts=3)
    assert ours.inertia == pytest.approx(0, abs=1e-12)
    assert len({tuple(ours.labels[n : n + 5]) for n in (0, 5, 10)}) == 3
    assert np.isfinite(ours.centers).all()


def test_tight_clusters_far_from_zero_keep_their_inertia():
    x = (np.array([[1000.0], [1001.0]]) + np.random.default_rng(0).normal(0, 0.01, (2, 500))).reshape(-1, 1)
    ours = kmeans(x.astype(np.float32), 2, restarts=2)
    halves = x.astype(np.float32).astype(np.float64).reshape(2, 500)
    assert ours.inertia == pytest.approx(((halves - halves.mean(1, keepdims=True)) ** 2).sum(), rel=1e-3)


def test_k_means_plus_plus_starts_at_points_and_better_than_at_random():
    x = make_points(2000, 8, 20, std=0.3)
    rngs = [torch.Generator().manual_seed(n) for n in range(5)]
    points = clusters._Points(x)
    starts = clusters._kmeans_plus_plus(points, 20, rngs).numpy() + points.mean.numpy()
    distances = ((starts.reshape(-1, 1, 8) - x) ** 2).sum(2).min(1)
    assert distances == pytest.approx(np.zeros(100), abs=1e-6)
    plus_plus = [kmeans(x, 20, start=start, max_iter=1).inertia for start in starts]
    random = [kmeans(x, 20, start=start, max_iter=1).inertia for start in random_starts(x, 20, 5)]
    assert np.mean(plus_plus) < 0.7 * np.mean(random)


def test_the_clusters_depend_on_the_seed_alone():
    x = make_points(400, 4, 6)
    first, repeated, different = (kmeans(x, 6, restarts=3, seed=seed).inertias for seed in (0, 0, 5))
    assert first == repeated
    assert first != different


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 31}, "there are 30 points; k must be between 1 and 30"),
        ({"k": 0}, "k must be between 1 and 30"),
        ({"start": "kmeans"}, r"accepted are k-means\+\+, random"),
        ({"restarts": 0}, "at least 1"),
        ({"start": np.zeros((2, 3))}, "3 centers of 12"),
        ({"start": np.full((3, 12), np.nan)}, "finite"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        kmeans(make_points(30), **{"k": 3, **arguments})


# --- number of clusters -----------------------------------------------------------------------------------------------


def test_the_silhouette_equals_scikit_learn_even_for_a_singleton():
    x = make_points(500)
    labels = kmeans(x, 6, restarts=2).labels
    labels[7] = 11
    assert n_clusters.silhouette(x, labels) == pytest.approx(silhouette_score(x, labels), abs=1e-6)
    assert np.isnan(n_clusters.silhouette(x, np.zeros(500, np.int64)))


def test_the_adjusted_rand_index_equals_scikit_learn():
    rng = np.random.default_rng(0)
    a, b = rng.integers(5, size=200), rng.integers(3, size=200)
    mixed = np.where(rng.random(200) < 0.7, a, b)
    for x, y in ((a, b), (a, mixed), (a, (a + 2) % 5), (a * 0, b)):
        assert n_clusters.adjusted_rand_index(x, y) == pytest.approx(adjusted_rand_score(x, y), abs=1e-12)


def test_all_three_criteria_find_the_four_clusters():
    x = np.concatenate(
        [np.random.default_rng(n).normal(m, 0.5, (60, 2)) for n, m in enumerate(([0, 0], [6, 0], [0, 6], [6, 6]))]
    )
    clusterings, rows = n_clusters.evaluate_ks(x.astype(np.float32), range(2, 8), start="random", restarts=5, seed=0)
    assert [len(clustering.centers) for clustering in clusterings] == [2, 3, 4, 5, 6, 7]
    assert max(rows, key=lambda row: row["silhouette"])["k"] == 4
    assert max(rows, key=lambda row: row["stability"])["k"] == 4
    assert n_clusters.elbow([row["k"] for row in rows], [row["inertia"] for row in rows]) == 4


def test_noise_is_less_stable_than_clusters():
    noise = np.random.default_rng(0).normal(size=(600, 10)).astype(np.float32)
    assert n_clusters.stability(noise, 4) < 0.5 < n_clusters.stability(make_points(600, 10, 4, std=0.3), 4)


# --- principal components ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(300, 12), (9, 12), (5000, 3)])
def test_principal_components_equal_scikit_learn_up_to_sign(shape):
    x = make_points(*shape)
    ours, expected = pca(x), PCA().fit(x.astype(np.float64))
    rank = min(shape[0] - 1, shape[1])
    assert ours.explained_variance_ratio[:rank] == pytest.approx(expected.explained_variance_ratio_[:rank], rel=1e-6)
    assert ours.explained_variance[:rank] == pytest.approx(expected.explained_variance_[:rank], rel=1e-6)
    cosines = np.abs((ours.components[:rank] * expected.components_[:rank]).sum(1))
    assert cosines == pytest.approx(np.ones(rank), abs=1e-6)
    assert np.abs(ours.project(x, 2)) == pytest.approx(np.abs(expected.transform(x)[:, :2]), abs=1e-5)


def test_component_regression_equals_scikit_learn_for_every_number_of_components():
    x, rng = make_points(200), np.random.default_rng(0)
    y = x @ rng.normal(size=(12, 2)) + rng.normal(size=(200, 2))
    train, held_out = slice(0, 150), slice(150, None)
    predictions = []

    def metric(y_pred):
        predictions.append(y_pred)
        return -float(((y_pred - y[held_out]) ** 2).sum())

    fit = component_regression(x[train], y[train], x[held_out], metric)
    for m, y_pred in enumerate(predictions, 1):
        components = PCA(m).fit(x[train].astype(np.float64))
        linear = LinearRegression().fit(components.transform(x[train]), y[train])
        assert y_pred == pytest.approx(linear.predict(components.transform(x[held_out])), abs=1e-4)
    assert len(predictions) == 12
    assert fit.n_components == 1 + int(np.argmax(fit.scores))
    assert fit(x[held_out]) == pytest.approx(predictions[fit.n_components - 1], abs=1e-9)


def test_constant_columns_and_few_rows_do_not_break_the_regression():
    x = np.concatenate([make_points(8, 12), np.ones((8, 3), np.float32)], 1)
    y = np.arange(8.0)[:, None]
    fit = component_regression(x, y, x, lambda y_pred: -float(((y_pred - y) ** 2).sum()))
    assert len(fit.scores) == 7  # eight points differ in seven directions
    assert fit(x) == pytest.approx(y, abs=1e-4)
