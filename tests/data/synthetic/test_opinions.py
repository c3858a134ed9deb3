"""The opinions: the same each time, and labelled as a reader who knows the words would label them."""

import re
from collections import Counter

from harken.data.detect.kinds import detect_kind
from harken.data.synthetic import opinions as grammar
from harken.data.synthetic.opinions import opinions

OPINIONS = list(opinions(1500, seed=3))
GOOD, BAD = (
    {word for some in (grammar.ADJECTIVES, grammar.VERBS, grammar.REACTIONS) for word in re.split(r"[|\n]", some[good])}
    for good in (True, False)
)
NEGATION = re.compile(r"\b(not|never|by no means|hardly)\b")


def infer_labels(text: str) -> set[str]:
    """What each sentence says: the clause behind 'but' counts, its one telling word, and whether that is denied."""
    labels = set()
    for sentence in filter(None, (part.strip() for part in text.split("."))):
        clause = sentence.split(", but ")[-1]
        polarities = [(word in GOOD) for word in GOOD | BAD if re.search(rf"\b{word}\b", clause)]
        if len(set(polarities)) == 1:
            labels.add("good" if polarities[0] != bool(NEGATION.search(clause)) else "bad")
    return labels


def test_the_same_seed_gives_the_same_opinions_and_another_one_others() -> None:
    assert list(opinions(20, seed=7)) == list(opinions(20, seed=7)) == list(opinions(30, seed=7))[:20]
    assert not set(opinions(20, seed=7)) & set(opinions(20, seed=8))


def test_no_text_comes_twice_and_both_labels_come_about_as_often() -> None:
    assert len({text for text, _ in OPINIONS}) == len(OPINIONS)
    assert 0.45 < Counter(label for _, label in OPINIONS)["good"] / len(OPINIONS) < 0.55


def test_a_reader_who_knows_the_words_finds_every_label() -> None:
    for text, label in OPINIONS:
        assert infer_labels(text) <= {label}, text
    assert sum(bool(infer_labels(text)) for text, _ in OPINIONS) > 0.95 * len(OPINIONS)


def test_words_alone_do_not_tell() -> None:
    """A text with more good words than bad ones is bad every fifth time at least."""
    labels = Counter()
    for text, label in OPINIONS:
        words = Counter(word in GOOD for word in GOOD | BAD if re.search(rf"\b{word}\b", text))
        if words[True] > words[False]:
            labels[label] += 1
    assert labels["bad"] > 0.2 * labels.total()


def test_they_are_recognised_as_texts_with_labels(tmp_path) -> None:
    file = tmp_path / "opinions.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in OPINIONS))
    detection = detect_kind(file)
    assert (detection.kind, detection.settings["data.text"], detection.settings["data.label"]) == ("table", "text", "label")
