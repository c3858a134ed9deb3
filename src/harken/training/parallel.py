"""Data-parallel training with several processes started by torchrun. Each process computes its rows of every batch, and
all processes make the same update.

The training loop calls `Ranks` for one process and for several. With ddp (`ReplicatedRanks`) every rank holds all
weights, and the gradients are summed once per update. With fsdp (`ShardedRanks`) every rank holds a shard of each
weight and gathers the weights of a block when it computes the block. Ranks exchange tensors and JSON, never pickled
objects. A checkpoint has the same content for any number of processes, so any number can resume from it.
"""

import atexit
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import accumulate, groupby
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from harken import machine, run_folder
from harken.core.layers import Block
from harken.data.batch import Batch
from harken.data.rng import RngStream, rng_for
from harken.errors import BadSetting, HarkenError

from . import checkpoint_state
from .settings import Train

T = TypeVar("T")
Tensors = dict[str, Tensor]

BUCKET_SIZE = 2**24  # gradient elements per all-reduce: fewer messages are faster, one message doubles the memory
TIMEOUT = timedelta(hours=6)  # limit for work of the first rank alone; a lost process is noticed at once
PROCESS_LOST = "another process of this training is gone; run the same command again with --resume"


# --- one process ------------------------------------------------------------------------------------------------------


