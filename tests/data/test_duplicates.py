"""Examples that occur in two splits are counted and named."""

import pytest

from harken.data.duplicates import Identity, NearDuplicates, conflict_notice, duplicate_notices, near_duplicate_key


def identities(*texts, file="train.csv"):
    return [Identity(text, near_duplicate_key(text), "", f"{file}:{n}") for n, text in enumerate(texts, 2)]


@pytest.mark.parametrize("other", ["a  good film", "A good film!", "«A», good-film", "a\tgood\nFILM"])
def test_case_punctuation_and_blanks_make_no_other_key(other):
    assert near_duplicate_key(other) == near_duplicate_key("A good film.")
    assert near_duplicate_key("A bad film.") != near_duplicate_key("A good film.")


def test_a_near_duplicate_is_counted_and_both_places_are_named():
    test = identities("a good film!", "Another", file="test.csv")
    (notice,) = duplicate_notices(identities("one", "A good film."), {"test": test}, [])
    assert "1 of 2 test examples (50%) equal a training example except for" in notice
    assert "(test.csv:2 ~ train.csv:3)" in notice


def test_dropped_examples_are_named_with_the_held_out_example():
    test = identities("same", file="test.csv")
    assert list(duplicate_notices([], {"test": test}, identities("same"))) == [
        "dropped 1 training examples that also occur in valid or test (train.csv:2 = test.csv:2)"
    ]


def test_examples_of_both_held_out_splits_are_named():
    valid, test = identities("x", "same", file="valid.csv"), identities("same", file="test.csv")
    (notice,) = duplicate_notices([], {"valid": valid, "test": test}, [])
    assert notice.startswith("1 test examples also occur in valid (test.csv:2 = valid.csv:3)")


def test_a_dropped_group_is_named():
    dropped, held_out = Identity("x", "", "p7", "train.csv:2"), Identity("y", "", "p7", "test.csv:2")
    (notice,) = duplicate_notices([], {"test": [held_out]}, [dropped])
    assert notice == "dropped 1 training examples of groups that also occur in valid or test ('p7')"


def test_texts_of_punctuation_alone_are_no_near_duplicates():
    assert list(duplicate_notices(identities("?"), {"test": identities("!")}, [])) == []


def test_near_duplicates_in_a_stream_are_named_by_place():
    near, places = (
        NearDuplicates({"valid": ["A cat.", "A dog."], "test": ["the end"]}),
        {"A cat.": "v:7", "a cat": "t:1"},
    )
    assert all(map(near.see, ["a cat", "a bird", "A CAT"]))
    (notice,) = near.notices(lambda texts: {text: places[text] for text in texts})
    assert "1 of 2 valid examples" in notice
    assert "(v:7 ~ t:1)" in notice


def test_equal_examples_with_different_labels_are_named():
    rows = [("same", ("good",), "a.csv:2"), ("x", ("bad",), "a.csv:3"), ("same", ("bad",), "a.csv:9")]
    assert conflict_notice(rows) == "equal examples with different labels: 1 (a.csv:2 is good, a.csv:9 is bad)"
    assert conflict_notice(rows[:2]) == ""


def test_the_order_of_several_labels_is_no_conflict():
    rows = [("text", ("news", "sport"), "a.csv:2"), ("text", ("sport", "news"), "a.csv:3")]
    assert conflict_notice(rows) == ""
    assert "1 (a.csv:2 is news, sport, a.csv:4 is news)" in conflict_notice([*rows, ("text", ("news",), "a.csv:4")])
