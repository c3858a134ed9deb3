"""Say what a node is, what a graph is, or whether two nodes have an edge. Loss in nats (of a number, squared).

All nodes are computed in every step, and those of the split are asked; of many graphs a batch is some of them.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import dice
from harken.data.graphs.batch import Graph, GraphBatch, features, graph_of, placed
from harken.data.graphs.files import Bag, Ints
from harken.settings import Part

from . import Apart, Loss, Score
from .baselines.linear import Rows, fit
from .label_task import Answering, loss_of
from .metrics import classification

if TYPE_CHECKING:
    from harken.data.graphs.source import GraphData

AT_ONCE = 256  # graphs judged at a time


class Task(Part):
    """The settings of what is said of graphs."""

    kind: Literal["nodes"] = "nodes"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "auc", "pearson", "spearman"] = Field(
        "auto", description="what picks the weights that are kept; auto: accuracy, of edges auc, of numbers pearson"
    )
    l2: float = Field(
        0.0, ge=0, description="pull towards 0 that runs through the moments, as in the papers of GCN and GAT"
    )
    l2_of: Literal["first", "all"] = Field(
        "first", description="the weights it pulls: those that read features, or all"
    )

    def bind(self, data: "GraphData", model: Any, *, batch: int, seed: int) -> "OnGraph":
        from .links import Links

        return (Links if data.words.target_level == "edge" else Labels)(self, data, model, batch=batch, seed=seed)


class OnGraph(Apart):
    """What the tasks on graphs share: the graph as the model reads it, on its device, and the pull of the weights."""

    def __init__(self, task: Task, data: "GraphData", shape: Any, *, batch: int, seed: int) -> None:
        self.task, self.data, self.words, self.seed = task, data, data.words, seed
        self.splits, self.steps, self.tokens = tuple(data.splits), 1, len(data.raw.names)
        names: dict[str, Any] = {"reach": 1, "positions": "none", "pe_dim": 0}
        self.seen = {name: getattr(shape, name, value) for name, value in names.items()}  # of the graph, by the model

    @property
    def graph(self) -> Graph:
        """The graph with the pairs within the model's reach, and where its nodes stand."""
        laid, key = self.data.laid, tuple(self.seen.values())
        if key not in laid:
            raw, edges = self.data.raw, self.data.heard(self._heard())
            weight = (
                None if raw.weight is None or self.words.target_level == "edge" else np.resize(raw.weight, len(edges))
            )
            found = graph_of(self.words.read(raw), edges, weight, self.data.of, reach=self.seen["reach"])
            laid[key] = placed(found, self.seen["positions"], self.seen["pe_dim"])
        graph: Graph = laid[key]
        return graph

    def _heard(self) -> Ints:
        """The edges that are looked along."""
        return self.data.raw.pairs

    def told(self, model: Any) -> dict[str, Any]:
        """The whole graph, as this model is told of it."""
        like, laid = next(model.parameters()), self.data.laid
        if (key := (*self.seen.values(), like.device, like.dtype)) not in laid:
            laid[key] = self.graph.told(like) | {"graphs": 0}
        told: dict[str, Any] = laid[key]
        return told

    def pulled(self, model: Any, told: Tensor, batch: GraphBatch) -> Loss:
        """The loss with the pull: half the squares of the weights, so that each has a gradient of l2 times itself."""
        if not self.task.l2:
            return Loss(told)
        some = (model.first() if self.task.l2_of == "first" else model).parameters()
        squares = torch.stack([p.square().sum() for p in some]).sum()
        return Loss(told + len(batch.tokens) * self.task.l2 / 2 * squares, told=told.detach())


