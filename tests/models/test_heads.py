"""A head reads the same from a text alone, padded, or packed among others; its body is that of the language model."""

import numpy as np
import pytest
import torch

from harken import registry
from harken.data.labelled.batch import PackedTexts, Texts, padded
from harken.data.tokenizers.pairs import Side
from harken.settings import Outputs

SMALL = {"d": 16, "layers": 2}
KINDS = sorted(registry.BUILT_IN["model of labels"])
PACKS = [kind for kind in KINDS if getattr(registry.find("model", kind, " of labels"), "packs", False)]
EDGE = 49


def model(kind: str, pool: str, each_token: bool = False):
    torch.manual_seed(1)
    heads = {"heads": 2} if kind in PACKS else {}
    shape = registry.find("model", kind, " of labels")(pool=pool, **SMALL, **heads)
    return shape.build(Outputs(50, 3, each_token)).double().eval()


def texts(lengths=(3, 9, 1, 14, 6, 20, 2)) -> Texts:
    rng, starts = np.random.default_rng(0), np.concatenate([[0], np.cumsum(lengths)])
    second = np.minimum(lengths, [2, 5, 9, 7, 9, 10, 1])
    return Texts(Side(rng.integers(0, EDGE, starts[-1]), starts, EDGE), second, np.arange(len(lengths)) % 3)


def said(model, batch):
    """The outputs of the texts that a batch asks, sorted so that their order does not matter."""
    h = model(batch.tokens, **batch.told())
    return model.answers(model.texts(h, *batch.texts()))[batch.asked.flatten()]


def alone(model, some: Texts):
    return torch.cat([said(model, padded(some, np.array([n]))) for n in range(len(some))])


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_padded_texts_have_the_answers_of_each_text_alone(kind, pool):
    made, some = model(kind, pool), texts()
    together = said(made, padded(some, np.arange(len(some))))
    torch.testing.assert_close(together, alone(made, some), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("kind", PACKS)
def test_packed_texts_have_the_answers_and_the_gradients_of_each_text_alone(kind, pool):
    made, some = model(kind, pool), texts()
    batch = PackedTexts(some, 100, seed=0).batch(0, 0)
    assert len(batch.tokens) == 1  # all in one row
    weights = torch.linspace(-1, 1, 3, dtype=torch.float64)
    found = []
    for y in (said(made, batch), alone(made, some)):
        made.zero_grad()
        (torch.tanh(y) @ weights).sum().backward()
        grads = [p.grad.clone() for p in made.parameters() if p.grad is not None]
        found.append((y.detach()[y.detach()[:, 0].argsort()], grads))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-11)


def test_a_mark_of_another_text_in_the_row_changes_nothing():
    made, some = model("bert", "first"), texts()
    batch = PackedTexts(some, 100, seed=0).batch(0, 0)
    other = batch.tokens.clone()
    other[batch.doc == 0] = (other[batch.doc == 0] + 1) % EDGE
    changed = type(batch)(**{**vars(batch), "tokens": other})
    same = [torch.equal(a, b) for a, b in zip(said(made, batch), said(made, changed), strict=True)]
    assert same.count(False) == 1


def test_the_second_text_is_told_apart_only_by_a_model_with_segments():
    some = texts()
    one = Texts(some.side, some.lengths, some.targets)
    for kind, differ in (("bert", True), ("gpt", False)):
        made = model(kind, "mean")
        assert (not torch.equal(alone(made, some), alone(made, one))) == differ


def test_a_body_has_the_weights_of_its_language_model():
    for kind in KINDS:
        shape = registry.find("model", kind)(**SMALL, **({"heads": 2} if kind in PACKS else {}))
        plain, headed = shape.build(50).state_dict(), model(kind, "mean").body.state_dict()
        assert {name: w.shape for name, w in plain.items()} == {name: w.shape for name, w in headed.items()}


def test_every_token_has_an_answer_where_they_are_asked_for_each():
    made = model("bert", "first", each_token=True)
    batch = padded(texts(), np.arange(7))
    assert made.answers(made(batch.tokens, **batch.told())).shape == (*batch.tokens.shape, 3)
