import pytest

from harken.data.batch import IGNORE
from harken.data.labelled.tags import Sentence, TagSource, encode_sentences
from harken.errors import BadInput

LINES = [("Ada", "I-PER"), ("met", "O"), ("Johnson", "I-PER"), ("in", "O"), ("New", "I-LOC"), ("York", "I-LOC")]
WORDS, TAGS = [word for word, _ in LINES], ["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC"]


@pytest.fixture
def conll(tmp_path):
    def write(name="toy.conll", count=60, lines=LINES):
        sentences = ["\n".join(f"{w}{n if w == 'Ada' else ''} X {t}" for w, t in lines) for n in range(count)]
        (tmp_path / name).write_text("\n\n".join(sentences) + "\n")
        return str(tmp_path / name)

    return write


def load(path, **settings):
    texts = []
    data = TagSource(path=path, **{"vocab_size": 100, **settings}).load_data(
        listen=lambda kind, **facts: texts.append(facts.get("text"))
    )
    return data, [text for text in texts if text]


def test_the_columns_are_detected_or_named(conll):
    path = conll()
    assert load(path)[0].processor.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    with pytest.raises(BadInput, match="the only tag is 'X'"):
        load(path, text=1, label=2)


def test_the_first_piece_of_each_word_carries_its_tag_in_bio2(conll):
    part = load(conll())[0].train
    tokens, labels = part.texts.tokens, ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    for n in range(len(part.texts)):
        span = slice(tokens.starts[n], tokens.starts[n + 1])
        tags = [labels[t] for t in part.texts.targets[span] if t != IGNORE]
        assert tags == TAGS
        assert len(tokens.ids[span]) > len(tags)  # some words have several pieces, and there is a start token


def test_a_sentence_longer_than_the_maximum_is_split_without_losing_a_word(conll):
    processor = load(conll())[0].processor
    long = Sentence(WORDS * 30, TAGS * 30)
    part = encode_sentences([long, long], processor, 32)
    assert part.texts.lengths.max() <= 32
    assert part.sentence_index == sorted(part.sentence_index)
    assert (part.texts.targets != IGNORE).sum() == 2 * len(long.words)
    assert part.subset(1).sentence_index == [n for n in part.sentence_index if n == 0]


def test_a_subset_takes_evenly_spaced_complete_sentences_with_their_tags(conll):
    processor = load(conll())[0].processor
    sentences = [Sentence(WORDS * n, TAGS * n) for n in range(1, 9)]
    chosen = [sentences[0], sentences[3], sentences[7]]
    subset, expected = encode_sentences(sentences, processor, 32).subset(3), encode_sentences(chosen, processor, 32)
    assert subset.sentences == chosen
    assert subset.sentence_index == expected.sentence_index
    assert subset.texts.tokens.ids.tolist() == expected.texts.tokens.ids.tolist()
    assert subset.texts.targets.tolist() == expected.texts.targets.tolist()


def test_an_unknown_tag_is_reported_with_its_location(conll, tmp_path):
    data, _ = load(conll())
    path = tmp_path / "other.conll"
    path.write_text("Ann NNP B-PER\n\nsaw VBD O\nRome NNP B-CITY\n\n")
    with pytest.raises(BadInput, match=rf"{path}:3: 'saw Rome': unknown label 'B-CITY'; known labels are O, "):
        data.settings.model_copy(update={"text": 1, "label": 3}).load_split(str(path), "test", tokenizer=data.processor)


def test_all_unknown_tags_of_other_data_are_named_and_known_sentences_are_reported(conll, tmp_path):
    data, _ = load(conll())
    source, path = data.settings.model_copy(update={"text": 1, "label": 3}), tmp_path / "other.conll"
    path.write_text("saw VBD O\nRome NNP B-CITY\n\nIt NNP B-IT\nRome NNP B-CITY\n\n")
    with pytest.raises(BadInput, match=r"2 sentences have unknown labels: 'B-CITY' \(2\), 'B-IT' \(1\); known"):
        source.load_split(str(path), "test", tokenizer=data.processor)
    known, notices = data.train.sentences[0], []
    path.write_text("".join(f"{w} X {t}\n" for w, t in zip(known.words, known.tags, strict=True)) + "\nnew X O\n\n")
    listen = lambda event, **facts: notices.append(facts.get("text", ""))  # noqa: E731
    source.load_split(str(path), "test", tokenizer=data.processor, listen=listen)
    assert any("1 of 2 examples are also in the training split" in text for text in notices)


def test_a_word_with_more_pieces_than_a_text_may_have_is_reported(conll):
    processor = load(conll())[0].processor
    texts = encode_sentences([Sentence(["Ada", "sawAda" * 5], ["O", "O"])], processor, 8)
    assert (texts.overflow.count, texts.overflow.total, texts.overflow.inputs) == (1, 2, "words")
    assert not encode_sentences([Sentence(["Ada"], ["O"])], processor, 8).overflow.count


def test_equal_sentences_are_in_one_split_and_every_sentence_is_in_a_split(conll):
    data, notices = load(conll(), valid=0.3, test=0.2)
    texts = {name: {" ".join(s.words) for s in part.sentences} for name, part in data.parts.items()}
    assert sum(map(len, texts.values())) == 60
    assert not texts["train"] & (texts["valid"] | texts["test"])
    assert not texts["valid"] & texts["test"]
    assert not notices


def test_training_sentences_that_occur_in_a_valid_file_are_dropped_with_a_notice(conll):
    data, notices = load(conll(), valid=conll("dev.conll", 10), test=0.0)
    assert [text.partition(" (")[0] for text in notices] == [
        "dropped 10 training examples that also occur in valid or test"
    ]
    assert len(data.train.sentences) == 50


def test_an_unknown_tag_in_a_valid_file_is_refused(conll):
    path = conll("dev.conll", 3, [("Ada", "B-GPE")])
    with pytest.raises(BadInput, match=r"'Ada0': 3 sentences have unknown labels: 'B-GPE' \(3\); known labels are O"):
        load(conll(), valid=path)
