"""How good written answers are, and what costs nothing to write.

Every measure takes one hypothesis a row and its references, one or more. Fractions are 0-1, BLEU and chrF 0-100.
"""

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harken.data.pairs.trees import brackets, mended
from harken.errors import BadInput, MissingExtra

References = Sequence[Sequence[str]]
# a full stop behind one of these ends no sentence
SHORT = re.compile(r"\W*(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mrs?|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Sen|Rep|No|vs|e\.g|i\.e)\.")
END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s+[^a-z\s]|\s*$)|[。！？]|\n\s*\n")


@dataclass(frozen=True)
class Counted:
    """BLEU or chrF of a corpus, and how it was counted."""

    score: float
    signature: str


@dataclass(frozen=True)
class Brackets:
    """Labelled brackets of all trees together, and the share of trees that are trees over the right words."""

    f1: float
    valid: float


def available() -> bool:
    """Whether BLEU and chrF can be counted here."""
    return importlib.util.find_spec("sacrebleu") is not None


def bleu(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a") -> Counted:
    """BLEU of the whole corpus, against all references of each row. tokenize="none": the texts are tokens already."""
    return _counted(_metric("BLEU", force=True, tokenize=tokenize), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> Counted:
    """chrF2 of the whole corpus: n-grams of characters, against the best reference of each row."""
    return _counted(_metric("CHRF"), hypotheses, references)


def bootstrap(
    hypotheses: Sequence[str], references: References, samples: int = 1000, seed: int = 0, *, tokenize: str = "13a"
) -> tuple[float, float]:
    """The mean of BLEU over corpora drawn from these rows with replacement, and half the width that holds 95 % of them.

    Each row is tokenized and counted once: the counts of a drawn corpus are sums of the counts of its rows.
    """
    _check(hypotheses, references)
    metric = _metric("BLEU", force=True, tokenize=tokenize, effective_order=True)
    rows = (metric.sentence_score(text, list(refs)) for text, refs in zip(hypotheses, references, strict=True))
    counts = np.array([[row.sys_len, row.ref_len, *row.counts, *row.totals] for row in rows], np.float64)
    draw, scores = np.random.default_rng(seed), np.empty(samples)
    for i in range(samples):
        often = np.bincount(draw.integers(len(counts), size=len(counts)), minlength=len(counts))
        written, wanted, *grams = (often @ counts).tolist()
        scores[i] = metric.compute_bleu(grams[:4], grams[4:], int(written), int(wanted), smooth_method="exp").score
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(scores.mean()), float(high - low) / 2


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """The share of rows that equal one of their references, white space around them aside."""
    return _mean_best(hypotheses, references, lambda text, ref: text.strip() == ref.strip())


def rouge_l(hypotheses: Sequence[str], references: References) -> float:
    """ROUGE-L: F1 of the longest sequence of words that both have in this order; words in small letters, no marks."""

    def f1(text: str, ref: str) -> float:
        written, wanted = (re.findall(r"[^\W_]+", one.lower()) for one in (text, ref))
        return _f1(_common(written, wanted), len(written), len(wanted))

    return _mean_best(hypotheses, references, f1)


def answer_exact(hypotheses: Sequence[str], references: References) -> float:
    """The share of answers that equal a reference as SQuAD v1.1 compares: no case, articles or punctuation."""
    return _mean_best(hypotheses, references, lambda text, ref: _answer(text) == _answer(ref))


def answer_f1(hypotheses: Sequence[str], references: References) -> float:
    """F1 of the words that answer and reference share, in any order, as SQuAD compares."""

    def f1(text: str, ref: str) -> float:
        written, wanted = Counter(_answer(text)), Counter(_answer(ref))
        if not (written and wanted):  # nothing but articles
            return float(written == wanted)
        return _f1((written & wanted).total(), written.total(), wanted.total())

    return _mean_best(hypotheses, references, f1)


def bracket_f1(predicted: Sequence[str], gold: Sequence[str]) -> Brackets:
    """Labelled brackets of trees written as "(S (NP 1 )NP (VP 2 )VP )S"; XX is a word too.

    What is no tree, or a tree over another number of words, is mended first and counts as not valid.
    """
    _check(predicted, gold)
    matched = written = wanted = valid = 0
    for row, (text, right) in enumerate(zip(predicted, gold, strict=True), 1):
        found, known = brackets(text), brackets(right)
        if known is None:
            raise BadInput(f'gold tree {row}: {right[:60]!r} is no tree; write it as "(S (NP 1 )NP 2 )S"')
        words = known[-1][2]  # the root, over all of them, stands last
        whole = found if found and found[-1][2] == words else None
        valid += whole is not None
        made = whole or mended(text, words)
        wanted, written = wanted + len(known), written + len(made)
        matched += (Counter(made) & Counter(known)).total()
    return Brackets(_f1(matched, written, wanted), valid / len(gold))


def most_frequent(targets: Iterable[str], n: int) -> list[str]:
    """Free baseline: the target seen most often in training, n times."""
    return [Counter(targets).most_common(1)[0][0]] * n


def lead_1(sources: Sequence[str]) -> list[str]:
    """Free baseline of summaries: the first sentence."""
    return [_first_sentence(text.strip()) for text in sources]


def _metric(name: str, **options: Any) -> Any:
    """A metric of sacrebleu. BLEU's force: tokens that were given as such are no reason for a warning."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise MissingExtra(name, "text") from None
    return getattr(metrics, name)(**options)


def _counted(metric: Any, hypotheses: Sequence[str], references: References) -> Counted:
    found = metric.corpus_score(*_streams(hypotheses, references))
    return Counted(found.score, str(metric.get_signature()))


def _streams(hypotheses: Sequence[str], references: References) -> tuple[list[str], list[list[str | None]]]:
    """As sacrebleu wants it: the first references of all rows, the second ones, ...; None where a row has no more."""
    _check(hypotheses, references)
    most = max(map(len, references))
    return list(hypotheses), [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse what cannot be compared row by row."""
    if not hypotheses or len(hypotheses) != len(references):
        given = f"{len(hypotheses)} texts and {len(references)} rows of references"
        raise BadInput(f"{given} cannot be compared; give as many of the one as of the other, and at least one")
    if empty := [row for row, refs in enumerate(references, 1) if not refs]:
        raise BadInput(f"row {empty[0]} has no reference; give one or leave the row out")


def _mean_best(hypotheses: Sequence[str], references: References, measure: Callable[[str, str], float]) -> float:
    """The mean over rows of the best over a row's references."""
    _check(hypotheses, references)
    rows = zip(hypotheses, references, strict=True)
    return sum(max(measure(text, ref) for ref in refs) for text, refs in rows) / len(hypotheses)


def _f1(matched: int, written: int, wanted: int) -> float:
    return 2 * matched / (written + wanted) if matched else 0.0


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence: a row of its table is one number, a step in it one bit."""
    where: Counter[str] = Counter()
    for i, word in enumerate(a):
        where[word] |= 1 << i
    full = row = (1 << len(a)) - 1
    for word in b:
        fits = row & where[word]
        row = ((row + fits) | (row - fits)) & full
    return len(a) - row.bit_count()


def _answer(text: str) -> list[str]:
    """The words of an answer that count."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _first_sentence(text: str) -> str:
    """Up to the first mark that ends a sentence, or all of it."""
    cased = re.sub(r"\b[a-z]", lambda first: first[0].upper(), text) if text.islower() else text
    for end in END.finditer(cased):
        head = cased[: end.end()].rstrip()
        if not SHORT.fullmatch(head.split()[-1]):
            return text[: len(head)]
    return text
