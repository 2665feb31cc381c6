"""Assessment of an RBM by held-out rows, with a search for modes that its chains never visit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Binary, sampling
from skebm.base.objective import effective_count, weighted_mean, weighted_variance
from skebm.base.processes import collected
from skebm.distributions._fitting import draw_index
from skebm.energies import BernoulliRBM, MixedRBM, annealing_path
from skebm.partition.annealed import AnnealingPlan, Schedule
from skebm.partition.bracket import AISBracket
from skebm.partition.checks import wide_base
from skebm.partition.exact import Exact, exact_draws, log_z_cost
from skebm.partition.importance import summarise
from skebm.samplers import Gibbs
from skebm.training.guard import Assessment

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


def assess(
    energy: BernoulliRBM | MixedRBM,
    x: Tensor,
    weight: Tensor | None,
    generator: torch.Generator,
    n_completions: int = 1,
) -> Assessment:
    """Gain over the base on rows x (n, d), and draws of the model by short annealing.

    Persistent chains stay near the data, and a model may have most of its mass in a mode that they
    never visit. Annealing from the base and from the uniform distribution reaches such modes: the
    larger of the two values of log Z is used, and the rows of both runs, resampled by their
    weights, are the draws. Both are exact if a layer has few states.

    Direction: exact with few states. Otherwise each estimate of log Z is low on average, and far
    too low if annealing has missed modes, so that gains are then too large. If it has missed none,
    the larger of the two is high by about half of its standard error.

    Parameters
    ----------
    energy : BernoulliRBM
    x : Tensor of shape (n, d)
    weight : Tensor of shape (n,) or None
    generator : torch.Generator
    n_completions : int, default=1
        Number of successive rows that complete a row of which entries are missing by draws of the
        base; its gain is that of its known entries, by importance sampling: low on average.

    Returns
    -------
    Assessment
        With nan or infinite gains where the energy is not finite.
    """
    with torch.no_grad(), sampling(energy):
        ratio = -energy(x) - energy.base.log_prob(x)
    return against_log_z(energy, ratio, weight, generator, n_completions)


def against_log_z(
    energy: BernoulliRBM | MixedRBM,
    ratio: Tensor,
    weight: Tensor | None,
    generator: torch.Generator,
    n_completions: int = 1,
) -> Assessment:
    """As :func:`assess`, of rows whose unnormalised log-likelihood ratios to the base are known."""
    share = None if weight is None else weight.double()
    with torch.no_grad(), sampling(energy):
        ratio = ratio.double()
        if n_completions > 1:
            ratio = ratio.view(-1, n_completions).logsumexp(1) - math.log(n_completions)
            share = None if share is None else share[::n_completions]
        if log_z_cost(energy) <= CHEAP_COST:
            log_z, log_z_error = _or_infinite(Exact().estimate(energy).value), 0.0
            draws = exact_draws(energy, 2 * N_CHAINS, generator)
        else:
            log_z, log_z_error, draws = _annealed(energy, generator)
    if log_z == math.inf:
        return Assessment(-math.inf, 0.0, draws)
    error = weighted_variance(ratio, share) / effective_count(ratio, share)
    gain = float(weighted_mean(ratio, share)) - log_z
    return Assessment(gain, math.hypot(math.sqrt(float(error)), log_z_error), draws)


def pessimistic_log_z(
    energy: BernoulliRBM | MixedRBM, x: Tensor, generator: torch.Generator
) -> float:
    """The largest credible log Z by a short bracket from rows x near the model; exact if cheap.

    Infinite where the energy is not finite.
    """
    if log_z_cost(energy) <= CHEAP_COST:
        return _or_infinite(Exact().estimate(energy).value)
    near = x[:N_NEAR].round() if isinstance(energy.domain, Binary) else x[:N_NEAR]
    with collected():  # warnings of wide brackets, which are what is asked for
        return _or_infinite(BRACKET.estimate(energy, x=near, generator=generator).upper)


def _or_infinite(log_z: float) -> float:
    return log_z if math.isfinite(log_z) else math.inf


def _annealed(
    energy: BernoulliRBM | MixedRBM, generator: torch.Generator
) -> tuple[float, float, Tensor]:
    """log Z by annealing, infinite where the energy is not finite; its error; draws."""
    schedule = Schedule(torch.linspace(0, 1, N_BETAS).tolist(), [], [])
    runs = []
    for start in (energy.base, wide_base(energy, energy.base)):
        if start is not None:
            path = annealing_path(energy, start)
            plan = AnnealingPlan(path, Gibbs(), schedule, delta=1.0, generator=generator)
            runs.append(plan.particles(N_CHAINS))
    draws, log_weight = (torch.cat(part) for part in zip(*runs, strict=True))
    u = torch.rand(len(draws), generator=generator, dtype=torch.float64, device=draws.device)
    draws = draws[draw_index(log_weight.softmax(0), u)]
    if not bool(log_weight.isfinite().all()):
        return math.inf, 0.0, draws
    log_z = max((summarise(run.log_weight) for run in runs), key=lambda found: found.log_mean)
    return log_z.log_mean, log_z.std_error, draws
