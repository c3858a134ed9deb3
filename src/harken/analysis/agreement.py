"""Agreement of two partitions of the same points: clusters with labels, or with other clusters."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]
Partition = Sequence[object] | npt.NDArray[np.generic]  # the group of each point


def contingency_table(a: Partition, b: Partition) -> Counts:
    """The number of points in each group of `a` and each group of `b`."""
    (groups_a, first), (groups_b, second) = (np.unique(np.asarray(each), return_inverse=True) for each in (a, b))
    table = np.zeros((len(groups_a), len(groups_b)))
    np.add.at(table, (first, second), 1)
    return table


def adjusted_rand_index(a: Partition, b: Partition) -> float:
    """1 if the partitions are equal up to the numbers of the groups, about 0 if they are independent."""
    table = contingency_table(a, b)
    n = table.sum()
    pairs, rows, columns = ((t * (t - 1) / 2).sum() for t in (table, table.sum(1), table.sum(0)))
    expected, maximum = rows * columns / (n * (n - 1) / 2), (rows + columns) / 2
    return float((pairs - expected) / (maximum - expected)) if maximum != expected else 1.0


def normalized_mutual_information(a: Partition, b: Partition) -> float:
    """The mutual information of the partitions divided by the mean of their entropies: 1 if they are equal."""
    p = contingency_table(a, b) / len(a)
    rows, columns = p.sum(1), p.sum(0)
    entropies = -(rows * np.log(rows)).sum() - (columns * np.log(columns)).sum()
    if not entropies:
        return 1.0
    independent = np.outer(rows, columns)
    mutual = float((p[p > 0] * np.log(p[p > 0] / independent[p > 0])).sum())
    return min(1.0, max(0.0, 2 * mutual / float(entropies)))


def purity(clusters: Partition, labels: Partition) -> float:
    """The fraction of the points that have the most frequent label of their cluster."""
    return float(contingency_table(clusters, labels).max(1).sum() / len(labels))
