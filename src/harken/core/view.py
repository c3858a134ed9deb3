"""The weights, and looking at them, which is free: a View computes only what it is asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .similarity import Similarity, precise
from .structure import Layout, Listed

BLOCK = 256  # query rows computed at a time when a whole map is only summed up
Heads = Sequence[int] | None
Edit = Callable[[Tensor], Tensor] | None


def weights(q: Tensor, k: Tensor, similarity: Similarity, allowed: Tensor, bias: Tensor | None = None) -> Tensor:
    """a_ij for projected q and k, 0 where not allowed: B H Lq Lk."""
    groups = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # B H' (G Lq) D
    scores = _scores(similarity.all_pairs, groups, k).unflatten(2, (-1, q.shape[-2])).flatten(1, 2)  # B H Lq Lk
    scores = scores if bias is None else scores + bias
    # "times -inf" in the lecture means: replace by -inf. The lowest finite number keeps an empty row's gradient finite
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0)


def pair_weights(q: Tensor, k: Tensor, similarity: Similarity, pairs: Listed, bias: Tensor | None = None) -> Tensor:
    """The same for listed pairs: B H E. They are gathered: on a GPU indexing sorts on its way back."""
    i, j, allowed, n = *pairs, q.shape[-2]
    q, k = (x.gather(2, at[:, None].expand(*x.shape[:2], -1, x.shape[-1])) for x, at in ((q, i), (k, j)))  # B H E D
    scores = _scores(similarity.pair, q.unflatten(1, (k.shape[1], -1)), k.unsqueeze(2)).flatten(1, 2)  # B H E
    return edge_softmax(scores if bias is None else scores + bias, i, n, allowed[:, None])


def edge_softmax(scores: Tensor, i: Tensor, n: int, allowed: Tensor) -> Tensor:
    """Softmax over the pairs that leave each query i."""
    scores = precise(scores).masked_fill(~allowed, -torch.inf)
    index, known = i.expand_as(scores), scores.detach()
    top = known.new_full((*scores.shape[:-1], n), -torch.inf).scatter_reduce(-1, index, known, "amax")
    top = top.masked_fill(top.isinf(), 0)  # a query without an allowed pair
    weight = (scores - top.gather(-1, index)).exp()
    total = weight.new_zeros(top.shape).scatter_add(-1, index, weight)
    return weight / total.clamp_min(1).gather(-1, index)  # a query's best pair alone adds 1


def _scores(pair: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor) -> Tensor:
    """Scores in float32 at least, under autocast too: two scores near 60 are the same number in bf16 if 0.1 apart."""
    with torch.autocast(q.device.type, enabled=False):
        return pair(precise(q), precise(k))


class View:
    """The weights of one attention, before dropout, not yet computed. Ask, and only that is computed.

    It keeps the projected q and k: 2 L d numbers, not L^2. Read it before its memory is written again.
    """

    def __init__(self, q: Tensor, k: Tensor, similarity: Similarity, layout: Layout) -> None:
        self.q, self.k, self.similarity, self.layout = q.detach(), k.detach(), similarity, layout

    @torch.no_grad()
    def rows(self, i: Sequence[int] | Tensor, heads: Heads = None) -> Tensor:
        """The weights of these query rows: B H' len(i) Lk."""
        index = torch.as_tensor(i, device=self.q.device)
        q, k, chosen = self._heads(heads)
        return weights(q[:, :, index], k, self.similarity, self.layout.rows(index), self.layout.shift(chosen, index))

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
        i, j, _ = pairs = self.layout.listed()
        q, k, chosen = self._heads(heads)
        return pair_weights(q, k, self.similarity, pairs, self.layout.shift(chosen, i, j))

    def _heads(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        """The queries of these heads, each with its own keys: once projected, heads may be taken apart."""
        chosen = torch.as_tensor(range(self.q.shape[1]) if heads is None else heads, device=self.q.device)
        return self.q[:, chosen], self.k[:, chosen // (self.q.shape[1] // self.k.shape[1])], chosen[:, None]

    def _blocks(self, heads: Heads) -> Iterator[Tensor]:
        return (self.rows(index, heads) for index in torch.arange(self.q.shape[-2]).split(BLOCK))


@dataclass(frozen=True)
class Editor:
    """Replaces the weights A by f(A): head ablation, knock-out of a token."""

    f: Callable[[Tensor], Tensor]


Views = dict[str, View]
Watcher = Callable[[View], None] | Editor  # stands at one attention; one that only reads changes nothing


def watching(model: nn.Module, *names: str) -> AbstractContextManager[Views]:
    """Read the attentions of these names (all, if none is given) during the calls inside: name -> last view."""
    seen: Views = {}
    return _standing(model, names, lambda name: partial(seen.__setitem__, name), seen)


def editing(model: nn.Module, name: str, f: Callable[[Tensor], Tensor]) -> AbstractContextManager[object]:
    """Replace the weights of the attention of this name by f(A) during the calls inside."""
    return _standing(model, [name], lambda name: Editor(f), {})


@contextmanager
def _standing(model: nn.Module, names: Sequence[str], made: Callable[[str], Watcher], seen: Views) -> Iterator[Views]:
    places = {name: vars(module) for name, module in model.named_modules() if hasattr(module, "watch")}
    if missing := set(names) - places.keys():
        raise ValueError(f"no attention is called {min(missing)!r}; there are {', '.join(places) or 'none'}")
    before = {name: places[name]["watch"] for name in names or places}
    try:
        for name in before:
            places[name]["watch"] = made(name)
        yield seen
    finally:
        for name, old in before.items():
            places[name]["watch"] = old
