"""Bracketed trees, as treebanks write them, and their line form for a model that writes: (S (NP 1 2 )NP 3 )S.

In the line form (after Vinyals et al. 2015, who write XX for every word) a word is its number: so whoever writes knows
which one comes next. Traces (-NONE-) are no words: they are left out, and so is
what holds nothing else. A label is cut down to its category: NP-SBJ-1 is NP.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

WORD = "XX"  # in lines of others
DEEPEST = 200  # brackets inside each other; sentences have about 30
_PART = re.compile(r"[()]|[^\s()]+")
_CATEGORY = re.compile(r"-\w+-$|[^-=|]+")


@dataclass(frozen=True)
class Tree:
    """A constituent with its parts, or a word with its part of speech."""

    label: str
    parts: tuple["Tree", ...] = ()
    word: str = ""


def numbered(text: str) -> Iterator[tuple[int, Tree | None]]:
    """Each tree with the line on which it begins; None for what is no tree."""
    line, at, depth = 1, 0, 0
    for found in re.finditer(r"[()]", text):
        if depth == 0:
            line += text.count("\n", at, found.start())
            at = found.start()
        depth += 1 if found[0] == "(" else -1
        if depth <= 0:
            yield line, _tree(text[at : found.end()])
            depth = 0
    if depth:
        yield line, None


def _tree(text: str) -> Tree | None:
    stack: list[list[str | Tree]] = [[]]
    for part in _PART.findall(text):
        if part == "(":
            stack.append([])
        elif part != ")":
            stack[-1].append(part)
        elif len(stack) == 1 or len(stack) > DEEPEST or (made := _node(stack.pop())) is False:
            return None
        elif made:
            stack[-1].append(made)
    root = stack[0][0] if stack[0] else None
    return root if isinstance(root, Tree) and root.parts else None


def _node(inside: list[str | Tree]) -> Tree | Literal[False] | None:
    """What a pair of brackets holds: None if only traces, False if it is no part of a tree."""
    parts = tuple(part for part in inside if isinstance(part, Tree))
    texts = [part for part in inside if isinstance(part, str)]
    if len(texts) == 2 and not parts:  # a part of speech and its word
        return None if texts[0] == "-NONE-" else Tree(_category(texts[0]), word=texts[1])
    if len(texts) > 1 or (texts and inside[0] != texts[0]):
        return False
    if not texts and len(parts) == 1:
        return parts[0]  # the outer brackets of a treebank have no label
    return Tree(_category(texts[0]) if texts else "TOP", parts) if parts else None


def _category(label: str) -> str:
    found = _CATEGORY.match(label)
    return found[0] if found else label


def words(tree: Tree) -> list[str]:
    """The words of the sentence, in order."""
    return [word for part in tree.parts for word in words(part)] if tree.parts else [tree.word]


def linear(tree: Tree) -> str:
    """The tree as a line: (S (NP 1 )NP (VP 2 )VP )S."""
    count = itertools.count(1)

    def line(node: Tree) -> str:
        inside = " ".join(map(line, node.parts))
        return f"({node.label} {inside} ){node.label}" if node.parts else str(next(count))

    return line(tree)


def brackets(line: str) -> list[tuple[str, int, int]] | None:
    """(label, first word, word behind the last) of each constituent, the root last; None if it is no whole tree."""
    found: list[tuple[str, int, int]] = []
    opened: list[tuple[str, int]] = []
    place = 0
    for part in line.split():
        if found and not opened:
            return None  # the tree has ended
        if part[0] not in "()" and opened:
            place += 1
        elif part[0] == "(" and part[1:]:
            opened.append((part[1:], place))
        elif part[0] == ")" and opened and opened[-1][0] == part[1:] and opened[-1][1] < place:
            found.append((*opened.pop(), place))
        else:
            return None
    return found if found and not opened else None


def begins(line: str, words: int) -> bool:
    """Whether a tree over so many words may begin with this line: it does if it can be ended in the shortest way."""
    parts, opened = line.split(), list[str]()
    for part in parts:
        if part[0] == "(":
            opened.append(part[1:])
        elif part[0] == ")" and opened:
            opened.pop()
    rest = [WORD] * (words - sum(part[0] not in "()" for part in parts)) + [f"){label}" for label in reversed(opened)]
    found = brackets(" ".join([*parts, *rest]))
    return not parts or (found is not None and found[-1][2] == words)


def mended(line: str, words: int) -> list[tuple[str, int, int]]:
    """The same of a line that may be no whole tree, over so many words: what was never closed closes as late as it can,
    what was never opened is left out, and words that are too many are none."""
    found: list[tuple[str, int, int]] = []
    opened: list[tuple[str, int]] = []
    place = 0
    for part in line.split():
        if part[0] == "(":
            opened.append((part[1:], place))
        elif part[0] != ")":
            place = min(place + 1, words)
        elif part[1:] in (label for label, _ in opened):
            last = ""
            while last != part[1:]:
                last, start = opened.pop()
                found.append((last, start, place))
    found += [(*left, words) for left in reversed(opened)]
    return [each for each in found if each[1] < each[2]]
