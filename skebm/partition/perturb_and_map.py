"""Upper bounds on log Z from most probable rows under random fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.partition._min_cut import by_enumeration, by_min_cut, by_relaxation
from skebm.partition.graph import PairwiseGraph, PairwiseMethod, pairwise_graph
from skebm.partition.support import generator_for

# States times perturbations that are enumerated: seconds.
MAX_TERMS = 2.0**27
SOLVERS = {
    "enumeration": by_enumeration,
    "min-cut": by_min_cut,
    "relaxation": by_relaxation,
}


class PerturbAndMAP(PairwiseMethod):
    r"""Upper bound on log Z of pairwise binary models from most probable rows under random fields.

    With i.i.d. Gumbel variables of mean zero, one for each unit and state,

    .. math::
        \log Z \le \operatorname{E} \max_x \Bigl\{ -E(x) + \sum_i \gamma_i(x_i) \Bigr\} .

    Each maximum is an optimisation and needs no Markov chain, which is why this takes strong
    couplings that samplers get stuck in. An RBM is the model of both its layers.

    Direction: ``value``, a mean over perturbations, estimates without bias a number that is **above
    log Z**; ``std_error`` is about that number, not about log Z, and more samples do not bring the
    value nearer to log Z. ``upper`` is the end of the one-sided Student interval for it: an upper
    bound that fails with probability about `delta` at most (``bound_kind`` "probabilistic"; the
    maxima are taken to be near normal). There is no lower bound (``nan``). Accumulates in float64.

    Parameters
    ----------
    n_samples : int, default=100
        Perturbations, at least 2.
    solver : {"auto", "enumeration", "min-cut", "relaxation"}, default="auto"
        How the maxima are found. "enumeration": exactly, over all states. "min-cut": exactly, for
        couplings that are attractive, perhaps after renaming some units :math:`1 - x_i`.
        "relaxation": from above, by a linear program over margins of units and pairs, for any
        couplings; the bound then holds all the same and is looser. A heuristic maximum, from
        below, would void it. "auto" takes the first that can.
    delta : float in (0, 1), default=0.05
        Probability with which the bound may fail.

    Notes
    -----
    The bound is exact for independent units and gets loose with the couplings: units that move
    together as one still have a Gumbel variable each, and the maximum collects them all.

    The relaxation is solved by one minimum cut in a graph with two nodes for each unit (roof
    duality). Cuts round capacities such that a maximum is never too small; it can be too large by
    about 1e-9 of all fields for each unit and pair.

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
        if self.n_samples < 2:
            raise ValueError(f"n_samples must be at least 2, got {self.n_samples!r}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta!r}.")
        graph = pairwise_graph(energy)
        solve = SOLVERS[self._solver(graph)]
        gumbel = _gumbel((2, self.n_samples, graph.n_nodes), generator_for(generator))
        # A unit's state 0 has the first one, its state 1 the second.
        maxima = gumbel[0].sum(1) + solve(graph, gumbel[1] - gumbel[0])
        value = float(maxima.mean())
        std_error = float(maxima.std(ddof=1)) / math.sqrt(self.n_samples)
        upper = value + float(student.ppf(1 - self.delta, self.n_samples - 1)) * std_error
        why = "perturbations bound log Z from above only"
        return LogPartition(
            value, std_error, math.nan, upper, "probabilistic", math.nan, reason=why
        )

    def _solver(self, graph: PairwiseGraph) -> str:
        """The solver to use, or `ValueError` where the one asked for does not apply."""
        terms = 2.0 ** min(graph.n_nodes, 1000) * self.n_samples
        if self.solver == "auto":
            if terms <= MAX_TERMS:
                return "enumeration"
            return "relaxation" if graph.signs is None else "min-cut"
        if self.solver not in SOLVERS:
            raise ValueError(
                f'solver must be "auto" or one of {list(SOLVERS)}, not {self.solver!r}.'
            )
        if self.solver == "enumeration" and terms > MAX_TERMS:
            raise ValueError(
                f"Enumeration would visit {terms:.2g} terms, {self.n_samples} times all states of "
                f'{graph.n_nodes} units, more than {MAX_TERMS:.2g}: use solver="auto".'
            )
        if self.solver == "min-cut" and graph.signs is None:
            raise ValueError(
                "min-cut needs couplings that are all positive, perhaps after renaming some units "
                '1 - x, and these are frustrated: use solver="relaxation".'
            )
        return self.solver


def _gumbel(shape: tuple[int, ...], generator: torch.Generator) -> np.ndarray:
    """Gumbel variables of mean zero, in float64."""
    u = torch.empty(shape, dtype=torch.float64, device=generator.device)
    # Minus the logarithm of an exponential variable, which cannot be zero here.
    u.exponential_(generator=generator).clamp_(min=torch.finfo(torch.float64).tiny)
    return -np.log(u.cpu().numpy()) - np.euler_gamma
