"""Energies: the function E(x), its derivatives, and the conditionals that some energies have."""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base.contrast import Centering, ContrastGradient, Penalty
from skebm.base.domains import Binary, Domain, Real, columns_of, parts_of


class Clamp(NamedTuple):
    """Coordinates held fixed while sampling: ``mask`` (n, ...) bool, ``value`` (n, ...)."""

    mask: Tensor
    value: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Write the fixed coordinates into x."""
        return torch.where(self.mask, self.value, x)


class Energy(nn.Module, abc.ABC):
    """A scalar function of a row, E(x), with the domain it is defined on.

    An energy neither samples nor computes losses. The energy of a row does not depend on the other
    rows of the batch.
    """

    domain: Domain
    # Whether exp(-E) has a finite integral whatever the parameters, by the form of E.
    always_proper: bool = False
    # Whether the gradient says in which direction E falls, which that of steps does not.
    has_gradient: bool = True

    @abc.abstractmethod
    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Energy of each row, (n,); `cond` carries a noise level, a label or a history."""

    def __add__(self, other: Any) -> Energy:
        """The sum of two energies on the same domain: the product of their densities."""
        if not isinstance(other, Energy):
            return NotImplemented
        return weighted_sum([(1.0, self), (1.0, other)])

    def __mul__(self, factor: Any) -> Energy:
        """The energy times a number: the density to this power."""
        if not isinstance(factor, RealNumber) or isinstance(factor, bool):
            return NotImplemented
        return weighted_sum([(float(factor), self)])

    __rmul__ = __mul__

    def __truediv__(self, temperature: Any) -> Energy:
        """The energy at a temperature: the density to the power 1 / temperature, normalised."""
        if not isinstance(temperature, RealNumber) or isinstance(temperature, bool):
            return NotImplemented
        check_temperature(temperature)
        return self * (1.0 / temperature)

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        """Energy (n,) and its gradient with respect to x, (n, ...); works under ``no_grad``.

        The ``.grad`` of the parameters does not change. It raises `ValueError` if the energies are
        not one number per row, and `TypeError` if they cannot be differentiated.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("There are no gradients in torch.inference_mode(): use no_grad().")
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            value = self(x, cond)
            check_shape(self, x, value)
            grad = None
            if value.requires_grad:
                # Ones as grad_outputs instead of a sum, which would be one more node of the graph.
                ones = torch.ones_like(value)
                (grad,) = torch.autograd.grad(value, x, ones, allow_unused=True)
        if grad is None:
            raise TypeError(
                f"{type(self).__name__} is not differentiable with respect to x: its energies are "
                "not computed from x by differentiable torch operations. Use a sampler that needs "
                "no gradient, such as MetropolisHastings or Gibbs."
            )
        return value.detach(), grad

    def parametric_energy(self, x: Tensor) -> Tensor:
        """The part of each row's energy that depends on the parameters, (n,); here all of it."""
        return self(x)

    def correction(self, x: Tensor) -> Tensor:
        """E(x) + log q(x), (n,): minus the unnormalised log-ratio of the model to its base q.

        Without a base it is the energy itself.
        """
        base = getattr(self, "base", None)
        return self(x) if base is None else self(x) + base.log_prob(x)

    def discontinuities(self, entry: int) -> Tensor:
        """Values of an entry at which the energy is not continuous, (k,), increasing; none here."""
        return torch.zeros(0)

    def corrects(self, base: Any) -> bool:
        """Whether `base` is this energy's, and :meth:`correction` does not evaluate it."""
        return False

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> ContrastGradient | None:
        """How the energy writes the gradient of a contrast itself; None, the default: by autograd.

        An energy that does so also handles the penalties and the centring of its units.
        """
        return None

    def hold_within_limits(self) -> None:
        """Move parameters that have left the limits of training back to them, in place.

        It is called after every step of the optimizer. There are no limits by default.
        """

    def flip_difference(self, x: Tensor) -> Tensor:
        """E(x with entry i set to 1 - x_i) - E(x), (n, d), for flat binary rows."""
        if not isinstance(self.domain, Binary):
            raise ValueError(
                f"Only binary rows can be flipped; this energy is defined on {self.domain}."
            )
        value, columns = self(x), []
        for i in range(x.shape[1]):
            flipped = x.clone()
            flipped[:, i] = 1 - x[:, i]
            columns.append(self(flipped) - value)
        return torch.stack(columns, 1)

    def level_difference(self, x: Tensor) -> Tensor:
        """E(x after a change of one column) - E(x), for every change, (n, d).

        Entry i belongs to the flip of bit i, or to the change of its one-hot column to level i; it
        is 0 if the column already has this level. Without a formula, every change costs one
        evaluation of the energy.
        """
        if isinstance(self.domain, Binary):
            return self.flip_difference(x)
        return differences_of(self, x, self.domain)


