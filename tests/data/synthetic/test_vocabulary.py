"""Generated uses of science words: reproducible, labelled as their grammar says, and not solvable by single words."""

import re
from collections import Counter

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from harken.data.detect.kinds import detect_kind
from harken.data.synthetic.vocabulary import TABLES, TEMPLATES, student_uses, textbook, word_groups

ROWS = {split: list(student_uses(split, 1200)) for split in ("train", "test", "new-words")}
USES = {word: uses for group in TABLES["groups"] for word, uses in group["uses"].items()}


def pattern_of(use: str) -> str:
    """A use as a regular expression, with every filler of its slots."""
    parts = re.split(r"\{(\w+)\}", use)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [f"(?:{'|'.join(map(re.escape, TABLES['slots'][slot]))})" for slot in parts[1::2]]
    return "".join(parts)


PATTERNS = {word: re.compile("|".join(map(pattern_of, uses))) for word, uses in USES.items()}


def fluent(sentence: str) -> str:
    """The sentence without fillers, false starts and repeated words."""
    sentence = re.sub(rf"\b({'|'.join(TEMPLATES['repairs'])})\b", "", sentence)
    sentence = re.sub(r"\b(um|uh|you know|er|kind of)\b", "", sentence)
    return re.sub(r"\b(\w+)( \1\b)+", r"\1", " ".join(sentence.split()))


def test_rows_depend_on_the_split_alone_and_no_sentence_is_in_two() -> None:
    assert list(student_uses("train", 30)) == ROWS["train"][:30]
    sentences = {split: {row[0] for row in rows} for split, rows in ROWS.items()}
    assert not sentences["train"] & sentences["test"]
    assert [len(texts) for texts in sentences.values()] == [1200] * 3


def test_labels_are_balanced_for_every_word() -> None:
    for rows in ROWS.values():
        counts = Counter((word, label) for _, _, label, word in rows)
        for word in {row[3] for row in rows}:
            assert 0.25 < counts[word, "right"] / (counts[word, "right"] + counts[word, "wrong"]) < 0.75


@pytest.mark.parametrize("split", list(ROWS))
def test_a_sentence_is_right_if_and_only_if_it_has_a_use_of_its_word(split) -> None:
    n_read = 0
    for sentence, example, label, word in ROWS[split]:
        assert PATTERNS[word].search(example), example
        text = fluent(sentence)
        readings = [other for other, pattern in PATTERNS.items() if pattern.search(text)]
        n_read += bool(readings)  # the filler "like" is also a word of some uses, so not every sentence is readable
        if readings:
            assert (word in readings) == (label == "right"), (sentence, readings)
    assert n_read > 0.6 * len(ROWS[split])


def test_new_words_have_no_labelled_sentence_and_are_in_the_textbook() -> None:
    known, new = ({word for group in word_groups(new=flag) for word in group} for flag in (False, True))
    assert not known & new
    assert {row[3] for split in ("train", "test") for row in ROWS[split]} == known
    assert {row[3] for row in ROWS["new-words"]} == new
    assert not any(re.search(rf"\b{word.split()[-1]}\b", row[0]) for word in new for row in ROWS["train"])
    book = " ".join(textbook(1000)).lower()
    assert all(word in book for word in known | new)


def test_a_bag_of_words_is_near_the_most_frequent_label() -> None:
    vectorizer = CountVectorizer(binary=True)
    texts = {split: [" ".join((row[0], *(f"{w}_2" for w in row[1].split()))) for row in ROWS[split]] for split in ROWS}
    labels = {split: [row[2] for row in ROWS[split]] for split in ROWS}
    model = LogisticRegression(max_iter=300).fit(vectorizer.fit_transform(texts["train"]), labels["train"])
    for split in ("test", "new-words"):
        majority = max(Counter(labels[split]).values()) / len(labels[split])
        assert model.score(vectorizer.transform(texts[split]), labels[split]) < majority + 0.05


def test_sentence_and_example_have_no_content_word_in_common_but_the_science_word() -> None:
    shared = Counter(
        w for a, b, _, word in ROWS["train"] for w in {*a.split()} & {*b.lower().strip(".").split()} - {*word.split()}
    )
    assert not {"water", "blood", "ground", "current", "magnet"} & shared.keys()


def test_the_folder_is_detected_as_labelled_pairs_of_texts(tmp_path) -> None:
    for split in ("train", "test"):
        lines = ["sentence\texample\tlabel\tword", *("\t".join(row) for row in ROWS[split])]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    detection = detect_kind(tmp_path)
    assert (detection.kind, detection.settings["data.label"]) == ("table", "label")
