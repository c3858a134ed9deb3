"""Shared parts of decoders without a kv-cache: their state, and attention to an encoded source."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harken.core import Editor, FixedMemory, Layout, Similarity, Watchable, attend

from . import EncodedSource, EncoderDecoder
from .pointer import CopyStates


class DecoderState:
    """State of a decoder between steps: tensors with the batch first, written in place, and the encoded source."""

    def __init__(self, parts: Sequence[Tensor], source: EncodedSource) -> None:
        self.parts, self.source = parts, source

    def write(self, parts: Sequence[Tensor]) -> None:
        for part, new in zip(self.parts, parts, strict=True):
            part.copy_(new)

    def prefix(self, n: int) -> "DecoderState":
        return self  # its size is constant

    def reorder(self, rows: Tensor, length: int) -> None:
        self.write([part[rows] for part in self.parts])

    def select(self, rows: Tensor) -> "DecoderState":
        texts_per_source = len(self.parts[0]) // len(self.source.encoded[0])
        texts = (rows[:, None] * texts_per_source + torch.arange(texts_per_source, device=rows.device)).flatten()
        real = None if self.source.real is None else self.source.real[rows]
        source = EncodedSource([x[rows] for x in self.source.encoded], real)
        return DecoderState([part[texts] for part in self.parts], source)


class StatefulDecoder(EncoderDecoder):
    """Encoder-decoder that implements `initial_state(B, source, source_lengths)`, and `decode`: h and the next state.

    Its forward calls `initial_state` and other code calls `memory`: FSDP gathers weights in the outermost call only.
    """

    initial_state: Callable[[int, Tensor | None, Tensor | None], DecoderState]
    decode: Callable[[Tensor, DecoderState, Tensor | None, Tensor | None], tuple[Tensor, Sequence[Tensor]]]

    def memory(
        self, B: int, capacity: int, source: Tensor | None = None, source_lengths: Tensor | None = None
    ) -> DecoderState:
        return self.initial_state(B, source, source_lengths)

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,  # B Ls
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        memory: DecoderState | None = None,
        lengths: Tensor | None = None,  # B: number of tokens of each row; the state ends there
    ) -> Tensor | CopyStates:  # B L d
        state = memory or self.initial_state(len(tokens), source, source_lengths)
        h, after = self.decode(tokens, state, pos, lengths)
        if memory is not None:
            memory.write(after)
        if self.pointer is None:
            return h
        keys, words = state.source.encoded[-2:]
        states: CopyStates = self.pointer(h, FixedMemory(keys, words), state.source.structure)
        return states


def gather_positions(x: Tensor, positions: Tensor) -> Tensor:  # B L d, B n -> B n d
    """The vectors at these positions of each row."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


class CrossAttention(Watchable):
    """Attention to a source with projected keys. Several texts of one source share a batch row."""

    def __init__(self, similarity: Similarity) -> None:
        super().__init__()
        self.similarity = ProjectedKeys(similarity)

    def keys(self, H: Tensor) -> Tensor:  # B Ls d -> B Ls d
        rows = H.view(1, 1, -1, H.shape[-1])
        return self.similarity.inner.project(rows[:, :, :0], rows)[1].view_as(H)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:  # B*K L d, B Ls d twice -> B*K L d
        editor = self.watch if isinstance(self.watch, Editor) else None
        queries = _per_source(q, k)
        return attend(queries, k[:, None], v[:, None], self.similarity, layout, watch=editor).view_as(q)

    def show(self, q: Tensor, k: Tensor, layout: Layout) -> None:
        """Show all queries to the watcher at once; a recurrence computes them one by one."""
        if self.watch is not None and not isinstance(self.watch, Editor):
            self.watch(*self.similarity.project(_per_source(q, k), k[:, None]), self.similarity, layout)


def _per_source(q: Tensor, k: Tensor) -> Tensor:
    return q.view(len(k), 1, -1, q.shape[-1])  # B 1 K*L d


class ProjectedKeys(Similarity):
    """A similarity for keys that are already projected: in a loop over steps only the query is new."""

    def __init__(self, inner: Similarity) -> None:
        super().__init__()
        self.inner, self.is_dot, self.scale = inner, inner.is_dot, inner.scale

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rows = q.reshape(1, 1, -1, q.shape[-1])  # one row: one matrix product instead of one per row
        return self.inner.project(rows, k[:1, :, :0])[0].view_as(q), k

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        return self.inner.all_pairs(q, k)
