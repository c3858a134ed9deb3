"""Graphs: the output of a node depends on its neighbors, and most on similar ones."""

from dataclasses import replace

import numpy as np
import torch

from harken.core import watching
from harken.data.graphs.batch import build_graph, typed_edges
from harken.models.graph import GATSettings, GCNSettings, GraphTransformerSettings
from harken.settings import LabelOutputs

from . import EXACT, Measurement, gap, show

N, WIDTH = 8, 6


def _ring(x: torch.Tensor, extra_edges: tuple[tuple[int, int], ...] = ()) -> dict[str, object]:
    """Return the model inputs of a ring of eight nodes with additional edges."""
    ends = np.array([*((n, (n + 1) % N) for n in range(N)), *extra_edges])
    graph = build_graph(np.zeros((N, WIDTH), np.float32), np.concatenate([ends, ends[:, ::-1]]), None, np.zeros(N, int))
    return graph.model_inputs(x) | {"x": x, "n_graphs": 0}


@show()
def network_structure() -> Measurement:
    """The output of a node depends on its neighbors, with unchanged features."""
    x, model = torch.randn(N, WIDTH), GCNSettings(d=16).build(LabelOutputs(WIDTH, 3)).eval()
    change = gap(model(**_ring(x))[0], model(**_ring(x, ((0, 4),)))[0])
    return Measurement(change, "change of the output of a node if one edge is added", change > 0.01)


@show()
def convolution_of_a_graph() -> Measurement:
    """GCN: H' = A H W; the weights of the neighbors depend on their degrees only."""
    x, model = torch.randn(N, WIDTH), GCNSettings(layers=1).build(LabelOutputs(WIDTH, 3)).eval()
    A = torch.eye(N)
    for n in range(N):
        A[n, (n + 1) % N] = A[(n + 1) % N, n] = 1
    d = A.sum(1)
    layer = model.blocks[0]
    off = gap(model(**_ring(x)), A / (d[:, None] * d).sqrt() @ x @ layer.input_projection.W + layer.b)
    return Measurement(off, "largest difference from D^-1/2 (A + I) D^-1/2 X W + b", off < EXACT)


@show()
def similar_neighbours() -> Measurement:
    """GAT: neighbors with a higher score get a larger weight; all other nodes get weight 0."""
    x, model = torch.randn(N, WIDTH), GATSettings(layers=1, last_heads=1).build(LabelOutputs(WIDTH, 3)).eval()
    with watching(model) as views:
        model(**_ring(x))
    A = next(iter(views.values())).full()[0, 0]  # N N
    near = torch.tensor([[abs(i - j) in (0, 1, N - 1) for j in range(N)] for i in range(N)])
    outside, spread = float(A[~near].abs().max()), float((A.amax(1) - A[near].view(N, 3).amin(1)).min())
    words = "smallest difference between the largest and the smallest weight of a node's neighbors"
    holds = outside == 0 and spread > 0 and gap(A.sum(1), torch.ones(N)) < EXACT
    return Measurement(spread, f"{words}; other nodes have weight 0", holds)


@show()
def nodes_are_tokens() -> Measurement:
    """The output of a graph transformer for a node does not depend on the order of the nodes."""
    x, order = torch.randn(N, WIDTH), torch.arange(N).roll(3)
    model = GraphTransformerSettings(size="tiny", positions="none").build(LabelOutputs(WIDTH, 3)).eval()
    off = gap(model(**_ring(x))[order], model(**_ring(x[order])))  # a rotated ring is the same ring
    return Measurement(off, "largest difference between two orders of the nodes", off < EXACT)


@show()
def edge_types() -> Measurement:
    """R-GCN: each type of edge has its own matrix, so the type of an edge changes the output of its node."""
    ends = np.array([*((n, (n + 1) % N) for n in range(N))])
    x, model = torch.randn(N, WIDTH), GCNSettings(layers=1).build(LabelOutputs(WIDTH, 3, edge_types=2)).eval()
    outputs = []
    for types in (np.zeros(N, int), np.eye(N, dtype=int)[0]):
        graph = build_graph(np.zeros((N, WIDTH), np.float32), ends, None, np.zeros(N, int))
        graph = replace(graph, typed_edges=typed_edges(ends, None, types, N, 2))
        outputs.append(model(**(graph.model_inputs(x) | {"x": x, "n_graphs": 0})))
    change = (outputs[0] - outputs[1]).detach().abs().amax(1)  # the edge from node 0 to node 1 has another type
    words = "change of the output of a node if an edge to it gets another type; 0 for all other nodes"
    return Measurement(float(change[1]), words, float(change[1]) > 0.01 and float(change[[0, *range(2, N)]].max()) == 0)


