"""A training on pairs that was left in the middle goes on as if nothing had happened: the same weights, bit for bit."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import harken
from harken import run_folder

SETTINGS = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.dropout": 0.1, "data.vocab_size": 300}
SETTINGS |= {"train.steps": 7, "train.batch": 8, "train.eval_every": 3, "train.checkpoint_every": 2, "train.threads": 1}
SETTINGS |= {"task.eval_pairs": 5, "data.examples": 40}  # several epochs


class Died(Exception):
    """What stands in for a kill: nothing is tidied up."""


def outcome(folder: Path) -> dict[str, Any]:
    """What a run ends with: its weights, its last state, and all that was logged but the time it took."""
    last = max((folder / "checkpoints").glob("step-*"))
    log = [{key: x for key, x in line.items() if key != "tokens_per_second"} for line in run_folder.read_log(folder)]
    return {
        "weights": run_folder.sha256(folder / "model.safetensors"),
        "state": run_folder.sha256(last / "state.safetensors"),
        "log": log,
    }


@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["", "split anew in each epoch"])
def test_a_training_on_pairs_that_died_ends_as_if_it_had_not(pair_file, tmp_path, dropout):
    settings, begun = {**SETTINGS, "data.bpe_dropout": dropout}, []

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == 5:
            raise Died

    harken.train(pair_file, out=tmp_path / "whole", settings=settings)
    with suppress(Died):
        harken.train(pair_file, out=tmp_path / "broken", settings=settings, listen=die)
    harken.train(
        tmp_path / "broken",
        resume=True,
        listen=lambda event, **facts: begun.append(facts["step"]) if event == "begin" else None,
    )
    assert begun == [4]
    whole = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "broken") == whole
    assert max(line["epoch"] for line in whole["log"]) >= 1
