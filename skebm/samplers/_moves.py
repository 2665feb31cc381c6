"""What samplers share: looking at an energy, accepting a proposal, staying inside a box."""

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


class AtBeta(Energy):
    """The free energy of a bipartite energy whose joint is at inverse temperature `beta`."""

    def __init__(self, energy: BipartiteEnergy, beta: float):
        super().__init__()
        self.energy, self.beta, self.domain = energy, beta, energy.domain

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,)."""
        return self.energy.free_energy(x, self.beta)


def tempers_joint(step: Callable[..., Any]) -> Callable[..., Any]:
    """Let a step that multiplies energies by beta mean what Gibbs means where there are two layers.

    The marginal of exp(-beta E(x, h)) is not exp(-beta F(x)), F the free energy, so the state is
    evaluated under that marginal, and again afterwards. Annealing and tempering along a path have
    beta 1, where nothing is done twice.
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
        marginal = AtBeta(energy, beta)
        new, info = step(self, marginal, self.refresh(marginal, state), generator, 1.0, clamp)
        return self.refresh(energy, new), info

    return wrapped


def evaluate(
    energy: Energy, x: Tensor, cond: Any = None, look: bool = True
) -> tuple[Tensor, Tensor]:
    """Energies (n,) and gradients (n, ...) at x, by :func:`numbered` energies.

    A gradient that is not finite where the energy is, is a `SamplingError` too; who does not `look`
    at it here looks at what comes of it.
    """
    return checked(energy, x, *energy.value_and_grad(x, cond), look)


def checked(
    energy: Energy, x: Tensor, value: Tensor, grad: Tensor, look: bool = True
) -> tuple[Tensor, Tensor]:
    """Energies and gradients that were found at x, likewise."""
    if not x.is_cuda and math.isfinite(float(value.sum()) + (float(grad.sum()) if look else 0.0)):
        return value, grad
    value = numbered(energy, x, value)
    if x.is_cuda:  # what moves by its gradient alone is poisoned by it
        return value, grad.masked_fill(by_row(value.isnan(), x), math.nan)
    if look and not math.isfinite(float(grad.sum())):
        check_gradient(energy, x, value, grad)
    return value, grad


def check_gradient(energy: Energy, x: Tensor, value: Tensor, grad: Tensor) -> None:
    """Raise `SamplingError` where a gradient is not finite and its energy is."""
    lost = ~grad.isfinite().flatten(1).all(1) & value.isfinite() & ~_far(x)
    if lost.any():
        raise SamplingError(_lost(f"The gradient of {type(energy).__name__}", lost, x))


def evaluate_energy(energy: Energy, x: Tensor) -> Tensor:
    """Energies (n,) at x, by :func:`numbered`; no gradient is asked for."""
    value = energy(x).detach()
    check_shape(energy, x, value)
    return numbered(energy, x, value.to(x.dtype))


def numbered(energy: Energy, x: Tensor, value: Tensor) -> Tensor:
    """The energies, among which no nan is let pass: `SamplingError` instead.

    Where a trajectory has run so far that powers of x overflow, inf - inf is no fault of the energy
    but the mark of a step that is too large; such a row gets the energy inf, and is rejected. On an
    accelerator a nan stays, poisons its chain and is found at the end of the run, because to look
    at it here would make every step wait.
    """
    if not x.is_cuda and not math.isnan(float(value.sum())):
        return value
    lost, far = value.isnan(), _far(x)
    if not x.is_cuda and (lost & ~far).any():
        raise SamplingError(_lost(type(energy).__name__, lost & ~far, x))
    return torch.where(lost & far, math.inf, value)


def _far(x: Tensor) -> Tensor:
    """Rows whose fourth powers overflow, (n,); a nan is far as well."""
    return ~(x.abs().flatten(1).amax(1) < torch.finfo(x.dtype).max ** 0.25)


def _lost(what: str, lost: Tensor, x: Tensor) -> str:
    row = int(lost.nonzero()[0])
    return (
        f"{what} is nan at {int(lost.sum())} of {len(x)} chains, first at chain {row}, where "
        f"x = {_shown(x[row])}."
    )


