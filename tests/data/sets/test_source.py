"""Sets: which columns make them, how they are read, split and turned into numbers."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from harken.data.detect.kinds import sniff
from harken.data.sets.batch import SetBatches, padded, scoring
from harken.data.sets.source import SetSource, SetWords
from harken.errors import BadInput, BadRun


def rows(many: int = 60, seed: int = 0) -> list[list[object]]:
    """Clouds near 0 or near 3, of two to six points."""
    rng = np.random.default_rng(seed)
    found = []
    for n in range(many):
        kind = int(rng.integers(2))
        for x, y in rng.normal(3 * kind, 1, (int(rng.integers(2, 7)), 2)):
            found.append([f"c{n}", round(float(x), 4), round(float(y), 4), ("near", "far")[kind]])
    return found


def written(path: Path, some: list[list[object]], header: str = "cloud,x,y,where") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *some] if header else some)
    return path


def test_a_table_of_sets_is_recognised_by_the_column_that_names_them(tmp_path):
    guess = sniff(written(tmp_path / "a.csv", rows()))
    assert guess.kind == "sets"
    assert guess.settings == {"data.group": "cloud", "data.label": "where", "data.columns": ["x", "y"]}
    assert sniff(written(tmp_path / "b.csv", rows(), "")).settings["data.group"] == 1


def test_json_lines_of_sets_are_recognised_and_read_like_a_table(tmp_path):
    path, table = tmp_path / "a.jsonl", written(tmp_path / "a.csv", rows())
    path.write_text("".join(json.dumps(dict(zip(["cloud", "x", "y", "where"], r, strict=True))) + "\n" for r in rows()))
    assert sniff(path).settings == sniff(table).settings
    a, b = (SetSource(path=str(p)).open().train for p in (path, table))
    assert (a.rows == b.rows).all()


@pytest.mark.parametrize(
    ("header", "change", "kind"),
    [
        ("id,x,y,where", lambda n, r: [n, *r[1:]], "table"),  # each row has a name of its own
        ("cloud,x,y,where", lambda n, r: [*r[:3], ("near", "far")[n % 2]], "table"),  # a label for each row
        ("cloud,x,text,where", lambda n, r: [*r[:2], f"a sentence with the words number {n}", r[3]], "table"),
        ("colour,x,y,where", lambda n, r: [n % 7, *r[1:]], "table"),  # a column that repeats, but names no set
    ],
)
def test_what_looks_like_sets_and_is_none_is_not_taken_for_sets(tmp_path, header, change, kind):
    made = [change(n, r) for n, r in enumerate(rows())]
    assert sniff(written(tmp_path / "a.csv", made, header)).kind == kind


@pytest.mark.parametrize("many", [12, 60])
@pytest.mark.parametrize("labels", [("near", "far"), (0, 1)])
def test_a_slip_in_one_row_is_told_by_its_line_and_does_not_make_the_table_one_of_texts(tmp_path, many, labels):
    made = [[*r[:3], labels[r[3] == "far"]] for r in rows(many)]
    made[1][3] = labels[made[1][3] == labels[0]]
    path = written(tmp_path / "a.csv", made, "cloud,x,y,label")
    guess = sniff(path)
    assert (guess.kind, guess.settings["data.label"]) == ("sets", "label")
    with pytest.raises(BadInput, match=r"a.csv:3: set 'c0' is said to be '.*', and '.*' in line 2"):
        SetSource(path=str(path)).open()


def test_rows_of_a_set_are_gathered_wherever_they_stand(tmp_path):
    some = rows(20)
    order = np.random.default_rng(1).permutation(len(some))
    source = SetSource(path=str(written(tmp_path / "a.csv", [some[n] for n in order])), valid=0, test=0)
    found = {one.name: one for one in source.read(tmp_path / "a.csv", lambda *a, **k: None)}
    for name in {r[0] for r in some}:
        own = sorted([r[1], r[2]] for r in some if r[0] == name)
        assert sorted(found[name].rows.tolist()) == own
        assert {found[name].said} == {r[3] for r in some if r[0] == name}


def test_numbers_are_told_by_the_mean_and_spread_of_the_training_rows(tmp_path):
    opened = SetSource(path=str(written(tmp_path / "a.csv", rows())), valid=0.3).open()
    own = [name.partition("[")[2][:-1] for name in opened.train.names]
    learned = np.array([r[1:3] for r in rows() if r[0] in own], float)
    assert len(learned) < len(rows())
    np.testing.assert_allclose(opened.words.centre, learned.mean(0))
    np.testing.assert_allclose(opened.words.width, learned.std(0))
    np.testing.assert_allclose(opened.train.rows.mean(0), [0, 0], atol=1e-6)
    np.testing.assert_allclose(opened.train.rows.std(0, unbiased=False), [1, 1], atol=1e-5)


def test_a_column_that_never_changes_stays_finite(tmp_path):
    some = [[r[0], r[1], 7.1, r[3]] for r in rows()]
    opened = SetSource(path=str(written(tmp_path / "a.csv", some)), group="cloud", label="where", columns="x, y").open()
    assert opened.words.columns == ["x", "y"]
    assert opened.train.rows.isfinite().all()
    assert opened.train.rows[:, 1].abs().max() < 1e-9


def test_what_a_run_keeps_reads_the_same_numbers_again(tmp_path):
    opened = SetSource(path=str(written(tmp_path / "a.csv", rows()))).open()
    for name, content in opened.tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    assert vars(SetSource().words(tmp_path)) == vars(opened.words)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": "ab"},
        {"answer": "x"},
        {"width": [0, 1]},
        {"centre": [1.0]},
        {"group": 1.5},
        {"mean": "1"},
        {"odd": 1},
    ],
    ids=str,
)
def test_what_a_run_keeps_is_refused_if_someone_changed_it(tmp_path, change):
    words = SetSource(path=str(written(tmp_path / "a.csv", rows()))).open().words
    (tmp_path / "labels.json").write_text(json.dumps(json.loads(words.files()["labels.json"]) | change))
    with pytest.raises(BadRun, match=r"labels\.json: does not tell how sets are read"):
        SetWords.load(tmp_path)


def held(opened) -> dict[str, set[str]]:
    return {split: {name.partition("[")[2] for name in part.names} for split, part in opened.parts.items()}


def test_adding_sets_moves_none_to_another_side_and_none_stands_on_two(tmp_path):
    some = rows(80)
    before = held(SetSource(path=str(written(tmp_path / "a.csv", some)), valid=0.2, test=0.2).open())
    after = held(
        SetSource(path=str(written(tmp_path / "b.csv", some + rows(160)[len(some) :])), valid=0.2, test=0.2).open()
    )
    assert all(before.values())
    for split in before:
        assert before[split] <= after[split]
    assert sum(map(len, after.values())) == len(set.union(*after.values()))


def test_a_held_out_set_under_another_name_and_in_another_order_is_not_learned_from(tmp_path):
    (tmp_path / "d").mkdir()
    some, told = rows(30), list[str]()
    written(tmp_path / "d" / "test.csv", some)
    twin = [["copy", *r[1:]] for r in some if r[0] == "c0"][::-1]
    other = [[f"n{r[0]}", r[1] + 1, *r[2:]] for r in some]
    written(tmp_path / "d" / "train.csv", twin + other)
    opened = SetSource(path=str(tmp_path / "d"), valid=0).open(listen=lambda event, text="", **_: told.append(text))
    assert len(opened.train) == 30
    assert not any("copy" in name for name in opened.train.names)
    assert any("held out too: 1" in text for text in told)


def test_files_of_two_splits_may_count_their_sets_alike(tmp_path):
    (tmp_path / "d").mkdir()
    written(tmp_path / "d" / "train.csv", rows(30))
    written(tmp_path / "d" / "test.csv", rows(12, seed=9))
    opened = SetSource(path=str(tmp_path / "d"), valid=0).open()
    assert (len(opened.train), len(opened.splits["test"])) == (30, 12)


def test_of_a_set_that_is_too_large_the_same_rows_are_taken_in_any_order(tmp_path):
    some = [["a", n, n * n, "near"] for n in range(50)] + [["b", n, n, "far"] for n in range(2)]
    made = [
        SetSource(path=str(written(tmp_path / name, order)), valid=0, test=0, longest=7).open().train
        for name, order in (("a.csv", some), ("b.csv", some[::-1]))
    ]
    a, b = (part.rows[start : start + 7] for part, start in zip(made, (0, 2), strict=True))
    assert sorted(map(tuple, a.tolist())) == sorted(map(tuple, b.tolist()))
    assert made[0].lengths.tolist() == [7, 2]


def test_numbers_that_are_said_of_sets_are_an_amount(tmp_path):
    amounts = {f"c{n}": n / 4 for n in range(60)}
    some = [[*r[:3], amounts[r[0]]] for r in rows()]
    words = SetSource(path=str(written(tmp_path / "a.csv", some, "cloud,x,y,score"))).open().words
    assert (words.answer, words.labels) == ("number", ["score"])


@pytest.mark.parametrize(
    ("settings", "change", "said"),
    [
        ({"group": "cluod"}, None, "there is no column 'cluod'; its columns are cloud, x, y, where"),
        ({"group": "cloud", "label": "where", "columns": "x,z"}, None, "there is no column 'z'; its columns are cloud"),
        ({"label": "x", "group": "cloud", "columns": ["y"]}, None, r"a.csv:\d+: set 'c0' is said to be .* in line 2"),
        ({}, lambda r: [*r[:3], "near"], "the only label is 'near'"),
        ({}, lambda r: [*r[:3], r[1]], "no sets were found in it .no column names sets"),
        ({"group": "cloud"}, lambda r: [*r[:3], r[1]], "column 'cloud' names sets, but no other column says one thing"),
        ({"group": "cloud", "label": "where", "columns": "x"}, lambda r: [*r[:3], "near"], "the only label is 'near'"),
        ({}, lambda r: [r[0], f"{r[1]:.0f},5", *r[2:]], "column 'x' has no number: decimals are written with a point"),
        (
            {"group": "cloud", "label": "x", "columns": "where"},
            None,
            "are no row of a set .*column 'where' has no number",
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(tmp_path, settings, change, said):
    some = [change(r) if change else r for r in rows()]
    with pytest.raises(BadInput, match=said) as error:
        SetSource(path=str(written(tmp_path / "a.csv", some)), **settings).open()
    assert "\n" not in str(error.value)


def test_a_header_without_rows_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("cloud,x,y,where\n")
    with pytest.raises(BadInput, match="there is no row below its header"):
        SetSource(path=str(tmp_path / "a.csv"), group="cloud", label="where", columns="x,y").open()


def test_a_row_without_a_number_is_left_out_and_told(tmp_path):
    told = list[str]()
    path = written(tmp_path / "a.csv", [*rows(), ["c1", "none", 1, "near"]])
    SetSource(path=str(path), group="cloud", label="where", columns="x,y").open(
        listen=lambda event, text="", **_: told.append(text)
    )
    assert any(f"{path}:{len(rows()) + 2}: column 'x' has no number" in text for text in told)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("sets") / "a.csv", rows(90))
    return SetSource(path=str(path), valid=0, test=0).open().train


def test_a_batch_has_the_rows_of_its_sets_and_nothing_behind_them(part):
    picks = np.array([3, 0, 7])
    batch = padded(part, picks)
    for row, n in enumerate(picks):
        size = part.lengths[n]
        assert (batch.tokens[row, :size] == part.rows[part.starts[n] : part.starts[n + 1]]).all()
        assert (batch.tokens[row, size:] == 0).all()
    assert batch.size == part.lengths[picks].sum()
    assert batch.lengths.tolist() == part.lengths[picks].tolist()
    assert padded(part, np.array([3])).lengths is None


def test_batches_follow_seed_epoch_and_step_alone_and_hold_sets_of_like_size(part):
    a, b, c = SetBatches(part, 16, seed=1), SetBatches(part, 16, seed=1), SetBatches(part, 16, seed=2)
    a.batch(3, 2)
    assert (a.batch(1, 2).tokens == b.batch(1, 2).tokens).all()
    assert any(a.batch(0, n).tokens.shape != c.batch(0, n).tokens.shape for n in range(a.steps)) or any(
        (a.batch(0, n).tokens != c.batch(0, n).tokens).any() for n in range(a.steps)
    )
    wide = sum(a.batch(0, n).tokens.shape[1] for n in range(a.steps))
    assert wide < a.steps * part.lengths.max()
    assert all(len(a.batch(0, n).tokens) == 16 for n in range(a.steps))


def test_in_judging_each_set_comes_once(part):
    seen = [n for picks, batch in scoring(part, 40) for n in picks.tolist()]
    assert sorted(seen) == list(range(len(part)))
    assert max(batch.tokens.shape[0] * batch.tokens.shape[1] for _, batch in scoring(part, 40)) <= 40
