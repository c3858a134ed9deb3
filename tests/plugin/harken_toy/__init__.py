"""A plug-in for harken: a language model with a similarity of its own, and DNA in FASTA files to learn from."""

from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import CAUSAL, FULL, BlockConfig, Dot, Rotary, Stack, Structure
from harken.data.cache import cache_folder
from harken.data.text.source import TextSource
from harken.models import LanguageModel
from harken.settings import Settings


class CosineSettings(Settings):
    """The settings of model.kind=cosine."""

    kind: Literal["cosine"] = "cosine"
    d: int = Field(64, ge=2, description="width of a token's vector")
    layers: int = Field(2, ge=1, description="number of blocks")
    context: int = Field(64, ge=1, description="longest sequence seen at once (L)")

    def build(self, vocab: int) -> "CosineLM":
        return CosineLM(self, vocab)


class Cosine(Dot):
    """s <q, k> / (|q| |k|), s learned. A dot once q and k are projected, so PyTorch's fused kernel takes it."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.full((heads, 1, 1), 10.0))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:  # B H L D
        return F.normalize(q, dim=-1) * self.s, F.normalize(k, dim=-1)


class CosineLM(LanguageModel):
    """harken's blocks, with the cosine inside. Cached decoding, looking and packing come with the blocks."""

    def __init__(self, shape: CosineSettings, vocab: int) -> None:
        super().__init__(vocab, shape.d)
        self.context = shape.context
        wiring = BlockConfig(shape.d, heads=2, similarity=lambda heads, D: Cosine(heads))
        self.stack = Stack(shape.layers, wiring, Rotary(shape.d // 2))
        self.norm, self.memory = nn.LayerNorm(shape.d), self.stack.memory

    def forward(self, tokens: Tensor, *, structure: Structure = FULL, lengths: Any = None, **where: Any) -> Tensor:
        return self.norm(self.stack(self.embed(tokens), structure=CAUSAL & structure, **where))  # B L d


class Fasta(TextSource):
    """The settings of data.kind=fasta: those of a text. Lines that begin with > only name a sequence."""

    kind: Literal["fasta"] = "fasta"  # type: ignore[assignment]

    def files(self, path: Path) -> list[Path]:
        return [bases(file) for file in super().files(path)]


def bases(path: Path) -> Path:
    """A text of the bases alone, one sequence a line, kept in harken's cache under the file's own name."""
    parts = path.read_text("ascii").split(">")[1:]
    text = "".join("".join(part.splitlines()[1:]).upper() + "\n" for part in parts)
    place = cache_folder("fasta", sha256(text.encode()).hexdigest()) / path.name
    place.write_text(text, "ascii")
    return place
