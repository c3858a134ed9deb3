"""Does the vector of a word in its context show its sense? Ten words with two or three senses each.

For each sentence, the nearest other sentence with the same word (leave one out, cosine) should have the same sense. The
sentences are in word_senses.toml. The layer is fixed beforehand: 4 of the 6 layers of MiniLM. The first layers still
resemble the word itself, whatever its sense; the last ones are trained so that their mean is the meaning of the whole
sentence. All layers are printed for comparison.

    harken import minilm
    python benchmarks/word_senses.py runs/minilm --layer 4
"""

import argparse
import tomllib
from pathlib import Path

import numpy as np

import harken

SENTENCES = Path(__file__).with_suffix(".toml")


def same_sense(vectors: np.ndarray, senses: list[str]) -> list[bool]:
    """Whether the nearest other vector has the same sense, for each vector."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    return [senses[nearest] == sense for nearest, sense in zip(cosines.argmax(1), senses, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a BERT, such as runs/minilm")
    parser.add_argument("--layer", type=int, default=4, help="of the word's vector (default: 4)")
    arguments = parser.parse_args()
    run = harken.load(arguments.run)
    layers = range(len(run.backbone.transformer_blocks) + 1)
    correct: dict[str, list[bool]] = {name: [] for name in ("random", "sentence", *(f"layer {n}" for n in layers))}
    rng = np.random.default_rng(0)
    print(f"{'word':<8} {'senses':>6} {'sentences':>9}   same sense at layer {arguments.layer}")
    for word, by_sense in tomllib.loads(SENTENCES.read_text("utf-8")).items():
        rows = [(sense, text) for sense, texts in by_sense.items() for text in texts]
        senses, texts = [sense for sense, _ in rows], [text for _, text in rows]
        correct["random"] += same_sense(rng.standard_normal((len(rows), 384)), senses)
        correct["sentence"] += same_sense(run.embed(texts), senses)
        for n in layers:
            correct[f"layer {n}"] += same_sense(run.embed(texts, word=word, layer=n), senses)
        found = correct[f"layer {arguments.layer}"][-len(rows) :]
        print(f"{word:<8} {len(by_sense):>6} {len(rows):>9}   {sum(found)} of {len(found)}")
    found = correct[f"layer {arguments.layer}"]
    print(f"\nlayer {arguments.layer}: {sum(found)} of {len(found)} have the same sense: {np.mean(found):.3f}")
    print("for comparison: " + ", ".join(f"{name} {np.mean(found):.3f}" for name, found in correct.items()))


if __name__ == "__main__":
    main()
