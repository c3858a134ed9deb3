"""ViT: patches, CLS or mean pooling, positions of rows and columns. tests/bridge compares it with transformers."""

import math

import pytest
import torch
import torch.nn.functional as F

from harken.core import Learned
from harken.models.vit import Sinusoid2d, ViTSettings
from harken.settings import ImageShape

IMAGE_SHAPE = ImageShape(12, 1, 5)
SMALL = {"d": 16, "layers": 2, "heads": 2}
KINDS = [
    {},
    {"pool": "mean", "positions": "sinusoid"},
    {"stem": "conv", "positions": "none"},
    {"patch": 5, "norm": "post"},
]
every_kind = pytest.mark.parametrize("fields", KINDS, ids=lambda fields: "-".join(map(str, fields.values())) or "plain")


def build(seed: int = 0, image_shape: ImageShape = IMAGE_SHAPE, **fields):
    torch.manual_seed(seed)
    return ViTSettings(**{**SMALL, "patch": 4, **fields}).build(image_shape)


def random_images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_vit_b_16_has_its_published_parameter_count():
    with torch.device("meta"):
        model = ViTSettings(size="base").build(ImageShape(224, 3, 1000))
    assert sum(p.numel() for p in model.parameters()) == 86_567_656


@pytest.mark.parametrize(("size", "n_parameters"), [("tiny", 5_717_416), ("small", 22_050_664), ("large", 304_326_632)])
def test_the_sizes_have_the_parameter_counts_of_the_papers(size, n_parameters):
    with torch.device("meta"):
        model = ViTSettings(size=size).build(ImageShape(224, 3, 1000))
    assert sum(p.numel() for p in model.parameters()) == n_parameters


@pytest.mark.parametrize(("image_size", "patch"), [(8, 2), (16, 2), (28, 4), (32, 4), (64, 8), (128, 8), (224, 16)])
def test_the_patch_size_depends_on_the_image_size_unless_it_is_set(image_size, patch):
    assert ViTSettings().patch_size(image_size) == patch
    assert ViTSettings(stem="conv").patch_size(image_size) == (patch if image_size <= 16 else 2 * patch)
    assert ViTSettings(patch=7).patch_size(image_size) == 7


@every_kind
def test_every_label_has_an_output_and_every_parameter_a_gradient(fields):
    model = build(**fields)
    y = model(random_images(3, 1, 12, 12))
    assert y.shape == (3, 5)
    F.cross_entropy(y, torch.tensor([0, 1, 2])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_kind
def test_the_initial_loss_is_uniform_and_depends_on_the_seed(fields):
    x, first, same, other = random_images(8, 1, 12, 12), build(7, **fields), build(7, **fields), build(8, **fields)
    assert abs(F.cross_entropy(first(x), torch.arange(8) % 5).item() - math.log(5)) < 0.3
    assert torch.equal(first(x), same(x))
    assert not torch.equal(first(x), other(x))


@every_kind
def test_a_batch_can_be_memorized(fields):
    model, x, targets = build(**fields), random_images(10, 1, 12, 12), torch.arange(10) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1


@every_kind
def test_an_image_in_a_batch_equals_a_single_image(fields):
    model, x = build(**fields).eval(), random_images(4, 1, 12, 12)
    assert torch.allclose(model(x)[2], model(x[2:3])[0], atol=1e-6)


def test_the_encoder_has_n_tokens_states():
    for fields in KINDS:
        model, settings = build(**fields), ViTSettings(**{**SMALL, "patch": 4, **fields})
        assert model.body(random_images(2, 1, 12, 12)).shape == (2, settings.n_tokens(12), 16)


def test_without_positions_the_order_of_the_patches_has_no_effect():
    x = random_images(2, 1, 12, 12)
    moved = x.unflatten(2, (3, 4))[:, :, [2, 0, 1]].flatten(2, 3)  # rows of patches
    for positions, same in (("none", True), ("learned", False), ("sinusoid", False)):
        model = build(pool="mean", positions=positions)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
            assert torch.allclose(model(x), model(moved), atol=1e-5) is same, positions


def test_sinusoid_2d_has_sines_and_cosines_of_row_and_column():
    side, d, n_extra = 3, 8, 1
    encoding = Sinusoid2d(side, n_extra).add(torch.zeros(1, 1 + side**2, d), torch.arange(1 + side**2))[0]
    assert torch.equal(encoding[0], torch.zeros(d))  # CLS
    for row in range(side):
        for column in range(side):
            waves = []
            for coordinate in (row, column):
                angles = [coordinate * 10000 ** (-2 * i / (d // 2)) for i in range(d // 4)]
                waves += [*map(math.sin, angles), *map(math.cos, angles)]
            assert torch.allclose(encoding[n_extra + row * side + column], torch.tensor(waves), atol=1e-6)


def test_an_image_is_padded_with_zeros_to_a_multiple_of_the_patch_size():
    model, x = build(patch=5).eval(), random_images(2, 1, 12, 12)
    assert model.body.stack.positions.table.num_embeddings == 1 + 9
    wide = build(image_shape=ImageShape(15, 1, 5), patch=5).eval()
    wide.load_state_dict(model.state_dict())
    assert torch.allclose(model(x), wide(F.pad(x, (0, 3, 0, 3))), atol=1e-6)


def test_a_patch_embedding_is_a_linear_map_of_its_pixels():
    model, x = build(pool="mean", positions="none"), random_images(1, 1, 12, 12)
    patch = x[0, 0, 4:8, 8:12].flatten()
    W, b = model.body.embed.weight.flatten(1), model.body.embed.bias
    assert torch.allclose(model.body.embed(x)[0, :, 1, 2], W @ patch + b, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "sinusoid", "d": 18}, "needs d divisible by 4, but d=18; use d=20"),
        ({"stem": "conv", "patch": 6}, "patch=6 is not possible; use 2, 4 or 8"),
    ],
)
def test_impossible_sizes_are_reported_with_possible_ones(fields, message):
    with pytest.raises(ValueError, match=message):
        build(**fields)


def test_learned_positions_are_the_default_and_include_cls():
    assert isinstance(build().body.stack.positions, Learned)
    assert build().body.stack.positions.table.num_embeddings == 10
    assert build(pool="mean").body.stack.positions.table.num_embeddings == 9
