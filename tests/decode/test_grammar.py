"""The grammar of trees against all lines that its parser takes, and a search that can write nothing else."""

import itertools

import pytest
import torch

from harken.data.pairs.trees import WORD, begins, brackets
from harken.decode import beam, grammar
from harken.decode.beam import Finder, Search
from harken.decode.grammar import Trees
from harken.models.seq2seq import TransformerShape

SYMBOLS = ("<unk>", "(S", ")NP", WORD, "1", "(NP", ")S", "(lost")
EDGE = len(SYMBOLS)
SOURCES = [[1, 2, 3, 11], [4, 11], [5, 6, 7, 8, 9, 1, 2, 11], [3, 3, 11], [11]]
WORDS = [4, 1, 7, 2, 3]
RULES = {"grammar": Trees(SYMBOLS), "words": WORDS}


@pytest.fixture(scope="module")
def model():
    """One that knows nothing, but is sure of it."""
    torch.manual_seed(3)
    made = TransformerShape(size="tiny", positions="rotary", shared=False).build((12, EDGE + 1)).double().eval()
    with torch.no_grad():
        for weights in made.parameters():
            weights.mul_(2.0)
    return made


def line(tokens) -> str:
    return " ".join(SYMBOLS[token] for token in tokens)


def whole(text: str, words: int) -> bool:
    """By the parser: a tree over so many words, and they are written as words."""
    found = brackets(text)
    return found is not None and found[-1][2] == words == text.split().count(WORD)


def allowed(texts, words: int, most: int) -> torch.Tensor:
    """Which tokens the grammar lets come behind each of these texts, which have one length."""
    rows = torch.full((len(texts), most + 1), EDGE)
    if n := len(texts[0]):
        rows[:, 1 : n + 1] = torch.tensor(texts)
    sizes = torch.full((len(texts),), words), torch.full((len(texts),), most - n)
    return Trees(SYMBOLS).rule(torch.device("cpu"))(rows, *sizes)


@pytest.mark.parametrize(("words", "most"), [(1, 4), (1, 9), (2, 8), (3, 8), (4, 7)])
def test_a_token_is_allowed_just_if_some_tree_goes_on_so(words, most):
    used = [1, 2, 3, 5, 6]  # no line of the others is a tree in these symbols
    lines = (list(text) for n in range(most) for text in itertools.product(used, repeat=n))
    right = {(*text, EDGE) for text in lines if whole(line(text), words)}
    wanted: dict[tuple, set] = {}
    for text in right:
        for n in range(len(text)):
            wanted.setdefault(text[:n], set()).add(text[n])
    assert right
    for _, group in itertools.groupby(sorted(wanted, key=len), key=len):
        texts = list(group)
        for text, row in zip(texts, allowed(texts, words, most), strict=True):
            assert set(row.nonzero()[:, 0].tolist()) == wanted[text], line(text)


def test_words_are_numbered_and_behind_the_last_number_all_are_called_by_it():
    symbols = ("(S", "2", ")S", "1", "4", "a")
    rule, text = Trees(symbols).rule(torch.device("cpu")), [6, 0]
    for named in ("1", "2", "2", "2"):
        (may,) = rule(torch.tensor([[*text, *[6] * 9]]), torch.tensor([4]), torch.tensor([9]))
        assert [symbols[n] for n in may[:-1].nonzero()[:, 0] if symbols[n][0] not in "()"] == [named]
        text.append(symbols.index(named))


def test_brackets_are_not_opened_without_end(monkeypatch):
    chain = [1] * (grammar.IN_A_ROW - 1)
    assert allowed([chain], 3, 99)[0, 1]
    assert not allowed([[*chain, 1]], 3, 99)[0, 1]
    assert allowed([[*chain, 1, 3]], 3, 99)[0, 1]
    monkeypatch.setattr(grammar, "DEEPEST", 4)
    assert allowed([[1, 1, 3, 1]], 3, 99)[0, 1]
    assert not allowed([[1, 1, 3, 1, 1]], 3, 99)[0, 1]


