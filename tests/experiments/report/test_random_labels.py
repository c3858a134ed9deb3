"""Forty trainings on targets that do not depend on their inputs: few of them claim to be better than a baseline."""

import io
from pathlib import Path

import numpy as np
import pytest

import harken
from harken.experiments.report.verdict import run_verdict

WORDS = ["good", "bad", "nice", "poor", "film", "book", "the", "a", "very", "not", "plot", "song"]
N, N_RUNS, MAX_CLAIMS = 200, 40, 4  # 2.5 % of 40 runs is 1; more than 4 appear in 0.3 % of such tests
TINY = {"train.steps": 30, "train.batch": 16, "train.threads": 1, "model.size": "tiny", "data.test": 0.3}


def write_random(folder: Path, seed: int) -> Path:
    """A table of texts with random labels or numbers, a table of sets, or images."""
    rng, kind = np.random.default_rng(seed), seed % 4
    if kind == 3:
        path, file = folder / f"{seed}.npz", io.BytesIO()
        np.savez(file, x=rng.integers(0, 256, (N, 8, 8), np.uint8), y=rng.integers(2, size=N))
        path.write_bytes(file.getvalue())
        return path
    path = folder / f"{seed}.csv"
    if kind == 2:
        targets = rng.integers(2, size=N)
        rows = [(f"c{n}", *rng.normal(size=2).round(3), "ab"[targets[n]]) for n in range(N) for _ in range(3)]
        lines = ["cloud,x,y,label", *(",".join(map(str, row)) for row in rows)]
    else:
        targets = [("neg", "pos")[k] for k in rng.integers(2, size=N)] if kind else rng.normal(size=N).round(3)
        texts = (" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(N))
        lines = ["text,label" if kind else "text,score", *(f"{x},{y}" for x, y in zip(texts, targets, strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_at_most_4_of_40_trainings_on_random_targets_claim_to_be_better(tmp_path):
    verdicts = []
    for seed in range(N_RUNS):
        data = write_random(tmp_path, seed)
        run = harken.train(data, out=tmp_path / f"run-{seed}", settings=TINY | {"train.seed": seed}, quiet=True)
        verdicts.append(run_verdict(run.facts)[0])
    assert all(" on the test split" in verdict and "95 % interval" in verdict for verdict in verdicts), verdicts
    assert sum(", better than the best" in verdict for verdict in verdicts) <= MAX_CLAIMS, verdicts
