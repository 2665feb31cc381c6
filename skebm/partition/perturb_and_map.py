"""Upper bounds on log Z by perturb-and-MAP: most probable states under random fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from scipy.stats import t as student
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.partition.checks import generator_for
from skebm.partition.graph import PairwiseEstimator, PairwiseGraph, pairwise_graph

# SciPy's flows have 32 bits, and a residual capacity is the sum of two flows.
MAX_FLOW = 2**30 - 1
CHUNK = 4_000_000  # states times rows held in memory at a time: 32 MB


class MinCut:
    r"""Maxima of :math:`h^\top x - \sum_{(i, j)} w_{ij} |x_i - x_j|` for one w >= 0 and many h.

    A minimum cut between a source, on the side of the ones, and a sink (Greig, Porteous and
    Seheult, 1989, JRSS B 51). Capacities are integers, rounded down: the value of a cut is never
    too large, so that the maximum is never too small, and too large by at most the resolution times
    the number of units and edges.

    Parameters
    ----------
    n : int
        Number of units.
    edges : ndarray of shape (2, m)
    weights : ndarray of shape (m,)
        w, at least zero.
    """

    def __init__(self, n: int, edges: np.ndarray, weights: np.ndarray):
        self.n, self.weights = n, weights
        (i, j), units = edges, np.arange(n)
        source, sink = np.full(n, n), np.full(n, n + 1)
        # Both directions of every edge, as SciPy would add missing ones at every call.
        row = np.concatenate([i, j, source, units, units, sink])
        column = np.concatenate([j, i, units, source, sink, units])
        self.shape = (n + 2, n + 2)
        self.order = np.lexsort((column, row))
        self.indices = column[self.order].astype(np.int32)
        self.indptr = np.searchsorted(row[self.order], np.arange(n + 3)).astype(np.int32)

    def maximise(self, fields: np.ndarray) -> tuple[float, np.ndarray]:
        """The maximum for h = `fields` (n,), and where its maximiser is one, (n,) of bool."""
        positive, negative = np.maximum(fields, 0), np.maximum(-fields, 0)
        # An upper bound on the flow, so capacities need not be larger.
        largest = min(positive.sum(), negative.sum())
        if largest == 0:
            return float(positive.sum()), fields > 0
        resolution = largest / MAX_FLOW

        def rounded(capacity: np.ndarray) -> np.ndarray:
            return np.floor(np.minimum(capacity, largest) / resolution).astype(np.int32)

        w, zeros = rounded(self.weights), np.zeros(self.n, dtype=np.int32)
        source, sink = rounded(positive), rounded(negative)
        capacity = np.concatenate([w, w, source, zeros, sink, zeros])[self.order]
        network = sp.csr_array((capacity, self.indices, self.indptr), shape=self.shape)
        result = maximum_flow(network, self.n, self.n + 1)
        residual = network - result.flow
        residual.eliminate_zeros()
        reachable = breadth_first_order(residual, self.n, return_predecessors=False)
        is_one = np.zeros(self.n + 2, dtype=bool)
        is_one[reachable] = True
        return float(positive.sum()) - result.flow_value * resolution, is_one[: self.n]


# ------------------------------------------------------------------------------
# Maxima over the states of a graph's log-weight plus fields: (r,) for fields (r, n)
# ------------------------------------------------------------------------------


def by_enumeration(graph: PairwiseGraph, fields: np.ndarray) -> np.ndarray:
    """Exact maxima by enumeration of all states."""
    n, maxima = graph.n_nodes, np.full(len(fields), -np.inf)
    chunk = max(1, CHUNK // max(len(fields), n))
    for start in range(0, 2**n, chunk):
        number = np.arange(start, min(start + chunk, 2**n))
        x = ((number[:, None] >> np.arange(n)) & 1).astype(float)
        score = x @ fields.T
        score += graph.log_weight(x)[:, None]
        np.maximum(maxima, score.max(0), out=maxima)
    return maxima


def by_min_cut(graph: PairwiseGraph, fields: np.ndarray) -> np.ndarray:
    """Exact maxima, rounded upwards, of a graph without frustration."""
    flips = graph.flips
    assert flips is not None
    attractive = graph.flipped(flips)
    J = attractive.couplings
    # J x_i x_j = J (x_i + x_j - |x_i - x_j|) / 2
    cut = MinCut(graph.n_nodes, graph.edges, J / 2)
    linear = attractive.fields + attractive.node_sums(J, J) / 2
    maxima = [cut.maximise(linear + row)[0] for row in fields * np.where(flips, -1, 1)]
    return attractive.offset + (fields * flips).sum(1) + maxima


def by_relaxation(graph: PairwiseGraph, fields: np.ndarray) -> np.ndarray:
    r"""Maxima of the linear relaxation, at or above the exact ones.

    The linear program :math:`\max \theta^\top q + \sum J \xi` over locally consistent
    probabilities of units and pairs. Roof duality: its value is the maximum over an attractive
    graph of twice as many units, x and y, with y in the place of 1 - x and half of each term.
    """
    (i, j), n, half = graph.edges, graph.n_nodes, graph.couplings / 2
    attractive = half > 0
    positive, negative = np.where(attractive, half, 0), np.where(attractive, 0, half)
    # x_i x_j as (x_i x_j + (1 - y_i)(1 - y_j)) / 2, or as (x_i (1 - y_j) + (1 - y_i) x_j) / 2
    to_x, to_y = graph.node_sums(negative, negative), graph.node_sums(positive, positive)
    cross = np.where(attractive, 0, n)
    edges = np.stack([np.r_[i, i + n], np.r_[j + cross, j + n - cross]])
    doubled = PairwiseGraph(
        graph.offset + float(graph.fields.sum() / 2 + positive.sum()),
        np.r_[graph.fields / 2 + to_x, -graph.fields / 2 - to_y],
        np.sort(edges, 0),
        np.abs(np.r_[half, half]),
    )
    return fields.sum(1) / 2 + by_min_cut(doubled, np.concatenate([fields, -fields], 1) / 2)


# States times perturbations up to which enumeration takes seconds.
MAX_TERMS = 2.0**27
SOLVERS = {
    "enumeration": by_enumeration,
    "min-cut": by_min_cut,
    "relaxation": by_relaxation,
}


class PerturbAndMAP(PairwiseEstimator):
    r"""Perturb-and-MAP upper bound on log Z of pairwise binary models.

    With i.i.d. Gumbel variables of mean zero, one for each unit and each of its two states,

    .. math::
        \log Z \le \operatorname{E} \max_x \Bigl\{ -E(x) + \sum_i \gamma_i(x_i) \Bigr\} .

    Each maximum is an optimisation problem and needs no Markov chain, so strong couplings, under
    which samplers do not mix, are no obstacle. An RBM is treated as the pairwise model of both its
    layers.

    Direction: ``value``, a mean over perturbations, is an unbiased estimate of the expectation
    above, which is an **upper bound on log Z**; ``std_error`` refers to this expectation, not to
    log Z, and more samples do not bring the value nearer to log Z. ``upper`` is the end of a
    one-sided Student interval for the expectation: an upper bound that fails with probability of
    about `delta` at most (``bound_kind`` "probabilistic"; the maxima are assumed to be about
    normal). There is no lower bound (``nan``). Accumulates in float64.

    Parameters
    ----------
    n_samples : int, default=100
        Perturbations, at least 2.
    solver : {"auto", "enumeration", "min-cut", "relaxation"}, default="auto"
        How the maxima are computed. "enumeration": exactly, over all states. "min-cut": exactly,
        for couplings that are attractive, possibly after some units are flipped to
        :math:`1 - x_i`. "relaxation": from above, by a linear program over marginals of units and
        pairs, for any couplings; the bound still holds and is looser. A heuristic maximum, from
        below, would invalidate it. "auto" is the first of these that applies.
    delta : float in (0, 1), default=0.05
        Probability with which the bound may fail.

    Notes
    -----
    The bound is tight for independent units and becomes looser with stronger couplings: units that
    are almost always equal still have a Gumbel variable each, and the maximum is over all of them.

    The relaxation is solved by one minimum cut in a graph with two nodes for each unit (roof
    duality). Capacities are rounded such that a maximum is never too small; it can be too large by
    about 1e-9 of the sum of all fields for each unit and pair.

    References
    ----------
    Papandreou and Yuille (2011), "Perturb-and-MAP random fields: using discrete optimization to
    learn and sample from energy models", ICCV.
    Hazan and Jaakkola (2012), "On the partition function and random maximum a-posteriori
    perturbations", ICML, corollary 1 (the bound).
    Boros and Hammer (2002), "Pseudo-Boolean optimization", Discrete Applied Mathematics 123
    (roof duality).

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.partition import Exact, PerturbAndMAP
    >>> energy = ising_grid(3, 3, coupling=0.3, periodic=False)
    >>> PerturbAndMAP().estimate(energy).upper > Exact().estimate(energy).value
    True
    """

    def __init__(self, n_samples: int = 100, solver: str = "auto", delta: float = 0.05):
        self.n_samples = n_samples
        self.solver = solver
        self.delta = delta

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Bound log Z from above; `generator` (default: seed 0) draws the perturbations."""
        self.check(energy)
        whole_number("n_samples", self.n_samples, 2)
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta!r}.")
        graph = pairwise_graph(energy)
        solve = SOLVERS[self._solver(graph)]
        n_numbers = 2 * self.n_samples * graph.n_nodes
        check_memory(f"n_samples={self.n_samples}", n_numbers, torch.float64)
        gumbel = _gumbel((2, self.n_samples, graph.n_nodes), generator_for(generator))
        # A unit's state 0 has the first one, its state 1 the second.
        maxima = gumbel[0].sum(1) + solve(graph, gumbel[1] - gumbel[0])
        value = float(maxima.mean())
        std_error = float(maxima.std(ddof=1)) / math.sqrt(self.n_samples)
        upper = value + float(student.ppf(1 - self.delta, self.n_samples - 1)) * std_error
        reason = "perturb-and-MAP bounds log Z from above only"
        return LogPartition(
            value, std_error, math.nan, upper, "probabilistic", math.nan, reason=reason
        )

    def _solver(self, graph: PairwiseGraph) -> str:
        """The solver to use; `ValueError` where the requested one does not apply."""
        terms = 2.0 ** min(graph.n_nodes, 1000) * self.n_samples
        if self.solver == "auto":
            if terms <= MAX_TERMS:
                return "enumeration"
            return "relaxation" if graph.flips is None else "min-cut"
        if self.solver not in SOLVERS:
            raise ValueError(
                f'solver must be "auto" or one of {list(SOLVERS)}, not {self.solver!r}.'
            )
        if self.solver == "enumeration" and terms > MAX_TERMS:
            raise ValueError(
                f"Enumeration would sum {terms:.2g} terms, {self.n_samples} times all states of "
                f'{graph.n_nodes} units, more than {MAX_TERMS:.2g}: use solver="auto".'
            )
        if self.solver == "min-cut" and graph.flips is None:
            raise ValueError(
                "min-cut needs couplings that are all positive, possibly after some units are "
                'flipped to 1 - x, and these are frustrated: use solver="relaxation".'
            )
        return self.solver


def _gumbel(shape: tuple[int, ...], generator: torch.Generator) -> np.ndarray:
    """Gumbel variables of mean zero, in float64."""
    u = torch.empty(shape, dtype=torch.float64, device=generator.device)
    # Minus the logarithm of an exponential variable, which is kept from zero.
    u.exponential_(generator=generator).clamp_(min=torch.finfo(torch.float64).tiny)
    return -np.log(u.cpu().numpy()) - np.euler_gamma
