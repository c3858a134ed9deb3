"""The attention equation and its layers. Imports torch only: no tokens, files or settings.

Shapes: B batch, H heads, L length (Lq of queries, Lk of keys), D width of a head, d width of the model, E pairs,
G query heads that share a key head. Order inside the core: B H L D; outside: B L d.
"""

from .attend import BACKENDS, BackendChoice, Editor, Watcher, attend, attention_weights, select_backend, weighted_values
from .backends import blockwise, edge_softmax, explicit, linear, mix, pair_weights, per_document
from .kernels import CosineKernel, FeatureKernel, Latent
from .layers import MLP, Attention, Block, BlockConfig, LayerContext, Stack, Sublayer
from .memory import FixedMemory, Memory
from .positions import Alibi, Learned, Positions, Rotary, Sinusoid, linear_scaling, llama3_scaling, ntk_scaling

from .similarity import (  # isort: skip
    Additive, Bilinear, Concat, Dot, Gaussian, Kernel, Mahalanobis, ScaledDot, Similarity, polynomial,
)  # fmt: skip
from .structure import CAUSAL, FULL, Layout, Structure, bigbird, edges, global_tokens, keep, random_links, same, window
from .view import View, Watchable, editing, is_watched, watching

# fmt: off
__all__ = [
    "BACKENDS", "CAUSAL", "FULL", "MLP", "Additive", "Alibi", "Attention", "BackendChoice", "Bilinear", "Block",
    "BlockConfig", "Concat", "CosineKernel", "Dot", "Editor", "FeatureKernel", "FixedMemory", "Gaussian", "Kernel",
    "Latent", "LayerContext", "Layout", "Learned", "Mahalanobis", "Memory", "Positions", "Rotary", "ScaledDot",
    "Similarity", "Sinusoid", "Stack", "Structure", "Sublayer", "View", "Watchable", "Watcher", "attend",
    "attention_weights", "bigbird", "blockwise", "edge_softmax", "edges", "editing", "explicit", "global_tokens",
    "is_watched", "keep", "linear", "linear_scaling", "llama3_scaling", "mix", "ntk_scaling", "pair_weights",
    "per_document", "polynomial", "random_links", "same", "select_backend", "watching", "weighted_values", "window",
]
