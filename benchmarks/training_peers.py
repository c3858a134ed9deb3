"""Training speed of the default recipes beside a plain PyTorch loop (plain_training.py) of the same shape, interleaved.

    python benchmarks/training_peers.py char shakespeare.txt
    python benchmarks/training_peers.py translate tatoeba-fra data.max_words=8        the demo
    python benchmarks/training_peers.py images fashion-mnist --seconds 120

The loop runs in a process of its own, on the same tokens or pixels, with as many threads, in float32, with AdamW and
Muon of PyTorch and its own code for the batches; sentence pairs are sorted by length in both. The recipe and the loop
train in turns; a turn includes making the batches, clipping the gradient and the schedule of the learning rate. The
speed is targets per second: tokens without padding, or images. A ratio is that of the medians, its spread the lowest
and the highest ratio of a round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from harken import machine, run_folder
from harken import recipe as recipes
from harken.experiments.choose import choose
from harken.experiments.train import prepare
from harken.models import LanguageModel

STEPS = 10_000  # of the schedule of the learning rate
DATA = {"char": "shakespeare", "translate": "tatoeba-fra", "images": "fashion-mnist"}
OPTIMIZERS = {"char": ("adamw", "muon"), "translate": ("adamw", "muon"), "images": ("adamw",)}
PLAIN = Path(__file__).with_name("plain_training.py")


class Turn(NamedTuple):
    targets: int
    steps: int
    seconds: float


class Harken:
    """The steps of `harken train`."""

    def __init__(self, recipe: Any, dataset: Any = None) -> None:
        self.recipe = recipe
        self.dataset, self.trainer = prepare(recipe, lambda *_, **__: None, dataset=dataset)
        self.trainer.model.train()

    def turn(self, seconds: float) -> Turn:
        start, targets, steps = time.perf_counter(), 0, 0
        while time.perf_counter() - start < seconds:
            self.trainer.update(STEPS, read=steps % 10 == 0)
            targets, steps = targets + self.trainer.update_step.n_targets, steps + 1
        return Turn(targets, steps, time.perf_counter() - start)

    def parameters(self) -> int:
        """Number of parameters without the padding of the vocabulary."""
        model = self.trainer.model
        rows = len(model.embed.weight) - model.vocab if isinstance(model, LanguageModel) else 0
        return run_folder.count_parameters(model) - rows * self.recipe.model.d


class Plain:
    """The plain loop with one optimizer; one process has the loops of all optimizers."""

    def __init__(self, process: "subprocess.Popen[str]", optimizer: str, parameters: int) -> None:
        self.process, self.optimizer, self.expected = process, optimizer, parameters

    def turn(self, seconds: float) -> Turn:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(self.optimizer, seconds, file=self.process.stdin, flush=True)
        words = self.process.stdout.readline().split()
        if words[0] == "parameters":
            if int(words[1]) != self.expected:
                raise SystemExit(f"the plain loop has {words[1]} parameters, the recipe {self.expected}")
            words = self.process.stdout.readline().split()
        return Turn(int(words[0]), int(words[1]), float(words[2]))


def config(name: str, models: Mapping[str, Harken]) -> dict[str, Any]:
    """The shape and the training settings of the plain loop."""
    first = next(iter(models.values()))
    recipe, dataset, m = first.recipe, first.dataset, first.recipe.model
    if m.dropout or m.d_ff not in (None, 4 * m.d) or recipe.task.model_dump().get("zoom"):
        raise SystemExit("the plain loop has the settings of the default recipes: no dropout, d_ff = 4 d, no zoom")
    values = {"recipe": name, "steps": STEPS, "threads": torch.get_num_threads(), "batch": recipe.train.batch}
    values |= {"d": m.d, "heads": m.heads, "layers": m.layers, "d_ff": 4 * m.d, "eps": m.eps}
    values |= {"lr": {key: h.recipe.train.lr for key, h in models.items()}, "betas": recipe.train.betas}
    values |= {"weight_decay": recipe.train.weight_decay, "grad_clip": recipe.train.grad_clip}
    values |= {"label_smoothing": recipe.task.label_smoothing, "encoder_layers": 0}
    if name == "images":
        stem, size = first.trainer.model.body, dataset.vocab.image_size
        widths = [layer.in_channels for layer in stem.embed if isinstance(layer, torch.nn.Conv2d)]
        processor = dataset.processor
        return values | {"widths": widths, "border": stem.border, "n_patches": m.n_tokens(size), "vocab": 10,
                         "mean": processor.mean, "std": processor.std,
                         "shift": round(recipe.task.shift * size)}  # fmt: skip
    values |= {"vocab": first.trainer.model.vocab, "context": m.context}
    return values | ({"encoder_layers": m.encoder_layers or m.layers} if name == "translate" else {})


def arrays(name: str, dataset: Any) -> dict[str, Any]:
    """The training data of the plain loop."""
    if name == "images":
        return {"pixels": dataset.train.pixels.numpy(), "labels": dataset.train.targets}
    if name == "char":
        return {"stream": np.asarray(dataset.train[0].tokens)}
    everything = np.arange(len(dataset.train.source.lengths))
    sides = {side: getattr(dataset.train, side).gather(everything) for side in ("source", "target")}
    return {f"{side}_ids": ids.astype(np.int64) for side, (ids, _) in sides.items()} | {
        f"{side}_ends": np.cumsum(lengths) for side, (_, lengths) in sides.items()
    }


def report(speeds: Mapping[str, list[float]], steps: Mapping[str, int], unit: str) -> None:
    """A line for each loop: median, lowest and highest speed, and the ratio to each plain loop."""
    for name, rounds in speeds.items():
        ratios = dict[str, tuple[float, float, float]]()
        for peer in (key for key in speeds if key.startswith("plain") and key != name):
            by_round = [a / b for a, b in zip(rounds, speeds[peer], strict=True)]
            values = median(rounds) / median(speeds[peer]), min(by_round), max(by_round)
            ratios[peer] = tuple(round(value, 3) for value in values)
        row = {"name": name, "unit": unit, "per_second": round(median(rounds))}
        row |= {"spread": [round(min(rounds)), round(max(rounds))], "ratio, lowest, highest": ratios}
        print(json.dumps(row | {"rounds": len(rounds), "steps": steps[name]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=DATA)
    parser.add_argument("data", nargs="?", help="a path or a name of the catalogue")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seconds", type=float, default=80.0, help="of all turns together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimizer", help="only this one")
    options = parser.parse_intermixed_args()
    overrides = {"train.precision": "float32", **dict(map(recipes.parse_override, options.settings))}
    models = dict[str, Harken]()
    for key in [options.optimizer] if options.optimizer else OPTIMIZERS[options.recipe]:
        data = options.data or DATA[options.recipe]
        recipe = choose(data, overrides).recipe
        if recipe.train.optimizer != key:
            recipe = choose(data, overrides | {"train.optimizer": key}).recipe
        models[key] = Harken(recipe, next(iter(models.values())).dataset if models else None)
    first = next(iter(models.values()))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config(options.recipe, models)))
        np.savez(Path(folder, "data.npz"), **arrays(options.recipe, first.dataset))
        command = [sys.executable, str(PLAIN), folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            turns: dict[str, Harken | Plain] = {}
            for key, ours in models.items():
                turns[f"plain loop, {key}"] = Plain(process, key, ours.parameters())
                turns[f"harken, {key}"] = ours
            speeds: dict[str, list[float]] = {name: [] for name in turns}
            steps = dict.fromkeys(turns, 0)
            for n in range(options.rounds + 1):  # the first is a warm-up
                seconds = options.seconds / len(turns) / options.rounds
                for name, loop in turns.items():
                    turn = loop.turn(seconds if n else min(seconds, 2.0))
                    if n:
                        speeds[name].append(turn.targets / turn.seconds)
                        steps[name] += turn.steps
            assert process.stdin is not None
            process.stdin.close()
    report(speeds, steps, "images" if options.recipe == "images" else "tokens")
    print(json.dumps({"threads": torch.get_num_threads(), **machine.describe()}))


if __name__ == "__main__":
    main()
