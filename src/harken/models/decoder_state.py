"""What decoders without a kv-cache share: what they carry from step to step, and attention to a source read once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from harken.core import Editor, Layout, Similarity, View, Watcher, attend

from . import EncoderDecoder, Source


class Carried:
    """What a decoder takes from step to step: tensors with the texts first, written in place, and the source."""

    def __init__(self, parts: Sequence[Tensor], source: Source) -> None:
        self.parts, self.source = parts, source

    def write(self, parts: Sequence[Tensor]) -> None:
        for part, new in zip(self.parts, parts, strict=True):
            part.copy_(new)

    def upto(self, n: int) -> "Carried":
        return self  # it does not grow

    def reorder(self, rows: Tensor, upto: int) -> None:
        self.write([part[rows] for part in self.parts])

    def select(self, rows: Tensor) -> "Carried":
        """Of these sources alone, with all texts of each."""
        each = len(self.parts[0]) // len(self.source.read[0])
        texts = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
        real = None if self.source.real is None else self.source.real[rows]
        return Carried([part[texts] for part in self.parts], Source([x[rows] for x in self.source.read], real))


class Carrying(EncoderDecoder):
    """A decoder that brings `carried(B, source, source_lengths)`: what it begins with.

    Its forward calls that, and others `memory`: of weights held in parts the outermost call alone fetches all.
    """

    carried: Callable[[int, Tensor | None, Tensor | None], Carried]

    def memory(self, B: int, capacity: int, source: Tensor | None, source_lengths: Tensor | None = None) -> Carried:
        return self.carried(B, source, source_lengths)


def at(x: Tensor, places: Tensor) -> Tensor:  # B L d, B n -> B n d
    """What stands at some places of each row."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


class Look(nn.Module):
    """Attention to a source whose keys were projected when it was read. Several texts of one source ask together."""

    def __init__(self, similarity: Similarity) -> None:
        super().__init__()
        self.similarity = Ready(similarity)
        self.watch: Watcher | None = None

    def keys(self, H: Tensor) -> Tensor:  # B Ls d -> B Ls d
        rows = H.view(1, 1, -1, H.shape[-1])
        return self.similarity.own.project(rows[:, :, :0], rows)[1].view_as(H)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:  # B*K L d, B Ls d twice -> B*K L d
        edits = self.watch if isinstance(self.watch, Editor) else None
        return attend(_asked(q, k), k[:, None], v[:, None], self.similarity, layout, watch=edits).view_as(q)

    def show(self, q: Tensor, k: Tensor, layout: Layout) -> None:
        """Tell a watcher of all queries at once: a recurrence asks them one by one."""
        if self.watch is not None and not isinstance(self.watch, Editor):
            self.watch(View(*self.similarity.project(_asked(q, k), k[:, None]), self.similarity, layout))


def _asked(q: Tensor, k: Tensor) -> Tensor:
    return q.view(len(k), 1, -1, q.shape[-1])  # B 1 K*L d


class Ready(Similarity):
    """A similarity whose keys are projected already: in a loop over steps only the query is new."""

    def __init__(self, own: Similarity) -> None:
        super().__init__()
        self.own, self.is_dot, self.scale = own, own.is_dot, own.scale

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rows = q.reshape(1, 1, -1, q.shape[-1])  # one row: a matrix per head is then one product, not one for each row
        return self.own.project(rows, k[:1, :, :0])[0].view_as(q), k

    def all_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        return self.own.all_pairs(q, k)
