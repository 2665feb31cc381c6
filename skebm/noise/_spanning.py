"""The tree that carries the most information, which trees of columns and of blocks share."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree


def best_tree(information: np.ndarray) -> np.ndarray:
    """Parents in the spanning tree of the largest sum, rooted at its centre, -1 at the root.

    Of two centres the first is the root, so that depth is least and the choice fixed.
    """
    # Rounded, or noise would decide between equals. Costs of at least 1: next to zero is no edge to
    # SciPy, but what is independent must still be joined.
    cost = information.round(9)
    cost = cost.max() + 1 - cost
    np.fill_diagonal(cost, 0)
    tree = minimum_spanning_tree(cost)
    _, far = _walk(tree, 0)
    parent, other = _walk(tree, far)
    path = [other]
    while path[-1] != far:
        path.append(parent[path[-1]])
    middle = len(path) // 2
    centre = min(path[middle], path[(len(path) - 1) // 2])
    return _walk(tree, centre)[0]


def _walk(tree: sp.csr_array, root: int) -> tuple[np.ndarray, int]:
    """Parents by a breadth-first walk, -1 at the root, and the last node met: the farthest."""
    order, parent = breadth_first_order(tree, root, directed=False)
    return np.where(parent < 0, -1, parent).astype(np.int64), int(order[-1])
