"""harken fill, by a BERT that was trained with the command line."""

import json

import pytest

TINY = ["model.d=16", "model.layers=1", "model.heads=2", "model.context=16", "train.steps=2", "train.batch=4"]


@pytest.fixture
def bert(harken, tales):
    output = harken("train", tales, "model.kind=bert", "--out", "bert", *TINY, "data.vocab_size=200")
    assert output.code == 0, output
    return "bert"


def test_fill_prints_the_most_probable_words_or_json(harken, bert):
    plain = harken("fill", bert, "the [MASK] sat.", "-k", 2)
    (((first, second),),) = json.loads(harken("fill", bert, "the [MASK] sat.", "-k", 2, "--json").out)["words"]
    assert plain.out.split() == [f"{first['probability']:.4f}", first["word"], *plain.out.split()[2:]]
    assert len(plain.out.splitlines()) == 2
    assert second["probability"] <= first["probability"]


def test_eval_counts_the_masked_words(harken, bert):
    evaluation = json.loads(harken("eval", bert, "--json").out)
    assert evaluation["examples"] == evaluation["protocol"]["words"] > 0


def test_each_text_and_each_mask_has_its_words(harken, bert):
    output = harken("fill", bert, "-", "-k", 1, "--json", stdin=b"a [MASK] and a [MASK]\nthe [MASK]\n")
    assert [[len(words) for words in places] for places in json.loads(output.out)["words"]] == [[1, 1], [1]]


@pytest.mark.parametrize(
    ("verb", "text", "reason"),
    [("fill", "no mask", "has no [MASK]"), ("generate", "a", "use harken fill"), ("fill", None, "[MASK]")],
)
def test_invalid_texts_are_refused_in_one_line(harken, bert, verb, text, reason):
    output = harken(verb, bert, *([text] if text else []))
    assert output.code == 2
    assert reason in output.err
    assert "Traceback" not in output.err


def test_a_language_model_is_refused_by_fill(harken, folders):
    output = harken("fill", folders["char"], "a [MASK]")
    assert output.code == 2
    assert "use harken generate" in output.err
