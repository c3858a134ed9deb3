"""Beam search against brute force, against decoding without a memory, and against itself alone and in a batch."""

import itertools

import pytest
import torch

from harken.decode import beam
from harken.decode.beam import BeamSearch, Hypothesis, SearchSettings
from harken.decode.cuda_graph import CapturedGraph
from harken.errors import BadInput
from harken.models.seq2seq import TransformerSettings

VOCAB = 12
SOURCES = [[1, 2, 3, 11], [4, 11], [5, 6, 7, 8, 9, 1, 2, 11], [3, 3, 11], [11]]
OTHER_SOURCES = [[2, 5, 11], [1, 11], [9, 9, 8, 7, 6, 5, 4, 11], [3, 11], [4, 4, 11]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    network = TransformerSettings(size="tiny", layers=2, positions="rotary").build((VOCAB, VOCAB)).double().eval()
    with torch.no_grad():
        for weights in network.parameters():
            weights.mul_(2.0)  # confident predictions
    return network


def log_probabilities(model, source, answers, *, ended=True) -> list[float]:
    """The sum of ln p of each target and its edge mark, from one forward pass; all targets have one length."""
    tokens = torch.tensor([[model.edge, *answer] for answer in answers])
    logs = model.scores(tokens, source=torch.tensor([source] * len(answers))).log_softmax(-1)
    targets = torch.tensor([[*answer, model.edge] if ended else answer for answer in answers])
    return logs[:, : targets.shape[1]].gather(2, targets[..., None]).sum((1, 2)).tolist()


def log_probability(model, source, answer, *, ended=True) -> float:
    return log_probabilities(model, source, [answer], ended=ended)[0]


def greedy(model, source, max_length) -> list[int]:
    text: list[int] = []
    while len(text) < max_length:
        tokens = torch.tensor([[model.edge, *text]])
        token = int(model.scores(tokens, source=torch.tensor([source]))[0, -1].argmax())
        if token == model.edge:
            break
        text.append(token)
    return text


def test_a_beam_of_one_is_greedy_search(model):
    targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=1))
    assert [a[0].tokens for a in targets] == [greedy(model, s, 2 * len(s) + 10) for s in SOURCES]


@torch.no_grad()
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_targets(model, penalty):
    max_length, source = 3, SOURCES[0]
    scored = []
    for n in range(max_length + 1):  # targets of maximum length are truncated: they have no edge mark
        answers = [list(a) for a in itertools.product(range(VOCAB - 1), repeat=n)]
        ended = n < max_length
        totals = log_probabilities(model, source, answers, ended=ended)
        scored += [(total / (n + ended) ** penalty, answer) for total, answer in zip(totals, answers, strict=True)]
    score, answer = max(scored)
    settings = SearchSettings(beam=11**2, max_new_tokens=max_length, length_penalty=penalty)
    ((best, *_),) = BeamSearch(model).search([source], settings)
    assert best.tokens == answer
    assert best.score == pytest.approx(score, abs=1e-5)


@torch.no_grad()
def test_the_score_is_the_mean_log_probability_of_the_target_and_its_edge_mark(model):
    for source, (best, *_) in zip(SOURCES, BeamSearch(model).search(SOURCES, SearchSettings(beam=3)), strict=True):
        if len(best.tokens) < 2 * len(source) + 10:
            mean = log_probability(model, source, best.tokens) / (len(best.tokens) + 1)
            assert best.score == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_source_has_the_same_targets_in_a_batch_and_alone(model, width):
    settings = SearchSettings(beam=width, alternatives=width)
    batched = BeamSearch(model).search(SOURCES, settings)
    for source, answers in zip(SOURCES, batched, strict=True):
        (alone,) = BeamSearch(model).search([source], settings)
        assert [a.tokens for a in answers] == [a.tokens for a in alone]
        assert [a.score for a in answers] == pytest.approx([a.score for a in alone], abs=1e-5)


