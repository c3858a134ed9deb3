"""Embedding speed: harken and sentence-transformers with the weights of all-MiniLM-L6-v2, interleaved.

    python -m harken import minilm --out runs/minilm
    python -m harken export runs/minilm --to hf --out runs/minilm-hf
    python benchmarks/minilm_embedding.py runs/minilm runs/minilm-hf sentences.txt

One sentence per line; the first --sentences distinct lines are embedded, tokenization included. sentence-transformers
gets batches of --batch sentences (its default is 32), which it sorts by length; harken chooses its batches. The ratio
is that of the medians; `same` is the smallest cosine similarity of the two vectors of a sentence. Without
sentence-transformers only harken is measured.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import harken


def sentence_transformer(folder: str, batch: int) -> Callable[[list[str]], Any] | None:
    """Mean pooling and normalization, as in all-MiniLM-L6-v2; None if the library is not installed."""
    try:
        from sentence_transformers import SentenceTransformer, models
    except ImportError:
        return None
    encoder = models.Transformer(folder)
    pooling = models.Pooling(encoder.get_word_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[encoder, pooling, models.Normalize()], device="cpu")
    return lambda texts: model.encode(texts, batch_size=batch, show_progress_bar=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("folder", help="the same weights in the format of transformers")
    parser.add_argument("file", help="text file, one sentence per line")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=["float32", "int8"])
    options = parser.parse_args()
    lines = list(dict.fromkeys(Path(options.file).read_text("utf-8").splitlines()))
    texts = [line for line in lines if line.strip()][: options.sentences]
    turns: dict[str, Callable[[list[str]], Any]] = {}
    for precision in options.precisions:
        turns[f"harken, {precision}"] = harken.load(options.run, device="cpu", precision=precision).embed
    peer = sentence_transformer(options.folder, options.batch)
    if peer is None:
        print(json.dumps({"name": "sentence-transformers", "left_out": "not installed"}))
    else:
        turns["sentence-transformers, float32"] = peer
    rates: dict[str, list[float]] = {name: [] for name in turns}
    vectors = {}
    for n in range(-1, options.rounds):  # one warm-up round
        for name, embed in turns.items():
            start = time.perf_counter()
            vectors[name] = np.asarray(embed(texts))
            if n >= 0:
                rates[name].append(len(texts) / (time.perf_counter() - start))
    last = list(turns)[-1]
    for name, speeds in rates.items():
        same = float((vectors[name] * vectors[last]).sum(-1).min())
        row = {"name": name, "sentences_per_second": round(statistics.median(speeds), 1)}
        row |= {"ratio": round(statistics.median(speeds) / statistics.median(rates[last]), 3)}
        print(json.dumps(row | {"spread": [round(min(speeds), 1), round(max(speeds), 1)], "same": round(same, 6)}))


if __name__ == "__main__":
    main()
