"""BERT: the values of transformers with the same weights, and the sizes of the paper."""

import pytest
import torch
from torch import Tensor

from harken.errors import BadSetting
from harken.models.bert import BERT, BERTSettings

transformers = pytest.importorskip("transformers")
VOCAB, L = 70, 12
NAMES = {  # harken -> transformers
    "embed": "bert.embeddings.word_embeddings",
    "segments": "bert.embeddings.token_type_embeddings",
    "stack.positions.table": "bert.embeddings.position_embeddings",
    "embed_norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "nsp_head": "cls.seq_relationship",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
}
LAYER = {
    "attention.W_q": "attention.self.query",
    "attention.W_k": "attention.self.key",
    "attention.W_v": "attention.self.value",
    "attention.W_o": "attention.output.dense",
    "attention_sublayer.norm": "attention.output.LayerNorm",
    "mlp.W_1": "intermediate.dense",
    "mlp.W_2": "output.dense",
    "mlp_sublayer.norm": "output.LayerNorm",
}


@pytest.fixture(scope="module")
def models() -> tuple[BERT, "transformers.BertForPreTraining"]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, **sizes)
    reference = transformers.BertForPreTraining(config).double().eval()
    model = BERTSettings(d=32, layers=2, heads=4, d_ff=64, context=16).build(VOCAB).double().eval()
    names = NAMES | {
        f"stack.blocks.{n}.{name}": f"bert.encoder.layer.{n}.{reference_name}"
        for n in range(2)
        for name, reference_name in LAYER.items()
    }
    with torch.no_grad():
        for name, reference_name in names.items():
            module = model.get_submodule(name)
            for parameter, weight in reference.get_submodule(reference_name).named_parameters():
                weight += 0.3 * torch.randn_like(weight)
                module.get_parameter(parameter)[: len(weight)] = weight
        model.head_bias += torch.randn(VOCAB)
        reference.cls.predictions.bias.copy_(model.head_bias)
    return model, reference


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("lengths", [None, [L, 5, 1]])
def test_the_logits_equal_transformers_with_the_same_weights(models, lengths):
    model, reference = models
    tokens, segments = random_tokens(3, L), (torch.arange(L) > 4).long().expand(3, -1)
    ends = torch.tensor(lengths or [L] * 3)
    real = torch.arange(L) < ends[:, None]
    with torch.no_grad():
        expected = reference(tokens, attention_mask=real.long(), token_type_ids=segments)
        h = model(tokens, segments=segments, lengths=None if lengths is None else ends)
    assert torch.allclose(model.logits(h)[real], expected.prediction_logits[real], atol=1e-10)
    assert torch.allclose(model.next_sentence_scores(h[:, 0]), expected.seq_relationship_logits, atol=1e-10)


def test_the_gradients_equal_transformers(models):
    model, reference = models
    tokens = random_tokens(2, L)
    for scores in (model.scores(tokens), reference(tokens).prediction_logits):
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    grad = model.stack.blocks[0].attention.W_q.weight.grad
    expected = reference.bert.encoder.layer[0].attention.self.query.weight.grad
    assert torch.allclose(grad, expected, atol=1e-12)
    assert float(expected.abs().max()) > 1e-6


@pytest.mark.parametrize(
    ("size", "millions"), [("tiny", 4), ("mini", 11), ("small", 29), ("base", 110), ("large", 336)]
)
def test_the_sizes_have_the_parameter_counts_of_the_paper(size, millions):
    settings = BERTSettings(size=size)
    sizes = {"hidden_size": settings.d, "num_hidden_layers": settings.layers, "num_attention_heads": settings.heads}
    with torch.device("meta"):
        model = settings.build(30522)
        reference = transformers.BertForPreTraining(transformers.BertConfig(**sizes, intermediate_size=4 * settings.d))
    count = sum(p.numel() for p in model.parameters()) - 6 * settings.d  # padding rows of the embedding
    assert count == reference.num_parameters()
    assert round(count / 1e6) == millions


def test_segments_and_later_tokens_change_the_state_of_earlier_tokens(models):
    model, _ = models
    tokens = random_tokens(1, L)
    with torch.no_grad():
        plain, later = model(tokens), model(torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % VOCAB], 1))
        second = model(tokens, segments=torch.ones_like(tokens))
    assert not torch.allclose(plain[:, 0], later[:, 0])
    assert not torch.allclose(plain, second)


def test_a_missing_next_sentence_head_is_reported():
    model = BERTSettings(d=16, layers=1, heads=2, context=8, nsp_head=False).build(VOCAB)
    with pytest.raises(BadSetting, match=r"^model\.nsp_head=false: no head for the next sentence; set"):
        model.next_sentence_scores(model(random_tokens(1, 4))[:, 0])
