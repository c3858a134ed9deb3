"""Link prediction: AUC of harken beside the GAE of PyTorch Geometric and shared neighbors, on one split.

    python benchmarks/links.py cora.npz citeseer.npz pubmed.npz         three seeds; PyTorch Geometric on the same edges
    python benchmarks/links.py cora.npz data.features=[]                without features
    python benchmarks/links.py cora.npz --noise                         a column of random numbers as the only feature

The split is harken's (data.valid=0.05 data.test=0.1, as in the paper of the GAE); all rows are evaluated on the same
held-out edges and the same negative pairs. GAE: two GCN layers (32, 16), Adam with lr 0.01, 200 epochs, new negative
pairs in each epoch, the weights of the last epoch (Kipf 2016). Its features are those of the file, rows of sum 1.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harken.data.graphs.batch import feature_tensor
from harken.data.graphs.processor import build_features
from harken.data.graphs.source import GraphData
from harken.events import silent
from harken.experiments.choose import choose
from harken.experiments.train import prepare
from harken.recipe import parse_override
from harken.tasks.links import LinkTask
from harken.tasks.metrics import weighted

SPLIT = {"data.target_level": "edge", "data.valid": 0.05, "data.test": 0.1}
GAE_EPOCHS, GAE_WIDTHS = 200, (32, 16)


def with_noise(path: str, folder: Path) -> str:
    """The graph of an .npz file with one column of random numbers in place of its features."""
    with np.load(path, allow_pickle=False) as arrays:
        n, edges = len(arrays["label"]), arrays["edges"]
    target = folder / Path(path).name
    np.savez(target, edges=edges, x=np.random.default_rng(0).normal(size=(n, 1)).astype(np.float32))
    return str(target)


def harken_auc(path: str, settings: dict[str, Any], seed: int) -> tuple[LinkTask, float, float]:
    """The bound task, and the AUC on valid and test."""
    recipe = choose(path, {**SPLIT, "train.seed": seed, **settings}).recipe
    data, trainer = prepare(recipe, silent)
    with tempfile.TemporaryDirectory() as folder:
        trainer.fit(Path(folder), recipe.train.steps or 200)
    trainer.finish()
    task = recipe.bind(data)
    assert isinstance(task, LinkTask)
    return task, *(task.evaluate(trainer.model, split).metrics["auc"] for split in ("valid", "test"))


def gae_auc(task: LinkTask, seed: int) -> float:
    """The AUC on test of the GAE of PyTorch Geometric."""
    from torch_geometric.nn import GAE, GCNConv

    class Encoder(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = GCNConv(width, GAE_WIDTHS[0], cached=True), GCNConv(*GAE_WIDTHS, cached=True)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x, edges).relu(), edges)

    torch.manual_seed(seed)
    data = task.data
    assert isinstance(data, GraphData)
    x = feature_tensor(build_features(data.tables, "identity" if data.tables.x is None else "file"), task.n_nodes)
    x = x.to_dense().float()
    x = x / x.abs().sum(1, keepdim=True).clamp_min(1e-9) if x.shape[1] > 1 else x
    edges = torch.from_numpy(data.message_edges(data.tables.edges[task._input_rows()]).T.copy()).unique(dim=1)
    model = GAE(Encoder(x.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(GAE_EPOCHS):
        optimizer.zero_grad()
        model.recon_loss(model.encode(x, edges), edges).backward()
        optimizer.step()
    pairs, targets = task._eval_pairs("test")
    with torch.no_grad():
        z = model.eval().encode(x, edges)
    scores = (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(1).numpy()
    return weighted.evaluate({"auc": weighted.auc(targets, scores)})["auc"]


def text(values: list[float]) -> str:
    return (
        f"{statistics.fmean(values):.4f} (sd {statistics.stdev(values):.4f})" if len(values) > 1 else f"{values[0]:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="GRAPH or SETTING=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", action="store_true", help="one column of random numbers as the features")
    parser.add_argument("--only", choices=("harken", "all"), default="all")
    options = parser.parse_intermixed_args()
    settings = dict(parse_override(x) for x in options.arguments if "=" in x)
    for given in (x for x in options.arguments if "=" not in x):
        with tempfile.TemporaryDirectory() as folder:
            path, begin = with_noise(given, Path(folder)) if options.noise else given, time.perf_counter()
            runs = [harken_auc(path, settings, seed) for seed in range(options.seeds)]
            task, seconds = runs[0][0], (time.perf_counter() - begin) / options.seeds
            print(f"{Path(given).stem}: valid {text([run[1] for run in runs])}, test {text([run[2] for run in runs])},"
                  f" {seconds:.1f} s per seed  {settings}", flush=True)  # fmt: skip
            if options.only == "all":
                for name, baseline in task.evaluate_baselines("test").items():
                    print(f"  {name}: test {baseline.metrics['auc']:.4f}")
                gae = [gae_auc(task, seed) for seed in range(options.seeds)]
                print(f"  GAE of PyTorch Geometric: test {text(gae)}", flush=True)


if __name__ == "__main__":
    main()
