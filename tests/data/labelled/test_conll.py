import pytest

from harken.data.labelled.conll import Entity, bio2, entities, sentences
from harken.errors import BadInput

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

John NNP I-NP I-PER
# NN I-NP O
"""


def read(tmp_path, text, *columns):
    path = tmp_path / "x.conll"
    path.write_text(text)
    return list(sentences(path, *columns))


def test_sentences_end_at_blank_lines_and_documents_marks_are_left_out(tmp_path):
    found = read(tmp_path, CONLL, 1, 4)
    assert found[0] == (["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], f"{tmp_path}/x.conll:3")
    assert found[1].words == ["John", "#"]
    assert len(found) == 2


def test_a_line_of_white_space_ends_a_sentence_as_in_wnut(tmp_path):
    assert [s.words for s in read(tmp_path, "a\tO\n\t\nb\tO\nc c\tO", 1, 2)] == [["a"], ["b", "c c"]]


def test_conll_u_has_comments_and_words_that_are_parts_of_others(tmp_path):
    rows = ["1-2 vámonos _ _", "1 vamos ir VERB", "2 nos nos PRON", "2.1 x _ NOUN", "3 ya ya ADV"]
    text = "\n".join(["# text = vámonos ya", *(row.replace(" ", "\t") for row in rows)])
    assert read(tmp_path, text, 2, 4) == [(["vamos", "nos", "ya"], ["VERB", "PRON", "ADV"], f"{tmp_path}/x.conll:3")]


def test_a_line_without_its_tag_is_named_by_its_number(tmp_path):
    with pytest.raises(BadInput, match=r"x\.conll:2: 'lives'; a word in column 1 and its tag in column 2 are needed"):
        read(tmp_path, "John B-PER\nlives\n", 1, 2)


@pytest.mark.parametrize(
    "given",
    [
        "I-A I-A B-A O I-B I-A",  # IOB1: B- only where an entity follows one of its kind
        "B-A I-A B-A O B-B B-A",
        "B-A E-A S-A O S-B S-A",
        "B-A L-A U-A O U-B U-A",
    ],
)
def test_every_scheme_becomes_bio2(given):
    assert bio2(given.split()) == ["B-A", "I-A", "B-A", "O", "B-B", "B-A"]


def test_tags_that_mark_no_entities_stay():
    assert bio2(["NN", "PRP$", "O", "-LRB-"]) == ["NN", "PRP$", "O", "-LRB-"]


def test_entities_are_the_runs_that_b_begins():
    found = entities(["O", "B-A", "I-A", "B-A", "O", "B-B"])
    assert found == [Entity("A", 1, 3), Entity("A", 3, 4), Entity("B", 5, 6)]
