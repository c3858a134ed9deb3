"""Backends of `attend`.

explicit (all weights A), fused (PyTorch kernel), sparse (listed pairs), linear (kernels with features), blocks, flex
(GPU).
"""

from harken.core.attend import BACKENDS

from .blocks import blocks, blockwise, per_document
from .dense import explicit, fused
from .flex import flex
from .linear import linear
from .sparse import edge_softmax, mix, pair_weights, sparse

BACKENDS.update({backend.__name__: backend for backend in (explicit, fused, sparse, linear, blocks, flex)})

__all__ = ["blockwise", "edge_softmax", "explicit", "fused", "linear", "mix", "pair_weights", "per_document", "sparse"]
