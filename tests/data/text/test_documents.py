"""Sentences and documents of a text, and pairs of passages for next-sentence prediction."""

import numpy as np
import pytest

from harken.data.rng import rng_for
from harken.data.text.documents import DocumentLayout, Documents, PassagePairs, SameDocumentPairs, detect_layout
from harken.data.text.encode import Span
from harken.data.text.source import TextSource
from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.errors import BadInput, BadSetting

PROSE = 'Mr. Smith came. "Who is it?" he asked.\nNobody knew.\n\nAnother day began! It\nrained.\n'
WRAPPED = "It was a dark and\nstormy night. The rain\nfell in torrents. Then\nit stopped for good and all\n"


def sentences_of(text: str, layout: DocumentLayout | None = None) -> list[list[str]]:
    """The documents of a text as lists of sentences."""
    layout = layout or detect_layout(text)
    marked = layout.insert_markers(text) + layout.END
    documents = [part.split("[SEP]") for part in marked.split("[CLS]")]
    return [sentences for part in documents if (sentences := [" ".join(s.split()) for s in part if s.strip()])]


def test_a_sentence_ends_at_punctuation_and_a_document_at_a_blank_line():
    assert sentences_of(PROSE, DocumentLayout("blank", False)) == [
        ["Mr. Smith came.", '"Who is it?" he asked.', "Nobody knew."],
        ["Another day began!", "It rained."],
    ]


def test_a_wrapped_line_does_not_end_a_sentence():
    assert detect_layout(WRAPPED) == DocumentLayout("file", False)
    assert sentences_of(WRAPPED)[0][1] == "The rain fell in torrents."


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_the_layout_is_detected_from_the_start_of_a_text(text, expected):
    assert detect_layout(text) == expected
    assert detect_layout(text, "line").documents == "line"


def test_detached_and_chinese_punctuation_ends_a_sentence():
    assert sentences_of("the cat sat . it slept .\n")[0] == ["the cat sat .", "it slept ."]
    assert sentences_of("猫坐着。它睡了。", DocumentLayout("file", False))[0] == ["猫坐着。", "它睡了。"]


def test_empty_sentences_and_documents_are_dropped():
    sep, cls = 3, 2
    documents = Documents.from_marked_ids(
        np.array([sep, 10, 11, sep, sep, 12, sep, cls, sep, cls, 13, sep, cls]), sep, cls
    )
    assert documents.ids.tolist() == [10, 11, 12, 13]
    assert documents.sentences.tolist() == [0, 2, 3, 4]
    assert documents.documents.tolist() == [0, 3, 4]


def build_documents(documents: list[list[int]]) -> Documents:
    """Documents with these sentence lengths; the id of a token is 1000 x document + position."""
    ids = [1000 * d + n for d, lengths in enumerate(documents) for n in range(sum(lengths))]
    ends = np.cumsum([0, *(n for lengths in documents for n in lengths)])
    return Documents(np.array(ids), ends, np.cumsum([0, *map(sum, documents)]))


def test_windows_split_each_document_from_its_start():
    windows = build_documents([[7, 8, 10], [4], [2, 1]]).windows(10)
    assert windows.tolist() == [[0, 10, 0], [10, 20, 0], [20, 25, 0], [25, 29, 1]]  # three tokens are too short


DOCUMENTS = build_documents([[5, 6, 7, 8, 9] * 4, [6, 5] * 9, [7] * 20, [9, 4] * 12])


def draw_pairs(step: int = 0, text: Documents = DOCUMENTS) -> tuple:
    passages = PassagePairs(text, 30, 8, seed=5)
    picks = passages.picks(2, step)
    return passages, picks, *passages.pairs(picks, rng_for(1, step))


def test_half_of_the_second_passages_follow_and_the_rest_come_from_another_document():
    passages, all_follows = PassagePairs(DOCUMENTS, 30, 8, seed=5), []
    for step in range(200):
        first, second, follows = passages.pairs(passages.picks(step, 0), rng_for(1, step))
        all_follows += follows.tolist()
        assert (second[follows, 0] == first[follows, 1]).all()
        first_doc, second_doc = DOCUMENTS.ids[first[:, 0]] // 1000, DOCUMENTS.ids[second[:, 0]] // 1000
        assert ((first_doc == second_doc) == follows).all()
    assert abs(np.mean(all_follows) - 0.5) < 0.05


def random_documents(documents: int, min_sentences: int, max_sentences: int) -> Documents:
    """Documents of random sentence lengths."""
    draw = np.random.default_rng(3).integers
    return build_documents([draw(4, 14, size=draw(min_sentences, max_sentences)).tolist() for _ in range(documents)])


# short: documents end within a passage; long: passages are truncated; mixed: both
TEXTS = {"short": random_documents(60, 3, 8), "long": random_documents(6, 60, 90), "mixed": random_documents(40, 1, 30)}