def by_row(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of rows (n,) in a shape that broadcasts over them."""
    return mask.view(-1, *[1] * (like.dim() - 1))


def _shown(row: Tensor) -> str:
    values = ", ".join(f"{v:.4g}" for v in row.flatten()[:5].tolist())
    return f"[{values}{', ...' if row.numel() > 5 else ''}]"


def start(energy: Energy, x: Tensor, with_grad: bool = True) -> ChainState:
    """State of chains that stand at x, where their energies have to be finite."""
    value, grad = evaluate(energy, x) if with_grad else (evaluate_energy(energy, x), None)
    if not x.is_cuda and not math.isfinite(float(value.sum())):
        lost = ~value.isfinite()
        if lost.any():
            raise StartError(
                f"The energy is {float(value[lost][0])} at row {int(lost.nonzero()[0])}, where a "
                f"chain was to start ({int(lost.sum())} of {len(x)} rows): start elsewhere."
            )
    return ChainState(x, value, grad)


def metropolis(
    log_ratio: Tensor,
    state: Any,
    proposal: Any,
    generator: torch.Generator,
    outside: Tensor | None = None,
) -> tuple[ChainState, Tensor]:
    """Take each proposal with probability min(1, exp(log_ratio)); also return the mean of these.

    Those `outside` (n,) are rejected, and so is a ratio that is nan: it comes of a place far away,
    of infinite energy or gradient.
    """
    p = log_ratio.exp().nan_to_num_(0.0, posinf=1.0)
    if outside is not None:
        p = p.masked_fill(outside, 0)
    u = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
    new: Any = select(u < p, proposal, state)
    if p.is_cuda:  # see `numbered`
        level = torch.where(proposal.energy.isnan(), proposal.energy, new.energy)
        new = new._replace(energy=level)
    return new, p.clamp_(max=1).mean()


def accepts(log_ratio: Tensor, generator: torch.Generator) -> Tensor:
    """True with probability min(1, exp(log_ratio)) each, (n,)."""
    n, device = len(log_ratio), log_ratio.device
    u = torch.rand(n, generator=generator, dtype=log_ratio.dtype, device=device)
    return (1 - u).log() < log_ratio  # of u itself, which may be 0, all would be accepted


def select(mask: Tensor, a: ChainState, b: ChainState) -> ChainState:
    """Chains of `a` where the mask (n,) is true, of `b` elsewhere; aux is that of `b`."""

    def pick(p: Any, q: Any) -> Any:
        if p is None or q is None:
            return None
        return torch.where(by_row(mask, p), p, q)

    return ChainState(pick(a.x, b.x), pick(a.energy, b.energy), pick(a.grad, b.grad), b.aux)


def standard_normal(like: Tensor, generator: torch.Generator, clamp: Clamp | None = None) -> Tensor:
    """Gaussian noise of the shape of `like`, none where coordinates are clamped."""
    z = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    return free_part(z, clamp)


def free_part(values: Tensor, clamp: Clamp | None) -> Tensor:
    """The values with zeros where coordinates are clamped."""
    return values if clamp is None else values.masked_fill(clamp.mask, 0)


def bounded(domain: Any) -> bool:
    """Whether real rows live in a box, at least on one side."""
    return domain.lower is not None or domain.upper is not None


def reject_outside(domain: Any, x: Tensor, instead: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows, those outside of the box replaced, and which those are, (n,); None without a box.

    There is no energy outside, and on the wall it may be infinite.
    """
    if not bounded(domain):
        return x, None
    outside = ~((x >= _low(domain)) & (x <= _high(domain))).flatten(1).all(1)
    return torch.where(by_row(outside, x), instead, x), outside


def fold(domain: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Reflect x at the walls of the box, as often as it takes; -1 where a velocity turns round."""
    low, high = domain.lower, domain.upper
    beyond = (x < _low(domain)) | (x > _high(domain))
    if low is None or high is None:
        folded, turned = 2 * (low if high is None else high) - x, beyond
    else:
        y = torch.remainder(x - low, 2 * (high - low))
        turned = beyond & (y > high - low)
        # Rounding may leave the box by a last digit.
        folded = (low + torch.where(turned, 2 * (high - low) - y, y)).clamp(low, high)
    return torch.where(beyond, folded, x), torch.where(turned, -1.0, 1.0).to(x.dtype)


def _low(domain: Any) -> float:
    return -math.inf if domain.lower is None else domain.lower


def _high(domain: Any) -> float:
    return math.inf if domain.upper is None else domain.upper
