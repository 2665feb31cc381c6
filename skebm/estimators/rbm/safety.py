"""Assessment of an RBM by held-out rows, with a search for modes that its chains never visit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import sampling
from skebm.base.objective import effective_count, weighted_mean, weighted_variance
from skebm.distributions._fitting import draw_index
from skebm.energies import BernoulliRBM, annealing_path
from skebm.partition.annealed import AnnealingPlan, Schedule
from skebm.partition.checks import wide_base
from skebm.partition.importance import summarise
from skebm.samplers import Gibbs
from skebm.training.engine import Assessment

# Annealing runs and their temperatures, evenly spaced, from each of two bases: a twentieth of a
# second for 64 hidden units and 64 columns.
N_CHAINS, N_BETAS = 50, 75


def assess(
    energy: BernoulliRBM, x: Tensor, weight: Tensor | None, generator: torch.Generator
) -> Assessment:
    """Gain over the base on rows x (n, d), and draws of the model by short annealing.

    Persistent chains stay near the data, and a model may have most of its mass in a mode that they
    never visit. Annealing from the base and from the uniform distribution reaches such modes: the
    larger of the two values of log Z is believed, and the rows of both runs, resampled by their
    weights, are the draws.

    Direction: each estimate of log Z is low on average, far below where annealing has missed modes,
    so that gains are then too large. Where it has missed none, the larger of two is high by about
    half of its standard error.

    Parameters
    ----------
    energy : BernoulliRBM
    x : Tensor of shape (n, d)
    weight : Tensor of shape (n,) or None
    generator : torch.Generator

    Returns
    -------
    Assessment
        With nan or infinite gains where the energy is not finite.
    """
    base, share = energy.base, None if weight is None else weight.double()
    schedule = Schedule(torch.linspace(0, 1, N_BETAS).tolist(), [], [])
    with torch.no_grad(), sampling(energy):
        ratio = (-energy(x) - base.log_prob(x)).double()
        runs = []
        for start in (base, wide_base(energy, base)):
            if start is not None:
                path = annealing_path(energy, start)
                plan = AnnealingPlan(path, Gibbs(), schedule, delta=1.0, generator=generator)
                runs.append(plan.particles(N_CHAINS))
        draws, log_weight = (torch.cat(part) for part in zip(*runs, strict=True))
        u = torch.rand(len(draws), generator=generator, dtype=torch.float64, device=draws.device)
        draws = draws[draw_index(log_weight.softmax(0), u)]
    if not bool(log_weight.isfinite().all()):
        return Assessment(-math.inf, 0.0, draws)
    log_z = max((summarise(run.log_weight) for run in runs), key=lambda found: found.log_mean)
    error = weighted_variance(ratio, share) / effective_count(ratio, share)
    return Assessment(
        float(weighted_mean(ratio, share)) - log_z.log_mean,
        math.hypot(math.sqrt(float(error)), log_z.std_error),
        draws,
    )
