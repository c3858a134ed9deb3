"""Metrics of generated texts, and trivial baselines.

Every metric takes one hypothesis per row and its references, one or more. Fractions are 0-1, BLEU and chrF 0-100.
"""

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from harken.data.batch import Array
from harken.data.pairs.trees import parse_brackets, repair_brackets
from harken.errors import BadInput, MissingExtra

from .weighted import chrf as chrf_score

CHRF_ORDER = 6  # character n-grams
References = Sequence[Sequence[str]]
# abbreviations: their period does not end a sentence
ABBREVIATION = re.compile(
    r"\W*(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mrs?|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Sen|Rep|No|vs|e\.g|i\.e)\."
)
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s+[^a-z\s]|\s*$)|[。！？]|\n\s*\n")


class CorpusScore(NamedTuple):
    """BLEU or chrF of a corpus with its sacreBLEU signature."""

    score: float
    signature: str


class BracketScore(NamedTuple):
    """Micro-averaged F1 of labelled brackets, and the fraction of valid trees over the right number of words."""

    f1: float
    valid: float


def has_sacrebleu() -> bool:
    """Whether BLEU and chrF can be computed."""
    return importlib.util.find_spec("sacrebleu") is not None


def bleu(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a") -> CorpusScore:
    """Corpus BLEU with all references of each row. tokenize="none": the texts are tokenized."""
    return _corpus_score(_metric("BLEU", force=True, tokenize=tokenize), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> CorpusScore:
    """Corpus chrF2 with the best reference of each row."""
    return _corpus_score(_metric("CHRF"), hypotheses, references)


def bleu_rows(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a") -> Array:  # N 10
    """What BLEU adds up over the rows: lengths of text and reference, matched n-grams, all n-grams (n = 1 to 4)."""
    _check(hypotheses, references)
    metric = _metric("BLEU", force=True, tokenize=tokenize, effective_order=True)
    rows = (metric.sentence_score(text, list(refs)) for text, refs in zip(hypotheses, references, strict=True))
    return np.array([[row.sys_len, row.ref_len, *row.counts, *row.totals] for row in rows], np.float64)


def chrf_rows(hypotheses: Sequence[str], references: References) -> Array:  # N 18
    """What chrF adds up: for n = 1 to 6 the character n-grams of the text, of its best reference, and matched ones."""
    _check(hypotheses, references)
    rows = []
    for text, refs in zip(hypotheses, references, strict=True):
        ngrams = _character_ngrams(text)
        counts = [_ngram_counts(ngrams, _character_ngrams(ref)) for ref in refs]
        rows.append(max(counts, key=lambda row: chrf_score(np.array([row]))(np.ones((1, 1)))[0]))
    return np.array(rows, np.float64)


def _character_ngrams(text: str) -> list[Counter[str]]:
    bare = "".join(text.split())
    return [Counter(bare[k : k + n] for k in range(len(bare) - n + 1)) for n in range(1, CHRF_ORDER + 1)]


def _ngram_counts(text: list[Counter[str]], reference: list[Counter[str]]) -> list[int]:
    """For each order: n-grams of the text, of the reference, and of both; without a reference none of the text."""
    pairs = zip(text, reference, strict=True)
    return [n for a, b in pairs for n in (a.total() if b else 0, b.total(), (a & b).total())]


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """Fraction of rows that equal a reference after stripping white space."""
    return _mean(row_values("exact_match", hypotheses, references))


def rouge_l(hypotheses: Sequence[str], references: References) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words, in lower case and without punctuation."""
    return _mean(row_values("rouge_l", hypotheses, references))


def answer_exact(hypotheses: Sequence[str], references: References) -> float:
    """Exact match as in SQuAD v1.1: without case, articles and punctuation."""
    return _mean(row_values("answer_exact", hypotheses, references))


def answer_f1(hypotheses: Sequence[str], references: References) -> float:
    """F1 of the bag of words of answer and reference, normalized as in SQuAD."""
    return _mean(row_values("answer_f1", hypotheses, references))


def row_values(metric: str, hypotheses: Sequence[str], references: References) -> list[float]:
    """Of each row the best value over its references, of a metric that is a mean over the rows (ROW_METRICS)."""
    _check(hypotheses, references)
    value, rows = ROW_METRICS[metric], zip(hypotheses, references, strict=True)
    return [max(value(text, ref) for ref in refs) for text, refs in rows]


def _exact_match(text: str, ref: str) -> float:
    return float(text.strip() == ref.strip())


def _rouge_l(text: str, ref: str) -> float:
    words, ref_words = (re.findall(r"[^\W_]+", x.lower()) for x in (text, ref))
    return _f1(_lcs_length(words, ref_words), len(words), len(ref_words))


def _answer_exact(text: str, ref: str) -> float:
    return float(_normalize_answer(text) == _normalize_answer(ref))


def _answer_f1(text: str, ref: str) -> float:
    words, ref_words = Counter(_normalize_answer(text)), Counter(_normalize_answer(ref))
    if not (words and ref_words):  # articles only
        return float(words == ref_words)
    return _f1((words & ref_words).total(), words.total(), ref_words.total())


ROW_METRICS: dict[str, Callable[[str, str], float]] = {
    "exact_match": _exact_match,
    "rouge_l": _rouge_l,
    "answer_exact": _answer_exact,
    "answer_f1": _answer_f1,
}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def bracket_f1(hypotheses: Sequence[str], references: Sequence[str]) -> BracketScore:
    """Labelled brackets of trees such as "(S (NP 1 )NP (VP 2 )VP )S"; XX also stands for a word.

    A hypothesis that is not a tree, or a tree over another number of words, is repaired first and counts as invalid.
    """
    counts, valid = bracket_rows(hypotheses, references)
    return BracketScore(_f1(*counts.sum(0).tolist()), sum(valid) / len(valid))


def bracket_rows(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Array, list[bool]]:  # N 3, N
    """For each row the matched, predicted and reference brackets, and whether the hypothesis is a valid tree."""
    _check(hypotheses, references)
    counts, valid_rows = [], []
    for row, (text, reference) in enumerate(zip(hypotheses, references, strict=True), 1):
        predicted, expected = parse_brackets(text), parse_brackets(reference)
        if expected is None:
            raise BadInput(f'reference tree {row}: {reference[:60]!r} is not a tree; write it as "(S (NP 1 )NP 2 )S"')
        n_words = expected[-1][2]  # the root is last
        valid = predicted if predicted and predicted[-1][2] == n_words else None
        valid_rows.append(valid is not None)
        brackets = valid or repair_brackets(text, n_words)
        counts.append([(Counter(brackets) & Counter(expected)).total(), len(brackets), len(expected)])
    return np.array(counts), valid_rows


def most_frequent(targets: Iterable[str], n: int) -> list[str]:
    """Baseline: the most frequent training target, n times."""
    return [Counter(targets).most_common(1)[0][0]] * n


def lead_1(sources: Sequence[str]) -> list[str]:
    """Baseline of summaries: the first sentence."""
    return [_first_sentence(text.strip()) for text in sources]


def _metric(name: str, **options: Any) -> Any:
    """A metric of sacrebleu. The option `force` of BLEU silences its warning about tokenized texts."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise MissingExtra(name, "text") from None
    return getattr(metrics, name)(**options)


def _corpus_score(metric: Any, hypotheses: Sequence[str], references: References) -> CorpusScore:
    _check(hypotheses, references)
    # sacrebleu expects the first references of all rows, then the second ones, ...; None where a row has no more
    n_references = max(map(len, references))
    streams = [[refs[i] if i < len(refs) else None for refs in references] for i in range(n_references)]
    return CorpusScore(metric.corpus_score(list(hypotheses), streams).score, str(metric.get_signature()))


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise BadInput unless every row has a hypothesis and a reference."""
    if not hypotheses or len(hypotheses) != len(references):
        fix = "give one row of references per hypothesis, and at least one"
        raise BadInput(f"{len(hypotheses)} hypotheses and {len(references)} rows of references: {fix}")
    if empty := [row for row, refs in enumerate(references, 1) if not refs]:
        raise BadInput(f"row {empty[0]} has no reference; add one or remove the row")


def _f1(n_matched: int, n_predicted: int, n_reference: int) -> float:
    return 2 * n_matched / (n_predicted + n_reference) if n_matched else 0.0


def _lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, bit-parallel: a row of the table is one integer."""
    positions: Counter[str] = Counter()
    for i, word in enumerate(a):
        positions[word] |= 1 << i
    full = row = (1 << len(a)) - 1
    for word in b:
        matches = row & positions[word]
        row = ((row + matches) | (row - matches)) & full
    return len(a) - row.bit_count()


def _normalize_answer(text: str) -> list[str]:
    """The words of an answer without case, punctuation and articles."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _first_sentence(text: str) -> str:
    """The text up to its first sentence end."""
    cased = re.sub(r"\b[a-z]", lambda first: first[0].upper(), text) if text.islower() else text
    for end in SENTENCE_END.finditer(cased):
        head = cased[: end.end()].rstrip()
        if not ABBREVIATION.fullmatch(head.split()[-1]):
            return text[: len(head)]
    return text
