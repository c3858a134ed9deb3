"""Metrics of generated texts against sacrebleu, brute force and worked examples."""

import importlib.util
import itertools
import logging
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.errors import BadInput, MissingExtra
from harken.tasks.metrics import generation, weighted
from harken.tasks.metrics.generation import (
    answer_exact,
    answer_f1,
    bleu,
    bleu_rows,
    bracket_f1,
    chrf,
    chrf_rows,
    exact_match,
    lead_1,
    most_frequent,
    rouge_l,
)

WORDS = ["the", "a", "cat", "dog", "sees", "likes", "red", "big", "house", "garden", ",", ".", "in", "and", "not"]


def corpus(rows: int, max_references: int = 3) -> tuple[list[str], list[list[str]]]:
    """Random texts, each with one or more references: the text with some words replaced."""
    rng = random.Random(0)
    texts = [rng.choices(WORDS, k=rng.randint(1, 12)) for _ in range(rows)]
    references = [
        [
            " ".join(rng.choice(WORDS) if rng.random() < 0.3 else word for word in text)
            for _ in range(1 + row % max_references)
        ]
        for row, text in enumerate(texts)
    ]
    return [" ".join(text) for text in texts], references


TEXTS, REFS = corpus(200)


# --- BLEU and chrF ----------------------------------------------------------------------------------------------------


@pytest.mark.oracle
def test_corpus_bleu_is_computed_from_the_summed_counts_of_the_rows() -> None:
    from sacrebleu.metrics import BLEU

    rows = [BLEU(effective_order=True).sentence_score(text, refs) for text, refs in zip(TEXTS, REFS, strict=True)]
    ngrams = [
        [sum(column) for column in zip(*counts, strict=True)]
        for counts in ([r.counts for r in rows], [r.totals for r in rows])
    ]
    lengths = sum(row.sys_len for row in rows), sum(row.ref_len for row in rows)
    score = bleu(TEXTS, REFS).score
    assert score == pytest.approx(BLEU.compute_bleu(*ngrams, *lengths, smooth_method="exp").score)
    assert 20 < score < 90


@pytest.mark.oracle
def test_a_row_with_fewer_references_is_not_compared_with_an_empty_one() -> None:
    first = [refs[:1] for refs in REFS]
    first[0] = [first[0][0], "zzz zzz"]
    assert bleu(TEXTS, first).score == pytest.approx(bleu(TEXTS, [refs[:1] for refs in REFS]).score)
    assert chrf(TEXTS, first).score == pytest.approx(chrf(TEXTS, [refs[:1] for refs in REFS]).score)


def test_more_references_never_lower_the_score() -> None:
    one = [refs[:1] for refs in REFS]
    assert bleu(TEXTS, REFS).score > bleu(TEXTS, one).score
    assert chrf(TEXTS, REFS).score > chrf(TEXTS, one).score


def test_a_reference_scores_100_and_a_text_without_common_words_0() -> None:
    texts = ["the cat sees the dog ."] * 3
    assert bleu(texts, [["x y", text] for text in texts]).score == pytest.approx(100)
    assert chrf(texts, [[text] for text in texts]).score == pytest.approx(100)
    assert bleu(["a b c d"], [["e f g h"]]).score == 0


