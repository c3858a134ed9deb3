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
from harken.training import cost as meter
from harken.training.cost import Meter, Reading, cost, emissions, flops_per_token

FULL = 262_143_328_850  # micro-joules at which a real package starts again


def zone(root: Path, name: str, label: str, used: int) -> Path:
    """One energy counter, as the kernel lays it out; returns the file to move it with."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(label + "\n")
    (folder / "max_energy_range_uj").write_text(f"{FULL}\n")
    (folder / "energy_uj").write_text(f"{used}\n")
    return folder / "energy_uj"


def step(model: nn.Module, *inputs: torch.Tensor):
    """A forward and a backward, as a callable."""

    def call() -> None:
        out = model(*inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return call


# ---------------------------------------------------------------- FLOPs


def test_a_linear_layer_takes_six_flops_per_weight_and_token():
    layer, x = nn.Linear(16, 24), torch.randn(5, 16, requires_grad=True)
    assert flops_per_token(layer, step(layer, x), 5) == 6 * 16 * 24


def test_a_first_layer_needs_no_gradient_of_its_input():
    layer, x = nn.Linear(16, 24), torch.randn(5, 16)
    assert flops_per_token(layer, step(layer, x), 5) == 4 * 16 * 24


@pytest.mark.parametrize("causal", [False, True])
def test_the_scores_of_fused_attention_are_counted(causal):
    q = torch.randn(2, 3, 8, 4, requires_grad=True)
    nothing = nn.Identity()

    def call() -> None:
        nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

    assert flops_per_token(nothing, call, 1) == 3 * 2 * (2 * 3 * 8 * 8 * 4) * 2


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_counts_every_gate(kind, gates):
    layer, x = kind(8, 16, batch_first=True), torch.randn(2, 5, 8, requires_grad=True)
    without_first_state = 2 * gates * 16 * 16 * 2  # nothing flows back into the zeros before the first token
    assert flops_per_token(layer, step(layer, x), 1) == 6 * gates * 16 * (8 + 16) * 10 - without_first_state


def test_counting_leaves_gradients_random_state_and_kernels_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    model[0].weight.grad = kept = torch.ones(4, 4)
    call, random = step(model, torch.randn(2, 4)), torch.get_rng_state()
    switches = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    flops_per_token(model, call, 2)
    assert model[0].weight.grad is kept
    assert (kept == 1).all()
    assert model[0].bias.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == switches


def test_a_count_that_fails_puts_everything_back():
    model, switch = nn.Linear(2, 2), torch.backends.mkldnn.enabled
    model.weight.grad = kept = torch.ones(2, 2)
    with pytest.raises(RuntimeError):
        flops_per_token(model, step(model, torch.randn(3, 5)), 3)
    assert model.weight.grad is kept
    assert torch.backends.mkldnn.enabled == switch


# ---------------------------------------------------------------- energy


def test_rapl_counts_the_difference_of_all_packages(tmp_path):
    one = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    two = zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    with Meter(powercap=tmp_path) as used:
        one.write_text("4000000\n")
        two.write_text("7500000\n")
    seconds, joules, source, _ = used.reading()
    assert joules == pytest.approx(3.5)
    assert source == "measured: RAPL"
    assert 0 < seconds < 10


def test_rapl_counts_on_when_a_counter_starts_again_from_zero(tmp_path):
    one = zone(tmp_path, "intel-rapl:0", "package-0", FULL - 2_000_000)
    with Meter(powercap=tmp_path) as used:
        one.write_text("3000000\n")
    assert used.reading().joules == pytest.approx(5.0)


@pytest.mark.timeout(30)
def test_rapl_is_read_in_between_so_that_no_round_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "EVERY", 0.005)
    one = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter(powercap=tmp_path) as used:
        counter = used._sources[0].counter
        for value in (FULL - 1_000_000, 2_000_000):
            one.with_suffix(".new").write_text(str(value))
            one.with_suffix(".new").replace(one)
            while counter.last != [value]:
                time.sleep(0.002)
    assert used.reading().joules == pytest.approx((FULL + 2_000_000) / 1e6)


def test_rapl_adds_the_memory_but_nothing_twice(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    inside = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    whole = zone(tmp_path, "intel-rapl:1", "psys", 0)
    same_again = zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    with Meter(powercap=tmp_path) as used:
        for file, joules in ((package, 10), (inside, 6), (memory, 3), (whole, 15), (same_again, 10)):
            file.write_text(str(joules * 10**6))
    assert used.reading().joules == pytest.approx(13.0)


def test_energy_used_before_the_training_is_not_counted(tmp_path):
    one = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    used = Meter(powercap=tmp_path)
    one.write_text("9000000")
    with used:
        one.write_text("9500000")
    one.write_text("99000000")
    assert used.reading().joules == pytest.approx(0.5)
    assert used.reading() == used.reading()


def test_without_counters_the_energy_is_an_estimate_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    with Meter(powercap=tmp_path / "absent") as used:
        time.sleep(0.02)
    seconds, joules, source, _ = used.reading()
    assert source == "estimated: 2 cores x 10 W"
    assert joules == pytest.approx(20 * seconds)
    assert seconds >= 0.02


def test_more_threads_than_cores_use_no_more_than_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(machine, "cores", lambda: 1)
    assert Meter(powercap=tmp_path).reading().source == "estimated: 1 core x 10 W"


@pytest.mark.parametrize("broken", ["", "many\n"])
def test_a_counter_that_shows_no_number_is_not_used(tmp_path, broken):
    zone(tmp_path, "intel-rapl:0", "package-0", 0).write_text(broken)
    assert Meter(powercap=tmp_path).reading().source.startswith("estimated")


def test_a_counter_that_stands_still_is_replaced_by_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "STILL", 0.01)
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter(powercap=tmp_path) as used:
        used.reading()
        time.sleep(0.02)
    seconds, joules, source, _ = used.reading()
    assert source.startswith("estimated")
    assert joules >= 10 * seconds * 0.99


def test_a_counter_that_fails_midway_is_told_beside_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "STILL", 0.01)
    one = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter(powercap=tmp_path) as used:
        one.write_text("2000000")
        assert used.reading().joules == pytest.approx(2.0)
        one.unlink()
        time.sleep(0.02)
    assert used.reading().source.startswith("measured: RAPL; then estimated: ")
    assert used.reading().joules > 2.0


def test_a_training_that_fails_is_measured_too(tmp_path):
    used = Meter(powercap=tmp_path)
    with pytest.raises(KeyError), used:
        raise KeyError
    assert used.reading().seconds > 0


class Nvml:
    """NVIDIA's library, as ctypes gives it: `used` is the counter in milli-joules; None is a card that has none."""

    used: int | None = 5_000

    def nvmlInit_v2(self) -> int:  # noqa: N802  their name
        return 0

    def nvmlDeviceGetHandleByUUID(self, card: bytes, handle) -> int:  # noqa: N802
        return 0 if card == b"GPU-12-34" else 6

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, number) -> int:  # noqa: N802
        number._obj.value = 650_000
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, number) -> int:  # noqa: N802
        number._obj.value = self.used or 0
        return 3 if self.used is None else 0


