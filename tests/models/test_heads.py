"""Models with a head: the same outputs for a text alone, padded or packed; the body is a language model."""

import numpy as np
import pytest
import torch

from harken import registry
from harken.data.labelled.batch import EncodedTexts, PackedTexts, collate_padded
from harken.data.tokenizers.pairs import RaggedTokens
from harken.settings import LabelOutputs

SMALL = {"d": 16, "layers": 2}
KINDS = sorted(registry.MODELS["labels"])
PACKING = [kind for kind in KINDS if registry.find_kind("model", kind, "labels")().supports_packing]
EDGE = 49


def build(kind: str, pool: str, per_token: bool = False):
    torch.manual_seed(1)
    heads = {"heads": 2} if kind in PACKING else {}
    settings = registry.find_kind("model", kind, "labels")(pool=pool, **SMALL, **heads)
    return settings.build(LabelOutputs(50, 3, per_token)).double().eval()


def random_texts(lengths=(3, 9, 1, 14, 6, 20, 2)) -> EncodedTexts:
    rng, starts = np.random.default_rng(0), np.concatenate([[0], np.cumsum(lengths)])
    second = np.minimum(lengths, [2, 5, 9, 7, 9, 10, 1])[:, None]
    return EncodedTexts(
        RaggedTokens(rng.integers(0, EDGE, starts[-1]), starts, EDGE), second, np.arange(len(lengths)) % 3
    )


def outputs(model, batch):
    """The outputs of the texts of a batch that have a target."""
    h = model(batch.tokens, **batch.model_inputs())
    return model.predict(model.pool_texts(h, *batch.text_ids()))[batch.target_mask.flatten()]


def single_outputs(model, texts: EncodedTexts):
    return torch.cat([outputs(model, collate_padded(texts, np.array([n]))) for n in range(len(texts))])


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_padded_texts_have_the_outputs_of_single_texts(kind, pool):
    model, texts = build(kind, pool), random_texts()
    padded = outputs(model, collate_padded(texts, np.arange(len(texts))))
    torch.testing.assert_close(padded, single_outputs(model, texts), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("kind", PACKING)
def test_packed_texts_have_the_outputs_and_gradients_of_single_texts(kind, pool):
    model, texts = build(kind, pool), random_texts()
    batch = PackedTexts(texts, 100, seed=0).batch(0, 0)
    assert len(batch.tokens) == 1  # all in one row
    weights = torch.linspace(-1, 1, 3, dtype=torch.float64)
    outputs_and_grads = []
    for y in (outputs(model, batch), single_outputs(model, texts)):
        model.zero_grad()
        (torch.tanh(y) @ weights).sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        outputs_and_grads.append((y.detach()[y.detach()[:, 0].argsort()], grads))
    torch.testing.assert_close(outputs_and_grads[0], outputs_and_grads[1], rtol=0, atol=1e-11)


def test_another_text_in_the_row_has_no_effect():
    model, texts = build("bert", "first"), random_texts()
    batch = PackedTexts(texts, 100, seed=0).batch(0, 0)
    tokens = batch.tokens.clone()
    tokens[batch.doc == 0] = (tokens[batch.doc == 0] + 1) % EDGE
    changed = type(batch)(**{**vars(batch), "tokens": tokens})
    same = [torch.equal(a, b) for a, b in zip(outputs(model, batch), outputs(model, changed), strict=True)]
    assert same.count(False) == 1


def test_only_a_model_with_segments_distinguishes_the_second_text():
    pairs = random_texts()
    single = EncodedTexts(pairs.tokens, pairs.lengths[:, None], pairs.targets)
    for kind, differ in (("bert", True), ("gpt", False)):
        model = build(kind, "mean")
        assert (not torch.equal(single_outputs(model, pairs), single_outputs(model, single))) == differ


def test_a_body_has_the_parameters_of_its_language_model():
    for kind in KINDS:
        settings = registry.find_kind("model", kind)(**SMALL, **({"heads": 2} if kind in PACKING else {}))
        plain, body = settings.build(50).state_dict(), build(kind, "mean").body.state_dict()
        assert {name: w.shape for name, w in plain.items()} == {name: w.shape for name, w in body.items()}


def test_per_token_outputs_have_one_row_per_token():
    model = build("bert", "first", per_token=True)
    batch = collate_padded(random_texts(), np.arange(7))
    assert model.predict(model(batch.tokens, **batch.model_inputs())).shape == (*batch.tokens.shape, 3)
