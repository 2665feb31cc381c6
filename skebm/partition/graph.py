r"""Pairwise binary models as graphs: what variational methods and MAP solvers read of an energy."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components
from scipy.special import expit
from torch import Tensor

from skebm.base import Energy, LogPartition, PairwiseEnergy, PartitionEstimator
from skebm.distributions import ChowLiuTree, Distribution
from skebm.energies import BernoulliRBM, TemperedCorrection, Tilted

FRUSTRATED = (
    "couplings are frustrated: no relabelling of zeros and ones makes all of them attractive"
)


@dataclass(frozen=True, eq=False)
class PairwiseGraph:
    r"""A distribution of binary units, with their couplings as the edges of a graph.

    .. math:: \log \tilde p(x) = c + \sum_i \theta_i x_i + \sum_{(i, j)} J_{ij} x_i x_j

    Parameters
    ----------
    offset : float
        c, the log-weight of the row of zeros.
    fields : ndarray of shape (n,)
        :math:`\theta`.
    edges : ndarray of int of shape (2, m)
        Pairs i < j, each at most once.
    couplings : ndarray of shape (m,)
        J of each edge, none of them zero.
    """

    offset: float
    fields: np.ndarray
    edges: np.ndarray
    couplings: np.ndarray

    @property
    def n_nodes(self) -> int:
        """Number of units."""
        return len(self.fields)

    @property
    def n_edges(self) -> int:
        """Number of pairs that are coupled."""
        return len(self.couplings)

    @functools.cached_property
    def components(self) -> np.ndarray:
        """Number of the connected component of each unit, (n,)."""
        return connected_components(adjacency(self.n_nodes, self.edges), directed=False)[1]

    @property
    def n_components(self) -> int:
        """Number of connected components."""
        return int(self.components.max()) + 1

    @property
    def is_forest(self) -> bool:
        """Whether there are no loops: sums over the states are then exact by message passing."""
        return self.n_edges == self.n_nodes - self.n_components

    @functools.cached_property
    def signs(self) -> np.ndarray | None:
        """Units (n,) of bool to flip so that all couplings are positive; None if there are none.

        The graph of two copies of each unit, the second one flipped, falls in two just where the
        signs are balanced (Harary, 1953, Michigan Mathematical Journal 2).
        """
        n, (i, j) = self.n_nodes, self.edges
        crossed = np.where(self.couplings < 0, n, 0)
        lifted = np.stack([np.r_[i, i + n], np.r_[j + crossed, j + n - crossed]])
        label = connected_components(adjacency(2 * n, lifted), directed=False)[1]
        if (label[:n] == label[n:]).any():
            return None
        return label[:n] > label[n:]

    @property
    def scale(self) -> float:
        """Size of the terms that log Z is summed from, for the allowance for rounding."""
        return (
            1 + abs(self.offset) + float(np.abs(self.fields).sum() + np.abs(self.couplings).sum())
        )

    def sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Sums over each unit's edges, (n,), of what these hold for their two ends, (m,) each."""
        (i, j), n = self.edges, self.n_nodes
        return np.bincount(i, first, n) + np.bincount(j, second, n)

    def log_weight(self, x: np.ndarray) -> np.ndarray:
        """Unnormalised log-probability of rows (r, n) of zeros and ones, (r,)."""
        i, j = self.edges
        pairs = sp.csr_array((self.couplings, (i, j)), shape=(self.n_nodes, self.n_nodes))
        return self.offset + x @ self.fields + ((x @ pairs) * x).sum(1)

    def flipped(self, units: np.ndarray) -> PairwiseGraph:
        """The same distribution with x_i renamed 1 - x_i where `units` (n,) is true."""
        s, (i, j), J = units.astype(float), self.edges, self.couplings
        turn = 1 - 2 * s
        fields = turn * (self.fields + self.sums(J * s[j], J * s[i]))
        offset = self.offset + float(self.fields @ s + (J * s[i]) @ s[j])
        return PairwiseGraph(offset, fields, self.edges, J * turn[i] * turn[j])


