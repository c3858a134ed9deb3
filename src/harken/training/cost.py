"""What a training costs: seconds, memory, FLOPs, energy and CO2e, each with its source.

Energy is measured where the machine lets us (NVML for a GPU, RAPL for a CPU: the whole part, whoever else uses it) and
estimated where it does not; the result says which. CO2e follows the lecture: kWh x PUE x pounds per kWh.
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

LECTURE = "Strubell et al. 2019, as in CS5242, lecture 7"
PUE = 1.58  # world average of data centres, 2018
LB_PER_KWH = 0.954  # CO2e of the US grid, 2018
KG_PER_LB = 0.45359237
TRANSFORMER_BIG_LB = 192

STATUS = Path("/proc/self/status")  # VmRSS: kB in memory now, VmHWM: the most
FORGET = Path("/proc/self/clear_refs")  # a 5 makes VmHWM begin anew
POWERCAP = Path("/sys/class/powercap")
CORE_WATTS = 10.0
GPU_WATTS = {"H200": 700.0, "H100": 700.0, "A100": 400.0, "V100": 300.0, "P100": 250.0, "T4": 70.0}
WATTS_SOURCE = (
    "a core: server processors of 150-300 W over their 16-48 cores are 5-10 W each, rounded up for its share of the "
    "memory; a GPU: its enforced power limit, else the maker's figure for its largest version, else 300 W"
)
EVERY = 30.0  # seconds; RAPL fills up and starts again within minutes on a large processor, so it is read in between
STILL = 1.0  # seconds after which a counter that has not moved is not believed: virtual machines show such ones


class Reading(NamedTuple):
    """What was used so far: wall seconds, joules of the machine itself (no PUE) and where they come from, and the most
    bytes of memory at once."""

    seconds: float
    joules: float
    source: str
    memory: float = 0.0


@dataclass
class Counter:
    """Hardware counters that add up used energy; one with a range starts again from 0 when it is full."""

    name: str
    read: Callable[[], list[int]]
    per_joule: float
    ranges: list[int]
    last: list[int] = field(default_factory=list)

    def used(self) -> float:
        """Joules since the last call; 0 if the counters cannot be read now, and the next call makes up for it."""
        try:
            now = self.read()
        except Exception:  # whatever the driver's trouble is, a meter never stops a training
            return 0.0
        pairs, self.last = zip(self.last or now, now, self.ranges, strict=True), now
        return sum(b - a if b >= a else max(0, b - a + full) for a, b, full in pairs) / self.per_joule


@dataclass
class Source:
    """Joules of one part of the machine: from its counter if it has one that moves, else watts x seconds."""

    estimate: str
    watts: float
    counter: Counter | None = None
    still: float = 0.0

    @property
    def label(self) -> str:
        return f"estimated: {self.estimate}" if self.counter is None else f"measured: {self.counter.name}"

    def joules(self, seconds: float) -> float:
        """Joules of the last `seconds`."""
        if self.counter is not None:
            used = self.counter.used()
            self.still = 0.0 if used else self.still + seconds
            if self.still < STILL:
                return used
            self.counter, seconds = None, self.still
        return self.watts * seconds


class Meter:
    """Measures seconds and energy inside `with`; starts from the cost of the run that is resumed, if any."""

    def __init__(
        self,
        previous: dict[str, Any] | None = None,
        *,
        device: torch.device | str = "cpu",
        processes: int = 1,
        powercap: Path = POWERCAP,
    ) -> None:
        previous = {"memory": 0.0, **(previous or {"seconds": 0.0, "joules": 0.0})}  # the first runs kept no memory
        self._seconds, self._joules, self._memory = (_amount(previous, n) for n in ("seconds", "joules", "memory"))
        known = previous.get("energy_source")
        self._legs = str(known).split("; then ") if known else []
        self._device = torch.device(device)
        self._sources = _sources(self._device, processes, powercap)
        self._since: float | None = None
        self._lock, self._done = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        self._done.clear()
        self._since = time.perf_counter()
        for source in self._sources:
            source.joules(0.0)  # what was used before does not count
        if any(source.counter for source in self._sources):
            threading.Thread(target=self._watch, name="harken-meter", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._sample()
        with self._lock:
            self._since = None

    def reading(self) -> Reading:
        """What was used up to now; cheap enough for every checkpoint."""
        self._sample()
        return Reading(self._seconds, self._joules, "; then ".join(self._legs or [self._leg()]), self._memory)

    def power(self) -> tuple[float, str]:
        """The watts until now and where they come from: an estimate, if no counter moved in so short a time."""
        used = self.reading()
        if used.joules:
            return used.joules / used.seconds, used.source
        told = " + ".join(f"estimated: {source.estimate}" for source in self._sources)
        return sum(source.watts for source in self._sources), told

    def _leg(self) -> str:
        return " + ".join(source.label for source in self._sources)

    def _watch(self) -> None:
        while not self._done.wait(EVERY):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            if self._since is None:
                return
            now = time.perf_counter()
            seconds, self._since = now - self._since, now
            joules = sum(source.joules(seconds) for source in self._sources)
            self._seconds += seconds
            self._joules += joules
            self._memory = max(self._memory, peak(self._device))
            if joules > 0 and self._leg() not in self._legs[-1:]:
                self._legs.append(self._leg())


def forget_peak(device: torch.device) -> None:
    """Let `peak` begin anew. Where the system keeps one peak of a process, it stays that one."""
    if device.type == "cuda":
        return torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        FORGET.write_text("5")


def peak(device: torch.device) -> int:
    """The most bytes held at once since it was forgotten: of tensors on a GPU, else of this process."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")


