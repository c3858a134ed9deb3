"""The checks of an audit. Each computes the same numbers in two ways and returns the largest relative difference and
the responsible module. A model that does not support an operation raises HarkenError: the check does not apply."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harken.core import same
from harken.data.batch import IGNORE, Batch
from harken.errors import HarkenError
from harken.events import silent
from harken.models import EncoderDecoder, LanguageModel
from harken.models.sets import SetEncoder
from harken.tasks import BoundTask
from harken.training.settings import Train
from harken.training.step import UpdateStep

from .divergence import Divergence, OutputSlice, first_divergence, locate_divergence, record_calls, relative_difference

LENGTH, SOURCE = 32, 8  # tokens per row, and per source of an encoder-decoder
ROWS, MICRO = 5, 2  # rows of a batch, and of a micro-batch: 2 + 2 + 1
Measurement = tuple[float, Divergence]
Pair = tuple[OutputSlice, OutputSlice]


class Probe:
    """Forward passes of a model on reproducible random tokens; with record=True the calls of all modules are kept."""

    def __init__(self, model: LanguageModel, L: int, *, record: bool = False) -> None:
        if L < 2 or model.vocab < 2:
            raise HarkenError("it has a context or a vocabulary of 1, so there is nothing to compare")
        self.model, self.L, self.record = model.eval(), L, record
        self.rng = torch.Generator().manual_seed(0)
        self.source: Tensor | None = None  # of an encoder-decoder: the same in every row
        if isinstance(model, EncoderDecoder):
            self.source = torch.randint(model.source_vocab, (1, SOURCE), generator=self.rng)

    def source_inputs(self, B: int) -> dict[str, Tensor]:
        return {} if self.source is None else {"source": self.source.expand(B, -1)}

    def memory(self, B: int) -> object:
        return self.model.memory(B, self.L, **self.source_inputs(B))

    def __call__(self, tokens: Tensor, *, grad: bool = False, **inputs: object) -> OutputSlice:
        """One forward pass. Dropout masks are the same in every pass of the same shape."""
        torch.default_generator.manual_seed(0)
        inputs = inputs if "memory" in inputs else {**self.source_inputs(len(tokens)), **inputs}
        enabled = grad or self.model.training
        with torch.set_grad_enabled(enabled), record_calls(self.model, enabled=self.record) as calls:
            h = self.model(tokens, **inputs)
            # of a model that copies p, because the lengths of the sources differ
            return OutputSlice(h if isinstance(h, Tensor) else self.model.logits(h).exp(), calls)

    def tokens(self, B: int, L: int) -> Tensor:
        return torch.randint(self.model.vocab, (B, L), generator=self.rng)

    def changed(self, tokens: Tensor) -> Tensor:
        """A different token at each position."""
        return (tokens + torch.randint(1, self.model.vocab, tokens.shape, generator=self.rng)) % self.model.vocab

    def require(self, *names: str) -> None:
        """Raise unless forward has these parameters."""
        parameters = inspect.signature(self.model.forward).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return
        if missing := [name for name in names if name not in parameters]:
            raise HarkenError(f"its forward has no parameter {missing[0]}")

    def positions(self) -> list[int]:
        """The positions to test: near both ends and between."""
        return sorted({0, self.L // 3, self.L - 2})


PairedCheck = Callable[[Probe], Iterator[Pair]]


def _largest(differences: Iterable[float]) -> float:
    return max(differences, key=lambda x: math.inf if math.isnan(x) else x)


# --- equal outputs ----------------------------------------------------------------------------------------------------


def compare_outputs(pairs: PairedCheck, model: LanguageModel, L: int, tolerance: float) -> Measurement:
    """The largest difference of any pair; if it exceeds the tolerance, the passes are repeated with recording."""
    worst = _largest(relative_difference(a.output[a.index], b.output[b.index]) for a, b in pairs(Probe(model, L)))
    if worst <= tolerance:
        return worst, None
    divergences = (locate_divergence(a, b, tolerance) for a, b in pairs(Probe(model, L, record=True)))
    return worst, next(filter(None, divergences), None)


def causal(probe: Probe) -> Iterator[Pair]:
    """Changed tokens after a position leave the outputs up to it unchanged, in evaluation and in training mode."""
    tokens = probe.tokens(2, probe.L)
    for training in (False, True):
        probe.model.train(training)
        original = probe(tokens)
        for t in probe.positions():
            past, changed = slice(t + 1), torch.cat([tokens[:, : t + 1], probe.changed(tokens[:, t + 1 :])], 1)
            yield original.at(positions=past), probe(changed).at(positions=past)


def padding(probe: Probe) -> Iterator[Pair]:
    """A text alone and with two kinds of padding; then the following tokens, decoded from the cache."""
    probe.require("lengths", *(("memory", "pos") if probe.model.causal else ()))
    tokens, n = probe.tokens(2, probe.L), probe.L // 2
    changed, lengths = torch.cat([tokens[:, :n], probe.changed(tokens[:, n:])], 1), torch.tensor([n, n])
    alone = probe(tokens[:, :n])
    for row in (tokens, changed):
        yield alone, probe(row, lengths=lengths).at(positions=slice(n))
    if not probe.model.causal:
        return
    memory, padded_memory = probe.memory(2), probe.memory(2)
    probe(tokens[:, :n], pos=torch.arange(n), memory=memory)
    probe(changed, pos=torch.arange(probe.L), memory=padded_memory, lengths=lengths)
    for t in range(n, min(n + 3, probe.L)):
        token, pos = tokens[:, t : t + 1], torch.tensor([[t], [t]])
        yield probe(token, pos=pos, memory=memory), probe(token, pos=pos, memory=padded_memory)


def packing(probe: Probe) -> Iterator[Pair]:
    """Three documents packed into a row, one of a single token; then each alone. Pairs have one source per document."""
    probe.require(*(("pos", "structure") if probe.source is None else ("packed",)))
    tokens, third = probe.tokens(2, probe.L), probe.L // 3
    lengths = [n for n in (third, 1, probe.L - third - 1) if n]
    pos, doc = _packed_positions(lengths)
    inputs: dict[str, Any] = {"pos": pos, "structure": same(doc)}
    single, start = [dict[str, Any]()] * 3, 0
    if probe.source is not None:
        single = [{"source": part.expand(2, -1)} for part in probe.source.split([3, 1, SOURCE - 4], 1)]
        sources = [document["source"] for document in single[: len(lengths)]]
        packed = *_packed_positions(lengths), *_packed_positions([source.shape[1] for source in sources])
        inputs = {"source": torch.cat(sources, 1), "packed": packed}
    row = probe(tokens, **inputs)
    for n, document in zip(lengths, single, strict=False):
        span = slice(start, start + n)
        yield row.at(positions=span), probe(tokens[:, span], **document)
        start += n


def _packed_positions(lengths: list[int]) -> tuple[Tensor, Tensor]:  # 2 L twice
    """The position of each token in its document, and the index of the document."""
    pos, doc = torch.cat([torch.arange(n) for n in lengths]), torch.repeat_interleave(torch.tensor(lengths))
    return pos.expand(2, -1), doc.expand(2, -1)


def cache(probe: Probe) -> Iterator[Pair]:
    """A full pass; then a prompt and the following tokens one by one, with a cache."""
    probe.require("memory", "pos")
    tokens, n = probe.tokens(2, probe.L), probe.L // 2
    full, memory = probe(tokens), probe.memory(2)
    for span in (slice(n), *(slice(t, t + 1) for t in range(n, probe.L))):
        yield full.at(positions=span), probe(tokens[:, span], pos=torch.arange(probe.L)[span], memory=memory)


def batching(probe: Probe) -> Iterator[Pair]:
    """Rows of different lengths in one batch, and the next token of each; then each row alone."""
    probe.require("lengths", *(("memory", "pos") if probe.model.causal else ()))
    L, next_tokens = probe.L - 1, probe.tokens(4, 1)
    tokens, lengths = probe.tokens(4, L), torch.tensor([L, max(1, L // 2), 1, max(1, L - 1)])
    batch = probe(tokens, lengths=lengths)
    for r, n in enumerate(lengths.tolist()):
        yield batch.at(rows=slice(r, r + 1), positions=slice(n)), probe(tokens[r : r + 1, :n])
    if not probe.model.causal:
        return
    memory = probe.memory(4)
    probe(tokens, pos=torch.arange(L), memory=memory, lengths=lengths)
    after = probe(next_tokens, pos=lengths[:, None], memory=memory)
    for r, n in enumerate(lengths.tolist()):
        row, row_memory = slice(r, r + 1), probe.memory(1)
        probe(tokens[row, :n], pos=torch.arange(n), memory=row_memory)
        yield after.at(rows=row), probe(next_tokens[row], pos=torch.tensor([n]), memory=row_memory)


def source_padding(probe: Probe) -> Iterator[Pair]:
    """A source alone and with two kinds of padding, in a full pass and from the cache."""
    if probe.source is None or not isinstance(probe.model, EncoderDecoder):
        raise HarkenError("it has no source")
    tokens, n = probe.tokens(2, probe.L), SOURCE // 2
    short, lengths = probe.source[:, :n].expand(2, -1), torch.tensor([n, n])
    alone = probe(tokens, source=short)
    for shift in (0, 1):
        pad = (probe.source[:, n:] + shift) % probe.model.source_vocab
        padded = torch.cat([short, pad.expand(2, -1)], 1)
        yield alone, probe(tokens, source=padded, source_lengths=lengths)
        memory = probe.model.memory(2, probe.L, padded, lengths)
        yield alone.at(positions=slice(1)), probe(tokens[:, :1], pos=torch.arange(1), memory=memory)


# --- no gradient to later tokens --------------------------------------------------------------------------------------


def gradient(model: LanguageModel, L: int, tolerance: float) -> Measurement:
    """The largest gradient of an output with respect to later tokens, relative to the largest gradient."""
    worst = _largest(leak(passed.output) for passed, leak in _leaks(Probe(model, L)))
    if worst <= tolerance:
        return worst, None
    for passed, leak in _leaks(Probe(model, L, record=True)):
        calls = ((call.name, call.inputs.values(), call.outputs.values()) for call in passed.calls)
        if divergence := first_divergence(calls, lambda y, leak=leak: not leak(y) <= tolerance):  # type: ignore[misc]
            return worst, divergence
    return worst, None


def _leaks(probe: Probe) -> Iterator[tuple[OutputSlice, Callable[[Tensor], float]]]:
    """A pass and, for some positions, a function: the relative gradient of a tensor there to later tokens."""
    embeddings: list[Tensor] = []

    def detach(module: nn.Module, args: Any, x: Tensor) -> Tensor:
        embeddings.append(x.detach().requires_grad_())
        return embeddings[-1]

    for training in (False, True):
        probe.model.train(training)
        handle = probe.model.embed.register_forward_hook(detach)
        try:
            passed = probe(probe.tokens(1, probe.L), grad=True)
        finally:
            handle.remove()
        if not embeddings:
            raise HarkenError("its forward does not use its token embedding")
        for t in probe.positions():
            yield passed, partial(_leak, embeddings[-1], t)


def _leak(x: Tensor, t: int, y: Tensor) -> float:
    if y.shape[:2] != x.shape[:2] or not y.requires_grad:
        return 0.0
    # random weights: the sum of a normalized vector is always 0, and so is its gradient
    weights = torch.randn(y[:, t].shape, generator=torch.Generator().manual_seed(t), dtype=y.dtype)
    (dx,) = torch.autograd.grad((y[:, t] * weights).sum(), x, retain_graph=True, allow_unused=True)
    return 0.0 if dx is None else relative_difference(dx, dx * (torch.arange(x.shape[1]) <= t)[:, None])


PAIRED = (causal, padding, packing, source_padding, cache, batching)
CHECKS: dict[str, Callable[[LanguageModel, int, float], Measurement]] = {"gradient": gradient}
CHECKS |= {check.__name__: partial(compare_outputs, check) for check in PAIRED}


# --- sets -------------------------------------------------------------------------------------------------------------


def check_sets(name: str, model: SetEncoder, L: int) -> Measurement:
    """Sets of several sizes: permuted, with other padding, and each alone."""
    rng, model = torch.Generator().manual_seed(0), model.eval()
    sizes = torch.tensor([L, L // 2, 1, L - 1])
    x = torch.randn(len(sizes), L, model.embed.in_features, generator=rng).to(model.embed.weight.dtype)
    keys = torch.rand(x.shape[:2], generator=rng) + (torch.arange(L) >= sizes[:, None])  # padding sorts last
    with torch.no_grad():
        y = model(x, sizes)
        if name == "permutation":
            expected = model(x.take_along_dim(keys.argsort(1)[..., None], 1), sizes)
        elif name == "padding":
            expected = model(torch.where((torch.arange(L) < sizes[:, None])[..., None], x, x + 1), sizes)
        elif name == "batching":
            expected = torch.cat([model(x[n : n + 1, :size]) for n, size in enumerate(sizes.tolist())])
        else:
            raise HarkenError("the rows of a set have no order, and a set is not generated")
    return relative_difference(y, expected), None


# --- gradient accumulation --------------------------------------------------------------------------------------------


def accumulation(model: nn.Module, task: BoundTask, L: int, tolerance: float) -> Measurement:
    """The gradients of two training steps, computed on full batches and on micro-batches."""
    cpu = torch.device("cpu")  # a task may draw its examples on another device
    batches = [_small(task.batch(0, n).to(cpu), L) for n in range(min(2, task.steps))]
    if len(batches[0].tokens) < 2:
        raise HarkenError("a batch has a single row, so there are no micro-batches")
    steps = [_step(model, task, micro) for micro in (None, MICRO)]
    worst = _largest(relative_difference(*(_step_gradients(step, batch) for step in steps)) for batch in batches)
    return worst, None if worst <= tolerance else _locate_accumulation_error(model, task, batches, tolerance)


def _small(batch: Batch, L: int) -> Batch:
    """The first rows and tokens of a batch, with fewer targets in each row than in the one before."""
    rows = batch.slice_rows(0, ROWS)
    if rows.targets.shape != rows.tokens.shape:  # no target per token: the tokens cannot be truncated
        return rows
    L = min(L, rows.tokens.shape[1])
    names = ("tokens", "targets", "pos", "doc", "segments")
    truncated: dict[str, Any] = {k: x[:, :L] for k in names if (x := vars(rows).get(k)) is not None}
    if "segments" in truncated and (lengths := vars(rows)["lengths"]) is not None:
        truncated["lengths"] = lengths.clamp_max(L)
    n_targets = L - torch.arange(len(rows.tokens)) * L // (ROWS + 1)
    truncated["targets"] = truncated["targets"].masked_fill(torch.arange(L) >= n_targets[:, None], IGNORE)
    return replace(rows, **truncated)


def _step(model: nn.Module, task: BoundTask, micro: int | None) -> UpdateStep:
    """A training step without gradient clipping."""
    train = Train(device="cpu", precision="float32", compile="no", optimizer="sgd", momentum=0, grad_clip=0)
    train = train.model_copy(update={"micro_batch": micro})
    return UpdateStep(model.eval(), _without_state(task), train, listen=silent)


def _step_gradients(step: UpdateStep, batch: Batch) -> Tensor:
    """The gradients after a step with learning rate 0."""
    step(batch, 0.0)
    return _gradients(step.model)


def _gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _without_state(task: BoundTask) -> BoundTask:
    """A copy of the task with empty state."""
    copied = copy.copy(task)
    copied.load_state({})
    return copied


def _locate_accumulation_error(model: nn.Module, task: BoundTask, batches: list[Batch], tolerance: float) -> Divergence:
    """The responsible part: a module with other outputs in a micro-batch, the loss, or the training step."""

    def accumulate(micro: int) -> tuple[list[OutputSlice], Tensor]:
        fresh, passes = _without_state(task), []
        model.zero_grad()
        for batch in batches:
            for start in range(0, len(batch.tokens), micro):
                rows = batch.slice_rows(start, start + micro)
                with record_calls(model, enabled=batch is batches[0]) as calls:  # later batches depend on task state
                    fresh.loss(model, rows, start).total.backward()
                passes.append(OutputSlice(rows.tokens, calls))
        return passes, _gradients(model)

    (full, *_), total = accumulate(ROWS)
    parts, accumulated = accumulate(MICRO)
    for n, part in enumerate(parts[: -(-len(full.output) // MICRO)]):
        if divergence := locate_divergence(full.at(rows=slice(n * MICRO, (n + 1) * MICRO)), part, tolerance):
            return divergence
    step_is_wrong = relative_difference(total, accumulated) <= tolerance
    responsible = "training.step" if step_is_wrong else f"{type(task).__name__}.loss"
    return responsible, responsible