def adjacency(n: int, edges: np.ndarray) -> sp.csr_array:
    """Sparse matrix (n, n) with a one for each edge, in one direction."""
    return sp.csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n))


def exactly(value: float) -> LogPartition:
    """The result of a method that happens to be exact on its graph."""
    return LogPartition(value, 0.0, value, value, "exact", math.inf)


# ------------------------------------------------------------------------------
# From energies
# ------------------------------------------------------------------------------


class PairwiseMethod(PartitionEstimator):
    """A way to log Z that takes pairwise models of binary units alone."""

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy that is no pairwise one of binary units."""
        super().check(energy)
        check_pairwise(self, energy)


def check_pairwise(method: Any, energy: Energy) -> None:
    """Raise `TypeError` for an energy that is no pairwise one of binary units."""
    name = type(method).__name__
    if isinstance(energy, Tilted):
        if energy.field.ndim != 1:
            raise ValueError(
                f"{name} takes one model at a time, but the field holds one for each row: tilt the "
                "energy by a field of shape (d,)."
            )
        return check_pairwise(method, energy.energy)
    if isinstance(energy, TemperedCorrection):
        return check_pairwise(method, energy.energy)
    if isinstance(energy, BernoulliRBM):
        if not isinstance(energy.structure, ChowLiuTree | None):
            raise TypeError(
                f"{name} takes machines whose base couples pairs of columns, independent ones or "
                f"a ChowLiuTree, not a {type(energy.structure).__name__}: use AIS."
            )
    elif not isinstance(energy, PairwiseEnergy):
        raise TypeError(
            f"{name} takes pairwise energies of binary units, BoltzmannMachine and BernoulliRBM, "
            f"not {type(energy).__name__}. Use AIS for other bipartite energies, and Exact where "
            "the states can be enumerated."
        )


def pairwise_graph(energy: Energy) -> PairwiseGraph:
    """The graph of a pairwise energy; of the joint of both layers where it is bipartite.

    Hidden units follow the visible ones. log Z is that of the energy.
    """
    with torch.no_grad(), np.errstate(invalid="ignore"):
        graph = _graph(energy)
    parts = (graph.offset, graph.fields, graph.couplings)
    if not all(np.isfinite(part).all() for part in parts):
        raise FloatingPointError(
            "The energy has parameters that are not finite, so it has no log Z: train again with a "
            "smaller learning rate."
        )
    return graph


def _graph(energy: Any) -> PairwiseGraph:
    if isinstance(energy, Tilted):
        graph = _scaled(_graph(energy.energy), energy.beta)
        fields = graph.fields.copy()
        fields[: len(energy.field)] += _array(energy.field)
        return replace(graph, fields=fields)
    if isinstance(energy, TemperedCorrection):
        model = energy.energy
        return _with_base(_scaled(_rbm(model), energy.beta), model.structure)
    if isinstance(energy, BernoulliRBM):
        return _with_base(_rbm(energy), energy.structure)
    coupling, bias = _array(energy.coupling), _array(energy.bias)
    edges = np.stack(np.triu(coupling, 1).nonzero())  # NaN is not zero
    offset = -float(energy(torch.zeros_like(energy.bias)[None]))
    return PairwiseGraph(offset, bias, edges, coupling[edges[0], edges[1]])


def _rbm(energy: BernoulliRBM) -> PairwiseGraph:
    """Both layers of a machine, without its base."""
    weight, b, c = (_array(parameter) for parameter in energy.tensors)
    hidden, visible = weight.nonzero()
    edges = np.stack([visible, hidden + len(b)])
    return PairwiseGraph(0.0, np.r_[b, c], edges, weight[hidden, visible])


def _with_base(graph: PairwiseGraph, base: Distribution | None) -> PairwiseGraph:
    """Add log q(x) of a tree over the first units, whose pairs the graph does not couple yet."""
    if base is None:
        return graph
    assert isinstance(base, ChowLiuTree)  # check_pairwise has looked
    off, on = _array(base.logits).T
    parent = base.parent.cpu().numpy()
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    fields = graph.fields.copy()
    fields[: len(off)] += off
    change = np.logaddexp(0, off) - np.logaddexp(0, on)
    np.add.at(fields, above, change[child])
    coupling = (on - off)[child]
    edges = np.stack([np.minimum(child, above), np.maximum(child, above)])[:, coupling != 0]
    return PairwiseGraph(
        graph.offset - float(np.logaddexp(0, off).sum()),
        fields,
        np.concatenate([graph.edges, edges], 1),
        np.r_[graph.couplings, coupling[coupling != 0]],
    )


def _scaled(graph: PairwiseGraph, beta: float) -> PairwiseGraph:
    """The distribution at an inverse temperature."""
    if beta == 0:
        none = np.zeros((2, 0), dtype=np.int64)
        return PairwiseGraph(0.0, np.zeros(graph.n_nodes), none, np.zeros(0))
    return PairwiseGraph(
        beta * graph.offset, beta * graph.fields, graph.edges, beta * graph.couplings
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


# Log-odds beyond this change F by less than rounding does: exp(-40) is 4e-18.
LIMIT = 40.0
TINY = 1e-300  # what a logarithm may see of a probability that underflowed
# Newton's steps: the most that log-odds may change, and where a search along a step ends.
LONGEST, SHORTEST = 4.0, 1e-3


class Pairs(NamedTuple):
    """Tables of the edges, each over the product of its margins; (m,) each.

    The second unit is renamed 1 - x where the coupling is attractive: all odds ratios are below 1.
    """

    margins: tuple[np.ndarray, ...]  # P(x_i = 1), P(x_i = 0), P(x_j = 1), P(x_j = 0)
    l00: np.ndarray  # log P(0, 0) / (P(0) P(0))
    l10: np.ndarray
    l01: np.ndarray
    l11: np.ndarray
    weight: np.ndarray  # of the mutual information in F

    @property
    def information(self) -> np.ndarray:
        """Mutual information, in nats."""
        one_i, zero_i, one_j, _ = self.margins
        k = self.l00 + self.l11 - self.l10 - self.l01
        found = (zero_i - one_j) * self.l00 + one_i * self.l10 + one_j * self.l01
        return np.maximum(found + k * one_i * one_j * np.exp(self.l11), 0)


class Beliefs(NamedTuple):
    """F at some log-odds, its gradient with respect to q, and what they come from."""

    value: float
    gradient: np.ndarray  # (n,)
    q: np.ndarray  # (n,) probabilities of one
    p: np.ndarray  # (n,) and of zero
    entropies: np.ndarray  # (n,) weights of the units' entropies
    pairs: Pairs

    @property
    def ceiling(self) -> float:
        """Bound on a concave F: the largest value of its tangent plane for q in the unit cube."""
        g = self.gradient
        return self.value + float(np.maximum(g * self.p, -g * self.q).sum())

    @property
    def gradient_norm(self) -> float:
        """Sum of the derivatives' sizes with respect to log-odds: 0 where F is stationary."""
        return float((np.abs(self.gradient) * self.q * self.p).sum())