def test_alternatives_are_different_and_sorted_by_score(model):
    for answers in BeamSearch(model).search(SOURCES, SearchSettings(beam=6, alternatives=6)):
        assert len({tuple(a.tokens) for a in answers}) == len(answers) > 1
        assert [a.score for a in answers] == sorted((a.score for a in answers), reverse=True)


def test_a_target_starts_with_its_prefix_and_continues_greedily(model):
    prefixes = [[7, 7], [], [1], [2, 3, 4], [5]]
    targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=1), prefixes=prefixes)
    for source, prefix, (answer, *_) in zip(SOURCES, prefixes, targets, strict=True):
        assert answer.tokens[: len(prefix)] == prefix
        tokens = torch.tensor([[model.edge, *prefix]])
        token = int(model.scores(tokens, source=torch.tensor([source]))[0, -1].argmax())
        assert (answer.tokens[len(prefix) :] or [model.edge])[0] == token


def test_a_prefix_takes_precedence_over_banned_tokens_and_no_repeat(model):
    prefixes = [[7, 7, 7]] + [[]] * 4
    settings = SearchSettings(beam=3, no_repeat=1, max_new_tokens=8)
    (prefixed, *_), *rest = BeamSearch(model).search(SOURCES, settings, banned_ids=[7], prefixes=prefixes)
    assert prefixed.tokens[:3] == [7, 7, 7]
    assert 7 not in [token for answers in rest for token in answers[0].tokens] + prefixed.tokens[3:]
    assert rest == BeamSearch(model).search(SOURCES[1:], settings, banned_ids=[7])


@pytest.mark.parametrize(
    ("prefixes", "max_new_tokens", "message"),
    [
        ([[1]], None, "1 prefixes for 5 sources: give one prefix per source"),
        ([[1] * 8, [], [], [], []], 8, "the prefix has 8 tokens: must be < 8, the maximum of a target"),
        ([[1] * 600, [], [], [], []], None, "the prefix has 600 tokens: must be < 512, the maximum of a target"),
    ],
)
def test_a_prefix_that_does_not_fit_is_rejected(model, prefixes, max_new_tokens, message):
    with pytest.raises(BadInput, match=message):
        BeamSearch(model).search(SOURCES, SearchSettings(max_new_tokens=max_new_tokens), prefixes=prefixes)


def test_each_source_keeps_its_prefix_and_random_stream_across_batches(model, monkeypatch):
    monkeypatch.setattr(beam, "BATCH_TOKENS", {"cpu": 24})
    prefixes, settings = [[n] for n in range(5)], SearchSettings(beam=1, temperature=1.0)
    targets = BeamSearch(model).search_all(SOURCES, settings, prefixes=prefixes, indices=[7, 8, 9, 10, 11])
    assert [a[0].tokens[0] for a in targets] == [0, 1, 2, 3, 4]
    (alone,) = BeamSearch(model).search([SOURCES[2]], settings, prefixes=[[2]], indices=[9])
    assert targets[2] == alone


def test_no_repeat_bans_repeated_ngrams(model):
    unrestricted = BeamSearch(model).search(SOURCES, SearchSettings(beam=3, max_new_tokens=20))
    assert any(len(bigrams(a)) > len(set(bigrams(a))) for a, *_ in unrestricted)  # otherwise the test proves nothing
    for answer, *_ in BeamSearch(model).search(SOURCES, SearchSettings(beam=3, max_new_tokens=20, no_repeat=2)):
        assert len(bigrams(answer)) == len(set(bigrams(answer)))


def bigrams(answer: Hypothesis) -> list:
    return list(itertools.pairwise(answer.tokens))


def test_a_banned_token_is_in_no_target(model):
    settings = SearchSettings(beam=4, alternatives=4)
    usual = {token for answers in BeamSearch(model).search(SOURCES, settings) for a in answers for token in a.tokens}
    banned = sorted(usual)[:2]
    targets = BeamSearch(model).search(SOURCES, settings, banned_ids=banned)
    assert not {token for answers in targets for a in answers for token in a.tokens} & set(banned)