def differences_of(function: Callable[[Tensor], Tensor], x: Tensor, domain: Domain) -> Tensor:
    """What every change of one column of rows x (n, d) adds to a function of rows, (n, d)."""
    value, columns = function(x), []
    for (first, width), is_bit in zip(discrete_columns(domain), are_bits(domain), strict=True):
        entries = slice(first, first + width)
        for level in range(width):
            changed = x.clone()
            if is_bit:
                changed[:, first] = 1 - x[:, first]
            else:
                changed[:, entries] = 0
                changed[:, first + level] = 1
            columns.append(function(changed) - value)
    return torch.stack(columns, 1)


def discrete_columns(domain: Domain) -> Iterator[tuple[int, int]]:
    """First entry and number of entries of each column of bits and categories.

    It raises `ValueError` for real columns, whose changes cannot be listed.
    """
    if any(isinstance(part, Real) for part in parts_of(domain)):
        raise ValueError(
            f"Only bits and categories change from level to level; this energy is on {domain}."
        )
    first = 0
    for width in columns_of(domain):
        yield first, width
        first += width


def are_bits(domain: Domain) -> list[bool]:
    """Whether each column is a bit; a category of one level has one entry, too."""
    parts = parts_of(domain)
    return [isinstance(part, Binary) for part in parts for _ in columns_of(part)]


def difference_of_levels(logits: Tensor, x: Tensor, domain: Domain) -> Tensor:
    """Energy differences of all changes of one column, (n, d), from log-weights of its levels.

    `logits` (n, d) are log-odds for bits, and log-weights up to a constant for one-hot columns.
    """
    if isinstance(domain, Binary):
        return (2 * x - 1) * logits
    differences = []
    for part, L, block in zip(
        parts_of(domain), *(_blocks(rows, domain) for rows in (logits, x)), strict=True
    ):
        if isinstance(part, Binary):
            differences.append((2 * block - 1) * L)
        else:
            differences.append(_present(L * block, part.groups) - L)
    return torch.cat(differences, 1)


def _blocks(rows: Tensor, domain: Domain) -> tuple[Tensor, ...]:
    """Rows cut into the parts of a domain."""
    return rows.split([part.n_columns for part in parts_of(domain)], 1)


