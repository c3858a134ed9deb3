"""Pairs of graphs: a number, such as their edit distance, or a label.

A batch holds pairs; each of their graphs is encoded once, then the vectors of the two graphs of a pair are compared.
"""

import numpy as np
import torch
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import Array
from harken.data.graphs.batch import feature_tensor
from harken.data.graphs.files import Ints
from harken.data.graphs.processor import N_DEGREES
from harken.models.graph import GraphModel

from . import evaluating
from .baselines.ablation import Columns
from .baselines.linear import fit_linear
from .label_task import label_loss
from .nodes import EVAL_BATCH, GraphLabelTask

MAX_SUMMED = 256  # features that the baseline sums over a graph


class GraphPairTask(GraphLabelTask):
    """Labels or numbers of pairs of graphs."""

    def prepare(self, rows: int) -> None:
        pairs = self.data.tables.pairs
        self.pairs = np.empty((0, 2), np.int64) if pairs is None else pairs
        super().prepare(rows)
        self.regression_name = "bag of degrees"

    def count_nodes(self) -> Array:
        return super().count_nodes()[self.pairs].sum(1)

    def outputs(self, model: GraphModel, index: Tensor) -> Tensor:  # B C
        return self.pair_outputs(model, self.pairs[index.cpu().numpy()])

    def pair_outputs(self, model: GraphModel, pairs: Ints) -> Tensor:  # P C
        """Outputs of these pairs of graphs."""
        like, (graphs, index) = next(model.parameters()), np.unique(pairs, return_inverse=True)
        inputs = self.graph.subset(graphs).model_inputs(like)
        return precise(model(**inputs, pairs=torch.from_numpy(index.reshape(-1, 2)).to(like.device)))

    def predict_pairs(self, model: GraphModel, pairs: Ints) -> Tensor:  # P C
        """The same in evaluation mode, in batches."""
        with evaluating(model):
            parts = [pairs[n : n + EVAL_BATCH] for n in range(0, len(pairs), EVAL_BATCH)]
            return torch.cat([self.pair_outputs(model, part).cpu() for part in parts])

    def _difference(self, rows: Tensor, part: list[int]) -> Tensor:  # G F -> P F
        """The absolute difference of the rows of both graphs; if the order matters also the difference."""
        u, v = (rows[self.pairs[part, side]] for side in (0, 1))
        return (u - v).abs() if self.symmetric else torch.cat([(u - v).abs(), u - v], 1)

    def _counts(self) -> tuple[Tensor, Tensor]:
        """The number of nodes and edges of each graph, G 2, and its number of nodes of each degree, G N_DEGREES."""
        graph, n = self.graph, self.graph.n_graphs
        direct = graph.hops == 1
        degree = np.minimum(np.bincount(graph.i[direct], minlength=graph.n), N_DEGREES - 1)
        n_edges = np.bincount(graph.graph_ids[graph.i[direct]], minlength=n) / 2
        sizes = np.stack([np.bincount(graph.graph_ids, minlength=n), n_edges], 1)
        bag = np.bincount(graph.graph_ids * N_DEGREES + degree, minlength=n * N_DEGREES).reshape(n, N_DEGREES)
        return torch.from_numpy(sizes), torch.from_numpy(bag.astype(np.float64))

    def features(self, part: list[int]) -> Tensor:
        """The differences of the numbers of nodes with each degree, and of the sums of the features."""
        columns, x = list(self._counts()), feature_tensor(self.graph.x, self.graph.n)
        if self.processor.feature_source == "file" and x.shape[1] <= MAX_SUMMED:
            ids = torch.from_numpy(self.graph.graph_ids)
            sums = torch.zeros(self.graph.n_graphs, x.shape[1], dtype=torch.float64)
            columns.append(sums.index_add(0, ids, x.to_dense().double()))
        return self._difference(torch.cat(columns, 1), part)

    def _other_baselines(self, part: list[int]) -> dict[str, Tensor]:
        """A regression on the differences of the numbers of nodes and edges."""
        sizes, train = self._counts()[0], self.data.train
        dtype = np.int64 if self.target_type == "label" else np.float64
        targets = torch.from_numpy(self._targets_of(train).astype(dtype))
        predict = fit_linear(
            self._difference(sizes, train), self.n_outputs, lambda y: label_loss(y, targets, self.target_type)
        )
        return {"difference of sizes": predict(self._difference(sizes, part)).float()}

    def columns(self) -> Columns | None:
        return None
