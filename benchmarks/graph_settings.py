"""Settings of a graph model chosen by validation accuracy, then the test accuracy of many seeds.

    python benchmarks/graph_settings.py cora.npz citeseer.npz pubmed.npz task.l2=5e-4,2e-3 model.convolution_layers=8,16

A setting with commas is an axis; its first value is the start. The axes are searched one after the other: every value
is trained with the seeds 0 to 9 on every graph, and the value with the highest mean validation accuracy over the graphs
is kept. Then the script prints the test accuracy of 100 seeds with the chosen settings, and with each `--row` of other
settings on top of them. No test accuracy is computed before the choice is made. Axes left over after --search-seconds
keep their first value.
"""

import argparse
import statistics
import time
from typing import Any

import torch

from graphs import accuracies
from harken.recipe import parse_override

Values = dict[str, list[float]]  # graph -> accuracy of each seed


def mean(values: Values) -> float:
    return statistics.fmean(statistics.fmean(of_graph) for of_graph in values.values())


def text(values: list[float]) -> str:
    """Mean, standard error and standard deviation."""
    sd = statistics.stdev(values)
    return f"{statistics.fmean(values):.4f} +- {sd / len(values) ** 0.5:.4f} (sd {sd:.4f})"


class Search:
    """Validation accuracies of the tried settings."""

    def __init__(self, graphs: list[str], fixed: dict[str, Any], seeds: int) -> None:
        self.graphs, self.fixed, self.seeds = graphs, fixed, seeds
        self.tried: list[tuple[dict[str, Any], Values]] = []

    def validate(self, settings: dict[str, Any]) -> float:
        """Mean validation accuracy over the graphs; settings that were tried before are not trained again."""
        for known, values in self.tried:
            if known == settings:
                return mean(values)
        begin = time.perf_counter()
        values = {graph: accuracies(graph, self.fixed | settings, self.seeds)["valid"] for graph in self.graphs}
        self.tried.append((settings, values))
        by_graph = " ".join(f"{statistics.fmean(x):.4f}" for x in values.values())
        seconds = time.perf_counter() - begin
        print(f"valid {mean(values):.4f} ({by_graph}) {seconds:5.1f} s  {settings}", flush=True)
        return mean(values)

    def best_of(self, graph: str) -> dict[str, Any]:
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
    options = parser.parse_intermixed_args()
    begin = time.perf_counter()
    graphs = [x for x in options.arguments if "=" not in x]
    axes = dict(x.split("=", 1) for x in options.arguments if "=" in x)
    search = Search(graphs, {"model.kind": options.model}, options.select_seeds)
    chosen = {name: parse_override(f"{name}={values.split(',')[0]}")[1] for name, values in axes.items()}
    for name, values in axes.items():
        for value in values.split(",")[1:]:
            if time.perf_counter() - begin < options.search_seconds:
                other = chosen | dict([parse_override(f"{name}={value}")])
                chosen = max(chosen, other, key=search.validate)
    print(f"\nchosen: {chosen}; test accuracy of {options.seeds} seeds, torch {torch.__version__}:", flush=True)
    rows = [("chosen", chosen), *((row, chosen | dict(map(parse_override, row.split()))) for row in options.row)]
    for graph in graphs:
        own = [("best of this graph", search.best_of(graph))] if search.tried else []
        for name, settings in rows + [row for row in own if row[1] != chosen]:
            start = time.perf_counter()
            by_split = accuracies(graph, search.fixed | settings, options.seeds)
            seconds, scores = time.perf_counter() - start, ", ".join(f"{s} {text(v)}" for s, v in by_split.items())
            print(f"{graph}: {scores}, {seconds:.1f} s  {name}: {settings}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s for all")


if __name__ == "__main__":
    main()
