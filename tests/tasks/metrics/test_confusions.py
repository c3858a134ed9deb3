"""The commonest confusions of tags and spans name what is wrong and count it."""

from harken.data.labelled.spans import SquadQuestion
from harken.data.labelled.tags import Sentence
from harken.tasks import Confusion
from harken.tasks.metrics.confusions import entity_confusions, span_confusions, tag_confusions


def test_confusions_of_tags_are_counted_with_their_first_word():
    sentences = [Sentence(["a", "dog", "barks"], ["DET", "N", "V"]), Sentence(["dogs", "run"], ["N", "V"])]
    predictions = [["DET", "V", "V"], ["V", "N"]]
    assert tag_confusions(sentences, predictions) == [Confusion("N", "V", 2, "dog"), Confusion("V", "N", 1, "run")]


def test_confusions_of_entities_are_wrong_labels_boundaries_misses_and_inventions():
    words = ["Ada", "Byron", "met", "IBM", "in", "New", "York", "on", "Monday"]
    actual = ["B-PER", "I-PER", "O", "B-ORG", "O", "B-LOC", "I-LOC", "O", "O"]
    predicted = ["B-PER", "O", "O", "B-LOC", "O", "O", "O", "O", "B-LOC"]
    confusions = entity_confusions([Sentence(words, actual), Sentence(["Rome"], ["B-LOC"])], [predicted, ["B-LOC"]])
    assert {*confusions} == {
        Confusion("PER", "PER, other boundaries", 1, "Ada Byron"),
        Confusion("ORG", "LOC", 1, "IBM"),
        Confusion("LOC", "nothing", 1, "New York"),
        Confusion("nothing", "LOC", 1, "Monday"),
    }


def test_wrong_answers_are_grouped_by_what_is_wrong_with_them():
    def question(*answers: str) -> SquadQuestion:
        return SquadQuestion("q", "Where?", "Ada lives in old Rome today.", None, answers)

    cases = {
        ("old Rome",): {"old Rome": "", "Rome": "a shorter span", "in old Rome today": "a longer span",
                        "Rome today": "an overlapping span", "Ada": "another place", "": "no answer"},
        (): {"": "", "Ada": "an answer"},
    }  # fmt: skip
    for references, answers in cases.items():
        for answer, outcome in answers.items():
            confusions = span_confusions([question(*references)], [answer])
            assert [c.predicted for c in confusions] == ([outcome] if outcome else []), (references, answer)
    [confusion] = span_confusions([question("old Rome")] * 3, ["Ada"] * 3)
    assert confusion == Confusion("an answer", "another place", 3, "Where? old Rome → Ada")
