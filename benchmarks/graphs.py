"""Stacked seeds of a GCN or GAT compared with a loop of PyTorch Geometric, interleaved.

    python benchmarks/graphs.py cora.npz                    100 seeds of a GCN, 10 epochs per turn, 3 turns each
    python benchmarks/graphs.py cora.npz --model gat --seeds 20
    python benchmarks/graphs.py cora.npz --accuracy 100     accuracy of 100 seeds of harken only, mean and std

PyTorch Geometric trains one model after the other, so a turn times a few models and is extrapolated to all. Both use
the same dropout, Adam and L2 regularization of the papers, without validation passes. PyTorch Geometric gets dense
features, as its own data sets have them; on a CPU most of its time is then the dropout of features that are 0. Another
row uses a sparse matrix with dropout of the stored values only, as in harken. The row "one by one" shows the difference
without the model axis.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from harken import machine
from harken.data.graphs.files import SparseFeatures
from harken.events import silent
from harken.experiments import seeds
from harken.experiments.choose import choose
from harken.experiments.train import prepare

ENDLESS = 10**9  # number of steps
N_PYG_MODELS = 3  # timed models of PyTorch Geometric


class PyGModel(torch.nn.Module):
    """The same two layers in PyTorch Geometric."""

    def __init__(self, shape: Any, width: int, labels: int) -> None:
        from torch_geometric.nn import GATConv, GCNConv

        super().__init__()
        self.p, gat = shape.dropout, shape.kind == "gat"
        if gat:
            D, p = shape.d // shape.heads, shape.attention_dropout
            self.one = GATConv(width, D, shape.heads, dropout=p)
            self.two = GATConv(shape.d, labels, shape.last_heads, concat=False, dropout=p)
        else:
            self.one, self.two = GCNConv(width, shape.d, cached=True), GCNConv(shape.d, labels, cached=True)
        self.act = F.elu if gat else F.relu

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = self.act(self.one(sparse_dropout(x, self.p) if x.is_sparse else F.dropout(x, self.p, self.training), edges))
        return self.two(F.dropout(h, self.p, self.training), edges)


def sparse_dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Apply dropout to the stored features only."""
    return torch.sparse_coo_tensor(x.indices(), F.dropout(x.values(), p), x.shape, is_coalesced=True)


def pyg_epoch(recipe: Any, opened: Any, device: torch.device, *, sparse: bool) -> Callable[[], None]:
    """Return one epoch of a few models of PyTorch Geometric, one after the other."""
    task = recipe.bind(opened)
    like = torch.zeros((), device=device)
    x = task.graph.model_inputs(like)["x"]
    x = x if sparse else x.to_dense()
    edges = torch.from_numpy(opened.message_edges(opened.tables.edges).T.copy()).unique(dim=1).to(device)
    batch = task.batch(0, 0)
    nodes, targets = batch.tokens[:, 0].to(device), batch.targets.to(device)
    models = [
        PyGModel(recipe.model, x.shape[1], len(opened.processor.labels)).to(device).train() for _ in range(N_PYG_MODELS)
    ]
    optimizers = []
    for model in models:
        every = recipe.task.l2_of == "all"
        groups = [{"params": m.parameters(), "weight_decay": recipe.task.l2 * (every or m is model.one)}
                  for m in (model.one, model.two)]  # fmt: skip
        optimizers.append(torch.optim.Adam(groups, lr=recipe.train.lr))

    def epoch() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edges)[nodes], targets).backward()
            optimizer.step()

    return epoch


def timed(turn: Callable[[], Any], epochs: int, device: torch.device) -> float:
    machine.synchronize(device)
    begin = time.perf_counter()
    for _ in range(epochs):
        turn()
    machine.synchronize(device)
    return time.perf_counter() - begin


