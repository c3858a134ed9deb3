"""Real sets for "a sequence in, a sequence out": questions and stories as folders of pairs that `harken train` reads.

    python benchmarks/pairs_sets.py squad shared/data/squad sets/answers     SQuAD JSON; files named dev are the test
    python benchmarks/pairs_sets.py titles ~/.cache/harken/data/reuters/reuters.jsonl sets/titles    as harken data says

A treebank needs no preparing: harken train wsj_sample.mrg.

squad: the source is the question, <sep>, and those sentences of the context that share the rarest words with the
question, up to --words of them, in their order. No answer and no answer's place is looked at; which words are rare is
counted in the contexts that are learned from. The target is the answer that most people gave; all their answers are
references of a held-out question. The questions of a context stand on one side. titles: what is judged was written
after all that is learned from.
"""

import argparse
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HELD = 0.05  # the share of contexts, or of stories, in each held-out part


class Asked(NamedTuple):
    context: str
    question: str
    answers: list[str]


def share(text: str) -> float:
    """A number from 0 to 1 that this text always has."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def write(file: Path, rows: Iterable[tuple[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in rows]
    file.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines):,} pairs, {file.stat().st_size / 1e6:.1f} MB")


def questions(files: Iterable[Path]) -> list[Asked]:
    """All of them in a drawn order, so that the first ones speak for all."""
    found = [
        Asked(" ".join(part["context"].split()), " ".join(asked["question"].split()), answers)
        for file in files
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]
        for part in article["paragraphs"]
        for asked in part["qas"]
        if (answers := [" ".join(answer["text"].split()) for answer in asked["answers"]])
    ]
    return sorted(found, key=lambda asked: share(asked.question + asked.context))


class Reader:
    """Finds the sentences of a context that a question asks about."""

    def __init__(self, contexts: set[str], most: int) -> None:
        self.most, self.contexts = most, len(contexts)
        self.seen = Counter(word for context in contexts for word in words(context))

    def source(self, asked: Asked) -> str:
        sentences, wanted = re.split(r"(?<=[.!?])\s+(?=[^a-z])", asked.context), words(asked.question)

        def alike(n: int) -> float:
            return sum(math.log((1 + self.contexts) / (1 + self.seen[w])) for w in wanted & words(sentences[n]))

        kept: list[int] = []
        for n in sorted(range(len(sentences)), key=alike, reverse=True):
            if not kept or sum(len(sentences[k].split()) for k in (*kept, n)) <= self.most:
                kept.append(n)
        text = " ".join(sentences[n] for n in sorted(kept)).split()[: self.most]
        return f"{asked.question} <sep> {' '.join(text)}"


def squad(given: Path, out: Path, most: int, tested: int) -> None:
    files = sorted(given.glob("*.json"))
    dev = [file for file in files if "dev" in file.name]
    known, test = questions(file for file in files if file not in dev), questions(dev)[:tested]
    train, valid = ([q for q in known if (share(q.context) < HELD) == held] for held in (False, True))
    reader = Reader({asked.context for asked in train}, most)
    write(out / "train.jsonl", ((reader.source(q), Counter(q.answers).most_common(1)[0][0]) for q in train))
    for name, held in (("valid", valid), ("test", test)):
        sources = [reader.source(asked) for asked in held]
        rows = [(s, a) for s, q in zip(sources, held, strict=True) for a, _ in Counter(q.answers).most_common()]
        write(out / f"{name}.jsonl", rows)
        holds = sum(any(a in source for a in q.answers) for source, q in zip(sources, held, strict=True))
        print(f"  {len(held):,} questions; of {holds / len(held):.1%} the source holds an answer")


def titles(given: Path, out: Path) -> None:
    stories = [json.loads(line) for line in given.read_text(encoding="utf-8").splitlines()]
    rows = [(story["body"], story["title"]) for story in stories]
    cuts = [round(len(rows) * (1 - n * HELD)) for n in (2, 1)]
    parts = {"train": rows[: cuts[0]], "valid": rows[cuts[0] : cuts[1]], "test": rows[cuts[1] :]}
    for name, part in parts.items():
        write(out / f"{name}.jsonl", part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["squad", "titles"])
    parser.add_argument(
        "given", type=Path, help="squad: a folder with SQuAD JSON; titles: the file of `harken data reuters`"
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=int, default=40, help="squad: most words of a context that are kept")
    parser.add_argument("--test", type=int, default=2000, help="squad: questions of the test")
    options = parser.parse_args()
    if options.what == "squad":
        squad(options.given, options.out, options.words, options.test)
    else:
        titles(options.given, options.out)


if __name__ == "__main__":
    main()