def test_the_signature_names_tokenizer_case_and_references() -> None:
    signature = bleu(TEXTS, REFS).signature
    assert signature.startswith("nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    one = bleu(TEXTS, [refs[:1] for refs in REFS], tokenize="none").signature
    assert one.startswith("nrefs:1|case:mixed|eff:no|tok:none|")
    assert chrf(TEXTS, REFS).signature.startswith("nrefs:var|case:mixed|eff:yes|nc:6|nw:0|")


def test_bleu_is_case_sensitive() -> None:
    assert bleu(["THE CAT SEES A DOG"], [["the cat sees a dog"]]).score == 0


def test_bleu_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bleu([f"{text} ." for text in TEXTS], REFS)
        bleu_rows([f"{text} ." for text in TEXTS], REFS)
    assert caplog.text == ""


@pytest.mark.parametrize("words", [0, 1, 3, 9])
def test_the_counts_of_the_rows_add_up_to_the_scores_of_sacrebleu(words: int) -> None:
    rng = random.Random(words)

    def sentence(length: int) -> str:
        return " ".join(rng.choices(["the", "The", "cat", "cats", ".", "sees,"], k=length))

    refs = [[sentence(words + 1) for _ in range(1 + n % 3)] for n in range(30)]
    texts = [row[0] if rng.random() < 0.3 else sentence(rng.randint(0, words + 1)) for row in refs]
    one = np.ones((1, len(texts)))
    assert weighted.bleu(bleu_rows(texts, refs))(one)[0] == pytest.approx(bleu(texts, refs).score, abs=1e-9)
    assert weighted.chrf(chrf_rows(texts, refs))(one)[0] == pytest.approx(chrf(texts, refs).score, abs=1e-9)


def test_without_sacrebleu_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert generation.has_sacrebleu()
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtra, match=r'^BLEU needs .* pip install "harken\[text\]"$'):
        bleu(["a"], [["a"]])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not generation.has_sacrebleu()


@pytest.mark.parametrize(
    "metric", [bleu, chrf, bleu_rows, chrf_rows, exact_match, rouge_l, answer_f1, answer_exact, bracket_f1]
)
def test_rows_without_hypothesis_or_reference_are_rejected(metric: Callable[..., object]) -> None:
    with pytest.raises(BadInput, match=r"^2 hypotheses and 1 rows of references: give one row of references per "):
        metric(["a", "b"], [["a"]])
    with pytest.raises(BadInput, match=r"at least one$"):
        metric([], [])
    with pytest.raises(BadInput, match=r"^row 2 has no reference; "):
        metric(["a", "b"], [["a"], []])


# --- words ------------------------------------------------------------------------------------------------------------


def test_an_exact_match_equals_any_reference_after_stripping() -> None:
    assert exact_match(["a b ", "A b", "c", "d"], [["x", "a b"], ["a b"], ["c\n"], ["d d"]]) == 0.5


def subsequences(words: str) -> set[tuple[str, ...]]:
    return {subset for n in range(len(words) + 1) for subset in itertools.combinations(words, n)}


@given(st.text("abc", max_size=7), st.text("abcd", max_size=7))
def test_the_longest_common_subsequence_is_that_of_brute_force(a: str, b: str) -> None:
    assert generation._lcs_length(a, b) == max(map(len, subsequences(a) & subsequences(b)))


def test_rouge_l_of_worked_examples() -> None:
    reference = ["police killed the gunman"]  # from Lin 2004: both have as many common words, but not their order
    assert rouge_l(["police kill the gunman"], [reference]) == pytest.approx(3 / 4)
    assert rouge_l(["the gunman kill police"], [reference]) == pytest.approx(2 / 4)
    assert rouge_l(["The GUNMAN!"], [["the gunman ran, he ran."]]) == pytest.approx(2 * 1 * 0.4 / 1.4)
    assert rouge_l(["nothing", "a b"], [["at all"], ["b", "a b"]]) == 0.5
    assert rouge_l(["...", "l'été"], [["..."], ["L'ÉTÉ"]]) == 0.5


def test_answers_are_normalized_as_in_squad() -> None:
    same = ["The Eiffel-Tower!", "an  Answer", "in 1999.", "theatre"]
    assert answer_exact(same, [["eiffeltower"], ["the answer"], ["In 1999"], ["the theatre"]]) == 1
    assert answer_exact(["Paris"], [["in Paris", "London"]]) == 0
    assert answer_f1(["Paris"], [["in Paris", "London"]]) == pytest.approx(2 / 3)
    assert answer_f1(["the red red car"], [["a red car car"]]) == pytest.approx(2 * 2 / 6)
    assert answer_f1(["the", "the"], [["a"], ["cat"]]) == 0.5  # both empty after normalization: correct, as in SQuAD v2


