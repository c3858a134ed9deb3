"""A plug-in for harken: a language model with cosine similarity, and a reader of DNA in FASTA files."""

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
from harken.models import LanguageModel, ModelSettings


class CosineSettings(ModelSettings):
    """Settings of model.kind=cosine."""

    kind: Literal["cosine"] = "cosine"
    d: int = Field(64, ge=2, description="width of the model (embedding dimension)")
    layers: int = Field(2, ge=1, description="number of blocks")
    context: int = Field(64, ge=1, description="maximum sequence length in tokens (L)")

    def build(self, vocab: int) -> "CosineLM":
        return CosineLM(self, vocab)


class Cosine(Dot):
    """s <q, k> / (|q| |k|) with a learned s: a dot product of projected q and k, so the fused kernel computes it."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.full((heads, 1, 1), 10.0))

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:  # B H L D
        return F.normalize(q, dim=-1) * self.s, F.normalize(k, dim=-1)


class CosineLM(LanguageModel):
    """Transformer blocks with cosine similarity. The blocks provide cached decoding, traces and packing."""

    def __init__(self, settings: CosineSettings, vocab: int) -> None:
        super().__init__(vocab, settings.d)
        self.context = settings.context
        config = BlockConfig(settings.d, heads=2, similarity=lambda heads, D: Cosine(heads))
        self.stack = Stack(settings.layers, config, Rotary(settings.d // 2))
        self.norm, self.memory = nn.LayerNorm(settings.d), self.stack.memory

    def forward(self, tokens: Tensor, *, structure: Structure = FULL, lengths: Any = None, **inputs: Any) -> Tensor:
        return self.norm(self.stack(self.embed(tokens), structure=CAUSAL & structure, **inputs))  # B L d


class Fasta(TextSource):
    """Settings of data.kind=fasta: those of a text. Lines that start with > are names of sequences."""

    kind: Literal["fasta"] = "fasta"  # type: ignore[assignment]

    def files(self, path: Path) -> list[Path]:
        return [bases(file) for file in super().files(path)]


def bases(path: Path) -> Path:
    """Text file of the bases, one sequence per line, in the cache under the name of the file."""
    parts = path.read_text("ascii").split(">")[1:]
    text = "".join("".join(part.splitlines()[1:]).upper() + "\n" for part in parts)
    target = cache_folder("fasta", sha256(text.encode()).hexdigest()) / path.name
    target.write_text(text, "ascii")
    return target