def _present(values: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Sums over the entries of each one-hot column, at all of its entries, (n, d)."""
    k = groups[0]
    if all(other == k for other in groups):
        shape = values.shape
        return values.view(len(values), -1, k).sum(2, keepdim=True).expand(-1, -1, k).reshape(shape)
    sums = [part.sum(1, keepdim=True).expand_as(part) for part in values.split(groups, 1)]
    return torch.cat(sums, 1)


def check_temperature(temperature: Any) -> None:
    """Raise `ValueError` unless `temperature` is a positive number."""
    number = isinstance(temperature, RealNumber) and not isinstance(temperature, bool)
    if not number or not 0 < float(temperature) < math.inf:
        raise ValueError(f"temperature must be a positive number, got {temperature!r}.")


def check_energy(energy: Any) -> None:
    """Raise `TypeError` unless `energy` is an :class:`Energy`."""
    if not isinstance(energy, Energy):
        raise TypeError(
            f"{type(energy).__name__} is not an Energy: subclass skebm.base.Energy, with a domain "
            "and a forward(x, cond=None) that returns one energy per row."
        )


def check_shape(energy: Energy, x: Tensor, value: Tensor) -> None:
    """Raise `ValueError` unless there is one energy per row."""
    if value.shape != x.shape[:1]:
        raise ValueError(
            f"{type(energy).__name__} must return one energy per row, of shape "
            f"{tuple(x.shape[:1])}, but returned {tuple(value.shape)}."
        )


class Conditional(abc.ABC):
    """A factorised (or otherwise tractable) distribution of one layer given the other.

    Attributes
    ----------
    mean : Tensor of shape (n, d)
        Conditional means of the d units.
    """

    mean: Tensor

    @abc.abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw one row from each of the n distributions, (n, d)."""

    def given(self, clamp: Clamp) -> Conditional:
        """The distribution conditioned on the clamped coordinates.

        A factorised distribution does not change: its coordinates are independent.
        """
        return self


class BipartiteEnergy(Energy):
    """An energy E(x) = -log sum_h exp(-E(x, h)) whose two layers have tractable conditionals.

    ``forward`` is the free energy of a visible row. At inverse temperature `beta` the joint is
    proportional to exp(-beta E(x, h)).

    Attributes
    ----------
    hidden_domain : Domain
    weight : Tensor of shape (H, d)
        Couplings of the layers, to which penalties apply, if the energy has parameters.
    base : Distribution or None
        Where annealing and tempering start; None is the uniform distribution.
    """

    hidden_domain: Domain
    weight: Tensor
    base: Any = None  # start of annealing and tempering; None is the uniform distribution

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Free energy of each row, (n,)."""
        return self.free_energy(x)

    @abc.abstractmethod
    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""

    @abc.abstractmethod
    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x) at inverse temperature `beta`."""

    @abc.abstractmethod
    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h), proportional to exp(-beta E(x, h) + field' x)."""

    @abc.abstractmethod
    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, h) + field' x) over x that agree with `clamp`, (n,)."""

    @property
    def terms_of_hidden_state(self) -> int:
        """Cost of :meth:`hidden_energy` of a state, in visible units; d of them by default."""
        return self.domain.n_columns

    def next_visible(
        self, x: Tensor, h: Tensor, beta: float, generator: torch.Generator
    ) -> Conditional:
        """Distribution from which a Gibbs step draws the rows that follow x (n, d).

        The hidden layer h was drawn given x. The distribution is a kernel that leaves p(x given h)
        invariant, by default p(x given h) itself.
        """
        return self.visible(h, beta)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Mean-field reconstruction, by default the mean of x given the means of h, (n, d)."""
        return self.visible(self.hidden(x).mean).mean

    @abc.abstractmethod
    def annealed(self, beta: float) -> BipartiteEnergy:
        """The bridge distribution at `beta` between the base (0) and this energy (1).

        At 0 the hidden units are free, that is, uniform, and rows are distributed as the base q:
        the free energy is -log q(x) less the logarithm of the number of hidden states. (For bits
        with a base of independent columns, the normaliser of q is left out.)
        """


class EnergyLadder(BipartiteEnergy):
    """A bipartite energy with others that lead to it from its base, between which rows go over."""

    @property
    @abc.abstractmethod
    def rungs(self) -> list[BipartiteEnergy]:
        """The energies, from the base with free hidden units to the energy itself."""


class PairwiseEnergy(Energy):
    """E(x) = -x'Jx / 2 - b'x on flat rows of bits and one-hot columns.

    J is symmetric, and zero between entries of the same column.
    """

    bias: Tensor  # b, (d,)

    @property
    @abc.abstractmethod
    def coupling(self) -> Tensor:
        """J, (d, d)."""

    @property
    @abc.abstractmethod
    def colours(self) -> tuple[Tensor, ...]:
        """A colouring of the graph: a partition of the columns into groups without couplings.

        A one-hot column is included with all its entries, in a group of columns that have the same
        number of levels.
        """

    @abc.abstractmethod
    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Log-odds of a one in each of `columns` (all by default) given the others, (n, k).

        For a one-hot entry it is the log-weight of the level, up to a constant of its column.
        """


