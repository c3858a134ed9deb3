"""Accuracy of a ViT on Fashion-MNIST after a few minutes, on two cores or on a GPU.

    python benchmarks/images.py FOLDER                  idx files as published; 5 minutes on a CPU, 10 on a GPU
    python benchmarks/images.py FOLDER --minutes 2 --seed 1

Prints the accuracy on the test split, the baselines and the number of epochs. The size for a CPU was selected on the
validation split (docs/log.md); the settings for a GPU were not tuned.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import harken

CPU: dict[str, Any] = {"task.flip": True}  # otherwise the recipe `images`
GPU: dict[str, Any] = {
    "model.d": 256,
    "model.heads": 4,
    "model.layers": 8,
    "model.stem": "conv",
    "model.pool": "mean",
    "model.patch": 4,
    "model.dropout": 0.1,
    "task.flip": True,
    "task.shift": 0.08,
    "task.zoom": 0.1,
    "task.erase": 0.25,
    "task.cutmix": 1.0,
    "task.mixup": 0.2,
    "task.label_smoothing": 0.1,
    "train.batch": 512,
    "train.optimizer": "muon",
    "train.lr": 1e-2,
    "train.weight_decay": 0.1,
    "train.average": "ema",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    minutes = options.minutes or (10.0 if gpu else 5.0)
    settings = {**(GPU if gpu else CPU), "train.seed": options.seed}
    with tempfile.TemporaryDirectory() as home:
        run = harken.train(options.folder, out=Path(home) / "run", minutes=minutes, settings=settings)
        n_images = run.facts["steps"] * run.recipe.train.batch
        row = {
            "accuracy": run.metrics["test"]["accuracy"],
            "valid": run.metrics["valid"]["accuracy"],
            "baselines": {name: baseline["accuracy"] for name, baseline in run.facts["baseline"]["test"].items()},
            "weights": run.parameters,
            "steps": run.facts["steps"],
            "epochs": round(n_images / run.facts["data"]["images"]["train"], 2),
            "seconds": round(run.facts["seconds"]),
            "machine": run.facts["machine"],
        }
        print(json.dumps(row, indent=1, default=str))


if __name__ == "__main__":
    main()
