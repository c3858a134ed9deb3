"""Labelled tables: reading, targets, splits, and messages about bad rows."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.detect.kinds import detect_kind
from harken.data.label_warnings import numbers_notice
from harken.data.labelled.source import TableSource, TextLabelProcessor
from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.errors import BadInput, BadRun, BadSetting

WORDS = ["red", "green", "blue", "loud", "quiet", "warm", "cold", "tall"]


def sentence(n: int) -> str:
    return " ".join(WORDS[(n * k + k) % 8] for k in range(1, 5)) + f" {n}"


def write_table(folder, lines, name="my.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def write_reviews(folder, count=200, name="my.csv"):
    rows = (f"{sentence(n)},{'good' if n % 4 else 'bad'}" for n in range(count))
    return write_table(folder, ["text,label", *rows], name)


def load(path, notices=None, **settings):
    def listen(event, **facts):
        if notices is not None and event == "notice":
            notices.append(facts["text"])

    return TableSource(path=str(path), **{"tokenizer": "word", **settings}).load_data(listen=listen)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_columns_are_detected_and_every_row_is_in_one_split(tmp_path):
    data = load(write_reviews(tmp_path))
    assert data.processor.labels == ["bad", "good"]
    assert data.processor.target_type == "label"
    rows = [row for part in data.parts.values() for row in part.rows]
    assert sorted(row.texts[0] for row in rows) == sorted(sentence(n) for n in range(200))
    assert all((row.labels == ("good",)) == bool(int(row.texts[0].split()[-1]) % 4) for row in rows)


def test_a_text_has_special_tokens_around_it_and_its_label_as_target(tmp_path):
    data = load(write_reviews(tmp_path), tokenizer="wordpiece")
    tokenizer, tokens = data.processor.tokenizer, data.train.texts.tokens
    assert (tokens.edge, tokens[0][0]) == (tokenizer.sep_id, tokenizer.cls_id)
    assert tokenizer.decode(tokens[0][1:]) == data.train.rows[0].texts[0]
    labels = [data.processor.labels[n] for n in data.train.texts.targets]
    assert labels == [row.labels[0] for row in data.train.rows]


def test_a_short_test_file_uses_the_columns_detected_in_the_training_file(tmp_path):
    write_reviews(tmp_path, name="train.csv")
    rows = (f"{sentence(n)},{'good' if n % 2 else 'bad'}" for n in range(900, 906))
    write_table(tmp_path, ["text,label", *rows], "test.csv")
    assert [row.labels for row in load(tmp_path).splits["test"].rows] == [("bad",), ("good",)] * 3


def test_a_drawn_test_split_has_no_text_of_the_valid_file(tmp_path):
    path = write_reviews(tmp_path, name="train.csv")
    lines = path.read_text().splitlines()
    write_table(tmp_path, [lines[0], *lines[1::3]], "valid.csv")
    data = load(tmp_path, test=0.3)
    valid, test = ({row.texts for row in data.splits[split].rows} for split in ("valid", "test"))
    assert len(test) > 20
    assert not valid & test
    assert not {row.texts for row in data.train.rows} & (valid | test)


def test_two_texts_are_separated_and_the_start_of_the_second_is_recorded(tmp_path):
    lines = ["sentence1\tsentence2\tlabel", *(f"{sentence(n)}\twho is {n}\t{n % 2}" for n in range(60))]
    data = load(write_table(tmp_path, lines, "my.tsv"), tokenizer="wordpiece")
    texts, tokenizer = data.train.texts, data.processor.tokenizer
    for n in range(5):
        ids, start = texts.tokens[n].tolist(), int(texts.segment_starts[n, 0])
        assert ids[start - 1] == tokenizer.sep_id
        assert tokenizer.decode(ids[1 : start - 1]) == data.train.rows[n].texts[0]
        assert tokenizer.decode(ids[start:]) == data.train.rows[n].texts[1]


def test_the_number_of_truncated_texts_is_reported(tmp_path):
    notices = []
    lines = [f"{'red ' * (n % 20)}fish,{'good' if n % 2 else 'bad'}" for n in range(200)]
    data = load(write_table(tmp_path, ["text,label", *lines]), notices, max_length=8)
    n_long = sum(len(row.texts[0].split()) + 2 > 8 for part in data.parts.values() for row in part.rows)
    total = sum(map(len, data.parts.values()))
    fraction = f"{n_long} of {total} texts are longer than 8 tokens (longest: 22) and were truncated"
    assert f"{fraction}; increase data.max_length to keep more" in notices


@pytest.mark.parametrize("lengths", [(3, 3), (30, 3), (3, 30), (30, 30), (12, 30)])
def test_the_longer_text_of_a_pair_is_truncated_first(tmp_path, lengths):
    processor = load(write_reviews(tmp_path)).processor
    a, b = (" ".join(["red"] * n) for n in lengths)
    tokens, segment_starts, _, overflow = processor.encode_texts([(a, b)], 20)
    encoded = int(segment_starts[0, 0]) - 2, len(tokens[0]) - int(segment_starts[0, 0])
    room = 20 - 3
    assert (sum(encoded), overflow.count) == (min(room, sum(lengths)), sum(lengths) > room)
    assert all(n == full or n >= room // 2 for n, full in zip(encoded, lengths, strict=True))


def test_quotes_in_a_tab_separated_table_are_text_and_no_row_is_lost(tmp_path):
    lines = ["sentence\tlabel", 'he said " no\t1', 'it is " so "\t0', '" open\t1', "plain text here\t0"]
    lines += [f"{sentence(n)}\t{n % 2}" for n in range(40)]
    data = load(write_table(tmp_path, lines, "my.tsv"), valid=0.0, test=0.0)
    assert len(data.train) == 44
    assert 'he said " no' in [row.texts[0] for row in data.train.rows]


def test_a_table_without_a_header_is_read_by_column_numbers(tmp_path):
    lines = [f"gj04\t{n % 2}\t{'*' if n % 2 else ''}\t{sentence(n)} ." for n in range(60)]
    path = write_table(tmp_path, lines, "train.tsv")
    detected = {name.partition(".")[2]: value for name, value in detect_kind(path).settings.items()}
    assert detected == {"label": 2, "text": 4}
    data = load(path, **detected)
    assert data.processor.labels == ["0", "1"]
    assert sum(map(len, data.parts.values())) == 60


def test_a_run_on_columns_by_number_reads_json_lines_by_their_names(tmp_path):
    rows = [(f"the {word} {n}", "good" if word == "red" else "bad") for n in range(20) for word in ("red", "blue")]
    (tmp_path / "t.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in rows))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"label": b, "text": a}) + "\n" for a, b in rows[:8]))
    source = TableSource(path=str(tmp_path / "t.tsv"), text=2, label=1, tokenizer="word")
    part = source.load_split(str(tmp_path / "t.jsonl"), "test", tokenizer=source.load_data().processor).splits["test"]
    assert [(row.texts[0], row.labels[0]) for row in part.rows] == rows[:8]


def test_json_lines_have_texts_and_lists_of_labels(tmp_path):
    rows = [{"text": sentence(n), "label": [["a"], ["b", "c"], []][n % 3]} for n in range(60)]
    path = write_table(tmp_path, map(json.dumps, rows), "my.jsonl")
    data = load(path, text="text", label="label")
    assert (data.processor.target_type, data.processor.labels) == ("multilabel", ["a", "b", "c"])
    sums = data.train.texts.targets.sum(1)
    assert [len(row.labels) for row in data.train.rows] == sums.astype(int).tolist()


def test_a_line_break_in_a_label_does_not_make_several_labels(tmp_path):
    names = ["a", "b\n", "two\nwords", "x\x1ey", "two words"]
    rows = [{"text": sentence(n), "label": names[n % 5]} for n in range(60)]
    data = load(write_table(tmp_path, map(json.dumps, rows), "my.jsonl"), text="text", label="label")
    assert (data.processor.target_type, data.processor.labels) == ("label", ["a", "b", "two words", "x y"])


def test_the_texts_of_a_list_of_labels_may_have_line_breaks(tmp_path):
    rows = [{"text": sentence(n), "label": [["a\nb"], ["a\nb", "c"]][n % 2]} for n in range(60)]
    data = load(write_table(tmp_path, map(json.dumps, rows), "my.jsonl"), text="text", label="label")
    assert (data.processor.target_type, data.processor.labels) == ("multilabel", ["a b", "c"])


def test_several_labels_are_in_one_column_each_or_in_one_cell(tmp_path):
    columns = [f"{sentence(n)},{n % 2},{int(n % 3 == 0)}" for n in range(60)]
    cells = [
        f"{sentence(n)},{'+'.join(name for name, on in (('odd', n % 2), ('three', n % 3 == 0)) if on)}"
        for n in range(60)
    ]
    by_column = load(write_table(tmp_path, ["text,odd,three", *columns]), text="text", label=["odd", "three"])
    path = write_table(tmp_path, ["text,label", *cells], "b.csv")
    for data in (by_column, load(path, text="text", label="label", separator="+")):
        assert (data.processor.target_type, data.processor.labels) == ("multilabel", ["odd", "three"])
        for row, target in zip(data.train.rows, data.train.texts.targets, strict=True):
            n = int(row.texts[0].split()[-1])
            assert target.tolist() == [n % 2, int(n % 3 == 0)]


@pytest.mark.parametrize(
    ("values", "target_type"),
    [
        (["0", "1"], "label"),
        (["1", "2", "3", "4", "5"], "label"),
        (["0.5", "1.0", "4.25"], "number"),
        ([str(n) for n in range(150)], "number"),
        (["1.5", "many"], "label"),
    ],
)
def test_numbers_are_regression_targets_if_some_are_fractional_or_there_are_many(tmp_path, values, target_type):
    lines = ["text,score", *(f"{sentence(n)},{values[n % len(values)]}" for n in range(300))]
    assert load(write_table(tmp_path, lines), text="text", label="score").processor.target_type == target_type


def test_regression_targets_are_normalized(tmp_path):
    lines = ["text,score", *(f"{sentence(n)},{n / 7:.3f}" for n in range(300))]
    data = load(write_table(tmp_path, lines), text="text", label="score")
    targets = data.train.texts.targets[:, 0]
    np.testing.assert_allclose([targets.mean(), targets.std()], [0, 1], atol=1e-5)
    values = targets * data.processor.std + data.processor.mean
    np.testing.assert_allclose(values, [float(row.labels[0]) for row in data.train.rows], atol=1e-4)


# --- splits -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(picks=st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab")), min_size=60, max_size=120))
def test_no_text_is_in_two_splits(picks, tmp_path_factory):
    rows = [*picks, (100, "a"), (101, "b")]
    lines = ["text,label", *(f"{sentence(n)},{label}" for n, label in rows)]
    path = write_table(tmp_path_factory.mktemp("t"), lines)
    data = load(path, text="text", label="label", valid=0.3, test=0.2)
    texts = [{row.texts for row in part.rows} for part in data.parts.values()]
    assert sum(map(len, texts)) == len(set.union(*texts))
    assert sum(map(len, data.parts.values())) == len(rows)


def test_each_split_has_its_fraction_of_every_label(tmp_path):
    data = load(write_reviews(tmp_path, 400), valid=0.2, test=0.1)
    for split, fraction in (("valid", 0.2), ("test", 0.1)):
        rows = data.splits[split].rows
        assert sum(row.labels == ("bad",) for row in rows) == 100 * fraction
        assert len(rows) == 400 * fraction


def test_another_test_fraction_does_not_change_the_valid_split(tmp_path):
    path = write_reviews(tmp_path, 400)
    without, with_test = (load(path, valid=0.2, test=test).splits["valid"].rows for test in (0.0, 0.3))
    assert {row.texts for row in without} == {row.texts for row in with_test}


def test_files_of_a_folder_are_the_splits_and_their_texts_are_not_trained_on(tmp_path):
    write_reviews(tmp_path, 100, "train.csv")
    write_reviews(tmp_path, 10, "dev.csv")
    notices = []
    data = load(tmp_path, notices, test=0.0)
    assert (len(data.train), len(data.splits["valid"])) == (90, 10)
    dropped = next(text for text in notices if text.startswith("dropped 10 training examples that also occur in"))
    assert f"{tmp_path / 'train.csv'}:2 = {tmp_path / 'dev.csv'}:2" in dropped


def test_a_few_examples_of_a_file_sorted_by_label_have_every_label(tmp_path):
    lines = ["text,label", *(f"{sentence(n)},{'first' if n < 100 else 'second'}" for n in range(200))]
    fewer, more = (load(write_table(tmp_path, lines), examples=n) for n in (30, 60))
    assert len(fewer.train) == 30
    assert 8 < fewer.train.texts.targets.sum() < 22
    assert {row.texts for row in fewer.train.rows} < {row.texts for row in more.train.rows}
    assert [row.texts for row in fewer.splits["valid"].rows] == [row.texts for row in more.splits["valid"].rows]


# --- bad rows ---------------------------------------------------------------------------------------------------------


def test_rows_without_a_text_or_a_label_are_counted_and_reported_with_their_line(tmp_path):
    path = write_reviews(tmp_path)
    lines = path.read_text().splitlines()
    lines[3], lines[7] = ",good", "something,"
    notices = []
    data = load(write_table(tmp_path, lines), notices, valid=0.0, test=0.0)
    assert len(data.train) == 198
    reasons = f"{path}:4: the text is empty, {path}:8: the label is empty"
    assert notices[0] == f"skipped 2 rows (no text with a label): {reasons}"


FAULTS = {
    "one class": (
        ["text,label", *(f"{sentence(n)},good" for n in range(30))],
        "the only label is 'good'; classification needs at least two labels",
    ),
    "one number": (["text,score", *(f"{sentence(n)},1.5" for n in range(30))], "every target is 1.5"),
    "too many labels": (
        ["text,label", *(f"{sentence(n)},name{n}" for n in range(300))],
        "different labels in .* rows, such as 'name0'; too many for a label; name another column",
    ),
    "no label": (
        ["text,label", *(f"{sentence(n)}," for n in range(30))],
        "30 of its 30 rows are skipped: no text with a label",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_table_without_usable_targets_is_refused_in_one_line(tmp_path, name):
    lines, message = FAULTS[name]
    with pytest.raises(BadInput, match=message) as error:
        load(write_table(tmp_path, lines), text="text", label=lines[0].partition(",")[2])
    assert "\n" not in str(error.value)


def test_an_unknown_label_is_reported_with_its_line(tmp_path):
    write_reviews(tmp_path, 100, "train.csv")
    path = write_table(tmp_path, ["text,label", "a thing of blue,good", "red and green,godo"], "test.csv")
    with pytest.raises(BadInput, match=r"test.csv:3: unknown label 'godo'; known labels are .* Did you mean good\?"):
        load(tmp_path / "train.csv", text="text", label="label", test=str(path))


def test_a_missing_column_is_reported_with_a_similar_one(tmp_path):
    with pytest.raises(BadInput, match=r"no column 'lable'; its columns are text, label; .*Did you mean label\?"):
        load(write_reviews(tmp_path), text="text", label="lable")


def test_a_word_instead_of_a_number_is_reported_with_its_line(tmp_path):
    with pytest.raises(BadInput, match=r"my.csv:2: 'bad' is not a finite number"):
        load(write_reviews(tmp_path), target_type="number", valid=0.0, test=0.0)


def test_a_text_without_labels_is_refused_with_a_hint_to_name_the_columns(tmp_path):
    message = r"no text column with a label column .*name the columns: [^;]*data.label=...$"
    with pytest.raises(BadInput, match=message):
        load(write_table(tmp_path, [sentence(n) for n in range(50)], "my.txt"))


def test_a_numeric_table_is_refused_with_a_hint_to_name_a_group_column(tmp_path):
    lines = [f"m{n // 4},{n}.5,{n}.25,{('ring', 'blob')[n // 4 % 2]}" for n in range(80)]
    (tmp_path / "own.csv").write_text("\n".join(["messung,hoehe,breite,form", *lines]))
    message = r"no text column .*data.text=.* or, if .*data.group=... data.label=...$"
    with pytest.raises(BadInput, match=message):
        TableSource(path=str(tmp_path / "own.csv")).load_data()


def test_a_fraction_above_one_is_refused(tmp_path):
    with pytest.raises(BadSetting, match=r"data.test = 1.5: the fraction of held-out texts"):
        load(write_reviews(tmp_path), test=1.5)


# --- run folder -------------------------------------------------------------------------------------------------------


def save(processor, folder) -> None:
    for name, content in processor.files().items():
        (folder / name).write_bytes(content)


def test_a_processor_is_saved_and_loaded(tmp_path):
    processor = load(write_reviews(tmp_path)).processor
    save(processor, tmp_path)
    loaded = TextLabelProcessor.load(tmp_path)
    assert loaded.labels == processor.labels
    assert (loaded.target_type, loaded.vocab) == (processor.target_type, processor.vocab)


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"labels": []}', '{"labels": [1]}', '{"labels": ["a"], "target_type": "x"}', "nul",
     '{"labels": "ab"}', '{"labels": ["a"], "pair": 2}', '{"labels": ["a"], "mean": "1"}',
     '{"labels": ["a"], "std": 0}'],
)  # fmt: skip
def test_an_invalid_labels_file_is_refused(tmp_path, content):
    save(load(write_reviews(tmp_path)).processor, tmp_path)
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(BadRun, match=r"labels.json: cannot read the processor"):
        TextLabelProcessor.load(tmp_path)


@pytest.mark.parametrize("tokenizer", ["word", "bpe", "char", "wordpiece"])
def test_an_empty_text_does_not_change_the_texts_beside_it(tmp_path, tokenizer):
    processor = load(write_reviews(tmp_path), tokenizer=tokenizer).processor
    tokens, *_ = processor.encode_texts([("red blue",), ("",), ("tall",)], 20)
    alone = [processor.encode_texts([(text,)], 20)[0][0].tolist() for text in ("red blue", "", "tall")]
    assert [tokens[n].tolist() for n in range(3)] == alone
    assert len(alone[1]) == 1


# --- numbers and missing values ---------------------------------------------------------------------------------------


def write_scores(folder, score, name="scores.csv"):
    return write_table(folder, ["text;score", *(f"{sentence(n)};{score(n)}" for n in range(300))], name)


def test_decimal_commas_are_refused_with_the_setting_that_reads_them_and_never_become_classes(tmp_path):
    path = write_scores(tmp_path, lambda n: f"{n % 40 / 10:.1f}".replace(".", ","))
    with pytest.raises(BadInput, match=r"scores.csv: the target '0,0' has a decimal comma; .* set data.decimal=',' "):
        load(path, text="text", label="score")
    data = load(path, text="text", label="score", decimal=",")
    assert data.processor.target_type == "number"
    assert {float(row.labels[0]) for row in data.train.rows} <= {n / 10 for n in range(40)}


def test_decimal_commas_are_labels_if_the_user_says_so(tmp_path):
    path = write_scores(tmp_path, lambda n: f"{n % 4},5")
    data = load(path, text="text", label="score", target_type="label")
    assert data.processor.labels == ["0,5", "1,5", "2,5", "3,5"]


def test_thousands_separators_are_refused_and_not_read_as_fractions(tmp_path):
    path = write_scores(tmp_path, lambda n: f"{1000 + 7 * n:,}")
    with pytest.raises(BadInput, match=r"'1,000' has a thousands separator or a decimal comma; .*data.decimal=','"):
        load(path, text="text", label="score")


def test_a_point_beside_decimal_commas_is_refused_with_its_line(tmp_path):
    path = write_scores(tmp_path, lambda n: "1.234" if n == 7 else f"{n},5")
    with pytest.raises(BadInput, match=r"scores.csv:9: '1.234' is not a number; numbers with a decimal comma"):
        load(path, text="text", label="score", decimal=",")


@pytest.mark.parametrize("value", ["NA", "N/A", "NaN", "null", "None"])
def test_rows_with_a_missing_number_are_skipped_and_counted(tmp_path, value):
    notices = []
    path = write_scores(tmp_path, lambda n: value if n % 30 == 0 else n / 8)
    data = load(path, notices, text="text", label="score", valid=0.0, test=0.0)
    assert (data.processor.target_type, len(data.train)) == ("number", 290)
    assert notices == [f"{path}: skipped 10 rows with a missing target: {value!r} (10)"]


def test_labels_that_look_missing_are_named_and_kept_unless_they_are_dropped(tmp_path):
    lines = ["text,label", *(f"{sentence(n)},{('good', 'bad', 'NA')[n % 3]}" for n in range(300))]
    path, notices = write_table(tmp_path, lines), []
    data = load(path, notices, text="text", label="label", valid=0.0, test=0.0)
    assert data.processor.labels == ["NA", "bad", "good"]
    remedy = "data.missing=drop skips these rows"
    assert notices == [f"{path}: labels that look like missing values are kept: 'NA' (100); {remedy}"]
    data = load(path, text="text", label="label", valid=0.0, test=0.0, missing="drop")
    assert (data.processor.labels, len(data.train)) == (["bad", "good"], 200)


def test_a_table_without_a_row_that_is_not_dropped_is_refused(tmp_path):
    path = write_table(tmp_path, ["text,label", *(f"{sentence(n)},NA" for n in range(9))], "na.csv")
    settings = {"text": "text", "label": "label", "missing": "drop", "tokenizer": "word"}
    with pytest.raises(BadInput, match=r"na\.csv: no training examples; add more examples$"):
        load(path, **settings)
    source = TableSource(path=str(write_reviews(tmp_path)), **settings)
    processor = source.load_data().processor
    with pytest.raises(BadInput, match=r"na\.csv: no examples to evaluate; give a file with examples$"):
        source.load_split(str(path), "test", tokenizer=processor)


def test_training_rows_that_all_occur_in_the_test_file_are_refused(tmp_path):
    path = write_reviews(tmp_path)
    with pytest.raises(BadInput, match=r"no training examples; add more examples$"):
        load(path, test=str(write_reviews(tmp_path, name="test.csv")))


def test_another_file_is_read_with_the_decimal_sign_and_the_target_type_of_the_run(tmp_path):
    source = TableSource(
        path=str(write_scores(tmp_path, lambda n: f"{n},5")), text="text", label="score", decimal=",", valid=0, test=0
    )
    processor = source.load_data().processor
    few = write_table(tmp_path, ["text;score", "good film;1", "bad film;2", "long film;NA"], "few.csv")
    part = source.load_split(str(few), "test", tokenizer=processor).splits["test"]
    assert [row.labels[0] for row in part.rows] == ["1", "2"]
    np.testing.assert_allclose(part.texts.targets[:, 0] * processor.std + processor.mean, [1, 2], atol=1e-4)


def test_a_word_among_numbers_is_reported_with_its_line_and_does_not_make_them_labels(tmp_path):
    path = write_scores(tmp_path, lambda n: "n.a." if n == 3 else n / 8)
    with pytest.raises(BadInput, match=r"scores.csv:5: 'n.a.' is not a finite number; .*data.target_type=label"):
        load(path, text="text", label="score", valid=0.0, test=0.0)


@pytest.mark.parametrize("tokenizer", ["word", "bpe", "char", "wordpiece"])
def test_umlauts_and_capitals_are_kept_and_decomposed_letters_equal_composed_ones(tmp_path, tokenizer):
    words = ["schön", "schon", "Schön"]
    lines = [f"{unicodedata.normalize('NFD' if n % 2 else 'NFC', words[n % 3])} {n},{n % 3}" for n in range(90)]
    processor = load(write_table(tmp_path, ["text,label", *lines]), tokenizer=tokenizer).processor
    rows = [(word,) for word in (*words, unicodedata.normalize("NFD", "schön"))]
    tokens = processor.encode_texts(rows, 20).tokens
    ids = [tuple(tokens[n].tolist()) for n in range(4)]
    assert len({*ids}) == 3
    assert ids[0] == ids[3]
    assert not any(processor.tokenizer.unk_id in row for row in ids if processor.tokenizer.unk_id is not None)


# --- duplicates and labels that may be mistakes -----------------------------------------------------------------------


def test_a_composed_and_a_decomposed_label_are_one(tmp_path):
    labels = ["deutsch", "français", unicodedata.normalize("NFD", "français")]
    notices = []
    data = load(write_table(tmp_path, ["text,label", *(f"{sentence(n)},{labels[n % 3]}" for n in range(90))]), notices)
    assert data.processor.labels == ["deutsch", "français"]
    assert not any("differ only" in text for text in notices)


def test_a_few_words_in_a_column_of_numbers_are_named_with_the_line(tmp_path):
    cells = ["2,5", "3", "krank", *["1,7", "2", "4,3", "5,0"] * 10]
    notices = []
    path = write_table(tmp_path, ["text;label", *(f"{sentence(n)};{cell}" for n, cell in enumerate(cells))])
    load(path, notices)
    expected = f"42 of 43 values of column 'label' are numbers; 'krank' ({path}:4) is not, so all are labels"
    assert any(text.startswith(expected) and text.endswith("set data.decimal=,") for text in notices)
    assert numbers_notice([("1", "a:1"), ("x", "a:2"), ("2", "a:3")], "label") == ""


def test_labels_that_may_be_mistakes_are_named_when_the_data_is_loaded(tmp_path):
    labels = ["Lieferung", "lieferung ", "Zahlung"]
    rows = [f"{sentence(n)},{labels[n % 3]}" for n in range(90)] + ["one more,Rechnung"]
    notices = []
    load(write_table(tmp_path, ["text,label", *rows]), notices)
    assert any("'Lieferung' (30) and 'lieferung' (30)" in text for text in notices)
    assert any("fewer than 5 examples: 'Rechnung' (1)" in text for text in notices)


def test_equal_texts_with_different_labels_are_named(tmp_path):
    rows = [f"{sentence(n)},{'good' if n % 2 else 'bad'}" for n in range(60)]
    notices = []
    path = write_table(tmp_path, ["text,label", *rows, f"{sentence(4)},good"])
    load(path, notices)
    assert f"equal examples with different labels: 1 ({path}:6 is bad, {path}:62 is good)" in notices


def test_a_test_text_that_nearly_equals_a_training_text_is_named(tmp_path):
    write_reviews(tmp_path, 100, "train.csv")
    write_table(tmp_path, ["text,label", f"{sentence(7).upper()} !,good", "something new,bad"], "test.csv")
    notices = []
    load(tmp_path, notices, valid=0.0)
    (near,) = (text for text in notices if "case, punctuation" in text)
    assert near.startswith("1 of 2 test examples (50%)")
    assert f"{tmp_path / 'test.csv'}:2 ~ {tmp_path / 'train.csv'}:9" in near


# --- split by group, by time, in folds --------------------------------------------------------------------------------


def write_visits(folder, count=120):
    rows = (
        f"{sentence(n)};patient {n * 7 % 30};{n % 28 + 1:02d}.{n % 12 + 1:02d}.20{n % 4 + 20};{'ab'[n % 3 == 0]}"
        for n in range(count)
    )
    return write_table(folder, ["note;patient;date;label", *rows])


VISITS = {"text": "note", "label": "label", "valid": 0.2, "test": 0.2}


def test_rows_of_a_group_are_in_one_split(tmp_path):
    data = load(write_visits(tmp_path), **VISITS, group="patient")
    groups = [{row.group for row in part.rows} for part in data.parts.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 30
    assert all(18 <= len(part) <= 30 for part in data.splits.values())
    assert data.facts()["split"].endswith("stratified by label; rows with the same 'patient' are in one split)")


def test_training_rows_of_a_group_of_the_test_file_are_dropped(tmp_path):
    path, notices = write_visits(tmp_path), []
    test = write_table(tmp_path, ["note;patient;label", "something new;patient 7;a", "more;patient 14;b"], "other.csv")
    data = load(path, notices, **VISITS | {"test": str(test)}, group="patient")
    assert len(data.splits["test"]) == 2
    assert not {"patient 7", "patient 14"} & {row.group for row in data.train.rows}
    assert (
        "dropped 8 training examples of groups that also occur in valid or test ('patient 14', 'patient 7')" in notices
    )


def test_the_newest_rows_are_test_and_the_oldest_are_train(tmp_path):
    data = load(write_visits(tmp_path), **VISITS, time="date")
    days = {name: sorted("".join(row.time.split(".")[::-1]) for row in part.rows) for name, part in data.parts.items()}
    assert days["train"][-1] < days["valid"][0] <= days["valid"][-1] < days["test"][0]
    assert (len(days["train"]), len(days["valid"]), len(days["test"])) == (72, 24, 24)
    assert "by time, the newest of column 'date' are held out" in data.facts()["split"]


def test_an_unreadable_time_names_its_line(tmp_path):
    path = write_visits(tmp_path)
    path.write_text(path.read_text().replace("05.05.2020", "May"))
    with pytest.raises(BadInput, match=r"my.csv:6: 'May' is not a date such as 31.03.2024 .data.time = 'date'."):
        load(path, **VISITS, time="date")


def test_a_fold_of_data_with_a_test_file_is_refused(tmp_path):
    write_reviews(tmp_path, 60, "train.csv")
    write_reviews(tmp_path, 9, "test.csv")
    with pytest.raises(BadSetting, match=r"data\.fold=1/5: the data has a test file"):
        load(tmp_path, fold="1/5")


def test_too_few_groups_for_a_split_are_reported(tmp_path):
    rows, notices = [f"{sentence(n)},only one,{'ab'[n % 2]}" for n in range(60)], []
    path = write_table(tmp_path, ["note,patient,label", *rows])
    data = load(path, notices, **VISITS, group="patient")
    assert not data.splits
    assert "data.test: too few groups without equal examples to hold out a split" in notices


def test_a_label_of_the_newest_rows_alone_is_refused_by_time(tmp_path):
    path = write_visits(tmp_path)
    path.write_text(path.read_text() + "one more;patient 1;01.01.2030;c\n")
    with pytest.raises(BadInput, match=r"my.csv:122: label 'c' occurs only in the newest rows"):
        load(path, **VISITS, time="date")


def test_other_data_for_evaluation_needs_no_group_and_no_time(tmp_path):
    source = TableSource(path=str(write_visits(tmp_path)), **VISITS, group="patient", time="date", tokenizer="word")
    data = source.load_data()
    other = write_table(tmp_path, ["note;label", "something new;a", "more;b"], "other.csv")
    loaded = source.load_split(str(other), "test", tokenizer=data.processor)
    assert len(loaded.splits["test"]) == 2
    assert [row.location for row in loaded.train.rows] == [row.location for row in data.train.rows]


def test_five_folds_are_a_partition_of_the_rows(tmp_path):
    path = write_visits(tmp_path)
    parts = [load(path, **VISITS, fold=f"{k}/5") for k in range(1, 6)]
    tests = [{row.location for row in data.splits["test"].rows} for data in parts]
    assert [len(test) for test in tests] == [24] * 5
    assert len(set.union(*tests)) == 120
    assert all(sum(row.labels == ("b",) for row in data.splits["test"].rows) == 8 for data in parts)
    assert all(len(data.train) + len(data.splits["valid"]) == 96 for data in parts)
    assert parts[1].facts()["split"].startswith("valid 0.2, test fold 2 of 5 (")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"fold": "6/5"}, "data.fold=6/5: expected a fold and the number of folds, such as 2/5"),
        ({"fold": "1/1"}, "data.fold=1/1: expected"),
        ({"fold": "1/5", "time": "date"}, "does not go with data.time"),
        ({"fold": "1/5", "test": "my.csv"}, "does not go with a test file"),
        ({"group": "doctor"}, "no column 'doctor'; its columns are note, patient, date, label; set data.group"),
    ],
)
def test_a_split_that_is_impossible_is_refused(tmp_path, extra, message):
    path = write_visits(tmp_path)
    extra = {name: str(tmp_path / value) if name == "test" else value for name, value in extra.items()}
    with pytest.raises((BadInput, BadSetting), match=message):
        load(path, **VISITS | extra)


def test_many_combinations_of_labels_are_detected_as_pairs_with_the_settings_that_read_them(tmp_path):
    names = [f"tag{k}" for k in range(8)]
    rows = [f"{sentence(n)},{';'.join(name for k, name in enumerate(names) if n * 37 >> k & 1)}" for n in range(1, 240)]
    path = write_table(tmp_path, ["text,tags", *rows])
    detection = detect_kind(path)
    assert detection.kind == "pairs"
    assert detection.reason.endswith(
        "; if column 'tags' holds several labels per row: data.label=tags data.separator=';'"
    )
    data = load(path, label="tags", separator=";")
    assert data.processor.labels == names
    assert data.train.rows[0].texts[0] == sentence(int(data.train.rows[0].texts[0].split()[-1]))


def test_repeated_texts_leave_too_few_different_examples_to_hold_out(tmp_path):
    path, notices = tmp_path / "same.csv", list[str]()
    path.write_text("text,label\n" + "a good film,good\na bad film,bad\n" * 75)
    TableSource(path=str(path), text="text", label="label", valid=1e-9, test=1e-9).load_data(
        listen=lambda event, **facts: notices.append(str(facts.get("text")))
    )
    assert "data.test: too few different examples to hold out a split" in notices


def test_word_pieces_of_many_texts_are_those_of_each_text_alone():
    texts = ["Ice cream, please!", "", "naïve \ud800 caf\u00e9", "a" * 50_000, "x y " * 20_000]
    tokenizer = train_tokenizer("wordpiece", lambda: ["ice cream naive cafe please x y z " * 20], 60)
    together = tokenizer.encode_word_pieces(texts)
    assert [ids.tolist() for ids in together] == [tokenizer.encode(text).tolist() for text in texts]
    assert all(ids.dtype == tokenizer.dtype for ids in together)
