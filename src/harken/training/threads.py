"""The CPU threads of a training next to other programs.

The OpenMP runtime of PyTorch's wheels for Linux (libgomp) waits actively at the end of each operation until all threads
have finished their part. Where another program uses a core, the scheduler moves threads onto the same core, and they
wait for each other most of the time. Bound to one core each, only the thread on the shared core is slower, and the
training keeps about half of its speed. docs/log.md has what other waiting policies cost.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

PROCESS, THREADS = Path("/proc/stat"), Path("/proc/self/task")
BURST_SECONDS, MAX_BURSTS = 0.01, 10  # of work that shows which threads are those of OpenMP
BUSY_CORES = 0.3  # that other programs use, at least, on a busy machine; next to threads that also want their core
POLICIES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # the user binds threads
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # the user sets the number of threads


class OtherPrograms:
    """How much other programs use the cores of this process, from its creation on."""

    def __init__(self) -> None:
        self.start, self.used = time.monotonic(), _seconds_elsewhere()

    def busy_cores(self) -> float:
        """Mean number of cores that other programs used; without /proc/stat the load average, 0 where unknown."""
        used, seconds = _seconds_elsewhere(), time.monotonic() - self.start
        if self.used is None or used is None:
            return os.getloadavg()[0] if self.used is None and hasattr(os, "getloadavg") else 0.0
        return max(0.0, used - self.used) / max(seconds, 1e-9)


def _seconds_elsewhere() -> float | None:
    """CPU seconds that other programs have used on the cores of this process; None if the system does not report it."""
    try:
        rows = [line.split() for line in PROCESS.read_text("ascii").splitlines()]
    except OSError:
        return None
    names = {f"cpu{core}" for core in available_cores()}
    # user nice system idle iowait irq softirq steal, in clock ticks
    ticks = sum(sum(map(int, row[1:9])) - int(row[4]) - int(row[5]) for row in rows if row and row[0] in names)
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") - own.user - own.system


def available_cores() -> list[int]:
    """The cores that this process may use; empty where the system cannot bind a thread to a core."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def fewer_threads(busy_cores: float) -> int | None:
    """One thread for each core that other programs leave free; None if that is not fewer, or the user has chosen."""
    if any(name in os.environ for name in COUNTS):
        return None
    n = max(1, (len(available_cores()) or os.cpu_count() or 1) - math.ceil(busy_cores))
    return n if n < torch.get_num_threads() else None


@contextmanager
def bound_threads(*, enabled: bool = True) -> Iterator[bool]:
    """Bind each OpenMP thread to a core of its own, if there are as many threads as cores; yields whether they are.

    With fewer threads than cores the scheduler has a free core to move them to.
    """
    cores, threads = available_cores(), list[int]()
    by_user = any(name in os.environ for name in POLICIES)
    if enabled and not by_user and 1 < torch.get_num_threads() == len(cores):
        threads = [threading.get_native_id(), *_openmp_workers(len(cores) - 1)]
    bound = len(threads) == len(cores) > 1
    try:
        for thread, core in zip(threads, cores, strict=True) if bound else ():
            os.sched_setaffinity(thread, {core})
        yield bound
    finally:
        for thread in threads if bound else ():
            with suppress(OSError):  # the thread has ended
                os.sched_setaffinity(thread, cores)


def _openmp_workers(count: int) -> list[int]:
    """The threads that work on a parallel operation, besides this one; empty if they are not `count`."""
    x, before = torch.zeros(count + 1, 1 << 16), _run_times()
    for _ in range(MAX_BURSTS):
        end = time.perf_counter() + BURST_SECONDS
        while time.perf_counter() < end:
            x.add_(1)
        spent = {thread: ns - before.get(thread, 0) for thread, ns in _run_times().items()}
        own = spent.pop(threading.get_native_id(), 0)
        if len(workers := [thread for thread, ns in spent.items() if ns > own / 10 > 0]) == count:
            return workers
    return []


def _run_times() -> dict[int, int]:
    """Nanoseconds that each thread of this process has run; empty if the system does not report them."""
    times = {}
    for folder in THREADS.iterdir() if THREADS.exists() else ():
        with suppress(OSError, ValueError):  # the thread has ended
            times[int(folder.name)] = int((folder / "schedstat").read_text("ascii").split()[0])
    return times
