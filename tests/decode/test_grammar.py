"""The tree grammar against all lines that the parser accepts, and a constrained search that produces only trees."""

import itertools

import pytest
import torch

from harken.data.pairs.trees import WORD, is_tree_prefix, parse_brackets
from harken.decode import beam, grammar
from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.grammar import TreeGrammar
from harken.models.seq2seq import TransformerSettings

SYMBOLS = ("<unk>", "(S", ")NP", WORD, "1", "(NP", ")S", "(lost")
EDGE = len(SYMBOLS)
SOURCES = [[1, 2, 3, 11], [4, 11], [5, 6, 7, 8, 9, 1, 2, 11], [3, 3, 11], [11]]
WORDS = [4, 1, 7, 2, 3]
CONSTRAINTS = {"grammar": TreeGrammar(SYMBOLS), "n_words": WORDS}


@pytest.fixture(scope="module")
def model():
    """Random weights with confident predictions."""
    torch.manual_seed(3)
    network = (
        TransformerSettings(size="tiny", positions="rotary", share_embeddings=False)
        .build((12, EDGE + 1))
        .double()
        .eval()
    )
    with torch.no_grad():
        for weights in network.parameters():
            weights.mul_(2.0)
    return network


def line(tokens) -> str:
    return " ".join(SYMBOLS[token] for token in tokens)


def is_tree(text: str, n_words: int) -> bool:
    """Whether the parser reads a tree over this number of words."""
    brackets = parse_brackets(text)
    return brackets is not None and brackets[-1][2] == n_words == text.split().count(WORD)


def allowed(texts, n_words: int, max_length: int) -> torch.Tensor:
    """The tokens that the grammar allows after each of these texts of equal length."""
    rows = torch.full((len(texts), max_length + 1), EDGE)
    if n := len(texts[0]):
        rows[:, 1 : n + 1] = torch.tensor(texts)
    sizes = torch.full((len(texts),), n_words), torch.full((len(texts),), max_length - n)
    return TreeGrammar(SYMBOLS).allowed_tokens(torch.device("cpu"))(rows, *sizes)


@pytest.mark.parametrize(("n_words", "max_length"), [(1, 4), (1, 9), (2, 8), (3, 8), (4, 7)])
def test_a_token_is_allowed_if_and_only_if_some_tree_continues_with_it(n_words, max_length):
    symbols = [1, 2, 3, 5, 6]  # a line with one of the remaining symbols is not a tree
    lines = (list(text) for n in range(max_length) for text in itertools.product(symbols, repeat=n))
    trees = {(*text, EDGE) for text in lines if is_tree(line(text), n_words)}
    expected: dict[tuple, set] = {}
    for text in trees:
        for n in range(len(text)):
            expected.setdefault(text[:n], set()).add(text[n])
    assert trees
    for _, group in itertools.groupby(sorted(expected, key=len), key=len):
        texts = list(group)
        for text, row in zip(texts, allowed(texts, n_words, max_length), strict=True):
            assert set(row.nonzero()[:, 0].tolist()) == expected[text], line(text)


def test_words_are_numbered_and_those_beyond_the_largest_number_repeat_it():
    symbols = ("(S", "2", ")S", "1", "4", "a")
    allowed_tokens, text = TreeGrammar(symbols).allowed_tokens(torch.device("cpu")), [6, 0]
    for word in ("1", "2", "2", "2"):
        (mask,) = allowed_tokens(torch.tensor([[*text, *[6] * 9]]), torch.tensor([4]), torch.tensor([9]))
        assert [symbols[n] for n in mask[:-1].nonzero()[:, 0] if symbols[n][0] not in "()"] == [word]
        text.append(symbols.index(word))


def test_runs_and_depth_of_open_brackets_are_limited(monkeypatch):
    chain = [1] * (grammar.MAX_OPEN_RUN - 1)
    assert allowed([chain], 3, 99)[0, 1]
    assert not allowed([[*chain, 1]], 3, 99)[0, 1]
    assert allowed([[*chain, 1, 3]], 3, 99)[0, 1]
    monkeypatch.setattr(grammar, "MAX_DEPTH", 4)
    assert allowed([[1, 1, 3, 1]], 3, 99)[0, 1]
    assert not allowed([[1, 1, 3, 1, 1]], 3, 99)[0, 1]


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(beam=1),
        SearchSettings(beam=4, alternatives=4),
        SearchSettings(beam=3, alternatives=3, max_new_tokens=12),
        SearchSettings(beam=3, alternatives=3, temperature=2.0),
    ],
    ids=str,
)
def test_an_untrained_model_under_constraints_produces_only_trees(model, settings):
    free = BeamSearch(model).search(SOURCES, settings)
    assert not any(is_tree(line(a.tokens), n) for answers, n in zip(free, WORDS, strict=True) for a in answers)
    for answers, n in zip(BeamSearch(model).search(SOURCES, settings, **CONSTRAINTS), WORDS, strict=True):
        assert answers
        assert all(is_tree(line(a.tokens), n) for a in answers)
        assert all(len(a.tokens) < (settings.max_new_tokens or 2 * 8 + 10) for a in answers)


