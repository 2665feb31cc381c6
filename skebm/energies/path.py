r"""Annealing paths: bridge distributions between a tractable base and the model."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Binary, BipartiteEnergy, Energy, PairwiseEnergy
from skebm.base.torchtools import softplus
from skebm.base.units import Bernoulli
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Distribution,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    Uniform,
)
from skebm.energies.deep import DeepMachineMixin, FirstLayerRows
from skebm.energies.pairwise import BoltzmannMachine
from skebm.energies.rbm.binary import BernoulliRBM, Tilted
from skebm.energies.rbm.classes import ClassRBM
from skebm.energies.rbm.mixed import MixedRBM, WiderColumns
from skebm.energies.rbm.spike_slab import SpikeSlabEnergy
from skebm.energies.rbm.subspace import SubspaceEnergy
from skebm.energies.rbm.trajectory import TrajectoryEnergy, between, with_weights

# Factors between 1/2 and 2 whose product neither overflows nor underflows in single precision.
GROUP = 100
# Inverse temperature at which the path of a deep machine is at its first layer.
FIRST_LAYER = 0.75
# RBMs of any columns, whose base is always a part of them; those of independent hidden fields.
WithFields = MixedRBM | ClassRBM | SubspaceEnergy
OnColumns = WithFields | SpikeSlabEnergy


def annealing_path(energy: Energy, base: Distribution) -> AnnealingPath:
    r"""The path from `base` to `energy` that keeps the conditionals of the energy.

    For a bipartite energy from its own base (or from its ``wider_base()``, if it has one), a binary
    RBM from independent bits, and a pairwise energy from independent bits and categories or from a
    Chow-Liu tree, the bridge distributions are of the same kind as the energy, so that
    :class:`skebm.samplers.Gibbs` can sample them. The path of a
    :class:`~skebm.energies.TrajectoryEnergy` goes through its models, and that of a deep machine
    that remembers its first layer through that. Any other pair of base and energy has the geometric
    path :math:`\beta E(x) - (1 - \beta) \log q(x)`.

    Parameters
    ----------
    energy : Energy
        The end of the path.
    base : Distribution
        The start of the path, on rows of the same domain.

    Returns
    -------
    AnnealingPath

    Examples
    --------
    >>> from skebm.energies import annealing_path, ising_grid
    >>> from skebm.distributions import IndependentBernoulli
    >>> import torch
    >>> path = annealing_path(ising_grid(3, 3), IndependentBernoulli(torch.zeros(9)))
    >>> path.at(0.5)(torch.ones(1, 9)).item()  # half of the energy of 18 pairs
    -9.0
    """
    if isinstance(base, FirstLayerRows):
        return SinceFirstLayer(energy, base)
    if isinstance(energy, DeepMachineMixin) and energy.remembers:
        return FirstLayerPath(energy, base)
    if isinstance(energy, TrajectoryEnergy):
        return TrajectoryPath(energy, base)
    if isinstance(energy, OnColumns) and isinstance(base, WiderColumns):
        return WiderPath(energy, base)
    mixed = isinstance(energy, OnColumns)
    independent = isinstance(base, IndependentBernoulli) and not mixed
    if isinstance(energy, BipartiteEnergy) and (independent or base is energy.base is not None):
        return BipartitePath(energy, base)
    if isinstance(energy, PairwiseEnergy) and (fields := unary_fields(base)) is not None:
        return PairwisePath(energy, base, fields)
    if isinstance(energy, PairwiseEnergy) and isinstance(base, ChowLiuTree):
        return TreePath(energy, base)
    return GeometricPath(energy, base)


class UnaryFields(NamedTuple):
    """A distribution of independent bits and levels as log q(x) = logits' x - log_normaliser."""

    logits: Tensor
    log_normaliser: float


