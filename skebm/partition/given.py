r"""log Z of each condition, by annealing chains that share nothing but their temperatures.

An energy given conditions, such as :class:`~skebm.energies.RowwiseRBM`, has a log Z for each of
them. Chains are laid out like its rows: with m chains for each of n conditions, rows number i,
n + i, 2 n + i, ... have condition i.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import Interval
from skebm.base import Conditional, sampling
from skebm.base.torchtools import shifts, softplus, softplus_sum
from skebm.base.units import Bernoulli, Normal
from skebm.distributions._fitting import draw_index
from skebm.energies import (
    GatedEnergy,
    GivenEnergy,
    RowwiseEnergy,
    RowwiseRBM,
    Targets,
    TemporalEnergy,
)
from skebm.energies.rbm.temporal import exact_log_z
from skebm.partition.annealed import AnnealingSteps, anneal

# Chains of a frame and temperatures of a short annealing, which compares models; hidden states up
# to which log Z is a sum instead.
N_CHAINS, N_BETAS, FEW_STATES = 2, 50, 256
# Uniform numbers of the next step of all chains, (m n, width).
Uniforms = Callable[[], Tensor]


class LogZGiven(NamedTuple):
    """log Z of n conditions, float64, and what was found on the way.

    Attributes
    ----------
    value, std_error : Tensor of shape (n,)
        log Z and its standard error, which is 0 where `exact`. Annealing is unbiased for Z, so that
        log Z is low on average.
    upper : Tensor of shape (n,)
        log Z by annealing from draws of the model back to the base, which is high on average if
        these are from the model. Equal to `value` where `exact`, and where nobody asked for it.
    exact : Tensor of shape (n,), bool
        Whether log Z is a sum, or by quadrature that has converged.
    draws : Tensor of shape (n, d) or None
        A row of each distribution, resampled by the weights.
    mean, mean_error : Tensor of shape (n, d) or None
        Mean of each distribution and its standard error, 0 where `exact`.
    """

    value: Tensor
    std_error: Tensor
    upper: Tensor
    exact: Tensor
    draws: Tensor | None = None
    mean: Tensor | None = None
    mean_error: Tensor | None = None

    @classmethod
    def exactly(cls, value: Tensor, draws: Tensor | None = None) -> LogZGiven:
        """Exact values, (n,)."""
        value = value.double()
        exact = torch.ones_like(value, dtype=torch.bool)
        return cls(value, torch.zeros_like(value), value.clone(), exact, draws)

    @classmethod
    def unknown(cls, n: int, device: torch.device, n_columns: int | None = None) -> LogZGiven:
        """What nothing is known of yet, with means of `n_columns`; not exact."""
        none = torch.full((n,), torch.nan, dtype=torch.float64, device=device)
        error, exact = torch.full_like(none, torch.inf), none > 0
        if n_columns is None:
            return cls(none, error, none.clone(), exact)
        mean = none[:, None].repeat(1, n_columns)
        return cls(none, error, none.clone(), exact, None, mean, mean.clone())

    def put(self, index: Tensor, new: LogZGiven) -> None:
        """Write those of some conditions, in place."""
        for part, part_new in zip(self, new, strict=True):
            if part is not None and part_new is not None:
                part[index] = part_new

    def refine(
        self,
        estimate: Callable[[Tensor, int], LogZGiven],
        numbers: Sequence[int],
        max_error: float,
        possible: Tensor | None = None,
    ) -> None:
        """Estimate anew, with growing numbers of temperatures, what is not precise enough.

        Parameters
        ----------
        estimate : callable
            ``estimate(index, n_temperatures)`` of the conditions with these numbers.
        numbers : sequence of int
            Numbers of temperatures.
        max_error : float
            Standard error, in nats, that is enough.
        possible : Tensor of shape (n,), bool, or None, default=None
            Conditions of which there is an estimate at all.
        """
        for n_temperatures in numbers:
            left = ~self.exact & ~(self.std_error <= max_error)
            left = left if possible is None else left & possible
            index = left.nonzero().ravel()
            if not len(index):
                return
            self.put(index, estimate(index, n_temperatures))


class ConditionalAIS(BaseEstimator):
    r"""Annealed importance sampling of the log Z of each condition, as precise as is asked for.

    All conditions are annealed with few temperatures at first, and those whose standard errors are
    then above `max_error` with four times as many, again and again.

    Parameters
    ----------
    n_chains : int, default=10
        Number of chains for each condition, at least two.
    n_betas : int, default=480
        Maximum number of inverse temperatures.
    max_error : float, default=0.1
        Standard error of log Z, in nats, for which no more temperatures are needed.

    See Also
    --------
    AIS : log Z of models whose rows share one.

    Examples
    --------
    >>> from skebm import ConditionalDensity
    >>> from skebm.partition import ConditionalAIS
    >>> model = ConditionalDensity(partition=ConditionalAIS(n_chains=20))
    >>> model.set_params(partition__n_betas=100).partition
    ConditionalAIS(n_betas=100, n_chains=20)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_chains": [Interval(Integral, 2, None, closed="left")],
        "n_betas": [Interval(Integral, 1, None, closed="left")],
        "max_error": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(self, n_chains: int = 10, n_betas: int = 480, max_error: float = 0.1):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.max_error = max_error


