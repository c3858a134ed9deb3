"""harken fill, by a BERT that was trained with the command line."""

import csv
import json
import shlex

import pytest

TINY = ["model.d=16", "model.layers=1", "model.heads=2", "model.context=16", "train.steps=2", "train.batch=4"]


@pytest.fixture
def training(harken, tales):
    output = harken("train", tales, "model.kind=bert", "--out", "bert", *TINY, "data.vocab_size=200")
    assert output.code == 0, output
    return output.out


@pytest.fixture
def bert(training):
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


def test_classify_says_whether_the_second_text_of_a_pair_is_next(harken, bert, training):
    pair = ["the cat sleeps", "it wakes up"]
    command = training.splitlines()[-1].partition("   does")[0]  # the next step
    assert shlex.split(command)[:4] == ["harken", "classify", "bert", "--pair"]
    assert "next" in harken(*shlex.split(command)[1:]).out
    output = harken("classify", bert, "--pair", *pair)
    assert {word for word in output.out.split() if "-" in word} == {"is-next", "not-next"}
    both = json.loads(harken("classify", bert, "--pair", *pair, "--pair", "a", "b", "--json").out)["labels"]
    assert both == json.loads(harken("classify", bert, "\t".join(pair), "a\tb", "--json").out)["labels"]
    piped = harken("classify", bert, "--json", stdin=b"the cat sleeps\tit wakes up\na\tb\n")
    assert json.loads(piped.out)["labels"] == both


@pytest.mark.parametrize("header", ["sentence1,sentence2", "one,other"])
def test_the_two_columns_of_a_file_are_pairs(harken, bert, header):
    with open("pairs.csv", "w") as file:
        file.write(f"{header}\nthe cat sleeps,it wakes up\na,\n")
    assert harken("classify", bert, "--in", "pairs.csv", "--out", "next.csv").code == 0
    with open("next.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["label"] in ("is-next", "not-next")
    assert (rows[1]["label"], rows[1]["reason"]) == ("", "the text is empty")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bert", "one text"], "reads pairs; give two texts with a tab between them"),
        (["bert", "a\tb", "--pair", "a", "b"], "[TEXT...] has no effect with --pair"),
        (["char", "--pair", "a", "b"], "--pair: this run generates text and reads no pairs of texts"),
    ],
)
def test_a_wrong_number_of_texts_is_refused_in_one_line(harken, bert, folders, args, message):
    output = harken("classify", folders["char"] if args[0] == "char" else bert, *args[1:])
    assert output.code == 2
    assert message in output.err
    assert output.err.count("\n") == 1
