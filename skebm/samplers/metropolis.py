"""Random-walk Metropolis sampling, which needs no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm.base import ChainState, Clamp, Energy, Real, Sampler, StepInfo
from skebm.samplers._adaptation import (
    ADAPT_CONSTRAINTS,
    STEP_CONSTRAINTS,
    adaptation_step,
    initial_settings,
    scale_noise,
    settings,
)
from skebm.samplers._moves import (
    evaluate_energy,
    metropolis,
    reject_outside,
    standard_normal,
    start,
    tempers_joint,
)


class MetropolisHastings(Sampler):
    r"""Random-walk Metropolis sampling of real rows, without gradients: exact.

    The proposal :math:`x' = x + \epsilon s z` with :math:`z \sim N(0, I)` and scale :math:`s` is
    accepted with probability :math:`\min(1, e^{-\beta (E(x') - E(x))})`. Proposals outside the
    bounds of the energy's domain are rejected. A step costs one energy. The autocorrelation time is
    of the order of d steps in d dimensions: use :class:`MALA` or :class:`HMC` where there is a
    gradient.

    Parameters
    ----------
    step_size : float, default=0.5
        :math:`\epsilon` > 0, in units of x (of `scale` where one is given).
    adapt : bool, default=False
        Adapt the step size to `target_acceptance` during the warm-up, in which draws are biased.
    target_acceptance : float in (0, 1), default=0.234
        Target of the adaptation; the default is optimal in many dimensions [2]_, 0.44 in one.
    scale : None, "auto", "dense" or array-like of the shape of a row, default=None
        :math:`s`, the standard deviation of each entry. ``"auto"`` is that of the rows that chains
        start from, and with `adapt` of the chains during the warm-up; ``"dense"`` is their
        covariance, for correlated columns without bounds.

    References
    ----------
    .. [1] Metropolis et al. (1953), "Equation of state calculations by fast computing machines".
    .. [2] Roberts, Gelman and Gilks (1997), "Weak convergence and optimal scaling of random walk
       Metropolis algorithms", Annals of Applied Probability 7(1).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import MetropolisHastings
    >>> class Gaussian(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 2
    >>> generator = torch.Generator().manual_seed(0)
    >>> sampler = MetropolisHastings(adapt=True)
    >>> state, info = sampler.run(Gaussian(), torch.zeros(500, 2), 200, generator)
    >>> state.x.std(0).round(decimals=1), round(float(info.acceptance), 1)
    (tensor([1., 1.]), 0.2)
    """

    domains = (Real,)
    _parameter_constraints = STEP_CONSTRAINTS | ADAPT_CONSTRAINTS

    def __init__(
        self,
        step_size: float = 0.5,
        *,
        adapt: bool = False,
        target_acceptance: float = 0.234,
        scale: Any = None,
    ):
        self.step_size = step_size
        self.adapt = adapt
        self.target_acceptance = target_acceptance
        self.scale = scale

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies."""
        return start(energy, x, with_grad=False)._replace(aux=initial_settings(self, energy, x))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose a random-walk step, and accept or reject it."""
        h, s = settings(self, state, clamp)
        z = standard_normal(state.x, generator, clamp)
        x, outside = reject_outside(energy.domain, state.x + h * scale_noise(s, z), state.x)
        proposal = ChainState(x, evaluate_energy(energy, x))
        ratio = beta * (state.energy - proposal.energy)
        new, acceptance = metropolis(ratio, state, proposal, generator, outside)
        return adaptation_step(new, acceptance, self.target_acceptance), StepInfo(acceptance)