def numbers_of_temperatures(first: int, most: int) -> list[int]:
    """Numbers of temperatures that are tried one after the other, four times as many each."""
    numbers = [min(first, most)]
    # How many times as many temperatures are tried where too few were not precise enough.
    growth = 4
    while numbers[-1] < most:
        numbers.append(min(most, growth * numbers[-1]))
    return numbers


def cat(parts: Sequence[LogZGiven]) -> LogZGiven:
    """Those of all conditions, from those of successive ones."""
    joined = [None if p[0] is None else torch.cat(p) for p in zip(*parts, strict=True)]
    return LogZGiven(*joined)  # type: ignore[arg-type]


class RowUniforms:
    """Uniform numbers of chains of rows, the same for a row whatever the others are.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
    width : int
        Numbers of a step of a chain.
    n_chains : int
    seed : int
    """

    def __init__(self, rows: Tensor, width: int, n_chains: int, seed: int):
        self.shift = shifts(rows, width, seed).to(rows.dtype)
        self.generator, self.n_chains = torch.Generator().manual_seed(seed), n_chains

    def __call__(self) -> Tensor:
        """Those of the next step, (n_chains n, width)."""
        size = (self.n_chains, 1, self.shift.shape[1])
        u = torch.rand(size, generator=self.generator, dtype=self.shift.dtype)
        return (u.to(self.shift.device) + self.shift).remainder_(1.0).flatten(0, 1)


def uniforms_of(generator: torch.Generator, size: tuple[int, int], like: Tensor) -> Uniforms:
    """Uniform numbers of a generator, of one size."""
    return lambda: torch.rand(size, generator=generator, dtype=like.dtype, device=like.device)


def normal_of(u: Tensor) -> Tensor:
    """Standard normal numbers by uniform ones."""
    tiny = torch.finfo(u.dtype).eps / 2
    return torch.special.ndtri(u.clamp(tiny, 1 - tiny))


def draw_of(conditional: Conditional, u: Tensor) -> Tensor:
    """A draw of a layer, made from uniform numbers u of its shape."""
    if isinstance(conditional, Normal):
        return conditional.mean + conditional.scale * normal_of(u)
    return (u < conditional.mean).to(u.dtype)


# ------------------------------------------------------------------------------
# Annealing
# ------------------------------------------------------------------------------


class StepsGiven(AnnealingSteps):
    """Steps of annealing from a start whose log Z is known for each chain.

    Attributes
    ----------
    log_z0 : float or Tensor of shape (m n,)
        log Z of the start.
    """

    log_z0: float | Tensor = 0.0

    @abc.abstractmethod
    def start(self) -> Any:
        """States that are draws of the start."""

    @abc.abstractmethod
    def at(self, x: Tensor) -> Any:
        """States at rows x, (m n, d)."""

    @abc.abstractmethod
    def rows(self, state: Any) -> Tensor:
        """The rows of states, (m n, d)."""


