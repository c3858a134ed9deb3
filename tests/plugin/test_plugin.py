"""An external package adds a model and a data kind: both train, resume, evaluate and generate."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harken import registry

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "plugins.md"
SETTINGS = ("data.kind=fasta", "model.kind=cosine", "model.d=16", "model.layers=1", "model.context=16")
BUDGET = ("train.steps=120", "train.batch=4", "train.eval_every=60", "train.checkpoint_every=10")
# one process for several commands, to import torch once
COMMANDS = """
import contextlib, io, json, sys
from harken.cli import main
from harken.experiments import estimate
from harken.experiments.report import sections
estimate.PROBE_SECONDS, sections.SAMPLE_TOKENS = 0.1, 5  # only to save time
outputs = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["harken", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    outputs.append(out.getvalue())
print(json.dumps(outputs))
"""


def genome(path: Path, first: int = 0) -> str:
    """A FASTA file: sequences of three words, one of them in lower case, over several lines."""
    words = ("ACGTAC", "ttagc", "GGCC")
    with path.open("w") as file:
        for n in range(first, first + 60):
            text = "".join(words[(n * i * i + i // 3) % 3] for i in range(40))
            file.write(f">sequence {n} of a toy\n" + "".join(text[i : i + 50] + "\n" for i in range(0, len(text), 50)))
    return str(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    """Outputs of the commands on a run that was killed and resumed, and on an uninterrupted one."""
    home = tmp_path_factory.mktemp("plugin")
    data, other = genome(home / "dna.fa"), genome(home / "other.fa", 60)
    env = {**os.environ, "PYTHONPATH": str(HERE), "HARKEN_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"}
    train = ["train", data, *SETTINGS, *BUDGET]
    process = subprocess.Popen([sys.executable, "-m", "harken", *train, "--out", str(home / "run"), "--json"], env=env)
    deadline = time.monotonic() + 120
    while (
        not list((home / "run").glob("checkpoints/step-*")) and process.poll() is None and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    killed = (process.wait(), (home / "run" / "harken.json").exists())
    run = str(home / "run")
    commands = {
        "resume": ["train", run, "--resume", "--json"],
        "uninterrupted": [*train, "--out", str(home / "uninterrupted"), "--json"],
        "eval": ["eval", run, "--json"],
        "other": ["eval", run, other, "--json"],
        "generate": ["generate", run, "ACG", "--tokens", "30", "--json"],
        "check": ["check", data, *SETTINGS, *BUDGET, "--json"],
        "model": ["check", "--settings", "cosine"],
        "data": ["check", "--settings", "fasta"],
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(list(commands.values()))], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outputs = dict(zip(commands, json.loads(done.stdout), strict=True))
    return {"home": home, "killed": killed, "stderr": done.stderr, **outputs}


@pytest.mark.process
def test_a_killed_plug_in_run_resumes_bitwise(results):
    assert results["killed"] == (-signal.SIGKILL, False)
    resumed, uninterrupted = json.loads(results["resume"]), json.loads(results["uninterrupted"])
    assert (resumed["kind"], resumed["steps"]) == ("cosine", 120)
    assert "starts from step 0" not in results["stderr"]
    weights = [(results["home"] / name / "model.safetensors").read_bytes() for name in ("run", "uninterrupted")]
    assert weights[0] == weights[1]
    assert resumed["metrics"] == uninterrupted["metrics"]


@pytest.mark.process
def test_a_plug_in_model_learns_from_plug_in_data(results):
    output = json.loads(results["uninterrupted"])
    assert output["metrics"]["loss"] < output["baseline"]["unigram"]["loss"]


@pytest.mark.process
def test_a_plug_in_run_is_evaluated_on_its_own_and_on_other_data(results):
    assert json.loads(results["eval"])["metrics"] == pytest.approx(json.loads(results["resume"])["metrics"], rel=1e-6)
    assert json.loads(results["other"])["examples"] > json.loads(results["eval"])["examples"]


@pytest.mark.process
def test_a_plug_in_run_generates_text(results):
    text = json.loads(results["generate"])["text"]
    assert len(text) == 30
    assert set(text) <= set("ACGT\n")


@pytest.mark.process
def test_check_lists_the_settings_of_a_plug_in(results):
    assert "model.layers   2         number of blocks" in results["model"]
    assert 'data.kind        "fasta"' in results["data"]
    assert json.loads(results["check"])["kind"] == "fasta"


def test_the_other_tests_do_not_see_the_plug_in():
    assert "cosine" not in registry.kind_names("model")
    assert "fasta" not in registry.kind_names("data")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), flags=re.S)


def test_the_docs_show_the_complete_plug_in():
    assert (HERE / "harken_toy" / "__init__.py").read_text() in blocks("python")
    points = (HERE / "harken_toy-0.1.dist-info" / "entry_points.txt").read_text()
    shown = "".join(blocks("toml"))
    for group, kind, place in re.findall(r"\[(\S+)\]\n(\S+) = (\S+)", points):
        assert f'[project.entry-points."{group}"]\n{kind} = "{place}"\n' in shown


def test_a_complete_plug_in_has_at_most_sixty_lines():
    lines = (HERE / "harken_toy" / "__init__.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 60
