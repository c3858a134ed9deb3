"""The description of the machine, and the choice of device, precision and compiler."""

import os
import time
from pathlib import Path

import pytest
import torch

from harken import machine
from harken.errors import BadSetting

CPU = torch.device("cpu")


def cpuinfo(tmp_path: Path, flags: str) -> Path:
    """A /proc/cpuinfo with these processor flags."""
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: Abacus 9\nflags\t\t: fpu {flags}\n")
    return file


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_old_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla P100-PCIE-16GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (6, 0))


def single_line(error: pytest.ExceptionInfo[BadSetting]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_the_description_has_every_field_and_is_json():
    description = machine.describe()
    assert list(description) == ["cpu", "cores", "threads", "ram_gib", "gpu", "torch", "python", "os"]
    assert all(value is None or isinstance(value, str | int | float) for value in description.values())
    assert description["cpu"]
    assert description["threads"] == torch.get_num_threads()


def test_the_description_is_cheap():
    machine.describe()
    start = time.perf_counter()
    machine.describe()
    assert time.perf_counter() - start < 0.2


def test_the_cpu_is_its_model_name(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path, ""))
    assert machine.describe()["cpu"] == "Abacus 9"


def test_a_cpu_without_a_model_name_is_its_architecture(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "absent")
    assert machine.describe()["cpu"]


@pytest.mark.parametrize(("limit", "expected"), [("50000 100000", 1), ("max 100000", None), ("99900000 100000", None)])
def test_the_quota_of_a_container_limits_the_cores(tmp_path, monkeypatch, limit, expected):
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "absent")
    without_quota = machine.cores()
    (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.cores() == (expected or without_quota)


def test_the_limit_of_a_container_limits_the_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2**29}\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.describe()["ram_gib"] == 0.5


def test_the_description_names_the_used_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device.index if device else 0}")
    assert machine.describe(torch.device("cuda", 1))["gpu"] == "GPU 1"
    assert machine.describe(CPU)["gpu"] == machine.describe()["gpu"] == "GPU 0"


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_without_a_gpu():
    assert machine.pick_device() == CPU


@pytest.mark.usefixtures("two_old_gpus")
def test_auto_is_a_gpu_if_there_is_one():
    assert machine.pick_device("auto") == torch.device("cuda")
    assert machine.pick_device("cuda:1") == torch.device("cuda", 1)
    assert machine.pick_device("cpu") == CPU


@pytest.mark.parametrize(("wanted", "near"), [("gpu", "cuda"), ("gpu:0", "cuda"), ("CPU", "cpu")])
def test_a_gpu_by_another_name_is_cuda(wanted, near):
    with pytest.raises(BadSetting, match=rf"not a device.* Did you mean {near}\?$"):
        machine.pick_device(wanted)


@pytest.mark.usefixtures("no_gpu")
def test_a_missing_gpu_is_an_error_in_one_line():
    with pytest.raises(BadSetting) as error:
        machine.pick_device("cuda")
    assert single_line(error) == f"train.device=cuda: torch {torch.__version__} finds no CUDA device; use auto or cpu"


@pytest.mark.usefixtures("two_old_gpus")
def test_an_index_beyond_the_last_gpu_is_an_error_in_one_line():
    with pytest.raises(BadSetting) as error:
        machine.pick_device("cuda:2")
    assert single_line(error) == "train.device=cuda:2: this machine has 2 CUDA devices; use one of cuda:0 to cuda:1"


@pytest.mark.parametrize("wanted", ["gpu", "cudda", "cuda:x", "cuda:-1", "cuda:", "cuda:²", "meta", "", "c\nd"])
def test_an_unknown_device_is_an_error_in_one_line(wanted):
    with pytest.raises(BadSetting) as error:
        machine.pick_device(wanted)
    assert "accepted: auto, cpu, cuda" in single_line(error)


@pytest.mark.parametrize("flags", ["amx_bf16", "avx512f avx512_bf16"])
def test_auto_is_float32_on_a_cpu_even_with_instructions_for_bfloat16(tmp_path, monkeypatch, flags):
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path, flags))
    assert machine.has_bfloat16(torch.device(CPU))
    assert machine.pick_precision("auto", CPU) is torch.float32


@pytest.mark.parametrize("flags", ["", "avx512f avx512_vnni", "not_amx_bf16"])
def test_a_cpu_without_the_instructions_has_no_bfloat16(tmp_path, monkeypatch, flags):
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path, flags))
    assert not machine.has_bfloat16(torch.device(CPU))


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [("AuthenticAMD", "AVX512", True), ("GenuineIntel", "AVX512", False), ("AuthenticAMD", "AVX2", False)],
)
def test_onednn_is_preferred_where_mkl_does_not_use_avx512(tmp_path, monkeypatch, vendor, capability, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(machine, "CPUINFO", path)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert machine.prefers_onednn() is expected


def test_a_cpu_computes_in_bfloat16_if_it_is_set_explicitly(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path, ""))
    assert machine.pick_precision("bfloat16", CPU) is torch.bfloat16


@pytest.mark.usefixtures("two_old_gpus")
def test_auto_is_float32_on_a_gpu_without_bfloat16():
    assert machine.pick_precision("auto", "cuda") is torch.float32


@pytest.mark.usefixtures("two_old_gpus")
def test_bfloat16_on_a_gpu_without_it_is_an_error_in_one_line():
    with pytest.raises(BadSetting) as error:
        machine.pick_precision("bfloat16", "cuda")
    assert single_line(error) == ("train.precision=bfloat16: Tesla P100-PCIE-16GB does not support it; use float32")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """An empty PATH; `tools(name)` adds a program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()

    def add(name: str) -> Path:
        (tmp_path / name).write_text("#!/bin/sh\n")
        os.chmod(tmp_path / name, 0o755)
        return tmp_path / name

    return add


def test_a_cpu_compiles_with_a_cpp_compiler(tools):
    tools("g++")
    assert machine.compile_problem("cpu") is None


def test_a_missing_cpp_compiler_is_the_problem(tools):
    assert machine.compile_problem(CPU) == (
        "torch.compile on a CPU needs a C++ compiler, and g++ is not found; install one or set CXX"
    )


def test_another_installed_compiler_is_suggested(tools, monkeypatch):
    tools("clang++")
    assert machine.compile_problem("cpu").endswith("set CXX=clang++")
    monkeypatch.setenv("CXX", "clang++")
    assert machine.compile_problem("cpu") is None


def test_a_missing_python_header_is_the_problem(tools, tmp_path):
    tools("g++")
    (tmp_path / "Python.h").unlink()
    assert "Python.h" in machine.compile_problem("cpu")


def test_a_gpu_compiles_with_triton_and_a_c_compiler(tools, monkeypatch):
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert "triton" in machine.compile_problem("cuda")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object())
    assert "C compiler" in machine.compile_problem("cuda")
    tools("gcc")
    assert machine.compile_problem("cuda") is None


@pytest.mark.process
def test_torch_compile_works_without_a_compile_problem():
    if machine.compile_problem("cpu") is not None:
        pytest.skip(machine.compile_problem("cpu"))
    double = torch.compile(lambda x: (x * 2).sin())
    x = torch.ones(3)
    assert torch.allclose(double(x), (x * 2).sin())