def held(device: torch.device) -> int:
    """Bytes held now, as in `peak`; where the system does not say, the most until now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident("VmRSS")


def _resident(what: str) -> int:
    try:
        return int(STATUS.read_text().partition(f"{what}:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource  # not on every system

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def flops_per_token(model: torch.nn.Module, example_call: Callable[[], None], tokens: int) -> float:
    """FLOPs of matrix products and convolutions per token, counted over `example_call`: a forward and a backward.

    The model is left as it was: its gradients and the random state are put back. Give it the uncompiled model.
    """
    grads = [(weight, weight.grad) for weight in model.parameters()]
    devices = sorted({weight.device.index for weight, _ in grads if weight.is_cuda})
    try:
        with torch.random.fork_rng(devices), _in_the_open(), _Counter() as counter:
            model.zero_grad(set_to_none=True)
            example_call()
    finally:
        for weight, grad in grads:
            weight.grad = grad
    return counter.flops / tokens


class _Counter(TorchDispatchMode):
    """The FLOPs of all operations that torch knows them of. (Its own counter asks each of the others for its parts.)"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (known := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += known(*args, **(kwargs or {}), out_val=out)
        return out


@contextmanager
def _in_the_open() -> Iterator[None]:
    """Attention and recurrent layers as plain matrix products: torch's counter sees 0 FLOPs in several fused ones."""
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


def emissions(kwh_it: float) -> dict[str, Any]:
    """From the machine's own kWh to the data centre's (x PUE) and to CO2e, with the source of each factor."""
    kwh = kwh_it * PUE
    lb = kwh * LB_PER_KWH
    factors = {"pue": PUE, "pue_source": LECTURE, "lb_per_kwh": LB_PER_KWH, "intensity_source": LECTURE}
    return {"kwh": kwh, "co2e_lb": lb, "co2e_kg": lb * KG_PER_LB, **factors}


