r"""What a gated RBM says of y given x: normalisers, means and draws.

Exactly where there are few mapping units, or few bits in y: the sum over all states of that layer
has closed terms. Otherwise by chains, whose uniform numbers depend on a seed and on the row alone,
so that a row has the same value beside any others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import Binary
from skebm.energies import GatedEnergy, GivenEnergy
from skebm.partition.given import (
    ConditionalAIS,
    GatedSteps,
    LogZGiven,
    RowUniforms,
    annealed_log_z,
    draw_of,
    estimate_of_chains,
    log_mean_of_chains,
    numbers_of_temperatures,
    resample,
    uniforms_of,
)

# Units of a layer up to which its states are summed over.
SUMMED_UNITS = 12
# Chains of the mean of a row; temperatures of its log Z at first, and the Gibbs steps before
# annealing backward.
N_CHAINS, FEWEST_TEMPERATURES, N_BURN_IN = 4, 100, 10
# Steps of annealing before the Gibbs steps that a mean is over, and as many of these.
N_STEPS = 100
# Numbers that are held at once.
CHUNK = 4_000_000


def enumerates_layer(energy: GatedEnergy) -> bool:
    """Whether the states of a layer are summed over."""
    return len(energy.hidden_bias) <= SUMMED_UNITS or _few_bits(energy)


def _few_bits(energy: GatedEnergy) -> bool:
    domain = energy.target_domain
    return isinstance(domain, Binary) and domain.n_columns <= SUMMED_UNITS


class States(NamedTuple):
    """All states of the layer that is summed over, (S, ...), and their log weights, (n, S)."""

    given: GivenEnergy
    states: Tensor
    log_weight: Tensor
    of_hidden: bool

    @classmethod
    def of(cls, energy: GatedEnergy, x: Tensor, beta: float = 1.0) -> States:
        """Of rows x (n, dx)."""
        given = energy.given(x)
        of_hidden = len(energy.hidden_bias) <= SUMMED_UNITS
        domain = given.hidden_domain if of_hidden else given.domain
        states = domain.states(0, round(domain.n_states), dtype=x.dtype, device=x.device)
        energies = given.hidden_energies if of_hidden else given.free_energies
        return cls(given, states, -energies(states, beta), of_hidden)


def _rows_at_once(energy: GatedEnergy) -> int:
    """Rows whose tables of states and units fit."""
    layers = len(energy.hidden_bias), energy.target_domain.n_columns
    n_states = 2 ** (layers[0] if layers[0] <= SUMMED_UNITS else layers[1])
    return max(1, CHUNK // (n_states * max(layers)))


@torch.no_grad()
def log_z_of_pairs(
    energy: GatedEnergy, rows: Tensor, seed: int, settings: ConditionalAIS
) -> LogZGiven:
    """log Z(x) of pairs (n, dx + dy).

    Direction: exact where a layer is summed over. Otherwise the value is the estimate by annealing
    from the base, which is low on average. The upper end is the
    largest of three estimates: the value, annealing back to the base from the rows at which
    the forward chains ended (resampled by their weights; high on average if these are draws of the
    model), and annealing back from y, whose mode the forward chains may have missed.
    """
    if enumerates_layer(energy):
        parts = rows[:, : energy.n_given].split(_rows_at_once(energy))
        sums = [States.of(energy, x).log_weight.logsumexp(1) for x in parts]
        return LogZGiven.exactly(torch.cat(sums))

    def estimate(index: Tensor, n_betas: int) -> LogZGiven:
        return _by_annealing(energy, rows[index], seed, settings.n_chains, n_betas)

    found = LogZGiven.unknown(len(rows), rows.device)
    numbers = numbers_of_temperatures(FEWEST_TEMPERATURES, settings.n_betas)
    found.refine(estimate, numbers, settings.max_error)
    return found


def _by_annealing(
    energy: GatedEnergy, rows: Tensor, seed: int, n_chains: int, n_betas: int
) -> LogZGiven:
    """log Z(x) of pairs by annealing from the base, and back to it."""
    x, y = energy.split(rows)
    given = energy.given(x).of_chains(n_chains)
    uniforms = RowUniforms(rows, GatedSteps.width(given), n_chains, seed)
    steps = GatedSteps(given, uniforms)
    values, ends = annealed_log_z(steps, n_betas)
    value, error = estimate_of_chains(values, n_chains)
    upper = value
    for starts in (resample(ends, values, uniforms()[:, 0], n_chains), y.repeat(n_chains, 1)):
        back, _ = annealed_log_z(steps, n_betas, steps.rows_after(starts, N_BURN_IN))
        upper = torch.maximum(upper, -log_mean_of_chains(-back, n_chains))
    return LogZGiven(value, error, upper, torch.zeros_like(value, dtype=torch.bool))


@torch.no_grad()
def means(energy: GatedEnergy, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Means of the mapping units and of y given x alone, (n, H) and (n, dy).

    Exact where a layer is summed over; otherwise averages over annealed Gibbs chains.
    """
    if enumerates_layer(energy):
        parts = [_exact_means(energy, part) for part in x.split(_rows_at_once(energy))]
    else:
        parts = [_mean_of_chains(energy.given(x).of_chains(N_CHAINS), x, seed)]
    hidden, target = (torch.cat(part) for part in zip(*parts, strict=True))
    return hidden, target


