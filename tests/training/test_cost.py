"""The cost of a training: counted FLOPs, measured or estimated energy, and the lecture's CO2e."""

import ctypes
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harken import machine
from harken.errors import BadRun
from harken.training import cost as cost_module
from harken.training.cost import Meter, MeterReading, cost, emissions, flops_per_token
from harken.training.settings import CostSettings

FULL = 262_143_328_850  # range of a real counter in microjoules


@pytest.fixture(autouse=True)
def powercap(tmp_path, monkeypatch):
    """A machine without energy counters but those that a test writes."""
    monkeypatch.setattr(cost_module, "POWERCAP", tmp_path)


def zone(root: Path, name: str, label: str, used: int) -> Path:
    """One energy counter in the layout of the kernel; returns its file."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(label + "\n")
    (folder / "max_energy_range_uj").write_text(f"{FULL}\n")
    (folder / "energy_uj").write_text(f"{used}\n")
    return folder / "energy_uj"


def step(model: nn.Module, *inputs: torch.Tensor):
    """A function that runs a forward and a backward pass."""

    def call() -> None:
        out = model(*inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return call


# ---------------------------------------------------------------- FLOPs


def test_a_linear_layer_takes_six_flops_per_weight_and_token():
    layer, x = nn.Linear(16, 24), torch.randn(5, 16, requires_grad=True)
    assert flops_per_token(layer, step(layer, x), 5) == 6 * 16 * 24


def test_the_first_layer_needs_no_input_gradient():
    layer, x = nn.Linear(16, 24), torch.randn(5, 16)
    assert flops_per_token(layer, step(layer, x), 5) == 4 * 16 * 24


@pytest.mark.parametrize("causal", [False, True])
def test_the_flops_of_fused_attention_are_counted(causal):
    q = torch.randn(2, 3, 8, 4, requires_grad=True)
    identity = nn.Identity()

    def call() -> None:
        nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

    assert flops_per_token(identity, call, 1) == 3 * 2 * (2 * 3 * 8 * 8 * 4) * 2


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_counts_every_gate(kind, gates):
    layer, x = kind(8, 16, batch_first=True), torch.randn(2, 5, 8, requires_grad=True)
    without_first_state = 2 * gates * 16 * 16 * 2  # no gradient into the zero state before the first token
    assert flops_per_token(layer, step(layer, x), 1) == 6 * gates * 16 * (8 + 16) * 10 - without_first_state


def test_counting_restores_gradients_random_state_and_kernels():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    model[0].weight.grad = gradient = torch.ones(4, 4)
    call, random = step(model, torch.randn(2, 4)), torch.get_rng_state()
    switches = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    flops_per_token(model, call, 2)
    assert model[0].weight.grad is gradient
    assert (gradient == 1).all()
    assert model[0].bias.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == switches


def test_a_failed_count_restores_everything():
    model, switch = nn.Linear(2, 2), torch.backends.mkldnn.enabled
    model.weight.grad = gradient = torch.ones(2, 2)
    with pytest.raises(RuntimeError):
        flops_per_token(model, step(model, torch.randn(3, 5)), 3)
    assert model.weight.grad is gradient
    assert torch.backends.mkldnn.enabled == switch


# ---------------------------------------------------------------- energy


def test_rapl_sums_the_differences_of_all_packages(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    with Meter() as meter:
        package.write_text("4000000\n")
        second.write_text("7500000\n")
    seconds, joules, source, _ = meter.reading()
    assert joules == pytest.approx(3.5)
    assert source == "measured: RAPL"
    assert 0 < seconds < 10


def test_rapl_handles_a_counter_that_wraps_around(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", FULL - 2_000_000)
    with Meter() as meter:
        package.write_text("3000000\n")
    assert meter.reading().joules == pytest.approx(5.0)


@pytest.mark.timeout(30)
def test_rapl_is_sampled_often_enough_to_see_every_wrap_around(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_module, "SAMPLE_SECONDS", 0.005)
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter() as meter:
        counter = meter._sources[0].counter
        for value in (FULL - 1_000_000, 2_000_000):
            package.with_suffix(".new").write_text(str(value))
            package.with_suffix(".new").replace(package)
            while counter.last != [value]:
                time.sleep(0.002)
    assert meter.reading().joules == pytest.approx((FULL + 2_000_000) / 1e6)


def test_rapl_adds_the_memory_and_counts_nothing_twice(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    platform = zone(tmp_path, "intel-rapl:1", "psys", 0)
    duplicate = zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    with Meter() as meter:
        for file, joules in ((package, 10), (core, 6), (memory, 3), (platform, 15), (duplicate, 10)):
            file.write_text(str(joules * 10**6))
    assert meter.reading().joules == pytest.approx(13.0)


def test_energy_used_before_the_training_is_not_counted(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = Meter()
    package.write_text("9000000")
    with meter:
        package.write_text("9500000")
    package.write_text("99000000")
    assert meter.reading().joules == pytest.approx(0.5)
    assert meter.reading() == meter.reading()


def test_without_counters_the_energy_is_labelled_as_an_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    with Meter() as meter:
        time.sleep(0.02)
    seconds, joules, source, _ = meter.reading()
    assert source == "estimated: 2 cores x 10 W"
    assert joules == pytest.approx(20 * seconds)
    assert seconds >= 0.02


def test_more_threads_than_cores_count_as_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(machine, "cores", lambda: 1)
    assert Meter().reading().energy_source == "estimated: 1 core x 10 W"


@pytest.mark.parametrize("broken", ["", "many\n"])
def test_a_counter_without_a_number_is_not_used(tmp_path, broken):
    zone(tmp_path, "intel-rapl:0", "package-0", 0).write_text(broken)
    assert Meter().reading().energy_source.startswith("estimated")


def test_a_stalled_counter_is_replaced_by_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_module, "STALLED_SECONDS", 0.01)
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter() as meter:
        meter.reading()
        time.sleep(0.02)
    seconds, joules, source, _ = meter.reading()
    assert source.startswith("estimated")
    assert joules >= 10 * seconds * 0.99


def test_a_counter_that_fails_midway_is_named_together_with_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_module, "STALLED_SECONDS", 0.01)
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter() as meter:
        package.write_text("2000000")
        assert meter.reading().joules == pytest.approx(2.0)
        package.unlink()
        time.sleep(0.02)
    assert meter.reading().energy_source.startswith("measured: RAPL; then estimated: ")
    assert meter.reading().joules > 2.0


def test_a_failed_training_is_measured(tmp_path):
    meter = Meter()
    with pytest.raises(KeyError), meter:
        raise KeyError
    assert meter.reading().seconds > 0


class Nvml:
    """A fake of NVIDIA's library: `millijoules` is the energy counter; None for a GPU without one."""

    millijoules: int | None = 5_000

    def nvmlInit_v2(self) -> int:  # noqa: N802  NVML name
        return 0

    def nvmlDeviceGetHandleByUUID(self, card: bytes, handle) -> int:  # noqa: N802
        return 0 if card == b"GPU-12-34" else 6

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, number) -> int:  # noqa: N802
        number._obj.value = 650_000
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, number) -> int:  # noqa: N802
        number._obj.value = self.millijoules or 0
        return 3 if self.millijoules is None else 0


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with NVML."""
    card = SimpleNamespace(name="NVIDIA H200", uuid="12-34", nvml=Nvml())
    monkeypatch.setattr(ctypes, "CDLL", lambda name: card.nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * 2**20)
    return card


def test_a_gpu_is_measured_and_one_cpu_core_is_added(gpu, tmp_path):
    with Meter(device="cuda") as meter:
        gpu.nvml.millijoules = 8_000
    seconds, joules, source, _ = meter.reading()
    assert source == "measured: NVML + estimated: 1 core x 10 W"
    assert joules == pytest.approx(3.0 + 10 * seconds)


def test_a_gpu_without_a_counter_is_estimated_by_its_power_limit(gpu, tmp_path):
    gpu.nvml.millijoules = None
    assert Meter(device="cuda").reading().energy_source.startswith("estimated: 1 GPU x 650 W + ")


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("NVIDIA H200", 700),
        ("NVIDIA H100 80GB HBM3", 700),
        ("NVIDIA A100-SXM4-40GB", 400),
        ("Tesla V100-SXM2-16GB", 300),
        ("Tesla P100-PCIE-16GB", 250),
        ("Tesla T4", 70),
        ("NVIDIA T400", 300),
    ],
)
def test_a_gpu_without_nvml_is_estimated_by_its_name(gpu, tmp_path, monkeypatch, name, watts):
    gpu.name = name

    def absent(library: str) -> None:
        raise OSError(library)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert Meter(device="cuda").reading().energy_source.startswith(f"estimated: 1 GPU x {watts} W + ")


def test_a_gpu_unknown_to_nvml_is_estimated(gpu, tmp_path):
    gpu.uuid = "56-78"
    assert Meter(device="cuda").reading().energy_source.startswith("estimated: 1 GPU x 700 W + ")


def test_the_power_is_the_energy_over_the_time(gpu, tmp_path):
    with Meter(device="cuda") as meter:
        gpu.nvml.millijoules += 2_000
    watts, source = meter.power()
    assert watts == pytest.approx(10 + 2 / meter.reading().seconds)
    assert source == "measured: NVML + estimated: 1 core x 10 W"


def test_the_power_is_estimated_while_a_counter_has_not_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter() as meter:
        pass
    assert meter.power() == (20, "estimated: 2 cores x 10 W")


# ---------------------------------------------------------------- memory


def test_the_peak_memory_includes_the_training(tmp_path):
    with Meter() as meter:
        large = bytearray(300 * 2**20)
        before = len(large)
        del large
    assert meter.reading().memory >= before


def test_on_a_gpu_the_memory_of_tensors_is_counted(gpu, tmp_path):
    with Meter(device="cuda") as meter:
        pass
    assert meter.reading().memory == 7 * 2**20
    assert cost(meter.reading(), tokens=1, flops_per_token=1.0)["memory_mib"] == 7


def test_the_memory_in_use_is_at_most_the_peak():
    cpu = torch.device("cpu")
    large = bytearray(200 * 2**20)
    with_large = cost_module.allocated_memory(cpu)
    assert with_large > len(large)
    del large
    assert cost_module.allocated_memory(cpu) < with_large - 100 * 2**20
    assert cost_module.peak_memory(cpu) >= with_large


def test_without_proc_status_the_memory_in_use_is_the_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_module, "PROC_STATUS", tmp_path / "absent")
    monkeypatch.setattr(cost_module, "PROC_CLEAR_REFS", tmp_path / "absent" / "too")
    cost_module.reset_peak_memory(torch.device("cpu"))
    assert cost_module.allocated_memory(torch.device("cpu")) == cost_module.peak_memory(torch.device("cpu")) > 2**20


@pytest.mark.skipif(not cost_module.PROC_CLEAR_REFS.exists(), reason="the system cannot reset the peak of a process")
def test_an_earlier_peak_does_not_count_after_a_reset():
    cpu = torch.device("cpu")
    large = bytearray(300 * 2**20)
    del large
    before = cost_module.peak_memory(cpu)
    cost_module.reset_peak_memory(cpu)
    assert cost_module.allocated_memory(cpu) <= cost_module.peak_memory(cpu) < before - 200 * 2**20


def test_the_peak_is_reset_on_its_gpu(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", devices.append)
    cost_module.reset_peak_memory(torch.device("cuda", 1))
    assert devices == [torch.device("cuda", 1)]


# ---------------------------------------------------------------- resuming


def test_a_resumed_run_adds_to_its_cost(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    before = cost(MeterReading(100.0, 50.0, "measured: RAPL"), tokens=10, flops_per_token=6.0)
    with Meter(json.loads(json.dumps(before))) as meter:
        package.write_text("2000000")
    seconds, joules, source, _ = meter.reading()
    assert 100 < seconds < 110
    assert joules == pytest.approx(52.0)
    assert source == "measured: RAPL"


def test_a_run_resumed_on_another_machine_names_both_sources(tmp_path):
    before = {"seconds": 1.0, "joules": 2.0, "energy_source": "measured: RAPL"}
    with Meter(before) as meter:
        pass
    assert meter.reading().energy_source.startswith("measured: RAPL; then estimated: ")


def test_a_resumed_run_keeps_the_highest_peak(gpu, tmp_path):
    before = {"seconds": 1.0, "joules": 2.0, "memory": 9 * 2**20}
    with Meter(before, device="cuda") as meter:
        pass
    assert meter.reading().memory == 9 * 2**20


@pytest.mark.parametrize("bad", [{}, {"seconds": "1"}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": True}])
def test_an_invalid_previous_cost_is_an_error_in_one_line(bad):
    with pytest.raises(BadRun, match=r"^cost.json: seconds=.* is not a number ≥ 0; [^\n]*$"):
        Meter({"joules": 1.0, **bad})


# ---------------------------------------------------------------- the lecture's numbers


def test_transformer_big_of_the_lecture_emits_192_pounds():
    energy = emissions(1515.43 * 84 / 1000)
    assert energy["kwh"] == pytest.approx(201, rel=0.005)
    assert energy["co2e_lb"] == pytest.approx(192, rel=0.005)
    assert energy["co2e_kg"] == pytest.approx(192 * 0.4536, rel=0.005)


def test_a_run_with_the_energy_of_transformer_big_has_fraction_one():
    spent = cost(MeterReading(84 * 3600, 1515.43 * 84 * 3600, "measured: NVML"), tokens=1, flops_per_token=1.0)
    assert spent["compared_with"]["fraction"] == pytest.approx(1, rel=0.005)
    assert spent["compared_with"]["model"] == "Transformer (big)"


def test_every_factor_of_the_cost_has_its_source():
    spent = cost(MeterReading(7200, 3.6e6, "estimated: 2 cores x 10 W"), tokens=1000, flops_per_token=5.0)
    assert spent["flops"] == 5000
    assert spent["kwh"] == pytest.approx(1.58)
    assert spent["energy_source"] == "estimated: 2 cores x 10 W"
    assert all(spent[name] for name in ("pue_source", "intensity_source", "watts_source"))
    assert "CS5242, lecture 7" in spent["intensity_source"]
    assert json.loads(json.dumps(spent)) == spent


def test_a_measured_cost_names_no_source_for_watts():
    assert cost(MeterReading(1, 1, "measured: RAPL"), tokens=1, flops_per_token=1.0)["watts_source"] is None


def test_the_cost_includes_the_prediction():
    predicted = {"seconds": 1.0, "kwh": 2.0, "memory_mib": 3.0}
    reading = MeterReading(1, 1, "measured: RAPL")
    assert cost(reading, tokens=1, flops_per_token=1.0, predicted=predicted)["predicted"] == predicted
    assert cost(reading, tokens=1, flops_per_token=1.0)["predicted"] is None


def test_the_price_needs_a_price_per_hour():
    reading = MeterReading(7200, 1.0, "measured: RAPL")
    unpriced = cost(reading, tokens=1, flops_per_token=1.0)
    assert unpriced["price_usd"] is None
    assert unpriced["price_source"] is None
    priced = cost(reading, tokens=1, flops_per_token=1.0, factors=CostSettings(price_per_hour=1.46))
    assert priced["price_usd"] == pytest.approx(2.92)
    assert priced["price_source"] == "cost.price_per_hour: 1.46 USD per hour"


def test_the_factors_of_the_settings_are_used_and_named():
    factors = CostSettings(pue=1.2, grid_intensity=0.056)
    spent = cost(MeterReading(7200, 3.6e6, "measured: RAPL"), tokens=1, flops_per_token=1.0, factors=factors)
    assert (spent["kwh"], spent["co2e_kg"]) == (pytest.approx(1.2), pytest.approx(1.2 * 0.056))
    assert spent["co2e_lb"] == pytest.approx(spent["kwh"] * spent["lb_per_kwh"])
    assert (spent["pue_source"], spent["intensity_source"]) == ("cost.pue", "cost.grid_intensity")


def test_the_default_factors_are_those_of_the_lecture():
    factors = CostSettings()
    assert (factors.pue, factors.grid_intensity / 0.45359237) == (1.58, pytest.approx(0.954))


@pytest.mark.gpu
def test_the_measured_power_of_a_busy_gpu_is_plausible():
    x = torch.randn(4096, 4096, device="cuda")
    with Meter(device="cuda") as meter:
        for _ in range(200):
            x @ x
        torch.cuda.synchronize()
        time.sleep(0.3)
    seconds, joules, *_ = meter.reading()
    assert 0 < joules / seconds < 1500
