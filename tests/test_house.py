"""The rules of ARCHITECTURE.md, checked on the source: import order, sizes, names, forbidden calls."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

from harken.cli import COMMANDS

HOME = Path(__file__).resolve().parents[1]
SRC = HOME / "src" / "harken"


def _script(path: str) -> ModuleType:
    """A script of this repository, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, HOME / path)
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


sizes = _script("benchmarks/sizes.py")
MODULES: list[Path] = sizes.modules()

# imports point only to the right; packages between two bars do not import each other
ORDER = (
    "cli serve | console | experiments | training bridge | inference | analysis | run_folder | recipe | tasks | decode"
    " | data models | registry | settings | core events files machine | suggestions | errors renamed"
)
RANK = {package: rank for rank, group in enumerate(ORDER.split("|")) for package in group.split()}
RANK |= {"recipes": RANK["recipe"], "cli": -1}  # recipes: the TOML files; cli: one of its verbs starts `serve`

PUBLIC = [
    "Audit",
    "BadInput",
    "BadRun",
    "BadSetting",
    "Clustering",
    "Comparison",
    "HarkenError",
    "Run",
    "__version__",
    "audit",
    "cluster",
    "compare",
    "load",
    "train",
]
CORE_DEPENDENCIES = {"torch", "numpy", "safetensors", "tokenizers", "pydantic", "click", "rich", "PIL"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "torch.load", "torch.save", "os.system", "os.popen"}
VAGUE_MODULE_NAMES = {"utils", "util", "helpers", "helper", "base", "misc", "common"}


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a file imports, wherever it does; relative imports made absolute."""
    package = ["harken", *path.relative_to(SRC).parent.parts]
    for node in ast.walk(sizes.tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def _breaches(path: Path) -> Iterator[str]:
    """The imports of a file that do not point to the right of its own package."""
    own = sizes.package(path)
    for line, name in _imports(path):
        parts = name.split(".")
        if parts[0] != "harken" or name == "harken.__version__":
            continue
        other = parts[1] if len(parts) > 1 else ""
        if other not in RANK:
            yield f"{sizes.place(path)}:{line} imports {name}, which is not in the import order"
        elif own != other and (other == "cli" or RANK[other] <= RANK[own]):
            yield f"{sizes.place(path)}:{line} imports {name}, which is not to the right of {own}"


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a file is imported."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _top_level(getattr(node, inner, []))


# --- import order -----------------------------------------------------------------------------------------------------


def test_imports_point_to_the_right() -> None:
    inside = [path for path in MODULES if path.parent != SRC or path.stem not in ("__init__", "__main__")]
    assert [breach for path in inside for breach in _breaches(path)] == []


def test_an_import_to_the_left_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SRC / "tasks" / "made_up.py"
    for text in (
        "from harken.inference.run import load",
        "from harken import inference",
        "from ..inference import run",
    ):
        tree = ast.parse(f"def late():\n    {text}")
        monkeypatch.setattr(sizes, "tree", lambda _, tree=tree: tree)
        assert [breach.partition(",")[2] for breach in _breaches(path)] == [" which is not to the right of tasks"]


def test_every_package_is_in_the_import_order() -> None:
    packages = {sizes.package(path) for path in MODULES} - {"__init__", "__main__"}
    assert packages - set(RANK) == set()


def test_the_core_imports_torch_and_the_standard_library_only() -> None:
    found = {name for path in MODULES if sizes.package(path) == "core" for _, name in _imports(path)}
    assert {name.split(".")[0] for name in found} - sys.stdlib_module_names <= {"torch", "harken"}
    assert [name for name in found if name.startswith("harken") and not name.startswith("harken.core.")] == []


def test_the_core_has_no_circular_imports() -> None:
    core = [path for path in MODULES if sizes.package(path) == "core" and path.stem != "__init__"]
    modules = {".".join(("harken", *path.relative_to(SRC).with_suffix("").parts)): path for path in core}
    imports = {
        module: {other for other in modules for _, name in _imports(path) if f"{name}.".startswith(f"{other}.")}
        for module, path in modules.items()
    }
    order = list(TopologicalSorter(imports).static_order())  # raises CycleError
    assert len(order) == len(modules)


def test_only_the_eight_core_dependencies_are_imported_with_the_package() -> None:
    odd = []
    for path in MODULES:
        for node in _top_level(sizes.tree(path).body):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            tops = {name.split(".")[0] for name in names} - sys.stdlib_module_names - CORE_DEPENDENCIES
            odd += [f"{sizes.place(path, node)} {top}" for top in tops - {"harken"}]
    assert odd == []


def test_the_core_dependencies_are_those_of_the_package() -> None:
    requirements = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    names = {re.split(r"[<>=~!\[; ]", line)[0] for line in requirements}
    assert {{"pillow": "PIL"}.get(name, name) for name in names} == CORE_DEPENDENCIES


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_no_file_has_more_than_400_lines() -> None:
    assert [f"{sizes.place(path)} {sizes.lines(path)}" for path in MODULES if sizes.lines(path) > 400] == []


def test_no_function_has_more_than_60_lines_or_8_parameters() -> None:
    found = [function for path in MODULES for function in sizes.functions(path)]
    assert [f for f in found if f.lines > 60 or f.parameters > 8] == []


def test_every_function_is_fully_typed() -> None:
    assert [f.place for path in MODULES for f in sizes.functions(path) if not f.typed] == []


def test_attend_similarity_and_structure_have_at_most_600_lines() -> None:
    assert sum(sizes.lines(SRC / "core" / f"{name}.py") for name in ("attend", "similarity", "structure")) <= 600


def test_the_gpt_has_at_most_160_lines() -> None:
    assert sizes.lines(SRC / "models" / "gpt.py") <= 160


# --- names ------------------------------------------------------------------------------------------------------------


def test_src_uses_no_banned_identifier() -> None:
    assert [use for path in MODULES for use in sizes.banned_identifiers(path)] == []


def test_a_banned_identifier_is_detected(tmp_path: Path) -> None:
    file = HOME / "src" / "harken" / "errors.py"
    assert list(sizes.banned_identifiers(file)) == []
    bad = tmp_path / "bad.py"
    bad.write_text("def load(given):\n    found_rows = given\n    return found_rows\n")
    sizes_place, sizes.place = sizes.place, lambda path, node=None: "bad"
    try:
        assert sorted(use.split()[1] for use in sizes.banned_identifiers(bad)) == ["found_rows"] * 2 + ["given"] * 2
    finally:
        sizes.place = sizes_place


def test_no_text_of_src_contains_a_banned_phrase() -> None:
    exempt = {SRC / "renamed.py", SRC / "renamed.toml"}  # former names
    assert [phrase for path in sizes.texts() if path not in exempt for phrase in sizes.odd_phrases(path)] == []


def test_a_banned_phrase_in_a_toml_file_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "place", lambda path, node=None: path.name)
    (tmp_path / "a.toml").write_text('a = "plain"\n[b]\nc = [{ d = "it is mended" }]\n', "utf-8")
    assert list(sizes.odd_phrases(tmp_path / "a.toml")) == ["a.toml mended"]


def test_no_two_public_classes_have_the_same_name() -> None:
    assert [name for name, count in sizes.class_names().items() if count > 1] == []


def test_no_package_has_more_than_20_modules() -> None:
    counts = sizes.modules_per_package()
    assert {name: n for name, n in counts.items() if n > 20 and name != "harken/cli"} == {}


def test_optional_attributes_are_declared_instead_of_probed() -> None:
    probes = [place for path in MODULES for place in sizes.attribute_probes(path)]
    assert len(probes) <= 15, probes


def test_no_public_signature_has_an_explicit_any() -> None:
    assert [place for path in MODULES for place in sizes.any_in_signatures(path)] == []


# --- forbidden calls --------------------------------------------------------------------------------------------------


def _forbidden_uses(path: Path) -> Iterator[str]:
    """Uses that would run code or a shell, or write where an archive says. A method named eval is allowed."""
    for line, name in _imports(path):
        if FORBIDDEN_MODULES & set(name.split(".")) or name in FORBIDDEN_CALLS:
            yield f"{sizes.place(path)}:{line} {name}"
    for node in ast.walk(sizes.tree(path)):
        text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if text in FORBIDDEN_CALLS or text.endswith(".extractall"):
            yield f"{sizes.place(path, node)} {text}"
        if isinstance(node, ast.keyword) and ast.unparse(node) in ("shell=True", "allow_pickle=True"):
            yield f"{sizes.place(path, node)} {ast.unparse(node)}"


def test_nothing_that_runs_code_from_data_is_used() -> None:
    assert [use for path in MODULES for use in _forbidden_uses(path)] == []


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from torch import load", "torch.save(x, y)", "eval(x)", "import yaml", "a.extractall()",
     "subprocess.run(x, shell=True)", "np.load(x, allow_pickle=True)"],
)  # fmt: skip
def test_a_forbidden_call_is_detected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = SRC / "made_up.py"
    monkeypatch.setattr(sizes, "tree", lambda _: ast.parse(text))
    assert len(list(_forbidden_uses(path))) == 1


def test_only_the_command_line_prints() -> None:
    prints = []
    for path in (path for path in MODULES if sizes.package(path) not in ("cli", "console")):
        names = (node for node in ast.walk(sizes.tree(path)) if isinstance(node, ast.Name))
        prints += [sizes.place(path, node) for node in names if node.id == "print"]
        prints += [f"{sizes.place(path)} {m}" for _, m in _imports(path) if m.split(".")[0] in ("click", "rich")]
    assert prints == []


def test_no_module_has_a_vague_name() -> None:
    named = {path: {path.stem, *path.relative_to(SRC).parent.parts} for path in MODULES}
    assert [sizes.place(path) for path, names in named.items() if names & VAGUE_MODULE_NAMES] == []


# --- public names -----------------------------------------------------------------------------------------------------


def test_every_module_has_a_docstring() -> None:
    assert [sizes.place(path) for path in MODULES if not ast.get_docstring(sizes.tree(path))] == []


def test_the_public_names_are_these_and_documented() -> None:
    import harken

    assert sorted(harken.__all__) == sorted(PUBLIC)
    assert dir(harken) == sorted(PUBLIC)
    for name in PUBLIC:
        assert isinstance(harken.__version__, str) if name == "__version__" else getattr(harken, name).__doc__, name


def test_an_unknown_public_name_raises_attribute_error() -> None:
    import harken

    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        harken.tain  # noqa: B018


@pytest.mark.process
def test_help_does_not_import_torch() -> None:
    program = """
import sys
from harken.cli import COMMANDS, main
for words in ([], *([command] for command in COMMANDS)):
    sys.argv = ["harken", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    heavy = {"torch", "numpy", "tokenizers", "safetensors", "pydantic"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == done.stdout.count("--help") == len(COMMANDS) + 1


@pytest.mark.process
def test_import_harken_does_not_import_torch() -> None:
    program = "import sys, harken; harken.__version__, dir(harken); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60).returncode == 0


def test_the_architecture_page_has_the_import_order_and_every_package() -> None:
    page = (HOME / "ARCHITECTURE.md").read_text("utf-8")
    assert ORDER in page
    packages = {sizes.package(path) for path in MODULES} - {"__init__", "__main__"}
    assert [package for package in sorted(packages) if not re.search(rf"^\| `{package}[/.`]", page, re.M)] == []