def cost(
    reading: Reading,
    *,
    tokens: int,
    flops_per_token: float,
    price: float | None = None,
    predicted: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of cost.json. `tokens` counts from the run's first step; `price` is USD an hour; `predicted` is
    what was said of seconds, kwh and memory_mib before."""
    made = emissions(reading.joules / 3.6e6)
    lecture = {"model": "Transformer (big)", "co2e_lb": TRANSFORMER_BIG_LB, "source": LECTURE}
    return {
        "seconds": reading.seconds,
        "memory_mib": reading.memory / 2**20,
        "tokens": tokens,
        "flops": flops_per_token * tokens,
        "flops_per_token": flops_per_token,
        "joules": reading.joules,
        "energy_source": reading.source,
        "watts_source": WATTS_SOURCE if "estimated" in reading.source else None,
        **made,
        "price_usd": None if price is None else price * reading.seconds / 3600,
        "price_source": None if price is None else f"train.price_per_hour: {price:g} USD an hour",
        "predicted": predicted and dict(predicted),
        "compared_with": {**lecture, "fraction": made["co2e_lb"] / TRANSFORMER_BIG_LB},
    }


def _amount(previous: dict[str, Any], name: str) -> float:
    """A number of the previous cost, which may come from a file that someone changed."""
    value = previous.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadRun(f"cost.json: {name}={value!r} is not a number of at least 0; remove the file to count anew")
    return float(value)


def _sources(device: torch.device, processes: int, powercap: Path) -> list[Source]:
    """The parts of the machine that so many processes use, each on a device of its own if they are several. A GPU keeps
    one core busy feeding it."""
    cores = min(processes * (1 if device.type == "cuda" else torch.get_num_threads()), machine.cores())
    cpu = Source(f"{cores} core{'s' * (cores > 1)} x {CORE_WATTS:g} W", CORE_WATTS * cores, _rapl(powercap))
    devices = [device] if processes == 1 else [torch.device(device.type, n) for n in range(processes)]
    return [*map(_gpu, devices), cpu] if device.type == "cuda" else [cpu]


def _rapl(powercap: Path) -> Counter | None:
    """The processor's counters, if readable: every package, and the memory beside it, which a package leaves out."""
    try:
        zones = sorted(powercap.glob("intel-rapl:*"))
        zones = [zone for zone in zones if (zone / "name").read_text().startswith(("package", "dram"))]
        ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        counter = Counter("RAPL", lambda: [int((zone / "energy_uj").read_text()) for zone in zones], 1e6, ranges)
        return counter if counter.read() else None
    except (OSError, ValueError):
        return None


def _gpu(device: torch.device) -> Source:
    """The GPU: its energy counter, if NVML has one, and the watts to fall back on."""
    card = torch.cuda.get_device_properties(device)
    known = (watts for name, watts in GPU_WATTS.items() if re.search(rf"\b{name}\b", card.name))
    watts, counter = next(known, 300.0), None
    try:
        lib, handle = _nvml(f"GPU-{card.uuid}")
        watts = _ask(lib.nvmlDeviceGetEnforcedPowerLimit, handle) / 1000
        energy = lib.nvmlDeviceGetTotalEnergyConsumption
        _ask(energy, handle)
        counter = Counter("NVML", lambda: [_ask(energy, handle)], 1e3, [0])
    except (OSError, AttributeError):
        pass  # no driver, a slice of a GPU, or one older than the counter
    return Source(f"1 GPU x {watts:g} W", watts, counter)


def _nvml(card: str) -> tuple[Any, ctypes.c_void_p]:
    """NVIDIA's library, which comes with the driver, and its handle of this card."""
    lib, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    if lib.nvmlInit_v2() or lib.nvmlDeviceGetHandleByUUID(card.encode(), ctypes.byref(handle)):
        raise OSError(f"NVML does not know {card}")
    return lib, handle


def _ask(what: Any, handle: ctypes.c_void_p) -> int:
    """One number of a card."""
    number = ctypes.c_ulonglong()  # large enough for the smaller ones too, as it starts at 0
    if what(handle, ctypes.byref(number)):
        raise OSError("NVML has no such number")
    return number.value
