"""A Transformer of sets: no order, no trace of a neighbour in the batch, and the numbers of PyTorch's own encoder."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.models.sets import Shape
from harken.settings import Outputs

SEEN = Outputs(3, 5)
POOLS = ("mean", "first", "seed")
every_pool = pytest.mark.parametrize("pool", POOLS)
SIZES = torch.tensor([7, 3, 1, 6])


def build(seed: int = 0, **fields):
    torch.manual_seed(seed)
    return Shape(**{"d": 16, "layers": 2, "heads": 2, **fields}).build(SEEN)


def spoken(**fields):
    """With weights that are far from 0, so that mistakes show."""
    model = build(**fields).double().eval()
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(n))
    return model


def clouds(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_pool
def test_the_order_of_the_rows_changes_nothing(pool):
    model, x = spoken(pool=pool), clouds(4, 7)
    said = model(x, SIZES)
    for seed in range(5):
        order = torch.stack([
            torch.cat([torch.randperm(n, generator=torch.Generator().manual_seed(seed)), torch.arange(n, 7)])
            for n in SIZES.tolist()
        ])  # fmt: skip
        torch.testing.assert_close(model(x.take_along_dim(order[..., None], 1), SIZES), said)
    assert not torch.allclose(model(x.flip(-1), SIZES), said)  # of the columns it does


@every_pool
def test_a_set_among_others_is_the_same_as_alone_whatever_stands_behind_its_end(pool):
    model, x = spoken(pool=pool), clouds(4, 7)
    together = model(x, SIZES)
    behind = torch.arange(7) >= SIZES[:, None]
    torch.testing.assert_close(model(torch.where(behind[..., None], x + 9, x), SIZES), together)
    for n, size in enumerate(SIZES.tolist()):
        torch.testing.assert_close(model(x[n : n + 1, :size])[0], together[n])


def peer(model, norm: str) -> nn.TransformerEncoder:
    """PyTorch's encoder with our weights."""
    layer = nn.TransformerEncoderLayer(
        16, 2, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for mine, its in zip(model.body.stack.blocks, theirs.layers, strict=True):
            its.self_attn.in_proj_weight.copy_(
                torch.cat([w.weight for w in (mine.look.W_q, mine.look.W_k, mine.look.W_v)])
            )
            its.self_attn.in_proj_bias.copy_(torch.cat([w.bias for w in (mine.look.W_q, mine.look.W_k, mine.look.W_v)]))
            pairs = [(its.self_attn.out_proj, mine.look.W_o), (its.linear1, mine.mlp.W_1), (its.linear2, mine.mlp.W_2)]
            pairs += [(its.norm1, mine.look_sub.norm), (its.norm2, mine.mlp_sub.norm)]
            for to, of in pairs:
                to.weight.copy_(of.weight)
                to.bias.copy_(of.bias)
    return theirs


@pytest.mark.parametrize("norm", ["pre", "post"])
@every_pool
def test_it_says_what_pytorchs_encoder_says_with_the_same_weights(pool, norm):
    model, x = spoken(pool=pool, norm=norm), clouds(4, 7)
    body, behind = model.body, torch.arange(7) >= SIZES[:, None]
    h, own = body.embed(x), None if body.first is None else body.first.expand(4, 1, -1)
    if pool == "first":
        h, behind = torch.cat([own, h], 1), F.pad(behind, (1, 0))
    h = body.norm(peer(model, norm)(h, src_key_padding_mask=behind))
    if pool == "mean":
        pooled = torch.stack([h[n, :size].mean(0) for n, size in enumerate(SIZES.tolist())])
    elif pool == "first":
        pooled = h[:, 0]
    else:
        look = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            look.in_proj_weight.copy_(torch.cat([w.weight for w in (body.seed.W_q, body.seed.W_k, body.seed.W_v)]))
            look.in_proj_bias.copy_(torch.cat([w.bias for w in (body.seed.W_q, body.seed.W_k, body.seed.W_v)]))
            look.out_proj.weight.copy_(body.seed.W_o.weight)
            look.out_proj.bias.copy_(body.seed.W_o.bias)
        pooled = look(own, h, h, key_padding_mask=behind)[0][:, 0]
    torch.testing.assert_close(model(x, SIZES), model.W_y(pooled))


@every_pool
def test_there_is_a_number_for_each_label_and_a_gradient_for_each_weight(pool):
    model = build(pool=pool)
    y = model(clouds(4, 7).float(), SIZES)
    assert y.shape == (4, 5)
    F.cross_entropy(y, torch.tensor([0, 1, 2, 3])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_pool
def test_fresh_weights_know_nothing_and_follow_their_seed(pool):
    x, first, same, other = clouds(8, 6).float(), build(7, pool=pool), build(7, pool=pool), build(8, pool=pool)
    assert abs(F.cross_entropy(first(x), torch.arange(8) % 5).item() - math.log(5)) < 0.3
    assert torch.equal(first(x), same(x))
    assert not torch.equal(first(x), other(x))


@every_pool
def test_a_few_sets_can_be_learned_by_heart(pool):
    model, x, targets = build(pool=pool), clouds(10, 6).float(), torch.arange(10) % 5
    rule = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(100):
        rule.zero_grad()
        loss = F.cross_entropy(model(x), targets)
        loss.backward()
        rule.step()
    assert float(loss.detach()) < 0.1
