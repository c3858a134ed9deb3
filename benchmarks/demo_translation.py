"""Trains the translator of `harken demo` under several settings and prints BLEU and the lecture's sentence.

    python benchmarks/demo_translation.py tatoeba-fra.tsv --tries base balance=0.5 "balance=0.5 data.vocab_size=2000"
    python benchmarks/demo_translation.py phrases.tsv --steps 600 --seeds 3

Each try is a list of settings; `base` has none. `balance=A` draws training pairs with probability proportional to
f^-A, where f is the number of training pairs with their rarest word (words in fewer than 10 pairs do not count); the
number of pairs stays the same. All tries have the same validation and test pairs. A sentence of the table is right if
one of its translations is the output. The table is also written as JSON (--out).
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAX_WORDS, MIN_PAIRS = 8, 10
SENTENCES = {
    "He drives the car.": ["Il conduit la voiture."],
    "She drives the car.": ["Elle conduit la voiture."],
    "My father drives the car.": ["Mon père conduit la voiture."],
    "He washes the car.": ["Il lave la voiture."],
    "She reads the letter.": ["Elle lit la lettre."],
    "He writes a book.": ["Il écrit un livre."],
    "Tom eats the apple.": ["Tom mange la pomme."],
    "I am a student.": ["Je suis étudiant.", "Je suis étudiante.", "Je suis un étudiant.", "Je suis une étudiante."],
    "I have a red car.": ["J'ai une voiture rouge."],
    "She does not have a dog.": ["Elle n'a pas de chien."],
}


def write_splits(data: Path, folder: Path) -> list[tuple[str, str]]:
    """Write valid.tsv and test.tsv as harken draws them from the file; return the training pairs."""
    from harken.data.pairs.source import PairSource

    loaded = PairSource(path=str(data), max_words=MAX_WORDS, tokenizer="char").load_data()
    held_out = set()
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in loaded.splits.items():
        rows = [(s, t) for s, ts in zip(split.sources, split.references, strict=True) for t in ts]
        (folder / f"{name}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows), "utf-8")
        held_out |= set(split.sources)
    lines = data.read_text("utf-8").splitlines()
    pairs = [(cells[0], cells[1]) for line in lines if len(cells := line.split("\t")) > 1]
    return [p for p in pairs if p[0] not in held_out | {*SENTENCES} and len(p[0].split()) <= MAX_WORDS]


def balanced(pairs: list[tuple[str, str]], exponent: float, max_words: int) -> list[tuple[str, str]]:
    """The pairs of at most max_words words, drawn by the frequency of their rarest word."""
    pairs = [pair for pair in pairs if len(pair[0].split()) <= max_words]
    words = [set(re.findall(r"[\w']+", source.lower())) for source, _ in pairs]
    count = Counter(word for some in words for word in some)
    rarest = [min((count[w] for w in some if count[w] >= MIN_PAIRS), default=len(pairs)) for some in words]
    weights, rng = [f**-exponent for f in rarest], random.Random(0)
    scale = len(pairs) / sum(weights)
    copies = [int(scale * w) + (rng.random() < scale * w % 1) for w in weights]
    return [pair for pair, n in zip(pairs, copies, strict=True) for _ in range(n)]


def train(text: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Train one try with one seed in its own process; return its BLEU and translations."""
    place = folder / "runs" / f"{re.sub(r'[^a-z0-9.]+', '-', text)}-{seed}"
    settings = [word for word in text.split() if "." in word.partition("=")[0]]
    budget = (
        [] if any("train.minutes" in s or "train.steps" in s for s in settings) else [f"train.steps={options.steps}"]
    )
    base = [f"train.seed={seed}", *budget, *options.settings, *settings]
    command = [sys.executable, "-m", "harken", "train", str(folder / _set_name(text)), *base, "--out", str(place)]
    start = time.time()
    env = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run([*command, "--json", "--force"], capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        return {"try": text, "seed": seed, "error": done.stderr[-300:]}
    metrics = json.loads(done.stdout)["metrics"]
    translate = [sys.executable, "-m", "harken", "translate", str(place), *SENTENCES, "--json", "--beam"]
    outputs = {}
    for beam in ("1", "4"):
        answer = subprocess.run([*translate, beam], capture_output=True, text=True, env=env, check=True)
        outputs[beam] = [row["text"] for row in json.loads(answer.stdout)["translations"]]
    return {"try": text, "seed": seed, "metrics": metrics, "outputs": outputs, "seconds": round(time.time() - start)}


def _set_name(text: str) -> str:
    return "set-" + "-".join(word for word in text.split() if word.startswith(("balance=", "words="))).replace("=", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="file of pairs, such as the one that `harken data tatoeba-fra` prints")
    parser.add_argument("settings", nargs="*", help="settings of every try, section.key=value")
    parser.add_argument("--tries", nargs="+", default=["base"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1150, help="about the steps of the demo on two cores")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-translation"))
    options = parser.parse_intermixed_args()
    pairs = write_splits(options.data, options.out / "splits")
    for text in options.tries:
        chosen = dict(word.split("=") for word in text.split() if word.startswith(("balance=", "words=")))
        folder = options.out / _set_name(text)
        folder.mkdir(exist_ok=True)
        rows = balanced(pairs, float(chosen.get("balance", 0)), int(chosen.get("words", MAX_WORDS)))
        (folder / "train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows), "utf-8")
        for split in ("valid", "test"):
            (folder / f"{split}.tsv").write_text((options.out / "splits" / f"{split}.tsv").read_text("utf-8"), "utf-8")
    jobs = [(text, seed) for text in options.tries for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.at_once) as pool:
        rows = list(pool.map(lambda job: train(*job, options, options.out), jobs))
    (options.out / "table.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")
    for row in rows:
        print(f"\n{row['try']}, seed {row['seed']}: {row.get('error') or row['metrics']}, {row.get('seconds')} s")
        for n, (sentence, right) in enumerate(SENTENCES.items() if "outputs" in row else ()):
            texts = [outputs[n] for outputs in row["outputs"].values()]
            marks = " ".join(f"{'right' if text in right else 'WRONG'} {text}" for text in texts)
            print(f"    {sentence:28} {marks}")


if __name__ == "__main__":
    main()
