"""log Z by summing over all states."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, Domain, Energy, LogPartition, PartitionEstimator, Sampler


def log_z_cost(energy: Energy) -> float:
    """Terms that :class:`Exact` visits: states, times the units of the layer summed out."""
    sides = _sides(energy)
    return min(cost for cost, _, _ in sides)


def _sides(energy: Energy) -> list[tuple[float, Domain, Callable[[Tensor], Tensor]]]:
    """Ways to enumerate: (cost, domain of the states, energy of a state)."""
    if not isinstance(energy, BipartiteEnergy):
        return [(energy.domain.n_states * energy.domain.n_columns, energy.domain, energy)]
    visible, hidden = energy.domain, energy.hidden_domain
    return [
        (visible.n_states * hidden.n_columns, visible, energy),
        (hidden.n_states * visible.n_columns, hidden, energy.hidden_energy),
    ]


class Exact(PartitionEstimator):
    r"""Exact log Z by enumeration, of the cheaper layer where the energy is bipartite.

    Direction: exact, up to rounding of the energies; the sum is accumulated in float64.

    Parameters
    ----------
    max_cost : float, default=1e9
        Refuse more terms (states times units of the other layer) than this.

    References
    ----------
    Tomczak (2022), "Deep Generative Modeling", eq. 6.41.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import Exact
    >>> energy = BernoulliRBM(4, 2, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> round(Exact().estimate(energy).value, 4)  # 6 log 2
    4.1589
    """

    def __init__(self, max_cost: float = 1e9):
        self.max_cost = max_cost

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Sum over all states; needs nothing but the energy."""
        cost, domain, function = min(_sides(energy), key=lambda side: side[0])
        if cost > self.max_cost:
            raise ValueError(
                f"Exact log Z would visit {cost:.2g} terms, more than max_cost={self.max_cost:.2g}."
                " Use AISBracket, or fewer units."
            )
        like = next(energy.parameters(), torch.empty(0, dtype=torch.float64))
        other = max(cost / domain.n_states, domain.n_columns, 1)
        chunk = max(1, int(4e6 / other))  # 16 MB of float32 at a time
        total = torch.tensor(-math.inf, dtype=torch.float64, device=like.device)
        with torch.no_grad():
            for states in domain.enumerate(chunk, dtype=like.dtype, device=like.device):
                part = torch.logsumexp(-function(states).double(), 0)
                total = torch.logaddexp(total, part)
        value = float(total)
        return LogPartition(value, 0.0, value, value, "exact", math.inf)
