"""Parts of the samplers: checked evaluation of energies, acceptance, reflection at bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, ChainState, Clamp, Energy, SamplingError, StepInfo
from skebm.base.energy import check_shape
from skebm.base.state import StartError


class TemperedMarginal(Energy):
    """The free energy of a bipartite energy whose joint is at inverse temperature `beta`."""

    def __init__(self, energy: BipartiteEnergy, beta: float):
        super().__init__()
        self.energy, self.beta, self.domain = energy, beta, energy.domain

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,)."""
        return self.energy.free_energy(x, self.beta)


def tempers_joint(step: Callable[..., Any]) -> Callable[..., Any]:
    """Make `beta` of a sampler's step temper the joint of a bipartite energy, as in Gibbs.

    The marginal of exp(-beta E(x, h)) differs from exp(-beta F(x)), with F the free energy. The
    step is therefore run on the marginal: the state is evaluated under it before the step, and
    under the energy again afterwards. Annealing and tempering along a path have beta 1, which needs
    neither evaluation.
    """

    @functools.wraps(step)
    def wrapped(
        self: Any,
        energy: Any,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        if beta == 1 or not isinstance(energy, BipartiteEnergy):
            return step(self, energy, state, generator, beta, clamp)
        marginal = TemperedMarginal(energy, beta)
        new, info = step(self, marginal, self.refresh(marginal, state), generator, 1.0, clamp)
        return self.refresh(energy, new), info

    return wrapped


def evaluate(
    energy: Energy, x: Tensor, cond: Any = None, check_grad: bool = True
) -> tuple[Tensor, Tensor]:
    """Energies (n,) and gradients (n, ...) at x, checked by :func:`check_evaluation`."""
    return check_evaluation(energy, x, *energy.value_and_grad(x, cond), check_grad)


def check_evaluation(
    energy: Energy, x: Tensor, value: Tensor, grad: Tensor, check_grad: bool = True
) -> tuple[Tensor, Tensor]:
    """Energies and gradients at x, after :func:`check_values`.

    A gradient that is not finite where the energy is finite is a `SamplingError` too. Without
    `check_grad` the caller checks the rows that result from it.
    """
    if not x.is_cuda and math.isfinite(
        float(value.sum()) + (float(grad.sum()) if check_grad else 0.0)
    ):
        return value, grad
    value = check_values(energy, x, value)
    if x.is_cuda:  # a chain that moves by its gradient becomes nan and is found at the end
        return value, grad.masked_fill(by_row(value.isnan(), x), math.nan)
    if check_grad and not math.isfinite(float(grad.sum())):
        check_gradient(energy, x, value, grad)
    return value, grad


def check_gradient(energy: Energy, x: Tensor, value: Tensor, grad: Tensor) -> None:
    """Raise `SamplingError` where a gradient is not finite and its energy is."""
    bad = ~grad.isfinite().flatten(1).all(1) & value.isfinite() & ~_overflows(x)
    if bad.any():
        raise SamplingError(_nan_message(f"The gradient of {type(energy).__name__}", bad, x))


def evaluate_energy(energy: Energy, x: Tensor) -> Tensor:
    """Energies (n,) at x, checked by :func:`check_values`, without gradients."""
    value = energy(x).detach()
    check_shape(energy, x, value)
    return check_values(energy, x, value.to(x.dtype))


def check_values(energy: Energy, x: Tensor, value: Tensor) -> Tensor:
    """The energies; `SamplingError` if one is nan.

    Where a trajectory has diverged so far that powers of x overflow, inf - inf results from too
    large a step rather than from the energy; such a row gets the energy inf and is rejected. On an
    accelerator a nan stays in its chain and is found at the end of the run, because reading it
    would make the host wait at every step.
    """
    if not x.is_cuda and not math.isnan(float(value.sum())):
        return value
    nan, overflow = value.isnan(), _overflows(x)
    if not x.is_cuda and (nan & ~overflow).any():
        raise SamplingError(_nan_message(type(energy).__name__, nan & ~overflow, x))
    return torch.where(nan & overflow, math.inf, value)


def _overflows(x: Tensor) -> Tensor:
    """Rows whose fourth powers overflow or that contain nan, (n,)."""
    return ~(x.abs().flatten(1).amax(1) < torch.finfo(x.dtype).max ** 0.25)


def _nan_message(what: str, bad: Tensor, x: Tensor) -> str:
    row = int(bad.nonzero()[0])
    return (
        f"{what} is nan at {int(bad.sum())} of {len(x)} chains, first at chain {row}, where "
        f"x = {_abbreviate(x[row])}."
    )


def by_row(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of rows (n,) in a shape that broadcasts over their entries."""
    return mask.view(-1, *[1] * (like.dim() - 1))


def _abbreviate(row: Tensor) -> str:
    values = ", ".join(f"{v:.4g}" for v in row.flatten()[:5].tolist())
    return f"[{values}{', ...' if row.numel() > 5 else ''}]"


def start(energy: Energy, x: Tensor, with_grad: bool = True) -> ChainState:
    """State of chains at x; raises `StartError` if an energy is not finite."""
    value, grad = evaluate(energy, x) if with_grad else (evaluate_energy(energy, x), None)
    if not x.is_cuda and not math.isfinite(float(value.sum())):
        bad = ~value.isfinite()
        if bad.any():
            raise StartError(
                f"The energy is {float(value[bad][0])} at row {int(bad.nonzero()[0])}, where a "
                f"chain was to start ({int(bad.sum())} of {len(x)} rows): start elsewhere."
            )
    return ChainState(x, value, grad)


def metropolis(
    log_ratio: Tensor,
    state: Any,
    proposal: Any,
    generator: torch.Generator,
    outside: Tensor | None = None,
) -> tuple[ChainState, Tensor]:
    """Accept each proposal with probability min(1, exp(log_ratio)).

    Returns the new states and the mean acceptance probability. Proposals `outside` (n,) are
    rejected, and so is a ratio that is nan, which results from an infinite energy or gradient.
    """
    p = log_ratio.exp().nan_to_num_(0.0, posinf=1.0)
    if outside is not None:
        p = p.masked_fill(outside, 0)
    u = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
    new: Any = select(u < p, proposal, state)
    if p.is_cuda:  # see `check_values`
        value = torch.where(proposal.energy.isnan(), proposal.energy, new.energy)
        new = new._replace(energy=value)
    return new, p.clamp_(max=1).mean()


def accepts(log_ratio: Tensor, generator: torch.Generator) -> Tensor:
    """True with probability min(1, exp(log_ratio)) each, (n,)."""
    n, device = len(log_ratio), log_ratio.device
    u = torch.rand(n, generator=generator, dtype=log_ratio.dtype, device=device)
    return (1 - u).log() < log_ratio  # 1 - u, because u may be 0, whose logarithm accepts all


def select(mask: Tensor, a: ChainState, b: ChainState) -> ChainState:
    """Chains of `a` where the mask (n,) is true and of `b` elsewhere, with the aux of `b`."""

    def pick(p: Any, q: Any) -> Any:
        if p is None or q is None:
            return None
        return torch.where(by_row(mask, p), p, q)

    return ChainState(pick(a.x, b.x), pick(a.energy, b.energy), pick(a.grad, b.grad), b.aux)


def standard_normal(like: Tensor, generator: torch.Generator, clamp: Clamp | None = None) -> Tensor:
    """Standard normal noise of the shape of `like`, zero at clamped coordinates."""
    z = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    return zero_clamped(z, clamp)


def zero_clamped(values: Tensor, clamp: Clamp | None) -> Tensor:
    """The values with zeros at clamped coordinates."""
    return values if clamp is None else values.masked_fill(clamp.mask, 0)


def has_bounds(domain: Any) -> bool:
    """Whether a real domain has a bound on at least one side."""
    return domain.lower is not None or domain.upper is not None


def reject_outside(domain: Any, x: Tensor, instead: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows with those outside the bounds replaced, and a mask of these, (n,); None if unbounded.

    The energy is not defined outside, and may be infinite at a bound.
    """
    if not has_bounds(domain):
        return x, None
    outside = ~((x >= _low(domain)) & (x <= _high(domain))).flatten(1).all(1)
    return torch.where(by_row(outside, x), instead, x), outside


def reflect(domain: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Reflect x at the bounds, repeatedly if needed; and the sign that velocities get, 1 or -1."""
    low, high = domain.lower, domain.upper
    beyond = (x < _low(domain)) | (x > _high(domain))
    if low is None or high is None:
        reflected, reversed_ = 2 * (low if high is None else high) - x, beyond
    else:
        y = torch.remainder(x - low, 2 * (high - low))
        reversed_ = beyond & (y > high - low)
        # Clamped, because rounding may exceed a bound in the last digit.
        reflected = (low + torch.where(reversed_, 2 * (high - low) - y, y)).clamp(low, high)
    return torch.where(beyond, reflected, x), torch.where(reversed_, -1.0, 1.0).to(x.dtype)


def _low(domain: Any) -> float:
    return -math.inf if domain.lower is None else domain.lower


def _high(domain: Any) -> float:
    return math.inf if domain.upper is None else domain.upper
