"""Set Transformer: invariant to the order of the rows and to other sets in the batch, and equal to PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.core import Attention
from harken.models.sets import SetTransformerSettings
from harken.settings import LabelOutputs

OUTPUTS = LabelOutputs(3, 5)
POOLS = ("mean", "first", "seed")
every_pool = pytest.mark.parametrize("pool", POOLS)
SIZES = torch.tensor([7, 3, 1, 6])


def build(seed: int = 0, **fields):
    torch.manual_seed(seed)
    return SetTransformerSettings(**{"d": 16, "layers": 2, "heads": 2, **fields}).build(OUTPUTS)


def perturbed(**fields):
    """A model with large weights."""
    model = build(**fields).double().eval()
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(n))
    return model


def random_sets(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_pool
def test_the_order_of_the_rows_has_no_effect(pool):
    model, x = perturbed(pool=pool), random_sets(4, 7)
    output = model(x, SIZES)
    for seed in range(5):
        order = torch.stack([
            torch.cat([torch.randperm(n, generator=torch.Generator().manual_seed(seed)), torch.arange(n, 7)])
            for n in SIZES.tolist()
        ])  # fmt: skip
        torch.testing.assert_close(model(x.take_along_dim(order[..., None], 1), SIZES), output)
    assert not torch.allclose(model(x.flip(-1), SIZES), output)  # the order of the columns matters


@every_pool
def test_padded_sets_equal_single_sets_for_any_padding(pool):
    model, x = perturbed(pool=pool), random_sets(4, 7)
    output = model(x, SIZES)
    padding = torch.arange(7) >= SIZES[:, None]
    torch.testing.assert_close(model(torch.where(padding[..., None], x + 9, x), SIZES), output)
    for n, size in enumerate(SIZES.tolist()):
        torch.testing.assert_close(model(x[n : n + 1, :size])[0], output[n])


def torch_encoder(model, norm: str) -> nn.TransformerEncoder:
    """The encoder of PyTorch with the weights of the model."""
    layer = nn.TransformerEncoderLayer(
        16, 2, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for block, layer in zip(model.body.stack.blocks, encoder.layers, strict=True):
            copy_attention(layer.self_attn, block.attention)
            pairs = [(layer.linear1, block.mlp.W_1), (layer.linear2, block.mlp.W_2)]
            pairs += [(layer.norm1, block.attention_sublayer.norm), (layer.norm2, block.mlp_sublayer.norm)]
            for target, module in pairs:
                target.load_state_dict(module.state_dict())
    return encoder


@torch.no_grad()
def copy_attention(target: nn.MultiheadAttention, attention: Attention) -> None:
    projections = attention.W_q, attention.W_k, attention.W_v
    target.in_proj_weight.copy_(torch.cat([W.weight for W in projections]))
    target.in_proj_bias.copy_(torch.cat([W.bias for W in projections]))
    target.out_proj.load_state_dict(attention.W_o.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
@every_pool
def test_the_encoder_equals_the_encoder_of_pytorch(pool, norm):
    model, x = perturbed(pool=pool, norm=norm), random_sets(4, 7)
    body, padding = model.body, torch.arange(7) >= SIZES[:, None]
    h, extra_row = body.embed(x), None if body.first is None else body.first.expand(4, 1, -1)
    if pool == "first":
        h, padding = torch.cat([extra_row, h], 1), F.pad(padding, (1, 0))
    h = body.norm(torch_encoder(model, norm)(h, src_key_padding_mask=padding))
    if pool == "mean":
        pooled = torch.stack([h[n, :size].mean(0) for n, size in enumerate(SIZES.tolist())])
    elif pool == "first":
        pooled = h[:, 0]
    else:
        attention = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
        copy_attention(attention, body.seed)
        pooled = attention(extra_row, h, h, key_padding_mask=padding)[0][:, 0]
    torch.testing.assert_close(model(x, SIZES), model.W_y(pooled))


@every_pool
def test_every_label_has_an_output_and_every_parameter_a_gradient(pool):
    model = build(pool=pool)
    y = model(random_sets(4, 7).float(), SIZES)
    assert y.shape == (4, 5)
    F.cross_entropy(y, torch.tensor([0, 1, 2, 3])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_pool
def test_the_initial_loss_is_uniform_and_depends_on_the_seed(pool):
    x, first, same, other = random_sets(8, 6).float(), build(7, pool=pool), build(7, pool=pool), build(8, pool=pool)
    assert abs(F.cross_entropy(first(x), torch.arange(8) % 5).item() - math.log(5)) < 0.3
    assert torch.equal(first(x), same(x))
    assert not torch.equal(first(x), other(x))


@every_pool
def test_a_batch_can_be_memorized(pool):
    model, x, targets = build(pool=pool), random_sets(10, 6).float(), torch.arange(10) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1
