"""Models whose first weights nobody will see are made without drawing them."""

import torch

from harken.inference.run import fitted
from harken.models.gpt import Shape
from harken.recipe import resolve
from harken.run_folder import Unborn, weights


def test_nothing_is_drawn_for_a_model_that_will_be_filled() -> None:
    before = torch.get_rng_state()
    with Unborn():
        Shape(size="tiny").build(100)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_filled_model_is_the_one_it_was_taken_from_and_its_weights_are_used_up() -> None:
    recipe = resolve(("test", {"model.size": "tiny"}))
    born = recipe.build(100)
    taken = {name: t.clone() for name, t in weights(born).items()}
    made = fitted(recipe, 100, taken)
    assert taken == {}
    assert made.head.weight is made.embed.weight
    assert all(torch.equal(t, weights(born)[name]) for name, t in weights(made).items())
