"""Beam search against brute force, a loop without a memory, and itself: alone, in a batch, with other beams."""

import itertools

import pytest
import torch

from harken.decode import beam
from harken.decode.beam import Answer, Finder, Search
from harken.decode.cuda_graph import Played
from harken.errors import BadInput
from harken.models.seq2seq import TransformerShape

VOCAB = 12
SOURCES = [[1, 2, 3, 11], [4, 11], [5, 6, 7, 8, 9, 1, 2, 11], [3, 3, 11], [11]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    made = TransformerShape(size="tiny", layers=2, positions="rotary").build((VOCAB, VOCAB)).double().eval()
    with torch.no_grad():
        for weights in made.parameters():
            weights.mul_(2.0)  # a model that is sure of something
    return made


def log_probabilities(model, source, answers, *, ended=True) -> list[float]:
    """The sum of ln p of each answer and its edge, from one whole pass; all have one length."""
    tokens = torch.tensor([[model.edge, *answer] for answer in answers])
    logs = model.scores(tokens, source=torch.tensor([source] * len(answers))).log_softmax(-1)
    wanted = torch.tensor([[*answer, model.edge] if ended else answer for answer in answers])
    return logs[:, : wanted.shape[1]].gather(2, wanted[..., None]).sum((1, 2)).tolist()


def log_probability(model, source, answer, *, ended=True) -> float:
    return log_probabilities(model, source, [answer], ended=ended)[0]


def greedy(model, source, most) -> list[int]:
    text: list[int] = []
    while len(text) < most:
        tokens = torch.tensor([[model.edge, *text]])
        chosen = int(model.scores(tokens, source=torch.tensor([source]))[0, -1].argmax())
        if chosen == model.edge:
            break
        text.append(chosen)
    return text


def test_a_beam_of_one_is_greedy(model):
    found = Finder(model).search(SOURCES, Search(beam=1))
    assert [a[0].tokens for a in found] == [greedy(model, s, 2 * len(s) + 10) for s in SOURCES]


@torch.no_grad()
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_answers(model, penalty):
    most, source = 3, SOURCES[0]
    words = range(VOCAB - 1)
    values = []
    for n in range(most + 1):  # the longest are cut, so that nobody asks for their edge
        answers = [list(a) for a in itertools.product(words, repeat=n)]
        ended = n < most
        found = log_probabilities(model, source, answers, ended=ended)
        values += [(value / (n + ended) ** penalty, answer) for value, answer in zip(found, answers, strict=True)]
    value, answer = max(values)
    (found,) = Finder(model).search([source], Search(beam=11**2, longest=most, length_penalty=penalty))
    assert found[0].tokens == answer
    assert found[0].score == pytest.approx(value, abs=1e-5)


@torch.no_grad()
def test_the_score_is_the_mean_log_probability_of_the_answer_and_its_edge(model):
    for source, (best, *_) in zip(SOURCES, Finder(model).search(SOURCES, Search(beam=3)), strict=True):
        if len(best.tokens) < 2 * len(source) + 10:
            mean = log_probability(model, source, best.tokens) / (len(best.tokens) + 1)
            assert best.score == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("wide", [1, 2, 5])
def test_a_source_in_a_batch_gets_the_answers_it_gets_alone(model, wide):
    how = Search(beam=wide, alternatives=wide)
    together = Finder(model).search(SOURCES, how)
    for source, answers in zip(SOURCES, together, strict=True):
        (alone,) = Finder(model).search([source], how)
        assert [a.tokens for a in answers] == [a.tokens for a in alone]
        assert [a.score for a in answers] == pytest.approx([a.score for a in alone], abs=1e-5)


def test_alternatives_are_different_and_the_best_comes_first(model):
    for answers in Finder(model).search(SOURCES, Search(beam=6, alternatives=6)):
        assert len({tuple(a.tokens) for a in answers}) == len(answers) > 1
        assert [a.score for a in answers] == sorted((a.score for a in answers), reverse=True)


def test_a_forced_beginning_is_there_and_what_follows_is_the_models(model):
    prefixes = [[7, 7], [], [1], [2, 3, 4], [5]]
    found = Finder(model).search(SOURCES, Search(beam=1), prefixes=prefixes)
    for source, prefix, (answer, *_) in zip(SOURCES, prefixes, found, strict=True):
        assert answer.tokens[: len(prefix)] == prefix
        tokens = torch.tensor([[model.edge, *prefix]])
        chosen = int(model.scores(tokens, source=torch.tensor([source]))[0, -1].argmax())
        assert (answer.tokens[len(prefix) :] or [model.edge])[0] == chosen


def test_a_forced_beginning_stands_above_what_is_never_written_or_written_once(model):
    prefixes = [[7, 7, 7]] + [[]] * 4
    how = Search(beam=3, no_repeat=1, longest=8)
    (answer, *_), *others = Finder(model).search(SOURCES, how, never=[7], prefixes=prefixes)
    assert answer.tokens[:3] == [7, 7, 7]
    assert 7 not in [token for found in others for token in found[0].tokens] + answer.tokens[3:]
    assert others == Finder(model).search(SOURCES[1:], how, never=[7])


@pytest.mark.parametrize(
    ("prefixes", "longest", "said"),
    [
        ([[1]], None, "1 beginnings for 5 sources: one for each is needed"),
        ([[1] * 8, [], [], [], []], 8, "a beginning of 8 tokens: an answer has at most 8, its end with them"),
        ([[1] * 600, [], [], [], []], None, "a beginning of 600 tokens: an answer has at most 512"),
    ],
)
def test_a_beginning_that_does_not_fit_is_refused(model, prefixes, longest, said):
    with pytest.raises(BadInput, match=said):
        Finder(model).search(SOURCES, Search(longest=longest), prefixes=prefixes)


def test_many_sources_have_their_own_beginnings_and_numbers(model, monkeypatch):
    monkeypatch.setattr(beam, "AT_ONCE", {"cpu": 24})
    prefixes, how = [[n] for n in range(5)], Search(beam=1, temperature=1.0)
    found = Finder(model).search_all(SOURCES, how, prefixes=prefixes, numbers=[7, 8, 9, 10, 11])
    assert [a[0].tokens[0] for a in found] == [0, 1, 2, 3, 4]
    (alone,) = Finder(model).search([SOURCES[2]], how, prefixes=[[2]], numbers=[9])
    assert found[2] == alone


def test_no_run_of_tokens_comes_twice_where_that_is_banned(model):
    free = Finder(model).search(SOURCES, Search(beam=3, longest=20))
    assert any(len(pairs(a)) > len(set(pairs(a))) for a, *_ in free)  # else there is nothing to ban
    for answer, *_ in Finder(model).search(SOURCES, Search(beam=3, longest=20, no_repeat=2)):
        assert len(pairs(answer)) == len(set(pairs(answer)))


def pairs(answer: Answer) -> list:
    return list(itertools.pairwise(answer.tokens))


def test_a_token_that_is_never_written_is_in_no_answer(model):
    usual = {
        token
        for answers in Finder(model).search(SOURCES, Search(beam=4, alternatives=4))
        for a in answers
        for token in a.tokens
    }
    never = sorted(usual)[:2]
    found = Finder(model).search(SOURCES, Search(beam=4, alternatives=4), never=never)
    assert not {token for answers in found for a in answers for token in a.tokens} & set(never)


def test_an_answer_has_no_more_tokens_than_allowed(model):
    assert max(len(a.tokens) for a, *_ in Finder(model).search(SOURCES, Search(beam=2, longest=3))) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"beam": 0}, "beam=0"),
        ({"alternatives": 5}, "alternatives=5"),
        ({"length_penalty": -1}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty='1'"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"longest": 5.5}, r"longest=5\.5: a whole number of 1 or more is accepted"),
        ({"longest": "5"}, "longest='5'"),
        ({"seed": "x"}, "seed='x': a whole number is accepted"),
        ({"beam": True}, "beam=True"),
        ({"beam": 5000}, "beam=5000: at most 1,024 texts are followed"),
        ({"top_k": 3}, "temperature"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_by_its_name(given, said):
    with pytest.raises(BadInput, match=said):
        Search(**given)


def test_many_sources_are_searched_in_batches_that_fit_and_answered_in_their_order(model, monkeypatch):
    sizes, search = [], Finder.search
    monkeypatch.setattr(beam, "AT_ONCE", {"cpu": 24})

    def searched(finder, sources, how, **given):
        sizes.append((len(sources), max(map(len, sources))))
        return search(finder, sources, how, **given)

    wanted = Finder(model).search(SOURCES, Search(beam=2))
    monkeypatch.setattr(Finder, "search", searched)
    found = Finder(model).search_all(SOURCES, Search(beam=2))
    assert [a[0].tokens for a in found] == [a[0].tokens for a in wanted]
    assert len(sizes) > 1
    assert all(rows == 1 or rows * longest * 2 <= 24 for rows, longest in sizes)


@torch.no_grad()
def test_drawn_answers_come_as_often_as_the_model_says(model):
    source, draws = SOURCES[0], 4000
    how = Search(beam=1000, alternatives=1000, longest=1, temperature=1.0)
    found = [answer for answers in Finder(model).search([source] * 4, how) for answer in answers]
    p = model.scores(torch.tensor([[model.edge]]), source=torch.tensor([source]))[0, -1].softmax(-1)
    seen = torch.zeros(VOCAB)
    for answer in found:
        seen[answer.tokens[0] if answer.tokens else model.edge] += 1
    assert (seen / draws - p).abs().max() < 0.03
    assert len(found) == draws


def test_a_drawn_answer_is_the_same_alone_and_among_others_and_another_with_another_seed(model):
    how = Search(beam=3, alternatives=3, temperature=1.0)
    together = Finder(model).search_all(SOURCES, how)
    (alone,) = Finder(model).search([SOURCES[2]], how, numbers=[2])
    assert [a.tokens for a in together[2]] == [a.tokens for a in alone]
    other = Finder(model).search_all(SOURCES, Search(beam=3, alternatives=3, temperature=1.0, seed=9))
    assert [a[0].tokens for a in other] != [a[0].tokens for a in together]


@torch.no_grad()
def test_the_score_of_a_drawn_answer_is_the_models_own(model):
    for source, answers in zip(SOURCES, Finder(model).search(SOURCES, Search(temperature=0.7)), strict=True):
        for best in answers:
            ended = len(best.tokens) < 2 * len(source) + 10
            total = log_probability(model, source, best.tokens, ended=ended)
            assert best.score == pytest.approx(total / (len(best.tokens) + ended), abs=1e-4)


def test_a_drawn_answer_narrowed_to_one_token_is_the_greedy_one(model):
    drawn = Finder(model).search(SOURCES, Search(beam=1, temperature=2.0, top_k=1))
    assert [a[0].tokens for a in drawn] == [a[0].tokens for a in Finder(model).search(SOURCES, Search(beam=1))]


class Pretended(Played):
    """What a GPU does: the second time the work is recorded, here by doing it again."""

    def __call__(self, playable=True):
        if playable and self.known:
            self.graph = self
        self.known = True
        self.work()


@pytest.fixture
def recorder(model, monkeypatch):
    """A finder that thinks it is on a GPU."""
    monkeypatch.setattr(beam, "Played", Pretended)
    monkeypatch.setattr(Finder, "_playable", lambda finder: True)
    return Finder(model)


def test_a_size_is_recorded_when_it_comes_again_and_until_then_nothing_of_it_is_kept(model, recorder):
    other = [[2, 5, 11], [1, 11], [9, 9, 8, 7, 6, 5, 4, 11], [3, 11], [4, 4, 11]]
    wanted = [Finder(model).search(sources, Search()) for sources in (SOURCES, other)]
    for n in range(4):
        assert recorder.search((SOURCES, other)[n % 2], Search()) == wanted[n % 2]
        (kept,) = recorder.sizes.values()
        assert (kept is None) == (n == 0)
    assert kept.read.graph
    assert kept.one.graph


def test_sources_that_are_done_leave_while_nothing_is_recorded(model, recorder, monkeypatch):
    rows, scores = [], type(model).scores
    monkeypatch.setattr(
        type(model), "scores", lambda m, tokens, **how: rows.append(len(tokens)) or scores(m, tokens, **how)
    )
    for _ in range(2):
        recorder.search(SOURCES, Search(beam=1))
        rows.append(0)
    first, second = rows[: rows.index(0)], rows[rows.index(0) + 1 : -1]
    assert first[0] == 5 > first[-1]
    assert set(second) == {5}


def test_recordings_of_weights_that_have_moved_are_given_up(recorder):
    for _ in range(2):
        recorder.search(SOURCES, Search())
    assert list(recorder.sizes.values()) != [None]
    recorder.model.float()
    recorder.search(SOURCES, Search())
    assert list(recorder.sizes.values()) == [None]
    recorder.model.double()


def test_recordings_take_no_more_room_than_they_may(recorder, monkeypatch):
    monkeypatch.setattr(beam, "KEPT", 600)
    for longest in (16, 32, 48, 64):
        for _ in range(2):
            recorder.search(SOURCES[:3], Search(beam=2, longest=longest))
    kept = [size.C for size, found in recorder.sizes.items() if found]
    assert kept == [64]
    assert sum(3 * 2 * C for C in kept) <= 600


@pytest.mark.gpu
def test_a_search_ends_with_every_number_of_sources_on_a_gpu(model):
    finder = Finder(model.cuda())
    for rows in range(1, 100):
        assert len(finder.search(SOURCES[:1] * rows, Search(beam=1, longest=2))) == rows
    model.cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("how", [Search(beam=4), Search(beam=1), Search(beam=2, temperature=1.0)], ids=str)
def test_a_batch_played_from_recordings_gets_the_answers_of_one_that_is_not(model, how):
    finder, other = Finder(model.cuda()), [[2, 5, 11], [1, 11], [9, 9, 8, 7, 6, 5, 4, 11], [3, 11], [4, 4, 11]]
    wanted = [Finder(model).search(sources, how) for sources in (SOURCES, other)]
    for sources, answers in [(SOURCES, wanted[0]), (other, wanted[1])] * 3:
        found = finder.search(sources, how)
        assert [[a.tokens for a in each] for each in found] == [[a.tokens for a in each] for each in answers]
    (beams,) = finder.sizes.values()
    assert beams.one.graph is not None
    model.cpu()
