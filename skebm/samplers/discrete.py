"""Gradient-informed samplers of discrete rows: Gibbs with gradients and discrete Langevin."""

from __future__ import annotations

import functools
import math
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval
from skebm.base import Binary, Categorical, ChainState, Clamp, Energy, Sampler, StepInfo
from skebm.samplers._adaptation import (
    ADAPT_CONSTRAINTS,
    adaptation_step,
    initial_settings,
    settings,
)
from skebm.samplers._moves import by_row, evaluate, metropolis, start, tempers_joint


class GibbsWithGradients(Sampler):
    r"""Gibbs with gradients: changes one column at a time, proposed by the gradient; exact.

    For a differentiable energy of binary or one-hot rows, :math:`\tilde d(x)_m = -\beta \nabla E(x)
    \cdot (x^{(m)} - x)` is the first-order increase of log p by the change m, to :math:`x^{(m)}`,
    for all changes at the cost of one gradient. A change is proposed with probability
    :math:`q(m \mid x) \propto e^{\tilde d(x)_m / 2}` and accepted with probability
    :math:`\min(1, e^{-\beta (E(x') - E(x))} q(m' \mid x') / q(m \mid x))`, m' being the reverse
    change. A change flips a bit, or gives a one-hot column another level. A step costs one
    gradient.

    References
    ----------
    Grathwohl, Swersky, Hashemi, Duvenaud and Maddison (2021), "Oops I took a gradient: scalable
    sampling for discrete distributions", ICML, algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import GibbsWithGradients
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(6, 3, generator=generator)
    >>> state, info = GibbsWithGradients().run(energy, torch.zeros(4, 6), 100, generator)
    >>> tuple(state.x.shape)
    (4, 6)
    """

    domains = (Binary, Categorical)

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies and gradients."""
        return start(energy, x)

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose a change of each row, and accept or reject it."""
        domain: Any = energy.domain
        log_q = self._log_proposal(domain, state, beta, clamp)  # (n, d)
        clamped = log_q.isneginf().all(1)  # every column is clamped
        p = torch.where(clamped[:, None], 1.0, log_q.exp())
        if len(p):
            change = torch.multinomial(p, 1, generator=generator)
        else:
            change = torch.zeros(0, 1, dtype=torch.int64, device=p.device)
        x, reverse = _apply_change(domain, state.x, change)
        x = torch.where(by_row(clamped, x), state.x, x)
        proposal = ChainState(x, *evaluate(energy, x))
        log_q_reverse = self._log_proposal(domain, proposal, beta, clamp)
        ratio = beta * (state.energy - proposal.energy)
        ratio = ratio + (log_q_reverse.gather(1, reverse) - log_q.gather(1, change)).squeeze(1)
        ratio = ratio.masked_fill(clamped, 0)
        new, acceptance = metropolis(ratio, state, proposal, generator)
        return new, StepInfo(acceptance)

    def _log_proposal(self, domain: Any, state: Any, beta: float, clamp: Clamp | None) -> Tensor:
        """log q(m given x) of every change m, (n, d); -inf for changes that are not allowed."""
        logits = _change_gains(domain, state.x, beta * state.grad) / 2
        logits = logits.masked_fill(_not_allowed(domain, state.x, clamp), -math.inf)
        total = logits.logsumexp(1, keepdim=True)
        return torch.where(total.isneginf(), logits, logits - total)


