"""A ViT with a decoder: causal, the same from a memory as at once, told by its picture alone, equal to PyTorch's."""

import torch
import torch.nn.functional as F
from torch import nn

from harken.decode.beam import Finder, Search
from harken.models.caption import Shape
from harken.settings import Pictured, Pixels

WORDS = 19
SEEN = Pictured(Pixels(12, 3, 0), (0.3, 0.4, 0.5), (0.2, 0.2, 0.3), WORDS)


def build(seed=0, **fields):
    torch.manual_seed(seed)
    return Shape(**{"d": 16, "layers": 1, "heads": 2, "decoder_layers": 2, "patch": 4, **fields}).build(SEEN)


def spoken(**fields):
    model = build(**fields).double().eval()
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(n))
    return model


def given(B=3, L=6, seed=1):
    chance = torch.Generator().manual_seed(seed)
    pictures = torch.randint(256, (B, 3, 12, 12), generator=chance, dtype=torch.uint8)
    return pictures, torch.randint(WORDS, (B, L), generator=chance)


def test_bytes_in_a_row_are_the_same_picture():
    model, (pictures, tokens) = spoken(), given()
    rows = pictures.flatten(1).long()
    torch.testing.assert_close(model(tokens, source=rows), model(tokens, source=pictures))
    wide = F.pad(rows, (0, 9), value=256)  # as a search on a GPU fills them up
    lengths = torch.full((3,), rows.shape[1])
    torch.testing.assert_close(model(tokens, source=wide, source_lengths=lengths), model(tokens, source=pictures))


def test_another_picture_changes_what_is_said_and_a_neighbour_does_not():
    model, (pictures, tokens) = spoken(), given()
    h = model(tokens, source=pictures)
    other = pictures.clone()
    other[1] = 255 - other[1]
    again = model(tokens, source=other)
    torch.testing.assert_close(again[[0, 2]], h[[0, 2]])
    assert (again[1] - h[1]).abs().max() > 0.01


def test_a_later_word_changes_nothing_before_it_and_a_memory_says_the_same():
    model, (pictures, tokens) = spoken(), given()
    h = model(tokens, source=pictures)
    later = tokens.clone()
    later[:, 4:] = (later[:, 4:] + 1) % WORDS
    torch.testing.assert_close(model(later, source=pictures)[:, :4], h[:, :4])
    memory = model.memory(3, 6, pictures)
    said = [model(tokens[:, t : t + 1], pos=torch.tensor([t]), memory=memory) for t in range(6)]
    torch.testing.assert_close(torch.cat(said, 1), h)


def test_the_decoder_is_pytorchs_over_the_states_of_the_patches():
    model, (pictures, tokens) = spoken(), given()
    layer = nn.TransformerDecoderLayer(16, 2, 64, 0.0, "gelu", 1e-6, True, True, dtype=torch.float64)
    theirs = nn.TransformerDecoder(layer, 2).eval()
    with torch.no_grad():
        for mine, its in zip(model.stack.blocks, theirs.layers, strict=True):
            for ours, of in ((mine.look, its.self_attn), (mine.cross, its.multihead_attn)):
                of.in_proj_weight.copy_(torch.cat([w.weight for w in (ours.W_q, ours.W_k, ours.W_v)]))
                of.in_proj_bias.copy_(torch.cat([w.bias for w in (ours.W_q, ours.W_k, ours.W_v)]))
                of.out_proj.load_state_dict(ours.W_o.state_dict())
            pairs = [(its.linear1, mine.mlp.W_1), (its.linear2, mine.mlp.W_2)]
            pairs += [(its.norm1, mine.look_sub.norm), (its.norm2, mine.cross_sub.norm), (its.norm3, mine.mlp_sub.norm)]
            for to, of in pairs:
                to.load_state_dict(of.state_dict())
        mean, spread = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (SEEN.mean, SEEN.spread))
        states = model.encoder((pictures.double() / 255 - mean) / spread)
        place = torch.arange(6)
        x = model.stack.positions.add(model.embed(tokens) * 4.0, place)
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        expected = model.norm(theirs(x, states, tgt_mask=mask))
    torch.testing.assert_close(model(tokens, source=pictures), expected, rtol=1e-5, atol=1e-6)  # means are float32


def test_every_weight_has_a_gradient_and_fresh_weights_know_nothing():
    model, (pictures, tokens) = build(), given()
    loss = F.cross_entropy(model.scores(tokens, source=pictures).flatten(0, 1), tokens.flatten())
    assert abs(loss.item() - torch.tensor(WORDS).log().item()) < 0.5
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_a_search_finds_the_caption_that_was_learned_by_heart_for_each_picture():
    model, (pictures, tokens) = build(d=32), given(B=4, L=4)
    edge = WORDS - 1
    tokens = tokens % (WORDS - 1)
    asked = torch.cat([torch.full((4, 1), edge), tokens], 1)
    answers = torch.cat([tokens, torch.full((4, 1), edge)], 1)
    rule = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        rule.zero_grad()
        F.cross_entropy(model.scores(asked, source=pictures).flatten(0, 1), answers.flatten()).backward()
        rule.step()
    found = Finder(model.eval()).search(pictures.flatten(1).tolist(), Search(beam=2, longest=8))
    assert [best[0].tokens for best in found] == tokens.tolist()


def test_words_are_hidden_in_training_alone():
    (pictures, tokens), plain, hidden = given(), build(), build(word_dropout=0.9)
    assert not torch.equal(plain(tokens, source=pictures), hidden(tokens, source=pictures))
    torch.testing.assert_close(plain.eval()(tokens, source=pictures), hidden.eval()(tokens, source=pictures))