def unary_fields(base: Distribution) -> UnaryFields | None:
    """The fields of independent bits and levels; None for any other distribution."""
    if isinstance(base, IndependentBernoulli):
        return UnaryFields(base.logits, float(base.log_normaliser.double()))
    if isinstance(base, IndependentCategorical) and base.logits.isfinite().all():
        return UnaryFields(base.logits, 0.0)
    if isinstance(base, Uniform) and len(base.domain.row_shape) == 1:
        n_states = base.domain.log_n_states
        zeros = torch.zeros(base.domain.n_columns)
        return UnaryFields(zeros, n_states) if math.isfinite(n_states) else None
    if not isinstance(base, Columns):
        return None
    parts = [unary_fields(part) for part in base.parts]
    fields = [part for part in parts if part is not None]
    if len(fields) < len(parts):
        return None
    total = sum(part.log_normaliser for part in fields)
    return UnaryFields(torch.cat([part.logits for part in fields]), total)


class AnnealingPath(abc.ABC):
    r"""Unnormalised distributions from a base, at :math:`\beta = 0`, to an energy, at 1.

    Attributes
    ----------
    log_z0 : float
        Log of the normaliser at 0, in nats.
    """

    log_z0: float = 0.0

    def __init__(self, energy: Energy, base: Any):
        self.energy, self.base = energy, base

    @abc.abstractmethod
    def at(self, beta: float) -> Energy:
        """The bridge distribution at `beta`, as an energy."""

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        """log of the unnormalised marginal at `new` over that at `old`, (n,) in float64."""
        return (self.at(old)(x) - self.at(new)(x)).double()

    def hidden_layer(self, x: Tensor, beta: float, generator: torch.Generator) -> Tensor | None:
        """A hidden layer drawn given x at `beta`; None unless :meth:`log_ratio` was given x."""
        return None

    def remember(self, x: Tensor) -> None:
        """Keep what is known of rows x after a step of a sampler; by default nothing."""
        return


class BipartitePath(AnnealingPath):
    r"""From a base q to a bipartite energy, hidden units being free at 0.

    .. math:: p_\beta(x, h) \propto q(x)^{1 - \beta} \exp\bigl(-\beta E(x, h)\bigr)

    A base of independent bits that is not a part of the energy enters as fields, without its
    normaliser. Any other base is the energy's own, and the energy provides the path itself
    (``annealed``): if the base is a part of the energy, it is kept, and only the energy's
    correction of it is tempered.
    """

    energy: Any

    def __init__(self, energy: BipartiteEnergy, base: Any):
        super().__init__(energy, base)
        mixed = isinstance(energy, OnColumns)
        self.corrects = mixed or not isinstance(base, IndependentBernoulli)
        self.log_z0 = energy.hidden_domain.log_n_states
        if not self.corrects:
            self.log_z0 += float(base.log_normaliser.double())
        self._cache: tuple[Any, Any] = None, None  # the last rows and their hidden fields
        self._annealed = functools.lru_cache(maxsize=2)(energy.annealed)
        self.start_bias: Any = 0.0  # visible biases at 0, of an energy on columns

    def at(self, beta: float) -> BipartiteEnergy:
        if self.corrects:
            return self._annealed(beta)
        return Tilted(self.energy, (1 - beta) * self.base.logits, beta)

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        if isinstance(self.energy, BernoulliRBM):
            return self._log_ratio_of_bits(x, old, new)
        if not isinstance(self.energy, WithFields):
            return super().log_ratio(x, old, new)
        rbm = self.energy if isinstance(self.energy, MixedRBM) else self.energy.rbm
        if len(rbm.log_precision):
            return super().log_ratio(x, old, new)
        # Without widths all fields are those at 1 times beta, and the base cancels.
        field = rbm.hidden_field(x)
        linear = rbm.statistics(x) @ (rbm.visible_bias - self.start_bias)
        self._cache = x, field
        after, before = (self.energy.log_sum(beta * field, beta) for beta in (new, old))
        return ((new - old) * linear + after - before).double()

    def _log_ratio_of_bits(self, x: Tensor, old: float, new: float) -> Tensor:
        """The same of a binary RBM, with one logarithm for many units at both temperatures."""
        _, unary, _ = self.energy.tensors
        if not self.corrects:
            unary = unary - self.base.logits
        field = self.energy.hidden_field(x)
        self._cache = x, field
        # softplus(z) = max(z, 0) - log sigmoid(|z|) avoids the difference of large numbers.
        size = field.abs()
        change = (old * size).sigmoid_().div_((new * size).sigmoid_())
        logs = torch.stack([part.prod(1) for part in change.split(GROUP, 1)]).log()
        linear = torch.mv(x, unary).add_(field.clamp(min=0).sum(1))
        if not self.corrects:
            linear = linear + self.energy.log_structure(x)
        return (new - old) * linear.double() + logs.double().sum(0)

    def hidden_layer(self, x: Tensor, beta: float, generator: torch.Generator) -> Tensor | None:
        rows, field = self._cache
        if rows is not x:
            return None
        if isinstance(self.energy, WithFields):
            return self.energy.units_given_field(beta * field, beta).sample(generator)
        return Bernoulli((beta * field).sigmoid_()).sample(generator)


