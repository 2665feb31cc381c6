"""Random spanning forests: how probable each edge is, and which probabilities there can be."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import minimum_spanning_tree

from skebm.partition._min_cut import Cut
from skebm.partition.graph import PairwiseGraph

# Units times edges beyond which the test of given probabilities would take minutes.
MAX_TEST = 3e6


def uniform_probabilities(graph: PairwiseGraph) -> np.ndarray:
    """Probability of each edge in a uniformly random spanning forest, (m,).

    Kirchhoff's theorem: the edge's effective resistance where each edge is one of 1 ohm, from the
    graph's Laplacian, a dense matrix here.
    """
    (i, j), n = graph.edges, graph.n_nodes
    laplacian = np.zeros((n, n))
    laplacian[i, j] = laplacian[j, i] = -1
    np.fill_diagonal(laplacian, -laplacian.sum(1))
    # A rank one term for each component makes it regular and leaves differences as they are.
    same = graph.components[:, None] == graph.components
    inverse = np.linalg.inv(laplacian + same / same.sum(1))
    own = inverse.diagonal()
    return np.clip(own[i] + own[j] - 2 * inverse[i, j], 1 / max(graph.n_edges, 1), 1.0)


def best_forest(graph: PairwiseGraph, weight: np.ndarray) -> np.ndarray:
    """The spanning forest of the largest weight, (m,) of zeros and ones."""
    (i, j), n = graph.edges, graph.n_nodes
    cost = weight.max() + 1 - weight  # of at least 1, as SciPy takes zero for no edge
    chosen = minimum_spanning_tree(sp.csr_array((cost, (i, j)), shape=(n, n))).tocoo()
    taken = np.isin(i * np.int64(n) + j, chosen.row * np.int64(n) + chosen.col)
    return taken.astype(float)


def excess(graph: PairwiseGraph, rho: np.ndarray) -> tuple[float, np.ndarray]:
    r"""By how much rho (m,) exceeds what random forests can have, and the units where it does.

    Probabilities of edges are those of a random forest just where every set S of units has
    :math:`\rho(E[S]) \le |S| - 1` (Edmonds, 1971, "Matroids and the greedy algorithm"). For each
    unit, one minimum cut finds the worst set that holds it. The excess is at least the true one.
    """
    n = graph.n_nodes
    # rho(E[S]) - |S| = h'x - sum rho |x_i - x_j| / 2 for the indicator x of S
    fields = graph.sums(rho, rho) / 2 - 1
    cut = Cut(n, graph.edges, rho / 2)
    worst, where = 0.0, np.zeros(n, dtype=bool)
    for root in range(n):
        forced = fields.copy()
        forced[root] += n  # more than it can cost
        value, inside = cut.best(forced)
        if value - n + 1 > worst:
            worst, where = value - n + 1, inside
    return worst, where
