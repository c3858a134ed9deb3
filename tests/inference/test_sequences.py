"""Every sequence of texts gives the answers of the single texts, in order."""

import numpy as np
import pytest

import harken
from harken.errors import BadInput

TEXTS = ["Tom had a hat", "Lily", "The dog saw Tom and ran home with a big hat, and then it sat on a log"]


def pandas_column(texts):
    return pytest.importorskip("pandas").Series(texts, index=range(7, 7 + len(texts)))


def polars_column(texts):
    return pytest.importorskip("polars").Series(texts)


class Column:
    """A column of a DataFrame: iterable, with a length, and not a collections.abc.Sequence."""

    def __init__(self, texts):
        self.texts = texts

    def __iter__(self):
        return iter(self.texts)

    def __len__(self):
        return len(self.texts)


SEQUENCES = [list, tuple, np.array, lambda texts: np.array(texts, object), Column, pandas_column, polars_column]


@pytest.mark.parametrize("build", SEQUENCES)
def test_each_prompt_of_a_sequence_gets_its_own_continuation(char, build):
    options = {"max_new_tokens": 12, "seed": 3}
    single = [char.generate(text, **options, index=n) for n, text in enumerate(TEXTS)]
    assert char.generate(build(TEXTS), **options) == single
    greedy = {"max_new_tokens": 12, "temperature": 0}
    assert char.generate(build(TEXTS), **greedy) == [char.generate(text, **greedy) for text in TEXTS]


def test_the_batch_size_changes_no_continuation(char, monkeypatch):
    together = char.generate(TEXTS, max_new_tokens=6, n=2)
    assert [len(texts) for texts in together] == [2, 2, 2]
    monkeypatch.setattr("harken.inference.answers.generate.BATCH_ROWS", 3)
    assert char.generate(TEXTS, max_new_tokens=6, n=2) == together
    assert char.generate(TEXTS[1], max_new_tokens=6, n=2, index=1) == together[1]


@pytest.mark.parametrize("build", SEQUENCES)
def test_each_text_of_a_sequence_is_scored_as_alone(every, build):
    scores = every.score(build(TEXTS))
    assert len(scores) == 3
    for text, score in zip(TEXTS, scores, strict=True):
        alone = every.score(text)
        assert score["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-9)
        assert [word["word"] for word in score["words"]] == [word["word"] for word in alone["words"]]
        assert [w["logprob"] for w in score["words"]] == pytest.approx([w["logprob"] for w in alone["words"]], rel=1e-9)


def test_scores_do_not_depend_on_the_batch_size(char, monkeypatch):
    char.model.double()
    together = [score["perplexity"] for score in char.score(TEXTS * 3)]
    monkeypatch.setattr("harken.inference.answers.score.BATCH_TOKENS", 20)
    assert [score["perplexity"] for score in char.score(TEXTS * 3)] == pytest.approx(together, rel=1e-12)


@pytest.mark.parametrize("build", SEQUENCES)
def test_each_text_of_a_sequence_is_embedded_as_alone(char, build):
    vectors = char.embed(build(TEXTS))
    np.testing.assert_allclose(vectors, [char.embed(text) for text in TEXTS], atol=1e-5)


@pytest.mark.parametrize("build", SEQUENCES)
def test_each_source_of_a_sequence_is_translated(pair_folder, build):
    run, texts = harken.load(pair_folder), ["I saw the cat.", "she ate the red fish."]
    assert run.translate(build(texts), beam=1) == [run.translate(text, beam=1) for text in texts]


@pytest.mark.parametrize("verb", ["generate", "score", "embed"])
@pytest.mark.parametrize("texts", [{"a": "b"}, {"a", "b"}, b"bytes", 5, ["a text", float("nan")], [["a"]]])
def test_what_is_no_sequence_of_texts_is_refused(char, verb, texts):
    with pytest.raises(BadInput, match=r"must be a string|is missing"):
        getattr(char, verb)(texts)


@pytest.mark.parametrize(("verb", "answers"), [("generate", []), ("score", [])])
def test_no_texts_give_no_answers(char, verb, answers):
    assert getattr(char, verb)([]) == answers
    assert len(char.embed(())) == 0
