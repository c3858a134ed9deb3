"""Former names of settings, values and modules are reported with their new names, in one line."""

import importlib

import pytest

import harken
from harken import registry, renamed
from harken.errors import BadSetting
from harken.recipe import OVERRIDE, read, resolve

KINDS = {
    ("train.decay", 0.9): "train.decay is now train.ema_decay",
    ("data.tokens", "char"): "data.tokens is now data.tokenizer",
    ("model.hidden", 64): "model.hidden is now model.d_ff",
}


def message(**settings: object) -> str:
    with pytest.raises(BadSetting) as error:
        resolve((OVERRIDE, settings))
    return str(error.value)


@pytest.mark.parametrize(("setting", "line"), KINDS.items())
def test_a_former_setting_gives_exactly_one_line_with_the_new_name(setting, line):
    assert message(**{setting[0]: setting[1]}) == line


def test_a_former_setting_in_a_recipe_file_is_reported_with_the_file(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text("[train]\ndecay = 0.9\n")
    with pytest.raises(BadSetting) as error:
        resolve((str(path), read(path)))
    assert str(error.value) == f"{path}: train.decay is now train.ema_decay"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"data.kind": "sets", "data.longest": 9}, "data.longest is now data.max_rows"),
        ({"data.kind": "pairs", "data.longest": 9}, "data.longest is now data.max_length"),
        ({"data.kind": "spans", "task.longest": 9}, "task.longest is now task.max_answer_length"),
        ({"data.kind": "pairs", "task.longest": 9}, "task.longest is now task.max_new_tokens"),
        ({"data.kind": "stories", "model.hidden": 9}, "model.hidden is now model.mlp_width"),
    ],
)
def test_a_name_with_several_successors_gives_the_one_of_the_kind(settings, line):
    assert message(**settings) == line


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"train.average": "moving"}, "train.average=moving is now train.average=ema"),
        ({"train.optimizer": "adam"}, "train.optimizer=adam is now train.optimizer=adamw"),
        ({"model.kind": "bert", "task.objective": "words"}, "task.objective=words is now task.objective=mlm"),
        ({"model.kind": "bert", "task.objective": "next"}, "task.objective=next is now task.objective=nsp"),
        (
            {"data.kind": "table", "data.target_type": "several"},
            "data.target_type=several is now data.target_type=multilabel",
        ),
    ],
)
def test_a_former_value_gives_exactly_one_line_with_the_new_value(settings, line):
    assert message(**settings) == line


@pytest.mark.parametrize("former", ["train.price", "train.price_per_hour"])
def test_a_setting_of_a_former_section_still_works(former, tmp_path):
    path = tmp_path / "old.toml"
    path.write_text(f"[train]\n{former.removeprefix('train.')} = 2.5\n")
    assert resolve((str(path), read(path))).cost.price_per_hour == 2.5
    assert resolve((OVERRIDE, {former: 2.5})).settings()["cost.price_per_hour"] == 2.5


def test_every_new_setting_exists_and_no_former_one_does():
    groups = registry.sections_and_groups()
    fields = {
        section: [
            set(registry.find_kind(section, kind, group).model_fields)
            for other, group in groups
            if other == section
            for kind in registry.kind_names(section, group)
        ]
        for section, _ in groups
    }
    for path, new_names in renamed.SETTINGS.items():
        section, name = path.split(".")
        for new in new_names:
            assert any(new in names for names in fields[section]), path
            assert not any({name, new} <= names for names in fields[section]), path


def test_a_setting_of_another_kind_is_not_reported_as_renamed():
    assert "is not a setting" in message(**{"model.kind": "lstm", "model.near": 3})


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("study", "experiments"),
        ("use", "inference"),
        ("look", "analysis"),
        ("kinds", "registry"),
        ("part", "settings"),
        ("run", "run_folder"),
    ],
)
def test_a_former_top_level_module_is_reported_with_its_new_path(name, new):
    with pytest.raises(AttributeError, match=f"^harken.{name} is now harken.{new}$"):
        getattr(harken, name)


@pytest.mark.parametrize("module", sorted(set(renamed.IMPORTS.values())))
def test_every_new_module_can_be_imported(module):
    importlib.import_module(module)
