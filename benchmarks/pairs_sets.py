"""Convert SQuAD questions and news stories to folders of sequence pairs that `harken train` reads.

    python benchmarks/pairs_sets.py squad shared/data/squad sets/answers     *dev*.json is the test split
    python benchmarks/pairs_sets.py titles ~/.cache/harken/data/reuters/reuters.jsonl sets/titles

A treebank needs no conversion: harken train wsj_sample.mrg.

squad: the source is the question, <sep>, and the sentences of the context that share the rarest words with the
question, in their order, up to --words words. Answers and their positions are not used; word frequencies come from the
training contexts. The target is the most frequent answer; all answers are references of a held-out question. All
questions of a context are in one split. titles: the held-out stories are newer than all training stories.
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

HELD_OUT = 0.05  # fraction of contexts, or of stories, in each held-out split


class Question(NamedTuple):
    context: str
    question: str
    answers: list[str]


def hash_fraction(text: str) -> float:
    """Map a text to a deterministic number from 0 to 1."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def write(file: Path, rows: Iterable[tuple[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in rows]
    file.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines):,} pairs, {file.stat().st_size / 1e6:.1f} MB")


def questions(files: Iterable[Path]) -> list[Question]:
    """Return all questions in a random but fixed order, so that the first ones are a sample of all."""
    rows = [
        Question(" ".join(part["context"].split()), " ".join(question["question"].split()), answers)
        for file in files
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]
        for part in article["paragraphs"]
        for question in part["qas"]
        if (answers := [" ".join(answer["text"].split()) for answer in question["answers"]])
    ]
    return sorted(rows, key=lambda question: hash_fraction(question.question + question.context))


class Reader:
    """Selects the sentences of a context that are similar to a question."""

    def __init__(self, contexts: set[str], max_words: int) -> None:
        self.max_words, self.contexts = max_words, len(contexts)
        self.seen = Counter(word for context in contexts for word in words(context))

    def source(self, question: Question) -> str:
        sentences, question_words = re.split(r"(?<=[.!?])\s+(?=[^a-z])", question.context), words(question.question)

        def similarity(n: int) -> float:
            return sum(math.log((1 + self.contexts) / (1 + self.seen[w])) for w in question_words & words(sentences[n]))

        selected: list[int] = []
        for n in sorted(range(len(sentences)), key=similarity, reverse=True):
            if not selected or sum(len(sentences[k].split()) for k in (*selected, n)) <= self.max_words:
                selected.append(n)
        text = " ".join(sentences[n] for n in sorted(selected)).split()[: self.max_words]
        return f"{question.question} <sep> {' '.join(text)}"


def squad(path: Path, out: Path, max_words: int, tested: int) -> None:
    files = sorted(path.glob("*.json"))
    dev = [file for file in files if "dev" in file.name]
    known, test = questions(file for file in files if file not in dev), questions(dev)[:tested]
    train, valid = (
        [q for q in known if (hash_fraction(q.context) < HELD_OUT) == held_out] for held_out in (False, True)
    )
    reader = Reader({question.context for question in train}, max_words)
    write(out / "train.jsonl", ((reader.source(q), Counter(q.answers).most_common(1)[0][0]) for q in train))
    for name, held_out in (("valid", valid), ("test", test)):
        sources = [reader.source(question) for question in held_out]
        rows = [(s, a) for s, q in zip(sources, held_out, strict=True) for a, _ in Counter(q.answers).most_common()]
        write(out / f"{name}.jsonl", rows)
        holds = sum(any(a in source for a in q.answers) for source, q in zip(sources, held_out, strict=True))
        print(f"  {len(held_out):,} questions; {holds / len(held_out):.1%} of the sources contain an answer")


def titles(path: Path, out: Path) -> None:
    stories = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [(story["body"], story["title"]) for story in stories]
    cuts = [round(len(rows) * (1 - n * HELD_OUT)) for n in (2, 1)]
    parts = {"train": rows[: cuts[0]], "valid": rows[cuts[0] : cuts[1]], "test": rows[cuts[1] :]}
    for name, part in parts.items():
        write(out / f"{name}.jsonl", part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["squad", "titles"])
    parser.add_argument(
        "source", type=Path, help="squad: a folder with SQuAD JSON; titles: the file of `harken data reuters`"
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=int, default=40, help="squad: maximum number of words of a context")
    parser.add_argument("--test", type=int, default=2000, help="squad: number of test questions")
    options = parser.parse_args()
    if options.what == "squad":
        squad(options.source, options.out, options.words, options.test)
    else:
        titles(options.source, options.out)


if __name__ == "__main__":
    main()
