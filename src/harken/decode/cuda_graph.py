"""CUDA graphs of decoding: one step, including the sampling, is captured once and then replayed without CPU work."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from harken.core import is_watched
from harken.models import LanguageModel, Model

MIN_STEPS = 8  # fewer steps than this are not worth a capture
MAX_GRAPHS = 8  # graphs per session
STEPS_PER_READ = 16  # steps replayed before their tokens are copied to the CPU
Captured = TypeVar("Captured", "Prefill", "CapturedDecodeLoop")
Sampler = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits, seeds, n -> tokens


@dataclass
class DecodeSession:
    """The memory of one batch shape, and the captured graphs that write into it."""

    memory: Any
    graphs: dict[Hashable, Any] = field(default_factory=dict)

    def get(self, key: Hashable, new: Captured) -> Captured:
        """The graph of this key: the cached one, else `new`. The oldest graphs are dropped."""
        graph: Captured = self.graphs.setdefault(key, new)
        while len(self.graphs) > MAX_GRAPHS:
            self.graphs.pop(next(iter(self.graphs)))
        return graph


class CapturedGraph:
    """Work on tensors with fixed addresses: runs eagerly the first time, is then captured and replayed.

    The work stores its outputs in attributes of its owner; after the capture their addresses are fixed, too.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.has_run = work, False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, capturable: bool = True) -> None:
        if self.graph is None and not (capturable and self.has_run):
            self.has_run = True
            return self.work()
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.work()
            self.graph = graph
        self.graph.replay()


class Prefill:
    """Reads prompts that are padded to one length."""

    def __init__(self, model: LanguageModel, memory: object) -> None:
        self.model, self.memory, self.forward = model, memory, CapturedGraph(self._forward)
        self.rows: Tensor | None = None

    @property
    def graph(self) -> torch.cuda.CUDAGraph | None:
        return self.forward.graph

    def __call__(self, rows: Tensor, lengths: Tensor) -> Tensor:  # B L, B -> B vocab
        """The logits of the token after each prompt."""
        if self.rows is None:
            self.rows, self.lengths = rows.clone(), lengths.clone()
        self.rows.copy_(rows)
        self.lengths.copy_(lengths)
        self.forward()
        return self.logits.clone()

    def _forward(self) -> None:
        assert self.rows is not None
        h = self.model(self.rows, pos=torch.arange(self.rows.shape[1], device=self.rows.device), memory=self.memory)
        last = (self.lengths - 1)[:, None, None].expand(-1, 1, h.shape[-1])
        self.logits: Tensor = self.model.logits(h.gather(1, last)[:, 0])


class CapturedDecodeLoop:
    """Decoding steps (read the last token of each row, sample the next) with static shapes and in-place writes."""

    def __init__(self, call: Callable[..., Tensor], memory: object, sampler: Sampler) -> None:
        self.call, self.memory, self.sampler = call, memory, sampler
        self.graph: torch.cuda.CUDAGraph | None = None
        self.token: Tensor
        self.position: Tensor
        self.n: Tensor
        self.seeds: Tensor

    def start(self, token: Tensor, position: Tensor, n: Tensor, seeds: Tensor) -> None:
        """Set the last token of each row, its position and the number of the next draw; capture at the first call."""
        inputs = token, position, n, seeds
        if self.graph is not None:
            for buffer, value in zip((self.token, self.position, self.n, self.seeds), inputs, strict=True):
                buffer.copy_(value)
            return
        self.tokens = torch.zeros(STEPS_PER_READ, len(token), dtype=torch.long, device=token.device)
        side = torch.cuda.Stream(token.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # warm up: kernels are selected and compiled before the capture
                self.token, self.position, self.n, self.seeds = (x.clone() for x in inputs)
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        self.start(*inputs)  # the replay overwrites what the warm-up wrote into the memory

    def _step(self) -> None:
        logits = self.call(self.token[:, None], pos=self.position, memory=self.memory)[:, -1]
        self.token.copy_(self.sampler(logits, self.seeds, self.n))
        self.tokens.index_copy_(0, (self.n % STEPS_PER_READ).view(1), self.token[None])
        self.position += 1
        self.n += 1

    def replay(self, n_steps: int) -> Iterator[Tensor]:
        """The next tokens, B at a time, on the CPU."""
        assert self.graph is not None
        first = int(self.n)
        for start in range(first, first + n_steps, STEPS_PER_READ):
            stop = min(start + STEPS_PER_READ, first + n_steps)
            for _ in range(start, stop):
                self.graph.replay()
            tokens = self.tokens.cpu()
            yield from (tokens[n % STEPS_PER_READ] for n in range(start, stop))


def can_capture(model: Model) -> bool:
    """Whether decoding steps of this model can be captured: on a GPU, with repeatable steps."""
    return next(model.parameters()).is_cuda and model.compiles and has_repeatable_steps(model)


def has_repeatable_steps(model: Model) -> bool:
    """Whether a step may run twice: no trace is active, and the memory has slots, which mask superfluous writes."""
    return model.context is not None and not is_watched(model)


def weights_key(model: nn.Module) -> tuple[object, ...]:
    """Device, dtype and address of the weights: captured graphs are valid for these only."""
    first = next(model.parameters())
    return first.device, first.dtype, first.data_ptr()
