"""Generated opinions: reproducible, balanced, and labelled consistently with their grammar."""

import re
from collections import Counter

from harken.data.detect.kinds import detect_kind
from harken.data.synthetic.opinions import WORDS, opinions

OPINIONS = list(opinions(1500, seed=3))
GOOD, BAD = ({word for words in WORDS[label].values() for word in words} for label in ("good", "bad"))
NEGATION = re.compile(r"\b(not|never|by no means|hardly)\b")


def infer_labels(text: str) -> set[str]:
    """The label of each sentence: the polarity of its last clause, inverted by a negation."""
    labels = set()
    for sentence in filter(None, (part.strip() for part in text.split("."))):
        clause = sentence.split(", but ")[-1]
        polarities = [(word in GOOD) for word in GOOD | BAD if re.search(rf"\b{word}\b", clause)]
        if len(set(polarities)) == 1:
            labels.add("good" if polarities[0] != bool(NEGATION.search(clause)) else "bad")
    return labels


def test_opinions_depend_on_the_seed_alone() -> None:
    assert list(opinions(20, seed=7)) == list(opinions(20, seed=7)) == list(opinions(30, seed=7))[:20]
    assert not set(opinions(20, seed=7)) & set(opinions(20, seed=8))


def test_texts_are_unique_and_labels_balanced() -> None:
    assert len({text for text, _ in OPINIONS}) == len(OPINIONS)
    assert 0.45 < Counter(label for _, label in OPINIONS)["good"] / len(OPINIONS) < 0.55


def test_every_label_follows_from_the_grammar() -> None:
    for text, label in OPINIONS:
        assert infer_labels(text) <= {label}, text
    assert sum(bool(infer_labels(text)) for text, _ in OPINIONS) > 0.95 * len(OPINIONS)


def test_word_counts_do_not_determine_the_label() -> None:
    """At least a fifth of the texts with more positive than negative words are negative."""
    labels = Counter()
    for text, label in OPINIONS:
        words = Counter(word in GOOD for word in GOOD | BAD if re.search(rf"\b{word}\b", text))
        if words[True] > words[False]:
            labels[label] += 1
    assert labels["bad"] > 0.2 * labels.total()


def test_a_file_of_opinions_is_detected_as_labelled_texts(tmp_path) -> None:
    file = tmp_path / "opinions.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in OPINIONS))
    detection = detect_kind(file)
    assert (detection.kind, detection.settings["data.text"], detection.settings["data.label"]) == (
        "table",
        "text",
        "label",
    )
