"""Settings of block-sparse attention (BigBird) for models that read long texts; computed by core/backends/blocks.py."""

from typing import Literal

import torch
from pydantic import Field

from harken.core import FULL, Structure, bigbird, blockwise
from harken.errors import BadSetting

from . import ModelSettings


class SparseAttentionSettings(ModelSettings):
    """Settings of a model with full or block-sparse attention. Subclasses have the setting `context`."""

    structure: Literal["full", "bigbird"] = Field(
        "full", description="attention structure; bigbird: window, global and random blocks, for long texts"
    )
    block_size: int = Field(64, ge=1, le=65536, description="bigbird: tokens per block; 128 is fastest on a GPU")
    window_blocks: int = Field(1, ge=0, le=1000, description="bigbird: neighboring blocks attended to on each side")
    global_blocks: int = Field(
        1, ge=0, le=1000, description="bigbird: number of first blocks that attend to and are attended to by all blocks"
    )
    random_blocks: int = Field(3, ge=0, le=1000, description="bigbird: random earlier blocks that a block attends to")
    random_seed: int = Field(0, ge=0, description="bigbird: seed of the random blocks")

    @property
    def supports_packing(self) -> bool:
        """Packed texts would each need their own blocks."""
        return self.structure == "full"

    @property
    def notice(self) -> str | None:
        """bigbird saves nothing if each block attends to all others."""
        if self.structure == "full" or self.max_context is None:
            return None
        n_blocks = -(-self.max_context // self.block_size)
        attended = 2 * self.window_blocks + 1 + self.global_blocks + self.random_blocks
        if n_blocks > attended:
            return None
        return (
            f"model.structure=bigbird: model.context={self.max_context} has {n_blocks} blocks and each attends to up "
            f"to {attended}, so it saves nothing; set a larger model.context for longer texts"
        )

    def block_structure(self, inside: Structure = FULL) -> Structure:
        """The structure of the settings, restricted to the blocks that `inside` allows."""
        if self.structure == "full":
            return FULL
        if dict(self).get("positions") == "alibi":
            raise BadSetting(
                "model.positions=alibi needs a table of all pairs, which model.structure=bigbird avoids; "
                "set model.positions=rotary"
            )
        assert self.max_context is not None
        size = min(self.block_size, self.max_context)  # a larger block would be padding
        n = -(-self.max_context // size)
        with torch.device("cpu"):  # a table, also if the model is built on the meta device
            blocks = bigbird(n, self.window_blocks, self.global_blocks, self.random_blocks, self.random_seed)
            return blockwise(blocks & inside, size)
