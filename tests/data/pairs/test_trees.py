"""Trees are parsed from brackets, linearized, and parsed back as labelled spans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.pairs.trees import MAX_DEPTH, Tree, leaves, linearize, parse_brackets, parse_trees

DOG = "( (S (NP-SBJ (DT The) (NN dog) )\n    (VP (VBD ran) (NP-TMP=2 (-NONE- *T*-1) ) )\n    (. .) ))\n"
LEAVES = st.builds(Tree, st.sampled_from(["NN", "-LRB-", "PRP$"]), word=st.sampled_from(["a", "dog", "-LRB-", "1.5%"]))
LABELS = st.sampled_from(["S", "NP", "VP"])
INNER = st.recursive(
    LEAVES, lambda below: st.builds(Tree, LABELS, st.lists(below, min_size=1, max_size=3).map(tuple)), max_leaves=12
)
TREES = st.builds(Tree, LABELS, st.lists(INNER, min_size=1, max_size=3).map(tuple))


def to_treebank(tree: Tree) -> str:
    content = " ".join(map(to_treebank, tree.children)) if tree.children else tree.word
    return f"({tree.label} {content})"


def valid_trees(text: str) -> list[Tree]:
    return [tree for _, tree in parse_trees(text) if tree]


def test_traces_and_function_tags_are_dropped():
    (tree,) = valid_trees(DOG)
    assert leaves(tree) == ["The", "dog", "ran", "."]
    assert linearize(tree) == "(S (NP 1 2 )NP (VP 3 )VP 4 )S"
    assert parse_brackets(linearize(tree)) == [("NP", 0, 2), ("VP", 2, 3), ("S", 0, 4)]


@settings(max_examples=200, deadline=None)
@given(trees=st.lists(TREES, max_size=4))
def test_trees_in_treebank_format_are_parsed_without_loss(trees):
    assert valid_trees("\n".join(f"( {to_treebank(tree)} )" for tree in trees)) == trees


@settings(max_examples=200, deadline=None)
@given(tree=TREES)
def test_the_linear_form_has_the_number_of_every_word_and_the_spans_of_the_tree(tree):
    def spans(node: Tree, start: int) -> list[tuple[str, int, int]]:
        inner, position = [], start
        for child in node.children:
            inner += spans(child, position)
            position += len(leaves(child))
        return [*inner, (node.label, start, position)] if node.children else []

    line = linearize(tree)
    assert [token for token in line.split() if token.isdigit()] == [str(n + 1) for n in range(len(leaves(tree)))]
    assert parse_brackets(line) == spans(tree, 0)


NOT_A_TREE = [
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


@pytest.mark.parametrize("line", NOT_A_TREE)
def test_an_incomplete_tree_has_no_spans(line):
    assert parse_brackets(line) is None


def test_invalid_trees_are_reported_with_their_line():
    text = DOG + "(S a (NP b))\n" + DOG + ")\n( (NN dog) )\n((S (-NONE- *)))\n(S (NP (NN a)"
    assert [line for line, tree in parse_trees(text) if tree is None] == [4, 8, 9, 10, 11]
    assert len(valid_trees(text)) == 2


def test_deeply_nested_brackets_are_refused():
    deep = "(S " * MAX_DEPTH * 2 + "(NN a)" + ")" * MAX_DEPTH * 2
    assert [tree for _, tree in parse_trees(deep)] == [None]
