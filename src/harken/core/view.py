"""Access to attention weights: a `View` computes only the weights that are requested, `watching` records the views."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from .attend import BackendChoice, Editor, Watcher, attention_weights, select_backend
from .backends.sparse import pair_weights
from .similarity import Similarity
from .structure import Layout

ROWS_AT_ONCE = 256  # query rows computed at a time when all rows are summarized
Heads = Sequence[int] | None  # None: all heads


class View:
    """The weights A of one attention, before dropout, computed on request.

    It stores the projected q and k: 2 L d numbers instead of L^2. Read it before the memory is overwritten.

    >>> from harken.core import Dot, edges
    >>> q = torch.zeros(1, 1, 2, 4)
    >>> view = View(q, q, Dot(), edges(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).layout(1, 2, 2, q.device))
    >>> view.full()[0, 0], view.rows([1])[0, 0]
    (tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]]), tensor([[0.5000, 0.5000]]))
    >>> view.top(1)[1][0, 0, 0], view.received()[0, 0], view.entropy()[0, 0], view.edges()[0, 0], view.backend.name
    (tensor([0]), tensor([1.5000, 0.5000]), tensor([0.0000, 0.6931]), tensor([1.0000, 0.5000, 0.5000]), 'sparse')
    """

    def __init__(self, q: Tensor, k: Tensor, similarity: Similarity, layout: Layout) -> None:
        self.q, self.k, self.similarity, self.layout = q.detach(), k.detach(), similarity, layout

    @property
    def backend(self) -> BackendChoice:
        """The backend that computes this attention in evaluation mode, and the reason."""
        return select_backend(self.q, self.similarity, self.layout)

    @torch.no_grad()
    def rows(self, i: Sequence[int] | Tensor, heads: Heads = None) -> Tensor:
        """Weights of these query rows: B H' len(i) Lk."""
        index, layout = torch.as_tensor(i, device=self.q.device), self.layout
        q, k, chosen = self._heads(heads)
        bias = layout.bias_at(chosen, index)
        return attention_weights(q[:, :, index], k, self.similarity, layout.mask_rows(index), bias)

    def full(self, heads: Heads = None) -> Tensor:
        """All weights: B H' Lq Lk."""
        return self.rows(torch.arange(self.q.shape[-2]), heads)

    def top(self, n: int, heads: Heads = None) -> tuple[Tensor, Tensor]:
        """The n largest weights of each row and their keys: B H' Lq n each."""
        largest = [rows.topk(min(n, rows.shape[-1]), -1) for rows in self._row_blocks(heads)]
        return torch.cat([block.values for block in largest], -2), torch.cat([block.indices for block in largest], -2)

    def received(self, heads: Heads = None) -> Tensor:
        """Sum of the weights on each key over all queries: B H' Lk."""
        return sum((rows.sum(-2) for rows in self._row_blocks(heads)), start=torch.zeros((), device=self.q.device))

    def entropy(self, heads: Heads = None) -> Tensor:
        """Entropy of each row in nats: B H' Lq; log n for n equal weights, 0 for a single one."""
        return torch.cat([torch.special.entr(rows).sum(-1) for rows in self._row_blocks(heads)], -1)

    @torch.no_grad()
    def edges(self, heads: Heads = None) -> Tensor:
        """Weight of each listed pair, for structures with a list of pairs: B H' E."""
        pairs = self.layout.pair_list()
        q, k, chosen = self._heads(heads)
        return pair_weights(q, k, self.similarity, pairs, self.layout.bias_at(chosen, pairs.i, pairs.j))

    def _heads(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of these heads, and the keys of each; after the projection heads are independent."""
        chosen = torch.as_tensor(range(self.q.shape[1]) if heads is None else heads, device=self.q.device)
        return self.q[:, chosen], self.k[:, chosen // (self.q.shape[1] // self.k.shape[1])], chosen[:, None]

    def _row_blocks(self, heads: Heads) -> Iterator[Tensor]:
        return (self.rows(index, heads) for index in torch.arange(self.q.shape[-2]).split(ROWS_AT_ONCE))


class Watchable(nn.Module):
    """A module that computes attention weights and shows them to its watcher."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: Watcher | None = None


Views = dict[str, View]


def watching(model: nn.Module, *names: str) -> AbstractContextManager[Views]:
    """Record the attentions with these names (default: all) during the calls inside: name -> last view.

    >>> from harken.core import Attention
    >>> model = Attention(8, heads=2)
    >>> with watching(model) as views:
    ...     y = model(torch.randn(1, 3, 8))
    >>> views[""].full().shape
    torch.Size([1, 2, 3, 3])
    """
    views: Views = {}

    def recorder(name: str) -> Watcher:
        return lambda *attention: views.__setitem__(name, View(*attention))

    return _watchers(model, names, recorder, views)


def editing(model: nn.Module, name: str, f: Callable[[Tensor], Tensor]) -> AbstractContextManager[object]:
    """Replace the weights A of the attention with this name by f(A) during the calls inside.

    >>> from harken.core import Attention
    >>> model = Attention(8, heads=2, bias=False)
    >>> with editing(model, "", torch.zeros_like):
    ...     y = model(torch.randn(1, 3, 8))
    >>> y.abs().max().item()
    0.0
    """
    return _watchers(model, [name], lambda name: Editor(f), {})


def is_watched(model: nn.Module) -> bool:
    """Whether an attention of the model has a watcher.

    >>> from harken.core import Attention
    >>> is_watched(Attention(8, heads=2))
    False
    """
    return any(module.watch is not None for module in model.modules() if isinstance(module, Watchable))


@contextmanager
def _watchers(
    model: nn.Module, names: Sequence[str], watcher: Callable[[str], Watcher], views: Views
) -> Iterator[Views]:
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, Watchable)}
    if missing := set(names) - attentions.keys():
        raise ValueError(f"the model has no attention {min(missing)!r}; it has {', '.join(attentions) or 'none'}")
    before = {name: attentions[name].watch for name in names or attentions}
    try:
        for name in before:
            attentions[name].watch = watcher(name)
        yield views
    finally:
        for name, previous in before.items():
            attentions[name].watch = previous
