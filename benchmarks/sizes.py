"""How large the house is: lines per room, longest file and function, most parameters, typed share, test lines.

    python benchmarks/sizes.py

tests/test_house.py holds the limits with the functions of this file; docs/results.md keeps what it prints.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
SRC = HOME / "src" / "harken"


@dataclass(frozen=True)
class Function:
    """One function or method: where it stands, how long it is, how many parameters it has, whether all is typed."""

    place: str
    lines: int
    parameters: int  # self and cls are not counted
    typed: bool


def modules(folder: Path = SRC) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def place(path: Path, node: ast.AST | None = None) -> str:
    """harken/core/attend.py:21, as an editor opens it."""
    shown = str(path.relative_to(SRC.parent)) if path.is_relative_to(SRC) else str(path.relative_to(HOME))
    return shown if node is None else f"{shown}:{node.lineno}"  # type: ignore[attr-defined]


def room(path: Path) -> str:
    """The room a file of src stands in: its folder, or for a file at the top its own name."""
    parts = path.relative_to(SRC).parts
    return parts[0] if len(parts) > 1 else path.stem


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            plain = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            plain = [a for a in plain if a.arg not in ("self", "cls")]
            every = [*plain, *(a for a in (given.vararg, given.kwarg) if a is not None)]
            typed = node.returns is not None and all(a.annotation is not None for a in every)
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            length = (node.end_lineno or node.lineno) - first + 1
            yield Function(f"{place(path, node)} {node.name}", length, len(plain), typed)


def main() -> None:
    rooms = Counter[str]()
    for path in modules():
        rooms[room(path)] += lines(path)
    found = [f for path in modules() for f in functions(path)]
    longest = max(modules(), key=lines)
    function, crowded = max(found, key=lambda f: f.lines), max(found, key=lambda f: f.parameters)
    tests = modules(HOME / "tests")
    for name, count in rooms.most_common():
        print(f"{count:7,}  {name}")
    print(f"{rooms.total():7,}  src, in {len(modules())} files")
    print(f"{sum(map(lines, tests)):7,}  tests, in {len(tests)} files")
    print(f"{lines(longest):7,}  lines in the longest file      {place(longest)}")
    print(f"{function.lines:7,}  lines in the longest function  {function.place}")
    print(f"{crowded.parameters:7,}  parameters at most             {crowded.place}")
    print(f"{100 * sum(f.typed for f in found) / len(found):7.1f}  % of {len(found):,} functions are fully typed")
    print(f"{lines(SRC / 'models' / 'gpt.py'):7,}  lines in models/gpt.py")


if __name__ == "__main__":
    main()
