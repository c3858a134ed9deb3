"""On a GPU the step of one token is recorded once and played again, the draw inside it: the CPU only says go."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

FEW = 8  # steps that are not worth a recording
KEPT = 8  # recordings of one size
AHEAD = 16  # steps played before anything is read back
Recorded = TypeVar("Recorded", "Opening", "Steps")
Draw = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores, seeds, n -> tokens


@dataclass
class Desk:
    """The memory of texts of one size, and the recordings of steps that write into it."""

    memory: Any
    steps: dict[Any, Any] = field(default_factory=dict)

    def recorded(self, key: Any, new: Recorded) -> Recorded:
        """The recording of this key, kept from an earlier text or new; the oldest of many are given up."""
        found: Recorded = self.steps.setdefault(key, new)
        while len(self.steps) > KEPT:
            self.steps.pop(next(iter(self.steps)))
        return found


class Played:
    """Work on tensors that stay where they are: done plainly the first time, then recorded, and played ever after.

    What it makes it leaves in its owner's attributes; after a recording these stay where they are too.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.known = work, False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, playable: bool = True) -> None:
        if self.graph is None and not (playable and self.known):  # a size that never comes again is not worth it
            self.known = True
            return self.work()
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.work()
            self.graph = graph
        self.graph.replay()


class Opening:
    """Reads the beginnings of texts, all padded to one length."""

    def __init__(self, model: Any, memory: Any) -> None:
        self.model, self.memory, self.read = model, memory, Played(self._read)
        self.rows: Tensor | None = None

    def __call__(self, rows: Tensor, lengths: Tensor) -> Tensor:  # B L, B -> B vocab
        """The scores of what comes after each text."""
        if self.rows is None:
            self.rows, self.lengths = rows.clone(), lengths.clone()
        self.rows.copy_(rows)
        self.lengths.copy_(lengths)
        self.read()
        return self.scores.clone()

    def _read(self) -> None:
        assert self.rows is not None
        h = self.model(self.rows, pos=torch.arange(self.rows.shape[1], device=self.rows.device), memory=self.memory)
        last = (self.lengths - 1)[:, None, None].expand(-1, 1, h.shape[-1])
        self.scores: Tensor = self.model.logits(h.gather(1, last)[:, 0])


class Steps:
    """Reads the last token of each row, draws the next, and so on. Static shapes; everything is written in place."""

    def __init__(self, call: Callable[..., Tensor], memory: Any, draw: Draw) -> None:
        self.call, self.memory, self.draw = call, memory, draw
        self.graph: torch.cuda.CUDAGraph | None = None
        self.token: Tensor
        self.place: Tensor
        self.n: Tensor
        self.seeds: Tensor

    def start(self, token: Tensor, place: Tensor, n: Tensor, seeds: Tensor) -> None:
        """From this token of each row, at this place, for the n-th draw."""
        if self.graph is not None:
            for mine, given in zip((self.token, self.place, self.n, self.seeds), (token, place, n, seeds), strict=True):
                mine.copy_(given)
            return
        self.kept = torch.zeros(AHEAD, len(token), dtype=torch.long, device=token.device)
        side = torch.cuda.Stream(token.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # kernels are chosen, and compiled where they are, before they are recorded
                self.token, self.place, self.n, self.seeds = (t.clone() for t in (token, place, n, seeds))
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        self.start(token, place, n, seeds)  # what those steps wrote into the memory is written again

    def _step(self) -> None:
        logits = self.call(self.token[:, None], pos=self.place, memory=self.memory)[:, -1]
        self.token.copy_(self.draw(logits, self.seeds, self.n))
        self.kept.index_copy_(0, (self.n % AHEAD).view(1), self.token[None])
        self.place += 1
        self.n += 1

    def play(self, many: int) -> Iterator[Tensor]:
        """The next tokens, B at a time, on the CPU."""
        assert self.graph is not None
        first = int(self.n)
        for start in range(first, first + many, AHEAD):
            stop = min(start + AHEAD, first + many)
            for _ in range(start, stop):
                self.graph.replay()
            read = self.kept.cpu()
            yield from (read[n % AHEAD] for n in range(start, stop))


def playable(model: nn.Module) -> bool:
    """On a GPU, where a step may be played again."""
    return next(model.parameters()).is_cuda and getattr(model, "compiles", True) and repeatable(model)


def repeatable(model: nn.Module) -> bool:
    """A step may be done again: nobody looks at the weights, and a memory of slots hides what was written too much."""
    bounded = getattr(model, "context", None) is not None
    return bounded and not watched(model)


def footing(model: nn.Module) -> tuple[Any, ...]:
    """Where its weights stand, and as which numbers: what is recorded holds for these."""
    first = next(model.parameters())
    return first.device, first.dtype, first.data_ptr()


def watched(model: nn.Module) -> bool:
    """Whether somebody looks at its weights of attention."""
    return any(getattr(module, "watch", None) for module in model.modules())