def ours(path: str, settings: dict[str, Any], count: int) -> tuple[Callable[[], None], Any, Any]:
    """Return one epoch of `count` stacked models of harken, the data and the trainer."""
    recipe = choose(path, {**settings, "train.seeds": count}).recipe
    opened, trainer = prepare(recipe, silent)
    trainer.model.train()

    def epoch() -> None:
        trainer.update(ENDLESS, read=False)

    return epoch, opened, trainer


def race(path: str, settings: dict[str, Any], count: int, epochs: int, turns: int) -> None:
    together, opened, trainer = ours(path, settings, count)
    recipe = choose(path, settings).recipe
    runners: dict[str, tuple[Callable[[], None], int]] = {
        "harken, together": (together, count),
        "harken, one by one": (ours(path, settings, 1)[0], 1),
        "PyTorch Geometric, a loop": (pyg_epoch(recipe, opened, trainer.device, sparse=False), N_PYG_MODELS),
    }
    if isinstance(opened.processor.read(opened.tables), SparseFeatures):
        runners["the same, sparse features"] = (pyg_epoch(recipe, opened, trainer.device, sparse=True), N_PYG_MODELS)
    for turn, _ in runners.values():
        for _ in range(5):  # warm-up
            turn()
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(turns):
        for name, (turn, models) in runners.items():
            times[name].append(timed(turn, epochs, trainer.device) / epochs / models)
    print(f"{path}, {recipe.model.kind}, {count} seeds on {trainer.device}, {torch.get_num_threads()} threads")
    first = times["harken, together"]
    for name, seconds in times.items():
        median, ratio = statistics.median(seconds), [x / y for x, y in zip(seconds, first, strict=True)]
        total = f"{median * 200 * count:8.1f} s for {count} seeds of 200 epochs"
        slower = f"{statistics.median(ratio):6.2f} times as long ({min(ratio):.2f} to {max(ratio):.2f})"
        print(f"  {name:<26} {1e3 * median:8.3f} ms per epoch and seed   {total}   {slower}")


def accuracies(path: str, settings: dict[str, Any], count: int) -> dict[str, list[float]]:
    """Train stacked seeds; return the accuracy of each on both splits, with the weights of its best validation pass."""
    recipe = choose(path, {**settings, "train.seeds": count}).recipe
    _, trainer = prepare(recipe, silent)
    with tempfile.TemporaryDirectory() as folder:
        trainer.fit(Path(folder), recipe.train.steps or 200)
    trainer.finish()
    seed_rows = seeds.evaluate_seeds(trainer, recipe)["per_seed"]
    del trainer
    gc.collect()  # the next training needs the memory of the device
    return {split: [row["metrics"][split]["accuracy"] for row in seed_rows] for split in ("valid", "test")}


def accuracy(path: str, settings: dict[str, Any], count: int) -> None:
    """Print the accuracy of stacked seeds, and the seconds with the preparation of the data."""
    begin = time.perf_counter()
    by_split = accuracies(path, settings, count)
    seconds = time.perf_counter() - begin
    for split, values in by_split.items():
        spread = f"{statistics.fmean(values):.4f} (sd {statistics.stdev(values):.4f})"
        print(f"{path}, {settings['model.kind']}: {split} accuracy {spread} of {count} seeds, {seconds:.1f} s for all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--model", default="gcn", choices=("gcn", "gat", "graph-transformer"))
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10, help="epochs per turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--accuracy", type=int, metavar="SEEDS")
    parser.add_argument("settings", nargs="*", help="such as train.lr=0.01")
    options = parser.parse_intermixed_args()
    from harken.recipe import parse_override

    settings = {"model.kind": options.model, **dict(map(parse_override, options.settings))}
    if options.accuracy == 1:
        parser.error("--accuracy needs 2 seeds or more")
    if options.accuracy:
        accuracy(options.graph, settings, options.accuracy)
    else:
        race(options.graph, settings, options.seeds, options.epochs, options.turns)


if __name__ == "__main__":
    main()
