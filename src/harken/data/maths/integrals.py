"""Integrals: a function F is drawn, its derivative is the problem and F the answer. Both are trees in prefix order.

2*x + cos(x) is: add mul + 2 x cos x. Whether an answer is right is found by sympy: its derivative is the problem.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .problem import FIRST, Chance, Drawn, Law, Numerals, keyed, plain, refuse

Tree = int | str | tuple[Any, ...]  # a number, x, or an operator and what it is applied to
TWO, ONE = ("add", "mul", "pow"), ("sin", "cos", "exp", "ln")
TERMS, FACTORS = 3, 2  # of F at most
FACTOR, POWER, RATE = 9, 4, 4  # the largest number before a term, above an x, before an x
LONGEST = 48, 32  # tokens of a problem, of an answer; what is longer is drawn anew
POINTS = (0.37, 1.21, 2.05)  # where two functions are compared
NEAR = 1e-6
LONG = 10_000  # bits of a number raised to another: what is longer is not computed


class Integrals(Numerals):
    """Functions of x from powers, sin, cos, exp and ln."""

    at_once, by_outcome, grouped_by, exact = 2**9, False, "terms", False
    space, widths = 1e9, LONGEST
    told = "integrals of sums of powers, sin, cos, exp and ln"

    def __init__(self, base: int = 10) -> None:
        super().__init__(base)
        self.words += ["x", *TWO, *ONE]
        self.marks = {word: FIRST + place for place, word in enumerate(self.words) if place >= len(self.signs) + base}

    # --- drawn --------------------------------------------------------------------------------------------------------

    def draw(self, chance: Chance, n: int, law: Law, reach: Tensor | None = None) -> Drawn:
        """The distribution of operands is that of the numbers before the terms."""
        often = law.operands.get("log-uniform", 0.0) / sum(law.operands.values())
        most = [TERMS] * n if reach is None else [1 + round(r * (TERMS - 1)) for r in reach.tolist()]
        found = [self._example(chance.of(row), often, terms) for row, terms in enumerate(most)]
        sides = [torch.zeros(n, wide, dtype=torch.long) for wide in LONGEST]
        for row, (source, target, _) in enumerate(found):
            for side, ids in zip(sides, (source, target), strict=True):
                side[row, : len(ids)] = torch.tensor(ids)
        lengths = torch.tensor([[len(source), len(target)] for source, target, _ in found])
        group = torch.tensor([terms for *_, terms in found])
        every = [x.to(chance.device) for x in (*sides, lengths, keyed(sides[0]), group)]
        return Drawn(*every)

    def _example(self, dice: np.random.Generator, often: float, most: int) -> tuple[list[int], list[int], int]:
        while True:
            terms = sorted({_term(dice, often) for _ in range(int(dice.integers(1, most + 1)))}, key=str)
            whole = _sum(terms)
            sides = [list(self._ids(tree)) for tree in (derivative(whole), whole)]
            if all(len(ids) <= wide for ids, wide in zip(sides, LONGEST, strict=True)):
                return sides[0], sides[1], len(terms)

    def _ids(self, tree: Tree) -> Iterator[int]:
        if isinstance(tree, int):
            yield from self.ids(tree)
        elif isinstance(tree, str):
            yield self.marks[tree]
        else:
            yield self.marks[tree[0]]
            for part in tree[1:]:
                yield from self._ids(part)

    # --- as people write it -------------------------------------------------------------------------------------------

    def tree(self, ids: Iterable[int]) -> Tree | None:
        """The tree of these tokens; None if they are none."""
        words, names = list(map(int, ids)), {i: name for name, i in self.marks.items()}

        def take(at: int) -> tuple[Tree, int]:
            name = names.get(words[at])
            if name is None:
                end = at + 1
                while end < len(words) and self.zero <= words[end] < self.zero + self.base:
                    end += 1
                found = self.numbers(words[at:end])
                if not found:
                    raise IndexError
                return found[0], end
            parts, end = list[Tree](), at + 1
            for _ in range(2 if name in TWO else name in ONE):
                part, end = take(end)
                parts.append(part)
            return (name, *parts) if parts else name, end

        try:
            tree, end = take(0)
        except (IndexError, RecursionError):
            return None
        return tree if end == len(words) else None

    def read(self, text: str) -> list[int]:
        try:
            return list(self._ids(_parsed(ast.parse(text.replace("^", "**").strip(), mode="eval").body)))
        except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
            raise refuse(text, "maths:integrals", "a function of x, such as '2*x + cos(x)'") from None

    read_target = read

    def asked(self, ids: Iterable[int]) -> str:
        given = list(ids)
        tree = self.tree(given)
        return plain(self.words, given) if tree is None else shown(tree)

    said = asked

    def right(self, source: str, said: str, true: str) -> bool:
        """Whether the derivative of what was said is the source, by sympy: at some points, to many digits."""
        if said == true:
            return True
        import sympy

        x = sympy.Symbol("x")
        try:
            answer, problem = (_sympy(self.tree(self.read(text)), x, sympy) for text in (said, source))
            gap, size = sympy.diff(answer, x) - problem, abs(problem) + 1
            return all(abs(complex((gap / size).subs(x, point).evalf())) < NEAR for point in POINTS)
        except (ValueError, TypeError, OverflowError, ZeroDivisionError, RecursionError):
            return False

    def truth(self, source: str) -> str | None:
        return None


# --- trees ------------------------------------------------------------------------------------------------------------


def _term(dice: np.random.Generator, often: float) -> Tree:
    """A number times one or two functions."""
    u = dice.random()
    number = int((FACTOR + 1) ** u) if dice.random() < often else 1 + int(u * FACTOR)
    number = min(number, FACTOR) * (1 if dice.random() < 0.5 else -1)
    kinds = dice.choice(5, int(dice.integers(1, FACTORS + 1)), replace=False)
    parts = [_function(int(kind), int(dice.integers(1, RATE + 1))) for kind in sorted(kinds.tolist())]
    return _product(number, *parts)


def _function(kind: int, k: int) -> Tree:
    if kind == 0:
        return _power("x", min(k, POWER))
    return (ONE[kind - 1], "x" if kind == 4 else _product(k, "x"))


def _sum(terms: Iterable[Tree]) -> Tree:
    """A sum; what is nested is laid out, and what is 0 left out."""
    some, left = list[Tree](), list(terms)
    while left:
        term = left.pop(0)
        if isinstance(term, tuple) and term[0] == "add":
            left = [*term[1:], *left]
        elif term != 0:
            some.append(term)
    if not some:
        return 0
    whole = some[-1]
    for term in reversed(some[:-1]):
        whole = term + whole if isinstance(term, int) and isinstance(whole, int) else ("add", term, whole)
    return whole


def _product(*parts: Tree) -> Tree:
    """A product, its number first; what is nested is laid out."""
    number, rest, left = 1, list[Tree](), list(parts)
    while left:
        part = left.pop(0)
        if isinstance(part, tuple) and part[0] == "mul":
            left = [*part[1:], *left]
        elif isinstance(part, int):
            number *= part
        else:
            rest.append(part)
    if number == 0 or not rest:
        return number
    whole = rest[-1]
    for part in reversed(rest[:-1]):
        whole = ("mul", part, whole)
    return whole if number == 1 else ("mul", number, whole)


def _power(tree: Tree, n: int) -> Tree:
    return 1 if n == 0 else tree if n == 1 else ("pow", tree, n)


def derivative(tree: Tree) -> Tree:
    """By the rules of sums, products, powers and chains."""
    if not isinstance(tree, tuple):
        return int(tree == "x")
    name, u, *more = tree
    if name == "add":
        return _sum([derivative(u), derivative(more[0])])
    if name == "mul":
        return _sum([_product(derivative(u), more[0]), _product(u, derivative(more[0]))])
    if name == "pow":
        return _product(more[0], _power(u, more[0] - 1), derivative(u))
    outer = {"sin": ("cos", u), "cos": ("mul", -1, ("sin", u)), "exp": tree, "ln": ("pow", u, -1)}[name]
    return _product(outer, derivative(u))


def shown(tree: Tree) -> str:
    """As people write it."""
    if not isinstance(tree, tuple):
        return str(tree)
    name, *parts = tree
    if name in ONE:
        return f"{name}({shown(parts[0])})"
    if name == "add":
        return f"{shown(parts[0])} + {shown(parts[1])}"
    inside = [f"({shown(p)})" if isinstance(p, tuple) and p[0] not in ONE and name != p[0] else shown(p) for p in parts]
    if name == "mul":
        inside = [shown(p) if isinstance(p, tuple) and p[0] == "pow" else s for p, s in zip(parts, inside, strict=True)]
        return "*".join(inside)
    return f"{inside[0]}**{f'({inside[1]})' if inside[1].startswith('-') else inside[1]}"


OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: _sum([a, b]),
    ast.Mult: _product,
    ast.Pow: lambda a, b: ("pow", a, b),
}


def _parsed(node: ast.expr) -> Tree:
    """The tree of what was typed; a ValueError or KeyError where it is none."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id == "x":
        return "x"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
        name = "ln" if node.func.id == "log" else node.func.id
        if name in ONE:
            return (name, _parsed(node.args[0]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _product(-1, _parsed(node.operand))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _sum([_parsed(node.left), _product(-1, _parsed(node.right))])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _product(_parsed(node.left), ("pow", _parsed(node.right), -1))
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_parsed(node.left), _parsed(node.right))
    raise ValueError


def _sympy(tree: Any, x: Any, sympy: Any) -> Any:
    if tree is None:
        raise ValueError
    if not isinstance(tree, tuple):
        return x if tree == "x" else sympy.Integer(tree)
    name, *parts = tree
    made = [_sympy(part, x, sympy) for part in parts]
    if name == "pow" and made[1].is_number:
        bits = max(int(side).bit_length() for side in made[0].as_coeff_Mul()[0].as_numer_denom())
        if abs(made[1]) > 100 or abs(made[1]) * bits > LONG:
            raise ValueError  # a tower of powers would not end
    how = {"add": sympy.Add, "mul": sympy.Mul, "pow": sympy.Pow, "ln": sympy.log}
    how |= {name: getattr(sympy, name) for name in ("sin", "cos", "exp")}
    return how[name](*made)
