"""Next-sentence prediction: the probabilities are those of transformers; truncation, single pairs, and other runs."""

import pytest
import torch

import harken
from harken.errors import BadInput
from harken.events import silent

pytestmark = pytest.mark.oracle
PAIRS = [("the cat sleeps", "it wakes up"), ("Tom had a hat.", "a big dog ran"), ("a", "the cat saw the dog")]


def reference(bert, a: str, b: str) -> float:
    """The probability of "is next" by transformers, from ids that are joined here."""
    run, model = bert
    first, second = (run.tokenizer.encode(text).tolist() for text in (a, b))
    cls, sep = run.tokenizer.cls_id, run.tokenizer.sep_id
    ids = torch.tensor([[cls, *first, sep, *second, sep]])
    segments = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
    with torch.no_grad():
        logits = model(ids, token_type_ids=segments).seq_relationship_logits
    return logits.softmax(-1)[0, 0].item()  # class 0: b follows a


def is_next(labels) -> float:
    return next(score["probability"] for score in labels if score["label"] == "is-next")


def test_the_probabilities_of_pairs_in_one_batch_are_those_of_transformers(bert):
    answers = bert[0].classify(PAIRS)
    assert [is_next(labels) for labels in answers] == pytest.approx(
        [reference(bert, *pair) for pair in PAIRS], abs=1e-5
    )
    for labels in answers:
        assert sum(score["probability"] for score in labels) == pytest.approx(1)
        assert labels[0]["probability"] >= labels[1]["probability"]
        assert {score["label"] for score in labels} == {"is-next", "not-next"}


def test_a_tuple_and_a_text_with_a_tab_are_one_pair(bert):
    one = bert[0].classify(("the cat sleeps", "it wakes up"))
    assert one == bert[0].classify("the cat sleeps\tit wakes up")
    assert one == bert[0].classify([("the cat sleeps", "it wakes up")])[0]
    assert bert[0].classify([]) == []


def test_a_pair_that_is_too_long_keeps_the_words_around_its_border(bert):
    run, a, b = bert[0], "the cat " * 20, "a dog " * 20
    first, second = (run.tokenizer.encode(text).tolist() for text in (a, b))
    room = 24 - 3
    ids = run.tokenizer.decode(first[-(room - room // 2) :]), run.tokenizer.decode(second[: room // 2])
    assert is_next(run.classify((a, b), listen=silent)) == pytest.approx(reference(bert, *ids), abs=1e-5)
    with pytest.warns(UserWarning, match="1 of 1 pairs"):
        run.classify((a, b))


@pytest.mark.parametrize(
    ("text", "message"),
    [("one text", "reads pairs; give two texts with a tab between them"), (("a", " "), "the text is empty")],
)
def test_a_single_or_an_empty_text_is_refused(bert, text, message):
    with pytest.raises(BadInput, match=message):
        bert[0].classify(text)


def test_a_run_without_a_trained_head_says_so_in_one_line(tmp_path, tales):
    settings = {"model.kind": "bert", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16}
    settings |= {"task.objective": "mlm", "train.steps": 2, "train.batch": 4, "data.vocab_size": 200}
    run = harken.train(tales, out=tmp_path / "mlm", settings=settings)
    with pytest.raises(BadInput, match=r"no trained head for next-sentence prediction; train a BERT with task.obj"):
        run.classify(("a", "b"))
