"""Which module of a model is to blame: the first that was given the same numbers and made others of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

Tensors = dict[str, Tensor]
Pairs = list[tuple[Tensor, Tensor]]
Blamed = tuple[str, str] | None


@dataclass(frozen=True)
class Note:
    """One call of one module: what it was given and what it said."""

    name: str  # the module's path, "" for the model itself
    given: Tensors
    said: Tensors


@dataclass(frozen=True)
class Excerpt:
    """Some rows and places of one call of a model."""

    h: Tensor  # B L d: what came of the call
    notes: list[Note]
    where: tuple[slice, ...] = ()

    def at(self, *, rows: slice = slice(None), places: slice = slice(None)) -> "Excerpt":
        return replace(self, where=(rows, places))

    def of(self, x: Tensor) -> Tensor | None:
        """This part of a tensor, if it has rows and places."""
        return x[self.where] if x.shape[:2] == self.h.shape[:2] else None


@contextmanager
def noting(model: nn.Module, *, wanted: bool = True) -> Iterator[list[Note]]:
    """What every module is given and says in the calls inside, in the order in which they finish: inner ones first."""
    notes: list[Note] = []

    def hook(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, named: Any, out: Any) -> None:
            notes.append(Note(name, dict(_tensors({**dict(enumerate(args)), **named})), dict(_tensors(out))))

        return note

    modules = model.named_modules() if wanted else ()
    handles = [module.register_forward_hook(hook(name), with_kwargs=True) for name, module in modules]
    try:
        yield notes
    finally:
        for handle in handles:
            handle.remove()


def _tensors(x: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in what a module takes or gives, by where they are. Copied: some are written over later."""
    if isinstance(x, PackedSequence):
        x = pad_packed_sequence(x, batch_first=True)[0]
    if isinstance(x, Tensor):
        yield path, x.clone()
    elif isinstance(x, dict | list | tuple):
        for key, value in x.items() if isinstance(x, dict) else enumerate(x):
            yield from _tensors(value, f"{path}.{key}")


def gap(x: Tensor, y: Tensor) -> float:
    """The largest difference, as a share of the largest number; of numbers that are none, none."""
    if not x.numel():
        return 0.0
    x, y = x.detach().double(), y.detach().double()
    return float((x - y).abs().max() / x.abs().max().clamp_min(torch.finfo(x.dtype).tiny))


def differ(a: Excerpt, b: Excerpt, limit: float) -> Blamed:
    """The module to blame for a difference of two parts that should be the same."""
    there = dict(_numbered(b.notes))
    calls = (
        (note.name, _both(a, note.given, b, there[key].given), _both(a, note.said, b, there[key].said))
        for key, note in _numbered(a.notes)
        if key in there
    )
    return blame(calls, lambda pair: not gap(*pair) <= limit)


def _numbered(notes: Iterable[Note]) -> Iterator[tuple[tuple[str, int], Note]]:
    """A module may be called more than once in a pass."""
    calls: Counter[str] = Counter()
    for note in notes:
        yield (note.name, calls[note.name]), note
        calls[note.name] += 1


def _both(a: Excerpt, xs: Tensors, b: Excerpt, ys: Tensors) -> Pairs:
    both = ((a.of(xs[key]), b.of(ys[key])) for key in xs if key in ys)
    return [(x, y) for x, y in both if x is not None and y is not None]


def blame(calls: Iterable[tuple[str, Iterable[Any], Iterable[Any]]], odd: Callable[[Any], bool]) -> Blamed:
    """The first module that was given nothing odd and said something odd; and the first that said something odd.

    They differ where the fault lies between two modules, in the code of the one that holds them.
    """
    first = None
    for name, given, said in calls:
        if any(map(odd, said)):
            first = name if first is None else first
            if not any(map(odd, given)):
                return name, first
    return None
