"""Several processes that train one model: they give what one process gives, and go on where one of them was killed."""

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
from harken.training import parallel
from harken.training.cost import Meter
from harken.training.settings import Train
from harken.training.step import Step

from children import Child, _context  # isort: skip

pytestmark = pytest.mark.process

BOTH = pytest.mark.parametrize("way", ["ddp", "fsdp"])
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
    "muon": {"train.optimizer": "muon", "model.d": 18, "model.heads": 3},  # not every matrix has an even part for each
    "stream": {"model.kind": "lstm", "train.optimizer": "sgd", "train.batch": 6, "train.micro_batch": 2},
    "average": {"train.optimizer": "rmsprop", "train.average": "ema"},
    "pairs": {"train.batch": 9},
    "packed": {"train.batch": 50, "task.packed": True},
    "rnn": {"train.batch": 9, "model.kind": "rnn"},
}
PAIRS = ("pairs", "packed", "rnn")  # of sentences, in batches that two do not divide


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, pair_file: Path) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    told = list(tales(6))
    for name, some in (("tales", told), ("a", told[:3]), ("b", told[3:])):
        (folder / f"{name}.txt").write_text("\n".join(some))
    (folder / "pairs.tsv").write_text(pair_file.read_text())
    return folder


@pytest.fixture(autouse=True)
def one_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(home / "cache"))


