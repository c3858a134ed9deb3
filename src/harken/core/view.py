"""Looking is free: a watcher that reads gets a View, from which only what is asked is computed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .similarity import Similarity
from .structure import Layout
from .weights import edge_softmax, weights

BLOCK = 256  # query rows computed at a time when a whole map is only summed up

Heads = Sequence[int] | None


class View:
    """The weights of one attention, before dropout, not yet computed. Ask, and only that is computed.

    It keeps the projected q and k: 2 L d numbers, not L^2. Read it before its memory is written again.
    """

    def __init__(self, q: Tensor, k: Tensor, similarity: Similarity, layout: Layout, bias: Tensor | None) -> None:
        self.q, self.k, self.similarity, self.layout = q.detach(), k.detach(), similarity, layout
        self.bias = None if bias is None else bias.detach()

    @torch.no_grad()
    def rows(self, i: Sequence[int] | Tensor, heads: Heads = None) -> Tensor:
        """The weights of these query rows: B H' len(i) Lk."""
        index = torch.as_tensor(i, device=self.q.device)
        chosen = self._heads(heads)
        group = self.q.shape[1] // self.k.shape[1]
        k = self.k[:, [h // group for h in chosen]]
        bias = None if self.bias is None else self.bias[..., chosen, :, :][..., index, :]
        # similarities are per key head: by now q and k are projected, so heads may be taken apart
        return weights(self.q[:, chosen][:, :, index], k, self.similarity, self.layout.rows(index), bias)

    def whole(self, heads: Heads = None) -> Tensor:
        """B H' Lq Lk, when it is really wanted."""
        return self.rows(torch.arange(self.q.shape[-2]), heads)

    def top(self, n: int, heads: Heads = None) -> tuple[Tensor, Tensor]:
        """The n largest weights of each row and the keys they fall on: B H' Lq n twice."""
        found = [block.topk(min(n, block.shape[-1]), -1) for block in self._blocks(heads)]
        return torch.cat([f.values for f in found], -2), torch.cat([f.indices for f in found], -2)

    def received(self, heads: Heads = None) -> Tensor:
        """How much each key is looked at, summed over the queries: B H' Lk."""
        return sum((block.sum(-2) for block in self._blocks(heads)), start=torch.zeros((), device=self.q.device))

    def entropy(self, heads: Heads = None) -> Tensor:
        """How spread each row is, in nats: B H' Lq; log n for n equal weights, 0 for one."""
        return torch.cat([torch.special.entr(block).sum(-1) for block in self._blocks(heads)], -1)

    @torch.no_grad()
    def edges(self, heads: Heads = None) -> Tensor:
        """The weight of each listed pair, for structures given as pairs: B H' E."""
        if self.layout.pairs is None:
            raise ValueError(f"{self.layout.structure} lists no pairs; ask for rows, top or whole")
        i, j, allowed = self.layout.pairs
        chosen, group = self._heads(heads), self.q.shape[1] // self.k.shape[1]
        q, k = self.q[:, chosen], self.k[:, [h // group for h in chosen]]
        return edge_softmax(self.similarity.pair(q[:, :, i], k[:, :, j]), i, self.q.shape[-2], allowed[:, None])

    def _heads(self, heads: Heads) -> list[int]:
        return list(range(self.q.shape[1])) if heads is None else list(heads)

    def _blocks(self, heads: Heads) -> Iterator[Tensor]:
        for start in range(0, self.q.shape[-2], BLOCK):
            yield self.rows(torch.arange(start, min(start + BLOCK, self.q.shape[-2])), heads)


@dataclass(frozen=True)
class Editor:
    """Replaces the weights A by f(A): head ablation, knock-out of a token."""

    f: Callable[[Tensor], Tensor]


Watcher = Callable[[View], None] | Editor  # stands at one attention; one that only reads changes nothing


@contextmanager
def watching(model: nn.Module, *names: str) -> Iterator[dict[str, View]]:
    """Read the attentions of these names (all, if none is given) during the calls inside: name -> last view."""
    places = [n for n, m in model.named_modules() if hasattr(m, "watch")]
    if missing := set(names) - set(places):
        raise ValueError(f"no attention is called {min(missing)!r}; there are {', '.join(places) or 'none'}")
    seen: dict[str, View] = {}
    with _standing(model, {name: partial(seen.__setitem__, name) for name in names or places}):
        yield seen


@contextmanager
def editing(model: nn.Module, name: str, f: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the weights of the attention of this name by f(A) during the calls inside."""
    with _standing(model, {name: Editor(f)}):
        yield


@contextmanager
def _standing(model: nn.Module, watchers: Mapping[str, Watcher]) -> Iterator[None]:
    try:
        for name, watcher in watchers.items():
            vars(model.get_submodule(name))["watch"] = watcher
        yield
    finally:
        for name in watchers:
            vars(model.get_submodule(name))["watch"] = None
