"""Annealing runs, and where on the path their temperatures lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from skebm.base import Sampler
from skebm.energies import AnnealingPath

# A pilot has half the chains and a fifth of the temperatures, so a tenth of the cost; beyond these
# numbers it learns nothing that shows in a schedule.
MAX_CHAINS, MAX_BETAS = 100, 200
# Fewer temperatures tell no more about the path than an even spacing.
MIN_BETAS = 4


def anneal(
    path: AnnealingPath,
    sampler: Sampler,
    x: Tensor,
    betas: Sequence[float],
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """Take rows along `betas`, from the base (0) or the model (1); yield each step's log weights.

    At every inner temperature the rows move once: after the weights of the step that leads there.
    """
    kernel = sampler.kernel
    for old, new in zip(betas, betas[1:], strict=False):
        yield path.log_ratio(x, old, new)
        if 0 < new < 1:
            rung = path.at(new)
            x = kernel.step(rung, kernel.init(rung, x), generator)[0].x


def constant_speed(
    path: AnnealingPath, sampler: Sampler, n_chains: int, n_betas: int, generator: torch.Generator
) -> list[float]:
    r"""Inverse temperatures from 0 to 1, closer together where log weights spread faster.

    A pilot anneals draws of the base over a few even steps. The standard deviation of a step's log
    weights is its thermodynamic length; steps of equal length give weights the least variance, if
    chains keep up with the path. Half of the temperatures go by length and half are spread evenly,
    for chains that lag where the path itself moves slowly.

    The pilot's chains do not enter the estimate, which is unbiased given the schedule.

    References
    ----------
    Grosse, Maddison and Salakhutdinov (2013), "Annealing between distributions by averaging
    moments", NeurIPS, section 3 (lengths and optimal schedules).
    """
    if n_betas < 2:
        raise ValueError(f"n_betas must be at least 2, the two ends of the path; got {n_betas}.")
    even = np.linspace(0, 1, n_betas)
    n_pilot = min(n_betas // 5, MAX_BETAS)
    if n_pilot < MIN_BETAS:
        return even.tolist()
    betas = np.linspace(0, 1, n_pilot)
    x = path.base.sample(min(max(n_chains // 2, 2), MAX_CHAINS), generator)
    steps = anneal(path, sampler, x, betas.tolist(), generator)
    length = torch.stack([log_w.std() for log_w in steps]).cpu().numpy()
    so_far = np.append(0, np.cumsum(length))
    if not 0 < so_far[-1] < np.inf:  # a path without length, or an overflow, left for the run
        return even.tolist()
    return np.interp(even, (so_far / so_far[-1] + betas) / 2, betas).tolist()
