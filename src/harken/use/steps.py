"""On a GPU the step of one token is recorded once and played again, the draw inside it: the CPU only says go."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .sample import Reader

FEW = 8  # steps that are not worth a recording
AHEAD = 16  # steps played before anything is read back


class Steps:
    """Reads the last token of each row, draws the next, and so on. Static shapes; everything is written in place."""

    def __init__(self, reader: "Reader", token: Tensor, n: Tensor, draw: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.reader, self.draw = reader, draw
        self.token, self.place, self.n = token.clone(), reader.place.clone(), n.clone()
        self.kept = torch.zeros(AHEAD, len(token), dtype=torch.long, device=token.device)
        side = torch.cuda.Stream(token.device)
        side.wait_stream(torch.cuda.current_stream())
        before = [t.clone() for t in (self.token, self.place, self.n)]
        with torch.cuda.stream(side):
            for _ in range(2):  # the kernels are chosen, and compiled where they are, before they are recorded
                self._step()
            for mine, was in zip((self.token, self.place, self.n), before, strict=True):
                mine.copy_(was)  # what was written into the memory is written again
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def _step(self) -> None:
        reader = self.reader
        h = reader.call(self.token[:, None], pos=self.place, memory=reader.memory)
        self.token.copy_(self.draw(reader.model.logits(h[:, -1]), self.n))
        self.kept.index_copy_(0, (self.n % AHEAD).view(1), self.token[None])
        self.place += 1
        self.n += 1

    def play(self, many: int) -> Iterator[Tensor]:
        """The next tokens, B at a time, on the CPU."""
        first = int(self.n)
        for start in range(first, first + many, AHEAD):
            stop = min(start + AHEAD, first + many)
            for _ in range(start, stop):
                self.graph.replay()
            read = self.kept.cpu()
            yield from (read[n % AHEAD] for n in range(start, stop))


def recordable(model: nn.Module) -> bool:
    """On a GPU, unless somebody looks at the weights: a recording calls nobody."""
    here = next(model.parameters()).is_cuda and getattr(model, "compiles", True)
    return here and not any(getattr(module, "watch", None) for module in model.modules())
