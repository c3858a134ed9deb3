"""Locate a divergence: the first module that gets equal inputs in two passes and returns different outputs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

T = TypeVar("T")  # a tensor, or a pair of tensors
Tensors = dict[str, Tensor]
Pairs = list[tuple[Tensor, Tensor]]
Divergence = tuple[str, str] | None  # the responsible module, and the first with a different output


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module."""

    name: str  # path of the module, "" for the model
    inputs: Tensors
    outputs: Tensors


@dataclass(frozen=True)
class OutputSlice:
    """Some rows and positions of the output of one forward pass."""

    output: Tensor  # B L d
    calls: list[ModuleCall]
    index: tuple[slice, ...] = ()

    def at(self, *, rows: slice = slice(None), positions: slice = slice(None)) -> "OutputSlice":
        return replace(self, index=(rows, positions))

    def select(self, x: Tensor) -> Tensor | None:
        """The same slice of a tensor, if it has rows and positions."""
        return x[self.index] if x.shape[:2] == self.output.shape[:2] else None


@contextmanager
def record_calls(model: nn.Module, *, enabled: bool = True) -> Iterator[list[ModuleCall]]:
    """Inputs and outputs of every module called inside, in the order in which the calls return: inner ones first."""
    calls: list[ModuleCall] = []

    def hook(name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            inputs = dict(_tensors({**dict(enumerate(args)), **kwargs}))
            calls.append(ModuleCall(name, inputs, dict(_tensors(output))))

        return record

    modules = model.named_modules() if enabled else ()
    handles = [module.register_forward_hook(hook(name), with_kwargs=True) for name, module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _tensors(x: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Copies of all tensors in nested inputs or outputs, with their paths. Some are overwritten later."""
    if isinstance(x, PackedSequence):
        x = pad_packed_sequence(x, batch_first=True)[0]
    if isinstance(x, Tensor):
        yield path, x.clone()
    elif isinstance(x, dict | list | tuple):
        for key, value in x.items() if isinstance(x, dict) else enumerate(x):
            yield from _tensors(value, f"{path}.{key}")


def relative_difference(x: Tensor, y: Tensor) -> float:
    """The largest difference, relative to the largest absolute value of x; 0 for empty tensors."""
    if not x.numel():
        return 0.0
    x, y = x.detach().double(), y.detach().double()
    return float((x - y).abs().max() / x.abs().max().clamp_min(torch.finfo(x.dtype).tiny))


def locate_divergence(a: OutputSlice, b: OutputSlice, tolerance: float) -> Divergence:
    """The module responsible for a difference between two slices that should be equal."""
    calls_b = dict(_numbered(b.calls))
    both = ((call, calls_b[key]) for key, call in _numbered(a.calls) if key in calls_b)
    calls = ((x.name, _pairs(a, x.inputs, b, y.inputs), _pairs(a, x.outputs, b, y.outputs)) for x, y in both)
    return first_divergence(calls, lambda pair: not relative_difference(*pair) <= tolerance)


def _numbered(calls: Iterable[ModuleCall]) -> Iterator[tuple[tuple[str, int], ModuleCall]]:
    """The calls with name and count: a module may be called several times in a pass."""
    counts: Counter[str] = Counter()
    for call in calls:
        yield (call.name, counts[call.name]), call
        counts[call.name] += 1


def _pairs(a: OutputSlice, xs: Tensors, b: OutputSlice, ys: Tensors) -> Pairs:
    pairs = ((a.select(xs[key]), b.select(ys[key])) for key in xs if key in ys)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def first_divergence(calls: Iterable[tuple[str, Iterable[T], Iterable[T]]], differs: Callable[[T], bool]) -> Divergence:
    """The first module with equal inputs and different outputs, and the first with different outputs.

    They are not the same if the error is between two modules, in the code of their parent.
    """
    first = None
    for name, inputs, outputs in calls:
        if any(map(differs, outputs)):
            first = name if first is None else first
            if not any(map(differs, inputs)):
                return name, first
    return None
