"""Most probable rows: by enumeration, by minimum cuts, and from above by a relaxation."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from skebm.partition.graph import PairwiseGraph

# SciPy's flows are 32 bits wide, and a residual capacity is a sum of two.
MAX_FLOW = 2**30 - 1
CHUNK = 4_000_000  # states times rows held at a time: 32 MB


class Cut:
    r"""Maxima of :math:`h^\top x - \sum_{(i, j)} w_{ij} |x_i - x_j|` for one w >= 0 and many h.

    A minimum cut between a source, on the side of the ones, and a sink (Greig, Porteous and
    Seheult, 1989, JRSS B 51). Capacities are integers, rounded down: no cut is dearer than it is,
    so that the maximum is never too small, and too large by at most the resolution times the number
    of units and edges.

    Parameters
    ----------
    n : int
        Number of units.
    edges : ndarray of shape (2, m)
    weights : ndarray of shape (m,)
    """

    def __init__(self, n: int, edges: np.ndarray, weights: np.ndarray):
        self.n, self.weights = n, weights
        (i, j), units = edges, np.arange(n)
        source, sink = np.full(n, n), np.full(n, n + 1)
        # Both directions of every edge, as SciPy would add those that are missing each time.
        row = np.concatenate([i, j, source, units, units, sink])
        column = np.concatenate([j, i, units, source, sink, units])
        self.shape = (n + 2, n + 2)
        self.order = np.lexsort((column, row))
        self.indices = column[self.order].astype(np.int32)
        self.indptr = np.searchsorted(row[self.order], np.arange(n + 3)).astype(np.int32)

    def best(self, fields: np.ndarray) -> tuple[float, np.ndarray]:
        """The maximum for h = `fields` (n,), and the units (n,) of bool that are one in it."""
        up, down = np.maximum(fields, 0), np.maximum(-fields, 0)
        largest = min(up.sum(), down.sum())  # no flow is larger, so no capacity needs to be
        if largest == 0:
            return float(up.sum()), fields > 0
        resolution = largest / MAX_FLOW

        def rounded(capacity: np.ndarray) -> np.ndarray:
            return np.floor(np.minimum(capacity, largest) / resolution).astype(np.int32)

        w, none = rounded(self.weights), np.zeros(self.n, dtype=np.int32)
        capacity = np.concatenate([w, w, rounded(up), none, rounded(down), none])[self.order]
        network = sp.csr_array((capacity, self.indices, self.indptr), shape=self.shape)
        found = maximum_flow(network, self.n, self.n + 1)
        residual = network - found.flow
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, self.n, return_predecessors=False)
        inside = np.zeros(self.n + 2, dtype=bool)
        inside[reached] = True
        return float(up.sum()) - found.flow_value * resolution, inside[: self.n]


# ------------------------------------------------------------------------------
# Maxima of a graph's log-weight plus fields, (r,), for r rows of fields (r, n)
# ------------------------------------------------------------------------------


def by_enumeration(graph: PairwiseGraph, fields: np.ndarray) -> np.ndarray:
    """Exact maxima over all states."""
    n, best = graph.n_nodes, np.full(len(fields), -np.inf)
    chunk = max(1, CHUNK // max(len(fields), n))
    for start in range(0, 2**n, chunk):
        number = np.arange(start, min(start + chunk, 2**n))
        x = ((number[:, None] >> np.arange(n)) & 1).astype(float)
        score = x @ fields.T
        score += graph.log_weight(x)[:, None]
        np.maximum(best, score.max(0), out=best)
    return best


def by_min_cut(graph: PairwiseGraph, fields: np.ndarray) -> np.ndarray:
    """Exact maxima, but for rounding upwards, of a graph without frustration."""
    units = graph.signs
    assert units is not None
    flipped = graph.flipped(units)
    J = flipped.couplings
    # J x_i x_j = J (x_i + x_j - |x_i - x_j|) / 2
    cut = Cut(graph.n_nodes, graph.edges, J / 2)
    own = flipped.fields + flipped.sums(J, J) / 2
    maxima = [cut.best(own + row)[0] for row in fields * np.where(units, -1, 1)]
    return flipped.offset + (fields * units).sum(1) + maxima


def by_relaxation(graph: PairwiseGraph, fields: np.ndarray) -> np.ndarray:
    r"""Maxima of the linear relaxation, at or above the exact ones.

    Over probabilities of units and pairs that fit together, :math:`\max \theta^\top q + \sum J
    \xi`. Half of it is a graph of attractive couplings with x and y in the places of x and 1 - x:
    its maximum is the program's, and every row has a pair of its own value.
    """
    (i, j), n, half = graph.edges, graph.n_nodes, graph.couplings / 2
    attractive = half > 0
    up, down = np.where(attractive, half, 0), np.where(attractive, 0, half)
    # x_i x_j as (x_i x_j + (1 - y_i)(1 - y_j)) / 2, or as (x_i (1 - y_j) + (1 - y_i) x_j) / 2
    to_x, to_y = graph.sums(down, down), graph.sums(up, up)
    cross = np.where(attractive, 0, n)
    edges = np.stack([np.r_[i, i + n], np.r_[j + cross, j + n - cross]])
    doubled = PairwiseGraph(
        graph.offset + float(graph.fields.sum() / 2 + up.sum()),
        np.r_[graph.fields / 2 + to_x, -graph.fields / 2 - to_y],
        np.sort(edges, 0),
        np.abs(np.r_[half, half]),
    )
    return fields.sum(1) / 2 + by_min_cut(doubled, np.concatenate([fields, -fields], 1) / 2)
