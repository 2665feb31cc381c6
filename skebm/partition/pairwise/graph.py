"""Graphs of pairwise energies, and the free energies that variational methods maximise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from skebm.base import Binary, Energy, LogPartition, PairwiseEnergy, PartitionEstimator
from skebm.base.graph import PairwiseGraph, graph_of
from skebm.distributions import ChowLiuTree, Distribution
from skebm.energies import BernoulliRBM, TemperedCorrection, Tilted

FRUSTRATED = "couplings are frustrated: no flips of units make all of them attractive"


def exact_result(value: float) -> LogPartition:
    """The result of a method that is exact for the graph at hand."""
    return LogPartition(value, 0.0, value, value, "exact", math.inf)


# ------------------------------------------------------------------------------
# From energies
# ------------------------------------------------------------------------------


class PairwiseEstimator(PartitionEstimator):
    """Estimates log Z of pairwise models of binary units, and of no others."""

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy that is not a pairwise one of binary units."""
        super().check(energy)
        check_pairwise(self, energy)


def check_pairwise(method: Any, energy: Energy) -> None:
    """Raise `TypeError` for an energy that is not a pairwise one of binary units."""
    name = type(method).__name__
    if isinstance(energy, Tilted):
        if energy.field.ndim != 1:
            raise ValueError(
                f"{name} takes one model at a time, but the tilt has a field for each row: tilt "
                "the energy by a field of shape (d,)."
            )
        return check_pairwise(method, energy.energy)
    if isinstance(energy, TemperedCorrection):
        return check_pairwise(method, energy.energy)
    if isinstance(energy, BernoulliRBM):
        if not isinstance(energy.structure, ChowLiuTree | None):
            raise TypeError(
                f"{name} takes RBMs whose base has independent columns or is a ChowLiuTree, not a "
                f"{type(energy.structure).__name__}: use AIS."
            )
    elif not isinstance(energy, PairwiseEnergy):
        raise TypeError(
            f"{name} takes pairwise energies of binary units, BoltzmannMachine and BernoulliRBM, "
            f"not {type(energy).__name__}. Use AIS for other bipartite energies, and Exact where "
            "the states can be enumerated."
        )
    elif not isinstance(energy.domain, Binary):
        raise TypeError(f"{name} takes binary units, and this energy is on {energy.domain}.")


def pairwise_graph(energy: Energy) -> PairwiseGraph:
    """The graph of a pairwise energy; of both layers of a bipartite one.

    Hidden units follow the visible ones. log Z of the graph is that of the energy. Raises
    `FloatingPointError` for parameters that are not finite.
    """
    with torch.no_grad(), np.errstate(invalid="ignore"):
        graph = _graph(energy)
    parts = (graph.offset, graph.fields, graph.couplings)
    if not all(np.isfinite(part).all() for part in parts):
        raise FloatingPointError(
            "The energy has parameters that are not finite, so log Z does not exist: train again "
            "with a smaller learning rate."
        )
    return graph


def _graph(energy: Any) -> PairwiseGraph:
    if isinstance(energy, Tilted):
        graph = _graph_at_temperature(_graph(energy.energy), energy.beta)
        fields = graph.fields.copy()
        fields[: len(energy.field)] += _array(energy.field)
        return replace(graph, fields=fields)
    if isinstance(energy, TemperedCorrection):
        model = energy.energy
        return _with_base(_graph_at_temperature(_graph_of_rbm(model), energy.beta), model.structure)
    if isinstance(energy, BernoulliRBM):
        return _with_base(_graph_of_rbm(energy), energy.structure)
    return graph_of(energy)


def _graph_of_rbm(energy: BernoulliRBM) -> PairwiseGraph:
    """The graph of both layers of an RBM, without its base."""
    weight, b, c = (_array(parameter) for parameter in energy.tensors)
    hidden, visible = weight.nonzero()
    edges = np.stack([visible, hidden + len(b)])
    return PairwiseGraph(0.0, np.r_[b, c], edges, weight[hidden, visible])