# ------------------------------------------------------------------------------
# Sums and mixtures of energies, which are energies
# ------------------------------------------------------------------------------


class EnergySum(Energy):
    r"""Weighted sum of energies: a product of powers of their densities.

    .. math:: E(x) = \sum_k w_k E_k(x), \qquad p(x) \propto \prod_k p_k(x)^{w_k}

    ``e1 + e2`` and ``2.0 * e1`` make such sums; a sum of pairwise energies is a
    :class:`PairwiseSum`.

    Parameters
    ----------
    energies : sequence of Energy
        On the same domain. Their parameters are shared, not copied.
    weights : sequence of float or None, default=None
        w, finite. None: all 1.

    Attributes
    ----------
    energies : ModuleList
    weights : tuple of float

    References
    ----------
    Hinton (2002), "Training products of experts by minimizing contrastive divergence", Neural
    Computation 14(8).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM, ising_grid
    >>> rbm = BernoulliRBM(4, 2, generator=torch.Generator().manual_seed(0))
    >>> energy = rbm + 0.5 * ising_grid(2, 2)
    >>> x = torch.ones(1, 4)
    >>> bool(energy(x) == rbm(x) + 0.5 * ising_grid(2, 2)(x))
    True
    """

    domain: Domain

    def __init__(self, energies: Sequence[Energy], weights: Sequence[float] | None = None):
        super().__init__()
        self.domain = common_domain(energies)
        self.energies = nn.ModuleList(energies)
        self.weights = _check_weights(weights, len(self.energies))

    def extra_repr(self) -> str:
        return f"weights={self.weights}"

    def parts(self) -> Iterator[tuple[float, Any]]:
        """Weights and energies."""
        return zip(self.weights, self.energies, strict=True)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Energy of each row, (n,)."""
        return _sum_of([w * energy(x, cond) for w, energy in self.parts()])

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        """Energy (n,) and its gradient, by those of the parts."""
        terms = [(w, *energy.value_and_grad(x, cond)) for w, energy in self.parts()]
        return _sum_of([w * v for w, v, _ in terms]), _sum_of([w * g for w, _, g in terms])

    def flip_difference(self, x: Tensor) -> Tensor:
        """E(x with entry i set to 1 - x_i) - E(x), (n, d), by those of the parts."""
        return _sum_of([w * energy.flip_difference(x) for w, energy in self.parts()])

    def level_difference(self, x: Tensor) -> Tensor:
        """E(x after a change of one column) - E(x), (n, d), by those of the parts."""
        return _sum_of([w * energy.level_difference(x) for w, energy in self.parts()])


class PairwiseSum(EnergySum, PairwiseEnergy):
    """Weighted sum of pairwise energies, which is pairwise; see :class:`EnergySum`.

    Parameters
    ----------
    energies : sequence of PairwiseEnergy
        On the same columns. Their parameters are shared, not copied.
    weights : sequence of float or None, default=None
        Finite. None: all 1.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import ising_grid
    >>> energy = ising_grid(2, 2, 0.3) + ising_grid(2, 2, 0.2)
    >>> bool(torch.allclose(energy.coupling, ising_grid(2, 2, 0.5).coupling))
    True
    """

    def __init__(self, energies: Sequence[PairwiseEnergy], weights: Sequence[float] | None = None):
        super().__init__(energies, weights)
        for energy in energies:
            if not isinstance(energy, PairwiseEnergy):
                raise TypeError(f"{type(energy).__name__} is not a PairwiseEnergy: use EnergySum.")

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """Bias of the sum, (d,)."""
        return _sum_of([w * energy.bias for w, energy in self.parts()])

    @property
    def coupling(self) -> Tensor:
        """J of the sum, (d, d)."""
        return _sum_of([w * energy.coupling for w, energy in self.parts()])

    @property
    def colours(self) -> tuple[Tensor, ...]:
        """Groups of columns that share a colour in every part, and so have no couplings."""
        if len(self.energies) == 1:  # at a temperature: sweeps ask for the colours at every step
            only: Any = self.energies[0]
            colours: tuple[Tensor, ...] = only.colours
            return colours
        columns = []
        for _, energy in self.parts():
            own = torch.empty(self.domain.n_columns, dtype=torch.long, device=self.bias.device)
            for colour, group in enumerate(energy.colours):
                own[group] = colour
            columns.append(own)
        colour = torch.stack(columns, 1).unique(dim=0, return_inverse=True)[1]
        return tuple((colour == k).nonzero()[:, 0] for k in range(int(colour.max()) + 1))

    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Log-odds of a one in each of `columns` given the others, (n, k)."""
        return _sum_of([w * energy.logits(x, columns) for w, energy in self.parts()])


