"""Random numbers by position: every generator is a pure function of a seed and a path of integers."""

from enum import IntEnum
from functools import lru_cache

import numpy as np


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


def rng_for(seed: int, *path: int) -> np.random.Generator:
    """Generator for one position in training; the same (seed, path) always yields the same numbers."""
    return np.random.Generator(np.random.PCG64([seed, *path]))


@lru_cache(4)
def epoch_order(seed: int, stream: RngStream, epoch: int, n: int) -> "np.typing.NDArray[np.int64]":
    """The random order of n examples in an epoch; cached because every step of the epoch takes a part of it."""
    return rng_for(seed, stream, epoch).permutation(n)
