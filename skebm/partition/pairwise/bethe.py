"""Bethe's approximation of log Z: belief propagation, then L-BFGS on the Bethe free energy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import Energy, LikelihoodWarning, LogPartition, Sampler
from skebm.base.graph import PairwiseGraph
from skebm.base.sampler import number_in, whole_number
from skebm.partition.checks import generator_for
from skebm.partition.pairwise.graph import (
    FRUSTRATED,
    PairwiseEstimator,
    belief_propagation,
    exact_result,
    forest_log_z,
    free_energy,
    maximise_lbfgs,
    pairwise_graph,
)

ROUNDING = 1e-12  # of the bound, relative to the sum of the absolute parameters


class Bethe(PairwiseEstimator):
    r"""Bethe's approximation of log Z of pairwise binary models, by loopy belief propagation.

    The estimate is the largest local maximum found of the (negative) Bethe free energy, in which
    the entropy is that of a model without loops:

    .. math::
        \log Z_B = \max_{\mu} \Bigl\{ \langle \theta, \mu \rangle
            + \sum_i H(\mu_i) - \sum_{(i, j)} I(\mu_{ij}) \Bigr\}

    over locally consistent marginals of units and pairs. Belief propagation from several starts
    approaches the maxima, and L-BFGS continues from there, which converges where messages
    oscillate. An RBM is treated as the pairwise model of both its layers.

    Direction: where the couplings are **attractive**, that is, all positive once some units are
    flipped to :math:`1 - x_i`, ``lower`` is a **certain lower bound** (``bound_kind`` "certain"),
    whether or not the search has converged. Elsewhere the value can lie on either side of log Z,
    and there is no bound (``nan``, "heuristic"; ``reason`` says why). There is no upper bound. If
    the graph has no loops, the value is exact. Otherwise its error is not a sampling error, so
    ``std_error`` is ``nan``. Computations are in float64.

    Parameters
    ----------
    damping : float in [0, 1), default=0.5
        Weight of the old message in a new one.
    max_iter : int, default=200
        Largest number of iterations of belief propagation for each start; L-BFGS gets up to ten
        times as many.
    tol : float, default=1e-3
        Belief propagation stops when no log-odds changes by more than this. A warning is issued if
        the 1-norm of the gradient with respect to the log-odds is larger at the maximum.
    n_starts : int, default=3
        Number of starts. The first messages are computed from probabilities of one half; then, if
        the couplings are attractive, from the two states that all couplings favour; then from
        random probabilities. With weak couplings the maximum is unique; beyond a phase transition
        there are several.

    References
    ----------
    Yedidia, Freeman and Weiss (2005), "Constructing free-energy approximations and generalized
    belief propagation algorithms", IEEE Transactions on Information Theory 51(7).
    Welling and Teh (2001), "Belief optimization for binary networks: a stable alternative to loopy
    belief propagation", UAI.
    Ruozzi (2012), "The Bethe partition function of log-supermodular graphical models", NeurIPS
    (the bound).

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.partition import Bethe, Exact
    >>> energy = ising_grid(3, 3, coupling=0.3, periodic=False)
    >>> estimate = Bethe().estimate(energy)
    >>> 0 < Exact().estimate(energy).value - estimate.lower < 0.1
    True
    """

    def __init__(
        self, damping: float = 0.5, max_iter: int = 200, tol: float = 1e-3, n_starts: int = 3
    ):
        self.damping = damping
        self.max_iter = max_iter
        self.tol = tol
        self.n_starts = n_starts

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Approximate log Z; `generator` (default: seed 0) draws random starts."""
        self.check(energy)
        whole_number("n_starts", self.n_starts, 1)
        whole_number("max_iter", self.max_iter, 0)
        number_in("damping", self.damping, "[0, 1)")
        graph = pairwise_graph(energy)
        if graph.is_forest:
            return exact_result(forest_log_z(graph))
        ones = np.ones(graph.n_edges)
        maxima = []
        for start in self._starts(graph, generator):
            u = belief_propagation(graph, start, self.damping, self.max_iter, self.tol)
            u = maximise_lbfgs(graph, u, ones, max_iter=10 * self.max_iter)
            maxima.append(free_energy(graph, u, ones))
        best = max(maxima, key=lambda beliefs: beliefs.value)
        if best.gradient_norm > self.tol:
            warn(
                f"The Bethe free energy has not converged: its gradient has a norm of "
                f"{best.gradient_norm:.2g}, more than tol={self.tol:g}.",
                LikelihoodWarning,
                ("Increase max_iter.", "max_iter"),
            )
        value = best.value
        if graph.flips is None:
            return LogPartition(
                value, math.nan, math.nan, math.nan, "heuristic", math.nan, reason=FRUSTRATED
            )
        lower = value - ROUNDING * graph.scale
        reason = "Bethe's approximation bounds log Z from below only"
        return LogPartition(value, math.nan, lower, math.nan, "certain", math.nan, reason=reason)

    def _starts(
        self, graph: PairwiseGraph, generator: torch.Generator | None
    ) -> Iterator[np.ndarray]:
        """Probabilities (n,) of the units from which first messages are computed, per start."""
        n, flips = graph.n_nodes, graph.flips
        fixed = [np.full(n, 0.5)]
        if flips is not None:
            fixed += [flips.astype(float), 1.0 - flips]
        yield from fixed[: self.n_starts]
        generator = generator_for(generator)
        for _ in range(self.n_starts - len(fixed)):
            u = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
            yield u.cpu().numpy()
