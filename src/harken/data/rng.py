"""Random numbers by position: every generator is a pure function of a seed and a path of integers."""

from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import TypeVar

import numpy as np

Owner = TypeVar("Owner")
Drawn = TypeVar("Drawn")


class RngStream(IntEnum):
    """First number of a path. Names with the same value share a stream; changing a value changes the data order."""

    WINDOW_OFFSETS = 1
    WINDOW_ORDER = 2
    DOCUMENT_ORDER = 3
    BUCKET_ORDER = 4  # padded batches of pairs, labelled texts and sets
    RANK_SEED = 4
    PACKED_ROW_ORDER = 5
    IMAGE_ORDER = 5
    CAPTION_ORDER = 5
    MATHS_TRAIN = 5
    PASSAGE_ORDER = 6
    NODE_ORDER = 6
    IMAGE_AUGMENTATION = 6
    MATHS_EVAL = 6
    MASKING = 7
    LINK_NEGATIVES = 7
    SYNTHETIC_DIGITS = 7
    LINK_EVAL_NEGATIVES = 8
    STORY_ORDER = 8
    PROMPT_EXAMPLES = 8
    SCENE_HELD_OUT = 10
    SCENE_DRAW = 11
    SCENE_PIXELS = 12
    UNKNOWN_WORDS = 14
    BOOTSTRAP = 13  # resamples of the examples of an evaluation


def rng_for(seed: int, *path: int) -> np.random.Generator:
    """Generator for one position in training; the same (seed, path) always yields the same numbers."""
    return np.random.Generator(np.random.PCG64([seed, *path]))


def once_per_epoch(draw: Callable[[Owner, int], Drawn]) -> Callable[[Owner, int], Drawn]:
    """A method of an epoch whose last value is stored in the instance: every step of an epoch takes a part of it."""
    name = f"_{draw.__name__}"

    @wraps(draw)
    def cached(self: Owner, epoch: int) -> Drawn:
        if vars(self).get(name, (None,))[0] != epoch:
            vars(self)[name] = epoch, draw(self, epoch)
        value: Drawn = vars(self)[name][1]
        return value

    return cached
