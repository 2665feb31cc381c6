"""Step sizes and scales: given, taken from the rows, or found during a warm-up."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm._validation import Interval, StrOptions
from skebm.base import ChainState, Clamp, Energy
from skebm.samplers._moves import bounded

# Hoffman and Gelman (2014), section 3.2.1: how hard the average acceptance pulls, how many early
# steps are damped, how fast early steps are forgotten.
PULL, DAMPING, FORGETTING = 0.05, 10, 0.75
# Moments of the rows are means over about the last third of the warm-up.
MEMORY = 3
# A search without a signal (nothing is ever rejected) stays within this factor of its start.
REACH = 1e8

STEP_CONSTRAINTS: dict[str, list[Any]] = {
    "step_size": [Interval(Real, 0, None, closed="neither")],
    "scale": [StrOptions({"auto", "dense"}), "array-like", None],
}
ADAPT_CONSTRAINTS: dict[str, list[Any]] = {
    "adapt": ["boolean"],
    "target_acceptance": [Interval(Real, 0, 1, closed="neither")],
}


class Dense(NamedTuple):
    """Scale of flat rows whose entries depend on each other.

    Attributes
    ----------
    factor : Tensor of shape (d, d)
        Lower Cholesky factor of the covariance to expect.
    """

    factor: Tensor


def spread(s: Any, z: Tensor) -> Tensor:
    """Independent unit moves z (n, ...) in the units of the rows."""
    if s is None:
        return z
    return (z.flatten(1) @ s.factor.t()).view_as(z) if isinstance(s, Dense) else s * z


def scale_gradient(s: Any, grad: Tensor) -> Tensor:
    """Gradients (n, ...) with respect to such moves: :func:`spread` transposed."""
    if s is None:
        return grad
    return (grad.flatten(1) @ s.factor).view_as(grad) if isinstance(s, Dense) else s * grad


class Search(NamedTuple):
    """Running numbers of a warm-up: dual averaging of the step size, moments of the rows.

    Attributes
    ----------
    first_log_step, log_step, error, n_steps : Tensor, scalar, float64
        Where the search began, the weighted mean of the logarithms of the steps, the mean lack of
        acceptance, the number of steps so far.
    mean, variance : Tensor of the shape of a row, or None
        Of the rows of all chains, (d,) and covariance (d, d) where the scale is dense; None where
        the scale is not searched.
    """

    first_log_step: Tensor
    log_step: Tensor
    error: Tensor
    n_steps: Tensor
    mean: Tensor | None
    variance: Tensor | None


class Tuning(NamedTuple):
    """What a chain uses instead of its sampler's parameters.

    Attributes
    ----------
    step_size : Tensor, scalar, or float
    scale : Tensor of the shape of a row, Dense or None
    search : Search or None
        None once frozen.
    """

    step_size: Any
    scale: Tensor | Dense | None
    search: Search | None

    def frozen(self) -> Tuning:
        """The settings that the search has found."""
        if self.search is None:
            return self
        step = self.search.log_step.exp().to(self.step_size.dtype)
        step = torch.where(self.search.n_steps > 0, step, self.step_size)
        # A number is cheaper than a tensor, but has to be waited for on an accelerator.
        return Tuning(step if step.is_cuda else step.item(), self.scale, None)


def tuning(sampler: Any, energy: Energy, x: Tensor, scaled: bool = True) -> Tuning | None:
    """Settings of chains that start at rows x; None where the parameters say all there is."""
    adapt = getattr(sampler, "adapt", False)
    scale = starting_scale(sampler.scale, energy, x, adapt) if scaled else None
    if not adapt and scale is None:
        return None
    step = torch.as_tensor(float(sampler.step_size), dtype=x.dtype, device=x.device)
    if not adapt:
        return Tuning(step, scale, None)
    log_step = step.double().log()
    none = torch.zeros_like(log_step)
    searched = scaled and isinstance(sampler.scale, str)
    moments: Any = (None, None)
    if searched and isinstance(scale, Dense):
        moments = x.flatten(1).mean(0), scale.factor @ scale.factor.t()
    elif searched and scale is not None:
        moments = x.mean(0), scale.square()
    return Tuning(step, scale, Search(log_step, none, none, none, *moments))


def starting_scale(scale: Any, energy: Energy, x: Tensor, adapt: bool = False) -> Any:
    """Standard deviation to expect of each entry of a row, or :class:`Dense`; None: all are alike.

    One chain that adapts starts from ones.
    """
    if scale is None:
        return None
    if isinstance(scale, str):
        if scale == "dense" and bounded(energy.domain):
            raise ValueError(
                'scale="dense" turns steps and cannot turn walls: use scale="auto" on '
                f"{energy.domain}."
            )
        if len(x) < 2 and not adapt:
            raise ValueError(
                f'scale="{scale}" takes the standard deviations of the rows that chains start '
                f"from, but there is {len(x)} row. Pass an array of them, or scale=None."
            )
        one = len(x) < 2
        if scale == "dense":
            flat = x.flatten(1)
            cov = torch.eye(flat.shape[1]).to(x) if one else flat.t().cov()
            return _factor(cov.view(flat.shape[1], -1), flat.mean(0), len(x))
        return x.new_ones(x.shape[1:]) if one else _usable(x.var(0), x.mean(0)).sqrt()
    given = torch.as_tensor(np.asarray(scale, dtype=np.float64)).to(x)
    shape = energy.domain.row_shape
    if given.shape != shape or not (given.isfinite() & (given > 0)).all():
        raise ValueError(
            f"scale must hold a positive finite number for each entry of a row, of shape {shape}; "
            f"got shape {tuple(given.shape)}, smallest {float(given.min()):.3g}."
        )
    return given


def _factor(cov: Tensor, mean: Tensor, n_rows: Any) -> Dense:
    """Cholesky factor of a covariance of about `n_rows` rows, shrunk towards its diagonal."""
    share = torch.as_tensor(len(cov) / (len(cov) + n_rows)).to(cov)
    shrunk = ((1 - share) * cov).diagonal_scatter(_usable(cov.diagonal(), mean))
    return Dense(torch.linalg.cholesky(shrunk))


def _usable(variance: Tensor, mean: Tensor) -> Tensor:
    """Variances, 1 where a column does not vary by more than its rounding errors."""
    least = (100 * torch.finfo(mean.dtype).eps * mean).square()
    return torch.where(variance > least, variance, 1)


def settings(sampler: Any, state: ChainState, clamp: Clamp | None = None) -> tuple[Any, Any]:
    """Step size and scale of the next step."""
    if state.aux is None:
        return sampler.step_size, None
    return state.aux.step_size, diagonal_scale(state.aux.scale, state.x, clamp)


def diagonal_scale(s: Any, x: Tensor, clamp: Clamp | None) -> Any:
    """The scale; of a dense one just the diagonal where some entries may not move."""
    if clamp is None or not isinstance(s, Dense):
        return s
    return s.factor.norm(dim=1).view(x.shape[1:])


def tuned(state: ChainState, acceptance: Tensor, target: float) -> ChainState:
    """The state with the lesson of a step drawn, where it is still being tuned."""
    if state.aux is None or state.aux.search is None or not len(state.x):
        return state
    aux: Tuning = state.aux
    search: Any = aux.search
    count = search.n_steps + 1
    # Dual averaging.
    rate = (count + DAMPING).reciprocal()
    error = search.error.lerp(target - acceptance.double(), rate)
    reach = float(np.log(REACH))
    moved = (np.log(10) - count.sqrt() * error / PULL).clamp(-reach, reach)
    log_step = search.first_log_step + moved
    mean_log_step = search.log_step.lerp(log_step, count**-FORGETTING)
    mean, variance, scale = search.mean, search.variance, aux.scale
    if mean is not None:
        # Moments with a memory that grows with the warm-up.
        share = (MEMORY / (count + MEMORY)).to(mean.dtype)
        here, dense = state.x, isinstance(scale, Dense)
        here = here.flatten(1) if dense else here
        middle = here.mean(0)
        off, around = middle - mean, here - middle
        outer = off[:, None] * off if dense else off.square()
        within = around.t() @ around / len(here) if dense else around.square().mean(0)
        variance = variance.addcmul(share, outer).lerp(within, share)
        mean = mean.lerp(middle, share)
        if dense:
            scale = _factor(variance, mean, len(here) * (count + MEMORY) / MEMORY)
        else:
            scale = _usable(variance, mean).sqrt()
    new = Search(search.first_log_step, mean_log_step, error, count, mean, variance)
    return state._replace(aux=Tuning(log_step.exp().to(aux.step_size.dtype), scale, new))
