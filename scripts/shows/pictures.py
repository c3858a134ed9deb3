"""The same block on images and sets: patches or rows instead of words."""

import torch

from harken.models import sets
from harken.models.vit import ViTSettings
from harken.settings import ImageShape, LabelOutputs

from . import EXACT, Measurement, gap, show


@show()
def pictures_are_sets() -> Measurement:
    """Patches are a set: without positional encoding their order has no effect."""
    x = torch.randn(1, 1, 12, 12)
    moved = x.unflatten(2, (3, 4))[:, :, [2, 0, 1]].flatten(2, 3)  # rows of patches
    changed = []
    for positions in ("none", "learned"):
        model = ViTSettings(d=16, layers=2, heads=2, patch=4, pool="mean", positions=positions).build(
            ImageShape(12, 1, 10)
        )
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.3)
        changed.append(gap(model(x), model(moved)))
    words = f"change of the output if the patches are permuted; {changed[1]:.2g} with positional encoding"
    return Measurement(changed[0], words, changed[0] < EXACT < 0.01 < changed[1])


@show()
def sets_have_no_order() -> Measurement:
    """Without positional encoding the order of the rows of a set has no effect; removing rows has."""
    x = torch.randn(1, 9, 3)
    model = sets.SetTransformerSettings(size="tiny").build(LabelOutputs(3, 4))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    moved, fewer = gap(model(x), model(x[:, torch.randperm(9)])), gap(model(x), model(x[:, 5:]))
    words = f"change of the output if the rows of a set are permuted; {fewer:.2g} if five rows are removed"
    return Measurement(moved, words, moved < EXACT < 0.01 < fewer)


@show()
def vision_transformer() -> Measurement:
    """ViT-B/16 is the block of 2019, 12 times, on 196 patches and CLS; its number of weights is the published one."""
    with torch.device("meta"):
        model = ViTSettings(size="base").build(ImageShape(224, 3, 1000))
    weights = sum(p.numel() for p in model.parameters())
    return Measurement(weights, "weights of ViT-B/16 with 1,000 labels; published 86.6 million", weights == 86_567_656)