def _with_base(graph: PairwiseGraph, base: Distribution | None) -> PairwiseGraph:
    """Add log q(x) of a tree over the visible units, which are not coupled in the graph yet."""
    if base is None:
        return graph
    assert isinstance(base, ChowLiuTree)  # by check_pairwise
    off, on = _array(base.logits).T  # of a unit whose parent is zero, or one
    parent = base.parent.cpu().numpy()
    children = np.flatnonzero(parent >= 0)
    parents = parent[children]
    fields = graph.fields.copy()
    fields[: len(off)] += off
    change = np.logaddexp(0, off) - np.logaddexp(0, on)
    np.add.at(fields, parents, change[children])
    coupling = (on - off)[children]
    ends = np.minimum(children, parents), np.maximum(children, parents)
    edges = np.stack(ends)[:, coupling != 0]
    return PairwiseGraph(
        graph.offset - float(np.logaddexp(0, off).sum()),
        fields,
        np.concatenate([graph.edges, edges], 1),
        np.r_[graph.couplings, coupling[coupling != 0]],
    )


def _graph_at_temperature(graph: PairwiseGraph, beta: float) -> PairwiseGraph:
    """The distribution at an inverse temperature."""
    if beta == 0:
        no_edges = np.zeros((2, 0), dtype=np.int64)
        return PairwiseGraph(0.0, np.zeros(graph.n_nodes), no_edges, np.zeros(0))
    return PairwiseGraph(
        beta * graph.offset, beta * graph.fields, graph.edges, beta * graph.couplings
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


# ------------------------------------------------------------------------------
# The free energy F of Bethe's approximation and of its reweighted versions
# ------------------------------------------------------------------------------

# Larger log-odds change F by less than rounding: exp(-40) is 4e-18.
MAX_LOG_ODDS = 40.0
TINY = 1e-300  # replaces probabilities that underflow before a logarithm is taken
# Newton's method: the largest change of log-odds, and the smallest step of the line search.
MAX_CHANGE, MIN_STEP = 4.0, 1e-3


class PairTables(NamedTuple):
    """Tables of the edges, relative to the product of their marginals; (m,) each.

    The second unit is flipped where the coupling is attractive, so that odds ratios are below 1.
    """

    marginals: tuple[np.ndarray, ...]  # P(x_i = 1), P(x_i = 0), P(x_j = 1), P(x_j = 0)
    l00: np.ndarray  # log P(0, 0) / (P(0) P(0))
    l10: np.ndarray
    l01: np.ndarray
    l11: np.ndarray
    weight: np.ndarray  # of the mutual information in F

    @property
    def information(self) -> np.ndarray:
        """Mutual information (m,), in nats."""
        one_i, zero_i, one_j, _ = self.marginals
        k = self.l00 + self.l11 - self.l10 - self.l01
        expected = (zero_i - one_j) * self.l00 + one_i * self.l10 + one_j * self.l01
        return np.maximum(expected + k * one_i * one_j * np.exp(self.l11), 0)


class Beliefs(NamedTuple):
    """F at some log-odds, its gradient with respect to q, and the marginals behind them."""

    value: float
    gradient: np.ndarray  # (n,)
    q: np.ndarray  # (n,) probabilities of one
    p: np.ndarray  # (n,) and of zero
    entropies: np.ndarray  # (n,) weights of the units' entropies
    pairs: PairTables

    @property
    def upper_bound(self) -> float:
        """Upper bound on a concave F: the maximum of its tangent plane over the unit cube."""
        g = self.gradient
        return self.value + float(np.maximum(g * self.p, -g * self.q).sum())

    @property
    def gradient_norm(self) -> float:
        """1-norm of the gradient with respect to the log-odds: 0 where F is stationary."""
        return float((np.abs(self.gradient) * self.q * self.p).sum())


def free_energy(
    graph: PairwiseGraph, u: np.ndarray, rho: np.ndarray, smoothing: np.ndarray | float = 0.0
) -> Beliefs:
    r"""F and its gradient at log-odds u (n,) within :data:`MAX_LOG_ODDS`, for weights rho (m,).

    `smoothing` (m,) adds that multiple of each pair's entropy, which keeps F concave, increases it,
    and makes it smoother where couplings are strong and rho is small.

    With :math:`x_j` flipped where :math:`J_{ij} > 0`, every coupling is repulsive,
    :math:`k = -|J| / \rho`. The optimal covariance of a pair solves the quadratic of Welling and
    Teh (2001), "Belief optimization for binary networks: a stable alternative to loopy belief
    propagation", UAI; it is written here without sums of terms of opposite sign, for every k and q.
    Only the ratios of the pair's table to the product of its marginals enter: with
    :math:`l_{ab} = \log p_{ab} / (p_a p_b)`, the term of the edge is

    .. math:: -\rho \{ (1 - q_i - q_j) l_{00} + q_i l_{10} + q_j l_{01} \},

    and by the envelope theorem its derivatives are :math:`\rho (l_{00} - l_{10})` for
    :math:`q_i` and :math:`\rho (l_{00} - l_{01})` for :math:`q_j`.
    """
    (i, j), J = graph.edges, graph.couplings
    q, p = expit(u), expit(-u)
    attractive, weight = J > 0, rho + smoothing
    one_j, zero_j = np.where(attractive, p[j], q[j]), np.where(attractive, q[j], p[j])
    pairs = _pair_tables(-np.abs(J) / weight, (q[i], p[i], one_j, zero_j), weight)
    l00, l10, l01 = pairs.l00, pairs.l10, pairs.l01
    edges = -weight * ((p[i] - one_j) * l00 + q[i] * l10 + one_j * l01)
    grad_i, grad_j = weight * (l00 - l10), weight * (l00 - l01)
    # J x_i x_j = J x_i - J x_i (1 - x_j)
    edges += np.where(attractive, J * q[i], 0)
    grad_i += np.where(attractive, J, 0)
    grad_j *= np.where(attractive, -1, 1)
    by_edge = np.broadcast_to(smoothing, J.shape)
    entropies = 1 + graph.node_sums(by_edge, by_edge)
    gradient = graph.fields - entropies * u + graph.node_sums(grad_i, grad_j)
    value = graph.offset + graph.fields @ q + edges.sum()
    value += entropies @ (np.logaddexp(0, u) - q * u)
    return Beliefs(float(value), gradient, q, p, entropies, pairs)


def _pair_tables(
    k: np.ndarray, marginals: tuple[np.ndarray, ...], weight: np.ndarray
) -> PairTables:
    """Tables of the odds ratio exp(k), k < 0, with given marginals; (m,) each."""
    one_i, zero_i, one_j, zero_j = marginals
    e, a = np.exp(k), -np.expm1(k)
    both, neither = one_i * one_j, zero_i * zero_j
    first, second = one_i * zero_j, zero_i * one_j
    e_mixed = e * (first + second)
    difference = zero_i - one_j  # neither - both
    root = np.sqrt(
        difference**2
        + 4 * both * neither * e * (2 - e)
        + (2 * (both + neither) + e_mixed) * e_mixed
    )
    norm = both + neither + e_mixed + root
    l10, l01 = np.log1p(2 * a * second / norm), np.log1p(2 * a * first / norm)
    # The likelier one of both and neither; the other follows from the odds ratio.
    numerator = np.abs(difference) + 2 * e * np.minimum(both, neither) + e_mixed + root
    likely = np.log(np.maximum(numerator, TINY) / norm)
    unlikely = k + l10 + l01 - likely
    is_neither = difference >= 0
    l00, l11 = np.where(is_neither, likely, unlikely), np.where(is_neither, unlikely, likely)
    return PairTables(marginals, l00, l10, l01, l11, weight)


def negative_hessian(graph: PairwiseGraph, beliefs: Beliefs) -> np.ndarray:
    r"""Minus the Hessian of F with respect to q, times :math:`\sqrt{q_i p_i q_j p_j}`, (n, n).

    The terms of the pairs are those of Weller and Jebara (2013), "Bethe bounds and approximating
    the global optimum", AISTATS.
    """
    (i, j), n, pairs = graph.edges, graph.n_nodes, beliefs.pairs
    one_i, zero_i, one_j, zero_j = pairs.marginals
    both, neither = one_i * one_j * np.exp(pairs.l11), zero_i * zero_j * np.exp(pairs.l00)
    first, second = one_i * zero_j * np.exp(pairs.l10), zero_i * one_j * np.exp(pairs.l01)
    cubic = both * first * (second + neither) + second * neither * (both + first)
    squared = one_i * zero_i * one_j * zero_j
    ratio = squared / np.maximum(cubic, TINY)
    covariance = (both * neither - first * second) * np.where(graph.couplings > 0, -1, 1)
    matrix = np.zeros((n, n))
    matrix[i, j] = matrix[j, i] = -pairs.weight * covariance / np.sqrt(squared) * ratio
    diagonal = pairs.weight * (ratio - 1)
    matrix[np.arange(n), np.arange(n)] = beliefs.entropies + graph.node_sums(diagonal, diagonal)
    return matrix


# ------------------------------------------------------------------------------
# Maximisation of F
# ------------------------------------------------------------------------------


def maximise_newton(
    graph: PairwiseGraph,
    u: np.ndarray,
    rho: np.ndarray,
    smoothing: np.ndarray,
    max_iter: int,
    tol: float,
) -> tuple[np.ndarray, float]:
    """Log-odds (n,) near the maximum of a concave F, and the lowest upper bound on it met so far.

    Newton's step for q is taken in log-odds: for independent units one step reaches the maximum.
    The search stops when the upper bound at the present log-odds is within `tol` of F.
    """
    beliefs = free_energy(graph, u, rho, smoothing)
    lowest = beliefs.upper_bound
    for _ in range(max_iter):
        if beliefs.upper_bound - beliefs.value <= tol:
            break
        root = np.sqrt(beliefs.q * beliefs.p)
        gradient = beliefs.gradient * root
        matrix = negative_hessian(graph, beliefs)
        try:
            factor = cho_factor(matrix, overwrite_a=True, check_finite=False)
            direction = cho_solve(factor, gradient)
        except np.linalg.LinAlgError:  # not positive definite, by rounding
            direction = gradient / beliefs.entropies
        increase, direction = gradient @ direction, direction / root
        step = min(1.0, MAX_CHANGE / np.abs(direction).max())
        while step > MIN_STEP:
            v = np.clip(u + step * direction, -MAX_LOG_ODDS, MAX_LOG_ODDS)
            candidate = free_energy(graph, v, rho, smoothing)
            if candidate.value >= beliefs.value + 1e-4 * step * increase:
                break
            step /= 2
        else:
            break
        u, beliefs = v, candidate
        lowest = min(lowest, beliefs.upper_bound)
    return u, lowest


def maximise_lbfgs(
    graph: PairwiseGraph,
    u: np.ndarray,
    rho: np.ndarray,
    smoothing: np.ndarray | float = 0.0,
    max_iter: int = 1000,
) -> np.ndarray:
    """Log-odds (n,) of a local maximum of F near u, by L-BFGS."""

    def loss(v: np.ndarray) -> tuple[float, np.ndarray]:
        beliefs = free_energy(graph, v, rho, smoothing)
        return -beliefs.value, -beliefs.gradient * beliefs.q * beliefs.p

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter + 20, "ftol": 0.0, "gtol": 1e-12}
    result = minimize(
        loss,
        np.clip(u, -MAX_LOG_ODDS, MAX_LOG_ODDS),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-MAX_LOG_ODDS, MAX_LOG_ODDS)] * len(u),
        options=options,
    )
    return result.x


