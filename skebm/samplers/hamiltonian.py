"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval
from skebm.base import ChainState, Clamp, Energy, Real, Sampler, StepInfo
from skebm.samplers._adaptation import (
    ADAPT_CONSTRAINTS,
    STEP_CONSTRAINTS,
    adaptation_step,
    initial_settings,
    scale_gradient,
    scale_noise,
    settings,
)
from skebm.samplers._moves import (
    evaluate,
    has_bounds,
    metropolis,
    reflect,
    standard_normal,
    start,
    tempers_joint,
    zero_clamped,
)


class HMC(Sampler):
    r"""Hamiltonian Monte Carlo with leapfrog steps of jittered size and a fixed mass matrix: exact.

    A step draws a new momentum :math:`p \sim N(0, I)` and takes `n_leapfrog` leapfrog steps,

    .. math:: p \leftarrow p - \tfrac{\epsilon}{2} s \odot \beta \nabla E(x), \qquad
        x \leftarrow x + \epsilon s \odot p, \qquad
        p \leftarrow p - \tfrac{\epsilon}{2} s \odot \beta \nabla E(x),

    whose end is accepted by the change of :math:`\beta E(x) + |p|^2 / 2`; the mass matrix is
    :math:`\mathrm{diag}(s^{-2})`. Each chain draws its own
    :math:`\epsilon \sim \mathrm{step\_size} \cdot U(1 - j, 1 + j)` at every step, because
    trajectories of a fixed length can be periodic. Trajectories are reflected at the bounds of the
    energy's domain. A step costs `n_leapfrog` gradients.

    A trajectory of about :math:`\pi / 2` times the largest standard deviation (in units of `scale`)
    gives nearly independent draws: choose `n_leapfrog` times `step_size` near it.

    Parameters
    ----------
    step_size : float, default=0.1
        Mean :math:`\epsilon` > 0, in units of x (of `scale` where one is given).
    n_leapfrog : int, default=10
        Leapfrog steps of a trajectory, 1 or more.
    jitter : float in [0, 1), default=0.3
        j, relative half-width of the distribution of step sizes.
    adapt : bool, default=False
        Adapt the step size to `target_acceptance` during the warm-up, in which draws are biased.
    target_acceptance : float in (0, 1), default=0.8
        Target of the adaptation. It is higher than 0.651, which is optimal for trajectories of a
        given length in many dimensions [1]_, because regions of high curvature need smaller steps.
        If the curvature varies strongly, use 0.95: with larger steps chains rarely enter regions of
        high curvature, and stay there for long when they do.
    scale : None, "auto", "dense" or array-like of the shape of a row, default=None
        s, the standard deviation of each entry. ``"auto"`` is that of the rows that chains start
        from, and with `adapt` of the chains during the warm-up; ``"dense"`` is their covariance,
        for correlated columns without bounds.

    References
    ----------
    .. [1] Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo,
       chapter 5; section 5.5.1.5 for reflection at bounds.
    .. [2] Hoffman and Gelman (2014), "The No-U-Turn sampler", JMLR 15, section 3.2 (adaptation).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import HMC
    >>> class Gaussian(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return (x / torch.tensor([1.0, 100.0])).square().sum(1) / 2
    >>> generator = torch.Generator().manual_seed(0)
    >>> sampler = HMC(adapt=True, scale="auto")
    >>> trace = sampler.trace(Gaussian(), torch.zeros(100, 2), 100, generator, n_warmup=300)
    >>> trace.x.std((0, 1)).log10().round(decimals=1)
    tensor([0., 2.])
    """

    domains = (Real,)
    _parameter_constraints = (
        STEP_CONSTRAINTS
        | ADAPT_CONSTRAINTS
        | {
            "n_leapfrog": [Interval(Integral, 1, None, closed="left")],
            "jitter": [Interval(RealNumber, 0, 1, closed="left")],
        }
    )

    def __init__(
        self,
        step_size: float = 0.1,
        n_leapfrog: int = 10,
        *,
        jitter: float = 0.3,
        adapt: bool = False,
        target_acceptance: float = 0.8,
        scale: Any = None,
    ):
        self.step_size = step_size
        self.n_leapfrog = n_leapfrog
        self.jitter = jitter
        self.adapt = adapt
        self.target_acceptance = target_acceptance
        self.scale = scale

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies and gradients."""
        return start(energy, x)._replace(aux=initial_settings(self, energy, x))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Simulate a trajectory, and accept or reject its end."""
        h, s = settings(self, state, clamp)
        x, value, grad = state.x, state.energy, state.grad
        u = torch.rand(
            len(x), *[1] * (x.dim() - 1), generator=generator, dtype=x.dtype, device=x.device
        )
        h = h * (1 + self.jitter * (2 * u - 1))
        p = standard_normal(x, generator, clamp)
        kinetic = p.square().flatten(1).sum(1) / 2
        reflects, nan = has_bounds(energy.domain), torch.zeros_like(value, dtype=torch.bool)
        p = p - (beta / 2) * h * zero_clamped(scale_gradient(s, grad), clamp)
        for k in range(self.n_leapfrog):
            x = x + h * scale_noise(s, p)
            if reflects:
                x, sign = reflect(energy.domain, x)
                p = p * sign
            value, grad = evaluate(energy, x)
            nan = nan | value.isnan()  # on an accelerator, where evaluate does not raise
            last = k == self.n_leapfrog - 1
            p = p - (beta / 2 if last else beta) * h * zero_clamped(scale_gradient(s, grad), clamp)
        kinetic = kinetic - p.square().flatten(1).sum(1) / 2
        value = value.masked_fill(nan, torch.nan)
        ratio = beta * (state.energy - value) + kinetic
        new, acceptance = metropolis(ratio, state, ChainState(x, value, grad), generator)
        return adaptation_step(new, acceptance, self.target_acceptance), StepInfo(acceptance)
