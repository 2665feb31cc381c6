"""The choice of a method for log Z, and the reason for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Domain,
    Energy,
    LogPartition,
    PartitionEstimator,
    Real,
    sampling,
)
from skebm.base.domains import parts_of
from skebm.base.energy import check_energy
from skebm.distributions import ChowLiuTree, Distribution
from skebm.distributions.trees.tables import TreeOfTables
from skebm.partition.annealed import AIS
from skebm.partition.bracket import AISBracket
from skebm.partition.checks import (
    check_base,
    check_proper,
    default_base,
    generator_for,
    has_uniform,
    rows_of,
    template_for,
)
from skebm.partition.exact import Exact, cheaper_side
from skebm.partition.importance import ImportanceSampling, log_weights
from skebm.partition.pairwise.bethe import Bethe
from skebm.partition.pairwise.graph import pairwise_graph
from skebm.partition.quadrature import MAX_COLUMNS, Integral, Quadrature, integrate

# Draws of a base: to test whether it is near the model, and for the estimate itself.
N_TEST_DRAWS, MIN_DRAWS, MAX_DRAWS = 2000, 20_000, 100_000
# Effective sample size a draw from which importance sampling is chosen.
MIN_EFFICIENCY = 0.05
# And from which it is cheaper than quadrature in two columns or three, to errors below a hundredth
# of a nat.
HIGH_EFFICIENCY = 0.5


# Rows near the model: of one origin, of several by name, or none.
Starts = Tensor | Mapping[str, Tensor] | None


class Choice(NamedTuple):
    """A method for log Z and the reason why it was chosen, as one line with the numbers.

    Attributes
    ----------
    method : PartitionEstimator
    reason : str
    estimate : LogPartition or None
        The method's estimate with its default generator, if the choice has already computed it.
    """

    method: PartitionEstimator
    reason: str
    estimate: LogPartition | None = None

    def __str__(self) -> str:
        return f"{in_a_line(self.method)}: {self.reason}"


def choose(
    energy: Energy,
    *,
    base: Distribution | None = None,
    x: Starts | Callable[[], Starts] = None,
    noise: Distribution | None = None,
    max_cost: float = 1e9,
    importance: bool = True,
) -> Choice:
    """Choose a method for log Z of an energy: what ``partition="auto"`` means.

    The first of these methods that applies is chosen:

    1. :class:`Exact`, where the enumeration has at most `max_cost` terms;
    2. :class:`Bethe`, where pairs of binary units are coupled without loops: exact at any size;
    3. :class:`Quadrature`, where rows have one real column, or have two or three and importance
       sampling has an effective sample size below half of the draws; in either case only if the
       error of the integral is small enough within the budget;
    4. :class:`ImportanceSampling`, where the model was trained to discriminate rows from draws of
       `noise`, which is then the ``base`` of the estimate;
    5. :class:`ImportanceSampling` of real rows from `base`, from the base that the energy corrects,
       or from the uniform distribution over a box, where the effective sample size is at least a
       twentieth of the draws;
    6. :class:`AISBracket`, where there are two rows or more to start reverse annealing from. For
       real rows it uses at most 500 temperatures. If the energy has many weights it uses fewer,
       with a larger error, which it reports, so as to take about a minute at most;
    7. :class:`AIS`.

    The first two are exact. The docstrings of the others give the direction of their errors.

    Parameters
    ----------
    energy : Energy
    base : Distribution or None, default=None
        Distribution at which annealing starts; it must cover the model. None is the default base.
    x : Tensor of shape (n, ...), mapping of str to Tensor, callable or None, default=None
        Rows near the model, in the units of the energy's rows: one tensor, or several by name. A
        function without arguments that returns them is called only if they are needed.
    noise : Distribution or None, default=None
        Noise distribution that the model was trained with, if any.
    max_cost : float, default=1e9
        Largest number of terms (states times units of the other layer) to enumerate.
    importance : bool, default=True
        Whether importance sampling may be chosen. Set it to False after the weights have turned out
        to be uneven: a heavy tail may show only in many draws, not in the few that the choice is
        based on.

    Returns
    -------
    Choice
        Named tuple (method, reason, estimate); ``str`` of it is one line with the first two. The
        choice of :class:`Quadrature` comes with its estimate.

    Raises
    ------
    TypeError
        If `energy` is not an energy, or `base` or `noise` is not a distribution.
    ValueError
        If the energy has no log Z, or `base` or `noise` leaves out a part of the model.

    References
    ----------
    Yedidia, Freeman and Weiss (2005), "Constructing free-energy approximations and generalized
    belief propagation algorithms", IEEE Transactions on Information Theory 51(7), section 3
    (exactness without loops). Burda, Grosse and Salakhutdinov (2015), "Accurate and conservative
    estimates of MRF log-likelihood using reverse annealing", AISTATS (both directions).

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.partition import choose
    >>> print(choose(ising_grid(4, 4, coupling=0.3)))
    Exact(): 2^16 states x 16 columns are 1e6 terms, at most 1e9
    >>> print(choose(ising_grid(1, 100, coupling=0.3, periodic=False)))
    Bethe(): exact, as 99 coupled pairs of 100 units form no loop
    >>> print(choose(ising_grid(10, 10, coupling=0.3)))
    AIS(): 2^100 states x 100 columns are 1.3e32 terms, above 1e9; no rows for reverse annealing
    """
    check_energy(energy)
    few = _is_integrated(energy)
    near = x() if few and callable(x) else x
    given = None if callable(near) else near
    # Invalid rows are an error even if the choice does not depend on them.
    check_proper(energy, x=rows_of(energy, given))
    cost, size = _enumeration(energy)
    if cost <= max_cost:
        return Choice(Exact(max_cost), f"{size}, at most {_number(max_cost)}")
    if forest := _describe_forest(energy):
        return Choice(Bethe(), forest)
    too_large = size if math.isinf(cost) else f"{size}, above {_number(max_cost)}"
    for one in (base, noise):
        if one is not None:
            check_base(energy, one, given)
    efficiency, description = 0.0, ""
    if importance and (few or noise is None):
        efficiency, description = _efficiency(energy, base if noise is None else noise)
    if few and (efficiency < HIGH_EFFICIENCY or energy.domain.n_columns == 1):
        method = Quadrature()
        integral = _integral(method, energy, base, rows_of(energy, given))
        if not integral.reason:
            error = f"{energy.domain.n_columns} columns, with an error of {integral.error:.1g}"
            return Choice(method, f"{too_large}; {error}", method.summary(integral, stacklevel=3))
    if importance and noise is not None:
        name = type(noise).__name__
        return Choice(
            ImportanceSampling(), f"{too_large}; draws of the {name} that it was trained with"
        )
    if efficiency >= MIN_EFFICIENCY:
        # As many draws as bring the standard error to 0.005, within limits.
        n = min(max(0.4 * MAX_DRAWS * (1 / efficiency - 1), MIN_DRAWS), MAX_DRAWS)
        return Choice(ImportanceSampling(round(n / 1e4) * 10_000), f"{too_large}; {description}")
    near = near() if callable(near) else near
    rows = rows_of(energy, near)
    if rows is None:
        return Choice(AIS(), f"{too_large}; no rows for reverse annealing")
    starts = near.values() if isinstance(near, Mapping) else [rows]
    if min(len(start) for start in starts) < 2:
        return Choice(AIS(), f"{too_large}; one row is too few for reverse annealing")
    return Choice(_bracket(energy), f"{too_large}; {len(rows)} rows for reverse annealing")


def _is_integrated(energy: Energy) -> bool:
    """Whether rows have few real columns, and the energy no steps, which are integrated slowly."""
    few = isinstance(energy.domain, Real) and energy.domain.n_columns <= MAX_COLUMNS
    return few and energy.has_gradient


def _integral(
    method: Quadrature, energy: Energy, base: Distribution | None, x: Tensor | None
) -> Integral:
    """The integral as `method` computes it."""
    base = getattr(energy, "base", None) if base is None else base
    if base is not None:
        check_base(energy, base, x)
    return integrate(energy, base, x, method.tol, method.max_evaluations)


def _efficiency(energy: Energy, base: Distribution | None) -> tuple[float, str]:
    """Effective sample size a draw of the base, or of the energy's default one; and in words."""
    if not _moves_by_gradients(energy) and energy.has_gradient:
        return 0.0, ""
    base = getattr(energy, "base", None) if base is None else base
    if base is None:
        if not has_uniform(energy.domain):
            return 0.0, ""
        base = default_base(energy)  # uniform
    template, corrected = template_for(energy), energy.corrects(base)
    base = base.to(template.device, template.dtype)
    with sampling(energy), torch.no_grad():
        draws = base.sample(N_TEST_DRAWS, generator_for(None, template.device))
        log_w = log_weights(energy, base, draws, N_TEST_DRAWS, corrected=corrected)
    log_w = log_w - log_w.max()
    efficiency = float(log_w.exp().sum() ** 2 / (2 * log_w).exp().sum()) / N_TEST_DRAWS
    return efficiency, f"effective sample size {efficiency:.0%} of the draws of {base!r}"


