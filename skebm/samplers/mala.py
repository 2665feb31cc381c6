"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

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
    check_evaluation,
    evaluate,
    metropolis,
    reject_outside,
    standard_normal,
    start,
    tempers_joint,
    zero_clamped,
)


class MALA(Sampler):
    r"""Metropolis-adjusted Langevin algorithm: exact for any step size.

    The proposal :math:`x' = x - h s^2 \odot \beta \nabla E(x) + \sqrt{2h}\, s \odot z` is normal in
    both directions and accepted by the Metropolis-Hastings rule. Proposals outside the bounds of
    the energy's domain are rejected. A step costs one gradient.

    Parameters
    ----------
    step_size : float, default=0.1
        h > 0, in units of x squared (without a unit if `scale` is given).
    adapt : bool, default=False
        Adapt the step size to `target_acceptance` during the warm-up, in which draws are biased.
    target_acceptance : float in (0, 1), default=0.574
        Target of the adaptation; the default is optimal in many dimensions [2]_.
    scale : None, "auto", "dense" or array-like of the shape of a row, default=None
        s, the standard deviation of each entry. ``"auto"`` is that of the rows that chains start
        from, and with `adapt` of the chains during the warm-up; ``"dense"`` is their covariance,
        for correlated columns without bounds.

    References
    ----------
    .. [1] Roberts and Tweedie (1996), "Exponential convergence of Langevin distributions and their
       discrete approximations", Bernoulli 2(4).
    .. [2] Roberts and Rosenthal (1998), "Optimal scaling of discrete approximations to Langevin
       diffusions", JRSS B 60(1).
    .. [3] Hoffman and Gelman (2014), "The No-U-Turn sampler", JMLR 15, section 3.2 (adaptation).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import MALA
    >>> class Gaussian(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 2
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.zeros(500, 2)
    >>> state, info = MALA(adapt=True).run(Gaussian(), x, 100, generator, n_warmup=200)
    >>> state.x.std(0).round(decimals=1), round(float(info.acceptance), 1)
    (tensor([1., 1.]), 0.6)
    """

    domains = (Real,)
    _parameter_constraints = STEP_CONSTRAINTS | ADAPT_CONSTRAINTS

    def __init__(
        self,
        step_size: float = 0.1,
        *,
        adapt: bool = False,
        target_acceptance: float = 0.574,
        scale: Any = None,
    ):
        self.step_size = step_size
        self.adapt = adapt
        self.target_acceptance = target_acceptance
        self.scale = scale

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies and gradients."""
        return start(energy, x)._replace(aux=initial_settings(self, energy, x))

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same chains with their adapted settings, under an energy that has changed."""
        return start(energy, state.x)._replace(aux=state.aux)

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose a Langevin step, and accept or reject it."""
        h, s = settings(self, state, clamp)
        width = (2 * h) ** 0.5
        # With half the drift in units of the noise, u, x' = x + width s (z - u), and the noise of
        # the reverse step is -(z - u - u').
        u = _half_drift(state.grad, beta, width, s, clamp)
        z = standard_normal(state.x, generator, clamp)
        proposed = state.x + scale_noise(s, width * (z - u))
        x, outside = reject_outside(energy.domain, proposed, state.x)
        evaluation = evaluate(energy, x) if x.is_cuda else energy.value_and_grad(x)
        proposal = ChainState(x, *evaluation)
        ratio = _log_ratio(state, proposal, u, z, beta, width, s, clamp)
        # An energy or gradient that is not finite shows in the ratio: one check instead of two.
        if not x.is_cuda and not math.isfinite(float(ratio.sum())):
            proposal = ChainState(x, *check_evaluation(energy, x, *evaluation))
            ratio = _log_ratio(state, proposal, u, z, beta, width, s, clamp)
        new, acceptance = metropolis(ratio, state, proposal, generator, outside)
        return adaptation_step(new, acceptance, self.target_acceptance), StepInfo(acceptance)


def _log_ratio(
    state: Any, proposal: Any, u: Tensor, z: Tensor, beta: float, width: Any, s: Any, clamp: Any
) -> Tensor:
    """Logarithm of the Metropolis-Hastings ratio, (n,); u is half the drift at the state."""
    both = u + _half_drift(proposal.grad, beta, width, s, clamp)
    # (z^2 - (z - u - u')^2) / 2 in few operations, whose overhead dominates in small problems.
    log_q_ratio = (both * torch.sub(z, both, alpha=0.5)).flatten(1).sum(1)
    return torch.add(log_q_ratio, state.energy - proposal.energy, alpha=beta)


def _half_drift(grad: Any, beta: float, width: Any, s: Any, clamp: Any) -> Tensor:
    """Half the drift in units of the noise, zero at clamped coordinates."""
    return zero_clamped(scale_gradient(s, (beta * width / 2) * grad), clamp)
