"""The examples in the docstrings of the core run, and every public function, class and method has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import harken.core

MODULES = [m.name for m in pkgutil.walk_packages(harken.core.__path__, "harken.core.") if not m.ispkg]
PUBLIC = {name: vars(harken.core)[name] for name in harken.core.__all__}
FUNCTIONS = [name for name, value in PUBLIC.items() if inspect.isfunction(value)]
METHODS = [
    (cls, name, method)
    for cls in PUBLIC.values()
    if inspect.isclass(cls)
    for name, method in vars(cls).items()
    if not name.startswith("_")
    and (isinstance(method, property) or (inspect.isfunction(method) and method.__name__ == name))
]


def examples(docstring: str | None) -> str:
    return "".join(example.source for example in doctest.DocTestParser().get_examples(docstring or ""))


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_an_example(name: str) -> None:
    assert examples(PUBLIC[name].__doc__)


@pytest.mark.parametrize(("cls", "name", "method"), METHODS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_public_method_has_a_docstring_and_is_in_an_example_of_its_class(cls, name, method) -> None:
    """An override has the docstring and the example of its base class; `forward` is called as the module itself."""
    assert any(inspect.getdoc(vars(base).get(name)) for base in cls.__mro__)
    sources = [examples(base.__doc__) for base in cls.__mro__ if name in vars(base)]
    assert any("(" in source if name == "forward" else f".{name}" in source for source in sources)
