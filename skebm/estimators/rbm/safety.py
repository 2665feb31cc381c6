"""Assessment of an RBM by held-out rows, with a search for modes that its chains never visit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Binary, sampling
from skebm.base.processes import collect_warnings
from skebm.distributions._fitting import draw_index
from skebm.energies import BernoulliRBM, MixedRBM, annealing_path
from skebm.partition.annealed import AnnealingPlan, Schedule
from skebm.partition.bracket import AISBracket
from skebm.partition.checks import wide_base
from skebm.partition.exact import Exact, exact_draws, log_z_cost
from skebm.partition.importance import summarise
from skebm.samplers import Gibbs
from skebm.training.selection import LogRatios

# Annealing runs and their temperatures, evenly spaced, from each of two bases: a twentieth of a
# second for 64 hidden units and 64 columns.
N_CHAINS, N_BETAS = 50, 75
# Rows and temperatures, a fourth of them if the error is then small, of the bracket of a model that
# is compared with others.
N_NEAR = 50
BRACKET = AISBracket(n_chains=N_CHAINS, n_betas=500, n_steps=200, tol=0.1)
# Terms up to which log Z is summed instead, in less time than annealing takes.
CHEAP_COST = 1e5
# Rows that assess a model, at most.
N_HELD_OUT = 500


def rbm_log_ratios(
    energy: BernoulliRBM | MixedRBM,
    x: Tensor,
    generator: torch.Generator,
    n_chains: int = N_CHAINS,
) -> LogRatios:
    """Log-likelihood ratios of rows x (n, d) to the base, with draws of the model.

    Persistent chains stay near the data, and a model may have most of its mass in a mode that they
    never visit. Annealing from the base and from the uniform distribution reaches such modes: the
    larger of the two values of log Z is used, and the rows of both runs, resampled by their
    weights, are the draws. Both are exact if a layer has few states.

    Direction: exact with few states. Otherwise each estimate of log Z is low on average, and far
    too low if annealing has missed modes, so that gains are then too large. If it has missed none,
    the larger of the two is high by about half of its standard error.
    """
    with torch.no_grad(), sampling(energy):
        ratio = -energy(x) - energy.base.log_prob(x)
    return over_log_z(energy, ratio, generator, n_chains)


def over_log_z(
    energy: BernoulliRBM | MixedRBM,
    ratio: Tensor,
    generator: torch.Generator,
    n_chains: int = N_CHAINS,
) -> LogRatios:
    """As :func:`rbm_log_ratios`, of rows whose unnormalised ratios to the base are known."""
    with torch.no_grad(), sampling(energy):
        if log_z_cost(energy) <= CHEAP_COST:
            log_z = _or_infinite(Exact().estimate(energy).value)
            return LogRatios(ratio, log_z, 0.0, exact_draws(energy, 2 * N_CHAINS, generator))
        return LogRatios(ratio, *_log_z_by_annealing(energy, generator, n_chains))


def pessimistic_log_z(
    energy: BernoulliRBM | MixedRBM, x: Tensor, generator: torch.Generator
) -> float:
    """The largest credible log Z by a short bracket from rows x near the model; exact if cheap.

    Infinite where the energy is not finite.
    """
    if log_z_cost(energy) <= CHEAP_COST:
        return _or_infinite(Exact().estimate(energy).value)
    near = x[:N_NEAR].round() if isinstance(energy.domain, Binary) else x[:N_NEAR]
    with collect_warnings():  # warnings of wide brackets, which are what is asked for
        return _or_infinite(BRACKET.estimate(energy, x=near, generator=generator).upper)


def _or_infinite(log_z: float) -> float:
    return log_z if math.isfinite(log_z) else math.inf


def _log_z_by_annealing(
    energy: BernoulliRBM | MixedRBM, generator: torch.Generator, n_chains: int
) -> tuple[float, float, Tensor]:
    """log Z by annealing, infinite where the energy is not finite; its error; draws."""
    schedule = Schedule(torch.linspace(0, 1, N_BETAS).tolist(), [], [])
    runs = []
    for start in (energy.base, wide_base(energy, energy.base)):
        if start is not None:
            path = annealing_path(energy, start)
            plan = AnnealingPlan(path, Gibbs(), schedule, delta=1.0, generator=generator)
            runs.append(plan.particles(n_chains))
    draws, log_weight = (torch.cat(part) for part in zip(*runs, strict=True))
    u = torch.rand(len(draws), generator=generator, dtype=torch.float64, device=draws.device)
    draws = draws[draw_index(log_weight.softmax(0), u)]
    if not bool(log_weight.isfinite().all()):
        return math.inf, 0.0, draws
    log_z = max((summarise(run.log_weight) for run in runs), key=lambda found: found.log_mean)
    return log_z.log_mean, log_z.std_error, draws