class EnergyMixture(Energy):
    r"""Mixture of unnormalised densities.

    .. math:: E(x) = -\log \sum_k e^{a_k - E_k(x)}

    If the energies have the partition functions Z_k, it is a mixture with the weights
    :math:`e^{a_k} Z_k / Z`: pass :math:`a_k = \log \pi_k - \log Z_k` to obtain the weights pi.

    Parameters
    ----------
    energies : sequence of Energy
        On the same domain. Their parameters are shared, not copied.
    log_weights : sequence of float or None, default=None
        a, finite. None: all 0.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import EnergyMixture
    >>> from skebm.energies import ising_grid
    >>> energy = EnergyMixture([ising_grid(2, 2, 1.0), ising_grid(2, 2, -1.0)])
    >>> round(energy(torch.ones(1, 4)).item(), 4)  # -log(e^8 + e^-8)
    -8.0
    """

    domain: Domain
    log_weights: Tensor

    def __init__(self, energies: Sequence[Energy], log_weights: Sequence[float] | None = None):
        super().__init__()
        self.domain = common_domain(energies)
        self.energies = nn.ModuleList(energies)
        n = len(self.energies)
        weights = _check_weights([0.0] * n if log_weights is None else log_weights, n)
        self.register_buffer("log_weights", torch.tensor(weights, dtype=torch.float64))

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Energy of each row, (n,)."""
        values = torch.stack([energy(x, cond) for energy in self.energies], 1)
        return -torch.logsumexp(self.log_weights.to(values) - values, 1)


def weighted_sum(terms: Sequence[tuple[float, Energy]]) -> EnergySum:
    """The sum of weighted energies, with sums among them expanded; pairwise if all are."""
    flat: list[tuple[float, Any]] = []
    for weight, energy in terms:
        if isinstance(energy, EnergySum):
            flat += [(weight * w, part) for w, part in energy.parts()]
        else:
            flat.append((weight, energy))
    weights, energies = [w for w, _ in flat], [energy for _, energy in flat]
    if all(isinstance(energy, PairwiseEnergy) for energy in energies):
        return PairwiseSum(energies, weights)
    return EnergySum(energies, weights)


def common_domain(energies: Sequence[Energy]) -> Domain:
    """The domain of all energies; `ValueError` where they differ, or where there is none."""
    for energy in energies:
        check_energy(energy)
    if not energies:
        raise ValueError("At least one energy is needed.")
    domain = energies[0].domain
    for energy in energies:
        if energy.domain != domain:
            raise ValueError(
                f"Energies must have the same domain: {type(energies[0]).__name__} has {domain}, "
                f"{type(energy).__name__} {energy.domain}."
            )
    return domain


def _check_weights(weights: Sequence[float] | None, n: int) -> tuple[float, ...]:
    values = (1.0,) * n if weights is None else tuple(float(w) for w in weights)
    if len(values) != n or not all(map(math.isfinite, values)):
        raise ValueError(f"weights must be {n} finite numbers, one for each energy, not {weights}.")
    return values


def _sum_of(values: list[Tensor]) -> Tensor:
    return functools.reduce(operator.add, values)


# ------------------------------------------------------------------------------
# Derivatives with respect to rows, of energies and networks; differentiable with
# respect to the weights. A network may have cheaper methods of the same names.
# ------------------------------------------------------------------------------


class ValueAndInputGrad(NamedTuple):
    """A function's values and its gradient with respect to rows.

    Attributes
    ----------
    value : Tensor of shape (n,)
        Values.
    grad : Tensor of the shape of the rows
        Gradients.
    """

    value: Tensor
    grad: Tensor


class DirectionalDerivatives(NamedTuple):
    """A function's gradient with respect to rows and its second derivatives along directions.

    Attributes
    ----------
    grad : Tensor of the shape of the rows
        Gradients.
    second_derivative : Tensor of shape (n,)
        Sum over directions v of the second derivatives v' H v.
    """

    grad: Tensor
    second_derivative: Tensor


def value_and_input_grad_of(
    network: Any, x: Tensor, *cond: Tensor, **more: Any
) -> ValueAndInputGrad:
    """Value and gradient of a network; differentiable unless under ``no_grad``."""
    if callable(getattr(network, "value_and_input_grad", None)):
        return network.value_and_input_grad(x, *cond, **more)
    return value_and_input_grad_by_autograd(network, x, *cond)


def value_and_input_grad_by_autograd(network: Any, x: Tensor, *cond: Tensor) -> ValueAndInputGrad:
    """Value and gradient of any module, by autograd."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value = network(x, *cond)
        return ValueAndInputGrad(
            value, autograd_grad(value, x, type(network).__name__, graph=graph)
        )


