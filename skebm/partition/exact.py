"""log Z by enumeration of all states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, Domain, Energy, LogPartition, PartitionEstimator, Sampler

# Terms at a time: 16 MB of float32.
MOST_TERMS = 4_000_000


class Side(NamedTuple):
    """What an enumeration sums over: number of terms, domain of the states, energy of a state."""

    cost: float
    domain: Domain
    function: Callable[[Tensor], Tensor]


def cheaper_side(energy: Energy) -> Side:
    """The cheaper layer of a bipartite energy to enumerate; the rows of any other energy."""
    visible = energy.domain
    if not isinstance(energy, BipartiteEnergy):
        return Side(visible.n_states * visible.n_columns, visible, energy)
    hidden = energy.hidden_domain
    return min(
        Side(visible.n_states * hidden.n_columns, visible, energy),
        Side(hidden.n_states * energy.terms_of_hidden_state, hidden, energy.hidden_energy),
        key=lambda side: side.cost,
    )


def log_z_cost(energy: Energy) -> float:
    """Number of terms that :class:`Exact` sums: states times units of the layer summed out."""
    return cheaper_side(energy).cost


class Exact(PartitionEstimator):
    r"""Exact log Z by enumeration, over the cheaper layer if the energy is bipartite.

    Direction: exact, up to rounding of the energies (``bound_kind`` "exact", ``std_error`` 0). Sums
    are accumulated in float64.

    Parameters
    ----------
    max_cost : float, default=1e9
        Largest number of terms (states times units of the other layer). An energy with more terms
        is refused.

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

    uses = ()

    def __init__(self, max_cost: float = 1e9):
        self.max_cost = max_cost

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` if `energy` is no `Energy`, `ValueError` if it has too many states."""
        super().check(energy)
        cost, domain, _ = cheaper_side(energy)
        if math.isinf(domain.log_n_states):
            raise ValueError(
                f"{domain} has too many states to enumerate: use AISBracket, or AIS without rows."
            )
        if cost > self.max_cost:
            raise ValueError(
                f"Exact log Z would sum {cost:.2g} terms, more than max_cost={self.max_cost:.2g}. "
                "Use AISBracket, or fewer units."
            )

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Sum over all states; needs nothing but the energy."""
        self.check(energy)
        cost, domain, function = cheaper_side(energy)
        template = next(energy.parameters(), torch.empty(0, dtype=torch.float64))
        width = max(cost / domain.n_states, domain.n_columns, 1)
        chunk = max(1, int(MOST_TERMS / width))
        total = torch.tensor(-math.inf, dtype=torch.float64, device=template.device)
        with torch.no_grad():
            for states in domain.enumerate(chunk, dtype=template.dtype, device=template.device):
                part = torch.logsumexp(-function(states).double(), 0)
                total = torch.logaddexp(total, part)
        value = float(total)
        reason = "" if math.isfinite(value) else "energies of some states are not finite"
        return LogPartition(value, 0.0, value, value, "exact", math.inf, reason=reason)


def exact_draws(energy: BipartiteEnergy, n: int, generator: torch.Generator) -> Tensor:
    """Independent exact draws of a bipartite energy, (n, d).

    The layer that is cheaper to enumerate is drawn first, then the other layer given it.
    """
    _, domain, function = cheaper_side(energy)
    template = next(energy.parameters())
    kind: dict[str, Any] = {"dtype": template.dtype, "device": template.device}
    states = domain.states(0, round(domain.n_states), **kind)
    cumulative = torch.softmax(-function(states).double(), 0).cumsum(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=kind["device"])
    pick = torch.searchsorted(cumulative, u * cumulative[-1]).clamp_(max=len(states) - 1)
    if domain is energy.domain:
        return states[pick]
    size = max(1, MOST_TERMS // energy.terms_of_hidden_state)
    return torch.cat([energy.visible(states[p]).sample(generator) for p in pick.split(size)])
