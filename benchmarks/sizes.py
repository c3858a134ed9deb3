"""Code sizes and naming counts: lines and modules per package, longest file and function, banned identifiers.

    python benchmarks/sizes.py

tests/test_house.py checks the limits with the functions of this file; docs/results.md contains the output.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
SRC = HOME / "src" / "harken"

# identifiers that describe the origin of a value instead of its content
BANNED = {
    "found",
    "told",
    "said",
    "asked",
    "heard",
    "made",
    "given",
    "kept",
    "mine",
    "theirs",
    "others",
    "whole",
    "way",
}
BANNED |= {"result", "info", "tmp", "data2"}
# phrases that no message, help text, setting description or docstring contains
PHRASES = re.compile(
    r"\b(for free|mend(s|ed|ing)?|so many|whoever|no riddle|a look at|looks at|is asked|are asked|what is (said|told)"
    r"|is told|are told|is said|are said|which costs nothing|go on with|judged?|judging|the free baselines?)\b",
    re.I,
)
DUNDERS = ("__init__", "__call__")  # part of the public signature of a class


@dataclass(frozen=True)
class Function:
    """One function or method: its place, its length, its number of parameters, whether it is fully typed."""

    place: str
    lines: int
    parameters: int  # without self and cls
    typed: bool


def modules(folder: Path = SRC) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def texts(folder: Path = SRC) -> list[Path]:
    """The files whose strings are checked: modules and TOML files, without the generated texts of data/synthetic."""
    return [p for p in (*modules(folder), *sorted(folder.rglob("*.toml"))) if p.parent != SRC / "data" / "synthetic"]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def place(path: Path, node: ast.AST | None = None) -> str:
    """harken/core/attend.py:21, as an editor opens it."""
    text = str(path.relative_to(SRC.parent)) if path.is_relative_to(SRC) else str(path.relative_to(HOME))
    return text if node is None else f"{text}:{node.lineno}"  # type: ignore[attr-defined]


def package(path: Path) -> str:
    """The top-level package of a file of src, or the name of a top-level module."""
    parts = path.relative_to(SRC).parts
    return parts[0] if len(parts) > 1 else path.stem


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = node.args
            plain = [*args.posonlyargs, *args.args, *args.kwonlyargs]
            plain = [a for a in plain if a.arg not in ("self", "cls")]
            every = [*plain, *(a for a in (args.vararg, args.kwarg) if a is not None)]
            typed = node.returns is not None and all(a.annotation is not None for a in every)
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            length = (node.end_lineno or node.lineno) - first + 1
            yield Function(f"{place(path, node)} {node.name}", length, len(plain), typed)


def banned_identifiers(path: Path) -> Iterator[str]:
    """Every use of a banned word as an identifier, alone or as a part of one."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if BANNED & set(name.lower().strip("_").split("_")) and name not in FOREIGN:
            yield f"{place(path, node)} {name}"


FOREIGN = {"info_name", "model_info", "found_inf"}  # names of other libraries
FOREIGN |= {"whole_words", "tmp_path", "tmp_path_factory"}  # whole-word masking; pytest


def odd_phrases(path: Path) -> Iterator[str]:
    """String literals of a Python file (docstrings included) or strings of a TOML file with a phrase of PHRASES."""
    if path.suffix == ".toml":
        values = strings(tomllib.loads(path.read_text("utf-8")))
        yield from (f"{place(path)} {hit[0]}" for text in values if (hit := PHRASES.search(text)))
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (hit := PHRASES.search(node.value)):
            yield f"{place(path, node)} {hit[0]}"


def strings(value: object) -> Iterator[str]:
    """All strings in the tables and lists of a TOML file, without the keys."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def attribute_probes(path: Path) -> Iterator[str]:
    """Calls of hasattr, and of getattr with a default."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(func=ast.Name(id="hasattr")) | ast.Call(func=ast.Name(id="getattr"), args=[_, _, _]):
                yield place(path, node)


def any_in_signatures(path: Path) -> Iterator[str]:
    """Public functions and methods with an explicit `Any` in a parameter or in the return type."""

    def public(node: ast.AST) -> Iterator[ast.FunctionDef]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                yield from public(child)
            elif isinstance(child, ast.FunctionDef) and (child.name in DUNDERS or not child.name.startswith("_")):
                yield child

    for node in public(tree(path)):
        args = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        annotations = [node.returns, *(arg.annotation for arg in args if arg is not None)]
        if any(re.search(r"\bAny\b", ast.unparse(annotation)) for annotation in annotations if annotation):
            yield f"{place(path, node)} {node.name}"


def class_names() -> Counter[str]:
    """How often each public class name is defined at the top level of a module of src."""
    trees = (tree(path) for path in modules())
    return Counter(n.name for t in trees for n in t.body if isinstance(n, ast.ClassDef) and n.name[0] != "_")


def modules_per_package() -> Counter[str]:
    return Counter(str(path.parent.relative_to(SRC.parent)) for path in modules())


def main() -> None:
    sizes = Counter[str]()
    for path in modules():
        sizes[package(path)] += lines(path)
    every = [f for path in modules() for f in functions(path)]
    longest = max(modules(), key=lines)
    function, crowded = max(every, key=lambda f: f.lines), max(every, key=lambda f: f.parameters)
    tests = modules(HOME / "tests")
    for name, count in sizes.most_common():
        print(f"{count:7,}  {name}")
    print(f"{sizes.total():7,}  src, in {len(modules())} files")
    data = [path for path in SRC.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    print(f"{sum(map(lines, data)):7,}  src that is not Python: recipes, word lists, tables, in {len(data)} files")
    print(f"{sum(map(lines, tests)):7,}  tests, in {len(tests)} files")
    print(f"{lines(longest):7,}  lines in the longest file      {place(longest)}")
    print(f"{function.lines:7,}  lines in the longest function  {function.place}")
    print(f"{crowded.parameters:7,}  parameters at most             {crowded.place}")
    print(f"{100 * sum(f.typed for f in every) / len(every):7.1f}  % of {len(every):,} functions are fully typed")
    print(f"{sum(1 for path in modules() for _ in banned_identifiers(path)):7,}  banned identifiers in src")
    print(f"{sum(1 for path in tests for _ in banned_identifiers(path)):7,}  banned identifiers in tests")
    print(f"{sum(1 for path in texts() for _ in odd_phrases(path)):7,}  banned phrases in src")
    print(f"{sum(n > 1 for n in class_names().values()):7,}  public class names that occur twice")
    print(f"{sum(1 for path in modules() for _ in attribute_probes(path)):7,}  hasattr, or getattr with a default")
    print(f"{sum(1 for path in modules() for _ in any_in_signatures(path)):7,}  public signatures with an explicit Any")
    name, count = max(((n, c) for n, c in modules_per_package().items() if n != "harken/cli"), key=lambda item: item[1])
    print(f"{count:7,}  modules in the largest package ({name})")


if __name__ == "__main__":
    main()
