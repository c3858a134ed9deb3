"""Batches of pictures: the same for the same (seed, epoch, step), and changed as the words for it say."""

import numpy as np
import pytest
import torch

from harken.data.images.batch import Change, ImageBatch, Shuffled
from harken.data.images.source import Lens, Pictures

LENS = Lens(["a", "b"], 8, [0.0], [1 / 255])  # numbers are bytes
EVERY = Change(shift=0.2, zoom=0.2, turn=20, flip=True, erase=0.5, mixup=0.4, cutmix=0.4)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(1, 256, (50, 1, 8, 8), dtype=np.uint8))
    return Pictures(pixels, rng.integers(0, 2, 50), [str(n) for n in range(50)])


def batches(pictures, change=EVERY, seed=0) -> Shuffled:
    return Shuffled(pictures, 16, places=4, change=change, seed=seed)


def same(a: ImageBatch, b: ImageBatch) -> bool:
    return a.tensors().keys() == b.tensors().keys() and all(
        torch.equal(x, b.tensors()[n]) for n, x in a.tensors().items()
    )


def test_a_batch_is_a_pure_function_of_seed_epoch_and_step(pictures):
    first, second = batches(pictures), batches(pictures)
    for epoch, step in ((0, 0), (3, 1), (1, 2)):
        assert same(first.batch(epoch, step), second.batch(epoch, step))
    second.batch(7, 0)
    assert same(first.batch(1, 2), second.batch(1, 2))  # whatever came before
    assert not same(first.batch(0, 0), first.batch(0, 1))
    assert not same(first.batch(0, 0), first.batch(1, 0))
    assert not same(first.batch(0, 0), batches(pictures, seed=1).batch(0, 0))


def test_an_epoch_shows_every_picture_at_most_once_and_all_batches_have_one_shape(pictures):
    made = batches(pictures, Change())
    seen = torch.cat([made.batch(2, step).tokens for step in range(made.steps)])
    assert len({x.numpy().tobytes() for x in seen}) == 48 == made.steps * made.rows
    batch = made.batch(0, 0)
    assert (batch.count, batch.size) == (16, 64)
    assert batch.steady


def test_without_any_change_a_model_sees_the_pictures_themselves(pictures):
    batch = batches(pictures, Change()).batch(0, 0)
    assert torch.allclose(batch.seen(LENS), batch.tokens.float(), atol=1e-3)
    assert batch.share() is None


def test_parts_of_a_batch_are_the_same_as_the_whole(pictures):
    batch = batches(pictures).batch(0, 0)
    parts = [batch.rows(0, 5), batch.rows(5, 16)]
    # some processors add up fewer rows in another order
    torch.testing.assert_close(torch.cat([part.seen(LENS) for part in parts]), batch.seen(LENS), atol=1e-3, rtol=1e-5)
    assert torch.equal(torch.cat([part.share() for part in parts]), batch.share())


def viewed(x: torch.Tensor, view) -> torch.Tensor:
    made = ImageBatch(x, torch.zeros(len(x)), places=1, view=torch.tensor([view] * len(x), dtype=torch.float32))
    return made.seen(LENS)


def test_a_shift_of_whole_pixels_a_mirror_and_a_quarter_turn_are_those_of_numpy(pictures):
    x = pictures.pixels[:3]
    moved = viewed(x, [[1, 0, 2 * 2 / 8], [0, 1, -2 * 1 / 8]])  # taken from 2 to the right and 1 above
    expected = np.zeros((3, 1, 8, 8))
    expected[:, :, 1:, :-2] = x.numpy()[:, :, :-1, 2:]
    assert np.allclose(moved.numpy(), expected, atol=0.01)
    assert np.allclose(viewed(x, [[-1, 0, 0], [0, 1, 0]]).numpy(), x.numpy()[..., ::-1], atol=0.01)
    assert np.allclose(viewed(x, [[0, -1, 0], [1, 0, 0]]).numpy(), np.rot90(x.numpy(), 1, (2, 3)), atol=0.01)


def test_what_is_drawn_stays_within_what_was_asked_for(pictures):
    many = Shuffled(pictures, 50, places=1, change=Change(shift=0.25, zoom=0.5, turn=10, flip=True), seed=0)
    views = torch.cat([many.batch(epoch, 0).view for epoch in range(40)]).double()
    pixels = views[:, :, 2] * 8 / 2
    assert set(pixels.flatten().tolist()) == {-2, -1, 0, 1, 2}  # whole ones
    size = views[:, :, :2].det().abs().sqrt()
    assert 1 / 1.5 <= size.min() < 0.7 < 1.4 < size.max() <= 1.5
    mirrored = (views[:, :, :2].det() < 0).double().mean()
    assert 0.45 < mirrored < 0.55
    angle = torch.atan2(views[:, 1, 0] * views[:, :, :2].det().sign(), views[:, 1, 1]).rad2deg()
    assert 9 < angle.abs().max() <= 10 + 1e-4


def test_of_half_of_the_pictures_a_box_is_erased(pictures):
    many = Shuffled(pictures, 50, places=1, change=Change(erase=0.5), seed=0)
    gone = torch.cat([(many.batch(epoch, 0).seen(LENS) == 0).flatten(1).sum(1) for epoch in range(20)])
    assert 0.4 < (gone > 0).float().mean() < 0.6
    assert gone.max() <= 24  # about a quarter of 64 pixels, in whole ones


@pytest.mark.parametrize("change", [Change(mixup=0.5), Change(cutmix=0.5), Change(mixup=0.5, cutmix=0.5)])
def test_a_mixed_picture_has_as_much_of_each_as_its_share_says(pictures, change):
    batch = batches(pictures, change).batch(0, 0)
    share, own, other = batch.share(), batch.tokens.float(), batch.other.float()
    mean = batch.seen(LENS)
    assert 0 <= share.min() < share.max() <= 1
    for n in range(16):
        if change.cutmix and float(batch.blend[n]) == 1:
            kept = (mean[n].round() == own[n]).float().mean()
            assert abs(kept - share[n]) < 0.05  # a pixel may be equal in both
        else:
            assert torch.allclose(mean[n], share[n] * own[n] + (1 - share[n]) * other[n], atol=0.01)
