"""Sets: column detection, reading, splitting, standardization and batches."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from harken.data.detect.kinds import detect_kind
from harken.data.sets.source import SetBatches, SetProcessor, SetSource, eval_batches, pad_sets
from harken.errors import BadInput, BadRun


def make_rows(n_sets: int = 60, seed: int = 0) -> list[list[object]]:
    """Clouds near 0 or near 3, of two to six points."""
    rng = np.random.default_rng(seed)
    table = []
    for n in range(n_sets):
        kind = int(rng.integers(2))
        for x, y in rng.normal(3 * kind, 1, (int(rng.integers(2, 7)), 2)):
            table.append([f"c{n}", round(float(x), 4), round(float(y), 4), ("near", "far")[kind]])
    return table


def write_csv(path: Path, table: list[list[object]], header: str = "cloud,x,y,where") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *table] if header else table)
    return path


def test_a_table_of_sets_is_detected_by_its_group_column(tmp_path):
    detection = detect_kind(write_csv(tmp_path / "a.csv", make_rows()))
    assert detection.kind == "sets"
    assert detection.settings == {"data.group": "cloud", "data.label": "where", "data.columns": ["x", "y"]}
    assert detect_kind(write_csv(tmp_path / "b.csv", make_rows(), "")).settings["data.group"] == 1


def test_json_lines_of_sets_are_detected_and_read_like_a_table(tmp_path):
    path, table = tmp_path / "a.jsonl", write_csv(tmp_path / "a.csv", make_rows())
    path.write_text(
        "".join(json.dumps(dict(zip(["cloud", "x", "y", "where"], r, strict=True))) + "\n" for r in make_rows())
    )
    assert detect_kind(path).settings == detect_kind(table).settings
    a, b = (SetSource(path=str(p)).load_data().train for p in (path, table))
    assert (a.rows == b.rows).all()


@pytest.mark.parametrize(
    ("header", "change", "kind"),
    [
        ("id,x,y,where", lambda n, r: [n, *r[1:]], "table"),  # every row has its own name
        ("cloud,x,y,where", lambda n, r: [*r[:3], ("near", "far")[n % 2]], "table"),  # one label per row
        ("cloud,x,text,where", lambda n, r: [*r[:2], f"a sentence with the words number {n}", r[3]], "table"),
        ("color,x,y,where", lambda n, r: [n % 7, *r[1:]], "table"),  # a repeating column that is not named like a group
    ],
)
def test_similar_tables_are_not_detected_as_sets(tmp_path, header, change, kind):
    table = [change(n, r) for n, r in enumerate(make_rows())]
    assert detect_kind(write_csv(tmp_path / "a.csv", table, header)).kind == kind


@pytest.mark.parametrize("n_sets", [12, 60])
@pytest.mark.parametrize("labels", [("near", "far"), (0, 1)])
def test_one_conflicting_label_is_reported_with_its_line_and_does_not_change_the_kind(tmp_path, n_sets, labels):
    table = [[*r[:3], labels[r[3] == "far"]] for r in make_rows(n_sets)]
    table[1][3] = labels[table[1][3] == labels[0]]
    path = write_csv(tmp_path / "a.csv", table, "cloud,x,y,label")
    detection = detect_kind(path)
    assert (detection.kind, detection.settings["data.label"]) == ("sets", "label")
    with pytest.raises(BadInput, match=r"a.csv:3: set 'c0' has the label '.*', but '.*' at .*a.csv:2"):
        SetSource(path=str(path)).load_data()


def test_the_rows_of_a_set_need_not_be_adjacent(tmp_path):
    table = make_rows(20)
    order = np.random.default_rng(1).permutation(len(table))
    source = SetSource(path=str(write_csv(tmp_path / "a.csv", [table[n] for n in order])), valid=0, test=0)
    sets = {example.name: example for example in source.read(tmp_path / "a.csv", lambda *a, **k: None)}
    for name in {r[0] for r in table}:
        assert sorted(sets[name].rows.tolist()) == sorted([r[1], r[2]] for r in table if r[0] == name)
        assert {sets[name].target} == {r[3] for r in table if r[0] == name}


def test_columns_are_standardized_by_the_training_rows(tmp_path):
    data = SetSource(path=str(write_csv(tmp_path / "a.csv", make_rows())), valid=0.3).load_data()
    names = [name.partition("[")[2][:-1] for name in data.train.names]
    train_rows = np.array([r[1:3] for r in make_rows() if r[0] in names], float)
    assert len(train_rows) < len(make_rows())
    np.testing.assert_allclose(data.processor.feature_mean, train_rows.mean(0))
    np.testing.assert_allclose(data.processor.feature_std, train_rows.std(0))
    np.testing.assert_allclose(data.train.rows.mean(0), [0, 0], atol=1e-6)
    np.testing.assert_allclose(data.train.rows.std(0, unbiased=False), [1, 1], atol=1e-5)


def test_a_constant_column_stays_finite(tmp_path):
    table = [[r[0], r[1], 7.1, r[3]] for r in make_rows()]
    path = write_csv(tmp_path / "a.csv", table)
    data = SetSource(path=str(path), group="cloud", label="where", columns="x, y").load_data()
    assert data.processor.columns == ["x", "y"]
    assert data.train.rows.isfinite().all()
    assert data.train.rows[:, 1].abs().max() < 1e-9


def test_a_saved_processor_is_loaded_unchanged(tmp_path):
    data = SetSource(path=str(write_csv(tmp_path / "a.csv", make_rows()))).load_data()
    for name, content in data.tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    assert vars(SetSource().load_processor(tmp_path)) == vars(data.processor)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": "ab"},
        {"target_type": "x"},
        {"feature_std": [0, 1]},
        {"feature_mean": [1.0]},
        {"group": 1.5},
        {"mean": "1"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_an_invalid_processor_file_is_refused(tmp_path, change):
    processor = SetSource(path=str(write_csv(tmp_path / "a.csv", make_rows()))).load_data().processor
    (tmp_path / "labels.json").write_text(json.dumps(json.loads(processor.files()["labels.json"]) | change))
    with pytest.raises(BadRun, match=r"labels\.json: cannot read the processor"):
        SetProcessor.load(tmp_path)


def names_by_split(data) -> dict[str, set[str]]:
    return {split: {name.partition("[")[2] for name in sets.names} for split, sets in data.parts.items()}


def test_added_sets_move_no_other_set_and_the_splits_are_disjoint(tmp_path):
    table = make_rows(80)
    before = names_by_split(SetSource(path=str(write_csv(tmp_path / "a.csv", table)), valid=0.2, test=0.2).load_data())
    after = names_by_split(
        SetSource(
            path=str(write_csv(tmp_path / "b.csv", table + make_rows(160)[len(table) :])), valid=0.2, test=0.2
        ).load_data()
    )
    assert all(before.values())
    for split in before:
        assert before[split] <= after[split]
    assert sum(map(len, after.values())) == len(set.union(*after.values()))


def test_a_renamed_and_reordered_copy_of_a_held_out_set_is_dropped_from_training(tmp_path):
    (tmp_path / "d").mkdir()
    table, notices = make_rows(30), list[str]()
    write_csv(tmp_path / "d" / "test.csv", table)
    copy = [["copy", *r[1:]] for r in table if r[0] == "c0"][::-1]
    shifted = [[f"n{r[0]}", r[1] + 1, *r[2:]] for r in table]
    write_csv(tmp_path / "d" / "train.csv", copy + shifted)
    source = SetSource(path=str(tmp_path / "d"), valid=0)
    data = source.load_data(listen=lambda event, text="", **_: notices.append(text))
    assert len(data.train) == 30
    assert not any("copy" in name for name in data.train.names)
    assert any("dropped 1 training examples" in text for text in notices)


def test_files_of_two_splits_may_use_the_same_set_names(tmp_path):
    (tmp_path / "d").mkdir()
    write_csv(tmp_path / "d" / "train.csv", make_rows(30))
    write_csv(tmp_path / "d" / "test.csv", make_rows(12, seed=9))
    data = SetSource(path=str(tmp_path / "d"), valid=0).load_data()
    assert (len(data.train), len(data.splits["test"])) == (30, 12)


def test_the_rows_sampled_from_a_large_set_do_not_depend_on_their_order(tmp_path):
    table = [["a", n, n * n, "near"] for n in range(50)] + [["b", n, n, "far"] for n in range(2)]
    splits = [
        SetSource(path=str(write_csv(tmp_path / name, order)), valid=0, test=0, max_rows=7).load_data().train
        for name, order in (("a.csv", table), ("b.csv", table[::-1]))
    ]
    a, b = (sets.rows[start : start + 7] for sets, start in zip(splits, (0, 2), strict=True))
    assert sorted(map(tuple, a.tolist())) == sorted(map(tuple, b.tolist()))
    assert splits[0].lengths.tolist() == [7, 2]
    notices = list[str]()
    source = SetSource(path=str(tmp_path / "a.csv"), valid=0, test=0, max_rows=7)
    source.load_data(listen=lambda event, **facts: notices.append(facts["text"]))
    counts = "1 of 2 sets is longer than 7 rows (longest: 50) and was sampled"
    assert f"{counts}; increase data.max_rows to keep more" in notices


def test_numeric_targets_make_a_regression(tmp_path):
    scores = {f"c{n}": n / 4 for n in range(60)}
    table = [[*r[:3], scores[r[0]]] for r in make_rows()]
    processor = SetSource(path=str(write_csv(tmp_path / "a.csv", table, "cloud,x,y,score"))).load_data().processor
    assert (processor.target_type, processor.labels) == ("number", ["score"])


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"group": "cluod"}, None, "no column 'cluod'; its columns are cloud, x, y, where"),
        ({"group": "cloud", "label": "where", "columns": "x,z"}, None, "no column 'z'; its columns are cloud"),
        ({"label": "x", "group": "cloud", "columns": ["y"]}, None, r"a.csv:\d+: set 'c0' has the label .* at .*csv:2"),
        ({}, lambda r: [*r[:3], "near"], "the only label is 'near'"),
        ({}, lambda r: [*r[:3], r[1]], "no sets detected .no column groups the rows"),
        (
            {"group": "cloud"},
            lambda r: [*r[:3], r[1]],
            "column 'cloud' groups the rows, but no other column is constant",
        ),
        ({"group": "cloud", "label": "where", "columns": "x"}, lambda r: [*r[:3], "near"], "the only label is 'near'"),
        (
            {},
            lambda r: [r[0], f"{r[1]:.0f},5", *r[2:]],
            r"column 'x': '\d,5' has a decimal comma; .* set data.decimal=','$",
        ),
        (
            {"group": "cloud", "label": "x", "columns": "where"},
            None,
            "rows are skipped: no row of a set .*column 'where' is not a number",
        ),
    ],
)
def test_an_unreadable_table_is_reported_in_one_line(tmp_path, settings, change, message):
    table = [change(r) if change else r for r in make_rows()]
    with pytest.raises(BadInput, match=message) as error:
        SetSource(path=str(write_csv(tmp_path / "a.csv", table)), **settings).load_data()
    assert "\n" not in str(error.value)


def test_a_header_without_rows_is_reported(tmp_path):
    (tmp_path / "a.csv").write_text("cloud,x,y,where\n")
    with pytest.raises(BadInput, match="has no rows of data"):
        SetSource(path=str(tmp_path / "a.csv"), group="cloud", label="where", columns="x,y").load_data()


def test_a_row_without_a_number_is_skipped_with_a_notice(tmp_path):
    notices = list[str]()
    path = write_csv(tmp_path / "a.csv", [*make_rows(), ["c1", "none", 1, "near"]])
    SetSource(path=str(path), group="cloud", label="where", columns="x,y").load_data(
        listen=lambda event, text="", **_: notices.append(text)
    )
    assert any(f"{path}:{len(make_rows()) + 2}: column 'x' is not a number" in text for text in notices)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    path = write_csv(tmp_path_factory.mktemp("sets") / "a.csv", make_rows(90))
    return SetSource(path=str(path), valid=0, test=0).load_data().train


def test_a_batch_has_the_rows_of_its_sets_padded_with_zeros(sets):
    indices = np.array([3, 0, 7])
    batch = pad_sets(sets, indices)
    for row, n in enumerate(indices):
        size = sets.lengths[n]
        assert (batch.tokens[row, :size] == sets.rows[sets.starts[n] : sets.starts[n + 1]]).all()
        assert (batch.tokens[row, size:] == 0).all()
    assert batch.n_tokens == sets.lengths[indices].sum()
    assert batch.lengths.tolist() == sets.lengths[indices].tolist()
    assert pad_sets(sets, np.array([3])).lengths is None


def test_batches_depend_only_on_seed_epoch_and_step_and_are_bucketed_by_size(sets):
    a, b, c = SetBatches(sets, 16, seed=1), SetBatches(sets, 16, seed=1), SetBatches(sets, 16, seed=2)
    a.batch(3, 2)
    assert (a.batch(1, 2).tokens == b.batch(1, 2).tokens).all()
    assert any(a.batch(0, n).tokens.shape != c.batch(0, n).tokens.shape for n in range(a.steps)) or any(
        (a.batch(0, n).tokens != c.batch(0, n).tokens).any() for n in range(a.steps)
    )
    width = sum(a.batch(0, n).tokens.shape[1] for n in range(a.steps))
    assert width < a.steps * sets.lengths.max()
    assert all(len(a.batch(0, n).tokens) == 16 for n in range(a.steps))


def test_eval_batches_contain_every_set_once(sets):
    evaluated = [n for indices, batch in eval_batches(sets, 40) for n in indices.tolist()]
    assert sorted(evaluated) == list(range(len(sets)))
    assert max(batch.tokens.shape[0] * batch.tokens.shape[1] for _, batch in eval_batches(sets, 40)) <= 40


def write_commas(path, cell=lambda n: f"{n % 9},{n % 4}5", label=lambda n: "ab"[n // 4 % 2]):
    path.write_text("cloud;x;label\n" + "".join(f"c{n // 4};{cell(n)};{label(n)}\n" for n in range(200)))
    return path


def test_decimal_commas_are_refused_and_read_with_the_setting(tmp_path):
    path = write_commas(tmp_path / "a.csv")
    with pytest.raises(BadInput, match=r"a.csv: column 'x': '0,05' has a decimal comma; .* set data.decimal=','$"):
        SetSource(path=str(path)).load_data()
    data = SetSource(path=str(path), decimal=",", valid=0, test=0).load_data()
    processor = data.processor
    x = data.train.rows[:, 0].numpy() * processor.feature_std[0] + processor.feature_mean[0]
    np.testing.assert_allclose(x, [n % 9 + (10 * (n % 4) + 5) / 100 for n in range(200)], atol=1e-5)


def test_a_set_with_a_missing_number_as_target_is_skipped_and_counted(tmp_path):
    path = write_commas(tmp_path / "a.csv", label=lambda n: "NA" if n < 8 else f"{n // 4},5")
    notices = []
    source = SetSource(path=str(path), decimal=",", group="cloud", label="label", columns=["x"], valid=0, test=0)
    data = source.load_data(listen=lambda _, **facts: notices.append(facts["text"]))
    assert (data.processor.target_type, len(data.train)) == ("number", 48)
    assert notices == [f"{path}: skipped 2 rows with a missing target: 'NA' (2)"]


def test_missing_labels_of_sets_are_kept_unless_they_are_dropped(tmp_path):
    path = write_commas(tmp_path / "a.csv", label=lambda n: ("NA", "a", "b")[n // 4 % 3])
    labels = [SetSource(path=str(path), decimal=",", missing=m).load_data().processor.labels for m in ("keep", "drop")]
    assert labels == [["NA", "a", "b"], ["a", "b"]]


def test_a_rare_typing_error_skips_its_row(tmp_path):
    path, notices = write_commas(tmp_path / "a.csv", cell=lambda n: "3,4" if n == 50 else f"{n}.5"), []
    SetSource(path=str(path)).load_data(listen=lambda _, **facts: notices.append(facts["text"]))
    assert notices == [f"skipped 1 row (no row of a set): {path}:52: column 'x': '3,4' has a decimal comma"]
