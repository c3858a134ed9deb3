"""A second way to a language model's perplexity, with no window and no mask to trust.

    python benchmarks/blind.py runs/ptb --split test --places 4000

At random places of a split the model is given only the words before, and asked for the next one: the future is not in
its input at all. What `harken eval` prints must lie near it.
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
    parser.add_argument("--places", type=int, default=4000)
    options = parser.parse_args()
    run = harken.load(options.run, device="cpu")
    stream = np.asarray(run.recipe.data.load_data(tokenizer=run.tokenizer).splits[options.split][0].tokens, np.int64)
    L = run.model.context
    places = np.random.default_rng(0).integers(L, len(stream), options.places)
    before = torch.from_numpy(np.stack([stream[p - L : p] for p in places]))
    after = torch.from_numpy(stream[places])
    total = 0.0
    with torch.inference_mode():
        for x, y in zip(before.split(256), after.split(256), strict=True):
            logits = run.model.logits(run.model(x)[:, -1])
            total += float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
    mean = total / len(places)
    print(f"{options.split}: loss {mean:.4f}, perplexity {math.exp(mean):.2f}, {len(places)} places, {L} before each")


if __name__ == "__main__":
    main()
