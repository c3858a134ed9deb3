"""THE EQUATION. torch only; no tokens, no files, no config.

Shapes: B batch, H heads, L length (Lq of queries, Lk of keys), D width of a head, d width of the model, E pairs,
G query heads that share a key head. Order inside the core: B H L D; outside: B L d.
"""

from .attend import attend, blocks, explicit, flex, fused, mix, sparse
from .layers import MLP, Attention, Block, Place, Stack, Sublayer, Wiring
from .memory import Fixed, Memory
from .positions import Alibi, Learned, Positions, Rotary, Sinusoid
from .similarity import Additive, Bilinear, Concat, Dot, Gaussian, Kernel, Latent, Mahalanobis, ScaledDot, Similarity
from .similarity import polynomial as polynomial  # alone, since the others fill their line
from .structure import CAUSAL, FULL, Layout, Structure, Tiles, bigbird, edges, hubs, keep, random_links, same, window
from .view import Editor, View, Watcher, edge_softmax, editing, watching, weights

# fmt: off
__all__ = [
    "CAUSAL", "FULL", "MLP", "Additive", "Alibi", "Attention", "Bilinear", "Block", "Concat", "Dot", "Editor", "Fixed",
    "Gaussian", "Kernel", "Latent", "Layout", "Learned", "Mahalanobis", "Memory", "Place", "Positions", "Rotary",
    "ScaledDot", "Similarity", "Sinusoid", "Stack", "Structure", "Sublayer", "Tiles", "View", "Watcher", "Wiring",
    "attend", "bigbird", "blocks", "edge_softmax", "edges", "editing", "explicit", "flex", "fused", "hubs", "keep",
    "mix", "polynomial", "random_links", "same", "sparse", "watching", "weights", "window",
]