class WiderPath(BipartitePath):
    """From a wider start to an RBM on any base, linear in the parameters."""

    energy: OnColumns

    def __init__(self, energy: OnColumns, base: WiderColumns):
        super().__init__(energy, base)
        off = energy.weight.new_zeros(1, energy.hidden_domain.n_columns)
        # Without weights and hidden biases, all states of the hidden layer have the same energy.
        start = base.parameters
        at_start = float(energy.annealed(0.0, start).hidden_energy(off).double())
        self.log_z0 = energy.hidden_domain.log_n_states - at_start
        self._annealed = functools.lru_cache(maxsize=2)(lambda b: energy.annealed(b, start))
        self.start_bias = start.get("visible_bias", 0.0)


class SinceFirstLayer(AnnealingPath):
    r"""From the first layer of a deep machine to the machine, linear in the parameters.

    Parameters
    ----------
    energy : BernoulliDBM or MixedDBM
        That remembers its first layer.
    base : FirstLayerRows or None
        Needed where the path begins there.
    """

    energy: Any

    def __init__(self, energy: Any, base: FirstLayerRows | None):
        super().__init__(energy, base)
        self.log_z0 = math.nan if base is None else base.log_z
        self._between = functools.lru_cache(maxsize=2)(energy.since_first_layer)

    def at(self, beta: float) -> BipartiteEnergy:
        return self._between(beta)


class FirstLayerPath(AnnealingPath):
    r"""From a base to a deep machine, through the RBM of its first layer.

    Up to :data:`FIRST_LAYER` it is the path of the RBM, beyond it that of `SinceFirstLayer`. The
    RBM is nearer to the machine than any other distribution that annealing finds in short time.

    References
    ----------
    Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, section 3.2, anneal from
    independent bits instead.
    """

    energy: Any

    def __init__(self, energy: Any, base: Any):
        super().__init__(energy, base)
        self._since = SinceFirstLayer(energy, None)
        self._first = annealing_path(self._since.at(0.0), base)
        self.log_z0 = self._first.log_z0

    def _parts(self, beta: float) -> tuple[float, float]:
        """Places on the path to the first layer, and on the one from there."""
        return min(beta / FIRST_LAYER, 1.0), max((beta - FIRST_LAYER) / (1 - FIRST_LAYER), 0.0)

    def at(self, beta: float) -> Energy:
        first, since = self._parts(beta)
        return self._since.at(since) if since else self._first.at(first)

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        (first, since), (new_first, new_since) = self._parts(old), self._parts(new)
        ratio = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if first != new_first:
            ratio = ratio + self._first.log_ratio(x, first, new_first)
        if since != new_since:
            ratio = ratio + self._since.log_ratio(x, since, new_since)
        return ratio

    def hidden_layer(self, x: Tensor, beta: float, generator: torch.Generator) -> Tensor | None:
        first, since = self._parts(beta)
        return None if since else self._first.hidden_layer(x, first, generator)


