"""One update from one batch: gradients accumulated over micro-batches, clipping, optimizer step.

On a GPU a step reads nothing back from the device, and after the warm-up it is replayed from a CUDA graph. A non-finite
loss or gradient is then recorded on the device, which skips the update until the host reads the values.
"""

import math
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harken import machine
from harken.core import products
from harken.core.layers import Block
from harken.data.batch import Batch
from harken.data.cache import cache_folder
from harken.errors import HarkenError
from harken.events import Listener
from harken.tasks import BoundTask

from . import precision
from .optimizers import build_optimizer, clip_gradients
from .parallel import Ranks, full_tensor
from .settings import Train

WARMUP_STEPS = 3  # eager steps before the capture of a graph: compilation and optimizer state must exist by then


class UpdateStep:
    """A model, its task and its optimizer."""

    def __init__(
        self, model: nn.Module, task: BoundTask, train: Train, *, listen: Listener, ranks: Ranks | None = None
    ) -> None:
        self.task, self.train, self.listen, self.ranks = task, train, listen, ranks or Ranks()
        self.device = machine.pick_device(train.device)
        products.enabled = self.device.type == "cpu" and machine.prefers_onednn()
        task.sample_on(self.device)
        self.model = self.ranks.distribute(model.to(self.device))
        self.forward_model = self._compile()
        self.precision = self._pick_precision()
        self.micro_batch = train.micro_batch
        skips_on_device = train.optimizer in ("adamw", "muon") or (train.optimizer == "sgd" and not train.momentum)
        self.deferred = self.device.type == "cuda" and skips_on_device and not self.ranks.sharded
        self.reset()

    def reset(self) -> None:
        """Discard the optimizer state and the captured graph."""
        self.optimizer = build_optimizer(self.model, self.train)
        self.captured: CapturedUpdate | None = None
        self.n_eager = 0  # updates without a graph
        self.stream = torch.cuda.Stream(self.device) if self.deferred else None
        self.n_targets, self.parts = 1, dict[str, float]()
        self.n_targets_tensor = torch.ones((), device=self.device)  # the same number, for a captured graph
        self.loss_sum = self.grad_norm = torch.zeros((), device=self.device)
        self.skip = torch.zeros((), device=self.device)  # 1: non-finite, the optimizer does not update
        self.n_skipped = torch.zeros((), dtype=torch.long, device=self.device)
        if self.deferred:
            setattr(self.optimizer, "found_inf", self.skip)  # noqa: B010  PyTorch reads it, but does not declare it
            for group in self.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)

    def _compile(self) -> nn.Module:
        """The model for the forward pass: compiled where that is faster, else eager."""
        mode, can_compile = self.train.compile, getattr(self.model, "compiles", True) and not self.ranks.sharded
        can_compile = can_compile and self.task.fixed_shapes  # each new shape compiles again
        # on a CPU it is no faster, and a compiler that benchmarks its kernels is not bitwise repeatable
        eager = mode == "auto" and (self.device.type == "cpu" or self.train.deterministic)
        if mode == "no" or eager or not can_compile:
            return self.model
        if reason := machine.compile_problem(self.device):
            self.listen("notice", text=f"not compiled: {reason}")
            return self.model
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder("compiled")))  # for the next process
        return CompiledModel(self.model, self.listen, blocks=mode == "blocks")

    def _pick_precision(self) -> torch.dtype:
        """The precision of the settings; `auto` measures a large model on a CPU that has instructions for bfloat16."""
        wanted, sizes = self.train.precision, (p.numel() for p in self.model.parameters())
        measures = wanted == "auto" and self.device.type == "cpu" and self.ranks.world_size == 1
        if measures and machine.has_bfloat16(self.device) and sum(sizes) >= precision.MIN_PARAMETERS:
            return precision.faster_precision(self.forward_model, self.task, self.task.batch(0, 0))
        return machine.pick_precision(wanted, self.device)

    def autocast(self) -> AbstractContextManager[object]:
        """Context that computes matrix products in the precision of the run."""
        return nullcontext() if self.precision == torch.float32 else torch.autocast(self.device.type, self.precision)

    # --- an update ----------------------------------------------------------------------------------------------------

    def __call__(self, batch: Batch, lr: float) -> None:
        """Update the weights; `read` returns loss and gradient norm."""
        for group in self.optimizer.param_groups:
            scaled = lr * group.get("lr_scale", 1.0)
            group["lr"] = group["lr"].fill_(scaled) if self.deferred else scaled
        self.n_targets, rows = batch.n_targets, self.ranks.local_rows(batch)
        self.n_targets_tensor.fill_(self.n_targets)
        before = {name: t.clone() for name, t in self.task.state().items()}
        while True:
            try:
                return self._on_stream(rows)
            except torch.OutOfMemoryError:
                self.task.load_state(before)
                self._halve_micro_batch(len(rows.tokens))

    def _on_stream(self, batch: Batch) -> None:
        """Run the update on a side stream on a GPU: work of the default stream cannot be captured."""
        if self.stream is None:
            return self._eager_or_replay(batch)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self._eager_or_replay(batch)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def _eager_or_replay(self, batch: Batch) -> None:
        if self.captured is not None and self.captured.matches(batch):
            self.loss_sum, self.grad_norm = self.captured.replay(batch)
            return
        on_device = batch.to(self.device)
        if self._can_capture(batch):
            self.captured = CapturedUpdate(on_device, self._update)
            self.loss_sum, self.grad_norm = self.captured.replay(batch)
            return
        self.loss_sum, self.grad_norm = self._update(on_device)
        self.n_eager += 1

    def _can_capture(self, batch: Batch) -> bool:
        """Whether every later step launches the same kernels."""
        allowed = self.deferred and self.train.compile != "no" and not self.train.deterministic
        warm = self.captured is None and self.n_eager >= WARMUP_STEPS
        return allowed and not self.task.state() and self.ranks.world_size == 1 and warm and batch.static_shape

    def _update(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad()
        loss_sum = self.ranks.all_sum(self._backward(batch))
        self.ranks.reduce_gradients(self.model)
        grad_norm = full_tensor(clip_gradients(self.model, self.train.grad_clip))
        if self.deferred:
            self._mark_skipped(loss_sum, grad_norm)
            self.optimizer.step()
        elif math.isfinite(float(loss_sum)) and math.isfinite(float(grad_norm)):
            self.optimizer.step()
        else:
            self.n_skipped += 1
        return loss_sum, grad_norm

    def _mark_skipped(self, loss_sum: Tensor, grad_norm: Tensor) -> None:
        """Mark a non-finite update on the device. With on_nan=stop all later updates are skipped as well."""
        non_finite = ~(loss_sum.isfinite() & grad_norm.isfinite())
        skip = non_finite if self.train.on_nan == "skip" else non_finite | (self.skip > 0)
        self.skip.copy_(skip)
        self.n_skipped += skip

    def _backward(self, batch: Batch) -> Tensor:
        """Accumulate the gradients of all micro-batches; return the summed loss."""
        n_rows = len(batch.tokens)
        size, offset = self.micro_batch or n_rows, self.ranks.rank * n_rows
        total = torch.zeros((), device=self.device)
        parts: dict[str, list[Any]] = {}
        for start in range(0, n_rows, size):
            self.ranks.before_backward(self.model, last=start + size >= n_rows)
            with self.autocast():
                loss = self.task.loss(self.forward_model, batch.slice_rows(start, start + size), offset + start)
            (loss.total / self.n_targets_tensor).backward()  # all targets of the batch: micro-batches may be ragged
            total += loss.total.detach() if loss.reported is None else loss.reported
            for name, (loss_sum, n) in loss.parts.items():
                previous = parts.setdefault(name, [0.0, 0])
                parts[name] = [previous[0] + float(loss_sum), previous[1] + n]
        sums = self.ranks.all_sum(torch.tensor([*parts.values()], dtype=torch.float64)).tolist() if parts else []
        self.parts = {name: loss_sum / n for name, (loss_sum, n) in zip(parts, sums, strict=True) if n}
        return total

    def _halve_micro_batch(self, n_rows: int) -> None:
        """Halve the micro-batch after running out of memory; the update stays the same."""
        size = min(self.micro_batch or n_rows, n_rows)
        self.optimizer.zero_grad()
        self.captured, self.n_eager = None, 0
        torch.cuda.empty_cache()
        if size == 1:
            raise HarkenError("out of memory with micro-batches of one row; use a smaller model.context or model")
        self.micro_batch = math.ceil(size / 2)
        if self.ranks.world_size > 1:  # the other ranks are inside the same update and cannot restart it
            fix = f"train again with train.micro_batch={self.micro_batch}"
            raise HarkenError(f"out of memory with micro-batches of {size} rows; {fix}")
        text = f"out of memory: micro-batches of {self.micro_batch} of {n_rows} rows from now on; same updates"
        self.listen("notice", text=text)

    # --- the values of an update --------------------------------------------------------------------------------------

    def read(self) -> tuple[float, float, int]:
        """Loss and gradient norm of the last update, and the number of skipped updates so far."""
        return float(self.loss_sum) / self.n_targets, float(self.grad_norm), int(self.n_skipped)


class CapturedUpdate:
    """CUDA graph of an update, for batches of one shape. A small model launches about a thousand small kernels, more
    slowly than the GPU runs them; replaying a graph needs one launch."""

    def __init__(self, batch: Batch, update: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
        self.batch, self.graph = batch, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.outputs = update(batch)

    def matches(self, batch: Batch) -> bool:
        new, captured = ({name: x.shape for name, x in b.tensors().items()} for b in (batch, self.batch))
        return batch.static_shape and new == captured

    def replay(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update with this batch; return its summed loss and gradient norm, both on the device."""
        tensors = batch.tensors()
        for name, captured in self.batch.tensors().items():
            new = tensors[name]  # pinned: a large pageable tensor is copied only after the previous update
            captured.copy_(new.pin_memory() if captured.is_cuda and new.is_cpu else new, non_blocking=True)
        self.graph.replay()
        return self.outputs


class CompiledModel(nn.Module):
    """A model with a compiled forward pass; all other attributes are those of the model.

    `blocks`: a block is compiled once for all layers, in the time of one layer, and the rest of the model is eager.
    """

    def __init__(self, model: nn.Module, listen: Listener, *, blocks: bool = False) -> None:
        super().__init__()
        self.model, self.listen = model, listen
        self.compiled: Callable[..., Any] = compile_blocks(model) if blocks else torch.compile(model, dynamic=False)
        self.verified = False

    def forward(self, *args: object, **kwargs: object) -> object:
        if self.verified:
            return self.compiled(*args, **kwargs)
        try:
            with warnings.catch_warnings():  # float32 scores are intended; the softmax note is for compiler developers
                warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores|\s*Online softmax", UserWarning)
                h = self.compiled(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any compiler error; an error of the model itself is raised again here
            self.compiled, h = self.model, self.model(*args, **kwargs)
            self.listen("notice", text=f"not compiled, so slower: {type(error).__name__}")
        self.verified = True
        return h

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def compile_blocks(model: nn.Module) -> Callable[..., object]:
    """The forward pass of a model whose blocks share one compiled function; a model without blocks is compiled."""
    compiled = torch.compile(Block.forward, dynamic=False)
    blocks = [(vars(block), partial(compiled, block)) for block in model.modules() if isinstance(block, Block)]

    def forward(*args: object, **kwargs: object) -> object:
        for attributes, fast in blocks:
            attributes["forward"] = fast
        try:
            return model(*args, **kwargs)
        finally:  # the evaluation, with other shapes, is eager
            for attributes, _ in blocks:
                del attributes["forward"]

    return forward if blocks else torch.compile(model, dynamic=False)
