"""A package that harken has never heard of brings a model and a data kind: both train, resume, evaluate and write."""

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
# one process for several commands: most of the time of each would be the import of torch
COMMANDS = """
import contextlib, io, json, sys
from harken.cli import main
from harken.experiments import estimate
from harken.experiments.report import sections
estimate.PROBE_SECONDS, sections.SAMPLE_TOKENS = 0.1, 5  # only to save time
said = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["harken", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    said.append(out.getvalue())
print(json.dumps(said))
"""


def genome(path: Path, first: int = 0) -> str:
    """A FASTA file: sequences made of three words, some of them in small letters, over several lines."""
    words = ("ACGTAC", "ttagc", "GGCC")
    with path.open("w") as file:
        for n in range(first, first + 60):
            text = "".join(words[(n * i * i + i // 3) % 3] for i in range(40))
            file.write(f">sequence {n} of a toy\n" + "".join(text[i : i + 50] + "\n" for i in range(0, len(text), 50)))
    return str(path)


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict:
    """A run that is killed, resumed and used, beside one that nobody disturbed: what each command printed."""
    home = tmp_path_factory.mktemp("plugin")
    data, other = genome(home / "dna.fa"), genome(home / "other.fa", 60)
    env = {**os.environ, "PYTHONPATH": str(HERE), "HARKEN_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"}
    train = ["train", data, *SETTINGS, *BUDGET]
    victim = subprocess.Popen([sys.executable, "-m", "harken", *train, "--out", str(home / "run"), "--json"], env=env)
    deadline = time.monotonic() + 120
    while not list((home / "run").glob("checkpoints/step-*")) and victim.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    killed = (victim.wait(), (home / "run" / "harken.json").exists())
    run = str(home / "run")
    commands = {
        "resume": ["train", run, "--resume", "--json"],
        "whole": [*train, "--out", str(home / "whole"), "--json"],
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
    said = dict(zip(commands, json.loads(done.stdout), strict=True))
    return {"home": home, "killed": killed, "stderr": done.stderr, **said}


@pytest.mark.process
def test_a_plug_in_run_that_was_killed_goes_on_to_the_same_weights(story):
    assert story["killed"] == (-signal.SIGKILL, False)
    resumed, whole = json.loads(story["resume"]), json.loads(story["whole"])
    assert (resumed["kind"], resumed["steps"]) == ("cosine", 120)
    assert "starts anew" not in story["stderr"]
    weights = [(story["home"] / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]
    assert resumed["metrics"] == whole["metrics"]


@pytest.mark.process
def test_a_plug_in_model_learns_from_plug_in_data(story):
    found = json.loads(story["whole"])
    assert found["metrics"]["loss"] < found["baseline"]["unigram"]["loss"]


@pytest.mark.process
def test_a_plug_in_run_is_evaluated_on_its_own_and_on_other_data(story):
    assert json.loads(story["eval"])["metrics"] == pytest.approx(json.loads(story["resume"])["metrics"], rel=1e-6)
    assert json.loads(story["other"])["examples"] > json.loads(story["eval"])["examples"]


@pytest.mark.process
def test_a_plug_in_run_writes(story):
    text = json.loads(story["generate"])["text"]
    assert len(text) == 30
    assert set(text) <= set("ACGT\n")


@pytest.mark.process
def test_check_knows_the_settings_of_a_plug_in(story):
    assert "model.layers   2         number of blocks" in story["model"]
    assert 'data.kind       "fasta"' in story["data"]
    assert json.loads(story["check"])["kind"] == "fasta"


def test_the_other_tests_do_not_see_the_plug_in():
    assert "cosine" not in registry.names("model")
    assert "fasta" not in registry.names("data")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), flags=re.S)


def test_the_docs_show_the_whole_plug_in():
    assert (HERE / "harken_toy" / "__init__.py").read_text() in blocks("python")
    points = (HERE / "harken_toy-0.1.dist-info" / "entry_points.txt").read_text()
    shown = "".join(blocks("toml"))
    for group, kind, place in re.findall(r"\[(\S+)\]\n(\S+) = (\S+)", points):
        assert f'[project.entry-points."{group}"]\n{kind} = "{place}"\n' in shown


def test_a_whole_plug_in_is_about_sixty_lines():
    lines = (HERE / "harken_toy" / "__init__.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 60
