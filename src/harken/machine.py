"""The machine: its description, and the device, precision and compiler that a run uses on it."""

import importlib.util
import math
import os
import platform
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from harken.errors import BadSetting
from harken.suggestions import did_you_mean

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
compile_enabled = True  # False: losses are computed eagerly
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BFLOAT16_INSTRUCTIONS = "amx_bf16", "avx512_bf16"


def describe(device: torch.device | None = None) -> dict[str, str | float | None]:
    """Description of the machine, stored with every measurement. Its GPU is `device`, or else the current one."""
    gpu = device if device is not None and device.type == "cuda" else None
    return {
        "cpu": _field(CPUINFO, "model name") or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "ram_gib": ram_gib(),
        "gpu": torch.cuda.get_device_name(gpu) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
    }


def cores() -> int:
    """Number of cores that this process may use: its CPU affinity, limited by the quota of a container."""
    available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return max(1, min(available, math.ceil(int(quota) / int(period))))
    return available


def pick_device(wanted: str = "auto", name: str = "train.device") -> torch.device:
    """The device of this setting; `auto` is a GPU if there is one. `name` is the setting in error messages."""
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda" if n_devices else "cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (":" in wanted and not (index.isascii() and index.isdigit())):
        hint = did_you_mean(wanted.replace("gpu", "cuda"), ("auto", "cpu", "cuda"))
        raise BadSetting(f"{name}={wanted!r}: not a device; accepted: auto, cpu, cuda, cuda:0, cuda:1, ...{hint}")
    if not n_devices:
        raise BadSetting(f"{name}={wanted}: torch {torch.__version__} finds no CUDA device; use auto or cpu")
    if index and int(index) >= n_devices:
        accepted = f"use one of cuda:0 to cuda:{n_devices - 1}"
        raise BadSetting(f"{name}={wanted}: this machine has {n_devices} CUDA devices; {accepted}")
    return torch.device("cuda", int(index)) if index else torch.device("cuda")


def pick_precision(wanted: str, device: torch.device | str) -> torch.dtype:
    """Precision of the matrix products; `auto` is bfloat16 on a GPU that supports it in hardware, else float32.

    On a CPU bfloat16 is faster for some models only (training/precision.py), and without the instructions it is
    emulated, slowly.
    """
    device = torch.device(device)
    if wanted == "auto":
        return torch.bfloat16 if device.type == "cuda" and has_bfloat16(device) else torch.float32
    if wanted == "bfloat16" and device.type == "cuda" and not has_bfloat16(device):
        name = torch.cuda.get_device_name(device)
        raise BadSetting(f"train.precision=bfloat16: {name} does not support it; use float32")
    return PRECISIONS[wanted]


def compile_problem(device: torch.device | str | None = None) -> str | None:
    """Why torch.compile cannot be used for a device (default: `auto`), in one line; None if it can."""
    device = torch.device(device) if device is not None else pick_device()
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers (Python.h), and they are not installed"
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile on CUDA needs triton, and it is not installed"
        if not any(shutil.which(name) for name in (os.environ.get("CC") or "gcc", "gcc", "clang")):
            return "torch.compile on CUDA needs a C compiler for triton: no gcc or clang found; install one or set CC"
        return None
    # torch looks for this name only; another compiler needs CXX
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler):
        return None
    installed = next((name for name in ("g++", "clang++") if shutil.which(name)), None)
    fix = f"set CXX={installed}" if installed else "install one or set CXX"
    return f"torch.compile on a CPU needs a C++ compiler, and {compiler} is not found; {fix}"


def prefers_onednn() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than MKL, which uses AVX-512 on CPUs of Intel only."""
    avx512 = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return avx512 and _field(CPUINFO, "vendor_id") not in ("", "GenuineIntel")


def available_memory() -> float:
    """Bytes that can still be allocated; infinite where the system does not report them."""
    free, limit = _field(MEMINFO, "MemAvailable").removesuffix(" kB"), _read(CGROUP / "memory.max")
    within_limit = int(limit) - int(_field(CGROUP / "memory.stat", "anon") or 0) if limit.isdigit() else math.inf
    return min(1024 * int(free) if free.isdigit() else math.inf, within_limit)


def ram_gib() -> float | None:
    """Memory that this process may use, in GiB; None where the system does not report it."""
    if sys.platform == "win32":
        return None
    total, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _read(CGROUP / "memory.max")
    return round(min(total, int(limit) if limit.isdigit() else total) / 2**30, 1)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def has_onednn() -> bool:
    """Whether oneDNN has kernels for the vector registers of this CPU."""
    return platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()


def cpu_has(*instructions: str) -> bool:
    """Whether the CPU has one of these instruction sets; False where the system does not list them."""
    return not set(instructions).isdisjoint(_field(CPUINFO, "flags").split())


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8  # Ampere was the first
    return device.type == "cpu" and cpu_has(*BFLOAT16_INSTRUCTIONS)


def _field(path: Path, name: str) -> str:
    """The first value of a field in a file of the system; empty if it is missing."""
    match = re.search(rf"^{name}(?:[ \t]*:| )(.*)$", _read(path), re.MULTILINE)
    return match[1].strip() if match else ""


def _read(path: Path) -> str:
    """Text of a file of the system; empty if it does not exist, like the limits outside a container."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
