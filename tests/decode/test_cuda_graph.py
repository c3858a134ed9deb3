"""Text from captured graphs equals text from eager steps: on a GPU, and on a CPU with recorded operations.

On a GPU: pytest -m gpu tests/decode
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harken.core import watching
from harken.decode import cuda_graph
from harken.decode.sampling import SamplingSettings, TextGenerator
from harken.models.gpt import GPTSettings

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


class RecordedGraph:
    """A CUDA graph on a CPU: repeats recorded operations on the same tensors, into the same outputs."""

    def __init__(self):
        self.operations = []

    def replay(self):
        for function, args, kwargs, outputs in self.operations:
            for old, new in zip(tree_leaves(outputs), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorder(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        self.graph.operations.append((function, args, kwargs or {}, outputs))
        return outputs


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "cpu":
        stream = SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
        monkeypatch.setattr(torch.cuda, "graph", Recorder)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr("harken.decode.sampling.can_capture", cuda_graph.has_repeatable_steps)
    return request.param


@pytest.fixture
def model(device):
    torch.manual_seed(0)
    return GPTSettings(d=64, layers=2, heads=2, context=48, positions="rotary").build(100).to(device).eval()


def texts(generator, prompts=PROMPTS, n_tokens=60, **sampling) -> list:
    tokens = generator.generate(prompts, n_tokens, SamplingSettings(**sampling), seed=3)
    return torch.stack([t.cpu().clone() for t in tokens], 1).tolist()  # a CPU tensor is overwritten by later steps


def graphs(generator, kind) -> list:
    """The captured graphs of decoding loops or of prefills; a prefill is captured at the second prompt."""
    captured = [g for session in generator.sessions.values() for g in session.graphs.values()]
    return [g.graph for g in captured if isinstance(g, kind)]


def test_captured_prefills_read_prompts_as_eager_ones(model):
    generator = TextGenerator(model)
    captured = [texts(generator, [[n, n + 1, 5], [n] * 7], n_tokens=5, temperature=0) for n in range(4)]
    assert any(graphs(generator, cuda_graph.Prefill))
    assert captured == [
        texts(TextGenerator(model), [[n, n + 1, 5], [n] * 7], n_tokens=5, temperature=0) for n in range(4)
    ]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.8}])
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 2, 3]] * 3])
def test_captured_text_equals_eager_text_beyond_the_context(model, sampling, prompts, monkeypatch):
    generator = TextGenerator(model)
    captured = texts(generator, prompts, **sampling)
    assert graphs(generator, cuda_graph.CapturedDecodeLoop)
    monkeypatch.setattr("harken.decode.sampling.can_capture", lambda model: False)
    assert texts(TextGenerator(model), prompts, **sampling) == captured


def test_a_second_text_reuses_the_graphs_of_the_first(model):
    generator = TextGenerator(model)
    first = texts(generator, n_tokens=40, temperature=0)
    before = graphs(generator, cuda_graph.CapturedDecodeLoop)
    second = texts(generator, [[9, 9, 9], [8, 8, 8, 8, 8]], n_tokens=40, temperature=0)
    assert graphs(generator, cuda_graph.CapturedDecodeLoop) == before
    assert second == texts(TextGenerator(model), [[9, 9, 9], [8, 8, 8, 8, 8]], n_tokens=40, temperature=0)
    assert texts(generator, n_tokens=40, temperature=0) == first


def test_interleaved_streams_are_independent(model):
    generator = TextGenerator(model)
    alone = [texts(TextGenerator(model), [p], n_tokens=30, temperature=0) for p in ([1, 2, 3], [7, 8, 9])]
    streams = [generator.generate([p], 30, SamplingSettings(temperature=0), seed=3) for p in ([1, 2, 3], [7, 8, 9])]
    steps = list(zip(*streams, strict=True))
    assert [[int(step[k]) for step in steps] for k in range(2)] == [a[0] for a in alone]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_compiled_step_generates_the_same_greedy_text(model):
    assert texts(TextGenerator(model, compiled=True), temperature=0) == texts(TextGenerator(model), temperature=0)


def test_a_trace_sees_the_last_step(model):
    with watching(model) as views:
        texts(TextGenerator(model), [[1, 2, 3]], n_tokens=20, temperature=0)
    view = views["stack.blocks.0.attention"]
    assert float(view.rows([0])[..., 22:].sum()) == 0  # 3 + 19 tokens were read
    assert float(view.rows([0])[..., 21].sum()) > 0


def test_a_model_on_a_cpu_is_not_captured():
    model = GPTSettings(size="tiny").build(10)
    assert cuda_graph.has_repeatable_steps(model)
    assert not cuda_graph.can_capture(model)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_a_session_keeps_the_newest_graphs(device):
    session = cuda_graph.DecodeSession(None)
    graphs = [cuda_graph.Prefill(None, None) for _ in range(cuda_graph.MAX_GRAPHS + 2)]
    for n, graph in enumerate(graphs):
        assert session.get(n, graph) is graph
    assert session.get(5, graphs[0]) is graphs[5]
    assert list(session.graphs) == list(range(2, cuda_graph.MAX_GRAPHS + 2))
