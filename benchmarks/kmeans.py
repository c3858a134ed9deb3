"""k-means with 10 restarts, harken and scikit-learn: same initial centers, same tolerance, equal inertia.

    python benchmarks/kmeans.py                      100,000 x 384, k = 10 and 100, interleaved, medians
    python benchmarks/kmeans.py --start k-means++    each with its own k-means++: time of the complete fit
    python benchmarks/kmeans.py --points 20000 --steps 20 --rounds 1

Without --vectors random points are generated: 200 overlapping clusters, a decaying spectrum as that of embeddings, unit
length. Measure on an idle machine.
"""

import argparse
import json
import os
import statistics
import time
import warnings

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from harken.analysis.clusters import kmeans


def random_points(n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    spectrum = (1 + np.arange(d)) ** -0.5
    means = rng.standard_normal((200, d)) * spectrum
    x = means[rng.integers(200, size=n)] + rng.standard_normal((n, d)) * spectrum
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def sklearn_inertias(x: np.ndarray, k: int, centers: np.ndarray | None, steps: int, restarts: int) -> list[float]:
    """Return the inertia of each restart; with k-means++ of scikit-learn, only that of the best."""
    if centers is None:
        return [KMeans(k, n_init=restarts, max_iter=steps, random_state=0).fit(x).inertia_]
    return [float(KMeans(k, init=start, n_init=1, max_iter=steps).fit(x).inertia_) for start in centers]


def measure(x: np.ndarray, k: int, options: argparse.Namespace) -> dict[str, object]:
    """Time both, interleaved; return the seconds and the relative difference of the inertias."""
    rng, centers = np.random.default_rng(1), None
    if options.start == "same":
        centers = np.stack([x[rng.choice(len(x), k, replace=False)] for _ in range(options.restarts)])
    seconds: dict[str, list[float]] = {"harken": [], "scikit-learn": []}
    for _ in range(options.rounds):
        start = time.perf_counter()
        clustering = kmeans(
            x, k, restarts=options.restarts, start="k-means++" if centers is None else centers, max_iter=options.steps
        )
        seconds["harken"].append(time.perf_counter() - start)
        start = time.perf_counter()
        reference = sklearn_inertias(x, k, centers, options.steps, options.restarts)
        seconds["scikit-learn"].append(time.perf_counter() - start)
    differences = [
        a / b - 1
        for a, b in zip(clustering.inertias if centers is not None else [clustering.inertia], reference, strict=True)
    ]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    return {
        "k": k,
        **{name: round(s, 2) for name, s in medians.items()},
        "ratio": round(ratio, 2),
        "inertia": [
            round(min(differences), 6),
            round(max(differences), 6),
        ],  # relative to scikit-learn: minimum, maximum
        "steps": clustering.n_iter,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=384)
    parser.add_argument("--vectors", help=".npy file with the points; default: random points")
    parser.add_argument("--k", default="10,100")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--start", choices=["same", "k-means++"], default="same")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="sklearn")  # ConvergenceWarning: max_iter reached
    x = (
        np.load(options.vectors, allow_pickle=False)
        if options.vectors
        else random_points(options.points, options.columns)
    )
    torch.set_num_threads(options.threads)
    print(f"{len(x):,} x {x.shape[1]}, {options.restarts} restarts, start: {options.start}, {options.threads} threads")
    print(f"load average at the start: {os.getloadavg()[0]:.2f}")
    with threadpool_limits(options.threads):
        for k in map(int, options.k.split(",")):
            print(json.dumps(measure(np.ascontiguousarray(x, np.float32), k, options)), flush=True)


if __name__ == "__main__":
    main()