# --- trees ------------------------------------------------------------------------------------------------------------

GOLD = "(S (NP XX XX )NP (VP XX (NP XX )NP )VP )S"


def test_equal_trees_have_a_perfect_score() -> None:
    assert bracket_f1([GOLD, GOLD], [GOLD, GOLD]) == generation.BracketScore(1, 1)


def test_a_bracket_matches_by_label_and_span() -> None:
    different = "(S (NP XX )NP (VP XX XX (PP XX )PP )VP )S"  # only S matches
    assert bracket_f1([different], [GOLD]) == generation.BracketScore(1 / 4, 1)
    flat = "(S (NP XX XX )NP XX XX )S"
    assert bracket_f1([flat], [GOLD]) == generation.BracketScore(2 * 2 / 6, 1)


def test_a_repeated_bracket_matches_once() -> None:
    assert bracket_f1(["(NP (NP XX )NP )NP"], ["(NP XX )NP"]) == generation.BracketScore(2 / 3, 1)


@pytest.mark.parametrize(
    ("text", "n_matched", "n_predicted"),
    [
        ("(S (NP XX XX )NP (VP XX (NP XX )NP )VP", 4, 4),  # never closed
        ("(S (NP XX XX )NP (VP XX (NP XX )NP )VP )S )S", 4, 4),  # never opened
        ("(S (NP XX XX )NP (VP XX (NP XX XX )NP )VP )S", 4, 4),  # a word too many
        ("(S (NP XX XX )NP (VP XX )VP )S", 1, 3),  # a word too few: all brackets at the end are too short
        ("(S (NP XX XX )VP (VP XX (NP XX )NP )NP )S", 3, 4),  # closed with another label
        ("(S (NP XX XX )NP )S (VP XX (NP XX )NP )VP", 3, 4),
        ("XX", 0, 0),
    ],
)
def test_an_invalid_tree_is_repaired_and_counts_as_invalid(text: str, n_matched: int, n_predicted: int) -> None:
    assert bracket_f1([text], [GOLD]) == generation.BracketScore(2 * n_matched / (n_predicted + 4), 0)


def test_the_words_of_a_tree_may_be_any_symbols() -> None:
    assert bracket_f1(["(S (NP DT NN )NP (VP VBD (NP NN )NP )VP )S"], [GOLD]).f1 == 1


def test_an_invalid_reference_tree_is_reported_with_its_row() -> None:
    with pytest.raises(BadInput, match=r"^reference tree 2: '\(S XX' is not a tree; "):
        bracket_f1([GOLD, GOLD], [GOLD, "(S XX"])


# --- baselines --------------------------------------------------------------------------------------------------------


def test_the_baseline_repeats_the_most_frequent_target() -> None:
    assert most_frequent(["b", "a", "b"], 3) == ["b", "b", "b"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("It rains. We stay.", "It rains."),
        ("  Really?! Yes.", "Really?!"),
        ('"Stop." He ran.', '"Stop."'),
        ("Dr. Smith met Mr. J. Bond. They left.", "Dr. Smith met Mr. J. Bond."),
        ("In the U.S. Senate it cost 3.5 million. Then", "In the U.S. Senate it cost 3.5 million."),
        ("It cost approx. ten. He paid.", "It cost approx. ten."),
        ("A title\n\nThe text. More.", "A title"),
        ("今日は雨です。明日は晴れ。", "今日は雨です。"),
        ("no end at all", "no end at all"),
        ("in the u.s. mr. bond paid 3.5 mln. he left.", "in the u.s. mr. bond paid 3.5 mln."),
        ("", ""),
    ],
)
def test_the_first_sentence_ends_at_its_end_mark_and_not_at_an_abbreviation(text: str, first: str) -> None:
    assert lead_1([text]) == [first]
