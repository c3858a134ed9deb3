"""Multi30k as its published scores count it: lower-cased Moses tokens on both sides.

    pip install sacremoses
    python benchmarks/multi30k_tokens.py multi30k/ multi30k-tok/

Punctuation is made even, then every file is lower-cased and split into tokens. A run on the result is judged with
task.bleu_tokenizer=none, since its words are tokens already.
"""

import sys
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(p for p in source.iterdir() if p.suffix in (".en", ".de", ".fr")):
        language = path.suffix[1:]
        even, split = MosesPunctNormalizer(language), MosesTokenizer(language)
        lines = path.read_text("utf-8").rstrip("\n").split("\n")
        tokenized = (split.tokenize(even.normalize(line.lower()), return_str=True, escape=False) for line in lines)
        (target / path.name).write_text("".join(f"{line}\n" for line in tokenized), "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
