"""A ViT: patches, CLS or the mean, places in rows and columns. tests/bridge/test_vit_names.py has transformers' own."""

import math

import pytest
import torch
import torch.nn.functional as F

from harken.core import Learned
from harken.models.vit import Grid, Shape
from harken.settings import Pixels

SEEN = Pixels(12, 1, 5)
SMALL = {"d": 16, "layers": 2, "heads": 2}
KINDS = [
    {},
    {"pool": "mean", "positions": "sinusoid"},
    {"stem": "conv", "positions": "none"},
    {"patch": 5, "norm": "post"},
]
every_kind = pytest.mark.parametrize("fields", KINDS, ids=lambda fields: "-".join(map(str, fields.values())) or "plain")


def build(seed: int = 0, pixels: Pixels = SEEN, **fields):
    torch.manual_seed(seed)
    return Shape(**{**SMALL, "patch": 4, **fields}).build(pixels)


def pictures(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_vit_b_16_has_the_weights_that_are_known_of_it():
    with torch.device("meta"):
        model = Shape(size="base").build(Pixels(224, 3, 1000))
    assert sum(p.numel() for p in model.parameters()) == 86_567_656


@pytest.mark.parametrize(("size", "weights"), [("tiny", 5_717_416), ("small", 22_050_664), ("large", 304_326_632)])
def test_the_sizes_have_the_weights_of_the_papers(size, weights):
    with torch.device("meta"):
        model = Shape(size=size).build(Pixels(224, 3, 1000))
    assert sum(p.numel() for p in model.parameters()) == weights


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (16, 2), (28, 4), (32, 4), (64, 8), (128, 8), (224, 16)])
def test_a_patch_follows_the_side_of_the_pictures_unless_it_is_given(side, patch):
    assert Shape().cut(side) == patch
    assert Shape(stem="conv").cut(side) == (patch if side <= 16 else 2 * patch)
    assert Shape(patch=7).cut(side) == 7


@every_kind
def test_there_is_a_number_for_each_label_and_a_gradient_for_each_weight(fields):
    model = build(**fields)
    y = model(pictures(3, 1, 12, 12))
    assert y.shape == (3, 5)
    F.cross_entropy(y, torch.tensor([0, 1, 2])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_kind
def test_fresh_weights_know_nothing_and_follow_their_seed(fields):
    x, first, same, other = pictures(8, 1, 12, 12), build(7, **fields), build(7, **fields), build(8, **fields)
    assert abs(F.cross_entropy(first(x), torch.arange(8) % 5).item() - math.log(5)) < 0.3
    assert torch.equal(first(x), same(x))
    assert not torch.equal(first(x), other(x))


@every_kind
def test_a_batch_can_be_learned_by_heart(fields):
    model, x, targets = build(**fields), pictures(10, 1, 12, 12), torch.arange(10) % 5
    rule = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(100):
        rule.zero_grad()
        loss = F.cross_entropy(model(x), targets)
        loss.backward()
        rule.step()
    assert float(loss.detach()) < 0.1


@every_kind
def test_a_picture_is_the_same_among_others_as_alone(fields):
    model, x = build(**fields).eval(), pictures(4, 1, 12, 12)
    assert torch.allclose(model(x)[2], model(x[2:3])[0], atol=1e-6)


def test_an_encoder_has_a_state_for_each_patch_and_for_cls_as_its_shape_says():
    for fields in KINDS:
        model, shape = build(**fields), Shape(**{**SMALL, "patch": 4, **fields})
        assert model.body(pictures(2, 1, 12, 12)).shape == (2, shape.places(12), 16)


def test_without_places_the_order_of_the_patches_changes_nothing():
    x = pictures(2, 1, 12, 12)
    moved = x.unflatten(2, (3, 4))[:, :, [2, 0, 1]].flatten(2, 3)  # whole rows of patches
    for positions, same in (("none", True), ("learned", False), ("sinusoid", False)):
        model = build(pool="mean", positions=positions)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
            assert torch.allclose(model(x), model(moved), atol=1e-5) is same, positions


def test_places_are_sines_and_cosines_of_row_and_column_written_out():
    wide, d, first = 3, 8, 1
    found = Grid(wide, first).add(torch.zeros(1, 1 + wide**2, d), torch.arange(1 + wide**2))[0]
    assert torch.equal(found[0], torch.zeros(d))  # CLS
    for row in range(wide):
        for column in range(wide):
            waves = []
            for place in (row, column):
                angles = [place * 10000 ** (-2 * i / (d // 2)) for i in range(d // 4)]
                waves += [*map(math.sin, angles), *map(math.cos, angles)]
            assert torch.allclose(found[first + row * wide + column], torch.tensor(waves), atol=1e-6)


def test_a_picture_that_does_not_split_is_widened_by_what_is_neither_dark_nor_bright():
    model, x = build(patch=5).eval(), pictures(2, 1, 12, 12)
    assert model.body.stack.positions.table.num_embeddings == 1 + 9
    wide = build(pixels=Pixels(15, 1, 5), patch=5).eval()
    wide.load_state_dict(model.state_dict())
    assert torch.allclose(model(x), wide(F.pad(x, (0, 3, 0, 3))), atol=1e-6)


def test_a_linear_patch_is_the_map_of_its_pixels():
    model, x = build(pool="mean", positions="none"), pictures(1, 1, 12, 12)
    patch = x[0, 0, 4:8, 8:12].flatten()
    W, b = model.body.embed.weight.flatten(1), model.body.embed.bias
    assert torch.allclose(model.body.embed(x)[0, :, 1, 2], W @ patch + b, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"positions": "sinusoid", "d": 18}, "try d=20"), ({"stem": "conv", "patch": 6}, "patch=6 does not fit")],
)
def test_what_does_not_fit_is_refused_with_a_way_out(fields, told):
    with pytest.raises(ValueError, match=told):
        build(**fields)


def test_learned_places_are_the_default_and_their_table_has_one_for_cls():
    assert isinstance(build().body.stack.positions, Learned)
    assert build().body.stack.positions.table.num_embeddings == 10
    assert build(pool="mean").body.stack.positions.table.num_embeddings == 9
