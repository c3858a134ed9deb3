"""The same block on pictures: patches instead of words."""

import torch

from harken.models.vit import Shape
from harken.part import Pixels

from . import EXACT, Seen, gap, show


@show()
def pictures_are_sets() -> Seen:
    """Patches are a set: without places their order changes nothing, with places it does."""
    x = torch.randn(1, 1, 12, 12)
    moved = x.unflatten(2, (3, 4))[:, :, [2, 0, 1]].flatten(2, 3)  # rows of patches
    changed = []
    for positions in ("none", "learned"):
        model = Shape(d=16, layers=2, heads=2, patch=4, pool="mean", positions=positions).build(Pixels(12, 1, 10))
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.3)
        changed.append(gap(model(x), model(moved)))
    words = f"change of what is said when patches change places, with places {changed[1]:.2g}"
    return Seen(changed[0], words, changed[0] < EXACT < 0.01 < changed[1])


@show()
def vision_transformer() -> Seen:
    """ViT-B/16 is the block of 2019, 12 times, on 196 patches and CLS: its weights are those that are known of it."""
    with torch.device("meta"):
        model = Shape(size="base").build(Pixels(224, 3, 1000))
    weights = sum(p.numel() for p in model.parameters())
    return Seen(weights, "weights of ViT-B/16 with 1,000 labels; published 86.6 million", weights == 86_567_656)
