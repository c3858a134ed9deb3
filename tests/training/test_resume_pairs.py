"""An interrupted training on pairs resumes bitwise."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import harken
from harken import run_folder
from harken.files import sha256_of

SETTINGS = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.dropout": 0.1, "data.vocab_size": 300}
SETTINGS |= {"train.steps": 7, "train.batch": 8, "train.eval_every": 3, "train.checkpoint_every": 2, "train.threads": 1}
SETTINGS |= {"task.eval_pairs": 5, "data.examples": 40}  # several epochs


class Killed(Exception):
    """Simulates a kill: no cleanup runs."""


def outcome(folder: Path) -> dict[str, Any]:
    """Hashes of the weights and of the last state, and the log without times."""
    last = max((folder / "checkpoints").glob("step-*"))
    log = [{key: x for key, x in line.items() if key != "tokens_per_second"} for line in run_folder.read_log(folder)]
    return {
        "weights": sha256_of(folder / "model.safetensors"),
        "state": sha256_of(last / "state.safetensors"),
        "log": log,
    }


@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["", "resampled in each epoch"])
def test_an_interrupted_training_on_pairs_equals_an_uninterrupted_one(pair_file, tmp_path, dropout):
    settings, steps = {**SETTINGS, "data.bpe_dropout": dropout}, []

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == 5:
            raise Killed

    harken.train(pair_file, out=tmp_path / "uninterrupted", settings=settings)
    with suppress(Killed):
        harken.train(pair_file, out=tmp_path / "broken", settings=settings, listen=die)
    harken.train(
        tmp_path / "broken",
        resume=True,
        listen=lambda event, **facts: steps.append(facts["step"]) if event == "start" else None,
    )
    assert steps == [4]
    uninterrupted = outcome(tmp_path / "uninterrupted")
    assert outcome(tmp_path / "broken") == uninterrupted
    assert max(line["epoch"] for line in uninterrupted["log"]) >= 1
