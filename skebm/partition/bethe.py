"""Bethe's approximation of log Z: belief propagation, and what makes it converge."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.base.sampler import whole_number
from skebm.partition.checks import generator_for
from skebm.partition.graph import (
    FRUSTRATED,
    PairwiseGraph,
    PairwiseMethod,
    climb,
    exactly,
    forest_log_z,
    free_energy,
    pairwise_graph,
    propagate,
)

ROUNDING = 1e-12  # allowance, relative to the sum of the terms' sizes


class Bethe(PairwiseMethod):
    r"""Bethe's approximation of log Z of pairwise binary models, by loopy belief propagation.

    The largest value found of the Bethe free energy, which counts each unit and each coupled pair
    as if the model had no loops:

    .. math::
        \log Z_B = \max_{\mu} \Bigl\{ \langle \theta, \mu \rangle
            + \sum_i H(\mu_i) - \sum_{(i, j)} I(\mu_{ij}) \Bigr\}

    over margins of units and pairs that fit together. Belief propagation from several starts comes
    near its maxima, and L-BFGS climbs from there, which converges where messages oscillate. An RBM
    is the model of both its layers.

    Direction: where the couplings are **attractive**, all positive once some units are renamed
    :math:`1 - x_i`, ``lower`` is a **lower bound that holds for certain** (``bound_kind``
    "exact"), converged or not. Elsewhere the value can lie on either side of log Z, and there is no
    bound (``nan``, "heuristic"; ``reason`` says why). There is no upper bound. Exact where the
    graph has no loops. The error is not one of sampling: ``std_error`` is ``nan`` unless exact.
    Computes in float64.

    Parameters
    ----------
    damping : float in [0, 1), default=0.5
        Share of the old message in a new one.
    max_iter : int, default=200
        Rounds of messages at most, and up to ten times as many steps of L-BFGS, for each start.
    tol : float, default=1e-3
        Messages end when no log-odds changes by more than this. Warns when at the value found the
        derivatives with respect to all log-odds sum to more.
    n_starts : int, default=3
        Starts: messages of undecided units; where the couplings are attractive, of units that all
        agree, both ways; then random ones. Below a phase transition the maximum is unique; beyond
        it there are several.

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
        if not 0 <= self.damping < 1:
            raise ValueError(f"damping must be in [0, 1), got {self.damping!r}.")
        graph = pairwise_graph(energy)
        if graph.is_forest:
            return exactly(forest_log_z(graph))
        ones = np.ones(graph.n_edges)
        found = []
        for start in self._starts(graph, generator):
            u = propagate(graph, start, self.damping, self.max_iter, self.tol)
            u = climb(graph, u, ones, max_iter=10 * self.max_iter)
            found.append(free_energy(graph, u, ones))
        best = max(found, key=lambda beliefs: beliefs.value)
        if best.gradient_norm > self.tol:
            warnings.warn(
                f"The Bethe free energy has not converged: derivatives sum to "
                f"{best.gradient_norm:.2g}, more than tol={self.tol:g}. Use more max_iter.",
                ConvergenceWarning,
                stacklevel=2,
            )
        value = best.value
        if graph.signs is None:
            return LogPartition(
                value, math.nan, math.nan, math.nan, "heuristic", math.nan, reason=FRUSTRATED
            )
        lower = value - ROUNDING * graph.scale
        why = "Bethe's approximation bounds log Z from below only"
        return LogPartition(value, math.nan, lower, math.nan, "exact", math.nan, reason=why)

    def _starts(
        self, graph: PairwiseGraph, generator: torch.Generator | None
    ) -> Iterator[np.ndarray]:
        """Probabilities of the units that first messages come from, (n,) each."""
        n, signs = graph.n_nodes, graph.signs
        fixed = [np.full(n, 0.5)]
        if signs is not None:
            fixed += [signs.astype(float), 1.0 - signs]
        yield from fixed[: self.n_starts]
        generator = generator_for(generator)
        for _ in range(self.n_starts - len(fixed)):
            u = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
            yield u.cpu().numpy()
