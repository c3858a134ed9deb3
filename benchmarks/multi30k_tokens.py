"""Convert Multi30k to lower-cased Moses tokens on both sides, as for its published scores.

    pip install sacremoses
    python benchmarks/multi30k_tokens.py multi30k/ multi30k-tok/

Every file is lower-cased, its punctuation is normalized, and it is split into tokens. Evaluate a run on these files
with task.bleu_tokenizer=none, because its words are already tokens.
"""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with files *.en, *.de, *.fr")
    parser.add_argument("target", type=Path, help="folder to write")
    options = parser.parse_args()
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    options.target.mkdir(parents=True, exist_ok=True)
    for path in sorted(p for p in options.source.iterdir() if p.suffix in (".en", ".de", ".fr")):
        language = path.suffix[1:]
        normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
        lines = (normalizer.normalize(line.lower()) for line in path.read_text("utf-8").rstrip("\n").split("\n"))
        tokenized = (tokenizer.tokenize(line, return_str=True, escape=False) for line in lines)
        (options.target / path.name).write_text("".join(f"{line}\n" for line in tokenized), "utf-8")


if __name__ == "__main__":
    main()
