"""Models that are filled with saved weights are built without random initialization."""

import torch

from harken.inference.run import build_model
from harken.models.gpt import GPTSettings
from harken.recipe import resolve
from harken.run_folder import SkipInit, weights


def test_no_random_numbers_are_drawn() -> None:
    before = torch.get_rng_state()
    with SkipInit():
        GPTSettings(size="tiny").build(100)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_filled_model_equals_the_original_and_consumes_the_weights() -> None:
    recipe = resolve(("test", {"model.size": "tiny"}))
    original = recipe.build(100)
    saved = {name: t.clone() for name, t in weights(original).items()}
    model = build_model(recipe, 100, saved)
    assert saved == {}
    assert model.head.weight is model.embed.weight
    assert all(torch.equal(t, weights(original)[name]) for name, t in weights(model).items())
