"""Several processes, started by torchrun, that train one model: each computes its rows of every batch, and all make the
same update.

The loop asks `Ranks` and never whether it is alone: one process alone gets back what it gave. Under ddp (`Together`)
every rank holds all weights and the gradients are summed once per update; under fsdp (`Sharded`) every rank holds a
part of each weight, and a block's weights are fetched when it is their turn. Between ranks go tensors and JSON, never
objects; a checkpoint is the file that one process would write, so any number of processes may go on with it.
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
from harken.data.batch import Batch, dice
from harken.errors import BadSetting, HarkenError

from . import checkpoint_state
from .settings import Train

T = TypeVar("T")
Tensors = dict[str, Tensor]

BUCKET = 2**24  # numbers sent at once: many small messages would be slow, one of all gradients takes their memory again
PATIENCE = timedelta(hours=6)  # the first rank may read or judge that long; one that dies is noticed at once
LOST = "another process of this training is gone; give the same command again with --resume"


# --- one process ------------------------------------------------------------------------------------------------------


class Ranks:
    """One process alone, and what holds for any number of them."""

    rank, world, here = 0, 1, 1  # which process, of how many, of how many on this machine
    sharded = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def by(self, train: Train) -> "Ranks":
        """These processes, working together as the setting says; a wrong use is refused."""
        if train.parallel != "none" and not started():
            way = "start it with: torchrun --nproc-per-node 2 -m harken train ...; or set train.parallel=none"
            raise BadSetting(f"train.parallel={train.parallel}: there is only this process; {way}")
        return self

    def same(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on every rank; as JSON has it."""
        return make()

    def most(self, *numbers: int) -> list[int]:
        """The largest that any rank gives."""
        return list(numbers)

    def in_turn(self, make: Callable[[], T]) -> T:
        """What each rank makes; the others find in the cache what the first has left there."""
        made = make() if self.first else None
        self.same(lambda: None)
        return make() if made is None else made

    # --- an update ----------------------------------------------------------------------------------------------------

    def draw(self, seed: int) -> None:
        """From here on each rank draws its own numbers."""

    def spread(self, model: nn.Module) -> nn.Module:
        """The model as this rank holds it."""
        return model

    def rows(self, batch: Batch) -> Batch:
        """This rank's rows."""
        many = len(batch.tokens)
        if many < self.world or (batch.even and many % self.world):
            way = f"take a train.batch that {self.world} divides" if batch.even else "take a larger train.batch"
            raise BadSetting(f"train.batch: a batch of {many} rows does not split over {self.world} processes; {way}")
        start, stop = (many * rank // self.world for rank in (self.rank, self.rank + 1))
        return batch.rows(start, stop)

    def adding(self, model: nn.Module, *, last: bool) -> None:
        """Before the gradients of a micro-batch are taken."""

    def add_up(self, model: nn.Module) -> None:
        """After the last: the gradients of all ranks' rows."""

    def sum(self, t: Tensor) -> Tensor:
        return t

    # --- what is kept -------------------------------------------------------------------------------------------------

    def collected(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Each tensor whole, one at a time, and only on the first rank, which writes them."""
        each = ((name, whole(t)) for name, t in tensors.items())
        return {name: t.cpu() for name, t in each if self.first}

    def chances(self) -> Tensors:
        """The random state of every rank: that of rank 2 as `cpu@2`."""
        return checkpoint_state.random_state()

    def own_chance(self, saved: Tensors) -> Tensors:
        """This rank's part of them. One that was not there goes on with the numbers it has."""
        parted = [(*name.partition("@"), t) for name, t in saved.items()]
        mine = {name: t for name, _, rank, t in parted if int(rank or 0) == self.rank}
        return mine if mine or self.first else checkpoint_state.random_state()

    def carried(self, carry: Tensors) -> Tensors:
        """What a task remembers of all rows."""
        return carry

    def handed(self, tensors: Tensors, model: nn.Module) -> Tensors:
        """The tensors of a checkpoint, which the first rank has read, as this rank holds them."""
        return tensors

    def joined(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        """The model as the first rank can use it alone."""
        return model


def whole(t: Tensor) -> Tensor:
    """All of a tensor, of which each rank may hold a part."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def held(t: Tensor) -> Tensor:
    """The part of it that this rank holds."""
    return t.to_local() if hasattr(t, "to_local") else t


def cut(t: Tensor, like: Any) -> Tensor:
    """This rank's part of a tensor that every rank has, cut like another."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(t.to(like.device), like.device_mesh, like.placements, src_data_rank=None).clone()


def in_one_piece(change: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """change(t), where every part of the result depends on the whole of t."""
    full = whole(t)
    return change(t) if full is t else cut(change(full), t)


# --- several ----------------------------------------------------------------------------------------------------------


class Together(Ranks):
    """Every rank holds the whole model (ddp)."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.here = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))

    def by(self, train: Train) -> Ranks:
        if train.parallel == "none":
            way = "set train.parallel=ddp, or fsdp for a model that does not fit on one device"
            raise BadSetting(f"train.parallel=none: {self.world} processes would train the same model; {way}")
        if ":" in train.device:
            raise BadSetting(f"train.device={train.device}: each process takes a device of its own; use cuda or cpu")
        if machine.pick_device(train.device).type == "cuda":
            mine, there = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
            if mine >= there:
                way = f"use --nproc-per-node {there}, or train.device=cpu"
                raise BadSetting(f"train.device: {self.here} processes, and {there} CUDA devices here; {way}")
            torch.cuda.set_device(mine)
        return Sharded() if train.parallel == "fsdp" else self

    def same(self, make: Callable[[], T]) -> T:
        made = make() if self.first else None
        text = json.dumps(made).encode()
        size = torch.tensor(len(text))
        dist.broadcast(size, 0)
        sent = torch.frombuffer(bytearray(text if self.first else int(size)), dtype=torch.uint8)
        dist.broadcast(sent, 0)
        return made if made is not None else json.loads(sent.numpy().tobytes())

    def most(self, *numbers: int) -> list[int]:
        largest = torch.tensor(numbers)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def draw(self, seed: int) -> None:
        if self.rank:  # the first goes on with the numbers that one process alone would draw
            torch.manual_seed(int(dice(seed, 4, self.rank).integers(2**32)))

    def spread(self, model: nn.Module) -> nn.Module:
        for t in run_folder.weights(model).values():
            dist.broadcast(t, 0)
        return model

    def add_up(self, model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        ends = accumulate(g.numel() for g in grads)
        for _, pairs in groupby(zip(grads, ends, strict=True), lambda pair: pair[1] // BUCKET):
            some = [g for g, _ in pairs]
            flat = self.sum(torch.cat([g.flatten() for g in some]))
            parts = flat.split([g.numel() for g in some])
            torch._foreach_copy_(some, [part.view_as(g) for part, g in zip(parts, some, strict=True)])

    def sum(self, t: Tensor) -> Tensor:
        dist.all_reduce(t)
        return t

    def _all(self, t: Tensor) -> list[Tensor]:
        """This tensor of each rank."""
        found = [torch.empty_like(t) for _ in range(self.world)]
        dist.all_gather(found, t)
        return found

    def chances(self) -> Tensors:
        ranks = {name: self._all(t) for name, t in checkpoint_state.random_state().items()}
        return {f"{name}@{n}" if n else name: t for name, each in ranks.items() for n, t in enumerate(each)}

    def carried(self, carry: Tensors) -> Tensors:
        mine = {name: t.chunk(self.world, 1)[self.rank].contiguous() for name, t in carry.items()}  # layers B d
        return {name: torch.cat(self._all(t), 1) for name, t in mine.items()}

    def handed(self, tensors: Tensors, model: nn.Module) -> Tensors:
        table = self.same(lambda: [(name, t.shape, str(t.dtype)) for name, t in tensors.items()])
        parameters, found = dict(model.named_parameters()), Tensors()
        for name, shape, dtype in table:
            t = tensors[name] if self.first else torch.empty(shape, dtype=getattr(torch, dtype.partition(".")[2]))
            dist.broadcast(t, 0)
            found[name] = self._kept(t, parameters.get(name.rpartition(":")[2].partition("/")[0]))
        return found

    def _kept(self, t: Tensor, parameter: Tensor | None) -> Tensor:
        """What this rank keeps of a weight, or of a number for each of its weights (a moment)."""
        return t


class Sharded(Together):
    """Every rank holds a part of each weight, of its gradient and of its moments (FSDP2)."""

    sharded = True

    def spread(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        super().spread(model)
        # a recurrent layer's output may be a view; nobody writes into it here
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.world,))
        for part in [*(m for m in model.modules() if isinstance(m, Block)), model]:
            fully_shard(part, mesh=mesh)
            name = "read" if isinstance(part, Block) else "memory"  # needs the weights, and is no forward
            if hasattr(part, name):
                register_fsdp_forward_method(part, name)
        for part in model.modules():
            if isinstance(part, FSDPModule):  # a sum over the ranks, as the loss is one over all targets; not a mean
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
        return model

    def adding(self, model: Any, *, last: bool) -> None:
        model.set_requires_gradient_sync(last)

    def add_up(self, model: nn.Module) -> None:
        """Done with the last micro-batch, block by block, while the blocks before it are still computed."""

    def _kept(self, t: Tensor, parameter: Tensor | None) -> Tensor:
        return t if parameter is None or not t.dim() else cut(t, parameter)

    def joined(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        weights = self.collected(run_folder.weights(model))
        if not self.first:
            return model
        plain = build()
        run_folder.load_weights(plain, weights)
        return plain.to(next(model.parameters()).device)


# --- who is there -----------------------------------------------------------------------------------------------------


def started() -> bool:
    """Whether torchrun has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def first() -> bool:
    """Whether this is the process that speaks."""
    return not started() or os.environ["RANK"] == "0"


@contextmanager
def together() -> Iterator[Ranks]:
    """All processes that torchrun has started, or this one alone. The first of them to fail speaks for all."""
    if not started() or os.environ["WORLD_SIZE"] == "1":
        yield Ranks()
        return
    store = _meet()
    try:
        yield Together()
    except Exception as error:
        lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
        told = HarkenError(LOST) if lost else error
        with suppress(RuntimeError):  # the store may be gone with the first rank
            if store.add("told", 1) > 1 and isinstance(told, HarkenError):
                told.told = True
        if lost:
            raise told from error
        raise


@cache
def _meet() -> Any:
    """Find the others, once: gloo carries what is on the CPU, NCCL what is on a GPU."""
    shared, rank, world = next(iter(rendezvous("env://", timeout=PATIENCE)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store outlives a restart
    store = dist.PrefixStore(attempt, shared)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    atexit.register(dist.destroy_process_group)
    return store
