"""Sentences and documents of a text, and passages of which the second follows the first or does not."""

import numpy as np
import pytest

from harken.data.rng import rng_for
from harken.data.text.documents import DocumentLayout, Documents, PassagePairs, detect_layout
from harken.data.text.encode import Span
from harken.data.text.source import TextSource
from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.errors import BadInput, BadSetting

PROSE = 'Mr. Smith came. "Who is it?" he asked.\nNobody knew.\n\nAnother day began! It\nrained.\n'
WRAPPED = "It was a dark and\nstormy night. The rain\nfell in torrents. Then\nit stopped for good and all\n"


def told(text: str, how: DocumentLayout | None = None) -> list[list[str]]:
    """The documents of a text, each as its sentences."""
    how = how or detect_layout(text)
    marked = how.insert_markers(text) + how.END
    documents = [part.split("[SEP]") for part in marked.split("[CLS]")]
    return [kept for part in documents if (kept := [" ".join(s.split()) for s in part if s.strip()])]


def test_a_sentence_ends_with_its_sign_and_a_document_with_a_blank_line():
    assert told(PROSE, DocumentLayout("blank", False)) == [
        ["Mr. Smith came.", '"Who is it?" he asked.', "Nobody knew."],
        ["Another day began!", "It rained."],
    ]


def test_lines_that_are_only_wrapped_end_no_sentence():
    assert detect_layout(WRAPPED) == DocumentLayout("file", False)
    assert told(WRAPPED)[0][1] == "The rain fell in torrents."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A cat sat.\nA dog ran.\n\nA cow ate.\n", DocumentLayout("blank", True)),
        ("A cat sat. It purred. It slept.\nA dog ran. It barked. It ate.\n", DocumentLayout("line", True)),
        (
            "no signs at all\njust words in lines\nas some sets have them\nline by line\nand more\n",
            DocumentLayout("file", True),
        ),
        ("one line", DocumentLayout("file", False)),
    ],
    ids=["blank", "line", "lines as sentences", "one"],
)
def test_the_layout_of_a_text_is_known_from_its_beginning(text, found):
    assert detect_layout(text) == found
    assert detect_layout(text, "line").documents == "line"


def test_signs_that_stand_alone_and_chinese_ones_end_a_sentence():
    assert told("the cat sat . it slept .\n")[0] == ["the cat sat .", "it slept ."]
    assert told("猫坐着。它睡了。", DocumentLayout("file", False))[0] == ["猫坐着。", "它睡了。"]


def test_empty_sentences_and_documents_are_none():
    sep, cls = 3, 2
    found = Documents.from_marked_ids(np.array([sep, 10, 11, sep, sep, 12, sep, cls, sep, cls, 13, sep, cls]), sep, cls)
    assert found.ids.tolist() == [10, 11, 12, 13]
    assert found.sentences.tolist() == [0, 2, 3, 4]
    assert found.documents.tolist() == [0, 3, 4]


def text_of(documents: list[list[int]]) -> Documents:
    """Documents of sentences of so many tokens; the id of a token is 1000 x document + place."""
    ids = [1000 * d + n for d, lengths in enumerate(documents) for n in range(sum(lengths))]
    ends = np.cumsum([0, *(n for lengths in documents for n in lengths)])
    return Documents(np.array(ids), ends, np.cumsum([0, *map(sum, documents)]))


def test_windows_cut_each_document_from_its_beginning_and_hold_every_token():
    windows = text_of([[7, 8, 10], [4], [2, 1]]).windows(10)
    assert windows.tolist() == [[0, 10, 0], [10, 20, 0], [20, 25, 0], [25, 29, 1]]  # three tokens are no passage


MANY = text_of([[5, 6, 7, 8, 9] * 4, [6, 5] * 9, [7] * 20, [9, 4] * 12])


def drawn(step: int = 0, text: Documents = MANY) -> tuple:
    passages = PassagePairs(text, 30, 8, seed=5)
    picks = passages.picks(2, step)
    return passages, picks, *passages.pairs(picks, rng_for(1, step))


