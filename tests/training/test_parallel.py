"""Data-parallel training equals training in one process, and resumes after a process was killed."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed import TCPStore

from harken import machine, run_folder
from harken.data.batch import Batch
from harken.data.synthetic.tales import tales
from harken.errors import HarkenError
from harken.events import silent
from harken.tasks import BoundTask
from harken.training import cost, parallel
from harken.training.settings import Train
from harken.training.step import UpdateStep

from children import Child, _context  # isort: skip

pytestmark = pytest.mark.process

BOTH = pytest.mark.parametrize("mode", ["ddp", "fsdp"])
SMALL = {"model.d": 16, "model.layers": 2, "model.context": 12, "model.dropout": 0.0}
SMALL |= {"train.batch": 4, "train.micro_batch": 1, "train.lr": 1e-2, "train.grad_clip": 0.5, "train.device": "cpu"}
SMALL |= {
    "train.precision": "float32",
    "train.optimizer": "adamw",
    "train.steps": 9,
    "train.warmup": 0,
    "data.examples": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "windows": {},
    "ragged": {"data.batching": "packed", "data.documents": "line"},
    "mixed": {"data.mix": {"a.txt": 0.5, "b.txt": 0.5}, "train.batch": 6, "train.micro_batch": 2},
    "muon": {"train.optimizer": "muon", "model.d": 18, "model.heads": 3},  # not every matrix splits evenly
    "stream": {"model.kind": "lstm", "train.optimizer": "sgd", "train.batch": 6, "train.micro_batch": 2},
    "average": {"train.optimizer": "rmsprop", "train.average": "ema"},
    "pairs": {"train.batch": 9},
    "packed": {"train.batch": 50, "task.packed": True},
    "rnn": {"train.batch": 9, "model.kind": "rnn"},
}
PAIRS = ("pairs", "packed", "rnn")  # sentence pairs, in batches of odd size


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, pair_file: Path) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    stories = list(tales(6))
    for name, texts in (("tales", stories), ("a", stories[:3]), ("b", stories[3:])):
        (folder / f"{name}.txt").write_text("\n".join(texts))
    (folder / "pairs.tsv").write_text(pair_file.read_text())
    return folder


@pytest.fixture(autouse=True)
def one_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(home / "cache"))


class Torchrun:
    """The setup of torchrun for two processes: a store, and the environment of each."""

    def __init__(self, home: Path) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port), "WORLD_SIZE": "2"}
        common |= {"LOCAL_WORLD_SIZE": "2", "HARKEN_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"}
        common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        self.environments = [{**common, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(2)]


# --- equal numbers ----------------------------------------------------------------------------------------------------


def train_case(home: Path, case: str, mode: str, ranks: parallel.Ranks) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Nine updates in float64: their log lines, and the values at the end."""
    from harken.experiments.choose import choose
    from harken.experiments.train import prepare

    overrides = {**SMALL, **CASES[case], "train.parallel": mode}
    if case in PAIRS:
        overrides = {key: value for key, value in overrides.items() if key not in ("model.context", "data.examples")}
        overrides |= {"train.micro_batch": 2, "data.tokenizer": "word"}
    mix = {str(home / name): share for name, share in overrides.pop("data.mix", {}).items()}
    data = "char" if mix else str(home / ("pairs.tsv" if case in PAIRS else "tales.txt"))
    recipe = choose(data, overrides | ({"data.mix": mix} if mix else {})).recipe
    _, trainer = prepare(recipe, silent, ranks=ranks.configure(recipe.train))
    random = torch.rand(3).tolist()
    lines = [trainer.update(9) for _ in range(5)]
    validation = trainer.evaluate("valid").metrics if case in PAIRS else {}  # also generates
    lines += [trainer.update(9) for _ in range(4)]
    weights = run_folder.weights(trainer.model) | trainer.average.weights()
    n_local = sum(parallel.local_tensor(t).numel() for t in weights.values())
    return lines, {
        "validation": validation,
        "random": random,
        "n_local": n_local,
        "weights": trainer.ranks.gather(weights),
    }


def run_rank(environment: dict[str, str], home: Path) -> None:
    """One of two processes: all cases in order."""
    os.environ.update(environment)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with parallel.process_group() as ranks:
        for case in CASES:
            for mode in ("ddp", "fsdp"):
                lines, end = train_case(home, case, mode, ranks)
                if weights := end.pop("weights"):
                    save_file(weights, home / f"{case}-{mode}.safetensors")
                (home / f"{case}-{mode}-{ranks.rank}.json").write_text(json.dumps([lines, end]))


