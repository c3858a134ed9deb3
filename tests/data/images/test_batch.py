"""Batches of images: a pure function of (seed, epoch, step), augmented as the settings say."""

import numpy as np
import pytest
import torch

from harken.data.images.source import Augmentation, ImageBatch, ImageBatches, ImageProcessor, ImageSplit

IDENTITY = ImageProcessor(["a", "b"], 8, [0.0], [1 / 255])  # inputs equal the uint8 pixels
ALL = Augmentation(shift=0.2, zoom=0.2, rotation=20, flip=True, erase=0.5, mixup=0.4, cutmix=0.4)


@pytest.fixture(scope="module")
def images() -> ImageSplit:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(1, 256, (50, 1, 8, 8), dtype=np.uint8))
    return ImageSplit(pixels, rng.integers(0, 2, 50), [str(n) for n in range(50)])


def make_batches(images, augmentation=ALL, seed=0, rows=16) -> ImageBatches:
    return ImageBatches(images, rows, n_patches=4, augmentation=augmentation, seed=seed)


def equal(a: ImageBatch, b: ImageBatch) -> bool:
    return a.tensors().keys() == b.tensors().keys() and all(
        torch.equal(x, b.tensors()[n]) for n, x in a.tensors().items()
    )


def test_a_batch_is_a_pure_function_of_seed_epoch_and_step(images):
    first, second = make_batches(images), make_batches(images)
    for epoch, step in ((0, 0), (3, 1), (1, 2)):
        assert equal(first.batch(epoch, step), second.batch(epoch, step))
    second.batch(7, 0)
    assert equal(first.batch(1, 2), second.batch(1, 2))  # independent of earlier batches
    assert not equal(first.batch(0, 0), first.batch(0, 1))
    assert not equal(first.batch(0, 0), first.batch(1, 0))
    assert not equal(first.batch(0, 0), make_batches(images, seed=1).batch(0, 0))


def test_an_epoch_has_every_image_at_most_once_in_batches_of_one_shape(images):
    batches = make_batches(images, Augmentation())
    pixels = torch.cat([batches.batch(2, step).tokens for step in range(batches.steps)])
    assert len({x.numpy().tobytes() for x in pixels}) == 48 == batches.steps * batches.rows
    batch = batches.batch(0, 0)
    assert (batch.n_targets, batch.n_tokens) == (16, 64)
    assert batch.static_shape


def test_without_augmentation_the_inputs_are_the_images(images):
    batch = make_batches(images, Augmentation()).batch(0, 0)
    assert torch.allclose(batch.inputs(IDENTITY), batch.tokens.float(), atol=1e-3)
    assert batch.target_weight() is None


def test_parts_of_a_batch_equal_the_batch(images):
    batch = make_batches(images).batch(0, 0)
    parts = [batch.slice_rows(0, 5), batch.slice_rows(5, 16)]
    # some CPUs sum fewer rows in another order
    inputs = torch.cat([part.inputs(IDENTITY) for part in parts])
    torch.testing.assert_close(inputs, batch.inputs(IDENTITY), atol=1e-3, rtol=1e-5)
    assert torch.equal(torch.cat([part.target_weight() for part in parts]), batch.target_weight())


def transform(x: torch.Tensor, affine) -> np.ndarray:
    affines = torch.tensor([affine] * len(x), dtype=torch.float32)
    return ImageBatch(x, torch.zeros(len(x)), n_patches=1, affine=affines).inputs(IDENTITY).numpy()


def test_a_shift_a_flip_and_a_quarter_rotation_equal_those_of_numpy(images):
    x = images.pixels[:3]
    shifted = transform(x, [[1, 0, 2 * 2 / 8], [0, 1, -2 * 1 / 8]])  # taken from 2 to the right and 1 above
    expected = np.zeros((3, 1, 8, 8))
    expected[:, :, 1:, :-2] = x.numpy()[:, :, :-1, 2:]
    assert np.allclose(shifted, expected, atol=0.01)
    assert np.allclose(transform(x, [[-1, 0, 0], [0, 1, 0]]), x.numpy()[..., ::-1], atol=0.01)
    assert np.allclose(transform(x, [[0, -1, 0], [1, 0, 0]]), np.rot90(x.numpy(), 1, (2, 3)), atol=0.01)


def test_random_affines_stay_within_the_settings(images):
    batches = make_batches(images, Augmentation(shift=0.25, zoom=0.5, rotation=10, flip=True), rows=50)
    affines = torch.cat([batches.batch(epoch, 0).affine for epoch in range(40)]).double()
    pixels = affines[:, :, 2] * 8 / 2
    assert set(pixels.flatten().tolist()) == {-2, -1, 0, 1, 2}  # whole pixels
    scale = affines[:, :, :2].det().abs().sqrt()
    assert 1 / 1.5 <= scale.min() < 0.7 < 1.4 < scale.max() <= 1.5
    flipped = (affines[:, :, :2].det() < 0).double().mean()
    assert 0.45 < flipped < 0.55
    angle = torch.atan2(affines[:, 1, 0] * affines[:, :, :2].det().sign(), affines[:, 1, 1]).rad2deg()
    assert 9 < angle.abs().max() <= 10 + 1e-4


def test_a_box_is_erased_in_half_of_the_images(images):
    batches = make_batches(images, Augmentation(erase=0.5), rows=50)
    inputs = [batches.batch(epoch, 0).inputs(IDENTITY) for epoch in range(20)]
    n_erased = torch.cat([(x == 0).flatten(1).sum(1) for x in inputs])
    assert 0.4 < (n_erased > 0).float().mean() < 0.6
    assert n_erased.max() <= 24  # about a quarter of 64 pixels, rounded up


@pytest.mark.parametrize(
    "augmentation", [Augmentation(mixup=0.5), Augmentation(cutmix=0.5), Augmentation(mixup=0.5, cutmix=0.5)]
)
def test_the_target_weight_is_the_fraction_of_the_first_image(images, augmentation):
    batch = make_batches(images, augmentation).batch(0, 0)
    weight, first, second = batch.target_weight(), batch.tokens.float(), batch.mix_pixels.float()
    inputs = batch.inputs(IDENTITY)
    assert 0 <= weight.min() < weight.max() <= 1
    for n in range(16):
        if augmentation.cutmix and float(batch.mix_weight[n]) == 1:
            fraction = (inputs[n].round() == first[n]).float().mean()
            assert abs(fraction - weight[n]) < 0.05  # some pixels are equal in both
        else:
            assert torch.allclose(inputs[n], weight[n] * first[n] + (1 - weight[n]) * second[n], atol=0.01)
