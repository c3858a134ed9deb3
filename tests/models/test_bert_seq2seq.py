"""A BERT with a text decoder: the encoder is a BERT, and the edge token of a source is padding."""

import pytest
import torch

from harken.models.bert import BERTSettings
from harken.models.bert_seq2seq import BERTSeq2SeqSettings

SIZES = {"d": 16, "layers": 2, "heads": 2, "context": 16}
EDGE = 20  # of a source vocabulary of 21


def model(**settings):
    torch.manual_seed(0)
    return BERTSeq2SeqSettings(**SIZES, decoder_layers=1, **settings).build((EDGE + 1, 31)).eval()


def test_the_encoder_gives_the_states_of_a_bert_with_its_weights():
    """Keys of the first cross-attention: W_k of the states of a BERT on the tokens before the edge token."""
    ours, bert = model(), BERTSettings(**SIZES, pooler=False, mlm_head=False, nsp_head=False).build(EDGE + 1).eval()
    bert.load_state_dict(ours.encoder.state_dict())
    source = torch.tensor([[3, 5, 7, 2, EDGE], [3, 9, 2, EDGE, EDGE]])
    encoded = ours.encode_source(source, torch.tensor([5, 4]))
    assert encoded.real.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2]
    cross = ours.stack.blocks[0].cross
    for row, n in enumerate((4, 3)):
        keys = cross.W_k(bert(source[row : row + 1, :n]))
        torch.testing.assert_close(encoded.encoded[0].k[row, :, :n].transpose(0, 1).flatten(1), keys[0])


def test_the_edge_token_of_a_source_has_no_influence():
    ours, target = model(), torch.tensor([[30, 4, 8]])
    short, padded = (torch.tensor([[3, 5, 2, *[EDGE] * n]]) for n in (1, 4))
    scores = [ours.scores(target, source=source, source_lengths=torch.tensor([4])) for source in (short, padded)]
    torch.testing.assert_close(*scores)
    assert ours.scores(target, source=torch.tensor([[EDGE]]), source_lengths=torch.tensor([1])).isfinite().all()


@pytest.mark.parametrize("share", [False, True])
def test_shared_embeddings_are_those_of_the_encoder(share):
    torch.manual_seed(0)
    ours = BERTSeq2SeqSettings(**SIZES, share_embeddings=share).build((21, 21))
    assert (ours.embed is ours.encoder.embed) is share
    assert ours.head.weight is ours.embed.weight
    names = [name for name, _ in ours.named_parameters() if name.endswith("embed.weight")]
    assert names == (["encoder.embed.weight"] if share else ["encoder.embed.weight", "embed.weight"])


def test_a_frozen_encoder_has_no_dropout():
    ours = model(dropout=0.5)
    ours.encoder.requires_grad_(False)
    ours.train()
    assert ours.stack.training
    assert not ours.encoder.training
    ours.encoder.requires_grad_(True)
    assert ours.train().encoder.training
