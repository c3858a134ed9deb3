"""Cost of a training: seconds, memory, FLOPs, energy and CO2e, each with its source.

Energy is measured where the machine permits it (NVML for a GPU, RAPL for a CPU; both include other processes) and
estimated elsewhere; the source says which. CO2e follows the lecture: kWh x PUE x CO2e per kWh.
"""

import ctypes
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from harken import machine
from harken.errors import BadRun

from .settings import KG_PER_LB, LECTURE, CostSettings

TRANSFORMER_BIG_LB = 192
DEFAULT_FACTORS = CostSettings()

PROC_STATUS = Path("/proc/self/status")  # VmRSS: resident kB, VmHWM: their peak
PROC_CLEAR_REFS = Path("/proc/self/clear_refs")  # writing 5 resets VmHWM
POWERCAP = Path("/sys/class/powercap")
CORE_WATTS = 10.0
GPU_WATTS = {"H200": 700.0, "H100": 700.0, "A100": 400.0, "V100": 300.0, "P100": 250.0, "T4": 70.0}
WATTS_SOURCE = (
    "a core: 150-300 W of a server processor over its 16-48 cores, rounded up for its share of the memory; "
    "a GPU: its enforced power limit, else the maker's figure for its largest version, else 300 W"
)
SAMPLE_SECONDS = 30.0  # the RAPL counter of a large processor wraps around within minutes
STALLED_SECONDS = 1.0  # without change after which a counter is ignored: virtual machines expose dead counters


class MeterReading(NamedTuple):
    """Usage so far: wall seconds, joules of the machine (without PUE) and their source, peak memory in bytes."""

    seconds: float
    joules: float
    energy_source: str
    memory: float = 0.0


@dataclass
class EnergyCounter:
    """Hardware counters of used energy; a counter with a range wraps around to 0."""

    name: str
    read: Callable[[], list[int]]
    units_per_joule: float
    ranges: list[int]
    last: list[int] = field(default_factory=list)

    def joules_since_last(self) -> float:
        """Joules since the last call; 0 if the counters cannot be read now, then the next call includes them."""
        try:
            now = self.read()
        except Exception:  # no driver error may stop a training
            return 0.0
        pairs, self.last = zip(self.last or now, now, self.ranges, strict=True), now
        return sum(b - a if b >= a else max(0, b - a + full) for a, b, full in pairs) / self.units_per_joule


@dataclass
class EnergySource:
    """Joules of one component of the machine: from its counter if that changes, else watts x seconds."""

    estimate: str
    watts: float
    counter: EnergyCounter | None = None
    stalled: float = 0.0  # seconds without change of the counter

    @property
    def label(self) -> str:
        return f"estimated: {self.estimate}" if self.counter is None else f"measured: {self.counter.name}"

    def joules(self, seconds: float) -> float:
        """Joules of the last `seconds`."""
        if self.counter is not None:
            joules = self.counter.joules_since_last()
            self.stalled = 0.0 if joules else self.stalled + seconds
            if self.stalled < STALLED_SECONDS:
                return joules
            self.counter, seconds = None, self.stalled
        return self.watts * seconds


