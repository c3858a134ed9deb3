"""Trees are read from brackets, written as a line, and read back as labelled brackets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.pairs.trees import DEEPEST, Tree, brackets, linear, numbered, words

DOG = "( (S (NP-SBJ (DT The) (NN dog) )\n    (VP (VBD ran) (NP-TMP=2 (-NONE- *T*-1) ) )\n    (. .) ))\n"
LEAVES = st.builds(Tree, st.sampled_from(["NN", "-LRB-", "PRP$"]), word=st.sampled_from(["a", "dog", "-LRB-", "1.5%"]))
LABELS = st.sampled_from(["S", "NP", "VP"])
INNER = st.recursive(
    LEAVES, lambda below: st.builds(Tree, LABELS, st.lists(below, min_size=1, max_size=3).map(tuple)), max_leaves=12
)
TREES = st.builds(Tree, LABELS, st.lists(INNER, min_size=1, max_size=3).map(tuple))


def written(tree: Tree) -> str:
    """The tree as a treebank writes it."""
    inside = " ".join(map(written, tree.parts)) if tree.parts else tree.word
    return f"({tree.label} {inside})"


def trees_of(text: str) -> list[Tree]:
    return [tree for _, tree in numbered(text) if tree]


def test_traces_and_function_tags_are_left_out():
    (tree,) = trees_of(DOG)
    assert words(tree) == ["The", "dog", "ran", "."]
    assert linear(tree) == "(S (NP 1 2 )NP (VP 3 )VP 4 )S"
    assert brackets(linear(tree)) == [("NP", 0, 2), ("VP", 2, 3), ("S", 0, 4)]


@settings(max_examples=200, deadline=None)
@given(trees=st.lists(TREES, max_size=4))
def test_written_trees_are_read_as_they_were(trees):
    assert trees_of("\n".join(f"( {written(tree)} )" for tree in trees)) == trees


@settings(max_examples=200, deadline=None)
@given(tree=TREES)
def test_the_line_has_a_place_for_every_word_and_the_brackets_of_the_tree(tree):
    def spans(node: Tree, start: int) -> list[tuple[str, int, int]]:
        inside, at = [], start
        for part in node.parts:
            inside += spans(part, at)
            at += len(words(part))
        return [*inside, (node.label, start, at)] if node.parts else []

    assert [part for part in linear(tree).split() if part.isdigit()] == [str(n + 1) for n in range(len(words(tree)))]
    assert brackets(linear(tree)) == spans(tree, 0)


NO_TREE = [
    "",
    "XX",
    "(S XX )NP",
    "(S XX",
    "(S )S",
    "(S XX )S (S XX )S",
    "(S XX )S XX",
    ")S",
    "(S (NP XX )S )NP",
    "(S ( XX )",
]


@pytest.mark.parametrize("line", NO_TREE)
def test_a_line_that_is_no_whole_tree_has_no_brackets(line):
    assert brackets(line) is None


def test_what_is_no_tree_is_told_by_its_line():
    text = DOG + "(S a (NP b))\n" + DOG + ")\n( (NN dog) )\n((S (-NONE- *)))\n(S (NP (NN a)"
    assert [line for line, tree in numbered(text) if tree is None] == [4, 8, 9, 10, 11]
    assert len(trees_of(text)) == 2


def test_brackets_without_end_are_no_tree():
    deep = "(S " * DEEPEST * 2 + "(NN a)" + ")" * DEEPEST * 2
    assert [tree for _, tree in numbered(deep)] == [None]
