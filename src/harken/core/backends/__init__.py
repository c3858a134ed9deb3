"""Backends of `attend`: explicit (all weights A), fused (PyTorch kernel), sparse (listed pairs), blocks, flex (GPU)."""

from .blocks import blocks, blockwise, per_document
from .explicit import explicit
from .flex import block_mask, flex
from .fused import fused
from .sparse import edge_softmax, mix, pair_weights, sparse

__all__ = [
    "block_mask", "blocks", "blockwise", "edge_softmax", "explicit", "flex", "fused", "mix", "pair_weights",
    "per_document", "sparse",
]  # fmt: skip