@pytest.fixture
def gpu(monkeypatch):
    """A GPU and its NVML."""
    card = SimpleNamespace(name="NVIDIA H200", uuid="12-34", nvml=Nvml())
    monkeypatch.setattr(ctypes, "CDLL", lambda name: card.nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * 2**20)
    return card


def test_a_gpu_is_measured_and_its_core_is_added(gpu, tmp_path):
    with Meter(device="cuda", powercap=tmp_path) as used:
        gpu.nvml.used = 8_000
    seconds, joules, source, _ = used.reading()
    assert source == "measured: NVML + estimated: 1 core x 10 W"
    assert joules == pytest.approx(3.0 + 10 * seconds)


def test_a_gpu_without_a_counter_is_estimated_by_its_power_limit(gpu, tmp_path):
    gpu.nvml.used = None
    assert Meter(device="cuda", powercap=tmp_path).reading().source.startswith("estimated: 1 GPU x 650 W + ")


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
    assert Meter(device="cuda", powercap=tmp_path).reading().source.startswith(f"estimated: 1 GPU x {watts} W + ")


def test_a_card_that_nvml_does_not_know_is_estimated(gpu, tmp_path):
    gpu.uuid = "56-78"
    assert Meter(device="cuda", powercap=tmp_path).reading().source.startswith("estimated: 1 GPU x 700 W + ")


def test_the_power_is_the_energy_over_the_time(gpu, tmp_path):
    with Meter(device="cuda", powercap=tmp_path) as used:
        gpu.nvml.used += 2_000
    watts, source = used.power()
    assert watts == pytest.approx(10 + 2 / used.reading().seconds)
    assert source == "measured: NVML + estimated: 1 core x 10 W"


def test_a_counter_that_has_not_moved_yet_gives_the_power_of_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with Meter(powercap=tmp_path) as used:
        pass
    assert used.power() == (20, "estimated: 2 cores x 10 W")


# ---------------------------------------------------------------- memory


def test_the_peak_of_the_memory_is_that_of_the_training(tmp_path):
    with Meter(powercap=tmp_path) as used:
        large = bytearray(300 * 2**20)
        before = len(large)
        del large
    assert used.reading().memory >= before


def test_on_a_gpu_the_tensors_are_counted(gpu, tmp_path):
    with Meter(device="cuda", powercap=tmp_path) as used:
        pass
    assert used.reading().memory == 7 * 2**20
    assert cost(used.reading(), tokens=1, flops_per_token=1.0)["memory_mib"] == 7


def test_what_is_held_now_is_no_more_than_the_peak():
    here = torch.device("cpu")
    large = bytearray(200 * 2**20)
    with_it = meter.held(here)
    assert with_it > len(large)
    del large
    assert meter.held(here) < with_it - 100 * 2**20
    assert meter.peak(here) >= with_it


def test_where_the_system_does_not_say_what_is_held_the_peak_stands_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "STATUS", tmp_path / "absent")
    monkeypatch.setattr(meter, "FORGET", tmp_path / "absent" / "too")
    meter.forget_peak(torch.device("cpu"))
    assert meter.held(torch.device("cpu")) == meter.peak(torch.device("cpu")) > 2**20