@pytest.fixture(scope="module")
def computed(home: Path):
    """(log lines, final values) of one of two ranks."""
    torchrun = Torchrun(home)
    processes = [_context.Process(target=run_rank, args=(environment, home)) for environment in torchrun.environments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    return lambda case, mode, n=0: json.loads((home / f"{case}-{mode}-{n}.json").read_text())


@pytest.fixture(scope="module")
def one_process(home: Path):
    """The same for one process."""

    @cache
    def run(case: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        torch.set_default_dtype(torch.float64)
        return train_case(home, case, "none", parallel.Ranks())

    return run


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_losses_and_weights_of_one(computed, one_process, home, case, mode):
    """Also for ragged rows, mixed texts and carried states, in micro-batches."""
    (lines, final), (expected, end) = computed(case, mode), one_process(case)
    assert [f.keys() for f in lines] == [f.keys() for f in expected]
    for line, reference in zip(lines, expected, strict=True):
        assert line.pop("parts", {}) == pytest.approx(reference.get("parts", {}), rel=1e-12)
        assert line == pytest.approx({name: x for name, x in reference.items() if name != "parts"}, rel=1e-10)
    assert final["validation"] == pytest.approx(end["validation"], rel=1e-10)
    weights = load_file(home / f"{case}-{mode}.safetensors")
    assert weights.keys() == end["weights"].keys()
    assert max(float((weights[n] - t).abs().max()) for n, t in end["weights"].items()) < 1e-10


def test_the_cases_cover_epochs_clipping_and_mixtures(one_process):
    assert len({line["epoch"] for line in one_process("stream")[0]}) > 1
    assert all(line["gradient"] > 0.5 for line in one_process("windows")[0][:3])
    assert len(one_process("mixed")[0][0]["parts"]) == 2


@BOTH
def test_every_rank_logs_the_same(computed, mode):
    for case in CASES:
        assert computed(case, mode, 0)[0] == computed(case, mode, 1)[0]


def test_each_rank_has_its_own_random_stream_and_the_first_that_of_one_process(computed, one_process):
    first, second = (computed("windows", "ddp", n)[1]["random"] for n in (0, 1))
    assert first == one_process("windows")[1]["random"]
    assert not set(first) & set(second)


def test_an_fsdp_rank_holds_its_shard_of_the_weights(computed, one_process):
    total = one_process("muon")[1]["n_local"]
    shards = [computed("muon", "fsdp", n)[1]["n_local"] for n in (0, 1)]
    assert sum(shards) == total
    assert max(shards) < 0.6 * total
    assert computed("muon", "ddp", 1)[1]["n_local"] == total


# --- a run ------------------------------------------------------------------------------------------------------------

PLAIN = ["model.d=16", "model.layers=2", "model.context=12", "data.examples=2", "train.batch=6"]
PLAIN += [
    "train.micro_batch=2",
    "train.steps=18",
    "train.eval_every=7",
    "train.log_every=1",
    "train.checkpoint_every=4",
]
PLAIN += ["train.lr=1e-2", "train.threads=1", "train.precision=float32"]
MODES = {"ddp": ["train.parallel=ddp", "train.steps=60"], "fsdp": ["train.parallel=fsdp"]}
MODES |= {"lstm": ["train.parallel=ddp", "model.kind=lstm"]}
DROPOUT = "model.dropout=0.2"
KILL_AT = 21  # micro-batch of a rank, in the eleventh step


class Pair:
    """Two processes of one training."""

    def __init__(self, *arguments: Any, folder: Path, home: Path, die_in: int | None = None) -> None:
        self.torchrun = Torchrun(home)
        kills = (None, die_in)  # only the second kills itself
        pairs = zip(self.torchrun.environments, kills, strict=True)
        self.ranks = [Child(*arguments, folder=folder, env=environment, die_in=kill) for environment, kill in pairs]

    def wait(self) -> tuple[int, ...]:
        return tuple(child.wait() for child in self.ranks)

    @property
    def text(self) -> str:
        return "".join(child.text for child in self.ranks)


def train_command(home: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(home / "tales.txt"), *PLAIN, *more, "--out", str(out)]


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """SHA-256 of the weights, and the log without times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["tokens_per_second"]
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(), lines


def steps_in(folder: Path) -> int:
    return (folder / "log.jsonl").read_text().count("\n") if (folder / "log.jsonl").exists() else 0


def wait_for_steps(folder: Path, steps: int) -> None:
    deadline = time.monotonic() + 60
    while steps_in(folder) < steps:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def uninterrupted(home: Path):
    @cache
    def run(mode: str) -> tuple[str, list[dict[str, Any]]]:
        out = home / f"uninterrupted-{mode}"
        pair = Pair(*train_command(home, out, *MODES[mode], DROPOUT), folder=home, home=home)
        assert pair.wait() == (0, 0), pair.text
        assert pair.ranks[1].text == ""
        return outcome(out)

    return run


def test_only_the_first_rank_writes_and_prints(uninterrupted, home):
    _, lines = uninterrupted("ddp")
    assert [line["step"] for line in lines] == list(range(1, 61))
    out = home / "uninterrupted-ddp"
    assert run_folder.read_manifest(out)["steps"] == 60
    assert 'parallel = "ddp"' in (out / "recipe.toml").read_text()
    absent = {"labels.json", "certificate.json", run_folder.TOKENIZER_FILES[1]}  # of other families
    expected = {*run_folder.RUN_FILES, "harken.json", "checkpoints"} - absent
    assert {p.name for p in out.iterdir() if p.name != ".lock"} == expected


@pytest.mark.parametrize("mode", ["fsdp", "lstm"])
def test_a_run_with_a_killed_rank_resumes_bitwise(uninterrupted, home, mode, tmp_path):
    """The checkpoint of the first rank has the optimizer states, random states and task states of all ranks."""
    expected, out = uninterrupted(mode), tmp_path / "r"
    pair = Pair(*train_command(home, out, *MODES[mode], DROPOUT), folder=tmp_path, home=home, die_in=KILL_AT)
    assert pair.wait() == (1, -signal.SIGKILL)
    assert f"harken: {parallel.PROCESS_LOST}" in pair.text
    assert steps_in(out) == 10
    pair = Pair(*train_command(home, out, *MODES[mode], DROPOUT), "--resume", folder=tmp_path, home=home)
    assert pair.wait() == (0, 0), pair.text
    assert outcome(out) == expected


def test_torchrun_ends_within_seconds_when_a_rank_is_killed_and_resumes_bitwise(uninterrupted, home, tmp_path):
    expected, out = uninterrupted("ddp"), tmp_path / "r"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "harken"]
    command = [*torchrun, *train_command(home, out, *MODES["ddp"], DROPOUT)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_steps(out, 10)
    os.kill(_second_rank(process.pid), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - killed < 25
    assert process.returncode == 1
    assert re.findall("^harken: .*", errors, re.M) == [f"harken: {parallel.PROCESS_LOST}"]
    pair = Pair("train", out, "--resume", folder=tmp_path, home=home)
    assert pair.wait() == (0, 0), pair.text
    assert outcome(out) == expected


def _second_rank(launcher: int) -> int:
    """Process id of rank 1."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return next(int(pid) for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())


@pytest.fixture(scope="module")
def single(home: Path) -> Path:
    """A run of one process, without dropout."""
    out = home / "single"
    child = Child(*train_command(home, out), folder=home)
    assert child.wait() == 0, child.text
    return out


def test_ddp_has_the_losses_of_one_process(single, home, tmp_path):
    pair = Pair(*train_command(home, tmp_path / "r"), folder=tmp_path, home=home)  # torchrun implies ddp
    assert pair.wait() == (0, 0), pair.text
    assert _losses(tmp_path / "r") == pytest.approx(_losses(single), rel=1e-4)


def _losses(folder: Path) -> list[float]:
    return [line[name] for line in outcome(folder)[1] for name in ("loss", "valid") if name in line]


def test_one_process_resumes_a_checkpoint_of_two_fsdp_ranks(single, home, tmp_path):
    """A signal to one rank stops all ranks with a checkpoint."""
    out = tmp_path / "r"
    pair = Pair(*train_command(home, out, "train.parallel=fsdp"), folder=tmp_path, home=home)
    wait_for_steps(out, 3)
    os.kill(pair.ranks[1].process.pid, signal.SIGTERM)
    assert pair.wait() == (143, 143)
    assert re.fullmatch(
        rf"harken: {out}: stopped at step \d+ of 18; resume with: torchrun --nproc-per-node 2 -m harken train {out} "
        "--resume",
        "\n".join(line for line in pair.text.splitlines() if line.startswith("harken: ")),
    )
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "train.parallel=fsdp: there is only this process; start it with: torchrun" in child.text
    child = Child("train", out, "train.parallel=none", "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert (
        "1 process (train.parallel=none) instead of 2 processes (train.parallel=fsdp): resuming, but not" in child.text
    )
    assert _losses(out) == pytest.approx(_losses(single), rel=1e-4)


def test_two_fsdp_ranks_resume_a_checkpoint_of_one_process(single, home, tmp_path):
    out = tmp_path / "r"
    assert Child(*train_command(home, out), folder=tmp_path, die_in=KILL_AT).wait() == -signal.SIGKILL
    pair = Pair("train", out, "train.parallel=fsdp", "--resume", folder=tmp_path, home=home)
    assert pair.wait() == (0, 0), pair.text
    assert _losses(out) == pytest.approx(_losses(single), rel=1e-4)
    states = [load_file(max(o.glob("checkpoints/step-*")) / "state.safetensors") for o in (out, single)]
    shapes = [{name: (t.shape, t.dtype) for name, t in tensors.items()} for tensors in states]
    assert shapes[0].pop("random:cpu@1") == shapes[1]["random:cpu"]
    assert shapes[0] == shapes[1]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "code", "line"),
    [
        (["train.batch=5"], 2, "train.batch: a batch of 5 rows does not split over 2 processes; use a multiple of 2"),
        (
            ["train.parallel=none"],
            2,
            "train.parallel=none: 2 processes would train the same model; set train.parallel=",
        ),
        (
            ["train.lr=1e38", "train.grad_clip=0", "train.optimizer=sgd"],
            1,
            r"step \d+ .*not finite, so the update was skipped",
        ),
    ],
)
def test_an_error_of_all_ranks_is_printed_once(home, overrides, code, line, tmp_path):
    pair = Pair(*train_command(home, tmp_path / "r", *overrides), folder=tmp_path, home=home)
    assert pair.wait() == (code, code), pair.text
    messages = re.findall("^harken: (.*)", pair.text, re.M)
    assert len(messages) == 1
    assert re.match(line, messages[0])


