"""Unadjusted Langevin samplers, plain and annealed over noise levels."""

from __future__ import annotations

import math
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval, StrOptions
from skebm.base import ChainState, Clamp, Energy, Real, Sampler, SamplingError, StepInfo
from skebm.samplers._adaptation import (
    STEP_CONSTRAINTS,
    diagonal_scale,
    initial_scale,
    scale_gradient,
    scale_noise,
)
from skebm.samplers._moves import (
    check_gradient,
    evaluate,
    has_bounds,
    reflect,
    standard_normal,
    tempers_joint,
)


class Langevin(Sampler):
    r"""Unadjusted Langevin dynamics: fast, with a bias that depends on the step size.

    .. math:: x' = x - h\, s^2 \odot \mathrm{clip}(\beta \nabla E(x)) + \sigma\, s \odot z,
        \qquad z \sim N(0, I)

    With the default :math:`\sigma = \sqrt{2h}` its stationary distribution approaches
    :math:`p \propto e^{-\beta E}` as h goes to 0 (the bias is of the order of h) or as h decays;
    with another :math:`\sigma` it approaches :math:`p^{2h/\sigma^2}`, a different temperature.
    Nothing is rejected: if the step is too large for the energy, chains diverge, which raises a
    :class:`~skebm.base.SamplingError`. A step costs one gradient.

    Common parametrisations: a step :math:`\epsilon` along the score with noise
    :math:`\sqrt{2\epsilon}` is ``Langevin(epsilon)``; a step :math:`\lambda / 2` with noise of
    variance :math:`\lambda` is ``Langevin(lambda / 2)``; a step :math:`\alpha` with an independent
    noise :math:`\sigma`, as in JEM, is ``Langevin(alpha, noise_scale=sigma)``.

    Parameters
    ----------
    step_size : float, default=0.01
        h > 0, in units of x squared (without a unit if `scale` is given).
    noise_scale : float or None, default=None
        :math:`\sigma \ge 0` in units of x (of `scale` where one is given); None is
        :math:`\sqrt{2h}`, 0 is gradient descent.
    decay : float in [0, 1], default=0
        :math:`\gamma` of the decreasing schedule [1]_: step t, counted from 0, has the size
        :math:`h (1 + t / b)^{-\gamma}`, and :math:`\sigma` decreases like its square root. For
        values of :math:`\gamma` above one half the bias vanishes with time.
    decay_delay : float, default=10
        b > 0, the time scale of the decay in steps.
    averaged : bool, default=False
        Use the mean of the present and the previous noise in each step [4]_: the same cost, and a
        bias of the order of h squared, zero for normal distributions.
    clip_grad : float or None, default=None
        Largest absolute value of an entry of the gradient (times beta). Clipping prevents
        divergence early in training, and adds a bias.
    bounds : {"reflect", "clip"}, default="reflect"
        Treatment of the bounds of the energy's domain. Reflection has a bias that vanishes with the
        step size; clipping accumulates chains at the bounds.
    scale : None, "auto", "dense" or array-like of the shape of a row, default=None
        s, the standard deviation of each entry; ``"auto"`` is that of the rows that chains start
        from, ``"dense"`` is their covariance (only without bounds).

    References
    ----------
    .. [1] Welling and Teh (2011), "Bayesian learning via stochastic gradient Langevin dynamics",
       ICML, eq. 2 and 4.
    .. [2] Roberts and Tweedie (1996), "Exponential convergence of Langevin distributions and their
       discrete approximations", Bernoulli 2(4).
    .. [3] Grathwohl et al. (2020), "Your classifier is secretly an energy based model", ICLR.
    .. [4] Leimkuhler and Matthews (2013), "Rational construction of stochastic numerical methods
       for molecular sampling", Applied Mathematics Research eXpress 2013(1).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import Langevin
    >>> class Gaussian(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 2
    >>> generator = torch.Generator().manual_seed(0)
    >>> state, _ = Langevin(0.5).run(Gaussian(), torch.zeros(20_000, 2), 50, generator)
    >>> state.x.var(0).round(decimals=1)  # biased: 1 / (1 - h / 2) for this energy
    tensor([1.3000, 1.3000])
    >>> averaged = Langevin(0.5, averaged=True)
    >>> state, _ = averaged.run(Gaussian(), torch.zeros(20_000, 2), 50, generator)
    >>> state.x.var(0).round(decimals=1)
    tensor([1., 1.])
    """

    domains = (Real,)
    _parameter_constraints = STEP_CONSTRAINTS | {
        "noise_scale": [Interval(RealNumber, 0, None, closed="left"), None],
        "decay": [Interval(RealNumber, 0, 1, closed="both")],
        "decay_delay": [Interval(RealNumber, 0, None, closed="neither")],
        "averaged": ["boolean"],
        "clip_grad": [Interval(RealNumber, 0, None, closed="neither"), None],
        "bounds": [StrOptions({"reflect", "clip"})],
    }

    def __init__(
        self,
        step_size: float = 0.01,
        noise_scale: float | None = None,
        *,
        decay: float = 0.0,
        decay_delay: float = 10.0,
        averaged: bool = False,
        clip_grad: float | None = None,
        bounds: str = "reflect",
        scale: Any = None,
    ):
        self.step_size = step_size
        self.noise_scale = noise_scale
        self.decay = decay
        self.decay_delay = decay_delay
        self.averaged = averaged
        self.clip_grad = clip_grad
        self.bounds = bounds
        self.scale = scale

    @property
    def exact(self) -> bool:
        """False: no step is rejected."""
        return False

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x; ``aux`` is (steps taken, scale, last noise)."""
        last = torch.zeros_like(x) if self.averaged else None  # replaced in the first step
        return ChainState(x, aux=(0, initial_scale(self.scale, energy, x), last))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Take a drift and diffusion step."""
        count, s, previous = state.aux
        h, sigma = self.step_size, self.noise_scale
        if sigma is None:
            sigma = math.sqrt(2 * h)
        if self.decay:
            factor = (1 + count / self.decay_delay) ** -self.decay
            h, sigma = h * factor, sigma * math.sqrt(factor)
        value, grad = evaluate(energy, state.x, check_grad=False)
        tempered = grad if beta == 1 else beta * grad
        if self.clip_grad is not None:
            tempered = tempered.clamp(-self.clip_grad, self.clip_grad)
        z = noise = standard_normal(state.x, generator)
        if self.averaged:
            noise = (z + (previous if count else standard_normal(state.x, generator))) / 2
        x = langevin_update(
            energy.domain, state.x, tempered, h, sigma, s, noise, clamp, self.bounds
        )
        check_finite(energy, state.x, value, grad, x)
        return ChainState(x, aux=(count + 1, s, z if self.averaged else None)), UNADJUSTED


