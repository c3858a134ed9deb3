"""Accuracy of captions for unseen combinations of objects: scenes of shapes, collages of photographs.

    python benchmarks/captions.py                        both data sets, on the GPU if there is one
    python benchmarks/captions.py --only scenes --minutes 3
    python benchmarks/captions.py --photos FOLDER        Fashion-MNIST as idx files; default: from the catalogue

Prints the exact match on the test split, whose combinations do not occur in training, and the baselines. The weights
are selected on the validation split, whose combinations occur in training.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import collages
import harken
from harken.data import catalogue
from harken.data.images import files as image_files
from harken.data.synthetic.digits import CLOTHES
from harken.recipe import parse_override

CPU: dict[str, Any] = {"model.d": 64, "model.layers": 2, "model.decoder_layers": 1}
GPU: dict[str, Any] = {"train.batch": 256}
EACH: dict[str, Any] = {"train.optimizer": "muon", "train.lr": 1e-2, "task.metric": "exact_match", "task.eval_pairs": 0}


def photos(folder: str | None, home: Path) -> Path:
    """Generate the collages; return their folder."""
    path = Path(folder) if folder else catalogue.fetch("fashion-mnist").path
    paths = image_files.readable_paths(sorted(path.iterdir())) if path.is_dir() else [path]
    album = image_files.ImageCollection.concat([image_files.ImageReader(names=CLOTHES).read(p) for p in paths])
    assert album.pixels is not None
    return collages.write_files(home / "collages", collages.collages(album.pixels[:, 0].numpy(), album.labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["scenes", "collages"])
    parser.add_argument("--photos", metavar="FOLDER")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    minutes = options.minutes or (3.0 if gpu else 5.0)
    settings = {
        **(GPU if gpu else CPU),
        **EACH,
        "train.seed": options.seed,
        **dict(map(parse_override, options.settings)),
    }
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for what in [options.only] if options.only else ["scenes", "collages"]:
            data = "scenes" if what == "scenes" else photos(options.photos, home)
            run = harken.train(data, out=home / f"run-{what}", minutes=minutes, settings=settings)
            row = {
                "set": what,
                "exact_match": run.metrics["test"]["exact_match"],
                "valid": run.metrics["valid"]["exact_match"],
                "bleu": run.metrics["test"].get("bleu"),
                "parts": run.facts["parts"].get("test"),
                "baselines": {
                    name: baseline["exact_match"] for name, baseline in run.facts["baseline"]["test"].items()
                },
                "weights": run.parameters,
                "steps": run.facts["steps"],
                "seconds": round(run.facts["seconds"]),
                "machine": run.facts["machine"],
            }
            print(json.dumps(row, indent=1, default=str), flush=True)


if __name__ == "__main__":
    main()
