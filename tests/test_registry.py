"""Every record of the registry names things that exist."""

import pytest

from harken import registry
from harken.cli import COMMANDS
from harken.inference.run import Run

NAMES = ("source", "settings", "samples", "classify", "inputs", "trace")


@pytest.mark.parametrize("task", registry.FAMILIES)
def test_every_name_of_a_record_can_be_loaded(task: str) -> None:
    family = registry.FAMILIES[task]
    for name in NAMES:
        if path := vars(family)[name]:
            assert registry.load_object(path) is not None
    assert registry.find_kind("task", task).model_fields["kind"].default == task
    assert family.models in registry.MODELS


@pytest.mark.parametrize("task", registry.FAMILIES)
def test_the_verb_of_a_record_is_a_command_and_a_method(task: str) -> None:
    verb = registry.FAMILIES[task].verb
    assert verb in COMMANDS
    assert callable(vars(Run)[verb])


def test_every_model_group_belongs_to_a_family() -> None:
    assert {family.models for family in registry.FAMILIES.values()} == set(registry.MODELS)