@show(slow=True)
def typed_edges_help() -> Measurement:
    """Friends are mostly in the own team, rivals in the other one: only a model that reads the types can use them."""
    accuracy = [_rivals(types=types) for types in (True, False)]
    words = f"accuracy of a GCN that reads the types of the edges; {accuracy[1]:.3f} without them"
    return Measurement(accuracy[0], words, accuracy[0] > accuracy[1] + 0.1)


def _rivals(*, types: bool) -> float:
    """The test accuracy of a small training on the generated teams."""
    import tempfile
    from pathlib import Path

    import harken
    from harken.data.synthetic.rivals import table

    with tempfile.TemporaryDirectory() as folder:
        for name in ("nodes", "edges"):
            (Path(folder) / f"{name}.csv").write_text("".join(table(name, 300)))
        settings = {"data.types": types, "train.steps": 80, "train.eval_every": 10, "train.threads": 1}
        run = harken.train(folder, out=Path(folder) / "run", settings=settings)
        return float(run.metrics["test"]["accuracy"])


@show(slow=True)
def graph_similarity() -> Measurement:
    """A siamese network learns the edit distance of two graphs."""
    import tempfile
    from pathlib import Path

    import harken
    from harken.data.synthetic.graph_pairs import table

    with tempfile.TemporaryDirectory() as folder:
        for name in ("nodes", "edges", "pairs"):
            (Path(folder) / f"{name}.csv").write_text("".join(table(name, 1000)))
        run = harken.train(folder, out=Path(folder) / "run", settings={"train.epochs": 15, "train.threads": 1})
        value = float(run.metrics["test"]["spearman"])
        sizes = float(run.facts["baseline"]["test"]["difference of sizes"]["spearman"])
    words = f"rank correlation with the edit distance of held-out graphs; {sizes:.3f} for the difference of sizes"
    return Measurement(value, words, value > sizes)


@show(slow=True)
def link_prediction() -> Measurement:
    """Missing edges of a graph of two groups, from the edges that are left; the only feature is noise."""
    import tempfile
    from pathlib import Path

    import harken

    rng, n = np.random.default_rng(0), 200
    ends = rng.integers(n, size=(4000, 2))
    same_group = ends[:, 0] % 2 == ends[:, 1] % 2
    ends = ends[(ends[:, 0] != ends[:, 1]) & (same_group | (rng.random(len(ends)) < 0.05))]
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "g.npz", edges=ends, x=rng.normal(size=(n, 1)))
        run = harken.train(Path(folder) / "g.npz", out=Path(folder) / "run", settings={"train.threads": 1})
        value = float(run.metrics["test"]["auc"])
        shared = float(run.facts["baseline"]["test"]["shared neighbors"]["auc"])
    return Measurement(value, f"AUC of held-out edges; {shared:.3f} for the number of shared neighbors", value > shared)


@show(slow=True)
def karate_club() -> Measurement:
    """Two labeled members and the edges determine the side of nearly all other members of the club."""
    import tempfile
    from pathlib import Path

    from harken.experiments.demos.lectures import karate

    with tempfile.TemporaryDirectory() as folder:
        accuracy = karate(minutes=0.05, out=Path(folder) / "run").run.metrics["test"]["accuracy"]
    return Measurement(accuracy, "accuracy on 32 members", accuracy > 0.9)


@show(slow=True)
def node_clusters() -> Measurement:
    """k-means on the vectors of the nodes, without their labels, finds the two sides of the club."""
    import tempfile
    from pathlib import Path

    import harken
    from harken.experiments.demos.lectures import karate

    with tempfile.TemporaryDirectory() as folder:
        facts = harken.cluster(karate(minutes=0.05, out=Path(folder) / "run").run, k=2).facts
    count = round(facts["purity"] * facts["points"])
    words = f"of {facts['points']} members are in the cluster of their side; NMI {facts['nmi']:.2f}"
    return Measurement(count, words, count >= 32)