class TrajectoryPath(AnnealingPath):
    """From a base through models kept along training to the last of them.

    The rungs of the energy are evenly spaced, as neighbours are about equally far from each other.
    Between the base and the first model it is the path of that model, and between two models it is
    linear in their parameters.
    """

    energy: TrajectoryEnergy

    def __init__(self, energy: TrajectoryEnergy, base: Any):
        super().__init__(energy, base)
        models: Any = energy.models
        self.first = annealing_path(models[0], base)
        self.log_z0 = self.first.log_z0
        # Inverse temperatures of the first model at the first places, and all places.
        self._hot = (0.0, *energy.temperatures, 1.0)
        self.n_gaps = len(self._hot) - 1 + len(energy.models) - 1
        self._weights = [[p.detach() for p in one.parameters()] for one in energy.models]
        self._cache: tuple[Any, float, Any] = None, math.nan, None  # last rows, their fields
        self._kept = functools.lru_cache(maxsize=2)(self._at)

    def _place(self, beta: float) -> tuple[int, float]:
        """Number of the rung before a place, and how far the place is on the way to the next."""
        place = beta * self.n_gaps
        if abs(place - round(place)) < 1e-9 * self.n_gaps:  # rounding of evenly spaced places
            place = float(round(place))
        number = min(int(place), self.n_gaps - 1)
        return number, place - number

    def _temperature(self, beta: float) -> float | None:
        """Inverse temperature of the first model; None beyond that model."""
        number, share = self._place(beta)
        if number >= len(self._hot) - 1:
            return None
        return (1 - share) * self._hot[number] + share * self._hot[number + 1]

    def at(self, beta: float) -> Energy:
        return self._kept(beta)

    def _at(self, beta: float) -> Energy:
        hot = self._temperature(beta)
        if hot is not None:
            return self.first.at(hot)
        number, share = self._place(beta)
        number -= len(self._hot) - 1
        models: Any = self.energy.models
        found: Energy
        if share in (0.0, 1.0):
            found = models[number + int(share)]
        else:
            weights = between(self._weights[number], self._weights[number + 1], share)
            found = with_weights(models[number], weights)
        return found

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        hot, colder = self._temperature(old), self._temperature(new)
        if hot is not None and colder is not None:
            return self.first.log_ratio(x, hot, colder)
        before, after = self.at(old), self.at(new)
        if not (isinstance(after, BernoulliRBM) and isinstance(before, BernoulliRBM)):
            return super().log_ratio(x, old, new)
        field = after.hidden_field(x)
        self._cache = x, new, field
        _, unary, _ = (b - a for a, b in zip(before.tensors, after.tensors, strict=True))
        change = softplus(field) - softplus(before.hidden_field(x))
        return torch.mv(x, unary).double() + change.double().sum(1)

    def hidden_layer(self, x: Tensor, beta: float, generator: torch.Generator) -> Tensor | None:
        hot = self._temperature(beta)
        if hot is not None:
            return self.first.hidden_layer(x, hot, generator)
        rows, place, field = self._cache
        if rows is not x or place != beta:
            return None
        return Bernoulli(field.sigmoid()).sample(generator)


class PairwisePath(AnnealingPath):
    r"""From independent columns to a pairwise energy, linear in its parameters.

    .. math:: p_\beta(x) \propto \exp\bigl((1 - \beta) a^\top x - \beta E(x)\bigr)
    """

    energy: Any

    def __init__(self, energy: PairwiseEnergy, base: Any, fields: UnaryFields):
        super().__init__(energy, base)
        self.field, self.log_z0 = fields.logits.to(energy.bias), fields.log_normaliser

    def at(self, beta: float) -> PairwiseEnergy:
        return TiltedPairwise(self.energy, (1 - beta) * self.field, beta)

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        return (old - new) * (self.energy(x) + x @ self.field).double()