class Torchrun:
    """What torchrun does for two processes: a place to meet, and what each finds in its environment."""

    def __init__(self, home: Path) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port), "WORLD_SIZE": "2"}
        common |= {"LOCAL_WORLD_SIZE": "2", "HARKEN_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"}
        common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        self.places = [{**common, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(2)]


# --- the same numbers -------------------------------------------------------------------------------------------------


def learn(home: Path, case: str, way: str, ranks: parallel.Ranks) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Nine updates in float64: what is logged of each, and what is known at the end."""
    from harken.experiments.choose import choose
    from harken.experiments.train import prepare

    given = {**SMALL, **CASES[case], "train.parallel": way}
    if case in PAIRS:
        given = {key: value for key, value in given.items() if key not in ("model.context", "data.examples")}
        given |= {"train.micro_batch": 2, "data.tokenizer": "word"}
    mix = {str(home / name): share for name, share in given.pop("data.mix", {}).items()}
    what = "char" if mix else str(home / ("pairs.tsv" if case in PAIRS else "tales.txt"))
    recipe = choose(what, given | ({"data.mix": mix} if mix else {})).recipe
    _, trainer = prepare(recipe, silent, ranks=ranks.by(recipe.train))
    drawn = torch.rand(3).tolist()
    facts = [trainer.update(9) for _ in range(5)]
    looks = trainer.look("valid").metrics if case in PAIRS else {}  # writes answers too
    facts += [trainer.update(9) for _ in range(4)]
    weights = run_folder.weights(trainer.model) | trainer.average.weights()
    kept = sum(parallel.held(t).numel() for t in weights.values())
    return facts, {"looks": looks, "drawn": drawn, "held": kept, "weights": trainer.ranks.collected(weights)}


def rank(place: dict[str, str], home: Path) -> None:
    """One of two processes: all cases, one after the other."""
    os.environ.update(place)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with parallel.together() as ranks:
        for case in CASES:
            for way in ("ddp", "fsdp"):
                facts, end = learn(home, case, way, ranks)
                if weights := end.pop("weights"):
                    save_file(weights, home / f"{case}-{way}.safetensors")
                (home / f"{case}-{way}-{ranks.rank}.json").write_text(json.dumps([facts, end]))


@pytest.fixture(scope="module")
def computed(home: Path):
    """(what is logged, what is known at the end) of a rank of two."""
    torchrun = Torchrun(home)
    both = [_context.Process(target=rank, args=(place, home)) for place in torchrun.places]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    return lambda case, way, n=0: json.loads((home / f"{case}-{way}-{n}.json").read_text())


@pytest.fixture(scope="module")
def alone(home: Path):
    """The same of one process."""

    @cache
    def result(case: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        torch.set_default_dtype(torch.float64)
        return learn(home, case, "none", parallel.Ranks())

    return result


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_losses_and_weights_of_one(computed, alone, home, case, way):
    """Also where rows ask unequally much, are a mixture, or go on from what was read before; in micro-batches."""
    (facts, found), (expected, end) = computed(case, way), alone(case)
    assert [f.keys() for f in facts] == [f.keys() for f in expected]
    for now, then in zip(facts, expected, strict=True):
        assert now.pop("parts", {}) == pytest.approx(then.get("parts", {}), rel=1e-12)
        assert now == pytest.approx({name: x for name, x in then.items() if name != "parts"}, rel=1e-10)
    assert found["looks"] == pytest.approx(end["looks"], rel=1e-10)
    weights = load_file(home / f"{case}-{way}.safetensors")
    assert weights.keys() == end["weights"].keys()
    assert max(float((weights[n] - t).abs().max()) for n, t in end["weights"].items()) < 1e-10


def test_the_cases_are_as_hard_as_they_should_be(alone):
    assert len({loss["epoch"] for loss in alone("stream")[0]}) > 1
    assert all(loss["gradient"] > 0.5 for loss in alone("windows")[0][:3])
    assert len(alone("mixed")[0][0]["parts"]) == 2


@BOTH
def test_every_rank_logs_the_same(computed, way):
    for case in CASES:
        assert computed(case, way, 0)[0] == computed(case, way, 1)[0]


def test_each_rank_draws_its_own_numbers_and_the_first_those_of_one_process(computed, alone):
    first, second = (computed("windows", "ddp", n)[1]["drawn"] for n in (0, 1))
    assert first == alone("windows")[1]["drawn"]
    assert not set(first) & set(second)


def test_a_rank_of_fsdp_holds_its_part_of_the_weights(computed, alone):
    everything = alone("muon")[1]["held"]
    parts = [computed("muon", "fsdp", n)[1]["held"] for n in (0, 1)]
    assert sum(parts) == everything
    assert max(parts) < 0.6 * everything
    assert computed("muon", "ddp", 1)[1]["held"] == everything


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
WAYS = {"ddp": ["train.parallel=ddp", "train.steps=60"], "fsdp": ["train.parallel=fsdp"]}
WAYS |= {"lstm": ["train.parallel=ddp", "model.kind=lstm"]}
CHANCE = "model.dropout=0.2"
DEAD = 21  # two micro-batches a step for each of two ranks: in the eleventh step


class Pair:
    """Two processes that were started together."""

    def __init__(self, *arguments: Any, folder: Path, home: Path, die_in: int | None = None) -> None:
        self.torchrun = Torchrun(home)
        moments = (None, die_in)  # the second may kill itself
        pairs = zip(self.torchrun.places, moments, strict=True)
        self.ranks = [Child(*arguments, folder=folder, env=place, die_in=moment) for place, moment in pairs]

    def wait(self) -> tuple[int, ...]:
        return tuple(child.wait() for child in self.ranks)

    @property
    def text(self) -> str:
        return "".join(child.text for child in self.ranks)


def begin(home: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(home / "tales.txt"), *PLAIN, *more, "--out", str(out)]


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The SHA-256 of the weights, and all that was logged but the time it took."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["tokens_per_second"]
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(), lines


def steps_in(folder: Path) -> int:
    return (folder / "log.jsonl").read_text().count("\n") if (folder / "log.jsonl").exists() else 0


def wait_for_steps(folder: Path, steps: int) -> None:
    until = time.monotonic() + 60
    while steps_in(folder) < steps:
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture(scope="module")
def unbroken(home: Path):
    @cache
    def result(way: str) -> tuple[str, list[dict[str, Any]]]:
        out = home / f"unbroken-{way}"
        pair = Pair(*begin(home, out, *WAYS[way], CHANCE), folder=home, home=home)
        assert pair.wait() == (0, 0), pair.text
        assert pair.ranks[1].text == ""
        return outcome(out)

    return result


def test_only_the_first_rank_writes_and_speaks(unbroken, home):
    _, lines = unbroken("ddp")
    assert [line["step"] for line in lines] == list(range(1, 61))
    out = home / "unbroken-ddp"
    assert run_folder.facts(out)["steps"] == 60
    assert 'parallel = "ddp"' in (out / "recipe.toml").read_text()
    others = {"labels.json", "certificate.json", run_folder.TOKENS[1]}  # of other families
    wanted = {*run_folder.PARTS, "harken.json", "checkpoints"} - others
    assert {p.name for p in out.iterdir() if p.name != ".lock"} == wanted


@pytest.mark.parametrize("way", ["fsdp", "lstm"])
def test_a_run_with_a_killed_rank_goes_on_as_if_nothing_had_happened(unbroken, home, way, tmp_path):
    """Each rank's moments, random numbers and carried states are in the checkpoint of the first."""
    expected, out = unbroken(way), tmp_path / "r"
    pair = Pair(*begin(home, out, *WAYS[way], CHANCE), folder=tmp_path, home=home, die_in=DEAD)
    assert pair.wait() == (1, -signal.SIGKILL)
    assert f"harken: {parallel.LOST}" in pair.text
    assert steps_in(out) == 10
    pair = Pair(*begin(home, out, *WAYS[way], CHANCE), "--resume", folder=tmp_path, home=home)
    assert pair.wait() == (0, 0), pair.text
    assert outcome(out) == expected


def test_torchrun_ends_within_seconds_when_a_rank_is_killed_and_goes_on_later(unbroken, home, tmp_path):
    expected, out = unbroken("ddp"), tmp_path / "r"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "harken"]
    command = [*torchrun, *begin(home, out, *WAYS["ddp"], CHANCE)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_steps(out, 10)
    os.kill(_second(process.pid), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - killed < 25
    assert process.returncode == 1
    assert re.findall("^harken: .*", errors, re.M) == [f"harken: {parallel.LOST}"]
    pair = Pair("train", out, "--resume", folder=tmp_path, home=home)
    assert pair.wait() == (0, 0), pair.text
    assert outcome(out) == expected


def _second(launcher: int) -> int:
    """The process of rank 1."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return next(int(pid) for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())


@pytest.fixture(scope="module")
def single(home: Path) -> Path:
    """A run of one process, without chance."""
    out = home / "single"
    child = Child(*begin(home, out), folder=home)
    assert child.wait() == 0, child.text
    return out


def test_ddp_ends_where_one_process_ends(single, home, tmp_path):
    pair = Pair(*begin(home, tmp_path / "r"), folder=tmp_path, home=home)  # torchrun alone says ddp
    assert pair.wait() == (0, 0), pair.text
    assert _losses(tmp_path / "r") == pytest.approx(_losses(single), rel=1e-4)


def _losses(folder: Path) -> list[float]:
    return [line[name] for line in outcome(folder)[1] for name in ("loss", "valid") if name in line]


def test_what_two_of_fsdp_have_saved_one_process_goes_on_with(single, home, tmp_path):
    """And one rank that is asked to stop stops all, with a checkpoint."""
    out = tmp_path / "r"
    pair = Pair(*begin(home, out, "train.parallel=fsdp"), folder=tmp_path, home=home)
    wait_for_steps(out, 3)
    os.kill(pair.ranks[1].process.pid, signal.SIGTERM)
    assert pair.wait() == (143, 143)
    assert re.fullmatch(
        rf"harken: {out}: stopped at step \d+ of 18; go on with: torchrun --nproc-per-node 2 -m harken train {out} "
        "--resume",
        "\n".join(line for line in pair.text.splitlines() if line.startswith("harken: ")),
    )
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "train.parallel=fsdp: there is only this process; start it with: torchrun" in child.text
    child = Child("train", out, "train.parallel=none", "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert (
        "1 process (train.parallel=none) instead of 2 processes (train.parallel=fsdp): the run goes on, but not"
        in child.text
    )
    assert _losses(out) == pytest.approx(_losses(single), rel=1e-4)


def test_what_one_process_has_saved_two_of_fsdp_go_on_with(single, home, tmp_path):
    out = tmp_path / "r"
    assert Child(*begin(home, out), folder=tmp_path, die_in=DEAD).wait() == -signal.SIGKILL
    pair = Pair("train", out, "train.parallel=fsdp", "--resume", folder=tmp_path, home=home)
    assert pair.wait() == (0, 0), pair.text
    assert _losses(out) == pytest.approx(_losses(single), rel=1e-4)
    last = [load_file(max(o.glob("checkpoints/step-*")) / "state.safetensors") for o in (out, single)]
    shapes = [{name: (t.shape, t.dtype) for name, t in tensors.items()} for tensors in last]
    assert shapes[0].pop("random:cpu@1") == shapes[1]["random:cpu"]
    assert shapes[0] == shapes[1]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code", "line"),
    [
        (
            ["train.batch=5"],
            2,
            "train.batch: a batch of 5 rows does not split over 2 processes; take a train.batch that",
        ),
        (
            ["train.parallel=none"],
            2,
            "train.parallel=none: 2 processes would train the same model; set train.parallel=",
        ),
        (
            ["train.lr=1e38", "train.grad_clip=0", "train.optimizer=sgd"],
            1,
            r"step \d+ .*not finite, so nothing was updated",
        ),
    ],
)
def test_what_goes_wrong_for_all_is_said_once(home, given, code, line, tmp_path):
    pair = Pair(*begin(home, tmp_path / "r", *given), folder=tmp_path, home=home)
    assert pair.wait() == (code, code), pair.text
    said = re.findall("^harken: (.*)", pair.text, re.M)
    assert len(said) == 1
    assert re.match(line, said[0])


def test_what_goes_wrong_for_the_first_alone_ends_the_others_in_silence(home, tmp_path):
    with run_folder.writing(tmp_path / "r"):
        pair = Pair(*begin(home, tmp_path / "r"), folder=tmp_path, home=home)
        assert pair.wait() == (2, 1)
    assert "another process is training here" in pair.ranks[0].text
    assert "harken: " not in pair.ranks[1].text


def test_a_text_from_stdin_is_not_shared(home, tmp_path):
    pair = Pair("train", "-", folder=tmp_path, home=home)
    assert pair.wait() == (2, 2)
    assert pair.text == "harken: stdin: 2 processes cannot all read it; save the text, and name the file\n"


def test_one_process_alone_is_told_how_several_are_started(home, tmp_path):
    child = Child(*begin(home, tmp_path / "r", "train.parallel=ddp"), folder=tmp_path)
    assert child.wait() == 2
    way = "start it with: torchrun --nproc-per-node 2 -m harken train ...; or set train.parallel=none"
    assert child.text.endswith(f"\nharken: train.parallel=ddp: there is only this process; {way}\n")
    assert not (tmp_path / "r").exists()


def test_a_rank_without_memory_ends_instead_of_leaving_the_others_in_the_middle_of_an_update():
    class Two(parallel.Ranks):
        world = 2

    class Large:
        def state(self) -> dict[str, torch.Tensor]:
            return {}

        def load_state(self, state: dict[str, torch.Tensor]) -> None: ...

        def loss(self, *given: Any) -> None:
            raise torch.OutOfMemoryError

    step = Step(torch.nn.Linear(1, 1), Large(), Train(device="cpu"), listen=silent, ranks=Two())
    rows = torch.zeros(10, 3, dtype=torch.long)
    with pytest.raises(HarkenError, match=r"^out of memory with 5 rows at a time; train again with train\.micro=3$"):
        step(Batch(rows, rows), 0.1)


def test_the_energy_of_all_processes_of_a_machine_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "cores", lambda: 8)
    torch.set_num_threads(3)
    with Meter(processes=2, powercap=tmp_path) as meter:
        assert meter.power() == (60.0, "estimated: 6 cores x 10 W")
