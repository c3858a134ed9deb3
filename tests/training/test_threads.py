"""The threads of a training next to other programs."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from harken import machine
from harken.training import threads
from harken.training.parallel import Ranks
from harken.training.resource_estimate import measure_steps
from harken.training.settings import Train
from harken.training.threads import OtherPrograms, bound_threads, fewer_threads
from harken.training.timing import Timing, robust_mean

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to cores on Linux")


@pytest.fixture
def free_choice(monkeypatch):
    """No setting of the user decides about threads, and each core has one thread."""
    for name in (*threads.COUNTS, *threads.POLICIES):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def affinities() -> list[set[int]]:
    return [os.sched_getaffinity(int(name)) for name in os.listdir("/proc/self/task")]


@linux
@pytest.mark.usefixtures("free_choice")
def test_each_thread_of_a_training_has_a_core_of_its_own_until_its_end():
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core")
    with bound_threads() as bound:
        assert bound
        own = [affinity for affinity in affinities() if len(affinity) == 1]
        assert sorted(map(min, own)) == sorted(cores)
        assert len(os.sched_getaffinity(threading.get_native_id())) == 1
    assert all(affinity == cores for affinity in affinities())


@linux
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"])
@pytest.mark.usefixtures("free_choice")
def test_the_binding_of_the_user_is_kept(monkeypatch, variable):
    monkeypatch.setenv(variable, "false")
    with bound_threads() as bound:
        assert not bound


@linux
@pytest.mark.usefixtures("free_choice")
def test_with_fewer_threads_than_cores_no_thread_is_bound():
    torch.set_num_threads(1)
    with bound_threads() as bound:
        assert not bound


@linux
def test_the_use_of_a_core_by_another_program_is_measured():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        others = OtherPrograms()
        time.sleep(0.3)
        busy = others.busy_cores()
        program.kill()
    assert busy > 0.4  # other work on this machine counts, too


@linux
def test_the_work_of_this_process_is_not_that_of_another_program(monkeypatch):
    # the same ticks of a machine on which only this process computes
    ticks = os.sysconf("SC_CLK_TCK")
    own = iter([10.0, 12.0])
    monkeypatch.setattr(threads.os, "times", lambda: os.times_result((next(own), 0, 0, 0, 0)))
    monkeypatch.setattr(threads, "available_cores", lambda: [0])
    monkeypatch.setattr(threads, "PROCESS", reads := Reads(f"cpu0 {10 * ticks} 0 0 5 0 0 0 0 0 0"))
    others = OtherPrograms()
    reads.text = f"cpu0 {12 * ticks} 0 0 5 0 0 0 0 0 0"
    assert others.busy_cores() == 0


class Reads:
    """A file of the system with a text that changes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read_text(self, encoding: str) -> str:
        return self.text


def test_a_system_without_this_file_reports_its_load(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "PROCESS", tmp_path / "none")
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (1.5, 0.0, 0.0), raising=False)
    assert OtherPrograms().busy_cores() == 1.5


def test_each_free_core_gets_one_thread_unless_the_user_has_set_a_number(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: [0, 1, 2, 3])
    for name in threads.COUNTS:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(4)
    assert [fewer_threads(busy) for busy in (0.0, 0.5, 1.2, 9.0)] == [None, 3, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert fewer_threads(2.0) is None


class Timed:
    """A trainer with known seconds per step for each number of threads, next to other programs."""

    device, ranks = torch.device("cpu"), Ranks()

    def __init__(self, seconds: dict[int, float], busy_cores: float, **train: int) -> None:
        self.seconds, self.busy_cores, self.train = seconds, busy_cores, Train(**train)
        self.notices: list[str] = []

    def measure(self, seconds: float, max_steps: int) -> Timing:
        return Timing(self.seconds[torch.get_num_threads()], 0.0, 20.0, "known", self.busy_cores)

    def listen(self, event: str, *, text: str) -> None:
        self.notices.append(text)


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(machine, "cores", lambda: 4)
    for name in threads.COUNTS:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(4)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("seconds", "chosen"), [({4: 1.0, 2: 0.7}, 2), ({4: 0.7, 2: 1.0}, 4)])
def test_next_to_other_programs_the_faster_number_of_threads_is_used(seconds, chosen):
    trainer = Timed(seconds, busy_cores=2.0)
    assert measure_steps(trainer, 1.0, 10).step_seconds == 0.7
    assert torch.get_num_threads() == chosen
    (notice,) = trainer.notices
    assert "other programs use 2.0 of 4 cores" in notice
    assert f"train.threads={chosen}" in notice


@pytest.mark.usefixtures("four_cores")
def test_a_set_number_of_threads_is_kept_next_to_other_programs():
    trainer = Timed({4: 1.0}, busy_cores=2.0, threads=4)
    assert measure_steps(trainer, 1.0, 10).step_seconds == 1.0
    assert len(trainer.notices) == 1


@pytest.mark.usefixtures("four_cores")
def test_an_idle_machine_is_not_mentioned():
    trainer = Timed({4: 1.0}, busy_cores=0.2)
    measure_steps(trainer, 1.0, 10)
    assert trainer.notices == []


def test_a_pause_of_the_machine_does_not_change_the_mean_duration_but_long_batches_do():
    steps = [0.01] * 100
    assert robust_mean(steps) == pytest.approx(0.01)
    assert robust_mean([*steps, 2.0, 1.0]) == pytest.approx(0.01, rel=0.05)
    assert robust_mean([0.01, 0.01, 0.01, 0.09] * 25) == pytest.approx(0.03)  # every fourth batch is long
    assert robust_mean([1.0, 2.0, 6.0]) == 3.0  # too few to know
