import pytest

from harken.data.labelled.tags import Entity, extract_entities, read_sentences, to_bio2
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
    return list(read_sentences(path, *columns))


def test_sentences_end_at_blank_lines_and_document_marks_are_skipped(tmp_path):
    sentences = read(tmp_path, CONLL, 1, 4)
    assert sentences[0] == (["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], f"{tmp_path}/x.conll:3")
    assert sentences[1].words == ["John", "#"]
    assert len(sentences) == 2


def test_a_line_of_white_space_ends_a_sentence_as_in_wnut(tmp_path):
    assert [s.words for s in read(tmp_path, "a\tO\n\t\nb\tO\nc c\tO", 1, 2)] == [["a"], ["b", "c c"]]


def test_comments_multiword_tokens_and_empty_nodes_of_conll_u_are_skipped(tmp_path):
    rows = ["1-2 vámonos _ _", "1 vamos ir VERB", "2 nos nos PRON", "2.1 x _ NOUN", "3 ya ya ADV"]
    text = "\n".join(["# text = vámonos ya", *(row.replace(" ", "\t") for row in rows)])
    assert read(tmp_path, text, 2, 4) == [(["vamos", "nos", "ya"], ["VERB", "PRON", "ADV"], f"{tmp_path}/x.conll:3")]


def test_a_line_without_a_tag_is_reported_with_its_number(tmp_path):
    with pytest.raises(BadInput, match=r"x\.conll:2: 'lives': a line needs a word in column 1 and a tag in column 2"):
        read(tmp_path, "John B-PER\nlives\n", 1, 2)


@pytest.mark.parametrize(
    "tags",
    [
        "I-A I-A B-A O I-B I-A",  # IOB1: B- only if an entity follows one with the same label
        "B-A I-A B-A O B-B B-A",
        "B-A E-A S-A O S-B S-A",
        "B-A L-A U-A O U-B U-A",
    ],
)
def test_every_scheme_is_converted_to_bio2(tags):
    assert to_bio2(tags.split()) == ["B-A", "I-A", "B-A", "O", "B-B", "B-A"]


def test_tags_that_are_not_entities_are_unchanged():
    assert to_bio2(["NN", "PRP$", "O", "-LRB-"]) == ["NN", "PRP$", "O", "-LRB-"]


def test_entities_start_at_b_tags():
    entities = extract_entities(["O", "B-A", "I-A", "B-A", "O", "B-B"])
    assert entities == [Entity("A", 1, 3), Entity("A", 3, 4), Entity("B", 5, 6)]
