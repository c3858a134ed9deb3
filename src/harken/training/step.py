"""One update from one batch: gradients in micro-batches that add up to the whole batch's, clipping, the rule.

On a GPU nothing is read back in a step, and from the fourth on the whole of it is played from a recording. A number
that is not finite is then noted on the device, which leaves the weights as they are until somebody reads.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from harken import machine
from harken.data.batch import Batch
from harken.errors import HarkenError
from harken.events import Listener
from harken.tasks import Learning

from .cuda_graph import WARM, Recording
from .optimizers import clip, optimizer
from .parallel import Ranks, whole
from .settings import Train


class Step:
    """A model, its task and its rule."""

    def __init__(
        self, model: nn.Module, task: Learning, train: Train, *, listen: Listener, ranks: Ranks | None = None
    ) -> None:
        self.task, self.train, self.listen, self.ranks = task, train, listen, ranks or Ranks()
        self.device = machine.pick_device(train.device)
        self.precision = machine.pick_precision(train.precision, self.device)
        if hasattr(task, "made_on"):  # its examples are not read but drawn: where they are learned from
            task.made_on(self.device)
        self.model = self.ranks.spread(model.to(self.device))
        self.call = self._compiled()
        self.micro = train.micro_batch
        able = train.optimizer in ("adamw", "adam", "muon") or (train.optimizer == "sgd" and not train.momentum)
        self.lazy = self.device.type == "cuda" and able and not self.ranks.sharded
        self.begin()

    def begin(self) -> None:
        """Forget all updates that were made."""
        self.optimizer = optimizer(self.model, self.train)
        self.recording: Recording | None = None
        self.plain = 0  # updates made without a recording
        self.side = torch.cuda.Stream(self.device) if self.lazy else None
        self.count, self.parts = 1, dict[str, float]()
        self.asked = torch.ones((), device=self.device)  # the same count, where a recording finds it
        self.total = self.norm = torch.zeros((), device=self.device)
        self.odd = torch.zeros((), device=self.device)  # 1: a number was not finite, nothing is updated
        self.odds = torch.zeros((), dtype=torch.long, device=self.device)
        if self.lazy:
            setattr(self.optimizer, "found_inf", self.odd)  # noqa: B010  PyTorch reads it, but does not declare it
            for group in self.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)

    def _compiled(self) -> nn.Module:
        """The model as it is called in a step: compiled where that pays, plain where it cannot be."""
        wanted, able = self.train.compile, getattr(self.model, "compiles", True) and not self.ranks.sharded
        able = able and getattr(self.task, "one_shape", True)  # each shape would be compiled anew
        # on a CPU it does not pay, and a compiler that tries out its kernels does not repeat itself bit for bit
        plain = wanted == "auto" and (self.device.type == "cpu" or self.train.deterministic)
        if wanted == "no" or plain or not able:
            return self.model
        if reason := machine.can_compile(self.device):
            self.listen("notice", text=f"not compiled: {reason}")
            return self.model
        return Compiled(self.model, self.listen)

    def numbers(self) -> Any:
        """Where matrix products are computed in the run's precision."""
        return nullcontext() if self.precision == torch.float32 else torch.autocast(self.device.type, self.precision)

    # --- an update ----------------------------------------------------------------------------------------------------

    def __call__(self, batch: Batch, lr: float) -> None:
        """Update the weights. What came of it is told by `read`."""
        for group in self.optimizer.param_groups:
            own = lr * group.get("share", 1.0)  # of its layer
            group["lr"] = group["lr"].fill_(own) if self.lazy else own
        self.count, mine = batch.count, self.ranks.rows(batch)
        self.asked.fill_(self.count)
        before = {name: t.clone() for name, t in self.task.state().items()}
        while True:
            try:
                return self._aside(mine)
            except torch.OutOfMemoryError:
                self.task.load_state(before)
                self._halve(len(mine.tokens))

    def _aside(self, batch: Batch) -> None:
        """On a GPU, the update on a stream of its own: what was begun on the main one cannot be recorded."""
        if self.side is None:
            return self._make(batch)
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            self._make(batch)
        torch.cuda.current_stream(self.device).wait_stream(self.side)

    def _make(self, batch: Batch) -> None:
        if self.recording is not None and self.recording.fits(batch):
            self.total, self.norm = self.recording.play(batch)
            return
        here = batch.to(self.device)
        if self._settled(batch):
            self.recording = Recording(here, self._whole)
            self.total, self.norm = self.recording.play(batch)
            return
        self.total, self.norm = self._whole(here)
        self.plain += 1

    def _settled(self, batch: Batch) -> bool:
        """Whether from now on every step is the same work."""
        free = self.lazy and self.train.compile != "no" and not self.train.deterministic and not self.task.state()
        return free and self.ranks.world == 1 and self.recording is None and self.plain >= WARM and batch.steady

    def _whole(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad()
        total = self.ranks.sum(self._gradients(batch))
        self.ranks.add_up(self.model)
        norm = whole(clip(self.model, self.train.grad_clip))
        if self.lazy:
            self._note(total, norm)
            self.optimizer.step()
        elif math.isfinite(float(total)) and math.isfinite(float(norm)):
            self.optimizer.step()
        else:
            self.odds += 1
        return total, norm

    def _note(self, total: Tensor, norm: Tensor) -> None:
        """Note on the device whether this update counts. After an odd one none does, unless odd ones are skipped."""
        odd = ~(total.isfinite() & norm.isfinite())
        held = odd if self.train.on_nan == "skip" else odd | (self.odd > 0)
        self.odd.copy_(held)
        self.odds += held

    def _gradients(self, batch: Batch) -> Tensor:
        rows = len(batch.tokens)
        size, above, total = self.micro or rows, self.ranks.rank * rows, torch.zeros((), device=self.device)
        parts: dict[str, list[Any]] = {}
        for start in range(0, rows, size):
            self.ranks.adding(self.model, last=start + size >= rows)
            with self.numbers():
                loss = self.task.loss(self.call, batch.rows(start, start + size), above + start)
            (loss.total / self.asked).backward()  # over the whole batch's targets: ragged micro-batches weigh rightly
            total += loss.total.detach() if loss.told is None else loss.told
            for name, (sum_, n) in loss.parts.items():
                seen = parts.setdefault(name, [0.0, 0])
                parts[name] = [seen[0] + float(sum_), seen[1] + n]
        sums = self.ranks.sum(torch.tensor([*parts.values()], dtype=torch.float64)).tolist() if parts else []
        self.parts = {name: sum_ / n for name, (sum_, n) in zip(parts, sums, strict=True) if n}
        return total

    def _halve(self, rows: int) -> None:
        """The device's memory was too small: half as many rows at a time, the same update."""
        size = min(self.micro or rows, rows)
        self.optimizer.zero_grad()
        self.recording, self.plain = None, 0
        torch.cuda.empty_cache()
        if size == 1:
            raise HarkenError("out of memory with one row at a time; take a smaller model.context or a smaller model")
        self.micro = math.ceil(size / 2)
        if self.ranks.world > 1:  # the others are in the middle of the same update and cannot begin it anew
            raise HarkenError(
                f"out of memory with {size} rows at a time; train again with train.micro_batch={self.micro}"
            )
        text = f"out of memory: {self.micro} of {rows} rows at a time from now on; the updates stay the same"
        self.listen("notice", text=text)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def read(self) -> tuple[float, float, int]:
        """The last update's loss and gradient's length, and how many updates before and with it were left out."""
        return float(self.total) / self.count, float(self.norm), int(self.odds)


class Compiled(nn.Module):
    """A model whose forward is compiled; everything else is the model's own."""

    def __init__(self, model: nn.Module, listen: Listener) -> None:
        super().__init__()
        self.model, self.listen = model, listen
        self.fast: Callable[..., Any] = torch.compile(model, dynamic=False)
        self.proven = False

    def forward(self, *given: Any, **named: Any) -> Any:
        if self.proven:
            return self.fast(*given, **named)
        try:
            with warnings.catch_warnings():  # float32 is meant where scores are; and what a compiler tells itself
                warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores|\s*Online softmax", UserWarning)
                h = self.fast(*given, **named)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in their own ways; the plain model says whether it was their fault
            self.fast, h = self.model, self.model(*given, **named)
            self.listen("notice", text=f"not compiled, so slower: {type(error).__name__}")
        self.proven = True
        return h

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)
