"""Counter-based random numbers pass statistical tests and depend on seed, index and draw only."""

import numpy as np
import torch

from harken.decode.counter_rng import row_seeds, uniform
from harken.decode.sampling import SamplingSettings


def numbers(rows: int = 200, draws: int = 50, size: int = 64) -> torch.Tensor:  # draws rows size
    seeds = row_seeds(0, 0, rows)
    return torch.stack([uniform(seeds, torch.tensor(n), size) for n in range(draws)])


def test_the_numbers_are_uniform_between_0_and_1():
    x = numbers().flatten()
    assert 0 < x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    counts = torch.histc(x, 100, 0, 1)
    expected = len(x) / 100
    assert float(((counts - expected) ** 2 / expected).sum()) < 160  # chi squared, 99 degrees: exceeded 1 in 10,000


def test_the_largest_hash_does_not_round_to_1(monkeypatch):
    monkeypatch.setattr("harken.decode.counter_rng._mix", lambda x: torch.full_like(x, 0xFFFFFFFF))
    assert float(uniform(row_seeds(0, 0, 1), torch.tensor(0), 3).max()) < 1


def test_a_token_at_minus_infinity_is_not_sampled_in_a_million_draws_of_a_large_vocabulary():
    logits = torch.full((64, 20_000), -torch.inf)
    logits[:, :2] = 0.0
    sampling = SamplingSettings(temperature=1.0)
    tokens = [sampling.sample(logits, row_seeds(0, 0, 64), torch.tensor(n)) for n in range(50)]
    assert set(torch.cat(tokens).tolist()) == {0, 1}


def test_adjacent_numbers_are_uncorrelated_along_every_axis():
    x = numbers() - 0.5
    bound = 5 / 12 / x.numel() ** 0.5  # five standard deviations of a mean of products
    for axis in range(3):
        products = x.narrow(axis, 1, x.shape[axis] - 1) * x.narrow(axis, 0, x.shape[axis] - 1)
        assert abs(float(products.mean())) < bound, axis


def test_a_row_has_the_same_numbers_in_a_batch_and_alone():
    batched = uniform(row_seeds(5, 2, 4), torch.tensor(7), 30)
    alone = uniform(row_seeds(5 + 3, 2, 1), torch.tensor(7), 30)
    assert torch.equal(batched[3:], alone)


def test_seed_index_and_draw_all_change_the_numbers():
    def first(seed: int, index: int, n: int) -> list[float]:
        return uniform(row_seeds(seed, index, 1), torch.tensor(n), 8)[0].tolist()

    rows = {tuple(first(seed, index, n)) for seed in range(6) for index in range(6) for n in range(6)}
    assert len(rows) == 6**3


def test_large_and_negative_seeds_are_accepted():
    assert torch.isfinite(uniform(row_seeds(2**70, 0, 1), torch.tensor(2**31), 5)).all()
    assert torch.isfinite(uniform(row_seeds(-3, 0, 2), torch.tensor(0), 5)).all()


def test_a_numpy_seed_is_that_number():
    assert row_seeds(np.int32(7), 0, 3).tolist() == row_seeds(7, 0, 3).tolist()
