"""Hamiltonian Monte Carlo: glide along the energy for a while, then accept where one ended."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval
from skebm.base import ChainState, Clamp, Energy, Real, Sampler, StepInfo
from skebm.samplers._moves import (
    bounded,
    evaluate,
    fold,
    free_part,
    metropolis,
    standard_normal,
    start,
    tempers_joint,
)
from skebm.samplers._tuning import (
    ADAPT_CONSTRAINTS,
    STEP_CONSTRAINTS,
    scale_gradient,
    settings,
    spread,
    tuned,
    tuning,
)


class HMC(Sampler):
    r"""Hamiltonian Monte Carlo with leapfrog steps of jittered length and a diagonal mass: exact.

    A fresh momentum :math:`p \sim N(0, I)` and `n_leapfrog` steps of

    .. math:: p \leftarrow p - \tfrac{\epsilon}{2} s \odot \beta \nabla E(x), \qquad
        x \leftarrow x + \epsilon s \odot p, \qquad
        p \leftarrow p - \tfrac{\epsilon}{2} s \odot \beta \nabla E(x),

    accepted by the change of :math:`\beta E(x) + |p|^2 / 2`; the mass matrix is
    :math:`\mathrm{diag}(s^{-2})`. Each chain draws its own
    :math:`\epsilon \sim \mathrm{step\_size} \cdot U(1 - j, 1 + j)` at every step, because paths of
    one length can be periodic and stand still. Paths are reflected at the walls of the energy's
    domain. A step costs `n_leapfrog` gradients.

    A path of about :math:`\pi / 2` times the largest standard deviation (in units of `scale`)
    forgets where it came from: choose `n_leapfrog` times `step_size` near it.

    Parameters
    ----------
    step_size : float, default=0.1
        Mean :math:`\epsilon` > 0, in units of x (of `scale` where one is given).
    n_leapfrog : int, default=10
        Leapfrog steps of a path, 1 or more.
    jitter : float in [0, 1), default=0.3
        j.
    adapt : bool, default=False
        Tune the step to `target_acceptance` during the warm-up. While it lasts draws are biased.
    target_acceptance : float in (0, 1), default=0.8
        Higher than the 0.651 that is best for given path lengths in many dimensions [1]_: safer in
        narrow places. On strongly curved energies 0.95: with steps that fit most places, chains
        hardly ever enter the narrow ones, and stay long when they do.
    scale : None, "auto", "dense" or array-like of the shape of a row, default=None
        s: the standard deviation to expect of each entry. ``"auto"`` takes it from the rows that
        chains start from, and with `adapt` from the chains during the warm-up. ``"dense"``
        does the same with the covariance: for correlated columns, not inside walls.

    References
    ----------
    .. [1] Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo,
       chapter 5; section 5.5.1.5 for walls.
    .. [2] Hoffman and Gelman (2014), "The No-U-Turn sampler", JMLR 15, section 3.2 (the tuning).

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
        """Chains that stand at the rows of x, with their energies and gradients."""
        return start(energy, x)._replace(aux=tuning(self, energy, x))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Glide, and accept or not."""
        h, s = settings(self, state, clamp)
        x, level, grad = state.x, state.energy, state.grad
        u = torch.rand(
            len(x), *[1] * (x.dim() - 1), generator=generator, dtype=x.dtype, device=x.device
        )
        h = h * (1 + self.jitter * (2 * u - 1))
        p = standard_normal(x, generator, clamp)
        kinetic = p.square().flatten(1).sum(1) / 2
        walls, lost = bounded(energy.domain), torch.zeros_like(level, dtype=torch.bool)
        p = p - (beta / 2) * h * free_part(scale_gradient(s, grad), clamp)
        for k in range(self.n_leapfrog):
            x = x + h * spread(s, p)
            if walls:
                x, turn = fold(energy.domain, x)
                p = p * turn
            level, grad = evaluate(energy, x)
            lost = lost | level.isnan()  # on an accelerator, where evaluate does not raise
            last = k == self.n_leapfrog - 1
            p = p - (beta / 2 if last else beta) * h * free_part(scale_gradient(s, grad), clamp)
        kinetic = kinetic - p.square().flatten(1).sum(1) / 2
        level = level.masked_fill(lost, torch.nan)
        ratio = beta * (state.energy - level) + kinetic
        new, acceptance = metropolis(ratio, state, ChainState(x, level, grad), generator)
        return tuned(new, acceptance, self.target_acceptance), StepInfo(acceptance)
