"""On a GPU: texts from a recording are those of the plain steps. Run: pytest -m gpu tests/decode"""

import pytest
import torch

from harken.core import watching
from harken.decode import cuda_graph
from harken.decode.sampling import Choice, Writer
from harken.models.gpt import Shape

pytestmark = pytest.mark.gpu
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Shape(d=64, layers=2, heads=2, context=48, positions="rotary").build(100).cuda().eval()


def written(writer, prompts=PROMPTS, tokens=60, **choice) -> list:
    return torch.stack([t.cpu() for t in writer.write(prompts, tokens, Choice(**choice), seed=3)], 1).tolist()


def recordings(writer) -> list:
    """Of the steps; the beginnings are recorded at the second text."""
    kept = [s for desk in writer.desks.values() for s in desk.steps.values()]
    return [s.graph for s in kept if isinstance(s, cuda_graph.Steps)]


def test_prompts_read_from_a_recording_are_read_as_plainly(model):
    writer = Writer(model)
    texts = [written(writer, [[n, n + 1, 5], [n] * 7], tokens=5, temperature=0) for n in range(4)]
    assert any(isinstance(s, cuda_graph.Opening) and s.graph for d in writer.desks.values() for s in d.steps.values())
    assert texts == [written(Writer(model), [[n, n + 1, 5], [n] * 7], tokens=5, temperature=0) for n in range(4)]


@pytest.mark.parametrize("choice", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.8}])
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 2, 3]] * 3])
def test_a_recorded_text_is_the_plain_one_across_full_contexts(model, choice, prompts, monkeypatch):
    writer = Writer(model)
    played = written(writer, prompts, **choice)
    assert any(desk.steps for desk in writer.desks.values())
    monkeypatch.setattr(cuda_graph, "playable", lambda model: False)
    monkeypatch.setattr("harken.decode.sampling.playable", lambda model: False)
    assert written(Writer(model), prompts, **choice) == played


def test_a_second_text_uses_the_recording_of_the_first_and_is_its_own(model):
    writer = Writer(model)
    first = written(writer, tokens=40, temperature=0)
    graphs = recordings(writer)
    other = written(writer, [[9, 9, 9], [8, 8, 8, 8, 8]], tokens=40, temperature=0)
    assert recordings(writer) == graphs
    assert other == written(Writer(model), [[9, 9, 9], [8, 8, 8, 8, 8]], tokens=40, temperature=0)
    assert written(writer, tokens=40, temperature=0) == first


def test_two_texts_written_by_turns_do_not_disturb_each_other(model):
    writer = Writer(model)
    alone = [written(Writer(model), [p], tokens=30, temperature=0) for p in ([1, 2, 3], [7, 8, 9])]
    streams = [writer.write([p], 30, Choice(temperature=0), seed=3) for p in ([1, 2, 3], [7, 8, 9])]
    both = list(zip(*streams, strict=True))
    assert [[int(t[k]) for t in both] for k in range(2)] == [a[0] for a in alone]


def test_the_compiled_step_writes_the_same_greedy_text(model):
    assert written(Writer(model, compiled=True), temperature=0) == written(Writer(model), temperature=0)


def test_whoever_looks_at_the_weights_sees_the_last_step(model):
    with watching(model) as seen:
        written(Writer(model), [[1, 2, 3]], tokens=20, temperature=0)
    view = seen["stack.blocks.0.look"]
    assert float(view.rows([0])[..., 22:].sum()) == 0  # 3 + 19 tokens were read
    assert float(view.rows([0])[..., 21].sum()) > 0
