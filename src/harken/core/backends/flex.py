"""Backend `flex`: FlexAttention on a GPU. Blocks without an allowed pair are neither computed nor stored."""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harken.core.similarity import Similarity
from harken.core.structure import Layout

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# FlexAttention and its masks are kernels only when compiled; the default limit of 8 shapes would end in dense attention
compiled = cache(lambda f: torch._dynamo.config.patch(recompile_limit=64)(torch.compile(f)))


def flex(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """FlexAttention for dot products, without dropout."""
    from torch.nn.attention.flex_attention import flex_attention

    if dropout:
        raise ValueError(f"FlexAttention has no dropout; dropout={dropout}; use the backend blocks or fused")
    kernel: Any = flex_attention if torch.compiler.is_compiling() else compiled(flex_attention)
    grouped = q.shape[1] != k.shape[1]
    return kernel(q, k, v, block_mask=block_mask(layout), scale=similarity.scale, enable_gqa=grouped)


def block_mask(layout: Layout) -> "BlockMask":
    """FlexAttention's BlockMask of a layout, built once.

    >>> from harken.core import CAUSAL, bigbird; from harken.core.backends.blocks import blockwise
    >>> block_mask((blockwise(bigbird(4), 64) & CAUSAL).layout(1, 256, 256, torch.device("cpu"))).shape
    (1, 1, 256, 256)
    """
    from torch.nn.attention.flex_attention import create_block_mask

    allows, slots = layout.structure.allows, layout.slots

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return allows(b, slots[b, i] if slots.dim() == 2 else slots[i], j)

    if layout.flex_mask is None and layout.block_passes is not None:
        layout.flex_mask = layout.block_passes.flex_mask(mask_mod)
    elif layout.flex_mask is None:
        B = len(layout.mask_rows(slice(1)))  # 1 where all rows of the batch have the same mask
        build: Any = create_block_mask if torch.compiler.is_compiling() else compiled(create_block_mask)
        layout.flex_mask = build(mask_mod, B, None, layout.Lq, layout.Lk, str(layout.device))
    return layout.flex_mask