class Labels(OnGraph, Answering):
    """Labels or numbers of nodes, or of whole graphs."""

    def __init__(self, task: Task, data: "GraphData", shape: Any, *, batch: int, seed: int) -> None:
        super().__init__(task, data, shape, batch=batch, seed=seed)
        self.unit = f"{data.words.target_level}s"
        self.asks(data.words.labels, data.words.target_type, task.metric)
        self.targets = torch.from_numpy(data.asked)
        self.one_shape = data.words.target_level != "graph"  # graphs have as many nodes as they have
        self.many = batch if data.words.target_level == "graph" else max(1, len(data.train))
        self.steps = max(1, -(-len(data.train) // self.many))
        if data.words.target_level == "graph":
            self.sizes = np.bincount(data.of, minlength=len(data.raw.graphs))
            self.tokens = max(1, int(self.sizes[data.train].sum()) // self.steps)

    def batch(self, epoch: int, step: int) -> GraphBatch:
        if self.words.target_level == "node":
            return self._asked(np.array(self.data.train))
        order = dice(self.seed, 6, epoch).permutation(self.data.train)
        return self._asked(order[step * self.many : (step + 1) * self.many])

    def _asked(self, which: Ints) -> GraphBatch:
        some = torch.from_numpy(which)
        sizes = torch.from_numpy(self.sizes[which]) if self.words.target_level == "graph" else None
        return GraphBatch(some[:, None], self.targets[some], nodes=len(self.data.raw.names), sizes=sizes)

    def loss(self, model: Any, batch: GraphBatch, start: int = 0) -> Loss:
        told = loss_of(self.says(model, batch.tokens[:, 0]), batch.targets, self.target_type)
        return self.pulled(model, told, batch)

    def says(self, model: Any, which: Tensor) -> Tensor:  # B C
        """What the model says of the nodes or graphs of these numbers."""
        if self.words.target_level == "node":
            y: Tensor = model(**self.told(model))[which]
        else:
            y = model(**self.graph.some(which.cpu().numpy()).told(next(model.parameters())))
        return y if y.dtype == torch.float64 else y.float()

    # --- judge --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def answers(self, model: Any, which: list[int]) -> Tensor:  # N C
        """The same of a list, in parts where each is a graph."""
        was, device = model.training, next(model.parameters()).device
        model.eval()
        at_once = len(which) if self.words.target_level == "node" else AT_ONCE
        y = torch.cat([self.says(model, some.to(device)).cpu() for some in torch.tensor(which).split(at_once)])
        model.train(was)
        return y

    def outputs_of(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N C
        return self.answers(model, self.data.parts[split])

    def judged_of(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        return self.judged(y, Asked(self.data.asked[self.data.parts[split]]), parts=not quick)

    # --- what costs nothing -------------------------------------------------------------------------------------------

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """The most frequent label, that of most neighbours, and logistic (of numbers: linear) regression."""
        if not self.data.train:
            return {}
        which, number = self.data.splits[split], self.target_type == "number"
        targets, rest = self.data.asked[which], "linear" if number else "logistic"
        most = self.frequent(self.data.asked[self.data.train]).expand(len(which), -1)
        found = {"mean of all" if number else "most frequent label": most}
        if self.words.target_level == "node":
            found["mean of neighbours" if number else "neighbours' majority"] = self._neighbours[which]
        found[f"{rest} regression"] = self._regression(self._rows(which)).float()
        return {name: self.metrics(y, targets) for name, y in found.items()}

    @cached_property
    def _neighbours(self) -> Tensor:  # N C
        """The mean over the neighbours of which something was learned, with all nodes as one more."""
        number, direct = self.target_type == "number", self.graph.hops == 1
        targets = self.data.asked[self.data.train]
        known = targets if number else classification.one_hot(targets, self.outputs).astype(np.float32)  # N C
        said = np.zeros((self.graph.n, self.outputs + 1), np.float32)
        said[self.data.train] = np.c_[known, np.ones(len(known))]
        heard = np.zeros_like(said)
        np.add.at(heard, self.graph.i[direct], said[self.graph.j[direct]])
        mean = (heard[:, :-1] + known.mean(0)) / (heard[:, -1:] + 1)
        return torch.from_numpy(mean if number else np.log(np.maximum(mean, 1e-6)))

    def _rows(self, which: list[int]) -> Rows:
        """The features of these nodes; of graphs the mean over their nodes, and how many nodes and pairs there are."""
        graph = self.graph
        there = graph.x._replace(val=np.ones_like(graph.x.val)) if isinstance(graph.x, Bag) else graph.x
        x = features(there, len(graph.of))
        if self.words.target_level == "node":
            return Rows(x.index_select(0, torch.tensor(which)).double())
        nodes = np.bincount(graph.of, minlength=graph.graphs)
        pairs = np.bincount(graph.of[graph.i], minlength=graph.graphs)
        size = torch.from_numpy(np.log1p(np.stack([nodes, pairs], 1)))
        mean = torch.zeros(graph.graphs, x.shape[1]).index_add(0, torch.from_numpy(graph.of), x.to_dense())
        every = torch.cat([mean / torch.from_numpy(nodes)[:, None], size], 1).double()
        return Rows(every[which])

    @cached_property
    def _regression(self) -> Any:
        train = self.data.train
        targets = self.targets[train] if self.target_type == "label" else self.targets[train].double()
        return fit(self._rows(train), self.outputs, lambda y: loss_of(y, targets, self.target_type))


class Asked:
    """The targets of some."""

    def __init__(self, targets: Any) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)
