"""Which method finds log Z of an energy, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Domain,
    Energy,
    PartitionEstimator,
    Real,
    sampling,
)
from skebm.distributions import Distribution
from skebm.partition.annealed import AIS
from skebm.partition.bethe import Bethe
from skebm.partition.bracket import AISBracket
from skebm.partition.checks import (
    bounded,
    check_base,
    check_proper,
    default_base,
    generator_for,
    like,
    rows_of,
)
from skebm.partition.exact import Exact, cheaper_side
from skebm.partition.graph import pairwise_graph
from skebm.partition.importance import ImportanceSampling, log_weights

# Draws of a base that an energy corrects: to look whether it is near, and to weigh then.
N_PROBES, LEAST_DRAWS, MOST_DRAWS = 2000, 20_000, 100_000
LEAST_SHARE = 0.05


class Choice(NamedTuple):
    """A method, and in a sentence with the numbers why it was chosen."""

    method: PartitionEstimator
    reason: str

    def __str__(self) -> str:
        return f"{in_a_line(self.method)}: {self.reason}"


def choose(
    energy: Energy,
    *,
    base: Distribution | None = None,
    x: Tensor | Mapping[str, Tensor] | None = None,
    noise: Distribution | None = None,
    max_cost: float = 1e9,
) -> Choice:
    """Choose how log Z of an energy is found: what ``partition="auto"`` means.

    The first of these that is possible:

    1. :class:`Exact`, where the enumeration has at most `max_cost` terms;
    2. :class:`Bethe`, where pairs of binary units are coupled without loops: exact at any size;
    3. :class:`ImportanceSampling`, where the model was trained against a `noise`, which is then
       the ``base`` of the estimate;
    4. :class:`ImportanceSampling` of real rows from `base`, else from the one that the energy
       corrects or uniform over a box, where a twentieth of its draws carries the mean weight;
    5. :class:`AISBracket`, where there are two rows or more to start reverse annealing from;
    6. :class:`AIS`.

    The first two are exact. For the direction of the others see there.

    Parameters
    ----------
    energy : Energy
    base : Distribution or None, default=None
        Where annealing is to start; looked at whether it covers the model. None is the default one.
    x : Tensor of shape (n, ...), mapping of str to Tensor, or None, default=None
        Rows near the model, of one origin or of several by name.
    noise : Distribution or None, default=None
        What the model was trained to be told from.
    max_cost : float, default=1e9
        Terms (states times units of the other layer) up to which states are enumerated.

    Returns
    -------
    Choice
        Named tuple (method, reason); as a string it is one line with both.

    Raises
    ------
    ValueError
        Where the energy has no log Z, or `base` or `noise` leaves out a part of the model.

    References
    ----------
    Yedidia, Freeman and Weiss (2005), "Constructing free-energy approximations and generalized
    belief propagation algorithms", IEEE Transactions on Information Theory 51(7), section 3 (no
    loops: exact). Burda, Grosse and Salakhutdinov (2015), "Accurate and conservative estimates of
    MRF log-likelihood using reverse annealing", AISTATS (why both directions).

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.partition import choose
    >>> print(choose(ising_grid(4, 4, coupling=0.3)))
    Exact(): 2^16 states x 16 columns are 1e6 terms, at most 1e9
    >>> print(choose(ising_grid(1, 100, coupling=0.3, periodic=False)))
    Bethe(): 99 pairs of 100 units are coupled, without a loop, where it is exact
    >>> print(choose(ising_grid(10, 10, coupling=0.3)))
    AIS(): 2^100 states x 100 columns are 1.3e32 terms, above 1e9; no rows to anneal back from
    """
    check_proper(energy)
    rows = rows_of(energy, x)
    cost, size = _enumeration(energy)
    if cost <= max_cost:
        return Choice(Exact(max_cost), f"{size}, at most {_short(max_cost)}")
    if forest := _forest(energy):
        return Choice(Bethe(), forest)
    why_not = size if math.isinf(cost) else f"{size}, above {_short(max_cost)}"
    if noise is not None:
        check_base(energy, noise, x)
        name = type(noise).__name__
        return Choice(ImportanceSampling(), f"{why_not}; draws of the {name} it was trained on")
    if base is not None:
        check_base(energy, base, x)
    share, near = _near(energy, base)
    if share >= LEAST_SHARE:
        # As many draws as bring the error to half a hundredth, within reason.
        n = min(max(0.4 * MOST_DRAWS * (1 / share - 1), LEAST_DRAWS), MOST_DRAWS)
        return Choice(ImportanceSampling(round(n / 1e4) * 10_000), f"{why_not}; {near}")
    if rows is None:
        return Choice(AIS(), f"{why_not}; no rows to anneal back from")
    starts = x.values() if isinstance(x, Mapping) else [rows]
    if min(len(start) for start in starts) < 2:
        return Choice(AIS(), f"{why_not}; a single row is too little to anneal back from")
    return Choice(AISBracket(), f"{why_not}; {len(rows)} rows to anneal back from")


def _near(energy: Energy, base: Distribution | None) -> tuple[float, str]:
    """Share of draws of the base, or of the energy's own, that carry the mean weight; in words."""
    if not isinstance(energy.domain, Real):
        return 0.0, ""
    base = getattr(energy, "base", None) if base is None else base
    if base is None:
        if not bounded(energy.domain):
            return 0.0, ""
        base = default_base(energy)  # uniform
    kind = like(energy)
    base = base.to(kind.device, kind.dtype)
    with sampling(energy), torch.no_grad():
        draws = base.sample(N_PROBES, generator_for(None, kind.device))
        log_w = log_weights(energy, base, draws, N_PROBES)
    log_w = log_w - log_w.max()
    share = float(log_w.exp().sum() ** 2 / (2 * log_w).exp().sum()) / N_PROBES
    return share, f"{share:.0%} of the draws of {base!r} carry the mean"


def in_a_line(method: PartitionEstimator) -> str:
    """A method with the parameters that are not its defaults."""
    return " ".join(repr(method).split())


def _enumeration(energy: Energy) -> tuple[float, str]:
    """Terms of log Z, and the same in words."""
    side = cheaper_side(energy)
    if math.isinf(side.domain.log_n_states):
        return side.cost, "real numbers cannot be enumerated"
    layers, units = "states", f"{energy.domain.n_columns} columns"
    if isinstance(energy, BipartiteEnergy):
        layers = "visible states" if side.domain is energy.domain else "hidden states"
        if side.domain is energy.domain:
            units = f"{energy.hidden_domain.n_columns} hidden units"
    states = f"{_n_states(side.domain)} {layers} x {units}"
    if math.isinf(side.cost):
        return side.cost, f"{states} are too many terms"
    return side.cost, f"{states} are {_short(side.cost)} terms"


def _n_states(domain: Domain) -> str:
    if isinstance(domain, Binary):
        return f"2^{domain.n_columns}"
    if math.isinf(domain.n_states):
        return f"10^{domain.log_n_states / math.log(10):.0f}"
    return _short(domain.n_states)


def _forest(energy: Energy) -> str:
    """What a model without loops looks like; nothing for any other one."""
    try:
        Bethe().check(energy)
    except (TypeError, ValueError):
        return ""
    graph = pairwise_graph(energy)
    if not graph.is_forest:
        return ""
    return (
        f"{graph.n_edges} pairs of {graph.n_nodes} units are coupled, without a loop, where it is "
        "exact"
    )


def _short(number: float) -> str:
    """1e9 for 1000000000.0, and all digits of small numbers."""
    if number < 1e4:
        return f"{number:g}"
    return f"{number:.2g}".replace("e+0", "e").replace("e+", "e")
