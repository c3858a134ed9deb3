"""What harken knows about the machine it runs on, and what it says when something is not there."""

import os
import time
from pathlib import Path

import pytest
import torch

from harken import machine
from harken.errors import BadSetting

CPU = torch.device("cpu")


def processor(tmp_path: Path, flags: str) -> Path:
    """A /proc/cpuinfo of a processor with these flags."""
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


def one_line(error: pytest.ExceptionInfo[BadSetting]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_the_description_has_every_field_and_fits_into_json():
    seen = machine.describe()
    assert list(seen) == ["cpu", "cores", "threads", "ram_gib", "gpu", "torch", "python", "os"]
    assert all(value is None or isinstance(value, str | int | float) for value in seen.values())
    assert seen["cpu"]
    assert seen["threads"] == torch.get_num_threads()


def test_the_description_is_cheap():
    machine.describe()
    start = time.perf_counter()
    machine.describe()
    assert time.perf_counter() - start < 0.2


def test_the_processor_is_called_by_its_model_name(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", processor(tmp_path, ""))
    assert machine.describe()["cpu"] == "Abacus 9"


def test_a_processor_without_a_name_is_called_by_its_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "absent")
    assert machine.describe()["cpu"]


@pytest.mark.parametrize(("limit", "share"), [("50000 100000", 1), ("max 100000", None), ("99900000 100000", None)])
def test_a_container_counts_only_its_share_of_the_cores(tmp_path, monkeypatch, limit, share):
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "absent")
    alone = machine.cores()
    (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.cores() == (share or alone)


def test_a_container_counts_only_its_share_of_the_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2**29}\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.describe()["ram_gib"] == 0.5


def test_the_gpu_that_was_used_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device.index if device else 0}")
    assert machine.describe(torch.device("cuda", 1))["gpu"] == "GPU 1"
    assert machine.describe(CPU)["gpu"] == machine.describe()["gpu"] == "GPU 0"


@pytest.mark.usefixtures("no_gpu")
def test_auto_takes_the_cpu_where_there_is_no_gpu():
    assert machine.pick_device() == CPU


@pytest.mark.usefixtures("two_old_gpus")
def test_auto_takes_a_gpu_where_there_is_one():
    assert machine.pick_device("auto") == torch.device("cuda")
    assert machine.pick_device("cuda:1") == torch.device("cuda", 1)
    assert machine.pick_device("cpu") == CPU


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_there_is_refused_in_one_line():
    with pytest.raises(BadSetting) as error:
        machine.pick_device("cuda")
    assert one_line(error) == f"train.device=cuda: torch {torch.__version__} finds no CUDA device here; use auto or cpu"


@pytest.mark.usefixtures("two_old_gpus")
def test_a_gpu_beyond_the_last_is_refused_in_one_line():
    with pytest.raises(BadSetting) as error:
        machine.pick_device("cuda:2")
    assert one_line(error) == "train.device=cuda:2: there are 2 CUDA devices here; use one of cuda:0 to cuda:1"


@pytest.mark.parametrize("wanted", ["gpu", "cudda", "cuda:x", "cuda:-1", "cuda:", "cuda:²", "meta", "", "c\nd"])
def test_a_word_that_is_no_device_is_refused_in_one_line(wanted):
    with pytest.raises(BadSetting) as error:
        machine.pick_device(wanted)
    assert "accepted: auto, cpu, cuda" in one_line(error)


@pytest.mark.parametrize("flags", ["amx_bf16", "avx512f avx512_bf16"])
def test_auto_is_bfloat16_on_a_cpu_that_has_the_instructions(tmp_path, monkeypatch, flags):
    monkeypatch.setattr(machine, "CPUINFO", processor(tmp_path, flags))
    assert machine.pick_precision("auto", CPU) is torch.bfloat16


@pytest.mark.parametrize("flags", ["", "avx512f avx512_vnni", "not_amx_bf16"])
def test_auto_is_float32_on_a_cpu_that_lacks_them(tmp_path, monkeypatch, flags):
    monkeypatch.setattr(machine, "CPUINFO", processor(tmp_path, flags))
    assert machine.pick_precision("auto", "cpu") is torch.float32


def test_a_cpu_computes_in_bfloat16_if_it_is_asked_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", processor(tmp_path, ""))
    assert machine.pick_precision("bfloat16", CPU) is torch.bfloat16


@pytest.mark.usefixtures("two_old_gpus")
def test_auto_is_float32_on_a_gpu_without_bfloat16():
    assert machine.pick_precision("auto", "cuda") is torch.float32


@pytest.mark.usefixtures("two_old_gpus")
def test_bfloat16_on_a_gpu_without_it_is_refused_in_one_line():
    with pytest.raises(BadSetting) as error:
        machine.pick_precision("bfloat16", "cuda")
    assert one_line(error) == ("train.precision=bfloat16: Tesla P100-PCIE-16GB does not compute with it; use float32")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with nothing on it; `tools(name)` puts a program there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()

    def put(name: str) -> Path:
        (tmp_path / name).write_text("#!/bin/sh\n")
        os.chmod(tmp_path / name, 0o755)
        return tmp_path / name

    return put


def test_a_cpu_compiles_with_a_cpp_compiler(tools):
    tools("g++")
    assert machine.can_compile("cpu") is None


def test_a_cpu_without_a_cpp_compiler_says_so(tools):
    assert machine.can_compile(CPU) == (
        "torch.compile on a CPU needs a C++ compiler, and g++ is not found; install one or set CXX"
    )


def test_a_compiler_that_torch_would_not_look_for_is_pointed_out(tools, monkeypatch):
    tools("clang++")
    assert machine.can_compile("cpu").endswith("set CXX=clang++")
    monkeypatch.setenv("CXX", "clang++")
    assert machine.can_compile("cpu") is None


def test_a_missing_python_header_is_the_reason(tools, tmp_path):
    tools("g++")
    (tmp_path / "Python.h").unlink()
    assert "Python.h" in machine.can_compile("cpu")


def test_a_gpu_compiles_with_triton_and_a_c_compiler(tools, monkeypatch):
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert "triton" in machine.can_compile("cuda")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object())
    assert "C compiler" in machine.can_compile("cuda")
    tools("gcc")
    assert machine.can_compile("cuda") is None


@pytest.mark.process
def test_torch_compile_works_where_it_is_said_to():
    if machine.can_compile("cpu") is not None:
        pytest.skip(machine.can_compile("cpu"))
    double = torch.compile(lambda x: (x * 2).sin())
    x = torch.ones(3)
    assert torch.allclose(double(x), (x * 2).sin())
