r"""log Z of conditions: by quadrature where x has one or two columns, else by annealing.

Chains take their numbers from a seed and from their own condition alone, so that a condition has
the same log Z beside any others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base.processes import progress_bar
from skebm.distributions.transformed.regression import RowMixtures
from skebm.energies import ConditionalEnergy, RowwiseEnergy
from skebm.partition.given import (
    ConditionalAIS,
    LangevinSteps,
    LogZGiven,
    RowUniforms,
    annealed_log_z,
    cat,
    estimate_of_chains,
    log_mean_of_chains,
    numbers_of_temperatures,
    resample,
    uniforms_of,
)

# Temperatures at first, and the Langevin steps before annealing backward.
FEWEST_TEMPERATURES, N_BURN_IN = 30, 10
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

    With one or two columns, log Z is computed by quadrature where this converges. Otherwise it is
    estimated by importance sampling from the base if its standard error is then small enough, and
    else by annealed importance sampling with 30, 120, 480, ... temperatures. `upper` says whether
    to anneal backward as well, and `verbose` whether to show a progress bar if it takes longer than
    two seconds.
    """
    blocks = progress_bar(c.split(BLOCK), unit="block", desc="log Z", disable=not verbose, delay=2)
    parts = [_of_block(energy, some, settings, upper) for some in blocks]
    return cat(parts)


def _of_block(energy: ConditionalEnergy, c: Tensor, settings: Annealing, upper: bool) -> LogZGiven:
    n, dx = len(c), energy.target_domain.n_columns
    found = LogZGiven.unknown(n, c.device, dx)
    if dx <= max(MOST_NODES):
        found.put(torch.arange(n, device=c.device), by_quadrature(energy, c))
    finite = energy.base.given(c).log_weight.isfinite().all(1)  # overflows far away
    numbers = [1]  # importance sampling
    ais = settings.ais
    if ais.n_betas > 1:
        numbers += numbers_of_temperatures(FEWEST_TEMPERATURES, ais.n_betas)

    def estimate(index: Tensor, n_betas: int) -> LogZGiven:
        n_chains = ais.n_chains * (DRAWS_PER_CHAIN if n_betas == 1 else 1)
        worst = math.inf if n_betas == numbers[-1] else ais.max_error
        back_to = worst if upper else -math.inf
        return _by_annealing(energy, c[index], settings, n_chains, n_betas, back_to)

    found.refine(estimate, numbers, ais.max_error, finite)
    return found


# ------------------------------------------------------------------------------
# Quadrature
# ------------------------------------------------------------------------------


def by_quadrature(energy: ConditionalEnergy, c: Tensor) -> LogZGiven:
    """log Z by the trapezoidal rule on a grid of each condition.

    The rule converges faster than any power for smooth densities that vanish at the ends. The grid
    has two nodes per standard deviation of the narrowest component of the base, and extends eight
    standard deviations beyond all components. It is made twice as fine, or twice as wide if the
    density does not vanish at its ends, until half of the nodes give the same log Z to within 1e-4.
    These values are `exact`. Those that would need too many nodes have an infinite standard error.
    """
    low, high, size = _grid(energy.given(c))
    n, dx = low.shape
    found = LogZGiven.unknown(n, c.device, dx)
    while True:
        left = (~found.exact & (size <= MOST_NODES[dx])).nonzero().ravel()
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
) -> tuple[LogZGiven, Tensor]:
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
    found = LogZGiven(value, error, value, exact, None, mean, mean_error)
    return found, open_ends


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
) -> LogZGiven:
    """log Z of conditions; chains go back where its standard error is at most `worst`."""
    width = energy.target_domain.n_columns + 1
    size = max(1, CHUNK // (n_chains * (width + c.shape[1])))
    parts = []
    # Standard error of weights that are all equal but for rounding: the model is the base.
    equal_weights = 1e-9
    for some in c.split(size):
        uniforms = RowUniforms(some, width, n_chains, settings.seed)
        steps = LangevinSteps(energy.given(some), uniforms, settings.step_size)
        log_weight, x = annealed_log_z(steps, n_betas)
        known = energy.given(some).base if n_betas == 1 else None
        found = _summary(log_weight, x, n_chains, known)
        back = (found.std_error > equal_weights) & (found.std_error <= worst)
        if back.any():
            x, log_weight = (
                part.view(n_chains, len(some), -1)[:, back] for part in (x, log_weight)
            )
            given, flat = energy.given(some[back]), (x.flatten(0, 1), log_weight.flatten())
            found.upper[back] = _backward(given, *flat, settings, n_betas)
        parts.append(found)
    return cat(parts)


def _summary(log_weight: Tensor, x: Tensor, n_chains: int, base: RowMixtures | None) -> LogZGiven:
    """log Z, its error and the means, from the weights of all chains (m n,) and their ends.

    Where the ends are draws of `base`, the error of their plain mean is known, and is taken away:
    the mean has no error where weights are equal.
    """
    value, error = estimate_of_chains(log_weight, n_chains)
    log_weight = log_weight.view(n_chains, -1)
    share, rows = log_weight.softmax(0), x.view(n_chains, len(value), -1).double()
    mean = (share[..., None] * rows).sum(0)
    apart = n_chains * share[..., None] * (rows - mean)
    if base is not None:
        centre = (base.log_weight.double().softmax(1)[..., None] * base.means.double()).sum(1)
        mean = mean - (rows.mean(0) - centre)
        apart = apart - (rows - centre)
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