@torch.no_grad()
def annealed_log_z(
    steps: StepsGiven, n_betas: int, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Annealed importance sampling of the log Z of each chain, with evenly spaced temperatures.

    Direction: in forward annealing, exp(value) has the mean Z, so that values are low on average.
    In backward annealing from `starts` that are draws of the model, exp(-value) has the mean 1 / Z,
    so that values are high on average. Rows of data are seldom such draws, and values from them are
    then less informative.

    Parameters
    ----------
    steps : StepsGiven
    n_betas : int
        Number of steps between start and model; 1 is importance sampling from the start.
    starts : Tensor of shape (m n, d) or None, default=None
        Rows at which backward annealing starts. With None, annealing is forward.

    Returns
    -------
    tuple of Tensor of shape (m n,), float64, and (m n, d)
        A value of log Z for each chain, and the rows at its end.
    """
    betas = torch.linspace(0, 1, n_betas + 1).tolist()
    if starts is not None:
        betas.reverse()
    state = steps.start() if starts is None else steps.at(starts)
    total: Any = 0.0
    for increment, now in anneal(steps, state, betas):
        total, state = total + increment, now
    return steps.log_z0 + (total if starts is None else -total), steps.rows(state)


def log_mean_of_chains(values: Tensor, n_chains: int) -> Tensor:
    """Log of the mean of exp(values) over the chains of each condition, (n,), from (m n,)."""
    return values.view(n_chains, -1).logsumexp(0) - math.log(n_chains)


def estimate_of_chains(values: Tensor, n_chains: int) -> tuple[Tensor, Tensor]:
    """As :func:`log_mean_of_chains`, and its standard error, (n,) each."""
    value = log_mean_of_chains(values, n_chains)
    ratio = (values.view(n_chains, -1) - value).exp()
    return value, ratio.std(0) / math.sqrt(n_chains)


def resample(x: Tensor, values: Tensor, u: Tensor, n_draws: int) -> Tensor:
    """Ends x (m n, d) of chains, `n_draws` of each condition by their weights, (n_draws n, d).

    `u` are uniform numbers, (n_draws n,).
    """
    n = len(u) // n_draws
    share = values.view(-1, n).softmax(0).t().repeat(n_draws, 1)
    pick = draw_index(share, u.to(share))
    place = torch.arange(n, device=x.device).repeat(n_draws)
    return x.view(-1, n, x.shape[1])[pick, place]


# ------------------------------------------------------------------------------
# Steps of energies given conditions
# ------------------------------------------------------------------------------


class GatedState(NamedTuple):
    """Rows y (m n, dy) and the fields of the mapping units, (m n, H)."""

    y: Tensor
    field: Tensor


class GatedSteps(StepsGiven):
    r"""Block Gibbs sampling of y given x along :math:`q(y)^{1 - \beta} e^{-\beta E(y, h)}`.

    Parameters
    ----------
    given : GivenEnergy
        Energy of y given a row x for each chain.
    uniforms : callable
        Numbers of a step, (m n, H + dy): for h, then for y.
    """

    def __init__(self, given: GivenEnergy, uniforms: Uniforms):
        self.given, self.uniforms = given, uniforms
        self.n_hidden = given.hidden_domain.n_columns
        self.log_z0 = self.n_hidden * math.log(2)

    @staticmethod
    def width(given: GivenEnergy) -> int:
        """Uniform numbers of a step."""
        return given.hidden_domain.n_columns + given.domain.n_columns

    def start(self) -> GatedState:
        u = self.uniforms()
        free = torch.zeros_like(u[:, : self.n_hidden])
        return self.at(draw_of(self.given.annealed(0.0).visible(free), u[:, self.n_hidden :]))

    def at(self, x: Tensor) -> GatedState:
        return GatedState(x, self.given.hidden_field(x))

    def rows(self, state: GatedState) -> Tensor:
        return state.y

    def log_ratio(self, state: GatedState, old: float, new: float) -> Tensor:
        y, field = state
        unary = -self.given.visible_energy(y) - self.given.base.log_prob(y)
        change = softplus_sum(new * field) - softplus_sum(old * field)
        return ((new - old) * unary + change).double()

    def step(self, state: GatedState, beta: float) -> GatedState:
        u = self.uniforms()
        h = draw_of(Bernoulli((beta * state.field).sigmoid_()), u[:, : self.n_hidden])
        return self.at(draw_of(self.given.annealed(beta).visible(h), u[:, self.n_hidden :]))

    def rows_after(self, y: Tensor, n_steps: int, beta: float = 1.0) -> Tensor:
        """Rows after Gibbs steps at the model, or at the model to the power `beta`."""
        for _ in range(n_steps):
            u = self.uniforms()
            h = draw_of(self.given.hidden(y, beta), u[:, : self.n_hidden])
            y = draw_of(self.given.visible(h, beta), u[:, self.n_hidden :])
        return y


@torch.no_grad()
def gated_gains(
    energy: GatedEnergy, rows: Tensor, generator: torch.Generator, n_chains: int, n_betas: int
) -> Tensor:
    """log p(y given x) - log q(y) of rows (x, y), (n,) in float64, for comparisons of models.

    Direction: annealing forward from the base gives a log Z that is low on average; annealing
    backward from y gives one that is high on average if y is a draw of the model. The larger of
    the two is used.
    """
    x, y = energy.split(rows)
    given = energy.given(x).of_chains(n_chains)
    size = (n_chains * len(x), GatedSteps.width(given))
    steps = GatedSteps(given, uniforms_of(generator, size, rows))
    forward, _ = annealed_log_z(steps, n_betas)
    backward, _ = annealed_log_z(steps, n_betas, y.repeat(n_chains, 1))
    low = log_mean_of_chains(forward, n_chains)
    high = -log_mean_of_chains(-backward, n_chains)
    return -(energy(rows) + energy.base.log_prob(y)).double() - torch.maximum(low, high)


class WeakState(NamedTuple):
    """Rows x (m n, d), and what they add to the fields of the hidden units, (m n, H)."""

    x: Tensor
    added: Tensor


class RowwiseSteps(StepsGiven):
    """Gibbs sampling of an RBM with biases for each row, whose weights are annealed.

    The base and all biases, including those of the past, do not change, so that log Z of the start
    is exact.

    Parameters
    ----------
    given : RowwiseRBM
        With the biases of each chain.
    generator : torch.Generator
    """

    def __init__(self, given: RowwiseRBM, generator: torch.Generator):
        self.given, self.generator = given, generator
        self.bias = given.biases.hidden + given.rbm.hidden_bias
        self.off = given.weak(torch.zeros_like(self.bias), 0.0)
        of_hidden = softplus(self.bias).sum(1).double()
        self.log_z0 = self.off.log_normaliser.double() + of_hidden

    def start(self) -> WeakState:
        return self.at(self.off.sample(self.generator))

    def at(self, x: Tensor) -> WeakState:
        return WeakState(x, self.given.hidden_field(x) - self.bias)

    def rows(self, state: WeakState) -> Tensor:
        return state.x

    def log_ratio(self, state: WeakState, old: float, new: float) -> Tensor:
        bias, added = self.bias, state.added
        return (softplus(bias + new * added) - softplus(bias + old * added)).sum(1).double()

    def step(self, state: WeakState, beta: float) -> WeakState:
        return self.at(self.row_after(state, beta))

    def row_after(self, state: WeakState, beta: float) -> Tensor:
        """Rows after a Gibbs step, (m n, d)."""
        h = Bernoulli((self.bias + beta * state.added).sigmoid_()).sample(self.generator)
        drawn: Tensor = self.given.weak(h, beta).sample(self.generator)
        return drawn


@torch.no_grad()
def rowwise_log_z(
    given: RowwiseRBM, n_chains: int, n_betas: int, generator: torch.Generator
) -> LogZGiven:
    """log Z of each row by annealed importance sampling of `n_chains` chains a row, at least two.

    Direction: the estimate of Z is unbiased, so that log Z is low on average, by about half of the
    squared standard error.
    """
    n = len(given.biases.visible)
    # Chains of a row are successive here: their numbers then depend on the rows before alone.
    index = torch.arange(n, device=given.weight.device).repeat_interleave(n_chains)
    steps = RowwiseSteps(RowwiseRBM(given.rbm, given.biases.take(index)), generator)
    values, x = annealed_log_z(steps, n_betas)
    x = steps.row_after(steps.at(x), 1.0)
    values = values.view(n, n_chains)
    value, error = estimate_of_chains(values.t().reshape(-1), n_chains)
    pick = torch.multinomial(values.softmax(1), 1, generator=generator)[:, 0]
    draws = x.view(n, n_chains, -1)[torch.arange(n, device=x.device), pick]
    return LogZGiven(value, error, value.clone(), torch.zeros_like(value) > 0, draws)


@torch.no_grad()
def rowwise_log_z_from(
    given: RowwiseRBM, x: Tensor, n_betas: int, generator: torch.Generator
) -> Tensor:
    """log Z of each row by annealing from rows x (n, d) to the start, (n,) float64.

    Direction: the estimate is high on average if x are draws of the model.
    """
    steps = RowwiseSteps(given, generator)
    x = steps.row_after(steps.at(x), 1.0)
    return annealed_log_z(steps, n_betas, x)[0]


@torch.no_grad()
def frames_log_prob(energy: TemporalEnergy, targets: Targets, generator: torch.Generator) -> Tensor:
    """log p of targets given their past, (m,) float64, by enumeration or short annealing.

    Direction: exact with few hidden units; otherwise high on average, as estimates of log Z are
    low.
    """
    with sampling(energy):
        given = RowwiseRBM(energy.rbm, targets.biases)
        free = given.free_energy(targets.x).double()
        if given.hidden_domain.n_states <= FEW_STATES:
            return -free - exact_log_z(given).double()
        return -free - rowwise_log_z(given, N_CHAINS, N_BETAS, generator).value


class LangevinState(NamedTuple):
    """Rows x with log q, f and their gradients, of which every temperature is made."""

    x: Tensor
    log_q: Tensor
    score: Tensor
    f: Tensor
    f_grad: Tensor

    def energy_and_grad(self, beta: float, power: float) -> tuple[Tensor, Tensor]:
        """-log q + beta f at power 1 and its gradient; from q to the model to a power."""
        of_f, of_q = beta * power, 1 + beta * (power - 1)
        return of_f * self.f - of_q * self.log_q, of_f * self.f_grad - of_q * self.score


class LangevinSteps(StepsGiven):
    r"""MALA along :math:`q(x \mid c)\, e^{-\beta f(c, x)}`.

    With another `power` the path ends at this power of the model, and log Z is that of this power.

    Parameters
    ----------
    given : RowwiseEnergy
        Of n conditions.
    uniforms : callable
        Numbers of a step, (m n, dx + 1).
    step_size : float
        Of Langevin steps, in units of the rows squared.
    power : float, default=1.0
    """

    def __init__(
        self, given: RowwiseEnergy, uniforms: Uniforms, step_size: float, power: float = 1.0
    ):
        self.given, self.uniforms, self.step_size, self.power = given, uniforms, step_size, power

    def start(self) -> LangevinState:
        u = self.uniforms()
        return self.at(self.given.base.of_noise(u[:, 0], normal_of(u[:, 1:])))

    def at(self, x: Tensor) -> LangevinState:
        f, f_grad = self.given.parametric_energy_and_grad(x)
        return LangevinState(x, *self.given.base.log_prob_and_score(x), f, f_grad)

    def rows(self, state: LangevinState) -> Tensor:
        return state.x

    def log_ratio(self, state: LangevinState, old: float, new: float) -> Tensor:
        of_power = self.power * state.f.double() - (self.power - 1) * state.log_q.double()
        return -(new - old) * of_power

    def step(self, state: LangevinState, beta: float) -> LangevinState:
        u, step_size = self.uniforms(), self.step_size
        energy, grad = state.energy_and_grad(beta, self.power)
        z, width = normal_of(u[:, 1:]), math.sqrt(2 * step_size)
        new = self.at(state.x - step_size * grad + width * z)
        energy_new, grad_new = new.energy_and_grad(beta, self.power)
        back = (state.x - new.x + step_size * grad_new) / width
        log_ratio = energy - energy_new + (z.square() - back.square()).sum(1) / 2
        accepted = u[:, 0].log() < log_ratio  # False where the ratio is no number

        def pick(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(accepted if a.dim() == 1 else accepted[:, None], a, b)

        return LangevinState(*map(pick, new, state))

    def rows_after(self, x: Tensor, n_steps: int) -> Tensor:
        """Rows x (m n, dx) after some steps at the model to the power."""
        state = self.at(x)
        for _ in range(n_steps):
            state = self.step(state, 1.0)
        return state.x