def belief_propagation(
    graph: PairwiseGraph, start: np.ndarray, damping: float, max_iter: int, tol: float
) -> np.ndarray:
    r"""Log-odds (n,) by loopy belief propagation, with first messages from probabilities (n,).

    The message from unit i to j is :math:`\zeta(J + u) - \zeta(u)`, with u the log-odds of i
    without the message from j, and :math:`\zeta(u) = \log(1 + e^u)`. It stops when no log-odds
    changes by more than `tol`; on a tree this takes as many undamped iterations as its diameter.
    """
    i, j = graph.edges
    source, target = np.r_[i, j], np.r_[j, i]
    J = np.r_[graph.couplings, graph.couplings]
    m, n = graph.n_edges, graph.n_nodes
    message = J * start[source]
    u = graph.fields + np.bincount(target, message, n)
    for _ in range(max_iter):
        opposite = np.concatenate([message[m:], message[:m]])  # from the target to the source
        cavity = u[source] - opposite
        new = np.logaddexp(0, J + cavity) - np.logaddexp(0, cavity)
        message += (1 - damping) * (new - message)
        old, u = u, graph.fields + np.bincount(target, message, n)
        if np.abs(u - old).max() <= tol * (1 - damping):
            break
    return u


def forest_log_z(graph: PairwiseGraph) -> float:
    """Exact log Z of a graph without loops."""
    u = belief_propagation(graph, np.full(graph.n_nodes, 0.5), 0.0, graph.n_nodes + 1, 0.0)
    u = np.clip(u, -MAX_LOG_ODDS, MAX_LOG_ODDS)
    return free_energy(graph, u, np.ones(graph.n_edges)).value
