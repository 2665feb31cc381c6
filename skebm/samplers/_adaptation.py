"""Step sizes and scales of samplers: given, estimated from rows, or adapted during a warm-up."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm._validation import Interval, StrOptions
from skebm.base import ChainState, Clamp, Energy
from skebm.samplers._moves import has_bounds

STEP_CONSTRAINTS: dict[str, list[Any]] = {
    "step_size": [Interval(Real, 0, None, closed="neither")],
    "scale": [StrOptions({"auto", "dense"}), "array-like", None],
}
ADAPT_CONSTRAINTS: dict[str, list[Any]] = {
    "adapt": ["boolean"],
    "target_acceptance": [Interval(Real, 0, 1, closed="neither")],
}


class DenseScale(NamedTuple):
    """Scale of flat rows with correlated entries.

    Attributes
    ----------
    scale_tril : Tensor of shape (d, d)
        Lower Cholesky factor L of the covariance of the rows.
    """

    scale_tril: Tensor


def scale_noise(s: Any, z: Tensor) -> Tensor:
    """Standard normal draws or momenta z (n, ...) in the units of the rows: L z or s * z."""
    if s is None:
        return z
    return (z.flatten(1) @ s.scale_tril.t()).view_as(z) if isinstance(s, DenseScale) else s * z


def scale_gradient(s: Any, grad: Tensor) -> Tensor:
    """Gradients (n, ...) with respect to the arguments of :func:`scale_noise`: L' g or s * g."""
    if s is None:
        return grad
    return (grad.flatten(1) @ s.scale_tril).view_as(grad) if isinstance(s, DenseScale) else s * grad


class Adaptation(NamedTuple):
    """State of the adaptation: dual averaging of the step size and moments of the rows.

    Attributes
    ----------
    first_log_step, log_step, error, n_steps : Tensor, scalar, float64
        Logarithm of the initial step size, weighted mean of the logarithms of the step sizes, mean
        of the target less the acceptance, number of adaptation steps.
    mean, variance : Tensor of the shape of a row, or None
        Mean and variance of the rows of all chains; (d,) and the covariance (d, d) if the scale is
        dense; None if the scale is not adapted.
    """

    first_log_step: Tensor
    log_step: Tensor
    error: Tensor
    n_steps: Tensor
    mean: Tensor | None
    variance: Tensor | None


class StepSettings(NamedTuple):
    """Step size and scale of chains, in place of the parameters of their sampler.

    Attributes
    ----------
    step_size : Tensor, scalar, or float
        In the units of the sampler's parameter.
    scale : Tensor of the shape of a row, DenseScale or None
        Standard deviations or covariance of the rows.
    adaptation : Adaptation or None
        None once frozen.
    """

    step_size: Any
    scale: Tensor | DenseScale | None
    adaptation: Adaptation | None

    def frozen(self) -> StepSettings:
        """The settings after adaptation."""
        if self.adaptation is None:
            return self
        step = self.adaptation.log_step.exp().to(self.step_size.dtype)
        step = torch.where(self.adaptation.n_steps > 0, step, self.step_size)
        # A number is cheaper than a tensor, but reading it from an accelerator makes the host wait.
        return StepSettings(step if step.is_cuda else step.item(), self.scale, None)


def initial_settings(
    sampler: Any, energy: Energy, x: Tensor, scaled: bool = True
) -> StepSettings | None:
    """Settings of chains that start at rows x; None where the sampler's parameters suffice."""
    adapt = getattr(sampler, "adapt", False)
    scale = initial_scale(sampler.scale, energy, x, adapt) if scaled else None
    if not adapt and scale is None:
        return None
    step = torch.as_tensor(float(sampler.step_size), dtype=x.dtype, device=x.device)
    if not adapt:
        return StepSettings(step, scale, None)
    log_step = step.double().log()
    zero = torch.zeros_like(log_step)
    adapts_scale = scaled and isinstance(sampler.scale, str)
    moments: Any = (None, None)
    if adapts_scale and isinstance(scale, DenseScale):
        moments = x.flatten(1).mean(0), scale.scale_tril @ scale.scale_tril.t()
    elif adapts_scale and scale is not None:
        moments = x.mean(0), scale.square()
    return StepSettings(step, scale, Adaptation(log_step, zero, zero, zero, *moments))