@pytest.mark.skipif(not meter.FORGET.exists(), reason="this system keeps one peak of a process")
def test_a_peak_that_is_forgotten_does_not_count():
    here = torch.device("cpu")
    large = bytearray(300 * 2**20)
    del large
    before = meter.peak(here)
    meter.forget_peak(here)
    assert meter.held(here) <= meter.peak(here) < before - 200 * 2**20


def test_a_gpus_peak_is_forgotten_on_that_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    meter.forget_peak(torch.device("cuda", 1))
    assert asked == [torch.device("cuda", 1)]


# ---------------------------------------------------------------- resuming


def test_a_resumed_run_adds_to_its_cost(tmp_path):
    one = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    before = cost(Reading(100.0, 50.0, "measured: RAPL"), tokens=10, flops_per_token=6.0)
    with Meter(json.loads(json.dumps(before)), powercap=tmp_path) as used:
        one.write_text("2000000")
    seconds, joules, source, _ = used.reading()
    assert 100 < seconds < 110
    assert joules == pytest.approx(52.0)
    assert source == "measured: RAPL"


def test_a_run_resumed_on_another_machine_names_both_sources(tmp_path):
    before = {"seconds": 1.0, "joules": 2.0, "energy_source": "measured: RAPL"}
    with Meter(before, powercap=tmp_path / "absent") as used:
        pass
    assert used.reading().source.startswith("measured: RAPL; then estimated: ")


def test_a_resumed_run_keeps_the_highest_peak(gpu, tmp_path):
    before = {"seconds": 1.0, "joules": 2.0, "memory": 9 * 2**20}
    with Meter(before, device="cuda", powercap=tmp_path) as used:
        pass
    assert used.reading().memory == 9 * 2**20


@pytest.mark.parametrize("bad", [{}, {"seconds": "1"}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": True}])
def test_a_previous_cost_that_was_changed_is_refused_in_one_line(bad):
    with pytest.raises(BadRun, match=r"^cost.json: seconds=.* is not a number of at least 0; [^\n]*$"):
        Meter({"joules": 1.0, **bad})


# ---------------------------------------------------------------- the lecture's numbers


def test_the_lectures_transformer_big_makes_192_pounds():
    made = emissions(1515.43 * 84 / 1000)
    assert made["kwh"] == pytest.approx(201, rel=0.005)
    assert made["co2e_lb"] == pytest.approx(192, rel=0.005)
    assert made["co2e_kg"] == pytest.approx(192 * 0.4536, rel=0.005)


def test_a_run_with_the_energy_of_transformer_big_is_one_of_it():
    spent = cost(Reading(84 * 3600, 1515.43 * 84 * 3600, "measured: NVML"), tokens=1, flops_per_token=1.0)
    assert spent["compared_with"]["fraction"] == pytest.approx(1, rel=0.005)
    assert spent["compared_with"]["model"] == "Transformer (big)"


def test_every_factor_of_the_cost_has_its_source():
    spent = cost(Reading(7200, 3.6e6, "estimated: 2 cores x 10 W"), tokens=1000, flops_per_token=5.0)
    assert spent["flops"] == 5000
    assert spent["kwh"] == pytest.approx(1.58)
    assert spent["energy_source"] == "estimated: 2 cores x 10 W"
    assert all(spent[name] for name in ("pue_source", "intensity_source", "watts_source"))
    assert "CS5242, lecture 7" in spent["intensity_source"]
    assert json.loads(json.dumps(spent)) == spent


def test_a_measured_cost_names_no_source_for_watts():
    assert cost(Reading(1, 1, "measured: RAPL"), tokens=1, flops_per_token=1.0)["watts_source"] is None


def test_what_was_predicted_stands_in_the_cost():
    said = {"seconds": 1.0, "kwh": 2.0, "memory_mib": 3.0}
    reading = Reading(1, 1, "measured: RAPL")
    assert cost(reading, tokens=1, flops_per_token=1.0, predicted=said)["predicted"] == said
    assert cost(reading, tokens=1, flops_per_token=1.0)["predicted"] is None


def test_there_is_no_price_unless_one_is_given():
    reading = Reading(7200, 1.0, "measured: RAPL")
    free = cost(reading, tokens=1, flops_per_token=1.0)
    assert free["price_usd"] is None
    assert free["price_source"] is None
    paid = cost(reading, tokens=1, flops_per_token=1.0, price=1.46)
    assert paid["price_usd"] == pytest.approx(2.92)
    assert paid["price_source"] == "train.price_per_hour: 1.46 USD an hour"


@pytest.mark.gpu
def test_a_busy_gpu_is_measured_between_nothing_and_its_limit():
    x = torch.randn(4096, 4096, device="cuda")
    with Meter(device="cuda") as used:
        for _ in range(200):
            x @ x
        torch.cuda.synchronize()
        time.sleep(0.3)
    seconds, joules, *_ = used.reading()
    assert 0 < joules / seconds < 1500
