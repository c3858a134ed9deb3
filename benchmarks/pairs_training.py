"""Training speed on sentence pairs: harken and a plain loop around torch.nn.Transformer of the same size, interleaved.

    python benchmarks/pairs_training.py pairs.tsv                                     the recipe for these pairs
    python benchmarks/pairs_training.py random:30 model.size=base task.packed=true train.batch=400 data.vocab_size=32000

random:N generates 20,000 pairs with a mean length of N words from a vocabulary of 32,000; random:=N gives all pairs
exactly N words, so that there is no padding.

The plain loop is that of a tutorial: shuffled batches padded to their longest pair, two embeddings, nn.Transformer, a
linear layer, cross entropy, AdamW; compiled on a GPU, in bfloat16 if harken is. Both train in turns of --steps steps.
The speed is target tokens without padding per second; the ratio is the ratio of medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import machine
from harken import recipe as recipes
from harken.data.batch import IGNORE
from harken.data.pairs.batch import PairBatch, collate_pairs
from harken.experiments.choose import choose
from harken.experiments.train import prepare


class Plain(nn.Module):
    """nn.Transformer between two embeddings and a linear layer."""

    def __init__(self, vocab: tuple[int, int], shape, max_length: int, dropout: float) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(n, shape.d) for n in vocab)
        self.position = nn.Embedding(max_length + 2, shape.d)
        sizes = {"num_encoder_layers": shape.layers, "num_decoder_layers": shape.layers}
        options = {
            "dim_feedforward": shape.d_ff or 4 * shape.d,
            "dropout": dropout,
            "batch_first": True,
            "norm_first": True,
        }
        self.core = nn.Transformer(shape.d, shape.heads, **sizes, **options)
        self.head = nn.Linear(shape.d, vocab[1])

    def forward(self, batch: PairBatch) -> Tensor:
        source, target = (
            words(x) + self.position(torch.arange(x.shape[1], device=x.device))
            for words, x in ((self.source, batch.source), (self.target, batch.tokens))
        )
        is_padding = torch.arange(batch.source.shape[1], device=source.device) >= batch.lengths[:, None]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=source.device, dtype=torch.bool)
        padding = {"src_key_padding_mask": is_padding, "memory_key_padding_mask": is_padding}
        return self.head(self.core(source, target, tgt_mask=mask, tgt_is_causal=True, **padding))


def plain_loop(trainer, opened, recipe, dropout: float, dynamic: bool) -> Callable[[int], int]:
    """Return turns of the plain loop: number of steps -> number of target tokens without padding."""
    device, rng = trainer.device, np.random.default_rng(0)
    rows = max(1, round(len(opened.train) / trainer.task.steps))
    model = Plain(opened.vocab, recipe.model, recipe.data.max_length, dropout).to(device)
    call = torch.compile(model, dynamic=dynamic) if device.type == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    pairs = opened.train

    def turn(steps: int) -> int:
        count = 0
        for _ in range(steps):
            picks = rng.choice(len(pairs), rows, replace=False)
            batch = collate_pairs(pairs, picks, [side.gather(picks) for side in (pairs.source, pairs.target)]).to(
                device
            )
            with torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext():
                scores = call(batch)
            loss = F.cross_entropy(scores.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE,
                                   label_smoothing=recipe.task.label_smoothing)  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            count += batch.n_targets
        return count

    return turn


def ours(trainer) -> Callable[[int], int]:
    def turn(steps: int) -> int:
        count = 0
        for _ in range(steps):
            epoch, step = divmod(trainer.step, trainer.task.steps)
            count += trainer.task.batch(epoch, step).n_targets
            trainer.update(10**9, read=False)
        return count

    return turn


def random_pairs(spec: str, folder: str) -> str:
    """Write a file of random pairs with correlated lengths; return its path."""
    rng, equal_lengths = np.random.default_rng(0), spec.startswith("=")
    mean = int(spec.removeprefix("="))
    source = rng.normal(mean, 0 if equal_lengths else mean / 3, 20_000)
    target = source + rng.normal(0, 0 if equal_lengths else mean / 10, 20_000)
    path = Path(folder, "pairs.tsv")
    with path.open("w") as file:
        for lengths in zip(source, target, strict=True):
            sides = (" ".join(f"w{n}" for n in rng.integers(32_000, size=max(1, round(length)))) for length in lengths)
            print(*sides, sep="\t", file=file)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("settings", nargs="*")
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="dropout of the plain loop; the default of nn.Transformer is 0.1"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_intermixed_args()
    dynamic = not options.data.startswith(
        "random:="
    )  # with varying batch shapes the plain loop is compiled for dynamic shapes
    if options.data.startswith("random:"):
        options.data = random_pairs(options.data.removeprefix("random:"), tempfile.mkdtemp())
        options.settings += ["data.tokenizer=word"]
    recipe = choose(options.data, dict(map(recipes.parse_override, options.settings))).recipe
    opened, trainer = prepare(recipe, lambda *_, **__: None)
    turns = {"harken": ours(trainer), "nn.Transformer": plain_loop(trainer, opened, recipe, options.dropout, dynamic)}
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for n in range(options.rounds + 1):  # the first is a warm-up: kernels are selected, code is compiled
        for name, turn in turns.items():
            machine.synchronize(trainer.device)
            start = time.perf_counter()
            count = turn(options.steps)
            machine.synchronize(trainer.device)
            if n:
                rates[name].append(count / (time.perf_counter() - start))
    for name, speeds in rates.items():
        median = statistics.median(speeds)
        row = {"name": name, "tokens_per_second": round(median), "spread": [round(min(speeds)), round(max(speeds))]}
        row["ratio"] = round(median / statistics.median(rates["nn.Transformer"]), 3)
        print(json.dumps(row | {"padding": round(trainer.task.batches.padding, 4), "rounds": options.rounds}))


if __name__ == "__main__":
    main()
