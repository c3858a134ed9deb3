"""What this machine is, and which device, precision and compiler a run may use on it."""

import importlib.util
import math
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

from harken.errors import BadSetting, did_you_mean

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
compiling = True  # False: losses are computed as they are written
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def describe(device: torch.device | None = None) -> dict[str, Any]:
    """The machine in plain words and numbers: what a result needs beside it to be compared with another.

    The GPU is the device that was used, if it is one, else the current one.
    """
    gpu = device if device is not None and device.type == "cuda" else None
    return {
        "cpu": _cpuinfo("model name") or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "ram_gib": _ram_gib(),
        "gpu": torch.cuda.get_device_name(gpu) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
    }


def cores() -> int:
    """How many cores this process may use: those it is pinned to, or fewer where a container has a smaller share."""
    seen = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return max(1, min(seen, math.ceil(int(quota) / int(period))))
    return seen


def pick_device(wanted: str = "auto", name: str = "train.device") -> torch.device:
    """The device that was asked for, by this name, if it is there; `auto` takes a GPU where there is one."""
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda" if here else "cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (":" in wanted and not (index.isascii() and index.isdigit())):
        hint = did_you_mean(wanted, ("auto", "cpu", "cuda"))
        raise BadSetting(f"{name}={wanted!r}: not a device; accepted: auto, cpu, cuda, cuda:0, cuda:1, ...{hint}")
    if not here:
        raise BadSetting(f"{name}={wanted}: torch {torch.__version__} finds no CUDA device here; use auto or cpu")
    if index and int(index) >= here:
        raise BadSetting(f"{name}={wanted}: there are {here} CUDA devices here; use one of cuda:0 to cuda:{here - 1}")
    return torch.device("cuda", int(index)) if index else torch.device("cuda")


def pick_precision(wanted: str, device: torch.device | str) -> torch.dtype:
    """The number format of the matrix products; `auto` takes bfloat16 where the device computes with it natively."""
    device = torch.device(device)
    if wanted == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    # a CPU without the instructions still computes bfloat16 rightly, only slowly: asked for by name, it is given
    if wanted == "bfloat16" and device.type == "cuda" and not _has_bfloat16(device):
        name = torch.cuda.get_device_name(device)
        raise BadSetting(f"train.precision=bfloat16: {name} does not compute with it; use float32")
    return PRECISIONS[wanted]


def can_compile(device: torch.device | str | None = None) -> str | None:
    """None if torch.compile can work here for this device (without one: for `auto`), else why not, in one line."""
    device = torch.device(device) if device is not None else pick_device()
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers (Python.h), and they are not installed"
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile on CUDA needs triton, and it is not installed"
        if not any(shutil.which(name) for name in (os.environ.get("CC") or "gcc", "gcc", "clang")):
            return "torch.compile on CUDA needs a C compiler for triton: no gcc or clang found; install one or set CC"
        return None
    # torch asks for this one name alone; a clang++ beside it is used only if CXX says so
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler):
        return None
    other = next((name for name in ("g++", "clang++") if shutil.which(name)), None)
    way_out = f"set CXX={other}" if other else "install one or set CXX"
    return f"torch.compile on a CPU needs a C++ compiler, and {compiler} is not found; {way_out}"


def free_memory() -> float:
    """Bytes that may still be taken; no bound where the system does not say."""
    there, limit = _line(MEMINFO, "MemAvailable").removesuffix(" kB"), _cgroup("memory.max")
    taken = next((line.split()[1] for line in _cgroup("memory.stat").splitlines() if line.startswith("anon ")), "0")
    return min(
        1024 * int(there) if there.isdigit() else math.inf, int(limit) - int(taken) if limit.isdigit() else math.inf
    )


def wait(device: torch.device) -> None:
    """Until the device has done what was begun."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _has_bfloat16(device: torch.device) -> bool:
    """Does the device multiply matrices of bfloat16 in hardware?"""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8  # Ampere was the first
    return device.type == "cpu" and not {"amx_bf16", "avx512_bf16"}.isdisjoint(_cpuinfo("flags").split())


def _cpuinfo(field: str) -> str:
    """What the kernel says about the first core under this name, or nothing."""
    return _line(CPUINFO, field)


def _line(path: Path, field: str) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def _cgroup(name: str) -> str:
    """The container's limit of this name, or nothing where there is no container or no limit."""
    try:
        return (CGROUP / name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _ram_gib() -> float | None:
    """Memory this process may use, in GiB, or None where the system does not say."""
    if sys.platform == "win32":
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return round(min(total, int(limit) if limit.isdigit() else total) / 2**30, 1)