class Meter:
    """Measures seconds and energy inside a `with` block, starting from the cost of a resumed run, if any."""

    def __init__(
        self, previous: Mapping[str, object] | None = None, *, device: torch.device | str = "cpu", processes: int = 1
    ) -> None:
        previous = {"memory": 0.0, **(previous or {"seconds": 0.0, "joules": 0.0})}  # cost.json has no memory
        self._seconds, self._joules, self._memory = (_amount(previous, n) for n in ("seconds", "joules", "memory"))
        self._labels = str(source).split("; then ") if (source := previous.get("energy_source")) else []
        self._device = torch.device(device)
        self._sources = _sources(self._device, processes)
        self._last_sample: float | None = None
        self._lock, self._finished = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        self._finished.clear()
        self._last_sample = time.perf_counter()
        for source in self._sources:
            source.joules(0.0)  # excludes the energy used before
        if any(source.counter for source in self._sources):
            threading.Thread(target=self._sample_regularly, name="harken-meter", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._finished.set()
        self._sample()
        with self._lock:
            self._last_sample = None

    def reading(self) -> MeterReading:
        """Usage so far; cheap enough for every checkpoint."""
        self._sample()
        return MeterReading(self._seconds, self._joules, "; then ".join(self._labels or [self._label()]), self._memory)

    def power(self) -> tuple[float, str]:
        """Mean watts so far and their source; an estimate if no counter has changed yet."""
        reading = self.reading()
        if reading.joules:
            return reading.joules / reading.seconds, reading.energy_source
        label = " + ".join(f"estimated: {source.estimate}" for source in self._sources)
        return sum(source.watts for source in self._sources), label

    def _label(self) -> str:
        return " + ".join(source.label for source in self._sources)

    def _sample_regularly(self) -> None:
        while not self._finished.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            if self._last_sample is None:
                return
            now = time.perf_counter()
            seconds, self._last_sample = now - self._last_sample, now
            joules = sum(source.joules(seconds) for source in self._sources)
            self._seconds += seconds
            self._joules += joules
            self._memory = max(self._memory, peak_memory(self._device))
            if joules > 0 and self._label() not in self._labels[-1:]:
                self._labels.append(self._label())


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak of `peak_memory`, where the system can reset the peak of a process."""
    if device.type == "cuda":
        return torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        PROC_CLEAR_REFS.write_text("5")


def peak_memory(device: torch.device) -> int:
    """Peak bytes since the last reset: of tensors on a GPU, else of this process."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")


def allocated_memory(device: torch.device) -> int:
    """Bytes in use now, counted as in `peak_memory`; the peak where the system does not report them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident("VmRSS")


def _resident(field: str) -> int:
    try:
        return int(PROC_STATUS.read_text().partition(f"{field}:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource  # not on every system

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def flops_per_token(model: torch.nn.Module, example_call: Callable[[], None], tokens: int) -> float:
    """FLOPs of matrix products and convolutions per token of a call. The model must not be compiled."""
    grads = [(weight, weight.grad) for weight in model.parameters()]
    devices = sorted({weight.device.index for weight, _ in grads if weight.is_cuda})
    try:
        with torch.random.fork_rng(devices), _unfused_kernels(), _FlopCounter() as counter:
            model.zero_grad(set_to_none=True)
            example_call()
    finally:
        for weight, grad in grads:
            weight.grad = grad
    return counter.flops / tokens


class _FlopCounter(TorchDispatchMode):
    """FLOPs of all operations in torch's registry. (FlopCounterMode also decomposes unknown operations.)"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


@contextmanager
def _unfused_kernels() -> Iterator[None]:
    """Compute attention and recurrent layers as plain matrix products: torch counts 0 FLOPs in several fused ones."""
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    before = [library.enabled for library in libraries]
    try:
        for library in libraries:
            library.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library, enabled in zip(libraries, before, strict=True):
            library.enabled = enabled


def emissions(kwh_it: float, factors: CostSettings = DEFAULT_FACTORS) -> dict[str, float]:
    """kWh of the data center (x PUE) and CO2e from the kWh of the machine."""
    kwh = kwh_it * factors.pue
    kg = kwh * factors.grid_intensity
    return {"kwh": kwh, "co2e_lb": kg / KG_PER_LB, "co2e_kg": kg}