def input_grad_of(network: Any, x: Tensor, *cond: Tensor, **more: Any) -> Tensor:
    """The gradient of a network with respect to rows, without its value where that is cheaper."""
    if callable(getattr(network, "input_grad", None)):
        return network.input_grad(x, *cond, **more)
    return value_and_input_grad_of(network, x, *cond, **more).grad


def second_derivatives_of(
    network: Any, x: Tensor, directions: Tensor, *cond: Tensor, **more: Any
) -> DirectionalDerivatives:
    """Gradient and second derivatives along directions, (k, d) or k for each row, (n, k, d)."""
    if callable(getattr(network, "second_derivatives", None)):
        return network.second_derivatives(x, directions, *cond, **more)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        grad = autograd_grad(network(x, *cond), x, type(network).__name__)
        return DirectionalDerivatives(grad, second_derivative_of_grad(grad, x, directions))


def second_derivative_of_grad(grad: Tensor, x: Tensor, directions: Tensor) -> Tensor:
    """Sum of v' H v over directions, (n,), from a gradient with a graph to x."""
    total = x.new_zeros(len(x))
    if not grad.requires_grad:
        return total
    for v in directions.unbind(-2):
        v = v.reshape(-1, *x.shape[1:])
        hessian_vector = autograd_grad((grad * v).sum(), x)
        total = total + (hessian_vector * v).flatten(1).sum(1)
    return total


def autograd_grad(
    value: Tensor, x: Tensor, name: str = "The network", *, graph: bool = True
) -> Tensor:
    """Gradient with respect to x, differentiable with `graph`; zero if x is not used."""
    if not value.requires_grad:
        raise TypeError(
            f"{name} is not differentiable with respect to x: its values are not computed from x "
            "by differentiable torch operations."
        )
    (grad,) = torch.autograd.grad(value.sum(), x, create_graph=graph, allow_unused=True)
    return torch.zeros_like(x) if grad is None else grad