def test_a_target_has_at_most_max_new_tokens(model):
    targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=2, max_new_tokens=3))
    assert max(len(a.tokens) for a, *_ in targets) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam=0"),
        ({"alternatives": 5}, "alternatives=5"),
        ({"length_penalty": -1}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty='1'"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"max_new_tokens": 5.5}, r"max_new_tokens=5\.5: must be an integer ≥ 1"),
        ({"max_new_tokens": "5"}, "max_new_tokens='5'"),
        ({"seed": "x"}, "seed='x': must be an integer$"),
        ({"beam": True}, "beam=True"),
        ({"beam": 5000}, "beam=5000: must be ≤ 1,024"),
        ({"top_k": 3}, "temperature"),
    ],
)
def test_an_invalid_setting_is_reported_by_its_name(options, message):
    with pytest.raises(BadInput, match=message):
        SearchSettings(**options)


def test_search_all_splits_into_batches_that_fit_and_keeps_the_order(model, monkeypatch):
    sizes, search = [], BeamSearch.search
    monkeypatch.setattr(beam, "BATCH_TOKENS", {"cpu": 24})

    def logged_search(finder, sources, settings, **options):
        sizes.append((len(sources), max(map(len, sources))))
        return search(finder, sources, settings, **options)

    expected = BeamSearch(model).search(SOURCES, SearchSettings(beam=2))
    monkeypatch.setattr(BeamSearch, "search", logged_search)
    targets = BeamSearch(model).search_all(SOURCES, SearchSettings(beam=2))
    assert [a[0].tokens for a in targets] == [a[0].tokens for a in expected]
    assert len(sizes) > 1
    assert all(rows == 1 or rows * longest * 2 <= 24 for rows, longest in sizes)


@torch.no_grad()
def test_sampled_targets_follow_the_model_distribution(model):
    source, draws = SOURCES[0], 4000
    settings = SearchSettings(beam=1000, alternatives=1000, max_new_tokens=1, temperature=1.0)
    samples = [answer for answers in BeamSearch(model).search([source] * 4, settings) for answer in answers]
    p = model.scores(torch.tensor([[model.edge]]), source=torch.tensor([source]))[0, -1].softmax(-1)
    counts = torch.zeros(VOCAB)
    for answer in samples:
        counts[answer.tokens[0] if answer.tokens else model.edge] += 1
    assert (counts / draws - p).abs().max() < 0.03
    assert len(samples) == draws


def test_a_sampled_target_depends_on_its_seed_and_not_on_its_batch(model):
    settings = SearchSettings(beam=3, alternatives=3, temperature=1.0)
    batched = BeamSearch(model).search_all(SOURCES, settings)
    (alone,) = BeamSearch(model).search([SOURCES[2]], settings, indices=[2])
    assert [a.tokens for a in batched[2]] == [a.tokens for a in alone]
    reseeded = BeamSearch(model).search_all(SOURCES, SearchSettings(beam=3, alternatives=3, temperature=1.0, seed=9))
    assert [a[0].tokens for a in reseeded] != [a[0].tokens for a in batched]


@torch.no_grad()
def test_the_score_of_a_sampled_target_is_its_log_probability(model):
    for source, answers in zip(
        SOURCES, BeamSearch(model).search(SOURCES, SearchSettings(temperature=0.7)), strict=True
    ):
        for best in answers:
            ended = len(best.tokens) < 2 * len(source) + 10
            total = log_probability(model, source, best.tokens, ended=ended)
            assert best.score == pytest.approx(total / (len(best.tokens) + ended), abs=1e-4)


