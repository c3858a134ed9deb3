"""Perplexity of a language model without windows and masks, as a check of `harken eval`.

    python benchmarks/blind.py runs/ptb --split test --positions 4000

At random positions of a split the model receives only the preceding words and predicts the next word, so its input
never contains future words. The perplexity must be close to that of `harken eval`.
"""

import argparse
import math

import numpy as np
import torch

import harken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--positions", type=int, default=4000)
    options = parser.parse_args()
    run = harken.load(options.run, device="cpu")
    stream = np.asarray(run.recipe.data.load_data(tokenizer=run.tokenizer).splits[options.split][0].tokens, np.int64)
    L = run.model.context
    positions = np.random.default_rng(0).integers(L, len(stream), options.positions)
    before = torch.from_numpy(np.stack([stream[p - L : p] for p in positions]))
    after = torch.from_numpy(stream[positions])
    total = 0.0
    with torch.inference_mode():
        for x, y in zip(before.split(256), after.split(256), strict=True):
            logits = run.model.logits(run.model(x)[:, -1])
            total += float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
    mean = total / len(positions)
    print(f"{options.split}: loss {mean:.4f}, perplexity {math.exp(mean):.2f}, {len(positions)} positions, context {L}")


if __name__ == "__main__":
    main()