def _moves_by_gradients(energy: Energy) -> bool:
    """Whether rows are real, or some columns are and no hidden layer draws them."""
    if isinstance(energy.domain, Real) or isinstance(energy, BipartiteEnergy):
        return isinstance(energy.domain, Real)
    return any(isinstance(part, Real) for part in parts_of(energy.domain))


def in_a_line(method: PartitionEstimator) -> str:
    """A method with those of its parameters that are not defaults, on one line."""
    return " ".join(repr(method).split())


def _bracket(energy: Energy) -> AISBracket:
    """A bracket that takes about a minute at most."""
    if _moves_by_gradients(energy):
        # Leapfrog steps of HMC, the sampler of real rows, cost as much as a dozen others.
        return AISBracket(n_betas=500, n_steps=250, max_evaluations=_budget(energy, 1e10))
    # Steps of hidden layers are matrix products, those of other models one column at a time or
    # gradients of networks.
    most = _budget(energy, 1e12 if isinstance(energy, BipartiteEnergy) else 8e10)
    # All runs of a bracket take about as many.
    usual = 1_000_000
    return AISBracket() if most >= usual else AISBracket(max_evaluations=most)


def _budget(energy: Energy, max_products: float) -> int:
    """Evaluations of an energy, of one digit, for a number of products of weights and rows."""
    size = sum(one.numel() for one in energy.parameters()) + _cost(getattr(energy, "base", None))
    # Fewest weights: below, what an evaluation costs does not depend on them.
    min_size = 2_000
    return int(float(f"{max_products / max(size, min_size):.0e}"))