def test_a_tree_covers_as_many_words_as_the_token_limit_allows(model):
    targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=2, max_new_tokens=6), **CONSTRAINTS)
    assert [parse_brackets(line(a.tokens))[-1][2] for a, *_ in targets] == [3, 1, 3, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_limit_too_small_for_any_tree_gives_no_target(model, temperature):
    assert (
        BeamSearch(model).search(
            SOURCES, SearchSettings(beam=2, max_new_tokens=3, temperature=temperature), **CONSTRAINTS
        )
        == [[]] * 5
    )


@torch.no_grad()
def test_greedy_search_takes_the_most_likely_allowed_token(model):
    targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=1), **CONSTRAINTS)
    for source, n_words, (best,) in zip(SOURCES, WORDS, targets, strict=True):
        text: list[int] = []
        while text[-1:] != [EDGE]:
            scores = model.scores(torch.tensor([[EDGE, *text]]), source=torch.tensor([source]))[0, -1]
            mask = allowed([text], n_words, 2 * len(source) + 10)[0]
            text.append(int(scores.masked_fill(~mask, -torch.inf).argmax()))
        assert best.tokens == text[:-1]


@torch.no_grad()
def test_the_score_is_the_unconstrained_log_probability(model):
    for source, (best, *_) in zip(
        SOURCES, BeamSearch(model).search(SOURCES, SearchSettings(beam=3), **CONSTRAINTS), strict=True
    ):
        tokens = [EDGE, *best.tokens, EDGE]
        logs = model.scores(torch.tensor([tokens[:-1]]), source=torch.tensor([source]))[0].log_softmax(-1)
        mean = sum(float(row[token]) for row, token in zip(logs, tokens[1:], strict=True)) / len(logs)
        assert best.score == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(
    "settings", [SearchSettings(beam=3, alternatives=3), SearchSettings(beam=2, temperature=1.0)], ids=str
)
def test_a_source_has_the_same_targets_in_a_batch_and_alone(model, settings, monkeypatch):
    batched = BeamSearch(model).search(SOURCES, settings, **CONSTRAINTS)
    monkeypatch.setattr(beam, "BATCH_TOKENS", {"cpu": 24})
    assert [[a.tokens for a in row] for row in BeamSearch(model).search_all(SOURCES, settings, **CONSTRAINTS)] == [
        [a.tokens for a in row] for row in batched
    ]
    for n, source in enumerate(SOURCES):
        (alone,) = BeamSearch(model).search(
            [source], settings, grammar=CONSTRAINTS["grammar"], n_words=[WORDS[n]], indices=[n]
        )
        assert [a.tokens for a in alone] == [a.tokens for a in batched[n]]


def test_a_tree_continues_its_prefix(model):
    prefixes = [[1, 5, 3], [], [5], [1, 3, 5], [1]]
    targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=2), prefixes=prefixes, **CONSTRAINTS)
    for prefix, n_words, (best, *_) in zip(prefixes, WORDS, targets, strict=True):
        assert best.tokens[: len(prefix)] == prefix
        assert is_tree(line(best.tokens), n_words)


def test_a_tree_prefix_is_the_start_of_some_tree():
    lines = [line(text) for n in range(7) for text in itertools.product([1, 2, 3, 5, 6], repeat=n)]
    trees = [text for text in lines if is_tree(text, 2)]
    starts = {" ".join(tree.split()[:n]) for tree in trees for n in range(7)}
    short = [text for text in lines if len(text.split()) < 3]  # two more brackets and two words are six symbols
    assert [is_tree_prefix(text, 2) for text in short] == [text in starts for text in short]
    assert any(is_tree_prefix(text, 2) for text in short)


@pytest.mark.gpu
def test_trees_from_captured_graphs_equal_those_of_a_cpu(model):
    expected = [
        [a.tokens for a in row] for row in BeamSearch(model).search(SOURCES, SearchSettings(beam=3), **CONSTRAINTS)
    ]
    finder = BeamSearch(model.cuda())
    for _ in range(3):
        assert [
            [a.tokens for a in row] for row in finder.search(SOURCES, SearchSettings(beam=3), **CONSTRAINTS)
        ] == expected
    (batch,) = finder.batches.values()
    assert batch.step.graph is not None
    model.cpu()