@pytest.mark.parametrize("kind", [PassagePairs, SameDocumentPairs])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_length_and_boundaries_do_not_reveal_whether_a_passage_follows(text, kind):
    passages, features = kind(text, 30, 8, seed=5), {True: [], False: []}
    boundaries = text.sentences, text.documents
    for step in range(400):
        first, second, follows = passages.pairs(passages.picks(step, 0), rng_for(1, step))
        for a, (begin, end), is_next in zip(first, second, follows, strict=True):
            flags = [
                np.isin(at, positions) for at in (begin, end) for positions in boundaries
            ]  # sentence and document boundaries
            features[bool(is_next)].append([*flags, (a[1] - a[0] + end - begin) / 30])
    difference = np.abs(np.mean(features[True], 0) - np.mean(features[False], 0))
    assert difference.max() < (0.07 if kind is PassagePairs else 0.1)
    assert max(row[-1] for row in features[False]) <= 1


def test_other_passages_of_the_same_document_are_sentences_apart_from_the_first_passage():
    passages, starts = SameDocumentPairs(DOCUMENTS, 30, 8, seed=5), DOCUMENTS.sentences
    n_before = n_after = 0
    for step in range(200):
        first, second, follows = passages.pairs(passages.picks(step, 0), rng_for(1, step))
        assert (second[follows, 0] == first[follows, 1]).all()
        assert (DOCUMENTS.ids[first[:, 0]] // 1000 == DOCUMENTS.ids[second[:, 1] - 1] // 1000).all()
        is_full = np.diff(first)[:, 0] + np.diff(second)[:, 0] == 30  # a sentence is longer than the rest of the row
        assert np.isin(second[:, 0], starts).all()
        assert (np.isin(second[:, 1], starts) | is_full).all()
        assert not np.isin(second[:, 0], DOCUMENTS.documents).any()
        other = ~follows
        assert ((second[other, 1] <= first[other, 0]) | (second[other, 0] > first[other, 1])).all()
        n_before += int((second[other, 1] <= first[other, 0]).sum())
        n_after += int((second[other, 0] > first[other, 1]).sum())
    assert min(n_before, n_after) > 0.2 * (n_before + n_after)


def test_same_document_pairs_need_documents_of_several_passages():
    with pytest.raises(BadInput, match=r"set task\.negatives=other-document"):
        SameDocumentPairs(build_documents([[5, 5, 5]] * 20), 30, 4, seed=0)


def test_passages_are_a_pure_function_of_epoch_and_step():
    for a, b in zip(draw_pairs(1)[1:], draw_pairs(1)[1:], strict=True):
        assert (a == b).all()
    assert (draw_pairs(0)[1] != draw_pairs(1)[1]).any()


def test_every_window_occurs_once_in_an_epoch():
    passages = PassagePairs(DOCUMENTS, 30, 4, seed=5)
    picked = np.concatenate([passages.picks(3, step) for step in range(passages.steps)])
    assert len(set(picked.tolist())) == passages.steps * passages.rows > len(passages.windows) - 4


def test_in_a_single_document_random_passages_come_from_the_same_document():
    _, _, first, second, follows = draw_pairs(text=build_documents([[6] * 60]))
    assert ((second[:, 0] == first[:, 1]) >= follows).all()
    assert not follows.all()


def test_a_text_with_one_passage_is_refused():
    with pytest.raises(BadInput, match="needs at least two passages"):
        PassagePairs(build_documents([[5, 5]]), 30, 4, seed=0)


def test_a_text_is_encoded_as_sentences_of_documents(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text(PROSE.replace("It\nrained", "It rained") * 30)
    data = TextSource(path=str(path), tokenizer="wordpiece", batching="sentences", valid=0.0).load_data()
    tokenizer = data.tokenizer
    documents = Documents.from_marked_ids(np.asarray(data.train[0].tokens), tokenizer.sep_id, tokenizer.cls_id)
    first = [
        tokenizer.decode(documents.ids[a:b])
        for a, b in zip(documents.sentences[:5], documents.sentences[1:6], strict=True)
    ]
    assert first[2:] == ["Nobody knew.", "Another day began!", "It rained."]
    assert len(documents.documents) - 1 == 31  # the last document of each copy continues in the next copy
    assert not np.isin(documents.ids, tokenizer.special_ids).any()


def test_sentence_batching_needs_wordpiece(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text(PROSE)
    with pytest.raises(BadSetting, match=r"data\.tokenizer=wordpiece"):
        TextSource(path=str(path), tokenizer="char", batching="sentences").load_data()


def test_a_span_ends_a_document(tmp_path):
    from harken.data.text.encode import encode_files

    path, tokenizer = tmp_path / "my.txt", train_tokenizer("wordpiece", lambda: ["a b c d " * 9], 40)
    path.write_text("a b. c d.\n")
    documents = encode_files(
        [Span(path), Span(path)], tokenizer, tmp_path / "kept", documents=DocumentLayout("file", True)
    )
    assert Documents.from_marked_ids(
        np.asarray(documents.tokens), tokenizer.sep_id, tokenizer.cls_id
    ).documents.tolist() == [0, 6, 12]
