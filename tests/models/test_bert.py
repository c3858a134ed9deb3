"""BERT: the same numbers as transformers with the same weights, and the paper's sizes."""

import pytest
import torch
from torch import Tensor

from harken.errors import BadSetting
from harken.models.bert import BERT, Shape

transformers = pytest.importorskip("transformers")
VOCAB, L = 70, 12
NAMES = {  # ours -> theirs
    "embed": "bert.embeddings.word_embeddings",
    "segments": "bert.embeddings.token_type_embeddings",
    "stack.positions.table": "bert.embeddings.position_embeddings",
    "embed_norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "W_follows": "cls.seq_relationship",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
}
LAYER = {
    "look.W_q": "attention.self.query",
    "look.W_k": "attention.self.key",
    "look.W_v": "attention.self.value",
    "look.W_o": "attention.output.dense",
    "look_sub.norm": "attention.output.LayerNorm",
    "mlp.W_1": "intermediate.dense",
    "mlp.W_2": "output.dense",
    "mlp_sub.norm": "output.LayerNorm",
}


@pytest.fixture(scope="module")
def both() -> tuple[BERT, "transformers.BertForPreTraining"]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, **sizes)
    theirs = transformers.BertForPreTraining(config).double().eval()
    ours = Shape(d=32, layers=2, heads=4, d_ff=64, context=16).build(VOCAB).double().eval()
    names = NAMES | {
        f"stack.blocks.{n}.{mine}": f"bert.encoder.layer.{n}.{their}" for n in range(2) for mine, their in LAYER.items()
    }
    with torch.no_grad():
        for mine, their in names.items():
            module = ours.get_submodule(mine)
            for name, weight in theirs.get_submodule(their).named_parameters():
                weight += 0.3 * torch.randn_like(weight)
                getattr(module, name)[: len(weight)] = weight
        ours.head_bias += torch.randn(VOCAB)
        theirs.cls.predictions.bias.copy_(ours.head_bias)
    return ours, theirs


def words(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("lengths", [None, [L, 5, 1]])
def test_it_says_what_transformers_says_with_the_same_weights(both, lengths):
    ours, theirs = both
    tokens, segments = words(3, L), (torch.arange(L) > 4).long().expand(3, -1)
    ends = torch.tensor(lengths or [L] * 3)
    real = torch.arange(L) < ends[:, None]
    with torch.no_grad():
        told = theirs(tokens, attention_mask=real.long(), token_type_ids=segments)
        h = ours(tokens, segments=segments, lengths=None if lengths is None else ends)
    assert torch.allclose(ours.logits(h)[real], told.prediction_logits[real], atol=1e-10)
    assert torch.allclose(ours.next_sentence_scores(h[:, 0]), told.seq_relationship_logits, atol=1e-10)


def test_it_learns_what_transformers_learns(both):
    ours, theirs = both
    tokens = words(2, L)
    for scores in (ours.scores(tokens), theirs(tokens).prediction_logits):
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    mine, its = ours.stack.blocks[0].look.W_q.weight.grad, theirs.bert.encoder.layer[0].attention.self.query.weight.grad
    assert torch.allclose(mine, its, atol=1e-12)
    assert float(its.abs().max()) > 1e-6


@pytest.mark.parametrize(
    ("size", "millions"), [("tiny", 4), ("mini", 11), ("small", 29), ("base", 110), ("large", 336)]
)
def test_the_sizes_have_the_papers_number_of_weights(size, millions):
    shape = Shape(size=size)
    sizes = {"hidden_size": shape.d, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads}
    with torch.device("meta"):
        model = shape.build(30522)
        theirs = transformers.BertForPreTraining(transformers.BertConfig(**sizes, intermediate_size=4 * shape.d))
    count = sum(p.numel() for p in model.parameters()) - 6 * shape.d  # rows that only round the matrix up
    assert count == theirs.num_parameters()
    assert round(count / 1e6) == millions


def test_another_segment_and_a_later_word_change_what_an_earlier_one_says(both):
    ours, _ = both
    tokens = words(1, L)
    with torch.no_grad():
        plain, later = ours(tokens), ours(torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % VOCAB], 1))
        second = ours(tokens, segments=torch.ones_like(tokens))
    assert not torch.allclose(plain[:, 0], later[:, 0])
    assert not torch.allclose(plain, second)


def test_a_bert_without_such_scores_says_so():
    model = Shape(d=16, layers=1, heads=2, context=8, nsp_head=False).build(VOCAB)
    with pytest.raises(BadSetting, match=r"model\.follows=false"):
        model.next_sentence_scores(model(words(1, 4))[:, 0])
