r"""log Z of conditions: by quadrature where x has one or two columns, else by annealing.

Chains take their numbers from a seed and from their own condition alone, so that a condition has
the same log Z beside any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base.processes import progress_bar
from skebm.distributions.transformed.regression import RowMixtures
from skebm.energies import ConditionalEnergy, RowwiseEnergy
from skebm.estimators.rbm.gated.given import Numbers
from skebm.objectives.conditional import draw_ends, log_mean_of_chains

# Standard error of log Z, in nats, with which annealing is content; chains and temperatures at
# first, the growth of the latter, and the Langevin steps before annealing backward.
MAX_ERROR, FEWEST_TEMPERATURES, GROWTH, N_BURN_IN = 0.1, 30, 4, 10
# Standard error of weights that are all equal but for rounding: the model is the base.
EQUAL_WEIGHTS = 1e-9
# Draws of importance sampling for each chain of annealing.
DRAWS_PER_CHAIN = 20
# Numbers that are held at once, and conditions.
CHUNK, BLOCK = 2_000_000, 256
# Quadrature: nodes of a component's standard deviation, and standard deviations on either side;
# nodes of a column at most, where it is the only one or one of two; nats by which half of the
# nodes may be off.
PER_DEVIATION, DEVIATIONS, MOST_NODES, TOLERANCE = 2.0, 8.0, {1: 5000, 2: 70}, 1e-4
# Nats below its largest value where a density has vanished.
VANISHED = 16.0
# Nodes that no condition needs, and numbers that a network holds for each node.
MOST, NODE_WIDTH = 1e6, 50
# Log-weight below which a component of the base has no part in the range of the nodes.
NEGLIGIBLE = -30.0
# A pilot run: conditions, steps, acceptance that is aimed at, first step size.
N_PILOTS, N_PILOT_STEPS, TARGET_ACCEPTANCE, FIRST_STEP = 100, 40, 0.7, 0.2

# Uniform numbers of a step of all chains, (m n, dx + 1).
Uniforms = Callable[[], Tensor]


class Normaliser(NamedTuple):
    """log Z of n conditions relative to the base, float64, and what was found on the way.

    Attributes
    ----------
    value, std_error : Tensor of shape (n,)
        log Z and its standard error, which is 0 where `exact`. Annealing is unbiased for Z, so that
        log Z is low on average.
    upper : Tensor of shape (n,)
        log Z by annealing from draws of the model back to the base, which is high on average if
        these are from the model. Equal to `value` where `exact`.
    mean : Tensor of shape (n, dx)
        Mean of x given each condition.
    exact : Tensor of shape (n,), bool
        Whether log Z is by quadrature that has converged.
    mean_error : Tensor of shape (n, dx)
        Standard error of `mean`, 0 where `exact`.
    """

    value: Tensor
    std_error: Tensor
    upper: Tensor
    mean: Tensor
    exact: Tensor
    mean_error: Tensor

    def put(self, index: Tensor, new: Normaliser) -> None:
        """Write those of some conditions."""
        for part, part_new in zip(self, new, strict=True):
            part[index] = part_new


class Annealing(NamedTuple):
    """Settings of the annealing of log Z, for many columns and where quadrature does not converge.

    Attributes
    ----------
    n_chains, n_temperatures : int
        Number of chains for each condition, and maximum number of temperatures.
    step_size : float
        Of Langevin steps.
    seed : int
    """

    n_chains: int
    n_temperatures: int
    step_size: float
    seed: int


@torch.no_grad()
def log_normalisers(
    energy: ConditionalEnergy,
    c: Tensor,
    settings: Annealing,
    *,
    upper: bool = True,
    verbose: int = 0,
) -> Normaliser:
    """log Z of conditions c (n, dc), in the precision of the energy.

    With one or two columns, log Z is computed by quadrature where this converges. Otherwise it is
    estimated by importance sampling from the base if its standard error is then at most 0.1, and
    else by annealed importance sampling with 30, 120, 480, ... temperatures. `upper` says whether
    to anneal backward as well, and `verbose` whether to show a progress bar if it takes longer than
    two seconds.
    """
    blocks = progress_bar(c.split(BLOCK), unit="block", desc="log Z", disable=not verbose, delay=2)
    parts = [_of_block(energy, some, settings, upper) for some in blocks]
    return Normaliser(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _of_block(energy: ConditionalEnergy, c: Tensor, settings: Annealing, upper: bool) -> Normaliser:
    n, dx = len(c), energy.target_domain.n_columns
    none = torch.full((n,), torch.nan, dtype=torch.float64, device=c.device)
    found = Normaliser(none, none.clone(), none.clone(), *_no_means(none, dx))
    if dx <= max(MOST_NODES):
        found.put(torch.arange(n, device=c.device), by_quadrature(energy, c))
    finite = energy.base.given(c).log_weight.isfinite().all(1)  # overflows far away
    ladder = _numbers_of_temperatures(settings.n_temperatures)
    for n_betas in ladder:
        left = (finite & ~found.exact & ~(found.std_error <= MAX_ERROR)).nonzero().ravel()
        if not len(left):
            break
        n_chains = settings.n_chains * (DRAWS_PER_CHAIN if n_betas == 1 else 1)
        worst = math.inf if n_betas == ladder[-1] else MAX_ERROR
        back_to = worst if upper else -math.inf
        found.put(left, _by_annealing(energy, c[left], settings, n_chains, n_betas, back_to))
    return found


def _no_means(none: Tensor, dx: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means that are not known, whether they are exact, and their errors."""
    mean = none[:, None].repeat(1, dx)
    return mean, none > 0, mean.clone()


