"""The examples in the docstrings of the core run, and every public function has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import harken.core

MODULES = [m.name for m in pkgutil.walk_packages(harken.core.__path__, "harken.core.") if not m.ispkg]
FUNCTIONS = [name for name in harken.core.__all__ if inspect.isfunction(vars(harken.core)[name])]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_an_example(name: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(vars(harken.core)[name], name)
    assert example.examples
