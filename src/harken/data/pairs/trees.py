"""Bracketed trees in treebank format, and their linear form for sequence models: (S (NP 1 2 )NP 3 )S.

In the linear form (after Vinyals et al. 2015, who write XX for every word) a word is its number, so the next word is
always known. Traces (-NONE-) and constituents of traces only are dropped. Labels are reduced to their category:
NP-SBJ-1 becomes NP.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

WORD = "XX"  # the word token of Vinyals et al.
MAX_DEPTH = 200  # nested brackets; sentences have about 30
_TOKEN = re.compile(r"[()]|[^\s()]+")
_CATEGORY = re.compile(r"-\w+-$|[^-=|]+")


@dataclass(frozen=True)
class Tree:
    """A constituent with its children, or a word with its part of speech."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str = ""


def parse_trees(text: str) -> Iterator[tuple[int, Tree | None]]:
    """Each tree with the number of its first line; None if the brackets are not a tree."""
    line, start, depth = 1, 0, 0
    for match in re.finditer(r"[()]", text):
        if depth == 0:
            line += text.count("\n", start, match.start())
            start = match.start()
        depth += 1 if match[0] == "(" else -1
        if depth <= 0:
            yield line, _parse_tree(text[start : match.end()])
            depth = 0
    if depth:
        yield line, None


def _parse_tree(text: str) -> Tree | None:
    stack: list[list[str | Tree]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1 or len(stack) > MAX_DEPTH or (node := _parse_node(stack.pop())) is False:
            return None
        elif node:
            stack[-1].append(node)
    root = stack[0][0] if stack[0] else None
    return root if isinstance(root, Tree) and root.children else None


def _parse_node(content: list[str | Tree]) -> Tree | Literal[False] | None:
    """The node of a pair of brackets: None if it holds only traces, False if it is invalid."""
    children = tuple(item for item in content if isinstance(item, Tree))
    texts = [item for item in content if isinstance(item, str)]
    if len(texts) == 2 and not children:  # part of speech and word
        return None if texts[0] == "-NONE-" else Tree(_category(texts[0]), word=texts[1])
    if len(texts) > 1 or (texts and content[0] != texts[0]):
        return False
    if not texts and len(children) == 1:
        return children[0]  # the unlabeled outer brackets of a treebank
    return Tree(_category(texts[0]) if texts else "TOP", children) if children else None


def _category(label: str) -> str:
    match = _CATEGORY.match(label)
    return match[0] if match else label


def leaves(tree: Tree) -> list[str]:
    """The words of the sentence, in order."""
    return [word for child in tree.children for word in leaves(child)] if tree.children else [tree.word]


def linearize(tree: Tree) -> str:
    """The linear form: (S (NP 1 )NP (VP 2 )VP )S."""
    count = itertools.count(1)

    def line(node: Tree) -> str:
        content = " ".join(map(line, node.children))
        return f"({node.label} {content} ){node.label}" if node.children else str(next(count))

    return line(tree)


def parse_brackets(line: str) -> list[tuple[str, int, int]] | None:
    """(label, start, stop) of each constituent of a linear form, the root last; None if it is not a complete tree."""
    spans: list[tuple[str, int, int]] = []
    stack: list[tuple[str, int]] = []
    position = 0
    for token in line.split():
        if spans and not stack:
            return None  # the tree has ended
        if token[0] not in "()" and stack:
            position += 1
        elif token[0] == "(" and token[1:]:
            stack.append((token[1:], position))
        elif token[0] == ")" and stack and stack[-1][0] == token[1:] and stack[-1][1] < position:
            spans.append((*stack.pop(), position))
        else:
            return None
    return spans if spans and not stack else None


def is_tree_prefix(line: str, n_words: int) -> bool:
    """Whether the line is a prefix of a tree over n_words words: its shortest completion is a tree."""
    tokens, stack = line.split(), list[str]()
    for token in tokens:
        if token[0] == "(":
            stack.append(token[1:])
        elif token[0] == ")" and stack:
            stack.pop()
    n_missing = n_words - sum(token[0] not in "()" for token in tokens)
    spans = parse_brackets(" ".join([*tokens, *[WORD] * n_missing, *(f"){label}" for label in reversed(stack))]))
    return not tokens or (spans is not None and spans[-1][2] == n_words)


def repair_brackets(line: str, n_words: int) -> list[tuple[str, int, int]]:
    """parse_brackets for an incomplete tree over n_words words: open brackets close as late as possible, unmatched
    closing brackets and surplus words are dropped."""
    spans: list[tuple[str, int, int]] = []
    stack: list[tuple[str, int]] = []
    position = 0
    for token in line.split():
        if token[0] == "(":
            stack.append((token[1:], position))
        elif token[0] != ")":
            position = min(position + 1, n_words)
        elif token[1:] in (label for label, _ in stack):
            closed = ""
            while closed != token[1:]:
                closed, start = stack.pop()
                spans.append((closed, start, position))
    spans += [(*unclosed, n_words) for unclosed in reversed(stack)]
    return [span for span in spans if span[1] < span[2]]