def _numbers_of_temperatures(most: int) -> list[int]:
    """Numbers of temperatures that are tried, 1 for importance sampling."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, GROWTH * found[-1] if found[-1] > 1 else FEWEST_TEMPERATURES))
    return found


# ------------------------------------------------------------------------------
# Quadrature
# ------------------------------------------------------------------------------


def by_quadrature(energy: ConditionalEnergy, c: Tensor) -> Normaliser:
    """log Z by the trapezoidal rule on a grid of each condition.

    The rule converges faster than any power for smooth densities that vanish at the ends. The grid
    has two nodes per standard deviation of the narrowest component of the base, and extends eight
    standard deviations beyond all components. It is made twice as fine, or twice as wide if the
    density does not vanish at its ends, until half of the nodes give the same log Z to within 1e-4.
    These values are `exact`. Those that would need too many nodes have an infinite standard error.
    """
    low, high, size = _grid(energy.given(c))
    n, dx = low.shape
    value = torch.full((n,), torch.nan, dtype=torch.float64, device=c.device)
    error, (mean, exact, mean_error) = value.nan_to_num(torch.inf), _no_means(value, dx)
    found = Normaliser(value, error, value, mean, exact, mean_error)
    while True:
        left = (~exact & (size <= MOST_NODES[dx])).nonzero().ravel()
        if not len(left):
            return found
        for nodes in size[left].unique().tolist():
            some = left[size[left] == nodes]
            for rows in some.split(max(1, CHUNK // (nodes**dx * NODE_WIDTH))):
                given = energy.given(c[rows])
                new, open_ends = _trapezoid(given, low[rows], high[rows], nodes)
                found.put(rows, new)
                more = (high[rows] - low[rows]) / 2 * open_ends[:, None]
                low[rows], high[rows] = low[rows] - more, high[rows] + more
        size[left] = 2 * size[left] - 1


def _grid(given: RowwiseEnergy) -> tuple[Tensor, Tensor, Tensor]:
    """Ends of the ranges of columns, (n, dx), and nodes of a column, (n,), a power of 2, plus 1."""
    base = given.base
    scale = base.scale_tril.square().sum(2).sqrt()  # (K, dx)
    counts = (base.log_weight > NEGLIGIBLE)[..., None]
    width = DEVIATIONS * scale
    low = (base.means - width).masked_fill(~counts, torch.inf).amin(1)
    high = (base.means + width).masked_fill(~counts, -torch.inf).amax(1)
    least = scale.expand_as(base.means).masked_fill(~counts, torch.inf).amin(1)
    needed = ((high - low) / least * PER_DEVIATION).amax(1).nan_to_num(MOST).clamp(2, MOST)
    return low, high, (2 ** needed.log2().ceil() + 1).long()


def _trapezoid(
    given: RowwiseEnergy, low: Tensor, high: Tensor, n_nodes: int
) -> tuple[Normaliser, Tensor]:
    """log Z by so many nodes of a column, and where the density does not vanish at the ends, (n,).

    Errors are infinite there, and where half of the nodes differ.
    """
    n, dx = low.shape
    t = torch.linspace(0, 1, n_nodes, dtype=low.dtype, device=low.device)
    axes = torch.meshgrid(*[t] * dx, indexing="ij")
    grid = torch.stack([axis.flatten() for axis in axes], 1)  # (N, dx)
    x = low + grid[:, None] * (high - low)  # (N, n, dx)
    log_p = -given(x.flatten(0, 1)).double().view(len(grid), n)
    cell = ((high - low) / (n_nodes - 1)).double().log().sum(1)
    value = log_p.logsumexp(0) + cell
    places = torch.stack(torch.meshgrid(*[torch.arange(n_nodes)] * dx, indexing="ij"), dx)
    second = (places % 2 == 0).all(dx).flatten().to(low.device)
    half = log_p[second].logsumexp(0) + cell + dx * math.log(2)
    mean = torch.einsum("Nn,Nnd->nd", (log_p - log_p.logsumexp(0)).exp(), x.double())
    ends = ((places == 0) | (places == n_nodes - 1)).any(dx).flatten().to(low.device)
    open_ends = log_p[ends].amax(0) > log_p.amax(0) - VANISHED
    exact = ((value - half).abs() <= TOLERANCE) & ~open_ends
    error = torch.full_like(value, torch.inf).masked_fill(exact, 0.0)
    mean_error = error[:, None].repeat(1, dx)
    return Normaliser(value, error, value, mean, exact, mean_error), open_ends


# ------------------------------------------------------------------------------
# Annealing
# ------------------------------------------------------------------------------


def _by_annealing(
    energy: ConditionalEnergy,
    c: Tensor,
    settings: Annealing,
    n_chains: int,
    n_betas: int,
    worst: float,
) -> Normaliser:
    """log Z of conditions; chains go back where its standard error is at most `worst`."""
    width = energy.target_domain.n_columns + 1
    size = max(1, CHUNK // (n_chains * (width + c.shape[1])))
    parts = []
    for some in c.split(size):
        uniforms = Numbers(some, width, n_chains, settings.seed)
        log_weight, x = annealed(energy.given(some), n_betas, uniforms, settings.step_size)
        known = energy.given(some).base if n_betas == 1 else None
        found = _summary(log_weight, x, n_chains, known)
        back = (found.std_error > EQUAL_WEIGHTS) & (found.std_error <= worst)
        if back.any():
            x, log_weight = (
                part.view(n_chains, len(some), -1)[:, back] for part in (x, log_weight)
            )
            given, flat = energy.given(some[back]), (x.flatten(0, 1), log_weight.flatten())
            found.upper[back] = _backward(given, *flat, settings, n_betas)
        parts.append(found)
    return Normaliser(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _summary(log_weight: Tensor, x: Tensor, n_chains: int, base: RowMixtures | None) -> Normaliser:
    """log Z, its error and the means, from the weights of all chains (m n,) and their ends.

    Where the ends are draws of `base`, the error of their plain mean is known, and is taken away:
    the mean has no error where weights are equal.
    """
    log_weight = log_weight.view(n_chains, -1)
    value = log_weight.logsumexp(0) - math.log(n_chains)
    error = (log_weight - value).exp().std(0) / math.sqrt(n_chains)
    share, rows = log_weight.softmax(0), x.view(n_chains, len(value), -1).double()
    mean = (share[..., None] * rows).sum(0)
    apart = n_chains * share[..., None] * (rows - mean)
    if base is not None:
        centre = (base.log_weight.double().softmax(1)[..., None] * base.means.double()).sum(1)
        mean = mean - (rows.mean(0) - centre)
        apart = apart - (rows - centre)
    mean_error = apart.std(0) / math.sqrt(n_chains)
    exact = torch.zeros_like(value, dtype=torch.bool)
    return Normaliser(value, error, value.clone(), mean, exact, mean_error)


def _backward(
    given: RowwiseEnergy, x: Tensor, log_weight: Tensor, settings: Annealing, n_betas: int
) -> Tensor:
    """log Z by annealing to the base, from ends x of forward chains drawn by their weights, (n,).

    High on average if these, after some steps, are draws of the model.
    """
    n_chains, step = settings.n_chains, settings.step_size
    uniforms = Numbers(given.c, x.shape[1] + 1, n_chains, settings.seed + 1)
    x = draw_ends(x, log_weight, uniforms()[:, 0], n_chains)
    x = moved(given, x, N_BURN_IN, uniforms, step)
    found, _ = annealed(given, max(n_betas, FEWEST_TEMPERATURES), uniforms, step, x)
    return -log_mean_of_chains(-found, n_chains)


@torch.no_grad()
def annealed(
    given: RowwiseEnergy,
    n_betas: int,
    uniforms: Uniforms,
    step_size: float,
    starts: Tensor | None = None,
    power: float = 1.0,
) -> tuple[Tensor, Tensor]:
    r"""Annealed importance sampling of Z(c), with as many chains as `uniforms` has rows.

    The path is :math:`q(x \mid c)\, e^{-\beta f(c, x)}` with evenly spaced :math:`\beta` and a step
    of MALA at each; one temperature is importance sampling from the base. With another `power` the
    path ends at this power of the model, and the values are those of its normaliser.

    Direction: forward, exp(value) has the mean Z, so that values are low on average. From `starts`
    that are draws of p(x | c), exp(-value) has the mean 1 / Z, so that values are high on average.

    Parameters
    ----------
    given : RowwiseEnergy
        Of n conditions.
    n_betas : int
        Number of steps between base and model.
    uniforms : callable
        ``uniforms()`` returns uniform numbers of a step, (m n, dx + 1).
    step_size : float
        Of Langevin steps, in units of the rows squared.
    starts : Tensor of shape (m n, dx) or None, default=None
        Where backward annealing starts. None: forward, from the base.

    Returns
    -------
    tuple of Tensor of shape (m n,), float64, and (m n, dx)
        A value of log Z for each chain, and the rows at its end.
    """
    betas = torch.linspace(0, 1, n_betas + 1).tolist()
    if starts is None:
        u = uniforms()
        x = given.base.of_noise(u[:, 0], _normal(u[:, 1:]))
    else:
        betas.reverse()
        x = starts
    state, total = _Parts.at(given, x), torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for place, new in enumerate(betas[1:], 1):
        derivative = power * state.f.double() - (power - 1) * state.log_q.double()
        total -= (new - betas[place - 1]) * derivative
        if place < n_betas:
            state = _langevin(given, state, uniforms(), step_size, new, power)
    return total if starts is None else -total, state.x


def moved(
    given: RowwiseEnergy,
    x: Tensor,
    n_steps: int,
    uniforms: Uniforms,
    step_size: float,
    power: float = 1.0,
) -> Tensor:
    """Rows x (m n, dx) after some steps of MALA at p(x | c) to a power."""
    state = _Parts.at(given, x)
    for _ in range(n_steps):
        state = _langevin(given, state, uniforms(), step_size, 1.0, power)
    return state.x


class _Parts(NamedTuple):
    """Rows x with log q, f and their gradients, of which every temperature is made."""

    x: Tensor
    log_q: Tensor
    score: Tensor
    f: Tensor
    f_grad: Tensor

    @classmethod
    def at(cls, given: RowwiseEnergy, x: Tensor) -> _Parts:
        f, f_grad = given.trained_and_grad(x)
        return cls(x, *given.base.log_prob_and_score(x), f, f_grad)

    def energy_and_grad(self, beta: float, power: float) -> tuple[Tensor, Tensor]:
        """-log q + beta f at power 1 and its gradient; from q to the model to a power."""
        of_f, of_q = beta * power, 1 + beta * (power - 1)
        return of_f * self.f - of_q * self.log_q, of_f * self.f_grad - of_q * self.score


def _langevin(
    given: RowwiseEnergy,
    state: _Parts,
    u: Tensor,
    step_size: float,
    beta: float,
    power: float = 1.0,
) -> _Parts:
    """A step of MALA by uniform numbers u (m n, dx + 1)."""
    energy, grad = state.energy_and_grad(beta, power)
    z, width = _normal(u[:, 1:]), math.sqrt(2 * step_size)
    new = _Parts.at(given, state.x - step_size * grad + width * z)
    energy_new, grad_new = new.energy_and_grad(beta, power)
    back = (state.x - new.x + step_size * grad_new) / width
    log_ratio = energy - energy_new + (z.square() - back.square()).sum(1) / 2
    accepted = u[:, 0].log() < log_ratio  # False where the ratio is no number

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(accepted if a.dim() == 1 else accepted[:, None], a, b)

    return _Parts(*map(pick, new, state))


def _normal(u: Tensor) -> Tensor:
    """Standard normal numbers by uniform ones."""
    tiny = torch.finfo(u.dtype).eps / 2
    return torch.special.ndtri(u.clamp(tiny, 1 - tiny))


def pilot_step(given: RowwiseEnergy, x: Tensor, generator: torch.Generator) -> float:
    """A step size of MALA by which chains from rows x (n, dx) accept 0.7 of their steps."""
    step, state = FIRST_STEP, _Parts.at(given, x)
    for k in range(N_PILOT_STEPS):
        u = torch.rand(len(x), x.shape[1] + 1, generator=generator, dtype=x.dtype, device=x.device)
        new = _langevin(given, state, u, step, 1.0)
        acceptance = float((new.x != state.x).any(1).double().mean())
        step *= math.exp((acceptance - TARGET_ACCEPTANCE) / math.sqrt(1 + k / 4))
        state = new
    return step
