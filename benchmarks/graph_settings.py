"""Settings of a graph model chosen by validation accuracy, then the test accuracy of many seeds.

    python benchmarks/graph_settings.py cora.npz citeseer.npz pubmed.npz task.l2=5e-4,2e-3 model.convolution_layers=8,16
    python benchmarks/graph_settings.py cora.npz ... --processes 4      trainings side by side, on a GPU

A setting with commas is an axis; its first value is the start. The axes are searched one after the other: every value
is trained with the seeds 0 to 9 on every graph, and the value with the highest mean validation accuracy over the graphs
is kept. Then the script prints the test accuracy of 100 seeds with the chosen settings, and with each `--row` of other
settings on top of them. No test accuracy is computed before the choice is made. Axes left over after --search-seconds
keep their first value.
"""

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import torch

from graphs import accuracies
from harken.recipe import parse_override

Settings = dict[str, Any]
Values = dict[str, list[float]]  # graph -> accuracy of each seed
Splits = dict[str, list[float]]  # split -> accuracy of each seed


def mean(values: Values) -> float:
    return statistics.fmean(statistics.fmean(of_graph) for of_graph in values.values())


def text(values: list[float]) -> str:
    """Mean, standard error and standard deviation."""
    sd = statistics.stdev(values)
    return f"{statistics.fmean(values):.4f} +- {sd / len(values) ** 0.5:.4f} (sd {sd:.4f})"


class Seeds:
    """Trainings of the seeds 0 to n - 1 in a pool of processes, some seeds at once."""

    def __init__(self, pool: Executor, at_once: int) -> None:
        self.pool, self.at_once = pool, at_once

    def submit(self, graph: str, settings: Settings, n: int) -> Any:
        """A function that waits for the accuracies of all seeds."""
        starts = range(0, n, self.at_once)
        jobs = [
            self.pool.submit(accuracies, graph, settings | {"train.seed": start}, min(self.at_once, n - start))
            for start in starts
        ]

        def result() -> Splits:
            parts = [job.result() for job in jobs]
            return {split: [x for part in parts for x in part[split]] for split in parts[0]}

        return result


class Search:
    """Validation accuracies of the tried settings."""

    def __init__(self, seeds: Seeds, graphs: list[str], n_seeds: int) -> None:
        self.seeds, self.graphs, self.n_seeds = seeds, graphs, n_seeds
        self.tried: list[tuple[Settings, Values]] = []

    def validate(self, candidates: list[Settings]) -> list[float]:
        """Mean validation accuracy over the graphs; settings that were tried before are not trained again."""
        new = [settings for settings in candidates if not self._known(settings)]
        begin = time.perf_counter()
        jobs = [{graph: self.seeds.submit(graph, settings, self.n_seeds) for graph in self.graphs} for settings in new]
        for settings, of_graphs in zip(new, jobs, strict=True):
            values = {graph: result()["valid"] for graph, result in of_graphs.items()}
            self.tried.append((settings, values))
            by_graph = " ".join(f"{statistics.fmean(x):.4f}" for x in values.values())
            seconds = time.perf_counter() - begin
            print(f"valid {mean(values):.4f} ({by_graph}) after {seconds:5.1f} s  {settings}", flush=True)
        return [mean(self._known(settings)[0]) for settings in candidates]

    def _known(self, settings: Settings) -> list[Values]:
        return [values for known, values in self.tried if known == settings]

    def best_of(self, graph: str) -> Settings:
        """The tried settings with the highest validation accuracy on one graph."""
        return max(self.tried, key=lambda known: statistics.fmean(known[1][graph]))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="GRAPH or SETTING=VALUE,VALUE")
    parser.add_argument("--model", default="graph-transformer")
    parser.add_argument("--select-seeds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--search-seconds", type=float, default=300)
    parser.add_argument("--row", action="append", default=[], help="settings, such as 'model.graph_weight=1.0'")
    parser.add_argument("--processes", type=int, default=1, help="trainings side by side")
    parser.add_argument("--at-once", type=int, default=50, help="seeds of one training; more need more memory")
    options = parser.parse_intermixed_args()
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        run(options, Seeds(pool, options.at_once))


def run(options: argparse.Namespace, seeds: Seeds) -> None:
    begin = time.perf_counter()
    graphs = [x for x in options.arguments if "=" not in x]
    axes = dict(x.split("=", 1) for x in options.arguments if "=" in x)
    search = Search(seeds, graphs, options.select_seeds)
    chosen = {name: parse_override(f"{name}={values.split(',')[0]}")[1] for name, values in axes.items()}
    chosen = {"model.kind": options.model} | chosen
    for name, values in axes.items():
        candidates = [chosen | dict([parse_override(f"{name}={value}")]) for value in values.split(",")]
        if len(candidates) > 1 and time.perf_counter() - begin < options.search_seconds:
            scores = search.validate(candidates)
            chosen = candidates[scores.index(max(scores))]
    print(f"\nchosen: {chosen}; test accuracy of {options.seeds} seeds, torch {torch.__version__}:", flush=True)
    rows = [("chosen", graph, chosen) for graph in graphs]
    rows += [(row, graph, chosen | dict(map(parse_override, row.split()))) for row in options.row for graph in graphs]
    if search.tried:
        best = [("best of this graph", graph, search.best_of(graph)) for graph in graphs]
        rows += [row for row in best if row[2] != chosen]
    results = [seeds.submit(graph, settings, options.seeds) for _, graph, settings in rows]
    for (name, graph, settings), result in zip(rows, results, strict=True):
        scores = ", ".join(f"{split} {text(values)}" for split, values in result().items())
        print(f"{graph}: {scores}  {name}: {settings}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s for all")


if __name__ == "__main__":
    main()
