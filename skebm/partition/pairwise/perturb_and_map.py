"""Upper bounds on log Z by perturb-and-MAP: most probable states under random fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.base.sampler import number_in, whole_number
from skebm.base.torchtools import check_memory
from skebm.partition.checks import generator_for
from skebm.partition.pairwise.graph import PairwiseEstimator, pairwise_graph
from skebm.samplers.perturbed_map import SOLVERS, choose_solver, gumbel


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
    one-sided Student interval for the expectation: an upper bound that fails with a probability of
    at most about `delta` (``bound_kind`` "probabilistic"; the maxima are assumed to be about
    normal). There is no lower bound (``nan``). Sums are accumulated in float64.

    Parameters
    ----------
    n_samples : int, default=100
        Perturbations, at least 2.
    solver : {"auto", "enumeration", "min-cut", "relaxation"}, default="auto"
        How the maxima are computed. "enumeration": exactly, over all states. "min-cut": exactly,
        for couplings that are attractive, possibly after some units are flipped to
        :math:`1 - x_i`. "relaxation": from above, by a linear program over marginals of units and
        pairs, for any couplings; the bound still holds and is looser. A heuristic search, whose
        value is at or below the maximum, would invalidate the bound. "auto" uses the first of these
        solvers that applies.
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
        number_in("delta", self.delta, "(0, 1)")
        graph = pairwise_graph(energy)
        solve = SOLVERS[choose_solver(self.solver, graph, self.n_samples)]
        n_numbers = 2 * self.n_samples * graph.n_nodes
        check_memory(f"n_samples={self.n_samples}", n_numbers, torch.float64)
        # A unit's state 0 has the first one, its state 1 the second.
        zero, one = gumbel((2, self.n_samples, graph.n_nodes), generator_for(generator))
        maxima = zero.sum(1) + solve(graph, one - zero).values
        value = float(maxima.mean())
        std_error = float(maxima.std(ddof=1)) / math.sqrt(self.n_samples)
        upper = value + float(student.ppf(1 - self.delta, self.n_samples - 1)) * std_error
        reason = "perturb-and-MAP bounds log Z from above only"
        return LogPartition(
            value, std_error, math.nan, upper, "probabilistic", math.nan, reason=reason
        )
