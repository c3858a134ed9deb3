"""Units of examples that stay together; splits by group and time; folds next to scikit-learn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.graphs.arrays import _array_splits
from harken.data.labelled.folders import _split_of
from harken.data.partition import (
    SPLIT_OF_NAME,
    Fold,
    Member,
    assign_folds,
    build_units,
    count_labels,
    draw_units,
    split_hash,
)


def members(rows):
    """Members from (text, group, label) rows."""
    out = []
    for text, group, label in rows:
        keys = (f"group {group}", f"text {text}") if group else (f"text {text}",)
        out.append(Member(keys, split_hash(keys[0]), (label,)))
    return out


def indices(units):
    return sorted(n for unit in units for n in unit.members)


def test_a_chain_of_shared_keys_is_one_unit():
    units = build_units(members([("a", "1", "x"), ("b", "1", "x"), ("b", "2", "y"), ("c", "2", "y"), ("d", "", "x")]))
    assert sorted(unit.members for unit in units) == [[0, 1, 2, 3], [4]]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from("xyz")), min_size=12, max_size=120))
def test_groups_and_texts_are_never_in_two_splits(rows):
    rows = [(str(text), str(group) * (group > 2), label) for text, group, label in rows]
    drawn = draw_units(build_units(members(rows)), {"valid": 0.2, "test": 0.2}, None, by_time=False)
    held_out = {split: set(indices(units)) for split, units in drawn.items()}
    assert not held_out["valid"] & held_out["test"]
    held_out["train"] = {*range(len(rows))} - held_out["valid"] - held_out["test"]
    for place in (0, 1):
        values = [{rows[n][place] for n in part} - {""} for part in held_out.values()]
        assert sum(map(len, values)) == len(set.union(*values))
    assert {rows[n][2] for n in held_out["train"]} == {label for *_, label in rows}


@pytest.mark.parametrize("n_folds", [2, 3, 5, 10])
def test_folds_are_a_partition_and_stratified_as_those_of_scikit_learn(n_folds):
    model_selection = pytest.importorskip("sklearn.model_selection")
    labels = np.array(list("aaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbcccccccddddddddddddddddddddddd" * 3))
    folds = assign_folds(build_units(members([(n, "", label) for n, label in enumerate(labels)])), n_folds)
    assert sorted(n for units in folds for n in indices(units)) == [*range(len(labels))]
    splitter = model_selection.StratifiedKFold(n_folds)
    theirs = [Counter(labels[test].tolist()) for _, test in splitter.split(labels, labels)]
    for label in "abcd":
        counts = sorted(count_labels(units)[label] for units in folds)
        assert np.abs(np.array(counts) - sorted(fold[label] for fold in theirs)).max() <= 1
    sizes = [len(indices(units)) for units in folds]
    assert max(sizes) - min(sizes) <= 1


def test_folds_of_groups_are_a_partition_without_a_group_in_two_folds():
    rng = np.random.default_rng(0)
    rows = [(n, str(rng.integers(40)), str(rng.choice(["x", "y"], p=[0.8, 0.2]))) for n in range(400)]
    folds = assign_folds(build_units(members(rows)), 5)
    assert sorted(n for units in folds for n in indices(units)) == [*range(400)]
    groups = [{rows[n][1] for n in indices(units)} for units in folds]
    assert sum(map(len, groups)) == 40
    assert all(70 <= len(indices(units)) <= 90 for units in folds)
    assert all(0.1 < count_labels(units)["y"] / len(indices(units)) < 0.3 for units in folds)


def test_a_fold_is_the_test_split_and_valid_is_drawn_from_the_rest():
    units = build_units(members([(n, "", "xy"[n % 2]) for n in range(100)]))
    parts = [draw_units(units, {"valid": 0.1, "test": 0.05}, Fold(k, 5), by_time=False) for k in range(1, 6)]
    assert sorted(n for part in parts for n in indices(part["test"])) == [*range(100)]
    assert all(len(part["valid"]) == 10 and not {*indices(part["valid"])} & {*indices(part["test"])} for part in parts)


def test_by_time_test_is_newest_and_train_is_oldest():
    rows = [Member((f"text {n}",), split_hash(str(n)), ("x",), time=n % 50) for n in range(100)]
    drawn = draw_units(build_units(rows), {"valid": 0.1, "test": 0.06}, None, by_time=True)
    assert {rows[n].time for n in indices(drawn["test"])} == {47, 48, 49}
    assert {rows[n].time for n in indices(drawn["valid"])} == {42, 43, 44, 45, 46}


def test_by_time_every_split_has_at_least_one_time_and_so_does_train():
    rows = [Member((f"text {n}",), n, ("x",), time=2020 + n % 3) for n in range(90)]
    drawn = draw_units(build_units(rows), {"valid": 0.1, "test": 0.05}, None, by_time=True)
    assert {split: {rows[n].time for n in indices(units)} for split, units in drawn.items()} == {
        "test": {2022},
        "valid": {2021},
    }


def test_a_text_that_occurs_early_and_late_is_held_out():
    rows = [Member((f"text {n % 10}",), n, ("x",), time=n) for n in range(12)]
    drawn = draw_units(build_units(rows), {"test": 0.1, "valid": 0.0}, None, by_time=True)
    assert indices(drawn["test"]) == [1, 11]


def test_a_label_of_one_unit_is_in_no_test_fold():
    units = build_units(members([(n, "", "xy"[n % 2] if n else "z") for n in range(20)]))
    tests = [draw_units(units, {"test": 0.1}, Fold(k, 4), by_time=False)["test"] for k in range(1, 5)]
    assert sorted(n for test in tests for n in indices(test)) == [*range(1, 20)]


@pytest.mark.parametrize("name", ["valid", "validation", "val", "dev"])
def test_folders_tables_and_arrays_know_the_same_names_of_the_validation_split(name, tmp_path):
    arrays = _array_splits(tmp_path / "g.npz", {f"{name}_mask": np.array([True, False])}, 2)
    assert (SPLIT_OF_NAME[name], [*arrays], _split_of(Path(f"news-{name}"))) == ("valid", ["valid"], "valid")