class AnnealedLangevin(Sampler):
    r"""Annealed Langevin dynamics over a ladder of noise levels, for noise-conditional energies.

    Level i of a geometric ladder from `sigma_max` to `sigma_min` runs `n_steps_per_level` steps
    of unadjusted Langevin dynamics on :math:`E(x, \sigma_i)`, the energy of data convolved with
    normal noise of that standard deviation, with step :math:`h_i = h \sigma_i^2`. High noise levels
    connect modes that are separated at low ones. The draws are biased by the step size and by the
    finite number of steps per level. A chain at the last level stays there. A step costs one
    gradient.

    The energy is called as ``energy(x, cond)`` with `cond` the noise level of each row, (n,).

    Parameters
    ----------
    step_size : float, default=0.1
        h > 0, in units of the squared noise level. (:math:`\epsilon` of [1]_ is
        :math:`2 h \sigma_L^2`.)
    sigma_max, sigma_min : float, default=1.0, 0.01
        First and last noise level, in units of x.
    n_levels : int, default=10
        Number of levels, at least 2.
    n_steps_per_level : int, default=10
        Steps at each level; the whole ladder takes ``n_levels * n_steps_per_level`` steps.

    References
    ----------
    .. [1] Song and Ermon (2019), "Generative modeling by estimating gradients of the data
       distribution", NeurIPS, algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import AnnealedLangevin
    >>> class NoisyPoint(Energy):  # all data at 3
    ...     domain = Real((1,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return ((x - 3) / cond[:, None]).square().sum(1) / 2
    >>> generator = torch.Generator().manual_seed(0)
    >>> state, _ = AnnealedLangevin().run(NoisyPoint(), torch.zeros(4, 1), 100, generator)
    >>> state.x.round(decimals=1).flatten()
    tensor([3., 3., 3., 3.])
    """

    domains = (Real,)
    _parameter_constraints = {
        "step_size": [Interval(RealNumber, 0, None, closed="neither")],
        "sigma_max": [Interval(RealNumber, 0, None, closed="neither")],
        "sigma_min": [Interval(RealNumber, 0, None, closed="neither")],
        "n_levels": [Interval(Integral, 2, None, closed="left")],
        "n_steps_per_level": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        step_size: float = 0.1,
        *,
        sigma_max: float = 1.0,
        sigma_min: float = 0.01,
        n_levels: int = 10,
        n_steps_per_level: int = 10,
    ):
        self.step_size = step_size
        self.sigma_max = sigma_max
        self.sigma_min = sigma_min
        self.n_levels = n_levels
        self.n_steps_per_level = n_steps_per_level

    @property
    def exact(self) -> bool:
        """False: no step is rejected."""
        return False

    def check(self, energy: Energy) -> None:
        """Raise for another domain, or unless `sigma_min` is below `sigma_max`."""
        super().check(energy)
        if not self.sigma_min < self.sigma_max:
            raise ValueError(
                f"sigma_min={self.sigma_min!r} must be below sigma_max={self.sigma_max!r}."
            )

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x; ``aux`` is the number of steps taken."""
        return ChainState(x, aux=0)

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Take a drift and diffusion step at the present noise level."""
        level = self._sigma(state.aux)
        h = self.step_size * level**2
        cond = state.x.new_full(state.x.shape[:1], level)
        value, grad = evaluate(energy, state.x, cond, check_grad=False)
        z = standard_normal(state.x, generator)
        sigma = math.sqrt(2 * h)
        x = langevin_update(
            energy.domain, state.x, beta * grad, h, sigma, None, z, clamp, "reflect"
        )
        check_finite(energy, state.x, value, grad, x)
        return ChainState(x, aux=state.aux + 1), UNADJUSTED

    def energies(self, energy: Energy, state: ChainState) -> Tensor:
        """Energies at the noise level of the last step, (n,)."""
        sigma = self._sigma(max(state.aux - 1, 0))
        return energy(state.x, state.x.new_full(state.x.shape[:1], sigma))

    def _sigma(self, n_taken: int) -> float:
        """Noise level of the step after `n_taken` steps."""
        level = min(n_taken // self.n_steps_per_level, self.n_levels - 1)
        ratio = self.sigma_min / self.sigma_max
        return self.sigma_max * ratio ** (level / (self.n_levels - 1))


def langevin_update(
    domain: Any,
    x: Tensor,
    grad: Tensor,
    h: float,
    sigma: float,
    s: Any,
    noise: Tensor,
    clamp: Clamp | None,
    bounds: str,
) -> Tensor:
    """Rows after a drift step h and a diffusion step sigma, with scale s, bounds and clamp."""
    if s is not None:
        s = diagonal_scale(s, x, clamp)
        grad, noise = scale_noise(s, scale_gradient(s, grad)), scale_noise(s, noise)
    new = x.sub(grad, alpha=h).add_(noise, alpha=sigma)
    if has_bounds(domain):
        clip = bounds != "reflect"
        new = new.clamp(domain.lower, domain.upper) if clip else reflect(domain, new)[0]
    if clamp is not None:
        new = torch.where(clamp.mask, x, new)
    return new


def check_finite(energy: Energy, x: Tensor, value: Tensor, grad: Tensor, new: Tensor) -> None:
    """Raise `SamplingError` where the step from x to `new` is not finite."""
    if x.is_cuda or math.isfinite(float(new.sum())) or new.isfinite().all():
        return
    check_gradient(energy, x, value, grad)
    bad = ~new.isfinite().flatten(1).all(1)
    raise SamplingError(
        f"{int(bad.sum())} of {len(x)} Langevin chains diverged to infinity. Use a smaller "
        "step_size, or a sampler that rejects such steps, such as MALA."
    )


UNADJUSTED = StepInfo(1.0)