def test_an_error_of_the_first_rank_alone_ends_the_others_silently(home, tmp_path):
    with run_folder.lock_folder(tmp_path / "r"):
        pair = Pair(*train_command(home, tmp_path / "r"), folder=tmp_path, home=home)
        assert pair.wait() == (2, 1)
    assert "another process trains in this folder" in pair.ranks[0].text
    assert "harken: " not in pair.ranks[1].text


def test_stdin_is_an_error_for_several_processes(home, tmp_path):
    pair = Pair("train", "-", folder=tmp_path, home=home)
    assert pair.wait() == (2, 2)
    assert pair.text == "harken: stdin: 2 processes cannot all read it; save the text and pass the file\n"


def test_ddp_in_one_process_is_an_error_that_names_torchrun(home, tmp_path):
    child = Child(*train_command(home, tmp_path / "r", "train.parallel=ddp"), folder=tmp_path)
    assert child.wait() == 2
    fix = "start it with: torchrun --nproc-per-node 2 -m harken train ...; or set train.parallel=none"
    assert child.text.endswith(f"\nharken: train.parallel=ddp: there is only this process; {fix}\n")
    assert not (tmp_path / "r").exists()


def test_a_rank_that_runs_out_of_memory_ends_instead_of_restarting_the_update():
    class Two(parallel.Ranks):
        world_size = 2

    class Large(BoundTask):
        def loss(self, *args: Any) -> None:
            raise torch.OutOfMemoryError

    step = UpdateStep(torch.nn.Linear(1, 1), Large(), Train(device="cpu"), listen=silent, ranks=Two())
    rows = torch.zeros(10, 3, dtype=torch.long)
    with pytest.raises(
        HarkenError, match=r"^out of memory with micro-batches of 5 rows; train again with train\.micro_batch=3$"
    ):
        step(Batch(rows, rows), 0.1)


def test_the_energy_of_all_processes_of_a_machine_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "cores", lambda: 8)
    torch.set_num_threads(3)
    monkeypatch.setattr(cost, "POWERCAP", tmp_path)
    with cost.Meter(processes=2) as meter:
        assert meter.power() == (60.0, "estimated: 6 cores x 10 W")
