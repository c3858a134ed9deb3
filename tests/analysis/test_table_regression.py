"""Principal component regression on a table equals a pipeline of scikit-learn, in every fold."""

import numpy as np
import pytest

from harken.analysis.table_regression import FOLDS, table_regression
from harken.errors import BadInput


def factors(n=200, noise=0.1, seed=0):
    """A table of 9 columns with 3 hidden factors in different units, of which the target depends on all three."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(n, 3))
    x = F @ rng.normal(size=(3, 9)) + noise * rng.normal(size=(n, 9))
    return x * 10.0 ** rng.integers(-3, 4, 9) + rng.normal(size=9), F @ [2, -1, 0.5] + noise * rng.normal(size=n)


def pipeline(n_components):
    decomposition, linear = pytest.importorskip("sklearn.decomposition"), pytest.importorskip("sklearn.linear_model")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pca = decomposition.PCA(n_components, svd_solver="full")
    return make_pipeline(StandardScaler(), pca, linear.LinearRegression())


@pytest.mark.parametrize("n_components", [1, 3, 9])
def test_coefficients_and_predictions_equal_those_of_scikit_learn(n_components):
    x, y = factors()
    fit, reference = table_regression(x, y, n_components), pipeline(n_components).fit(x, y)
    assert fit(x) == pytest.approx(reference.predict(x), abs=1e-6)
    scaler, pca, linear = (step for _, step in reference.steps)
    coefficients = linear.coef_ @ pca.components_ / scaler.scale_
    assert fit.coefficients == pytest.approx(coefficients, rel=1e-6, abs=1e-9)
    assert fit.intercept == pytest.approx(float(reference.predict(np.zeros((1, 9)))[0]), abs=1e-6)


def test_the_held_out_rows_are_predicted_by_a_pipeline_without_them():
    x, y = factors(60)
    fit = table_regression(x, y, 2, seed=3)
    fold = np.random.default_rng(3).permutation(np.arange(60) % FOLDS)
    expected = np.empty(60)
    for n in range(FOLDS):
        rows = fold == n
        expected[rows] = pipeline(2).fit(x[~rows], y[~rows]).predict(x[rows])
    assert fit.held_out == pytest.approx(expected, abs=1e-6)
    assert fit.r2[1] == pytest.approx(1 - ((y - expected) ** 2).sum() / ((y - y.mean()) ** 2).sum())


@pytest.mark.parametrize("seed", range(3))
def test_three_hidden_factors_are_predicted_by_three_components(seed):
    x, y = factors(noise=0.05, seed=seed)
    fit = table_regression(x, y, 3)
    assert fit.r2[2] >= 0.95
    assert 3 <= table_regression(x, y).n_components <= fit.best


def test_a_constant_column_has_no_influence():
    x, y = factors(50)
    fit = table_regression(np.column_stack([x, np.full(50, 7.0)]), y, 3)
    assert fit.coefficients[-1] == 0
    assert fit.coefficients[:-1] == pytest.approx(table_regression(x, y, 3).coefficients)


def test_noise_has_no_cross_validated_r2():
    rng = np.random.default_rng(0)
    assert table_regression(rng.normal(size=(80, 5)), rng.normal(size=80)).r2[-1] < 0.2


@pytest.mark.parametrize(
    ("rows", "n_components", "message"),
    [(50, 10, "components=10: this table has 1 to 9"), (8, None, "8 rows: a regression with cross-validation needs")],
)
def test_impossible_regressions_are_refused(rows, n_components, message):
    x, y = factors(rows)
    with pytest.raises(BadInput, match=message):
        table_regression(x, y, n_components)
    with pytest.raises(BadInput, match="the target is 1 in every row"):
        table_regression(factors(20)[0], np.ones(20))
