"""The same sentence on graphs: neighbours count, and similar neighbours count most."""

import numpy as np
import torch

from harken.core import watching
from harken.data.graphs.batch import build_graph
from harken.models.graph import GATSettings, GCNSettings, GraphTransformerSettings
from harken.settings import LabelOutputs

from . import EXACT, Seen, gap, show

N, WIDTH = 8, 6


def _ring(x: torch.Tensor, more: tuple[tuple[int, int], ...] = ()) -> dict[str, object]:
    """Eight nodes in a ring, and further edges; what a model is told of them."""
    ends = np.array([*((n, (n + 1) % N) for n in range(N)), *more])
    graph = build_graph(np.zeros((N, WIDTH), np.float32), np.concatenate([ends, ends[:, ::-1]]), None, np.zeros(N, int))
    return graph.model_inputs(x) | {"x": x, "n_graphs": 0}


@show()
def network_structure() -> Seen:
    """What is said of a node depends on who its neighbours are, with all features as they were."""
    x, model = torch.randn(N, WIDTH), GCNSettings(d=16).build(LabelOutputs(WIDTH, 3)).eval()
    change = gap(model(**_ring(x))[0], model(**_ring(x, ((0, 4),)))[0])
    return Seen(change, "change of what is said of a node by one more edge", change > 0.01)


@show()
def convolution_of_a_graph() -> Seen:
    """GCN: H' = A H W, neighbours weighed by their degrees alone."""
    x, model = torch.randn(N, WIDTH), GCNSettings(layers=1).build(LabelOutputs(WIDTH, 3)).eval()
    A = torch.eye(N)
    for n in range(N):
        A[n, (n + 1) % N] = A[(n + 1) % N, n] = 1
    d = A.sum(1)
    layer = model.blocks[0]
    off = gap(model(**_ring(x)), A / (d[:, None] * d).sqrt() @ x @ layer.input_projection.W + layer.b)
    return Seen(off, "largest difference from D^-1/2 (A + I) D^-1/2 X W + b", off < EXACT)


@show()
def similar_neighbours() -> Seen:
    """GAT: of a node's neighbours those with the higher score weigh more, and nobody else weighs anything."""
    x, model = torch.randn(N, WIDTH), GATSettings(layers=1, last_heads=1).build(LabelOutputs(WIDTH, 3)).eval()
    with watching(model) as views:
        model(**_ring(x))
    A = next(iter(views.values())).full()[0, 0]  # N N
    near = torch.tensor([[abs(i - j) in (0, 1, N - 1) for j in range(N)] for i in range(N)])
    outside, spread = float(A[~near].abs().max()), float((A.amax(1) - A[near].view(N, 3).amin(1)).min())
    words = "at least lie between the weights of a node's best and worst neighbour; others weigh 0"
    return Seen(spread, words, outside == 0 and spread > 0 and gap(A.sum(1), torch.ones(N)) < EXACT)


@show()
def nodes_are_tokens() -> Seen:
    """A graph transformer says the same of each node when nodes are told in another order."""
    x, order = torch.randn(N, WIDTH), torch.arange(N).roll(3)
    model = GraphTransformerSettings(size="tiny", positions="none").build(LabelOutputs(WIDTH, 3)).eval()
    off = gap(model(**_ring(x))[order], model(**_ring(x[order])))  # a ring turned round is the same ring
    return Seen(off, "largest difference between two orders of the nodes", off < EXACT)


@show(slow=True)
def karate_club() -> Seen:
    """Two members of a club and who knows whom tell on which side nearly all others end."""
    import tempfile
    from pathlib import Path

    from harken.experiments.demos.karate import karate

    with tempfile.TemporaryDirectory() as folder:
        right = karate(minutes=0.05, out=Path(folder) / "run").run.metrics["test"]["accuracy"]
    return Seen(right, "of 32 members are told rightly", right > 0.9)