def _cost(base: Distribution | None) -> int:
    """Products that a row of a base takes, about: its numbers, such as centres of kernels."""
    if base is None:
        return 0
    if isinstance(base, ChowLiuTree | TreeOfTables):
        # Columns are drawn one after the other, each of which takes as long as so many products.
        return 600 * base.domain.n_columns
    values = vars(base).values()
    parts = [one for v in values for one in (v if isinstance(v, tuple | list) else (v,))]
    numbers = sum(part.numel() for part in parts if isinstance(part, torch.Tensor))
    return numbers + sum(_cost(part) for part in parts if isinstance(part, Distribution))


def _enumeration(energy: Energy) -> tuple[float, str]:
    """Number of terms that an enumeration sums, and the same in words."""
    if isinstance(energy.domain, Real) and not isinstance(energy, BipartiteEnergy):
        return math.inf, "real numbers cannot be enumerated"
    side = cheaper_side(energy)
    if math.isinf(side.domain.log_n_states):
        return side.cost, "real numbers cannot be enumerated"
    layers, units = "states", f"{energy.domain.n_columns} columns"
    if isinstance(energy, BipartiteEnergy):
        if energy.terms_of_hidden_state != energy.domain.n_columns:
            units = f"{_number(energy.terms_of_hidden_state)} terms of a covariance"
        layers = "visible states" if side.domain is energy.domain else "hidden states"
        if side.domain is energy.domain:
            units = f"{energy.hidden_domain.n_columns} hidden units"
    states = f"{_n_states(side.domain)} {layers} x {units}"
    if math.isinf(side.cost):
        return side.cost, f"{states} are too many terms"
    return side.cost, f"{states} are {_number(side.cost)} terms"


def _n_states(domain: Domain) -> str:
    """The number of states of a domain, in few characters."""
    if isinstance(domain, Binary):
        return f"2^{domain.n_columns}"
    if math.isinf(domain.n_states):
        return f"10^{domain.log_n_states / math.log(10):.0f}"
    return _number(domain.n_states)


def _describe_forest(energy: Energy) -> str:
    """Why belief propagation is exact for a pairwise model without loops; empty for any other."""
    if not isinstance(energy.domain, Binary):
        return ""
    try:
        Bethe().check(energy)
    except (TypeError, ValueError):
        return ""
    graph = pairwise_graph(energy)
    if not graph.is_forest:
        return ""
    return f"exact, as {graph.n_edges} coupled pairs of {graph.n_nodes} units form no loop"


def _number(number: float) -> str:
    """1e9 for 1000000000.0, and all digits of numbers below 1e4."""
    if number < 1e4:
        return f"{number:g}"
    return f"{number:.2g}".replace("e+0", "e").replace("e+", "e")
