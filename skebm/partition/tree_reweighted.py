"""Upper bounds on log Z from random spanning trees."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.base.sampler import whole_number
from skebm.partition.graph import (
    PairwiseGraph,
    PairwiseMethod,
    climb,
    exactly,
    forest_log_z,
    free_energy,
    newton,
    pairwise_graph,
)
from skebm.partition.perturb_and_map import Cut

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


# Largest |J| / weight of an edge, from one stage to the next: Newton's steps cannot follow the free
# energy where it bends within exp(-|J| / weight / 2), so it is smoothed until they can.
SHARPNESS = (4.0, 8.0, 16.0, 32.0, 48.0, 64.0, 80.0)
MAX_NEWTON = 3000  # units; a step solves a dense system of as many
SHORTEST = 1e-3  # step towards a tree, where the search for better probabilities ends
ROUNDING = 1e-12  # allowance, relative to the sum of the terms' sizes
# Largest error of given probabilities that is taken for rounding: they are scaled down by it.
TOLERANCE = 1e-5


class Bound(NamedTuple):
    """An upper bound on log Z, its edge probabilities, and the log-odds it was found at."""

    upper: float
    rho: np.ndarray
    u: np.ndarray


class TreeReweighted(PairwiseMethod):
    r"""Tree-reweighted upper bound on log Z of pairwise binary models.

    Each spanning tree of the model's graph bounds its entropy from above. Averaged over random
    trees that have edge e with probability :math:`\rho_e`, and over the margins q at their best,

    .. math::
        \log Z \le \max_{\mu} \Bigl\{ \langle \theta, \mu \rangle
            + \sum_i H(\mu_i) - \sum_e \rho_e I(\mu_e) \Bigr\} ,

    a concave problem. An RBM is the model of both its layers.

    Direction: ``upper`` is an **upper bound that holds for certain** (``bound_kind`` "exact"),
    whether or not the search converged: it is the highest point of a tangent plane of a concave
    function that is nowhere below the objective. ``value`` is the objective at the margins found,
    below the best bound of this kind by what the search left, and itself no bound. There is no
    lower bound (``nan``). Exact where the graph has no loops; the error is not one of sampling, so
    ``std_error`` is ``nan`` elsewhere. Computes in float64; draws nothing.

    Parameters
    ----------
    edge_probabilities : "uniform" or array-like of shape (d, d) or (m,), default="uniform"
        :math:`\rho` in (0, 1], symmetric, or for the m coupled pairs i < j row by row. They must be
        those of a random forest: no set S of units may hold more than :math:`|S| - 1` in all.
        "uniform" is a uniformly random spanning tree.
    n_reweightings : int, default=10
        Steps that change the probabilities for a tighter bound, each a move towards the tree of the
        largest mutual information that is kept if it helps.
    max_iter : int, default=50
        Newton steps at most, for each choice of probabilities and stage of smoothing.
    tol : float, default=0.01
        Warn where the search leaves more than this, in nats, between ``value`` and ``upper``.

    Notes
    -----
    Where couplings are strong for their :math:`\rho`, the objective is all but piecewise linear. It
    is smoothed by pairs' entropies, less and less, and the lowest bound met is taken. What that
    costs is about :math:`|J_e| / 80` nats for each pair that remains undecided, little where the
    bound is as loose as strong frustrated couplings make it. A step costs time :math:`d^3` and
    memory :math:`d^2`, with d the units of both layers; above 3,000 of them L-BFGS takes over,
    which leaves more.

    References
    ----------
    Wainwright, Jaakkola and Willsky (2005), "A new class of upper bounds on the log partition
    function", IEEE Transactions on Information Theory 51(7): the bound, and the steps towards
    trees of the largest mutual information.
    Jaggi (2013), "Revisiting Frank-Wolfe: projection-free sparse convex optimization", ICML, eq. 2
    (the gap).

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.partition import Exact, TreeReweighted
    >>> energy = ising_grid(3, 3, coupling=0.3, periodic=False)
    >>> upper = TreeReweighted().estimate(energy).upper
    >>> 0 < upper - Exact().estimate(energy).value < 0.5
    True
    """

    def __init__(
        self,
        edge_probabilities: Any = "uniform",
        n_reweightings: int = 10,
        max_iter: int = 50,
        tol: float = 0.01,
    ):
        self.edge_probabilities = edge_probabilities
        self.n_reweightings = n_reweightings
        self.max_iter = max_iter
        self.tol = tol

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Bound log Z from above; needs nothing but the energy."""
        self.check(energy)
        whole_number("n_reweightings", self.n_reweightings, 0)
        whole_number("max_iter", self.max_iter, 0)
        graph = pairwise_graph(energy)
        rho, doubt = self._probabilities(graph)
        if graph.is_forest and np.allclose(rho, 1, rtol=0, atol=TOLERANCE):
            return exactly(forest_log_z(graph))
        best = self._bound(graph, rho, np.zeros(graph.n_nodes), SHARPNESS)
        step, n_steps = 0.5, 0 if doubt else self.n_reweightings
        while n_steps > 0 and step > SHORTEST:
            n_steps -= 1
            pairs = free_energy(graph, best.u, best.rho).pairs
            rho = (1 - step) * best.rho + step * best_forest(graph, pairs.information)
            found = self._bound(graph, rho, best.u, SHARPNESS[-3:])
            if found.upper < best.upper:
                best = found
            else:
                step /= 2
        value = free_energy(graph, best.u, best.rho).value
        if doubt:
            return LogPartition(
                value, math.nan, math.nan, math.nan, "heuristic", math.nan, reason=doubt
            )
        upper = best.upper + ROUNDING * graph.scale
        if upper - value > self.tol:
            warnings.warn(
                f"The search left {upper - value:.2g} nats between the objective and its bound, "
                f"more than tol={self.tol:g}. The bound holds, but may be looser than it need be.",
                ConvergenceWarning,
                stacklevel=2,
            )
        why = "random trees bound log Z from above only"
        return LogPartition(value, math.nan, math.nan, upper, "exact", math.nan, reason=why)

    def _bound(
        self, graph: PairwiseGraph, rho: np.ndarray, u: np.ndarray, stages: tuple[float, ...]
    ) -> Bound:
        """The lowest bound met for some probabilities, smoothing less and less."""
        best = Bound(math.inf, rho, u)
        sharpest = float((np.abs(graph.couplings) / rho).max())
        last = (math.inf,) if sharpest < 4 * stages[-1] else ()
        for sharpness in (*stages, *last):
            smoothing = np.maximum(np.abs(graph.couplings) / sharpness - rho, 0)
            if graph.n_nodes > MAX_NEWTON:
                u = climb(graph, u, rho, smoothing, self.max_iter)
                upper = free_energy(graph, u, rho, smoothing).ceiling
            else:
                u, upper = newton(graph, u, rho, smoothing, self.max_iter, self.tol / 100)
            if upper < best.upper:
                best = Bound(upper, rho, u)
            if not smoothing.any():
                break
        return best

    def _probabilities(self, graph: PairwiseGraph) -> tuple[np.ndarray, str]:
        """Checked probabilities (m,), and why it is unknown whether they are ones of forests."""
        given = self.edge_probabilities
        if isinstance(given, str):
            if given != "uniform":
                raise ValueError(
                    f'edge_probabilities must be "uniform" or an array, not {given!r}.'
                )
            return uniform_probabilities(graph), ""
        rho = _on_edges(graph, np.asarray(given, dtype=float))
        if not ((rho > 0) & (rho <= 1)).all():
            raise ValueError("edge_probabilities must be in (0, 1] on all pairs that are coupled.")
        if graph.n_nodes * graph.n_edges > MAX_TEST:
            return rho, (
                "whether the edge_probabilities are those of random forests would take too long "
                'to find out for so many edges: use "uniform"'
            )
        most, units = excess(graph, rho)
        if most > TOLERANCE:
            raise ValueError(
                "edge_probabilities must be those of a random forest, but pairs within units "
                f"{np.flatnonzero(units).tolist()} hold {most + units.sum() - 1:.6g} in all, more "
                f'than {units.sum() - 1}. Scale them down, or use "uniform".'
            )
        return rho / (1 + most), ""


def _on_edges(graph: PairwiseGraph, given: np.ndarray) -> np.ndarray:
    """An array of shape (m,) from one of (m,) or (d, d)."""
    d, m = graph.n_nodes, graph.n_edges
    if given.shape == (d, d):
        if not np.array_equal(given, given.T):
            raise ValueError("edge_probabilities of shape (d, d) must be symmetric.")
        return given[graph.edges[0], graph.edges[1]]
    if given.shape != (m,):
        raise ValueError(
            f"edge_probabilities must have shape ({d}, {d}), or ({m},) for the coupled pairs, not "
            f"{given.shape}."
        )
    return given