def test_sampling_with_a_top_k_of_one_is_greedy(model):
    sampled = BeamSearch(model).search(SOURCES, SearchSettings(beam=1, temperature=2.0, top_k=1))
    greedy_targets = BeamSearch(model).search(SOURCES, SearchSettings(beam=1))
    assert [a[0].tokens for a in sampled] == [a[0].tokens for a in greedy_targets]


class FakeGraph(CapturedGraph):
    """Captures its second call as on a GPU, and replays by running the work again."""

    def __call__(self, capturable=True):
        if capturable and self.has_run:
            self.graph = self
        self.has_run = True
        self.work()


@pytest.fixture
def capturing_search(model, monkeypatch):
    """A search that captures graphs without a GPU."""
    monkeypatch.setattr(beam, "CapturedGraph", FakeGraph)
    monkeypatch.setattr(BeamSearch, "_capturable", lambda finder: True)
    return BeamSearch(model)


def test_a_batch_size_is_captured_at_its_second_occurrence(model, capturing_search):
    inputs = SOURCES, OTHER_SOURCES
    expected = [BeamSearch(model).search(sources, SearchSettings()) for sources in inputs]
    for n in range(4):
        assert capturing_search.search(inputs[n % 2], SearchSettings()) == expected[n % 2]
        (batch,) = capturing_search.batches.values()
        assert (batch is None) == (n == 0)
    assert batch.encode.graph
    assert batch.step.graph


def test_finished_sources_leave_the_batch_unless_it_is_captured(model, capturing_search, monkeypatch):
    rows, scores = [], type(model).scores
    monkeypatch.setattr(
        type(model), "scores", lambda m, tokens, **inputs: rows.append(len(tokens)) or scores(m, tokens, **inputs)
    )
    for _ in range(2):
        capturing_search.search(SOURCES, SearchSettings(beam=1))
        rows.append(0)
    eager, captured = rows[: rows.index(0)], rows[rows.index(0) + 1 : -1]
    assert eager[0] == 5 > eager[-1]
    assert set(captured) == {5}


def test_graphs_are_dropped_when_the_weights_move(capturing_search):
    for _ in range(2):
        capturing_search.search(SOURCES, SearchSettings())
    assert list(capturing_search.batches.values()) != [None]
    capturing_search.model.float()
    capturing_search.search(SOURCES, SearchSettings())
    assert list(capturing_search.batches.values()) == [None]
    capturing_search.model.double()


def test_captured_batches_stay_within_their_token_limit(capturing_search, monkeypatch):
    monkeypatch.setattr(beam, "MAX_CAPTURED_TOKENS", 600)
    for length in (16, 32, 48, 64):
        for _ in range(2):
            capturing_search.search(SOURCES[:3], SearchSettings(beam=2, max_new_tokens=length))
    captured = [key.C for key, batch in capturing_search.batches.items() if batch]
    assert captured == [64]
    assert sum(3 * 2 * C for C in captured) <= 600


@pytest.mark.gpu
def test_a_search_on_a_gpu_ends_for_every_batch_size(model):
    finder = BeamSearch(model.cuda())
    for rows in range(1, 100):
        assert len(finder.search(SOURCES[:1] * rows, SearchSettings(beam=1, max_new_tokens=2))) == rows
    model.cpu()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings", [SearchSettings(beam=4), SearchSettings(beam=1), SearchSettings(beam=2, temperature=1.0)], ids=str
)
def test_a_captured_search_finds_the_targets_of_an_eager_one(model, settings):
    finder = BeamSearch(model.cuda())
    expected = [BeamSearch(model).search(sources, settings) for sources in (SOURCES, OTHER_SOURCES)]
    for sources, answers in [(SOURCES, expected[0]), (OTHER_SOURCES, expected[1])] * 3:
        targets = finder.search(sources, settings)
        assert [[a.tokens for a in row] for row in targets] == [[a.tokens for a in row] for row in answers]
    (batch,) = finder.batches.values()
    assert batch.step.graph is not None
    model.cpu()
