"""Operation counts of a layer: the examples of the lecture, and the formulas for the L and d of a model."""

import sys
from pathlib import Path

import pytest

from harken import recipe, registry
from harken.models.conv_seq2seq import ConvSeq2SeqSettings
from harken.models.gpt import GPTSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shows.operation_counts import LAYERS, layer_cost, products


@pytest.mark.parametrize(
    ("L", "recurrent", "convolution", "attention"), [(100, 10**8, 3 * 10**8, 10**7), (1000, 10**9, 3 * 10**9, 10**9)]
)
def test_the_examples_of_lecture_7_for_d_1000_and_k_3(L, recurrent, convolution, attention):
    assert products("recurrent", L, 1000) == recurrent
    assert products("convolution", L, 1000, 3) == convolution
    assert products("attention", L, 1000) == attention


def test_attention_is_cheaper_than_recurrence_if_the_sequence_is_shorter_than_the_width():
    cheaper = [products("attention", L, 64) < products("recurrent", L, 64) for L in (1, 63, 64, 65)]
    assert cheaper == [True, True, False, False]


def test_the_cost_of_attention_is_quadratic_in_the_length():
    model = recipe.resolve(("a recipe", {"data.kind": "pairs", "model.d": 64})).model
    assert layer_cost(model, 10.0) == {"order": "L² d", "L": 10.0, "d": 64, "products": 6400.0}
    assert layer_cost(model, 20.0)["products"] == 4 * 6400


def test_the_cost_of_a_convolution_is_proportional_to_its_kernel_size():
    assert layer_cost(ConvSeq2SeqSettings(d=8, kernel_size=5), 10.0) == {
        "order": "L d² k", "L": 10.0, "d": 8, "k": 5, "products": 10 * 8 * 8 * 5
    }  # fmt: skip


def test_without_a_length_the_context_counts():
    lstm = recipe.resolve(("a recipe", {"model.kind": "lstm", "model.d": 8, "model.context": 35})).model
    assert layer_cost(lstm, None)["products"] == 35 * 8 * 8


def test_block_sparse_attention_counts_the_tokens_attended_to():
    model = GPTSettings(d=8, structure="bigbird", block_size=4, window_blocks=1, global_blocks=1, random_blocks=2)
    assert [layer_cost(model, L)["products"] for L in (10, 100, 200)] == [10 * 10 * 8, 100 * 24 * 8, 200 * 24 * 8]


def test_every_kind_of_model_has_a_formula():
    assert {*registry.MODELS["text"], *registry.MODELS["pairs"]} <= LAYERS.keys()
