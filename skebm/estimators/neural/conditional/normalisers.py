r"""log Z and means given conditions: by quadrature of one or two columns of x, else by draws.

Chains take their numbers from a seed and from their own condition alone, so that a condition has
the same log Z beside any others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base.processes import progress_bar
from skebm.distributions import RowMixtures
from skebm.energies import ConditionalEnergy, RowwiseEnergy
from skebm.estimators.neural.conditional.quadrature import MOST_NODES, by_quadrature
from skebm.partition.given import (
    ConditionalAIS,
    LangevinSteps,
    LogZGiven,
    RowUniforms,
    annealed_log_z,
    cat,
    estimate_of_chains,
    log_mean_of_chains,
    normal_of,
    numbers_of_temperatures,
    resample,
    uniforms_of,
)

# Temperatures at first, and the Langevin steps before annealing backward.
FEWEST_TEMPERATURES, N_BURN_IN = 30, 10
# Draws of importance sampling for each chain of annealing, and where these are not enough, but so
# many more will be: they take less time than 120 temperatures, and are more precise than 480 where
# the model is near its base.
DRAWS_PER_CHAIN, MORE_DRAWS = 20, 400
# Numbers that are held at once, and conditions.
CHUNK, BLOCK = 200_000, 256
# Means: draws of the base, tried one after the other; error, relative to the standard deviation of
# the base, for which no more are needed; chains at least.
DRAWS_OF_MEAN, PRECISE_MEAN, CHAINS_OF_MEAN = (4000, 16_000, 64_000), 0.03, 200
# A pilot run: conditions, steps, acceptance that is aimed at, first step size.
N_PILOTS, N_PILOT_STEPS, TARGET_ACCEPTANCE, FIRST_STEP = 100, 40, 0.7, 0.2


class Annealing(NamedTuple):
    """Settings of the annealing of log Z, for many columns and where quadrature does not converge.

    Attributes
    ----------
    ais : ConditionalAIS
    step_size : float
        Of Langevin steps.
    seed : int
    """

    ais: ConditionalAIS
    step_size: float
    seed: int


@torch.no_grad()
def log_z_of_conditions(
    energy: ConditionalEnergy,
    c: Tensor,
    settings: Annealing,
    *,
    upper: bool = True,
    verbose: int = 0,
) -> LogZGiven:
    """log Z of conditions c (n, dc), in the precision of the energy.

    It is 0 where the model is its base. With one or two columns, log Z is computed by quadrature
    where this converges. Otherwise it is estimated by importance sampling from the base if its
    standard error is then small enough, with more draws if it would be by these, and else by
    annealed importance sampling with 30, 120, 480, ... temperatures. `upper` says whether to anneal
    backward as well, and `verbose` whether to show a progress bar if it takes longer than two
    seconds.
    """

    def of_block(some: Tensor) -> LogZGiven:
        found, possible = _without_draws(energy, some)
        draws = DRAWS_PER_CHAIN, MORE_DRAWS
        _refine_by_draws(found, energy, some, settings, possible, draws, upper)
        return found

    return cat([of_block(some) for some in _blocks(c, "log Z", verbose)])


@torch.no_grad()
def means_of_conditions(
    energy: ConditionalEnergy,
    c: Tensor,
    settings: Annealing,
    factor: Tensor,
    *,
    verbose: int = 0,
) -> LogZGiven:
    """Means of x of conditions c (n, dc) in ``mean``, and the errors of ``mean @ factor.T``.

    The mean of the base where the model is that; by quadrature of one or two columns where this
    converges. Otherwise weighted means of 4,000, 16,000 or 64,000 draws of the base, until the
    standard error is at most 3 % of the standard deviation of the base. Where the weights are too
    uneven, weighted means of at least 200 annealing chains.
    """
    ais = clone(settings.ais)
    chains = settings._replace(ais=ais.set_params(n_chains=max(CHAINS_OF_MEAN, ais.n_chains)))

    def of_block(some: Tensor) -> LogZGiven:
        found, possible = _without_draws(energy, some)
        assert found.mean_error is not None
        enough = PRECISE_MEAN * _standard_deviations(energy.base.given(some), factor)
        for n_draws in DRAWS_OF_MEAN:
            precise = found.exact | (found.mean_error <= enough).all(1)
            index = (possible & ~precise).nonzero().ravel()
            if len(index):
                asked = (energy, some[index], chains, n_draws, 1, -math.inf, factor)
                found.put(index, _by_annealing(*asked))
        _refine_by_draws(found, energy, some, chains, possible, (), False, factor)
        return found

    return cat([of_block(some) for some in _blocks(c, "means", verbose)])


def _blocks(c: Tensor, what: str, verbose: int) -> Iterable[Tensor]:
    """Some conditions at a time, with a progress bar."""
    return progress_bar(c.split(BLOCK), unit="block", desc=what, disable=not verbose, delay=2)


def _without_draws(energy: ConditionalEnergy, c: Tensor) -> tuple[LogZGiven, Tensor]:
    """What is known in closed form or by quadrature, and of which conditions there are draws."""
    base, dx = energy.base.given(c), energy.target_domain.n_columns
    possible = base.log_weight.isfinite().all(1)  # overflows far away
    found = LogZGiven.unknown(len(c), c.device, dx)
    if energy.is_base:
        mean = base.mean[possible].double()
        known = LogZGiven.exactly(mean.new_zeros(len(mean)))
        exact = known._replace(mean=mean, mean_error=torch.zeros_like(mean))
        found.put(possible.nonzero().ravel(), exact)
    elif dx <= max(MOST_NODES):
        found.put(torch.arange(len(c), device=c.device), by_quadrature(energy, c))
    return found, possible


def _refine_by_draws(
    found: LogZGiven,
    energy: ConditionalEnergy,
    c: Tensor,
    settings: Annealing,
    possible: Tensor,
    draws: tuple[int, ...],
    upper: bool,
    factor: Tensor | None = None,
) -> None:
    """Estimate, in place, what is not precise enough, by draws of the base and by annealing.

    `draws` are numbers for each chain. Of more than the first, the standard error is expected to
    fall with their square root: where that is not enough they are left out.
    """
    ais = settings.ais

    def estimate(index: Tensor, n_chains: int, n_betas: int, is_last: bool) -> LogZGiven:
        worst = (math.inf if is_last else ais.max_error) if upper else -math.inf
        return _by_annealing(energy, c[index], settings, n_chains, n_betas, worst, factor)

    anneals = ais.n_betas > 1
    for number in draws:
        late = possible & ~found.exact & ~(found.std_error <= ais.max_error)
        if number > draws[0] and anneals:
            late &= math.sqrt(draws[0] / number) * found.std_error <= ais.max_error
        index = late.nonzero().ravel()
        if len(index):
            is_last = number == draws[-1] and not anneals
            found.put(index, estimate(index, number * ais.n_chains, 1, is_last))
    if anneals:
        numbers = numbers_of_temperatures(FEWEST_TEMPERATURES, ais.n_betas)

        def anneal(index: Tensor, n_betas: int) -> LogZGiven:
            return estimate(index, ais.n_chains, n_betas, n_betas == numbers[-1])

        found.refine(anneal, numbers, ais.max_error, possible)


def _standard_deviations(base: RowMixtures, factor: Tensor) -> Tensor:
    """Of rows of the base times a matrix, ``x @ factor.T``, (n, dx)."""
    weight, factor = base.log_weight.exp()[..., None], factor.to(base.means)
    means = (base.means - base.mean[:, None]) @ factor.T
    within = (factor @ base.scale_tril).square().sum(2)
    return (weight * (means.square() + within)).sum(1).sqrt().double()


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
    factor: Tensor | None = None,
) -> LogZGiven:
    """log Z of conditions; chains go back where its standard error is at most `worst`.

    Errors of means are those of means times `factor` transposed.
    """
    width = energy.target_domain.n_columns + 1
    size = max(1, CHUNK // (n_chains * (width + c.shape[1])))
    parts = []
    # Standard error of weights that are all equal but for rounding: the model is the base.
    equal_weights = 1e-9
    for some in c.split(size):
        uniforms = RowUniforms(some, width, n_chains, settings.seed)
        given = energy.given(some)
        if n_betas == 1:  # without gradients
            u = uniforms()
            x = given.base.of_noise(u[:, 0], normal_of(u[:, 1:]))
            log_weight = -given.parametric_energy(x).double()
        else:
            steps = LangevinSteps(given, uniforms, settings.step_size)
            log_weight, x = annealed_log_z(steps, n_betas)
        known = given.base if n_betas == 1 else None
        found = _summary(log_weight, x, n_chains, known, factor)
        back = (found.std_error > equal_weights) & (found.std_error <= worst)
        if back.any():
            x, log_weight = (
                part.view(n_chains, len(some), -1)[:, back] for part in (x, log_weight)
            )
            ends, flat = x.flatten(0, 1), log_weight.flatten()
            found.upper[back] = _backward(energy.given(some[back]), ends, flat, settings, n_betas)
        parts.append(found)
    return cat(parts)


def _summary(
    log_weight: Tensor,
    x: Tensor,
    n_chains: int,
    base: RowMixtures | None,
    factor: Tensor | None,
) -> LogZGiven:
    """log Z, its error and the means, from the weights of all chains (m n,) and their ends.

    Where the ends are draws of `base`, its mean is a control variate: what their plain mean is off
    by is taken away, and the mean has no error where weights are equal.
    """
    value, error = estimate_of_chains(log_weight, n_chains)
    log_weight = log_weight.view(n_chains, -1)
    share, rows = log_weight.softmax(0), x.view(n_chains, len(value), -1).double()
    mean = (share[..., None] * rows).sum(0)
    apart = n_chains * share[..., None] * (rows - mean)
    if base is not None:
        centre = base.mean.double()
        mean = mean - (rows.mean(0) - centre)
        apart = apart - (rows - centre)
    if factor is not None:
        apart = apart @ factor.T
    mean_error = apart.std(0) / math.sqrt(n_chains)
    exact = torch.zeros_like(value, dtype=torch.bool)
    return LogZGiven(value, error, value.clone(), exact, None, mean, mean_error)


def _backward(
    given: RowwiseEnergy, x: Tensor, log_weight: Tensor, settings: Annealing, n_betas: int
) -> Tensor:
    """log Z by annealing to the base, from ends x of forward chains drawn by their weights, (n,).

    High on average if these, after some steps, are draws of the model.
    """
    n_chains = settings.ais.n_chains
    uniforms = RowUniforms(given.c, x.shape[1] + 1, n_chains, settings.seed + 1)
    steps = LangevinSteps(given, uniforms, settings.step_size)
    x = resample(x, log_weight, uniforms()[:, 0], n_chains)
    x = steps.rows_after(x, N_BURN_IN)
    found, _ = annealed_log_z(steps, max(n_betas, FEWEST_TEMPERATURES), x)
    return -log_mean_of_chains(-found, n_chains)


def pilot_step(given: RowwiseEnergy, x: Tensor, generator: torch.Generator) -> float:
    """A step size of MALA by which chains from rows x (n, dx) accept 0.7 of their steps."""
    uniforms = uniforms_of(generator, (len(x), x.shape[1] + 1), x)
    steps = LangevinSteps(given, uniforms, FIRST_STEP)
    state = steps.at(x)
    for k in range(N_PILOT_STEPS):
        new = steps.step(state, 1.0)
        acceptance = float((new.x != state.x).any(1).double().mean())
        steps.step_size *= math.exp((acceptance - TARGET_ACCEPTANCE) / math.sqrt(1 + k / 4))
        state = new
    return steps.step_size