class TreePath(AnnealingPath):
    r"""From a tree of bits, which is a pairwise energy, to another pairwise energy.

    .. math:: p_\beta(x) \propto q(x)^{1 - \beta} \exp\bigl(-\beta E(x)\bigr)
    """

    energy: Any

    def __init__(self, energy: PairwiseEnergy, base: ChowLiuTree):
        super().__init__(energy, base)
        self.start = tree_machine(base).to(energy.bias)
        with torch.no_grad():
            zeros = torch.zeros_like(energy.bias)[None]
            self.parts = [
                (one.coupling, one.bias.detach(), float(one(zeros))) for one in (self.start, energy)
            ]
            summed: Any = self.start + energy
            self._colours: tuple[Tensor, ...] = summed.colours

    def at(self, beta: float) -> PairwiseEnergy:
        (J0, b0, c0), (J1, b1, c1) = self.parts
        return Couplings(
            (1 - beta) * J0 + beta * J1,
            (1 - beta) * b0 + beta * b1,
            (1 - beta) * c0 + beta * c1,
            self._colours,
        )

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        return (old - new) * (self.energy(x).double() - self.start(x).double())


class Couplings(PairwiseEnergy):
    """A pairwise energy of bits, given by its couplings, biases and colours."""

    def __init__(self, coupling: Tensor, bias: Tensor, offset: float, colours: tuple[Tensor, ...]):
        super().__init__()
        self.domain = Binary((len(bias),))
        self.table, self.bias = nn.Parameter(coupling), nn.Parameter(bias)
        self.offset, self._colours = offset, colours

    @property
    def coupling(self) -> Tensor:
        """J, (d, d)."""
        return self.table

    @property
    def colours(self) -> tuple[Tensor, ...]:
        """Groups of columns without couplings."""
        return self._colours

    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        if columns is None:
            return torch.addmm(self.bias, x, self.table)
        return torch.addmm(self.bias[columns], x, self.table[:, columns])

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        return self.offset - (x * (self.logits(x) + self.bias)).sum(1) / 2


def tree_machine(base: ChowLiuTree) -> BoltzmannMachine:
    """The Boltzmann machine of a tree, whose energy is minus its log-probability."""
    off, on = base.logits.double().unbind(1)  # of a column whose parent is zero, or one
    d, children = len(off), (base.parent >= 0).nonzero().ravel()
    parents = base.parent[children]
    bias = off.clone()
    bias.index_add_(0, parents, (softplus(off) - softplus(on))[children])
    coupling = off.new_zeros(d, d)
    coupling[children, parents] = coupling[parents, children] = (on - off)[children]
    return BoltzmannMachine(coupling, bias, offset=float(softplus(off).sum()))


class TiltedPairwise(PairwiseEnergy):
    """A pairwise energy at inverse temperature `beta`, plus a unary term: beta E - field' x."""

    energy: Any

    def __init__(self, energy: PairwiseEnergy, field: Tensor, beta: float):
        super().__init__()
        self.domain = energy.domain
        self.energy, self.field, self.beta = energy, field, beta

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """Bias of the tempered energy, with the field, (d,)."""
        return self.beta * self.energy.bias + self.field

    @property
    def coupling(self) -> Tensor:
        """J of the tempered energy, (d, d)."""
        return self.beta * self.energy.coupling

    @property
    def colours(self) -> tuple[Tensor, ...]:
        """The colouring of the energy."""
        return self.energy.colours

    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        field = self.field if columns is None else self.field[columns]
        return self.beta * self.energy.logits(x, columns) + field

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        return self.beta * self.energy(x) - x @ self.field


class Parts(NamedTuple):
    """Energy and log q of rows, with their gradients where needed."""

    energy: Tensor
    log_q: Tensor
    energy_grad: Tensor | None = None
    log_q_grad: Tensor | None = None


