"""Several text columns as the segments of one input: encoding, truncation, empty cells, duplicates, bag of words."""

import csv
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harken.data.labelled.batch import collate_padded
from harken.data.labelled.source import TableSource, TextLabelProcessor
from harken.data.labelled.truncation import text_widths
from harken.errors import BadInput
from harken.models.heads import BERTHeadSettings
from harken.tasks.baselines.linear import bag_of_words
from harken.tasks.classify import batch_outputs

COLUMNS = ["user", "product", "text"]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*COLUMNS, "label"], *rows])
    return path


def rows(count=60):
    return [(f"user{n % 5}", ("lamp", "chair")[n % 2], f"it is quite loud {n}", "ny"[n % 3 > 0]) for n in range(count)]


def load(path, **settings):
    return TableSource(path=str(path), text=COLUMNS, label="label", **settings).load_data()


def all_rows(data):
    return [row for part in data.parts.values() for row in part.rows]


def test_the_columns_are_separated_by_sep_and_have_their_own_token_types(tmp_path):
    data = load(write(tmp_path / "my.csv", rows()))
    tokenizer, part = data.processor.tokenizer, data.train
    encoded = [[tokenizer.encode(text).tolist() for text in row.texts] for row in part.rows]
    batch = collate_padded(part.texts, np.arange(len(part)))
    for n, (a, b, c) in enumerate(encoded):
        length, sep = int(batch.lengths[n]), tokenizer.sep_id
        assert batch.tokens[n, :length].tolist() == [tokenizer.cls_id, *a, sep, *b, sep, *c, sep]
        assert batch.segments[n, :length].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [2] * (len(c) + 1)


def test_further_columns_share_the_last_token_type_of_a_model_with_two(tmp_path):
    data = load(write(tmp_path / "my.csv", rows()))
    batch = collate_padded(data.train.texts, np.arange(4))
    torch.manual_seed(0)
    model = BERTHeadSettings(d=16, layers=1, heads=2, context=64).build(data.processor.vocab).eval()
    shared = replace(batch, segments=batch.segments.clamp_max(1))
    torch.testing.assert_close(batch_outputs(model, batch), batch_outputs(model, shared))
    single = replace(batch, segments=batch.segments * 0)
    assert not torch.allclose(batch_outputs(model, batch), batch_outputs(model, single))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(5, 60))
def test_the_longest_text_loses_tokens_first(lengths, room):
    kept = list(lengths)
    while sum(kept) > room:  # one token at a time, from the last of the longest texts
        longest = max(n for n in range(len(kept)) if kept[n] == max(kept))
        kept[longest] -= 1
    assert text_widths(lengths, room) == kept


def test_a_row_with_an_empty_column_is_read_and_one_without_any_text_is_not(tmp_path):
    table = [*rows(), ("user1", "", "no product", "y"), ("", " ", "", "n")]
    read = all_rows(load(write(tmp_path / "my.csv", table)))
    assert len(read) == 61
    assert ("user1", "", "no product") in [row.texts for row in read]


def test_an_equal_text_of_another_user_is_another_example(tmp_path):
    table = [(f"user{n}", "lamp", "it is loud", "ny"[n % 2]) for n in range(20)]
    same = write(tmp_path / "test.csv", [table[3], ("user99", "lamp", "it is loud", "y")])
    data = load(write(tmp_path / "my.csv", table), test=str(same), valid=0.0)
    assert sorted(row.texts for row in data.train.rows) == sorted(row[:3] for n, row in enumerate(table) if n != 3)


def test_the_bag_of_words_has_a_feature_for_each_word_of_each_segment(tmp_path):
    texts = load(
        write(tmp_path / "my.csv", [*rows(20), *[("loud", "loud chair", f"the lamp {n}", "y") for n in range(3)]])
    ).train.texts
    vocab = int(texts.tokens.ids.max()) + 1
    features, W = bag_of_words(texts, vocab), torch.randn(4 * vocab, 2, generator=torch.manual_seed(0))
    for n, y in enumerate(features @ W):
        segments = [set(part.tolist()) for part in np.split(texts.tokens[n], texts.segment_starts[n])]
        several = [token for token, count in Counter(t for s in segments for t in s).items() if count > 1]
        expected = sum(W[k * vocab + t] for k, s in enumerate(segments) for t in s) + sum(
            W[3 * vocab + t] for t in several
        )
        torch.testing.assert_close(y, expected)


def test_a_processor_of_an_earlier_version_is_read(tmp_path):
    processor = load(write(tmp_path / "my.csv", rows())).processor
    files = processor.files()
    saved = json.loads(files["labels.json"])
    assert saved.pop("n_texts") == 3
    for pair in (False, True):
        (tmp_path / "tokenizer.json").write_bytes(files["tokenizer.json"])
        (tmp_path / "labels.json").write_text(json.dumps(saved | {"pair": pair}))
        assert TextLabelProcessor.load(tmp_path).n_texts == 1 + pair


def test_more_columns_than_fit_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"1 to 3 columns fit into data.max_length=8"):
        TableSource(
            path=str(write(tmp_path / "my.csv", rows())), text=[*COLUMNS, "label"], label=4, max_length=8
        ).load_data()


@pytest.mark.parametrize("text", ["user,product,text", "[user, product, text]"])
def test_a_list_of_columns_that_is_not_written_as_one_is_refused_with_what_to_write(tmp_path, text):
    path = write(tmp_path / "my.csv", rows())
    with pytest.raises(BadInput, match=r"""write data\.text='\["user", "product", "text"\]'"""):
        TableSource(path=str(path), text=text, label="label").load_data()


def test_a_table_without_a_column_for_the_label_beside_the_texts_names_its_columns(tmp_path):
    path = write(tmp_path / "my.csv", rows())
    expected = (
        r"5 different columns are needed for data\.text and data\.label, but it has 4 \(user, product, text, label\)"
    )
    with pytest.raises(BadInput, match=expected):
        TableSource(path=str(path), text=[*COLUMNS, "label"]).load_data()