class DiscreteLangevin(Sampler):
    r"""Discrete Langevin proposals, which may change all columns at once; exact if adjusted.

    The discrete Langevin proposal factorises over columns,

    .. math:: q(x' \mid x) \propto \exp\Bigl(-\tfrac{\beta}{2} \nabla E(x) \cdot (x' - x)
        - \tfrac{1}{2 h} \lVert x' - x \rVert^2\Bigr),

    over the states of each bit or one-hot column, and is accepted by the Metropolis-Hastings rule
    (DMALA). Without this rule (DULA) draws are biased. The bias vanishes with the step size if the
    energy is linear in every bit, as pairwise energies are; otherwise it does not. A step costs one
    gradient.

    Parameters
    ----------
    step_size : float, default=0.2
        h > 0. At zero gradient a bit flips with log-odds -1 / (2 h), and every other level of a
        one-hot column has log-odds -1 / h.
    adjust : bool, default=True
        Whether to accept or reject proposals. False is biased.
    adapt : bool, default=False
        Adapt the step size to `target_acceptance` during the warm-up, in which draws are biased.
        Needs ``adjust=True``.
    target_acceptance : float in (0, 1), default=0.574
        Target of the adaptation; the default is optimal in many dimensions [2]_.

    References
    ----------
    .. [1] Zhang, Liu and Liu (2022), "A Langevin-like sampler for discrete distributions", ICML.
    .. [2] Sun, Dai and Schuurmans (2022), "Optimal scaling for locally balanced proposals in
       discrete spaces", NeurIPS.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import DiscreteLangevin
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(60, 30, generator=generator, scale=1.0)
    >>> sampler = DiscreteLangevin(adapt=True)
    >>> state, info = sampler.run(energy, torch.zeros(400, 60), 50, generator, n_warmup=100)
    >>> round(float(info.acceptance), 1)
    0.6
    """

    domains = (Binary, Categorical)
    _parameter_constraints = ADAPT_CONSTRAINTS | {
        "step_size": [Interval(RealNumber, 0, None, closed="neither")],
        "adjust": ["boolean"],
    }

    def __init__(
        self,
        step_size: float = 0.2,
        *,
        adjust: bool = True,
        adapt: bool = False,
        target_acceptance: float = 0.574,
    ):
        self.step_size = step_size
        self.adjust = adjust
        self.adapt = adapt
        self.target_acceptance = target_acceptance

    @property
    def exact(self) -> bool:
        """Whether proposals are accepted or rejected."""
        return self.adjust

    def check(self, energy: Energy) -> None:
        """Raise for another domain, an invalid step size, or adaptation without acceptance."""
        super().check(energy)
        if self.adapt and not self.adjust:
            raise ValueError(
                "adapt=True adapts to the acceptance rate, which is always 1 with adjust=False."
            )

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies and gradients."""
        return start(energy, x)._replace(aux=initial_settings(self, energy, x, scaled=False))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose a state of every column, and accept or reject the row."""
        domain: Any = energy.domain
        h, _ = settings(self, state)
        log_q = self._log_proposal(domain, state, beta, clamp, h)  # (n, columns, levels)
        # The Gumbel-max trick; u = 0 would make all logits -inf, and change clamped columns.
        u = torch.rand(log_q.shape, generator=generator, dtype=log_q.dtype, device=log_q.device)
        u = u.clamp_(min=torch.finfo(u.dtype).tiny)
        levels = (log_q - (-u.log()).log()).argmax(2, keepdim=True)
        x = _rows_of_levels(domain, levels.squeeze(2), state.x)
        proposal = ChainState(x, *evaluate(energy, x), state.aux)
        if not self.adjust:
            return proposal, StepInfo(1.0)
        log_q_reverse = self._log_proposal(domain, proposal, beta, clamp, h)
        before = _levels_of_rows(domain, state.x).unsqueeze(2)
        correction = log_q_reverse.gather(2, before) - log_q.gather(2, levels)
        ratio = beta * (state.energy - proposal.energy) + correction.flatten(1).sum(1)
        new, acceptance = metropolis(ratio, state, proposal, generator)
        return adaptation_step(new, acceptance, self.target_acceptance), StepInfo(acceptance)

    def _log_proposal(
        self, domain: Any, state: Any, beta: float, clamp: Clamp | None, h: Any
    ) -> Tensor:
        """log q of every level of every column, (n, columns, levels)."""
        change = _change_gains(domain, state.x, beta * state.grad) / 2
        change = change - (1 / (2 * h) if isinstance(domain, Binary) else 1 / h)
        change = change.masked_fill(_not_allowed(domain, state.x, clamp), -math.inf)
        if isinstance(domain, Binary):
            is_one = state.x.flatten(1) > 0.5  # the logit of the present value is 0
            zero, one = change.masked_fill(~is_one, 0), change.masked_fill(is_one, 0)
            logits = torch.stack([zero, one], 2)
        else:
            flat = change.masked_fill(state.x > 0.5, 0)
            table, exists = _table(domain.groups, change.device)
            logits = flat[:, table].masked_fill(~exists, -math.inf)
        return logits.log_softmax(2)


def _change_gains(domain: Any, x: Tensor, grad: Tensor) -> Tensor:
    """First-order change of log p by each change of a row, (n, d).

    Entry i stands for a flip of bit i, or for level i of its one-hot column.
    """
    if isinstance(domain, Binary):
        return ((2 * x - 1) * grad).flatten(1)
    of_present = torch.cat(
        [
            (xs * gs).sum(1, keepdim=True).expand_as(xs)
            for xs, gs in zip(x.split(domain.groups, 1), grad.split(domain.groups, 1), strict=True)
        ],
        1,
    )
    return of_present - grad


def _not_allowed(domain: Any, x: Tensor, clamp: Clamp | None) -> Tensor:
    """Changes to the present level, or of a clamped entry, (n, d)."""
    if isinstance(domain, Binary):
        mask = torch.zeros_like(x, dtype=torch.bool) if clamp is None else clamp.mask
        return mask.flatten(1)
    present = x > 0.5
    if clamp is None:
        return present
    clamped = [
        (part & mask).any(1, keepdim=True).expand_as(part)
        for part, mask in zip(
            present.split(domain.groups, 1), clamp.mask.split(domain.groups, 1), strict=True
        )
    ]
    return present | clamp.mask | torch.cat(clamped, 1)


def _apply_change(domain: Any, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Rows after a change (n, 1), and the reverse change, (n, 1)."""
    if isinstance(domain, Binary):
        flat = x.flatten(1)
        return flat.scatter(1, change, 1 - flat.gather(1, change)).view_as(x), change
    first, group_of = _offsets(domain.groups, x.device)
    levels, group = domain.levels(x), group_of[change]
    before = first[group] + levels.gather(1, group)
    return x.scatter(1, before, 0).scatter(1, change, 1), before


def _levels_of_rows(domain: Any, x: Tensor) -> Tensor:
    """Level of every column, (n, columns)."""
    return x.flatten(1).long() if isinstance(domain, Binary) else domain.levels(x)


def _rows_of_levels(domain: Any, levels: Tensor, like: Tensor) -> Tensor:
    """Rows of the given levels."""
    if isinstance(domain, Binary):
        return levels.to(like.dtype).view_as(like)
    return domain.one_hot(levels, like.dtype)


@functools.lru_cache(maxsize=16)
def _offsets(groups: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """First entry of each one-hot column, and the column of each entry."""
    sizes = torch.tensor(groups)
    group_of = torch.repeat_interleave(torch.arange(len(groups)), sizes)
    return (sizes.cumsum(0) - sizes).to(device), group_of.to(device)


@functools.lru_cache(maxsize=16)
def _table(groups: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Entry of each level of each column, (columns, most levels), and a mask of existing ones."""
    level = torch.arange(max(groups))
    exists = level < torch.tensor(groups)[:, None]
    first = _offsets(groups, torch.device("cpu"))[0]
    return torch.where(exists, first[:, None] + level, 0).to(device), exists.to(device)
