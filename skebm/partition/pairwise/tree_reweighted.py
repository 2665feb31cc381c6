"""Tree-reweighted upper bounds on log Z."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from skebm._validation import warn
from skebm.base import Energy, LikelihoodWarning, LogPartition, Sampler
from skebm.base.graph import PairwiseGraph
from skebm.base.sampler import whole_number
from skebm.partition.pairwise.graph import (
    PairwiseEstimator,
    exact_result,
    forest_log_z,
    free_energy,
    maximise_lbfgs,
    maximise_newton,
    pairwise_graph,
)
from skebm.samplers.perturbed_map import MinCut

# Units times edges above which checking given probabilities would take minutes.
MAX_CHECK_COST = 3e6


def uniform_probabilities(graph: PairwiseGraph) -> np.ndarray:
    """Probability of each edge in a uniformly random spanning forest, (m,).

    By Kirchhoff's theorem it is the effective resistance of the edge in a network of unit
    resistors, computed from the inverse of the graph's Laplacian, which is a dense matrix here.
    """
    (i, j), n = graph.edges, graph.n_nodes
    laplacian = np.zeros((n, n))
    laplacian[i, j] = laplacian[j, i] = -1
    np.fill_diagonal(laplacian, -laplacian.sum(1))
    # A term of rank one for each component makes it regular and leaves resistances unchanged.
    same = graph.components[:, None] == graph.components
    inverse = np.linalg.inv(laplacian + same / same.sum(1))
    diagonal = inverse.diagonal()
    resistance = diagonal[i] + diagonal[j] - 2 * inverse[i, j]
    return np.clip(resistance, 1 / max(graph.n_edges, 1), 1.0)


def max_weight_forest(graph: PairwiseGraph, weight: np.ndarray) -> np.ndarray:
    """The spanning forest of the largest total weight, as zeros and ones of its edges, (m,)."""
    (i, j), n = graph.edges, graph.n_nodes
    cost = weight.max() + 1 - weight  # at least 1, as SciPy takes zero for the absence of an edge
    ends = (i.astype(np.int32), j.astype(np.int32))  # SciPy 1.11 takes no others
    tree = minimum_spanning_tree(sp.csr_array((cost, ends), shape=(n, n))).tocoo()
    in_tree = np.isin(i * np.int64(n) + j, tree.row * np.int64(n) + tree.col)
    return in_tree.astype(float)


def max_violation(graph: PairwiseGraph, rho: np.ndarray) -> tuple[float, np.ndarray]:
    r"""Largest violation of the forest polytope by rho (m,), and its set of units, (n,) of bool.

    Edge probabilities are those of a random forest if and only if every set S of units has
    :math:`\rho(E[S]) \le |S| - 1` (Edmonds, 1971, "Matroids and the greedy algorithm"). For each
    unit, one minimum cut finds the most violated set that contains it. The result is not below the
    true violation; 0 where there is none.
    """
    n = graph.n_nodes
    # rho(E[S]) - |S| = h'x - sum rho |x_i - x_j| / 2 for the indicator x of S
    fields = graph.node_sums(rho, rho) / 2 - 1
    cut = MinCut(n, graph.edges, rho / 2)
    violation, units = 0.0, np.zeros(n, dtype=bool)
    for unit in range(n):
        with_unit = fields.copy()
        with_unit[unit] += n  # large enough that the maximiser contains the unit
        value, inside = cut.maximise(with_unit)
        if value - n + 1 > violation:
            violation, units = value - n + 1, inside
    return violation, units


# Largest |J| / weight of an edge in each stage of smoothing: Newton's method fails where the free
# energy has its curvature concentrated within exp(-|J| / weight / 2).
SHARPNESS = (4.0, 8.0, 16.0, 32.0, 48.0, 64.0, 80.0)
MAX_NEWTON = 3000  # units up to which Newton's method is used; a step solves a dense system
MIN_STEP = 1e-3  # towards a tree, at which the search for better probabilities ends
ROUNDING = 1e-12  # of the bound, relative to the sum of the absolute parameters
# Largest violation by given probabilities that is taken for rounding: they are scaled down by it.
TOLERANCE = 1e-5


class Bound(NamedTuple):
    """An upper bound on log Z, with the edge probabilities (m,) and log-odds (n,) that give it."""

    upper: float
    rho: np.ndarray
    u: np.ndarray


class TreeReweighted(PairwiseEstimator):
    r"""Tree-reweighted upper bound on log Z of pairwise binary models.

    The entropy of a distribution is at most that of its projection onto a spanning tree. Averaged
    over random trees that contain edge e with probability :math:`\rho_e`, and maximised over
    locally consistent marginals :math:`\mu`, this gives

    .. math::
        \log Z \le \max_{\mu} \Bigl\{ \langle \theta, \mu \rangle
            + \sum_i H(\mu_i) - \sum_e \rho_e I(\mu_e) \Bigr\} ,

    a concave problem. An RBM is treated as the pairwise model of both its layers.

    Direction: ``upper`` is a **certain upper bound** (``bound_kind`` "certain"), whether or not the
    search has converged: it is the maximum of a tangent plane of a concave function, which is at or
    above the objective everywhere. ``value`` is the objective at the marginals found. It is at or
    below the best bound of this kind, and is itself not a bound. There is no lower bound (``nan``).
    If the graph has no loops, the result is exact. Otherwise the error is not a sampling error, so
    ``std_error`` is ``nan``. Computations are in float64, and nothing is drawn at random.

    Parameters
    ----------
    edge_probabilities : "uniform" or array-like of shape (d, d) or (m,), default="uniform"
        :math:`\rho` in (0, 1]: a symmetric matrix, or the probabilities of the m coupled pairs
        i < j, row by row. They must be those of a random forest: over the pairs within any set S of
        units they sum to at most :math:`|S| - 1`. "uniform" is a uniformly random spanning tree.
    n_reweightings : int, default=10
        Number of Frank-Wolfe steps that change the probabilities for a tighter bound: each goes
        towards the tree of the largest mutual information, and is kept if it lowers the bound.
    max_iter : int, default=50
        Largest number of Newton steps, for each choice of probabilities and stage of smoothing.
    tol : float, default=0.01
        A warning is issued if ``upper`` exceeds ``value`` by more than this, in nats.

    Notes
    -----
    Where couplings are strong relative to :math:`\rho`, the objective is nearly piecewise linear.
    It is smoothed by the entropies of the pairs, with weights that decrease in stages, and the
    lowest bound found is returned. This loosens the bound by about :math:`|J_e| / 80` nats for each
    pair whose marginals are not near 0 or 1, which is little compared with the looseness that
    strong frustrated couplings cause. A Newton step takes time :math:`d^3` and memory :math:`d^2`,
    with d the units of both layers; above 3,000 units L-BFGS is used, which converges less closely.

    References
    ----------
    Wainwright, Jaakkola and Willsky (2005), "A new class of upper bounds on the log partition
    function", IEEE Transactions on Information Theory 51(7) (the bound, and the steps towards
    trees of the largest mutual information).
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
        """Bound log Z from above; uses nothing but the energy."""
        self.check(energy)
        whole_number("n_reweightings", self.n_reweightings, 0)
        whole_number("max_iter", self.max_iter, 0)
        graph = pairwise_graph(energy)
        rho, unchecked = self._probabilities(graph)
        if graph.is_forest and np.allclose(rho, 1, rtol=0, atol=TOLERANCE):
            return exact_result(forest_log_z(graph))
        best = self._bound(graph, rho, np.zeros(graph.n_nodes), SHARPNESS)
        step, n_steps = 0.5, 0 if unchecked else self.n_reweightings
        while n_steps > 0 and step > MIN_STEP:
            n_steps -= 1
            pairs = free_energy(graph, best.u, best.rho).pairs
            rho = (1 - step) * best.rho + step * max_weight_forest(graph, pairs.information)
            candidate = self._bound(graph, rho, best.u, SHARPNESS[-3:])
            if candidate.upper < best.upper:
                best = candidate
            else:
                step /= 2
        value = free_energy(graph, best.u, best.rho).value
        if unchecked:
            return LogPartition(
                value, math.nan, math.nan, math.nan, "heuristic", math.nan, reason=unchecked
            )
        upper = best.upper + ROUNDING * graph.scale
        if upper - value > self.tol:
            warn(
                f"The bound is {upper - value:.2g} nats above the objective, more than "
                f"tol={self.tol:g}. The bound holds, but is not the tightest.",
                LikelihoodWarning,
                ("Increase max_iter.", "max_iter"),
            )
        reason = "the tree-reweighted free energy bounds log Z from above only"
        return LogPartition(value, math.nan, math.nan, upper, "certain", math.nan, reason=reason)

    def _bound(
        self, graph: PairwiseGraph, rho: np.ndarray, u: np.ndarray, stages: tuple[float, ...]
    ) -> Bound:
        """The lowest bound found for probabilities rho (m,), in stages of less smoothing."""
        best = Bound(math.inf, rho, u)
        sharpest = float((np.abs(graph.couplings) / rho).max())
        last = (math.inf,) if sharpest < 4 * stages[-1] else ()
        for sharpness in (*stages, *last):
            smoothing = np.maximum(np.abs(graph.couplings) / sharpness - rho, 0)
            if graph.n_nodes > MAX_NEWTON:
                u = maximise_lbfgs(graph, u, rho, smoothing, self.max_iter)
                upper = free_energy(graph, u, rho, smoothing).upper_bound
            else:
                tol = self.tol / 100
                u, upper = maximise_newton(graph, u, rho, smoothing, self.max_iter, tol)
            if upper < best.upper:
                best = Bound(upper, rho, u)
            if not smoothing.any():
                break
        return best

    def _probabilities(self, graph: PairwiseGraph) -> tuple[np.ndarray, str]:
        """Edge probabilities (m,), and why they could not be checked; empty where they were."""
        given = self.edge_probabilities
        if isinstance(given, str):
            if given != "uniform":
                raise ValueError(
                    f'edge_probabilities must be "uniform" or an array, not {given!r}.'
                )
            return uniform_probabilities(graph), ""
        rho = _on_edges(graph, np.asarray(given, dtype=float))
        if not ((rho > 0) & (rho <= 1)).all():
            raise ValueError("edge_probabilities must be in (0, 1] for all coupled pairs.")
        if graph.n_nodes * graph.n_edges > MAX_CHECK_COST:
            return rho, (
                "checking that the edge_probabilities are those of a random forest would take too "
                'long for so many edges: use "uniform"'
            )
        violation, units = max_violation(graph, rho)
        if violation > TOLERANCE:
            raise ValueError(
                "edge_probabilities must be those of a random forest, but those within units "
                f"{np.flatnonzero(units).tolist()} sum to {violation + units.sum() - 1:.6g}, more "
                f'than {units.sum() - 1}. Scale them down, or use "uniform".'
            )
        return rho / (1 + violation), ""


def _on_edges(graph: PairwiseGraph, given: np.ndarray) -> np.ndarray:
    """Probabilities (m,) of the edges from an array of shape (m,) or (d, d)."""
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