def cost(
    reading: MeterReading,
    *,
    tokens: int,
    flops_per_token: float,
    factors: CostSettings = DEFAULT_FACTORS,
    predicted: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Content of cost.json. `tokens` counts from the first step of the run."""
    energy, price = emissions(reading.joules / 3.6e6, factors), factors.price_per_hour
    intensity = {"grid_intensity": factors.grid_intensity, "lb_per_kwh": factors.grid_intensity / KG_PER_LB}
    lecture = {"model": "Transformer (big)", "co2e_lb": TRANSFORMER_BIG_LB, "source": LECTURE}
    return {
        "seconds": reading.seconds,
        "memory_mib": reading.memory / 2**20,
        "tokens": tokens,
        "flops": flops_per_token * tokens,
        "flops_per_token": flops_per_token,
        "joules": reading.joules,
        "energy_source": reading.energy_source,
        "watts_source": WATTS_SOURCE if "estimated" in reading.energy_source else None,
        **energy,
        "pue": factors.pue,
        **intensity,
        **factors.sources,
        "price_usd": None if price is None else price * reading.seconds / 3600,
        "price_source": None if price is None else f"cost.price_per_hour: {price:g} USD per hour",
        "predicted": predicted and dict(predicted),
        "compared_with": {**lecture, "fraction": energy["co2e_lb"] / TRANSFORMER_BIG_LB},
    }


def _amount(previous: Mapping[str, object], name: str) -> float:
    """A number of the previous cost, validated because the file may have been edited."""
    value = previous.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadRun(f"cost.json: {name}={value!r} is not a number ≥ 0; delete the file to count from 0")
    return float(value)


def _sources(device: torch.device, processes: int) -> list[EnergySource]:
    """Components that the processes use, each process with its own device. A GPU keeps one CPU core busy."""
    cores = min(processes * (1 if device.type == "cuda" else torch.get_num_threads()), machine.cores())
    cpu = EnergySource(f"{cores} core{'s' * (cores > 1)} x {CORE_WATTS:g} W", CORE_WATTS * cores, _rapl())
    devices = [device] if processes == 1 else [torch.device(device.type, n) for n in range(processes)]
    return [*map(_gpu, devices), cpu] if device.type == "cuda" else [cpu]


def _rapl() -> EnergyCounter | None:
    """RAPL counters, if readable: every package, and its memory, which the package does not include."""
    try:
        zones = sorted(POWERCAP.glob("intel-rapl:*"))
        zones = [zone for zone in zones if (zone / "name").read_text().startswith(("package", "dram"))]
        ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        counter = EnergyCounter("RAPL", lambda: [int((zone / "energy_uj").read_text()) for zone in zones], 1e6, ranges)
        return counter if counter.read() else None
    except (OSError, ValueError):
        return None


def _gpu(device: torch.device) -> EnergySource:
    """The GPU: its energy counter, if NVML has one, and the watts for an estimate."""
    card = torch.cuda.get_device_properties(device)
    nominal = (watts for name, watts in GPU_WATTS.items() if re.search(rf"\b{name}\b", card.name))
    watts, counter = next(nominal, 300.0), None
    try:
        lib, handle = _nvml(f"GPU-{card.uuid}")
        watts = _query(lib.nvmlDeviceGetEnforcedPowerLimit, handle) / 1000
        energy = lib.nvmlDeviceGetTotalEnergyConsumption
        _query(energy, handle)
        counter = EnergyCounter("NVML", lambda: [_query(energy, handle)], 1e3, [0])
    except (OSError, AttributeError):
        pass  # no driver, a slice of a GPU, or one older than the counter
    return EnergySource(f"1 GPU x {watts:g} W", watts, counter)


def _nvml(card: str) -> tuple[Any, ctypes.c_void_p]:
    """NVIDIA's management library, part of the driver, and its handle of this GPU."""
    lib, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    if lib.nvmlInit_v2() or lib.nvmlDeviceGetHandleByUUID(card.encode(), ctypes.byref(handle)):
        raise OSError(f"NVML does not know {card}")
    return lib, handle


def _query(function: Any, handle: ctypes.c_void_p) -> int:
    """One number of a GPU."""
    number = ctypes.c_ulonglong()  # also holds smaller integers, because it starts at 0
    if function(handle, ctypes.byref(number)):
        raise OSError("NVML has no such number")
    return number.value