def _exact_means(energy: GatedEnergy, x: Tensor) -> tuple[Tensor, Tensor]:
    found = States.of(energy, x)
    p, states, given = found.log_weight.softmax(1), found.states, found.given
    n, n_states = p.shape
    every = given.of_states(n_states)
    rows = states.repeat(n, 1)
    other = every.visible(rows).mean if found.of_hidden else every.hidden(rows).mean
    pair = p @ states, (p[:, None] @ other.view(n, n_states, -1))[:, 0]
    return pair if found.of_hidden else (pair[1], pair[0])


def _mean_of_chains(given: GivenEnergy, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    n_hidden = given.hidden_domain.n_columns
    uniforms = RowUniforms(x, GatedSteps.width(given), N_CHAINS, seed)
    y = annealed_log_z(GatedSteps(given, uniforms), N_STEPS)[1]
    hidden = torch.zeros(len(x), n_hidden, dtype=x.dtype, device=x.device)
    target = torch.zeros(len(x), y.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(N_STEPS):
        u = uniforms()
        of_hidden = given.hidden(y)
        of_target = given.visible(draw_of(of_hidden, u[:, :n_hidden]))
        y = draw_of(of_target, u[:, n_hidden:])
        hidden += of_hidden.mean.view(N_CHAINS, len(x), -1).mean(0) / N_STEPS
        target += of_target.mean.view(N_CHAINS, len(x), -1).mean(0) / N_STEPS
    return hidden, target


@torch.no_grad()
def draws(
    energy: GatedEnergy, x: Tensor, generator: torch.Generator, n_steps: int, beta: float
) -> Tensor:
    """A row y given each x at inverse temperature `beta`, (n, dy).

    The draws are exact where a layer is summed over. Otherwise they are the states after `n_steps`
    Gibbs steps from the base, the first half of them annealed.
    """
    if enumerates_layer(energy):
        parts = x.split(_rows_at_once(energy))
        return torch.cat([_exact_draws(energy, part, generator, beta) for part in parts])
    given = energy.given(x)
    uniforms = uniforms_of(generator, (len(x), GatedSteps.width(given)), x)
    steps = GatedSteps(given, uniforms)
    y = annealed_log_z(steps, max(1, n_steps // 2))[1]
    return steps.rows_after(y, n_steps - n_steps // 2, beta)


def _exact_draws(energy: GatedEnergy, x: Tensor, generator: torch.Generator, beta: float) -> Tensor:
    found = States.of(energy, x, beta)
    place = torch.multinomial(found.log_weight.softmax(1), 1, generator=generator)[:, 0]
    state = found.states[place]
    return found.given.visible(state, beta).sample(generator) if found.of_hidden else state
