"""Tables with labels: what is read, what is asked, who stands on which side, and what is said of flaws."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.detect.kinds import sniff
from harken.data.labelled.source import TableSource, TextLabels
from harken.errors import BadInput, BadRun, BadSetting

WORDS = ["red", "green", "blue", "loud", "quiet", "warm", "cold", "tall"]


def sentence(n: int) -> str:
    return " ".join(WORDS[(n * k + k) % 8] for k in range(1, 5)) + f" {n}"


def table(tmp_path, lines, name="my.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def reviews(tmp_path, many=200, name="my.csv"):
    return table(tmp_path, ["text,label", *(f"{sentence(n)},{'good' if n % 4 else 'bad'}" for n in range(many))], name)


def opened(path, notices=None, **how):
    def listen(event, **facts):
        if notices is not None and event == "notice":
            notices.append(facts["text"])

    return TableSource(path=str(path), **{"tokens": "word", **how}).open(listen=listen)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_columns_are_found_and_every_row_stands_on_one_side(tmp_path):
    data = opened(reviews(tmp_path))
    assert data.words.labels == ["bad", "good"]
    assert data.words.answer == "label"
    rows = [row for part in (data.train, *data.splits.values()) for row in part.rows]
    assert sorted(row.texts[0] for row in rows) == sorted(sentence(n) for n in range(200))
    assert all((row.labels == ("good",)) == bool(int(row.texts[0].split()[-1]) % 4) for row in rows)


def test_a_text_stands_between_marks_and_its_target_is_its_label(tmp_path):
    data = opened(reviews(tmp_path), tokenizer="wordpiece")
    tokens, side = data.words.tokenizer, data.train.texts.side
    assert (side.edge, side[0][0]) == (tokens.sep, tokens.cls)
    assert tokens.decode(side[0][1:]) == data.train.rows[0].texts[0]
    named = [data.words.labels[n] for n in data.train.texts.targets]
    assert named == [row.labels[0] for row in data.train.rows]


def test_a_short_file_has_the_columns_of_the_one_that_is_learned_from(tmp_path):
    reviews(tmp_path, name="train.csv")
    table(
        tmp_path, ["text,label", *(f"{sentence(n)},{'good' if n % 2 else 'bad'}" for n in range(900, 906))], "test.csv"
    )
    assert [row.labels for row in opened(tmp_path).splits["test"].rows] == [("bad",), ("good",)] * 3


def test_a_share_for_the_test_holds_no_text_of_the_valid_file(tmp_path):
    path = reviews(tmp_path, name="train.csv")
    lines = path.read_text().splitlines()
    table(tmp_path, [lines[0], *lines[1::3]], "valid.csv")
    data = opened(tmp_path, test=0.3)
    valid, test = ({row.texts for row in data.splits[split].rows} for split in ("valid", "test"))
    assert len(test) > 20
    assert not valid & test
    assert not {row.texts for row in data.train.rows} & (valid | test)


def test_two_texts_have_a_mark_between_and_the_second_begins_behind_it(tmp_path):
    lines = ["sentence1\tsentence2\tlabel", *(f"{sentence(n)}\twho is {n}\t{n % 2}" for n in range(60))]
    data = opened(table(tmp_path, lines, "my.tsv"), tokenizer="wordpiece")
    part, tokens = data.train.texts, data.words.tokenizer
    for n in range(5):
        ids, second = part.side[n].tolist(), int(part.second[n])
        assert ids[second - 1] == tokens.sep
        assert tokens.decode(ids[1 : second - 1]) == data.train.rows[n].texts[0]
        assert tokens.decode(ids[second:]) == data.train.rows[n].texts[1]


def test_how_many_texts_are_cut_is_told(tmp_path):
    said = []
    lines = [f"{'red ' * (n % 20)}fish,{'good' if n % 2 else 'bad'}" for n in range(200)]
    train = opened(table(tmp_path, ["text,label", *lines]), said, longest=8).train
    assert train.cut > 0
    many = f"{train.cut} of the {len(train)} texts to learn from are cut to 8 tokens"
    assert f"{many}; data.max_length=... keeps more of them" in said


@pytest.mark.parametrize("lengths", [(3, 3), (30, 3), (3, 30), (30, 30), (12, 30)])
def test_of_two_long_texts_the_longer_one_is_cut_first(tmp_path, lengths):
    words = opened(reviews(tmp_path)).words
    a, b = (" ".join(["red"] * n) for n in lengths)
    side, second, cut = words.texts([(a, b)], 20)
    kept = int(second[0]) - 2, len(side[0]) - int(second[0])
    room = 20 - 3
    assert (sum(kept), cut) == (min(room, sum(lengths)), sum(lengths) > room)
    assert all(n == full or n >= room // 2 for n, full in zip(kept, lengths, strict=True))


def test_quotes_of_a_tab_table_are_no_quotes_and_no_row_is_lost(tmp_path):
    lines = ["sentence\tlabel", 'he said " no\t1', 'it is " so "\t0', '" open\t1', "plain text here\t0"]
    lines += [f"{sentence(n)}\t{n % 2}" for n in range(40)]
    data = opened(table(tmp_path, lines, "my.tsv"), valid=0.0, test=0.0)
    assert len(data.train) == 44
    assert 'he said " no' in [row.texts[0] for row in data.train.rows]


def test_a_table_without_a_header_is_read_by_the_numbers_of_its_columns(tmp_path):
    lines = [f"gj04\t{n % 2}\t{'*' if n % 2 else ''}\t{sentence(n)} ." for n in range(60)]
    path = table(tmp_path, lines, "train.tsv")
    found = {name.partition(".")[2]: value for name, value in sniff(path).settings.items()}
    assert found == {"label": 2, "text": 4}
    data = opened(path, **found)
    assert data.words.labels == ["0", "1"]
    assert sum(map(len, (data.train, *data.splits.values()))) == 60


def test_json_lines_have_texts_labels_and_lists_of_labels(tmp_path):
    rows = [{"text": sentence(n), "label": [["a"], ["b", "c"], []][n % 3]} for n in range(60)]
    path = table(tmp_path, map(json.dumps, rows), "my.jsonl")
    data = opened(path, text="text", label="label")
    assert (data.words.answer, data.words.labels) == ("multilabel", ["a", "b", "c"])
    sums = data.train.texts.targets.sum(1)
    assert [len(row.labels) for row in data.train.rows] == sums.astype(int).tolist()


def test_several_labels_are_columns_of_their_own_or_stand_in_one_cell(tmp_path):
    own = [f"{sentence(n)},{n % 2},{int(n % 3 == 0)}" for n in range(60)]
    cell = [
        f"{sentence(n)},{'+'.join(name for name, on in (('odd', n % 2), ('three', n % 3 == 0)) if on)}"
        for n in range(60)
    ]
    columns = opened(table(tmp_path, ["text,odd,three", *own]), text="text", label=["odd", "three"])
    joined = opened(table(tmp_path, ["text,label", *cell], "b.csv"), text="text", label="label", separator="+")
    for data in (columns, joined):
        assert (data.words.answer, data.words.labels) == ("multilabel", ["odd", "three"])
        for row, target in zip(data.train.rows, data.train.texts.targets, strict=True):
            n = int(row.texts[0].split()[-1])
            assert target.tolist() == [n % 2, int(n % 3 == 0)]


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        (["0", "1"], "label"),
        (["1", "2", "3", "4", "5"], "label"),
        (["0.5", "1.0", "4.25"], "number"),
        ([str(n) for n in range(150)], "number"),
        (["1.5", "many"], "label"),
    ],
)
def test_numbers_are_amounts_if_they_are_no_whole_ones_or_too_many(tmp_path, values, answer):
    lines = ["text,score", *(f"{sentence(n)},{values[n % len(values)]}" for n in range(300))]
    assert opened(table(tmp_path, lines), text="text", label="score").words.answer == answer


def test_amounts_are_learned_with_mean_0_and_spread_1(tmp_path):
    lines = ["text,score", *(f"{sentence(n)},{n / 7:.3f}" for n in range(300))]
    data = opened(table(tmp_path, lines), text="text", label="score")
    targets = data.train.texts.targets[:, 0]
    np.testing.assert_allclose([targets.mean(), targets.std()], [0, 1], atol=1e-5)
    back = targets * data.words.spread + data.words.mean
    np.testing.assert_allclose(back, [float(row.labels[0]) for row in data.train.rows], atol=1e-4)


# --- who stands on which side -----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(picks=st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab")), min_size=60, max_size=120))
def test_no_text_stands_on_two_sides(picks, tmp_path_factory):
    rows = [*picks, (100, "a"), (101, "b")]
    lines = ["text,label", *(f"{sentence(n)},{label}" for n, label in rows)]
    data = opened(table(tmp_path_factory.mktemp("t"), lines), text="text", label="label", valid=0.3, test=0.2)
    sides = [{row.texts for row in part.rows} for part in (data.train, *data.splits.values())]
    assert sum(map(len, sides)) == len(set.union(*sides))
    assert sum(map(len, (data.train, *data.splits.values()))) == len(rows)


def test_each_side_has_its_share_of_every_label(tmp_path):
    data = opened(reviews(tmp_path, 400), valid=0.2, test=0.1)
    for split, share in (("valid", 0.2), ("test", 0.1)):
        rows = data.splits[split].rows
        assert sum(row.labels == ("bad",) for row in rows) == 100 * share
        assert len(rows) == 400 * share


def test_another_share_of_one_side_moves_nothing_to_the_other(tmp_path):
    path = reviews(tmp_path, 400)
    few, many = (opened(path, valid=0.2, test=test).splits["valid"].rows for test in (0.0, 0.3))
    assert {row.texts for row in few} == {row.texts for row in many}


def test_files_of_a_folder_are_the_splits_and_their_texts_are_not_learned(tmp_path):
    reviews(tmp_path, 100, "train.csv")
    reviews(tmp_path, 10, "dev.csv")
    notices = []
    data = opened(tmp_path, notices, test=0.0)
    assert (len(data.train), len(data.splits["valid"])) == (90, 10)
    assert any("held out" in text and "10" in text for text in notices)


def test_a_few_examples_of_a_file_in_the_order_of_its_labels_have_all_of_them(tmp_path):
    lines = ["text,label", *(f"{sentence(n)},{'first' if n < 100 else 'second'}" for n in range(200))]
    few, more = (opened(table(tmp_path, lines), examples=many) for many in (30, 60))
    assert len(few.train) == 30
    assert 8 < few.train.texts.targets.sum() < 22
    assert {row.texts for row in few.train.rows} < {row.texts for row in more.train.rows}
    assert [row.texts for row in few.splits["valid"].rows] == [row.texts for row in more.splits["valid"].rows]


# --- what is said of flaws --------------------------------------------------------------------------------------------


def test_rows_without_a_text_or_a_label_are_counted_and_told_by_their_line(tmp_path):
    path = reviews(tmp_path)
    lines = path.read_text().splitlines()
    lines[3], lines[7] = ",good", "something,"
    notices = []
    data = opened(table(tmp_path, lines), notices, valid=0.0, test=0.0)
    assert len(data.train) == 198
    assert f"2 ({path}:4: the text is empty, {path}:8: the label is empty)" in notices[0]


FAULTS = {
    "one class": (["text,label", *(f"{sentence(n)},good" for n in range(30))], "the only label is 'good', so there is"),
    "one number": (["text,score", *(f"{sentence(n)},1.5" for n in range(30))], "the only number is 1.5"),
    "no few labels": (
        ["text,label", *(f"{sentence(n)},name{n}" for n in range(300))],
        "different labels of .* rows, such as 'name0'; a label is one of a few; name another column",
    ),
    "no label": (
        ["text,label", *(f"{sentence(n)}," for n in range(30))],
        "30 of its 30 lines are no text with a label",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_learned_is_refused_in_one_line(tmp_path, name):
    lines, said = FAULTS[name]
    with pytest.raises(BadInput, match=said) as error:
        opened(table(tmp_path, lines), text="text", label=lines[0].partition(",")[2])
    assert "\n" not in str(error.value)


def test_a_label_that_was_not_learned_is_named_with_its_line(tmp_path):
    reviews(tmp_path, 100, "train.csv")
    other = table(tmp_path, ["text,label", "a thing of blue,good", "red and green,godo"], "test.csv")
    with pytest.raises(BadInput, match=r"test.csv:3: the label 'godo' was not learned.* Did you mean good\?"):
        opened(tmp_path / "train.csv", text="text", label="label", test=str(other))


def test_a_column_that_is_not_there_is_named_with_the_one_that_was_meant(tmp_path):
    with pytest.raises(BadInput, match=r"no column 'lable'; its columns are text, label; .*Did you mean label\?"):
        opened(reviews(tmp_path), text="text", label="lable")


def test_a_word_where_a_number_is_asked_is_named_with_its_line(tmp_path):
    with pytest.raises(BadInput, match=r"my.csv:2: 'bad' is not a number, and numbers are asked for"):
        opened(reviews(tmp_path), target_type="number", valid=0.0, test=0.0)


def test_text_without_labels_says_how_to_name_the_columns(tmp_path):
    with pytest.raises(
        BadInput, match=r"no text with a label was found in it .*name the columns: [^;]*data.label=...$"
    ):
        opened(table(tmp_path, [sentence(n) for n in range(50)], "my.txt"))


def test_numbers_without_text_say_how_to_name_sets(tmp_path):
    lines = [f"m{n // 4},{n}.5,{n}.25,{('ring', 'blob')[n // 4 % 2]}" for n in range(80)]
    (tmp_path / "own.csv").write_text("\n".join(["messung,hoehe,breite,form", *lines]))
    with pytest.raises(
        BadInput, match=r"no text with a label .*data.text=.* or, where .*data.group=... data.label=...$"
    ):
        TableSource(path=str(tmp_path / "own.csv")).open()


def test_a_share_of_more_than_all_is_refused(tmp_path):
    with pytest.raises(BadSetting, match=r"data.test = 1.5: a share"):
        opened(reviews(tmp_path), test=1.5)


# --- kept in a run ----------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_labels_and_reads_them_back(tmp_path):
    words = opened(reviews(tmp_path)).words
    for name, content in words.files().items():
        (tmp_path / name).write_bytes(content)
    again = TextLabels.load(tmp_path)
    assert (again.labels, again.answer, again.vocab) == (words.labels, words.answer, words.vocab)


@pytest.mark.parametrize(
    "said",
    ["[]", "{}", '{"labels": []}', '{"labels": [1]}', '{"labels": ["a"], "answer": "x"}', "nul", '{"labels": "ab"}',
     '{"labels": ["a"], "pair": 2}', '{"labels": ["a"], "mean": "1"}', '{"labels": ["a"], "spread": 0}'],
)  # fmt: skip
def test_labels_that_someone_changed_are_refused(tmp_path, said):
    words = opened(reviews(tmp_path)).words
    for name, content in words.files().items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "labels.json").write_text(said)
    with pytest.raises(BadRun, match=r"labels.json: does not tell the labels of a text"):
        TextLabels.load(tmp_path)


def test_an_empty_text_among_others_leaves_them_as_they_are(tmp_path):
    for tokens in ("word", "bpe", "char", "wordpiece"):
        words = opened(reviews(tmp_path), tokens=tokens).words
        side, _, _ = words.texts([("red blue",), ("",), ("tall",)], 20)
        alone = [words.texts([(text,)], 20)[0][0].tolist() for text in ("red blue", "", "tall")]
        assert [side[n].tolist() for n in range(3)] == alone
        assert len(alone[1]) == 1
