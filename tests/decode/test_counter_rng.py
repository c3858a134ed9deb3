"""Chance that is a pure function of (seed, place) still behaves like chance."""

import torch

from harken.decode.counter_rng import chance, seeds
from harken.decode.sampling import Choice


def numbers(rows: int = 200, draws: int = 50, many: int = 64) -> torch.Tensor:  # draws rows many
    mine = seeds(0, 0, rows)
    return torch.stack([chance(mine, torch.tensor(n), many) for n in range(draws)])


def test_the_numbers_are_spread_evenly_between_0_and_1():
    x = numbers().flatten()
    assert 0 < x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    seen = torch.histc(x, 100, 0, 1)
    expected = len(x) / 100
    assert float(((seen - expected) ** 2 / expected).sum()) < 160  # chi squared with 99 degrees: 1 of 10,000 is above


def test_not_even_the_highest_word_is_rounded_to_1(monkeypatch):
    monkeypatch.setattr("harken.decode.counter_rng._mix", lambda x: torch.full_like(x, 0xFFFFFFFF))
    assert float(chance(seeds(0, 0, 1), torch.tensor(0), 3).max()) < 1


def test_what_was_cut_off_is_not_drawn_in_a_million_draws_of_a_large_vocabulary():
    logits = torch.full((64, 20_000), -torch.inf)
    logits[:, :2] = 0.0
    drawn = [Choice(temperature=1.0).draw(logits, seeds(0, 0, 64), torch.tensor(n)) for n in range(50)]
    assert set(torch.cat(drawn).tolist()) == {0, 1}


def test_no_number_tells_of_its_neighbour_in_place_row_or_draw():
    x = numbers() - 0.5
    bound = 5 / 12 / x.numel() ** 0.5  # five standard deviations of a mean of products
    for axis in range(3):
        near = x.narrow(axis, 1, x.shape[axis] - 1) * x.narrow(axis, 0, x.shape[axis] - 1)
        assert abs(float(near.mean())) < bound, axis


def test_a_row_has_the_same_numbers_in_a_batch_and_alone():
    together = chance(seeds(5, 2, 4), torch.tensor(7), 30)
    alone = chance(seeds(5 + 3, 2, 1), torch.tensor(7), 30)
    assert torch.equal(together[3:], alone)


def test_seeds_places_and_draws_all_count():
    def first(seed: int, index: int, n: int) -> list[float]:
        return chance(seeds(seed, index, 1), torch.tensor(n), 8)[0].tolist()

    found = {tuple(first(seed, index, n)) for seed in range(6) for index in range(6) for n in range(6)}
    assert len(found) == 6**3


def test_large_and_negative_seeds_are_seeds():
    assert torch.isfinite(chance(seeds(2**70, 0, 1), torch.tensor(2**31), 5)).all()
    assert torch.isfinite(chance(seeds(-3, 0, 2), torch.tensor(0), 5)).all()
