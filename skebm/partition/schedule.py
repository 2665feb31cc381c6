"""Annealing runs: where on the path their temperatures lie, and what their kernels are set to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import Sampler
from skebm.energies import AnnealingPath
from skebm.samplers import Gibbs

# Pilots have a quarter of the chains (some, if there are so many), at this many temperatures.
# Beyond the largest numbers of chains and steps nothing is learned that shows.
N_RUNGS, MIN_CHAINS, MAX_CHAINS, MAX_STEPS = 10, 10, 50, 800
# Share of the run's cost that the pilots take, together.
PILOTS = 0.1
# Fewer temperatures tell no more about the path than an even spacing.
MIN_BETAS = 20
# Steps by which a kernel tunes itself at each temperature of the first pilot.
TUNING_STEPS = 20
# Share of the temperatures that go by length; the others are even, as short pilots do not see all
# of a long autocorrelation.
SHARE = 0.5


class Schedule(NamedTuple):
    """Inverse temperatures from 0 to 1, and the settings that a kernel has found along them.

    Attributes
    ----------
    betas : list of float
    known_betas : list of float
        Where the settings were found, rising.
    settings : list
        ``aux`` of the kernel's states, frozen; None where it has none.
    """

    betas: list[float]
    known_betas: list[float]
    settings: list[Any]

    def at(self, beta: float) -> Any:
        """Settings found at `beta` or next above it, where steps are rather too small."""
        if not self.settings:
            return None
        place = int(np.searchsorted(self.known_betas, beta))
        return self.settings[min(place, len(self.settings) - 1)]


def anneal(
    path: AnnealingPath,
    kernel: Sampler,
    x: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
    backwards: bool = False,
) -> Iterator[Tensor]:
    """Take rows along a schedule from the base to the model; yield each step's log weights.

    At every inner temperature the rows move once: after the weights of the step that leads there.
    `backwards` starts at the model.
    """
    betas = schedule.betas[::-1] if backwards else schedule.betas
    for old, new in zip(betas, betas[1:], strict=False):
        inner = 0 < new < 1
        if inner:
            rung = path.at(new)
            state = kernel.init(rung, x)
        yield path.log_ratio(x, old, new)
        if inner:
            settings = schedule.at(new)
            if settings is not None:
                state = state._replace(aux=settings)
            elif isinstance(kernel, Gibbs):
                state = state._replace(aux=path.hidden_layer(x, new, generator))
            x = kernel.step(rung, state, generator)[0].x


def adapted(
    path: AnnealingPath, kernel: Sampler, n_chains: int, n_betas: int, generator: torch.Generator
) -> Schedule:
    r"""Temperatures closer together where annealing is hard, and kernels that fit them.

    Steps of equal length :math:`\sqrt{\zeta}\, d\beta` give weights the least variance, where

    .. math:: \zeta(\beta) = \mathrm{Var}(s)\, \Bigl(1 + 2 \sum_{k > 0} \rho_k\Bigr), \qquad
        s = \frac{d}{d\beta} \log p_\beta(x)

    (not normalised) and :math:`\rho_k` is its autocorrelation along a chain at :math:`\beta`. The
    variance alone is the rule of equal conditional effective sample sizes,
    :math:`(\sum w)^2 / (n \sum w^2) = 1 - \mathrm{Var}(s)\, d\beta^2` to second order, and right
    for chains that forget within a step. The autocorrelation adds temperatures where they lag.

    Two pilots, of a tenth of the cost together, anneal draws of the base over twenty temperatures:
    evenly spaced ones, at which a kernel with ``adapt=True`` tunes itself (that takes four hundred
    steps, however short the run), then ones spaced by the variances that the first has found, at
    which :math:`\zeta` is the variance of a sum over consecutive steps. Half of the final
    temperatures are spread evenly, as all this is rough.

    The pilots' chains do not enter the estimate, which is unbiased given what they found.

    References
    ----------
    Grosse, Maddison and Salakhutdinov (2013), "Annealing between distributions by averaging
    moments", NeurIPS, section 3 (lengths). Sivak and Crooks (2012), "Thermodynamic metrics and
    optimal paths", PRL 108, eq. 7 and 12 (autocorrelation). Zhou, Johansen and Aston (2016),
    "Toward automatic model comparison", JCGS 25(3), section 3.3 (conditional effective sample
    size).
    """
    even = np.linspace(0, 1, n_betas)
    if n_betas == 2 or not (kernel.tunes or n_betas >= MIN_BETAS):
        return Schedule(even.tolist(), [], [])
    n = min(max(n_chains // 4, min(n_chains, MIN_CHAINS), 2), MAX_CHAINS)
    room = max(min(int(PILOTS * n_betas * n_chains / n), MAX_STEPS), 2)
    rungs = np.linspace(0, 1, min(N_RUNGS, room // 2) + 1)
    n_steps = TUNING_STEPS if kernel.tunes else 1
    length, known = _explore(path, kernel, n, rungs, n_steps, generator)
    if room > 2 * N_RUNGS:
        rungs = np.asarray(_spaced(rungs, length, N_RUNGS + 1))
        length, known = _explore(path, kernel, n, rungs, room // N_RUNGS - 1, generator, known)
    return known._replace(betas=_spaced(rungs, length, n_betas))


def _spaced(betas: np.ndarray, length: np.ndarray, n: int) -> list[float]:
    """`n` inverse temperatures from 0 to 1, by the lengths of the steps between some of them."""
    so_far = np.append(0, np.cumsum(length))
    even = np.linspace(0, 1, n)
    if not 0 < so_far[-1] < np.inf:  # a path without length, or an overflow, left for the run
        return even.tolist()
    return np.interp(even, SHARE * so_far / so_far[-1] + (1 - SHARE) * betas, betas).tolist()


def _explore(
    path: AnnealingPath,
    kernel: Sampler,
    n: int,
    betas: np.ndarray,
    n_steps: int,
    generator: torch.Generator,
    known: Schedule | None = None,
) -> tuple[np.ndarray, Schedule]:
    """Lengths of the steps between some temperatures, seen by chains at their middles.

    The kernel is set as `known`, or its settings are found on the way. Returned with them.
    """
    x, length, found = path.base.sample(n, generator), [], []
    middles = (betas[:-1] + betas[1:]) / 2
    for old, new, middle in zip(betas, betas[1:], middles.tolist(), strict=False):
        rung = path.at(middle)
        state = kernel.init(rung, x)
        if known is not None:
            state = state._replace(aux=known.at(middle))
        total = torch.zeros(n, dtype=torch.float64, device=x.device)
        for _ in range(n_steps):
            state = kernel.step(rung, state, generator)[0]
            total += path.log_ratio(state.x, float(old), float(new))
            if isinstance(kernel, Gibbs):
                state = state._replace(aux=path.hidden_layer(state.x, middle, generator))
        x = state.x
        length.append(total.std() / n_steps**0.5)
        if known is None and not isinstance(kernel, Gibbs):
            state = kernel.freeze(state)
            found.append(state.aux)
            if kernel.tunes:  # the next search starts from here
                kernel = clone(kernel).set_params(step_size=float(state.aux.step_size))
    lengths = torch.stack(length).cpu().numpy()
    return lengths, known or Schedule([], middles.tolist(), found)
