"""The ablation leaves out the columns without information and no others."""

import numpy as np
import torch

from harken.tasks.baselines.ablation import Columns, ablate, row_losses


def outcome(columns: dict[str, np.ndarray], targets: np.ndarray, *, required: bool = False, target_type: str = "label"):
    X = torch.from_numpy(np.stack([*columns.values()], 1))
    features = {name: (n,) for n, name in enumerate(columns)}
    n_outputs = 2 if target_type == "label" else 1
    return ablate(Columns(X, features, "data.features", required=required), n_outputs, row_losses(target_type, targets))


def test_columns_of_noise_are_left_out_and_informative_ones_stay():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 60)
    noise = {f"noise {n}": rng.normal(size=60) for n in range(4)}
    dropped, remaining, loss, without, clear = outcome(
        {"signal": targets + 0.8 * rng.normal(size=60), **noise}, targets
    )
    assert "signal" in remaining
    assert {*dropped} >= {"noise 0", "noise 1"}
    assert without < loss
    assert type(clear) is bool


def test_if_all_columns_are_noise_all_are_left_out_unless_one_is_required():
    rng = np.random.default_rng(1)
    targets, noise = rng.integers(0, 2, 30), {f"noise {n}": rng.normal(size=30) for n in range(2)}
    assert outcome(noise, targets)[:2] == (["noise 0", "noise 1"], [])
    assert outcome(noise, targets, required=True) is None


def test_informative_columns_of_a_number_are_not_left_out():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 80))
    assert outcome({"a": a, "b": b}, (a + b)[:, None], target_type="number") is None


def test_two_copies_of_a_column_are_not_both_left_out():
    rng = np.random.default_rng(3)
    targets = rng.integers(0, 2, 200)
    signal = targets + 0.5 * rng.normal(size=200)
    copies = outcome({"a": signal, "b": signal}, targets)
    assert copies is None or len(copies[0]) == 1


def test_few_rows_and_many_columns_are_not_judged():
    targets = np.arange(9) % 2
    assert outcome({"a": np.arange(9.0)}, targets) is None
    many = {str(n): np.arange(20.0) for n in range(17)}
    assert outcome(many, np.arange(20) % 2) is None