class Ranks:
    """A single process. Subclasses implement the same operations for several processes."""

    rank, world_size, local_world_size = 0, 1, 1  # local: processes on this machine
    sharded = False

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def configure(self, train: Train) -> "Ranks":
        """Ranks for train.parallel; raises BadSetting if it does not fit the number of processes."""
        if train.parallel != "none" and not under_torchrun():
            fix = "start it with: torchrun --nproc-per-node 2 -m harken train ...; or set train.parallel=none"
            raise BadSetting(f"train.parallel={train.parallel}: there is only this process; {fix}")
        return self

    def broadcast(self, compute: Callable[[], T]) -> T:
        """Compute a JSON value on the first rank and return it on every rank."""
        return compute()

    def all_max(self, *numbers: int) -> list[int]:
        """Element-wise maximum over the ranks."""
        return list(numbers)

    def first_rank_first(self, compute: Callable[[], T]) -> T:
        """Compute on every rank, on the first before all others: the others use the cache it fills."""
        value = compute() if self.is_first else None
        self.broadcast(lambda: None)
        return compute() if value is None else value

    # --- an update ----------------------------------------------------------------------------------------------------

    def seed_rng(self, seed: int) -> None:
        """Give each rank its own random stream."""

    def distribute(self, model: nn.Module) -> nn.Module:
        """The model with the weights that this rank holds."""
        return model

    def local_rows(self, batch: Batch) -> Batch:
        """This rank's rows of a batch."""
        n_rows = len(batch.tokens)
        if n_rows < self.world_size or (batch.fixed_size and n_rows % self.world_size):
            fix = f"use a multiple of {self.world_size}" if batch.fixed_size else "use a larger train.batch"
            why = f"a batch of {n_rows} rows does not split over {self.world_size} processes"
            raise BadSetting(f"train.batch: {why}; {fix}")
        start, stop = (n_rows * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return batch.slice_rows(start, stop)

    def before_backward(self, model: nn.Module, *, last: bool) -> None:
        """Hook before the backward pass of a micro-batch; `last` for the last one of an update."""

    def reduce_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over the ranks, after the last micro-batch."""

    def all_sum(self, t: Tensor) -> Tensor:
        return t

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def gather(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Full tensors, gathered one at a time; empty on all ranks but the first."""
        full = ((name, full_tensor(t)) for name, t in tensors.items())
        return {name: t.cpu() for name, t in full if self.is_first}

    def gather_rng(self) -> Tensors:
        """Random state of every rank; that of rank 2 is named `cpu@2`."""
        return checkpoint_state.rng_state()

    def own_rng(self, saved: Tensors) -> Tensors:
        """This rank's random state. A rank that the checkpoint does not have keeps its current state."""
        parsed = [(*name.partition("@"), t) for name, t in saved.items()]
        states = {name: t for name, _, rank, t in parsed if int(rank or 0) == self.rank}
        return states if states or self.is_first else checkpoint_state.rng_state()

    def gather_task_state(self, state: Tensors) -> Tensors:
        """The task's state for the rows of all ranks."""
        return state

    def scatter(self, tensors: Tensors, model: nn.Module) -> Tensors:
        """Send the tensors of a checkpoint, read by the first rank, to every rank; each keeps its shards."""
        return tensors

    def unshard(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        """On the first rank, the model with all weights."""
        return model


def full_tensor(t: Tensor) -> Tensor:
    """The full tensor, gathered if it is sharded."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def local_tensor(t: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    return t.to_local() if hasattr(t, "to_local") else t


def _shard_like(t: Tensor, like: Any) -> Tensor:
    """This rank's shard of a replicated tensor, sharded like another one."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(t.to(like.device), like.device_mesh, like.placements, src_data_rank=None).clone()


def apply_unsharded(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """function(t) for a function that needs the full tensor."""
    full = full_tensor(t)
    return function(t) if full is t else _shard_like(function(full), t)


# --- several processes ------------------------------------------------------------------------------------------------


class ReplicatedRanks(Ranks):
    """Every rank holds the full model (ddp)."""

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    def configure(self, train: Train) -> Ranks:
        if train.parallel == "none":
            fix = "set train.parallel=ddp, or fsdp for a model that does not fit on one device"
            raise BadSetting(f"train.parallel=none: {self.world_size} processes would train the same model; {fix}")
        if ":" in train.device:
            raise BadSetting(f"train.device={train.device}: each process uses its own device; use cuda or cpu")
        if machine.pick_device(train.device).type == "cuda":
            index, n_devices = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
            if index >= n_devices:
                fix = f"use --nproc-per-node {n_devices}, or train.device=cpu"
                raise BadSetting(f"train.device: {self.local_world_size} processes, {n_devices} CUDA devices; {fix}")
            torch.cuda.set_device(index)
        return ShardedRanks() if train.parallel == "fsdp" else self

    def broadcast(self, compute: Callable[[], T]) -> T:
        value = compute() if self.is_first else None
        text = json.dumps(value).encode()
        size = torch.tensor(len(text))
        dist.broadcast(size, 0)
        buffer = torch.frombuffer(bytearray(text if self.is_first else int(size)), dtype=torch.uint8)
        dist.broadcast(buffer, 0)
        return value if value is not None else json.loads(buffer.numpy().tobytes())

    def all_max(self, *numbers: int) -> list[int]:
        largest = torch.tensor(numbers)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def seed_rng(self, seed: int) -> None:
        if self.rank:  # the first rank draws the numbers of a single process
            torch.manual_seed(int(rng_for(seed, RngStream.RANK_SEED, self.rank).integers(2**32)))

    def distribute(self, model: nn.Module) -> nn.Module:
        for t in run_folder.weights(model).values():
            dist.broadcast(t, 0)
        return model

    def reduce_gradients(self, model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        ends = accumulate(g.numel() for g in grads)
        for _, pairs in groupby(zip(grads, ends, strict=True), lambda pair: pair[1] // BUCKET_SIZE):
            bucket = [g for g, _ in pairs]
            flat = self.all_sum(torch.cat([g.flatten() for g in bucket]))
            sums = flat.split([g.numel() for g in bucket])
            torch._foreach_copy_(bucket, [total.view_as(g) for total, g in zip(sums, bucket, strict=True)])

    def all_sum(self, t: Tensor) -> Tensor:
        dist.all_reduce(t)
        return t

    def _all_gather(self, t: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(t) for _ in range(self.world_size)]
        dist.all_gather(tensors, t)
        return tensors

    def gather_rng(self) -> Tensors:
        states = {name: self._all_gather(t) for name, t in checkpoint_state.rng_state().items()}
        return {f"{name}@{n}" if n else name: t for name, tensors in states.items() for n, t in enumerate(tensors)}

    def gather_task_state(self, state: Tensors) -> Tensors:
        rows = {name: t.chunk(self.world_size, 1)[self.rank].contiguous() for name, t in state.items()}  # layers B d
        return {name: torch.cat(self._all_gather(t), 1) for name, t in rows.items()}

    def scatter(self, tensors: Tensors, model: nn.Module) -> Tensors:
        table = self.broadcast(lambda: [(name, t.shape, str(t.dtype)) for name, t in tensors.items()])
        parameters, local = dict(model.named_parameters()), Tensors()
        for name, shape, dtype in table:
            t = tensors[name] if self.is_first else torch.empty(shape, dtype=getattr(torch, dtype.partition(".")[2]))
            dist.broadcast(t, 0)
            local[name] = self._local(t, parameters.get(name.rpartition(":")[2].partition("/")[0]))
        return local

    def _local(self, t: Tensor, parameter: Tensor | None) -> Tensor:
        """This rank's part of a weight or of the optimizer state of `parameter`."""
        return t


class ShardedRanks(ReplicatedRanks):
    """Every rank holds a shard of each weight, of its gradient and of its optimizer state (FSDP2)."""

    sharded = True

    def distribute(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        super().distribute(model)
        # the output of a recurrent layer may be a view; nothing writes to it in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.world_size,))
        for module in [*(m for m in model.modules() if isinstance(m, Block)), model]:
            fully_shard(module, mesh=mesh)
            # methods beside forward that use the weights
            name = Block.source_keys_values.__name__ if isinstance(module, Block) else "memory"
            if hasattr(module, name):
                register_fsdp_forward_method(module, name)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # sum over the ranks, not mean: the loss is divided by all targets
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return model

    def before_backward(self, model: nn.Module, *, last: bool) -> None:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(last)

    def reduce_gradients(self, model: nn.Module) -> None:
        """FSDP reduces each block during the backward pass of the last micro-batch."""

    def _local(self, t: Tensor, parameter: Tensor | None) -> Tensor:
        return t if parameter is None or not t.dim() else _shard_like(t, parameter)

    def unshard(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        weights = self.gather(run_folder.weights(model))
        if not self.is_first:
            return model
        full_model = build()
        run_folder.load_weights(full_model, weights)
        return full_model.to(next(model.parameters()).device)


# --- the process group ------------------------------------------------------------------------------------------------


def under_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def is_first_process() -> bool:
    """Whether this process reports progress; needs no process group."""
    return not under_torchrun() or os.environ["RANK"] == "0"


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The processes that torchrun has started, or this one alone. Only the first process to fail reports its error."""
    if not under_torchrun() or os.environ["WORLD_SIZE"] == "1":
        yield Ranks()
        return
    store = _init_process_group()
    try:
        yield ReplicatedRanks()
    except Exception as error:
        lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
        failure = HarkenError(PROCESS_LOST) if lost else error
        with suppress(RuntimeError):  # the store is lost with the first rank
            if store.add("reported", 1) > 1 and isinstance(failure, HarkenError):
                failure.reported = True
        if lost:
            raise failure from error
        raise


@cache
def _init_process_group() -> Any:
    """Initialize torch.distributed once: gloo for CPU tensors, NCCL for GPU tensors."""
    shared, rank, world_size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store outlives a restart
    store = dist.PrefixStore(attempt, shared)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    atexit.register(dist.destroy_process_group)
    return store