@pytest.mark.parametrize(
    "how",
    [
        Search(beam=1),
        Search(beam=4, alternatives=4),
        Search(beam=3, alternatives=3, longest=12),
        Search(beam=3, alternatives=3, temperature=2.0),
    ],
    ids=str,
)
def test_a_model_that_has_learned_nothing_writes_only_whole_trees(model, how):
    free = Finder(model).search(SOURCES, how)
    assert not any(whole(line(a.tokens), n) for answers, n in zip(free, WORDS, strict=True) for a in answers)
    for answers, n in zip(Finder(model).search(SOURCES, how, **RULES), WORDS, strict=True):
        assert answers
        assert all(whole(line(a.tokens), n) for a in answers)
        assert all(len(a.tokens) < (how.longest or 2 * 8 + 10) for a in answers)


def test_where_not_all_words_have_room_the_tree_is_one_over_those_that_have(model):
    found = Finder(model).search(SOURCES, Search(beam=2, longest=6), **RULES)
    assert [brackets(line(a.tokens))[-1][2] for a, *_ in found] == [3, 1, 3, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_there_is_no_answer_where_no_tree_has_room(model, temperature):
    assert Finder(model).search(SOURCES, Search(beam=2, longest=3, temperature=temperature), **RULES) == [[]] * 5


@torch.no_grad()
def test_a_beam_of_one_takes_the_likeliest_token_that_is_allowed(model):
    found = Finder(model).search(SOURCES, Search(beam=1), **RULES)
    for source, words, (best,) in zip(SOURCES, WORDS, found, strict=True):
        text: list[int] = []
        while text[-1:] != [EDGE]:
            scores = model.scores(torch.tensor([[EDGE, *text]]), source=torch.tensor([source]))[0, -1]
            may = allowed([text], words, 2 * len(source) + 10)[0]
            text.append(int(scores.masked_fill(~may, -torch.inf).argmax()))
        assert best.tokens == text[:-1]


@torch.no_grad()
def test_the_score_is_the_models_own(model):
    for source, (best, *_) in zip(SOURCES, Finder(model).search(SOURCES, Search(beam=3), **RULES), strict=True):
        tokens = [EDGE, *best.tokens, EDGE]
        logs = model.scores(torch.tensor([tokens[:-1]]), source=torch.tensor([source]))[0].log_softmax(-1)
        mean = sum(float(row[token]) for row, token in zip(logs, tokens[1:], strict=True)) / len(logs)
        assert best.score == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("how", [Search(beam=3, alternatives=3), Search(beam=2, temperature=1.0)], ids=str)
def test_a_source_is_answered_alone_as_among_others(model, how, monkeypatch):
    together = Finder(model).search(SOURCES, how, **RULES)
    monkeypatch.setattr(beam, "AT_ONCE", {"cpu": 24})
    assert [[a.tokens for a in each] for each in Finder(model).search_all(SOURCES, how, **RULES)] == [
        [a.tokens for a in each] for each in together
    ]
    for n, source in enumerate(SOURCES):
        (alone,) = Finder(model).search([source], how, grammar=RULES["grammar"], words=[WORDS[n]], numbers=[n])
        assert [a.tokens for a in alone] == [a.tokens for a in together[n]]


def test_a_tree_goes_on_from_how_it_must_begin(model):
    prefixes = [[1, 5, 3], [], [5], [1, 3, 5], [1]]
    found = Finder(model).search(SOURCES, Search(beam=2), prefixes=prefixes, **RULES)
    for prefix, words, (best, *_) in zip(prefixes, WORDS, found, strict=True):
        assert best.tokens[: len(prefix)] == prefix
        assert whole(line(best.tokens), words)


def test_what_can_begin_a_tree_is_what_some_tree_begins_with():
    lines = [line(text) for n in range(7) for text in itertools.product([1, 2, 3, 5, 6], repeat=n)]
    trees = [text for text in lines if whole(text, 2)]
    starts = {" ".join(tree.split()[:n]) for tree in trees for n in range(7)}
    short = [text for text in lines if len(text.split()) < 3]  # two more brackets and two words are six symbols
    assert [begins(text, 2) for text in short] == [text in starts for text in short]
    assert any(begins(text, 2) for text in short)


@pytest.mark.gpu
def test_trees_played_from_recordings_are_those_of_a_cpu(model):
    wanted = [[a.tokens for a in each] for each in Finder(model).search(SOURCES, Search(beam=3), **RULES)]
    finder = Finder(model.cuda())
    for _ in range(3):
        assert [[a.tokens for a in each] for each in finder.search(SOURCES, Search(beam=3), **RULES)] == wanted
    (beams,) = finder.sizes.values()
    assert beams.one.graph is not None
    model.cpu()
