"""k-means, its choice of k and principal components, held against scikit-learn, and against the lecture's algorithm
written out as a loop."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import adjusted_rand_score, silhouette_score

from harken.analysis import clusters, n_clusters
from harken.analysis.clusters import kmeans
from harken.analysis.principal_components import components, regression
from harken.errors import BadInput


def blurred(n: int = 1500, d: int = 12, many: int = 9, seed: int = 0, wide: float = 1.5) -> np.ndarray:
    """Points around some middles, so wide that clusters touch."""
    draw = np.random.default_rng(seed)
    middles = draw.normal(0, 2, (many, d))
    return (middles[draw.integers(many, size=n)] + wide * draw.normal(size=(n, d)) + 7).astype(np.float32)


def starts(x: np.ndarray, k: int, restarts: int, seed: int = 1) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.stack([x[draw.choice(len(x), k, replace=False)] for _ in range(restarts)])


def theirs(x: np.ndarray, start: np.ndarray, **how) -> KMeans:
    return KMeans(len(start), init=start, n_init=1, algorithm="lloyd", **how).fit(x)


@pytest.mark.parametrize("k", [1, 2, 9, 40])
def test_every_restart_ends_as_in_scikit_learn_from_the_same_centres(k):
    x = blurred()
    begun = starts(x, k, 5)
    ours = [kmeans(x, k, start=one) for one in begun]
    for mine, other in zip(ours, (theirs(x, one) for one in begun), strict=True):
        assert mine.inertia == pytest.approx(other.inertia_, rel=1e-5)
        assert mine.steps == [other.n_iter_]
        assert mine.centres == pytest.approx(other.cluster_centers_, abs=1e-4)
        assert np.array_equal(mine.labels, other.labels_)


def test_restarts_side_by_side_are_restarts_alone_and_the_least_inertia_is_taken():
    x = blurred()
    begun = starts(x, 9, 6)
    together, alone = kmeans(x, 9, start=begun), [kmeans(x, 9, start=one) for one in begun]
    assert together.inertias == pytest.approx([one.inertia for one in alone], rel=1e-6)
    assert together.steps == [one.steps[0] for one in alone]
    best = min(alone, key=lambda one: one.inertia)
    assert together.inertia == pytest.approx(best.inertia, rel=1e-6)
    assert np.array_equal(together.labels, best.labels)


def test_points_that_are_not_asked_would_have_said_the_same(monkeypatch):
    x = blurred()
    few = kmeans(x, 9, start=starts(x, 9, 4))
    asked = []
    nearest = clusters._Lloyd._nearest
    monkeypatch.setattr(
        clusters._Lloyd,
        "_nearest",
        lambda self, which, own, *rest: asked.append(own.numel()) or nearest(self, which, own, *rest),
    )
    again = kmeans(x, 9, start=starts(x, 9, 4))
    bounded, asked[:] = sum(asked), []
    monkeypatch.setattr(
        clusters._Lloyd, "_update", lambda self, live, own=clusters._Lloyd._update: _forgotten(self, own, live)
    )
    every = kmeans(x, 9, start=starts(x, 9, 4))
    assert bounded < 0.8 * sum(asked)
    assert few.inertias == again.inertias == pytest.approx(every.inertias, rel=1e-7)
    assert np.array_equal(few.labels, every.labels)


def _forgotten(lloyd, update, live):
    """A step after which nothing is known of any point, so that all are asked."""
    shift = update(lloyd, live)
    lloyd.gap[:] = -torch.inf
    return shift


def test_blocks_and_fetched_points_change_nothing(monkeypatch):
    x = blurred()
    whole = kmeans(x, 9, start=starts(x, 9, 4))
    monkeypatch.setattr(clusters, "BLOCK", 100)
    monkeypatch.setattr(clusters, "GATHER", 0)  # then no restart is asked together with others
    small = kmeans(x, 9, start=starts(x, 9, 4))
    assert small.inertias == pytest.approx(whole.inertias, rel=1e-6)
    assert np.array_equal(small.labels, whole.labels)


def test_it_is_the_lectures_algorithm_from_a_random_assignment(monkeypatch):
    x = blurred(300, 3, 4)
    begun = []
    assigned = clusters._assigned
    monkeypatch.setattr(clusters, "_assigned", lambda points, *rest: begun.append(assigned(points, *rest)) or begun[-1])
    found = kmeans(x, 4, start="random", restarts=1, tolerance=0)
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (300,), generator=draw)
    labels[torch.randperm(300, generator=draw)[:4]] = torch.arange(4)
    numbers, before = labels.numpy(), None
    while not np.array_equal(numbers, before):  # Algorithm 12.2
        before = numbers
        means = np.stack([x[numbers == i].mean(0) for i in range(4)])
        numbers = ((x[:, None] - means) ** 2).sum(2).argmin(1)
    assert np.array_equal(found.labels, numbers)
    sum_of_variances = sum((numbers == i).sum() * x[numbers == i].var(0).sum() for i in range(4))
    assert found.inertia == pytest.approx(sum_of_variances, rel=1e-5)


def test_a_centre_without_points_takes_the_farthest_one_as_in_scikit_learn():
    x = np.concatenate([blurred(200, 2, 3), np.array([[60.0, 60.0]])]).astype(np.float32)
    begun = np.array([[7, 7], [8, 8], [-500, -500]], np.float32)  # nobody is near the third
    mine, other = kmeans(x, 3, start=begun), theirs(x, begun)
    assert np.array_equal(mine.labels, other.labels_)
    assert mine.inertia == pytest.approx(other.inertia_, rel=1e-5)
    assert mine.sizes.min() == 1  # the one that lies far away


def test_more_clusters_than_different_points_leave_some_empty_and_end():
    x = np.repeat(np.eye(3, dtype=np.float32), 5, 0)
    found = kmeans(x, 7, restarts=3)
    assert found.inertia == pytest.approx(0, abs=1e-12)
    assert len({tuple(found.labels[n : n + 5]) for n in (0, 5, 10)}) == 3
    assert np.isfinite(found.centres).all()


def test_tight_clusters_far_from_zero_keep_their_inertia():
    x = (np.array([[1000.0], [1001.0]]) + np.random.default_rng(0).normal(0, 0.01, (2, 500))).reshape(-1, 1)
    found = kmeans(x.astype(np.float32), 2, restarts=2)
    halves = x.astype(np.float32).astype(np.float64).reshape(2, 500)
    assert found.inertia == pytest.approx(((halves - halves.mean(1, keepdims=True)) ** 2).sum(), rel=1e-3)


def test_k_means_plus_plus_begins_at_points_and_better_than_chance():
    x = blurred(2000, 8, 20, wide=0.3)
    draws = [torch.Generator().manual_seed(n) for n in range(5)]
    points = clusters._Points(x)
    begun = clusters._spread(points, 20, draws).numpy() + points.mean.numpy()
    apart = ((begun.reshape(-1, 1, 8) - x) ** 2).sum(2).min(1)
    assert apart == pytest.approx(np.zeros(100), abs=1e-6)
    spread = [kmeans(x, 20, start=one, steps=1).inertia for one in begun]
    chance = [kmeans(x, 20, start=one, steps=1).inertia for one in starts(x, 20, 5)]
    assert np.mean(spread) < 0.7 * np.mean(chance)


def test_the_same_seed_gives_the_same_clusters_and_another_one_other_starts():
    x = blurred(400, 4, 6)
    one, again, other = (kmeans(x, 6, restarts=3, seed=seed) for seed in (0, 0, 5))
    assert one.inertias == again.inertias
    assert one.inertias != other.inertias


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 31}, "there are 30 points; ask for 1 to 30"),
        ({"k": 0}, "ask for 1 to 30"),
        ({"start": "kmeans"}, r"accepted are k-means\+\+, random"),
        ({"restarts": 0}, "at least 1"),
        ({"start": np.zeros((2, 3))}, "3 centres of 12"),
        ({"start": np.full((3, 12), np.nan)}, "finite"),
    ],
)
def test_what_cannot_be_clustered_is_refused(given, message):
    with pytest.raises(BadInput, match=message):
        kmeans(blurred(30), **{"k": 3, **given})


# --- how many ---------------------------------------------------------------------------------------------------------


def test_the_silhouette_is_scikit_learns_also_with_a_point_alone():
    x = blurred(500)
    labels = kmeans(x, 6, restarts=2).labels
    labels[7] = 11
    assert n_clusters.silhouette(x, labels) == pytest.approx(silhouette_score(x, labels), abs=1e-6)
    assert np.isnan(n_clusters.silhouette(x, np.zeros(500, np.int64)))


def test_two_sortings_are_compared_as_in_scikit_learn():
    draw = np.random.default_rng(0)
    a, b = draw.integers(5, size=200), draw.integers(3, size=200)
    mixed = np.where(draw.random(200) < 0.7, a, b)
    for one, other in ((a, b), (a, mixed), (a, (a + 2) % 5), (a * 0, b)):
        assert n_clusters.alike(one, other) == pytest.approx(adjusted_rand_score(one, other), abs=1e-12)


def test_all_three_ways_find_the_four_clusters_that_are_there():
    x = np.concatenate(
        [np.random.default_rng(n).normal(m, 0.5, (60, 2)) for n, m in enumerate(([0, 0], [6, 0], [0, 6], [6, 6]))]
    )
    found, rows = n_clusters.tried(x.astype(np.float32), range(2, 8), start="random", restarts=5, seed=0)
    assert [len(one.centres) for one in found] == [2, 3, 4, 5, 6, 7]
    assert max(rows, key=lambda row: row["silhouette"])["k"] == 4
    assert max(rows, key=lambda row: row["stability"])["k"] == 4
    assert n_clusters.elbow([row["k"] for row in rows], [row["inertia"] for row in rows]) == 4


def test_noise_is_less_stable_than_clusters():
    noise = np.random.default_rng(0).normal(size=(600, 10)).astype(np.float32)
    assert n_clusters.stability(noise, 4) < 0.5 < n_clusters.stability(blurred(600, 10, 4, wide=0.3), 4)


# --- components -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(300, 12), (9, 12), (5000, 3)])
def test_components_are_scikit_learns_up_to_their_sign(shape):
    x = blurred(*shape)
    mine, other = components(x), PCA().fit(x.astype(np.float64))
    many = min(shape[0] - 1, shape[1])
    assert mine.share[:many] == pytest.approx(other.explained_variance_ratio_[:many], rel=1e-6)
    assert mine.variance[:many] == pytest.approx(other.explained_variance_[:many], rel=1e-6)
    cosines = np.abs((mine.axes[:many] * other.components_[:many]).sum(1))
    assert cosines == pytest.approx(np.ones(many), abs=1e-6)
    assert np.abs(mine.project(x, 2)) == pytest.approx(np.abs(other.transform(x)[:, :2]), abs=1e-5)


def test_a_regression_on_components_is_scikit_learns_for_every_number_of_them():
    x, draw = blurred(200), np.random.default_rng(0)
    y = x @ draw.normal(size=(12, 2)) + draw.normal(size=(200, 2))
    learn, held = slice(0, 150), slice(150, None)
    tried = []

    def measure(said):
        tried.append(said)
        return -float(((said - y[held]) ** 2).sum())

    found = regression(x[learn], y[learn], x[held], measure)
    for m, said in enumerate(tried, 1):
        axes = PCA(m).fit(x[learn].astype(np.float64))
        line = LinearRegression().fit(axes.transform(x[learn]), y[learn])
        assert said == pytest.approx(line.predict(axes.transform(x[held])), abs=1e-4)
    assert len(tried) == 12
    assert found.many == 1 + int(np.argmax(found.tried))
    assert found(x[held]) == pytest.approx(tried[found.many - 1], abs=1e-9)


def test_columns_that_do_not_vary_and_few_rows_break_no_regression():
    x = np.concatenate([blurred(8, 12), np.ones((8, 3), np.float32)], 1)
    y = np.arange(8.0)[:, None]
    found = regression(x, y, x, lambda said: -float(((said - y) ** 2).sum()))
    assert len(found.tried) == 7  # eight points differ in seven directions
    assert found(x) == pytest.approx(y, abs=1e-4)