def test_half_of_the_seconds_follow_and_the_others_come_from_another_document():
    passages, share = PassagePairs(MANY, 30, 8, seed=5), []
    for step in range(200):
        first, second, follows = passages.pairs(passages.picks(step, 0), rng_for(1, step))
        share += follows.tolist()
        assert (second[follows, 0] == first[follows, 1]).all()
        here, there = MANY.ids[first[:, 0]] // 1000, MANY.ids[second[:, 0]] // 1000
        assert ((here == there) == follows).all()
    assert abs(np.mean(share) - 0.5) < 0.05


def chance(documents: int, fewest: int, most: int) -> Documents:
    """Documents of that many sentences, whose lengths have no order that could tell anything."""
    draw = np.random.default_rng(3).integers
    return text_of([draw(4, 14, size=draw(fewest, most)).tolist() for _ in range(documents)])


# the first ones end within a passage; passages of the second are cut where they are full; the third has both
TEXTS = {"short": chance(60, 3, 8), "long": chance(6, 60, 90), "mixed": chance(40, 1, 30)}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_neither_length_nor_how_it_begins_and_ends_tells_what_follows(text):
    passages, seen = PassagePairs(text, 30, 8, seed=5), {True: [], False: []}
    marks = text.sentences, text.documents
    for step in range(400):
        first, second, follows = passages.pairs(passages.picks(step, 0), rng_for(1, step))
        for a, (begin, end), yes in zip(first, second, follows, strict=True):
            signs = [np.isin(at, some) for at in (begin, end) for some in marks]  # of a sentence, of a document
            seen[bool(yes)].append([*signs, (a[1] - a[0] + end - begin) / 30])
    assert np.abs(np.mean(seen[True], 0) - np.mean(seen[False], 0)).max() < 0.07
    assert max(row[-1] for row in seen[False]) <= 1  # and it fits


def test_passages_are_a_pure_function_of_their_place():
    for a, b in zip(drawn(1)[1:], drawn(1)[1:], strict=True):
        assert (a == b).all()
    assert (drawn(0)[1] != drawn(1)[1]).any()


def test_every_window_comes_once_in_an_epoch():
    passages = PassagePairs(MANY, 30, 4, seed=5)
    seen = np.concatenate([passages.picks(3, step) for step in range(passages.steps)])
    assert len(set(seen.tolist())) == passages.steps * passages.rows > len(passages.windows) - 4


def test_in_a_single_document_the_others_come_from_elsewhere_in_it():
    _, _, first, second, follows = drawn(text=text_of([[6] * 60]))
    assert ((second[:, 0] == first[:, 1]) >= follows).all()
    assert not follows.all()


def test_a_text_of_one_passage_is_refused():
    with pytest.raises(BadInput, match="fewer than two passages"):
        PassagePairs(text_of([[5, 5]]), 30, 4, seed=0)


def test_a_text_is_read_as_sentences_of_documents(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text(PROSE.replace("It\nrained", "It rained") * 30)
    opened = TextSource(path=str(path), tokenizer="wordpiece", batching="sentences", valid=0.0).load_data()
    own = opened.tokenizer
    found = Documents.from_marked_ids(np.asarray(opened.train[0].tokens), own.sep_id, own.cls_id)
    first = [own.decode(found.ids[a:b]) for a, b in zip(found.sentences[:5], found.sentences[1:6], strict=True)]
    assert first[2:] == ["nobody knew.", "another day began!", "it rained."]
    assert len(found.documents) - 1 == 31  # the last one of each copy goes on as the first of the next
    assert not np.isin(found.ids, own.special_ids).any()


def test_tokens_without_marks_cannot_say_where_a_sentence_ends(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text(PROSE)
    with pytest.raises(BadSetting, match=r"data\.tokenizer=wordpiece"):
        TextSource(path=str(path), tokenizer="char", batching="sentences").load_data()


def test_a_span_ends_a_document(tmp_path):
    from harken.data.text.encode import encode_files

    path, own = tmp_path / "my.txt", train_tokenizer("wordpiece", lambda: ["a b c d " * 9], 40)
    path.write_text("a b. c d.\n")
    found = encode_files([Span(path), Span(path)], own, tmp_path / "kept", documents=DocumentLayout("file", True))
    assert Documents.from_marked_ids(np.asarray(found.tokens), own.sep_id, own.cls_id).documents.tolist() == [0, 6, 12]
