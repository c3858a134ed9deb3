"""Integrals: draw a function F; the problem is its derivative and the answer is F. Both are trees in prefix order.

2*x + cos(x) is: add mul + 2 x cos x. sympy checks an answer: its derivative must equal the problem.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .problem import FIRST_ID, Distribution, Examples, IntegerTokens, UniformRng, hash_rows

Tree = int | str | tuple[Any, ...]  # a number, x, or an operator and its arguments
BINARY, UNARY = ("add", "mul", "pow"), ("sin", "cos", "exp", "ln")
MAX_TERMS, MAX_FACTORS = 3, 2
MAX_COEFFICIENT, MAX_POWER, MAX_RATE = 9, 4, 4  # of a term, of x, of x inside a function
MAX_LENGTHS = 48, 32  # tokens of a problem, of an answer; longer examples are redrawn
TEST_POINTS = (0.37, 1.21, 2.05)  # where two functions are compared
TOLERANCE = 1e-6
MAX_POWER_BITS = 10_000  # larger powers are not evaluated


class IntegralProblem(IntegerTokens):
    """Functions of x from powers, sin, cos, exp and ln."""

    name, chunk_size, grouped_by = "integrals", 2**9, "terms"
    n_distinct, max_lengths = 1e9, MAX_LENGTHS
    description = "integrals of sums of powers, sin, cos, exp and ln"

    def __init__(self, base: int = 10) -> None:
        super().__init__(base)
        self.tokens += ["x", *BINARY, *UNARY]
        n_numeric = len(self.signs) + base
        self.symbol_ids = {name: FIRST_ID + n for n, name in enumerate(self.tokens) if n >= n_numeric}

    # --- draw ---------------------------------------------------------------------------------------------------------

    def draw(self, rng: UniformRng, n: int, distribution: Distribution, difficulty: Tensor | None = None) -> Examples:
        """The distribution of operands applies to the coefficients of the terms."""
        p_log = distribution.operands.get("log-uniform", 0.0) / sum(distribution.operands.values())
        max_terms = [MAX_TERMS] * n
        if difficulty is not None:
            max_terms = [1 + round(d * (MAX_TERMS - 1)) for d in difficulty.tolist()]
        examples = [self._draw_example(rng.row_generator(row), p_log, terms) for row, terms in enumerate(max_terms)]
        sides = [torch.zeros(n, length, dtype=torch.long) for length in MAX_LENGTHS]
        for row, (source, target, _) in enumerate(examples):
            for side, ids in zip(sides, (source, target), strict=True):
                side[row, : len(ids)] = torch.tensor(ids)
        lengths = torch.tensor([[len(source), len(target)] for source, target, _ in examples])
        group = torch.tensor([n_terms for *_, n_terms in examples])
        return Examples(*(x.to(rng.device) for x in (*sides, lengths, hash_rows(sides[0]), group)))

    def _draw_example(self, rng: np.random.Generator, p_log: float, max_terms: int) -> tuple[list[int], list[int], int]:
        """The ids of the problem and of the answer, and the number of terms."""
        while True:
            n_terms = int(rng.integers(1, max_terms + 1))
            terms = sorted({_draw_term(rng, p_log) for _ in range(n_terms)}, key=str)
            function = _sum(terms)
            source, target = (list(self._encode(tree)) for tree in (derivative(function), function))
            if len(source) <= MAX_LENGTHS[0] and len(target) <= MAX_LENGTHS[1]:
                return source, target, len(terms)

    def _encode(self, tree: Tree) -> Iterator[int]:
        if isinstance(tree, int):
            yield from self.encode_integer(tree)
        elif isinstance(tree, str):
            yield self.symbol_ids[tree]
        else:
            yield self.symbol_ids[tree[0]]
            for argument in tree[1:]:
                yield from self._encode(argument)

    # --- text ---------------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int]) -> Tree | None:
        """The tree of these ids; None if they are not valid."""
        tokens, names = list(map(int, ids)), {i: name for name, i in self.symbol_ids.items()}

        def decode_at(start: int) -> tuple[Tree, int]:
            name = names.get(tokens[start])
            if name is None:
                end = start + 1
                while end < len(tokens) and self.zero_id <= tokens[end] < self.zero_id + self.base:
                    end += 1
                numbers = self.decode_integers(tokens[start:end])
                if not numbers:
                    raise IndexError
                return numbers[0], end
            arguments, end = list[Tree](), start + 1
            for _ in range(2 if name in BINARY else name in UNARY):
                argument, end = decode_at(end)
                arguments.append(argument)
            return (name, *arguments) if arguments else name, end

        try:
            tree, end = decode_at(0)
        except (IndexError, RecursionError):
            return None
        return tree if end == len(tokens) else None

    def parse_source(self, text: str) -> list[int]:
        try:
            return list(self._encode(_parse(ast.parse(text.replace("^", "**").strip(), mode="eval").body)))
        except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
            raise self.parse_error(text, "a function of x, such as '2*x + cos(x)'") from None

    parse_target = parse_source

    def format_source(self, ids: Iterable[int]) -> str:
        token_ids = list(ids)
        tree = self.decode(token_ids)
        return self.join_tokens(token_ids) if tree is None else format_tree(tree)

    format_target = format_source

    def is_correct(self, source: str, answer: str, reference: str) -> bool:
        """Whether the derivative of the answer equals the problem at the test points, computed with sympy."""
        if answer == reference:
            return True
        import sympy

        x = sympy.Symbol("x")
        try:
            integral, problem = (_to_sympy(self.decode(self.parse_source(text)), x, sympy) for text in (answer, source))
            error, size = sympy.diff(integral, x) - problem, abs(problem) + 1
            return all(abs(complex((error / size).subs(x, point).evalf())) < TOLERANCE for point in TEST_POINTS)
        except (ValueError, TypeError, OverflowError, ZeroDivisionError, RecursionError):
            return False


# --- trees ------------------------------------------------------------------------------------------------------------


def _draw_term(rng: np.random.Generator, p_log: float) -> Tree:
    """A coefficient times one or two functions."""
    u = rng.random()
    coefficient = int((MAX_COEFFICIENT + 1) ** u) if rng.random() < p_log else 1 + int(u * MAX_COEFFICIENT)
    coefficient = min(coefficient, MAX_COEFFICIENT) * (1 if rng.random() < 0.5 else -1)
    kinds = rng.choice(5, int(rng.integers(1, MAX_FACTORS + 1)), replace=False)
    factors = [_function(int(kind), int(rng.integers(1, MAX_RATE + 1))) for kind in sorted(kinds.tolist())]
    return _product(coefficient, *factors)


def _function(kind: int, k: int) -> Tree:
    if kind == 0:
        return _power("x", min(k, MAX_POWER))
    return (UNARY[kind - 1], "x" if kind == 4 else _product(k, "x"))


def _flatten(operator: str, trees: Iterable[Tree]) -> Iterator[Tree]:
    """The arguments of nested applications of an operator, from left to right."""
    for tree in trees:
        if isinstance(tree, tuple) and tree[0] == operator:
            yield from _flatten(operator, tree[1:])
        else:
            yield tree


def _sum(terms: Iterable[Tree]) -> Tree:
    """A sum, with nested sums flattened and zeros removed."""
    *first, total = [term for term in _flatten("add", terms) if term != 0] or [0]
    for term in reversed(first):
        total = term + total if isinstance(term, int) and isinstance(total, int) else ("add", term, total)
    return total


def _product(*factors: Tree) -> Tree:
    """A product, with nested products flattened and its numbers multiplied and put first."""
    number, rest = 1, list[Tree]()
    for factor in _flatten("mul", factors):
        if isinstance(factor, int):
            number *= factor
        else:
            rest.append(factor)
    if number == 0 or not rest:
        return number
    *first, product = rest
    for factor in reversed(first):
        product = ("mul", factor, product)
    return product if number == 1 else ("mul", number, product)


def _power(tree: Tree, n: int) -> Tree:
    return 1 if n == 0 else tree if n == 1 else ("pow", tree, n)


def derivative(tree: Tree) -> Tree:
    """The derivative by the sum, product, power and chain rules."""
    if not isinstance(tree, tuple):
        return int(tree == "x")
    name, u, *rest = tree
    if name == "add":
        return _sum([derivative(u), derivative(rest[0])])
    if name == "mul":
        return _sum([_product(derivative(u), rest[0]), _product(u, derivative(rest[0]))])
    if name == "pow":
        return _product(rest[0], _power(u, rest[0] - 1), derivative(u))
    outer = {"sin": ("cos", u), "cos": ("mul", -1, ("sin", u)), "exp": tree, "ln": ("pow", u, -1)}[name]
    return _product(outer, derivative(u))


def format_tree(tree: Tree) -> str:
    """The tree in infix notation."""
    if not isinstance(tree, tuple):
        return str(tree)
    name, *args = tree
    if name in UNARY:
        return f"{name}({format_tree(args[0])})"
    if name == "add":
        return " + ".join(map(format_tree, args))
    bare = {name, *UNARY, "pow"} if name == "mul" else {name, *UNARY}  # arguments without parentheses
    texts = [f"({format_tree(a)})" if isinstance(a, tuple) and a[0] not in bare else format_tree(a) for a in args]
    if name == "mul":
        return "*".join(texts)
    return f"{texts[0]}**{f'({texts[1]})' if texts[1].startswith('-') else texts[1]}"


OPERATORS: dict[type[ast.operator], Callable[[Tree, Tree], Tree]] = {
    ast.Add: lambda a, b: _sum([a, b]),
    ast.Sub: lambda a, b: _sum([a, _product(-1, b)]),
    ast.Mult: _product,
    ast.Div: lambda a, b: _product(a, ("pow", b, -1)),
    ast.Pow: lambda a, b: ("pow", a, b),
}


def _parse(node: ast.expr) -> Tree:
    """The tree of a Python expression; raises ValueError or KeyError if it is not supported."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id == "x":
        return "x"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
        name = "ln" if node.func.id == "log" else node.func.id
        if name in UNARY:
            return (name, _parse(node.args[0]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _product(-1, _parse(node.operand))
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_parse(node.left), _parse(node.right))
    raise ValueError


def _to_sympy(tree: Any, x: Any, sympy: Any) -> Any:
    if tree is None:
        raise ValueError
    if not isinstance(tree, tuple):
        return x if tree == "x" else sympy.Integer(tree)
    name, *args = tree
    values = [_to_sympy(argument, x, sympy) for argument in args]
    if name == "pow" and values[1].is_number:
        n_bits = max(int(side).bit_length() for side in values[0].as_coeff_Mul()[0].as_numer_denom())
        if abs(values[1]) > 100 or abs(values[1]) * n_bits > MAX_POWER_BITS:
            raise ValueError  # towers of powers would take forever
    functions = {"add": "Add", "mul": "Mul", "pow": "Pow", "ln": "log"}
    return getattr(sympy, functions.get(name) or name)(*values)