class GeometricPath(AnnealingPath):
    r"""From any base q to any energy on the same rows.

    .. math:: p_\beta(x) \propto q(x)^{1 - \beta} \exp\bigl(-\beta E(x)\bigr)

    For the same rows, energy and base are evaluated only once for all temperatures. This includes
    rows that a sampler has accepted among those it evaluated last (:meth:`remember`).
    """

    def __init__(self, energy: Energy, base: Any):
        super().__init__(energy, base)
        self._cache: tuple[Tensor | None, Any] = None, None  # the last rows and their parts
        self._start: tuple[Tensor | None, Any] = None, None  # those of the last ratio

    def at(self, beta: float) -> Energy:
        return Geometric(self, beta)

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        parts = self.parts(x)
        self._start = x, parts
        return (old - new) * (parts.energy.double() + parts.log_q.double())

    def remember(self, x: Tensor) -> None:
        """Keep the parts of rows x, each of the last ratio or among those evaluated last."""
        (start, old), (proposal, new) = self._start, self._cache
        if start is None or proposal is None or not start.shape == proposal.shape == x.shape:
            return
        moved, stayed = ((x == one).flatten(1).all(1) for one in (proposal, start))
        if not bool((moved | stayed).all()):
            return
        rows = moved.view(-1, *[1] * (x.dim() - 1))
        kept = [torch.where(moved, *both) for both in zip(new[:2], old[:2], strict=True)]
        if old.energy_grad is not None and new.energy_grad is not None:
            kept += [torch.where(rows, *both) for both in zip(new[2:], old[2:], strict=True)]
        self._cache = x, Parts(*kept)

    def parts(self, x: Tensor, with_grad: bool = False) -> Parts:
        """Energy and log q of rows; cached for the last ones."""
        rows, parts = self._cache
        if rows is x and not (with_grad and parts.energy_grad is None):
            return parts
        parts = self._with_grad(x) if with_grad else self._without_grad(x)
        self._cache = x, parts
        return parts

    def _without_grad(self, x: Tensor) -> Parts:
        log_q = self.base.log_prob(x)
        if self.energy.corrects(self.base):  # which is evaluated once then
            return Parts(self.energy.correction(x).detach() - log_q, log_q)
        return Parts(self.energy(x).detach(), log_q)

    def _with_grad(self, x: Tensor) -> Parts:
        log_q, score = self._log_q_and_score(x)
        energy: Any = self.energy
        if self.energy.corrects(self.base):
            value, grad = energy.correction_and_grad(x)
            return Parts(value - log_q, log_q, grad - score, score)
        value, grad = energy.value_and_grad(x)
        return Parts(value, log_q, grad, score)

    def _log_q_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log q of rows and its gradient, detached."""
        closed = type(self.base).log_prob_and_score is not Distribution.log_prob_and_score
        if closed or isinstance(self.base, Gaussian):  # a fourth of the cost of autograd
            with torch.no_grad():
                log_q, score = self.base.log_prob_and_score(x)
            return log_q, score
        with torch.enable_grad():
            at = x.detach().requires_grad_(True)
            log_q = self.base.log_prob(at)
            score = torch.zeros_like(x)
            if log_q.requires_grad:
                (score,) = torch.autograd.grad(log_q.sum(), at)
        return log_q.detach(), score


class Geometric(Energy):
    r"""A bridge of a :class:`GeometricPath`: :math:`\beta E(x) - (1 - \beta) \log q(x)`."""

    def __init__(self, path: GeometricPath, beta: float):
        super().__init__()
        self.domain = path.energy.domain
        self.energy = path.energy  # as a submodule, so that its training mode is restored
        self.path, self.beta = path, beta

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        if torch.is_grad_enabled():
            return self.beta * self.energy(x) - (1 - self.beta) * self.path.base.log_prob(x)
        parts = self.path.parts(x)
        return self._interpolate(parts.energy, parts.log_q)

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        parts: Any = self.path.parts(x, with_grad=True)
        value = self._interpolate(parts.energy, parts.log_q)
        return value, self._interpolate(parts.energy_grad, parts.log_q_grad)

    def _interpolate(self, energy: Tensor, log_q: Tensor) -> Tensor:
        return self.beta * energy - (1 - self.beta) * log_q