def free_energy(
    graph: PairwiseGraph, u: np.ndarray, rho: np.ndarray, smoothing: np.ndarray | float = 0.0
) -> Beliefs:
    r"""F and its gradient at log-odds u (n,) within :data:`LIMIT`, for edge weights rho (m,).

    `smoothing` (m,) adds that many times each pair's entropy, which keeps F concave, raises it, and
    rounds its edges off where couplings are strong and rho small.

    Renaming :math:`x_j` where :math:`J_{ij} > 0`, every coupling is repulsive, :math:`k = -|J| /
    \rho`. The pair's best covariance solves the quadratic of Welling and Teh (2001), "Belief
    optimization for binary networks: a stable alternative to loopy belief propagation", UAI; here
    written so that no terms of opposite sign are added, whatever k and q. Only the ratios of the
    pair's table to the product of its margins enter: with :math:`l_{ab} = \log p_{ab} / (p_a p_b)`,
    the edge's term is

    .. math:: -\rho \{ (1 - q_i - q_j) l_{00} + q_i l_{10} + q_j l_{01} \},

    and by the envelope theorem its derivatives are :math:`\rho (l_{00} - l_{10})` for
    :math:`q_i` and :math:`\rho (l_{00} - l_{01})` for :math:`q_j`.
    """
    (i, j), J = graph.edges, graph.couplings
    q, p = expit(u), expit(-u)
    attractive, weight = J > 0, rho + smoothing
    one_j, zero_j = np.where(attractive, p[j], q[j]), np.where(attractive, q[j], p[j])
    pairs = _tables(-np.abs(J) / weight, (q[i], p[i], one_j, zero_j), weight)
    l00, l10, l01 = pairs.l00, pairs.l10, pairs.l01
    edges = -weight * ((p[i] - one_j) * l00 + q[i] * l10 + one_j * l01)
    toward_i, toward_j = weight * (l00 - l10), weight * (l00 - l01)
    # J x_i x_j = J x_i - J x_i (1 - x_j)
    edges += np.where(attractive, J * q[i], 0)
    toward_i += np.where(attractive, J, 0)
    toward_j *= np.where(attractive, -1, 1)
    spread = np.broadcast_to(smoothing, J.shape)
    entropies = 1 + graph.sums(spread, spread)
    gradient = graph.fields - entropies * u + graph.sums(toward_i, toward_j)
    value = graph.offset + graph.fields @ q + edges.sum()
    value += entropies @ (np.logaddexp(0, u) - q * u)
    return Beliefs(float(value), gradient, q, p, entropies, pairs)


