"""Assessment of an RBM by held-out rows, with a search for modes that its chains never visit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Binary, LogPartition, sampling
from skebm.base.processes import collect_warnings
from skebm.distributions import Distribution
from skebm.distributions._fitting import draw_index
from skebm.energies import BernoulliRBM, MixedRBM, annealing_path
from skebm.partition.annealed import AnnealingPlan, Schedule
from skebm.partition.bracket import WIDE, AISBracket
from skebm.partition.checks import wide_base
from skebm.partition.exact import Exact, exact_draws, log_z_cost
from skebm.partition.importance import WeightSummary, summarise
from skebm.samplers import Gibbs
from skebm.training.selection import LogRatios


class RunsPlan(NamedTuple):
    """How log Z is annealed: runs from each of two bases, and their temperatures.

    Attributes
    ----------
    n_chains : int
    temperatures : tuple of (int, float)
        Numbers of evenly spaced temperatures, each with the largest error of log Z, in nats, by
        which it is enough. After the last one nothing else is tried.
    least_gain : float
        Nats over its base below which a model needs no more precise log Z, which would be higher
        still on average.
    """

    n_chains: int
    temperatures: tuple[tuple[int, float], ...]
    least_gain: float = -math.inf


# 75 temperatures take a twentieth of a second for 64 hidden units and 64 columns. A third of them
# are enough near the base; 300 are where log Z may have a mode far from it.
USUAL = RunsPlan(50, ((25, 0.05), (75, 0.5), (300, 0.5)))
# Of a fit so short that it is assessed once, at its end: of more, the assessment would take longer
# than the training. Of 660 estimates for trained and random models of 14 or 16 units by 25
# temperatures, an error of 0.1 accepts 205, of which none is off by more than 0.14 nats. That an
# estimate of Z is exp(3) times too large has a probability of at most 5 %, by Markov's inequality.
OF_SHORT_FITS = RunsPlan(20, ((25, 0.1), *USUAL.temperatures[1:]), least_gain=-3.0)
# Nats, and combined standard errors, by which an estimate is clearly above another one.
CLEAR, CLEAR_ERRORS = 0.5, 3
# Rows and temperatures, a fourth of them if the error is then small, of the bracket of a model that
# is compared with others.
N_NEAR = 50
BRACKET = AISBracket(n_chains=USUAL.n_chains, n_betas=500, n_steps=200, tol=0.1)
# The same of a model that may be trained on before it is compared again. On plants its upper end is
# within 0.1 nats of the other on trees and 2 nats on independent columns, in a quarter of the time.
QUICK_BRACKET = AISBracket(n_chains=USUAL.n_chains, n_betas=150, n_steps=60, tol=0.1)
# Terms up to which log Z is summed instead, in less time than annealing takes: of a fit that goes
# on, and of a model that is compared with others.
CHEAP_COST, COMPARED_COST = 3e6, 1e8
# Rows that assess a model, at most.
N_HELD_OUT = 500


def rbm_log_ratios(
    energy: BernoulliRBM | MixedRBM,
    x: Tensor,
    generator: torch.Generator,
    runs: RunsPlan = USUAL,
) -> LogRatios:
    """Log-likelihood ratios of rows x (n, d) to the base, with draws of the model.

    Persistent chains stay near the data, and a model may have most of its mass in a mode that they
    never visit. Annealing from the base and from the uniform distribution reaches such modes: of
    the two values of log Z the more precise one is used, unless the other is clearly above it, and
    the rows of that run, resampled by their weights, are the draws. Runs of similar errors are one.
    Both are exact if a layer has few states.

    Direction: exact with few states. Otherwise log Z is low on average, by about half of its
    squared standard error, and far too low if annealing has missed modes, so that gains are then
    too large.
    """
    with torch.no_grad(), sampling(energy):
        ratio = -energy(x) - energy.base.log_prob(x)
    return over_log_z(energy, ratio, generator, runs)


def over_log_z(
    energy: Any,
    ratio: Tensor,
    generator: torch.Generator,
    runs: RunsPlan = USUAL,
    starts: Sequence[Distribution | None] | None = None,
) -> LogRatios:
    """As :func:`rbm_log_ratios`, of rows whose unnormalised ratios to the base are known.

    Annealing starts at the base and at a wider one, or at the distributions `starts`.
    """
    with torch.no_grad(), sampling(energy):
        if starts is None:
            starts = [energy.base, wide_base(energy, energy.base)]
        if log_z_cost(energy) <= CHEAP_COST:
            log_z = _or_infinite(Exact().estimate(energy).value)
            return LogRatios(ratio, log_z, 0.0, exact_draws(energy, 2 * USUAL.n_chains, generator))
        return LogRatios(ratio, *_log_z_by_annealing(energy, ratio, generator, runs, starts))


def pessimistic_log_z(
    energy: BernoulliRBM | MixedRBM,
    x: Tensor,
    generator: torch.Generator,
    bracket: AISBracket = BRACKET,
) -> float:
    """The largest credible log Z by a short bracket from rows x near the model; exact if cheap.

    Infinite where it is not known: where the energy is not finite, and where forward annealing has
    found more than annealing back from the rows, and from where chains take them, can.
    """
    if log_z_cost(energy) <= COMPARED_COST:
        return _or_infinite(Exact().estimate(energy).value)
    near = x[:N_NEAR].round() if isinstance(energy.domain, Binary) else x[:N_NEAR]
    with collect_warnings():  # warnings of wide brackets, which are what is asked for
        found = bracket.estimate(energy, x=near, generator=generator)
    return math.inf if has_crossed(found) else _or_infinite(found.upper)


def has_crossed(bracket: LogPartition) -> bool:
    """Whether forward annealing is clearly above annealing back, from rows that are no samples."""
    forward, *others = (
        WeightSummary(*part, math.nan) for name, part in bracket.parts.items() if name != WIDE
    )
    return any(is_above(forward, back) for back in others)


def _or_infinite(log_z: float) -> float:
    return log_z if math.isfinite(log_z) else math.inf


def is_above(one: WeightSummary, other: WeightSummary) -> bool:
    """Whether an estimate is clearly above another one."""
    error = math.hypot(one.std_error, other.std_error)
    return one.log_mean - other.log_mean > max(CLEAR, CLEAR_ERRORS * error)


def _log_z_by_annealing(
    energy: Any,
    ratio: Tensor,
    generator: torch.Generator,
    plan: RunsPlan,
    starts: Sequence[Distribution | None],
) -> tuple[float, float, Tensor]:
    """log Z by annealing, infinite where the energy is not finite; its error; draws."""
    n = 2 * plan.n_chains
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
    for n_betas, largest_error in plan.temperatures:
        runs = _anneal_from_bases(energy, generator, plan.n_chains, n_betas, starts, largest_error)
        if runs is None or runs.is_known or _gains_less(ratio, runs.log_z, plan.least_gain):
            break
    if runs is None:
        assert starts[0] is not None
        return math.inf, 0.0, starts[0].sample(n, generator)
    draws = runs.x[draw_index(runs.log_weight.softmax(0), u)]
    return runs.log_z.log_mean, runs.log_z.std_error, draws


def _gains_less(ratio: Tensor, log_z: WeightSummary, gain: float) -> bool:
    """Whether rows of these unnormalised log ratios (n,) gain clearly less than so many nats.

    The ratios of rows without density are not finite.
    """
    error = math.hypot(log_z.std_error, float(ratio.std(correction=0)) / math.sqrt(len(ratio)))
    return float(ratio.mean()) - log_z.log_mean < min(gain, -CLEAR_ERRORS * error)


class AnnealedRuns(NamedTuple):
    """Annealing runs from one or several bases: rows, their log weights, and what log Z is."""

    x: Tensor
    log_weight: Tensor
    log_z: WeightSummary
    is_known: bool


def _anneal_from_bases(
    energy: Any,
    generator: torch.Generator,
    n_chains: int,
    n_betas: int,
    starts: Sequence[Distribution | None],
    largest_error: float,
) -> AnnealedRuns | None:
    """Annealing runs that agree, or the one that has found more; None where they are not finite.

    log Z is known if its error is at most `largest_error`, and a second run finds no more.

    A single run of a large weight may lift the mean of the wider base by several nats, so that the
    larger of two estimates would often be far too large.
    """
    schedule = Schedule(torch.linspace(0, 1, n_betas).tolist(), [], [])
    runs = []
    for start in starts:
        if start is not None:
            path = annealing_path(energy, start)
            plan = AnnealingPlan(path, Gibbs(), schedule, delta=1.0, generator=generator)
            x, log_weight = plan.particles(n_chains)
            if not bool(log_weight.isfinite().all()):
                return None
            runs.append((x, log_weight, summarise(log_weight)))
    runs.sort(key=lambda run: run[2].std_error)
    best, other = runs[0], runs[-1]
    error = math.hypot(best[2].std_error, other[2].std_error)
    more = other[2].log_mean - best[2].log_mean
    if is_above(other[2], best[2]):
        return AnnealedRuns(*other, other[2].std_error <= largest_error)
    known = best[2].std_error <= largest_error and more <= max(error, largest_error)
    # Weights of a run of a much larger error say little, and one of them may be the largest of all.
    similar = [run for run in runs if run[2].std_error <= 2 * best[2].std_error]
    x, log_weight = torch.cat([run[0] for run in similar]), torch.cat([run[1] for run in similar])
    return AnnealedRuns(x, log_weight, summarise(log_weight), known)
