"""The lecture's cost of a layer: its printed examples, and the same formulas for a model's own L and d."""

import pytest

from harken import recipe, registry
from harken.experiments.operation_counts import LAYERS, formula, products
from harken.models.conv_seq2seq import ConvShape
from harken.models.gpt import Shape


@pytest.mark.parametrize(
    ("L", "recurrent", "convolution", "attention"), [(100, 10**8, 3 * 10**8, 10**7), (1000, 10**9, 3 * 10**9, 10**9)]
)
def test_the_examples_that_lecture_7_prints_for_d_1000_and_k_3(L, recurrent, convolution, attention):
    assert products("recurrent", L, 1000) == recurrent
    assert products("convolution", L, 1000, 3) == convolution
    assert products("attention", L, 1000) == attention


def test_attention_is_cheaper_than_recurrence_as_long_as_a_sentence_is_shorter_than_wide():
    cheaper = [products("attention", L, 64) < products("recurrent", L, 64) for L in (1, 63, 64, 65)]
    assert cheaper == [True, True, False, False]


def test_the_length_of_sentences_enters_squared_for_attention_alone():
    model = recipe.resolve(("a recipe", {"data.kind": "pairs", "model.d": 64})).model
    assert formula(model, 10.0) == {"order": "L² d", "L": 10.0, "d": 64, "products": 6400.0}
    assert formula(model, 20.0)["products"] == 4 * 6400


def test_a_filter_of_a_convolution_multiplies_its_cost():
    assert formula(ConvShape(d=8, filter=5), 10.0) == {
        "order": "L d² k", "L": 10.0, "d": 8, "k": 5, "products": 10 * 8 * 8 * 5
    }  # fmt: skip


def test_a_row_of_a_text_is_as_long_as_the_context():
    lstm = recipe.resolve(("a recipe", {"model.kind": "lstm", "model.d": 8, "model.context": 35})).model
    assert formula(lstm, None)["products"] == 35 * 8 * 8


def test_in_blocks_a_word_is_compared_with_those_it_sees():
    model = Shape(d=8, structure="bigbird", block=4, near=1, hubs=1, links=2)
    assert [formula(model, L)["products"] for L in (10, 100, 200)] == [10 * 10 * 8, 100 * 24 * 8, 200 * 24 * 8]


def test_every_kind_of_model_has_its_formula():
    assert {*registry.BUILT_IN["model"], *registry.BUILT_IN["model of pairs"]} <= LAYERS.keys()