def _tables(k: np.ndarray, margins: tuple[np.ndarray, ...], weight: np.ndarray) -> Pairs:
    """Pairs of the odds ratio exp(k), k < 0, with given margins."""
    one_i, zero_i, one_j, zero_j = margins
    e, a = np.exp(k), -np.expm1(k)
    both, neither = one_i * one_j, zero_i * zero_j
    first, second = one_i * zero_j, zero_i * one_j
    e_mixed = e * (first + second)
    more = zero_i - one_j  # neither - both
    root = np.sqrt(
        more**2 + 4 * both * neither * e * (2 - e) + (2 * (both + neither) + e_mixed) * e_mixed
    )
    norm = both + neither + e_mixed + root
    l10, l01 = np.log1p(2 * a * second / norm), np.log1p(2 * a * first / norm)
    # Of both and neither the likelier one; the other follows from the odds ratio.
    rest = np.abs(more) + 2 * e * np.minimum(both, neither) + e_mixed + root
    likely = np.log(np.maximum(rest, TINY) / norm)
    unlikely = k + l10 + l01 - likely
    l00, l11 = np.where(more >= 0, likely, unlikely), np.where(more >= 0, unlikely, likely)
    return Pairs(margins, l00, l10, l01, l11, weight)


def curvature(graph: PairwiseGraph, here: Beliefs) -> np.ndarray:
    r"""Minus the Hessian of F with respect to q, times :math:`\sqrt{q_i p_i q_j p_j}`, (n, n).

    The pairs' part is that of Weller and Jebara (2013), "Bethe bounds and approximating the global
    optimum", AISTATS.
    """
    (i, j), n, pairs = graph.edges, graph.n_nodes, here.pairs
    one_i, zero_i, one_j, zero_j = pairs.margins
    both, neither = one_i * one_j * np.exp(pairs.l11), zero_i * zero_j * np.exp(pairs.l00)
    first, second = one_i * zero_j * np.exp(pairs.l10), zero_i * one_j * np.exp(pairs.l01)
    spread = both * first * (second + neither) + second * neither * (both + first)
    squared = one_i * zero_i * one_j * zero_j
    ratio = squared / np.maximum(spread, TINY)
    covariance = (both * neither - first * second) * np.where(graph.couplings > 0, -1, 1)
    matrix = np.zeros((n, n))
    matrix[i, j] = matrix[j, i] = -pairs.weight * covariance / np.sqrt(squared) * ratio
    own = pairs.weight * (ratio - 1)
    matrix[np.arange(n), np.arange(n)] = here.entropies + graph.sums(own, own)
    return matrix