def initial_scale(scale: Any, energy: Energy, x: Tensor, adapt: bool = False) -> Any:
    """Standard deviation of each entry of a row, a :class:`DenseScale`, or None for unit scales.

    A single chain that adapts starts from ones.
    """
    if scale is None:
        return None
    if isinstance(scale, str):
        if scale == "dense" and has_bounds(energy.domain):
            raise ValueError(
                'scale="dense" rotates steps, which is incompatible with reflection at bounds: '
                f'use scale="auto" on {energy.domain}.'
            )
        if len(x) < 2 and not adapt:
            raise ValueError(
                f'scale="{scale}" is estimated from the rows that chains start from, but there is '
                f"{len(x)} row. Pass an array of standard deviations, or scale=None."
            )
        single = len(x) < 2
        if scale == "dense":
            flat = x.flatten(1)
            cov = torch.eye(flat.shape[1]).to(x) if single else flat.t().cov()
            return _shrunk_cholesky(cov.view(flat.shape[1], -1), flat.mean(0), len(x))
        return x.new_ones(x.shape[1:]) if single else _usable_variance(x.var(0), x.mean(0)).sqrt()
    given = torch.as_tensor(np.asarray(scale, dtype=np.float64)).to(x)
    shape = energy.domain.row_shape
    if given.shape != shape or not (given.isfinite() & (given > 0)).all():
        raise ValueError(
            f"scale must be a positive finite number for each entry of a row, of shape {shape}; "
            f"got shape {tuple(given.shape)}, smallest {float(given.min()):.3g}."
        )
    return given


def _shrunk_cholesky(cov: Tensor, mean: Tensor, n_rows: Any) -> DenseScale:
    """Cholesky factor of a covariance of about `n_rows` rows, shrunk towards its diagonal."""
    shrinkage = torch.as_tensor(len(cov) / (len(cov) + n_rows)).to(cov)
    shrunk = ((1 - shrinkage) * cov).diagonal_scatter(_usable_variance(cov.diagonal(), mean))
    return DenseScale(torch.linalg.cholesky(shrunk))


def _usable_variance(variance: Tensor, mean: Tensor) -> Tensor:
    """Variances, 1 where a column varies by no more than its rounding errors."""
    least = (100 * torch.finfo(mean.dtype).eps * mean).square()
    return torch.where(variance > least, variance, 1)


def settings(sampler: Any, state: ChainState, clamp: Clamp | None = None) -> tuple[Any, Any]:
    """Step size and scale of the next step."""
    if state.aux is None:
        return sampler.step_size, None
    return state.aux.step_size, diagonal_scale(state.aux.scale, state.x, clamp)


def diagonal_scale(s: Any, x: Tensor, clamp: Clamp | None) -> Any:
    """The scale; only the standard deviations of a dense one where coordinates are clamped."""
    if clamp is None or not isinstance(s, DenseScale):
        return s
    return s.scale_tril.norm(dim=1).view(x.shape[1:])


def adaptation_step(state: ChainState, acceptance: Tensor, target: float) -> ChainState:
    """The state after an adaptation step; unchanged where it does not adapt."""
    if state.aux is None or state.aux.adaptation is None or not len(state.x):
        return state
    aux: StepSettings = state.aux
    old: Any = aux.adaptation
    count = old.n_steps + 1
    # Parameters of dual averaging, with the symbols of Hoffman and Gelman (2014), section 3.2.1.
    gamma, t0, kappa = 0.05, 10, 0.75
    # Dual averaging of the logarithm of the step size.
    error = old.error.lerp(target - acceptance.double(), (count + t0).reciprocal())
    # Largest change of the step size, up or down; reached where every proposal is accepted.
    max_factor = 1e8
    limit = float(np.log(max_factor))
    change = (np.log(10) - count.sqrt() * error / gamma).clamp(-limit, limit)
    log_step = old.first_log_step + change
    mean_log_step = old.log_step.lerp(log_step, count**-kappa)
    mean, variance, scale = old.mean, old.variance, aux.scale
    # Moments of the rows are weighted means over about the last third of the warm-up.
    memory = 3
    if mean is not None:
        # Moments with a memory that grows with the warm-up.
        rate = (memory / (count + memory)).to(mean.dtype)
        rows, dense = state.x, isinstance(scale, DenseScale)
        rows = rows.flatten(1) if dense else rows
        batch_mean = rows.mean(0)
        shift, centred = batch_mean - mean, rows - batch_mean
        between = shift[:, None] * shift if dense else shift.square()
        within = centred.t() @ centred / len(rows) if dense else centred.square().mean(0)
        variance = variance.addcmul(rate, between).lerp(within, rate)
        mean = mean.lerp(batch_mean, rate)
        if dense:
            scale = _shrunk_cholesky(variance, mean, len(rows) * (count + memory) / memory)
        else:
            scale = _usable_variance(variance, mean).sqrt()
    new = Adaptation(old.first_log_step, mean_log_step, error, count, mean, variance)
    return state._replace(aux=StepSettings(log_step.exp().to(aux.step_size.dtype), scale, new))
