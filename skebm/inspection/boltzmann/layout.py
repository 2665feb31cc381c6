"""Places of the nodes of a graph in the plane."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

# Steps of the majorisation, each of which lowers the stress.
N_STEPS = 200
# Weight of pairs of nodes without a path, which would pull the paths of others into a circle.
APART = 0.05


def circle(n_nodes: int) -> np.ndarray:
    """Places on the unit circle, (n_nodes, 2): clockwise, from the top."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n_nodes) / max(n_nodes, 1)
    return np.column_stack([np.cos(angle), np.sin(angle)])


def spring(n_nodes: int, edges: np.ndarray) -> np.ndarray:
    r"""Places whose distances are near the numbers of edges between the nodes, (n_nodes, 2).

    They minimise the stress :math:`\sum_{i<j} (\lVert x_i - x_j \rVert - d_{ij})^2 / d_{ij}^2` by
    majorisation, which starts from a circle and finds a local minimum. For nodes without a path
    between them, :math:`d_{ij}` is one more than the largest distance of all others, with a weight
    of a twentieth. All places lie within the unit circle.

    Parameters
    ----------
    n_nodes : int
    edges : ndarray of int of shape (m, 2)

    References
    ----------
    Gansner, Koren and North (2004), "Graph drawing by stress majorization", Graph Drawing.
    """
    x = circle(n_nodes)
    if n_nodes < 3:
        return x
    distance = _path_lengths(n_nodes, edges)
    apart = ~np.isfinite(distance)
    distance[apart] = distance[~apart].max() + 1
    np.fill_diagonal(distance, 1.0)
    weight = np.where(apart, APART, 1.0) * distance**-2.0
    np.fill_diagonal(weight, 0.0)
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(N_STEPS):
        length = np.linalg.norm(x[:, None] - x, axis=2)
        np.fill_diagonal(length, 1.0)
        pull = weight * distance / np.maximum(length, 1e-9)
        x = inverse @ ((np.diag(pull.sum(1)) - pull) @ x)
    x = x - (x.max(0) + x.min(0)) / 2
    positions: np.ndarray = x / np.linalg.norm(x, axis=1).max()
    return positions


def _path_lengths(n_nodes: int, edges: np.ndarray) -> np.ndarray:
    """Number of edges of the shortest path between any two nodes; infinite if there is none."""
    i, j = edges.astype(np.int32).T  # SciPy 1.11 takes no others
    graph = coo_array((np.ones(len(edges)), (i, j)), (n_nodes, n_nodes))
    lengths: np.ndarray = shortest_path(graph.tocsr(), directed=False, unweighted=True)
    return lengths