def newton(
    graph: PairwiseGraph,
    u: np.ndarray,
    rho: np.ndarray,
    smoothing: np.ndarray,
    max_iter: int,
    tol: float,
) -> tuple[np.ndarray, float]:
    """Log-odds near the maximum of a concave F, and the lowest ceiling met on the way there.

    A step is Newton's for q, taken in log-odds: of independent units it finds the maximum at once.
    """
    here = free_energy(graph, u, rho, smoothing)
    lowest = here.ceiling
    for _ in range(max_iter):
        if here.ceiling - here.value <= tol:
            break
        root = np.sqrt(here.q * here.p)
        uphill = here.gradient * root
        matrix = curvature(graph, here)
        try:
            move = cho_solve(cho_factor(matrix, overwrite_a=True, check_finite=False), uphill)
        except np.linalg.LinAlgError:  # beyond rounding
            move = uphill / here.entropies
        rise, move = uphill @ move, move / root
        size = min(1.0, LONGEST / np.abs(move).max())
        while size > SHORTEST:
            v = np.clip(u + size * move, -LIMIT, LIMIT)
            there = free_energy(graph, v, rho, smoothing)
            if there.value >= here.value + 1e-4 * size * rise:
                break
            size /= 2
        else:
            break
        u, here = v, there
        lowest = min(lowest, here.ceiling)
    return u, lowest


def climb(
    graph: PairwiseGraph,
    u: np.ndarray,
    rho: np.ndarray,
    smoothing: np.ndarray | float = 0.0,
    max_iter: int = 1000,
) -> np.ndarray:
    """Log-odds (n,) of a local maximum of F near u, by L-BFGS."""

    def loss(v: np.ndarray) -> tuple[float, np.ndarray]:
        here = free_energy(graph, v, rho, smoothing)
        return -here.value, -here.gradient * here.q * here.p

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter + 20, "ftol": 0.0, "gtol": 1e-12}
    found = minimize(
        loss,
        np.clip(u, -LIMIT, LIMIT),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-LIMIT, LIMIT)] * len(u),
        options=options,
    )
    return found.x


def propagate(
    graph: PairwiseGraph, start: np.ndarray, damping: float, max_iter: int, tol: float
) -> np.ndarray:
    r"""Log-odds (n,) after loopy belief propagation from neighbours' probabilities `start` (n,).

    Unit i tells j :math:`\zeta(J + u) - \zeta(u)`, with u its log-odds without what j told it and
    :math:`\zeta(u) = \log(1 + e^u)`. Stops when no log-odds changes by more than `tol`; on a tree
    that is after as many undamped steps as it has edges between its farthest units.
    """
    i, j = graph.edges
    source, target = np.r_[i, j], np.r_[j, i]
    J = np.r_[graph.couplings, graph.couplings]
    m, n = graph.n_edges, graph.n_nodes
    message = J * start[source]
    u = graph.fields + np.bincount(target, message, n)
    for _ in range(max_iter):
        back = np.concatenate([message[m:], message[:m]])  # what the target told the source
        without = u[source] - back
        new = np.logaddexp(0, J + without) - np.logaddexp(0, without)
        message += (1 - damping) * (new - message)
        old, u = u, graph.fields + np.bincount(target, message, n)
        if np.abs(u - old).max() <= tol * (1 - damping):
            break
    return u


def forest_log_z(graph: PairwiseGraph) -> float:
    """Exact log Z of a graph without loops."""
    u = propagate(graph, np.full(graph.n_nodes, 0.5), 0.0, graph.n_nodes + 1, 0.0)
    return free_energy(graph, np.clip(u, -LIMIT, LIMIT), np.ones(graph.n_edges)).value
