import pytest

from harken.data.batch import IGNORE
from harken.data.labelled.conll import Sentence
from harken.data.labelled.tags import TagSource, tagged
from harken.errors import BadInput

LINES = [("Ada", "I-PER"), ("met", "O"), ("Johnson", "I-PER"), ("in", "O"), ("New", "I-LOC"), ("York", "I-LOC")]


@pytest.fixture
def conll(tmp_path):
    def write(name="toy.conll", many=60, lines=LINES):
        some = ["\n".join(f"{w}{n if w == 'Ada' else ''} X {t}" for w, t in lines) for n in range(many)]
        (tmp_path / name).write_text("\n\n".join(some) + "\n")
        return str(tmp_path / name)

    return write


def opened(path, **how):
    told = []
    data = TagSource(path=path, **{"vocab": 100, **how}).open(listen=lambda kind, **f: told.append(f.get("text")))
    return data, [text for text in told if text]


def test_the_columns_are_found_or_named(conll):
    path = conll()
    assert opened(path)[0].words.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    with pytest.raises(BadInput, match="the only tag is 'X'"):
        opened(path, text=1, label=2)


def test_the_first_piece_of_each_word_carries_its_tag_in_bio2(conll):
    part = opened(conll())[0].train
    side, labels = part.texts.side, ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    for n in range(len(part.texts)):
        span = slice(side.starts[n], side.starts[n + 1])
        asked = [labels[t] for t in part.texts.targets[span] if t != IGNORE]
        assert asked == ["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC"]
        assert len(side.ids[span]) > len(asked)  # some words are in pieces, and there is a mark before all


def test_a_sentence_longer_than_a_text_is_read_in_parts_and_loses_no_word(conll):
    words = opened(conll())[0].words
    long = Sentence([word for word, _ in LINES] * 30, ["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC"] * 30)
    part = tagged([long, long], words, 32)
    assert part.texts.lengths.max() <= 32
    assert part.of == sorted(part.of)
    assert (part.texts.targets != IGNORE).sum() == 2 * len(long.words)
    assert part.some(1).of == [n for n in part.of if n == 0]


def test_a_look_takes_sentences_from_everywhere_whole_and_with_their_tags(conll):
    words = opened(conll())[0].words
    names, tags = [word for word, _ in LINES], ["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC"]
    long = [Sentence(names * n, tags * n) for n in range(1, 9)]
    part, few = tagged(long, words, 32), tagged([long[0], long[3], long[7]], words, 32)
    some = part.some(3)
    assert some.sentences == [long[0], long[3], long[7]]
    assert some.of == few.of
    assert some.texts.side.ids.tolist() == few.texts.side.ids.tolist()
    assert some.texts.targets.tolist() == few.texts.targets.tolist()


def test_a_tag_that_was_not_learned_is_told_with_its_place(conll, tmp_path):
    data, _ = opened(conll())
    other = tmp_path / "other.conll"
    other.write_text("Ann NNP B-PER\n\nsaw VBD O\nRome NNP B-CITY\n\n")
    with pytest.raises(
        BadInput, match=rf"{other}:3: the tag 'B-CITY' \(in 'saw Rome'\) was not learned; known are O, "
    ):
        data.settings.model_copy(update={"text": 1, "label": 3}).other(str(other), "test", tokenizer=data.words)


def test_equal_sentences_stand_on_one_side_and_every_sentence_is_somewhere(conll):
    data, told = opened(conll(), valid=0.3, test=0.2)
    about = {
        name: {" ".join(s.words) for s in part.sentences}
        for name, part in [("train", data.train), *data.splits.items()]
    }
    assert sum(map(len, about.values())) == 60
    assert not about["train"] & (about["valid"] | about["test"])
    assert not about["valid"] & about["test"]
    assert not told


def test_sentences_of_a_valid_file_are_not_learned_from_and_that_is_said(conll):
    data, told = opened(conll(), valid=conll("dev.conll", 10), test=0.0)
    assert told == ["training examples left out because they are held out too: 10"]
    assert len(data.train.sentences) == 50


def test_a_tag_that_was_not_learned_is_refused_by_name(conll):
    strange = conll("dev.conll", 3, [("Ada", "B-GPE")])
    with pytest.raises(BadInput, match=r"the tag 'B-GPE' \(in 'Ada0'\) was not learned; known are O, B-LOC"):
        opened(conll(), valid=strange)


def test_the_tokens_of_another_run_stay_and_its_labels_go(conll):
    data = opened(conll())[0]
    again = TagSource(path=conll()).open(tokenizer=data.words)
    assert again.words is data.words
    fresh = TagSource(path=conll("pos.conll", lines=[("Ada", "NNP"), ("runs", "VBZ")])).open(
        tokenizer=data.words.tokenizer
    )
    assert fresh.words.tokenizer is data.words.tokenizer
    assert fresh.words.labels == ["NNP", "VBZ"]
