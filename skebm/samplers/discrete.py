"""Samplers that read off the gradient of a discrete energy which change would pay."""

from __future__ import annotations

import functools
import math
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval
from skebm.base import Binary, Categorical, ChainState, Clamp, Energy, Sampler, StepInfo
from skebm.samplers._moves import by_row, evaluate, metropolis, start, tempers_joint
from skebm.samplers._tuning import ADAPT_CONSTRAINTS, settings, tuned, tuning


class GibbsWithGradients(Sampler):
    r"""Change one column at a time, chosen by the gradient of the energy: exact.

    For a differentiable energy of binary or one-hot rows, :math:`\tilde d(x)_m = -\beta \nabla E(x)
    \cdot (x^{(m)} - x)` estimates by how much the change m, to :math:`x^{(m)}`, raises log p, for
    all changes at the price of one gradient. One is proposed with probability
    :math:`q(m \mid x) \propto e^{\tilde d(x)_m / 2}` and accepted with probability
    :math:`\min(1, e^{-\beta (E(x') - E(x))} q(m' \mid x') / q(m \mid x))`, m' being the way back.
    A change flips a bit, or gives a one-hot column another level. A step costs one gradient.

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
        """Chains that stand at the rows of x, with their energies and gradients."""
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
        """Propose a change, and accept it or not."""
        domain: Any = energy.domain
        there = self._log_proposal(domain, state, beta, clamp)  # (n, d)
        stuck = there.isneginf().all(1)  # every column is clamped
        p = torch.where(stuck[:, None], 1.0, there.exp())
        if len(p):
            move = torch.multinomial(p, 1, generator=generator)
        else:
            move = torch.zeros(0, 1, dtype=torch.int64, device=p.device)
        x, way_back = _changed(domain, state.x, move)
        x = torch.where(by_row(stuck, x), state.x, x)
        proposal = ChainState(x, *evaluate(energy, x))
        back = self._log_proposal(domain, proposal, beta, clamp)
        ratio = beta * (state.energy - proposal.energy)
        ratio = ratio + (back.gather(1, way_back) - there.gather(1, move)).squeeze(1)
        ratio = ratio.masked_fill(stuck, 0)
        new, acceptance = metropolis(ratio, state, proposal, generator)
        return new, StepInfo(acceptance)

    def _log_proposal(self, domain: Any, state: Any, beta: float, clamp: Clamp | None) -> Tensor:
        """log q(m given x) of every change m, (n, d); -inf for what is no change or not free."""
        gain = _gains(domain, state.x, beta * state.grad) / 2
        gain = gain.masked_fill(_fixed(domain, state.x, clamp), -math.inf)
        total = gain.logsumexp(1, keepdim=True)
        return torch.where(total.isneginf(), gain, gain - total)


class DiscreteLangevin(Sampler):
    r"""Change many columns at once, each by its own part of the gradient: exact if adjusted.

    The discrete Langevin proposal factorises over columns,

    .. math:: q(x' \mid x) \propto \exp\Bigl(-\tfrac{\beta}{2} \nabla E(x) \cdot (x' - x)
        - \tfrac{1}{2 h} \lVert x' - x \rVert^2\Bigr),

    over the states of each bit or one-hot column, and is accepted by the Metropolis-Hastings rule
    (DMALA). Without it (DULA) draws are biased: the less the smaller the step where the energy is
    linear in every bit, as pairwise energies are, and down to a floor elsewhere. A step costs one
    gradient.

    Parameters
    ----------
    step_size : float, default=0.2
        h > 0. A bit that nothing pulls flips with log-odds -1 / (2 h); in a one-hot column every
        other level has log-odds -1 / h.
    adjust : bool, default=True
        Accept or reject. False is biased.
    adapt : bool, default=False
        Tune the step to `target_acceptance` during the warm-up. While it lasts draws are biased.
        Needs ``adjust=True``.
    target_acceptance : float in (0, 1), default=0.574
        Best in many dimensions [2]_.

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
        """Whether proposals may be rejected."""
        return self.adjust

    def check(self, energy: Energy) -> None:
        """Raise for another domain, a step that is not positive, or a search without a signal."""
        super().check(energy)
        if self.adapt and not self.adjust:
            raise ValueError("adapt=True tunes the acceptance, and adjust=False accepts always.")

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """Chains that stand at the rows of x, with their energies and gradients."""
        return start(energy, x)._replace(aux=tuning(self, energy, x, scaled=False))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose a state of every column, and accept the row or not."""
        domain: Any = energy.domain
        h, _ = settings(self, state)
        there = self._log_proposal(domain, state, beta, clamp, h)  # (n, columns, levels)
        # The largest of logits with Gumbel noise is a draw of their softmax; not of u = 0, which
        # would make all of them -inf, and move what is clamped.
        u = torch.rand(there.shape, generator=generator, dtype=there.dtype, device=there.device)
        u = u.clamp_(min=torch.finfo(u.dtype).tiny)
        levels = (there - (-u.log()).log()).argmax(2, keepdim=True)
        x = _row(domain, levels.squeeze(2), state.x)
        proposal = ChainState(x, *evaluate(energy, x), state.aux)
        if not self.adjust:
            return proposal, StepInfo(1.0)
        back = self._log_proposal(domain, proposal, beta, clamp, h)
        before = _levels(domain, state.x).unsqueeze(2)
        cost = (back.gather(2, before) - there.gather(2, levels)).flatten(1).sum(1)
        ratio = beta * (state.energy - proposal.energy) + cost
        new, acceptance = metropolis(ratio, state, proposal, generator)
        return tuned(new, acceptance, self.target_acceptance), StepInfo(acceptance)

    def _log_proposal(
        self, domain: Any, state: Any, beta: float, clamp: Clamp | None, h: Any
    ) -> Tensor:
        """log q of every level of every column, (n, columns, levels)."""
        gain = _gains(domain, state.x, beta * state.grad) / 2
        gain = gain - (1 / (2 * h) if isinstance(domain, Binary) else 1 / h)
        gain = gain.masked_fill(_fixed(domain, state.x, clamp), -math.inf)
        if isinstance(domain, Binary):
            here = state.x.flatten(1) > 0.5  # staying is worth 0
            zero, one = gain.masked_fill(~here, 0), gain.masked_fill(here, 0)
            logits = torch.stack([zero, one], 2)
        else:
            stay = gain.masked_fill(state.x > 0.5, 0)
            table, real = _table(domain.groups, gain.device)
            logits = stay[:, table].masked_fill(~real, -math.inf)
        return logits.log_softmax(2)


def _gains(domain: Any, x: Tensor, grad: Tensor) -> Tensor:
    """First-order change of log p by each change of a row, (n, d).

    Entry i stands for a flip of bit i, or for level i of its one-hot column.
    """
    if isinstance(domain, Binary):
        return ((2 * x - 1) * grad).flatten(1)
    here = torch.cat(
        [
            (xs * gs).sum(1, keepdim=True).expand_as(xs)
            for xs, gs in zip(x.split(domain.groups, 1), grad.split(domain.groups, 1), strict=True)
        ],
        1,
    )
    return here - grad


def _fixed(domain: Any, x: Tensor, clamp: Clamp | None) -> Tensor:
    """Changes that are none, or that would move a clamped entry, (n, d)."""
    if isinstance(domain, Binary):
        none = torch.zeros_like(x, dtype=torch.bool) if clamp is None else clamp.mask
        return none.flatten(1)
    here = x > 0.5
    if clamp is None:
        return here
    held = [
        (part & mask).any(1, keepdim=True).expand_as(part)
        for part, mask in zip(
            here.split(domain.groups, 1), clamp.mask.split(domain.groups, 1), strict=True
        )
    ]
    return here | clamp.mask | torch.cat(held, 1)


def _changed(domain: Any, x: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
    """Rows after the change `move` (n, 1), and the change that undoes it, (n, 1)."""
    if isinstance(domain, Binary):
        flat = x.flatten(1)
        return flat.scatter(1, move, 1 - flat.gather(1, move)).view_as(x), move
    first, group_of = _offsets(domain.groups, x.device)
    levels, group = domain.levels(x), group_of[move]
    before = first[group] + levels.gather(1, group)
    return x.scatter(1, before, 0).scatter(1, move, 1), before


def _levels(domain: Any, x: Tensor) -> Tensor:
    """Level of every column, (n, columns)."""
    return x.flatten(1).long() if isinstance(domain, Binary) else domain.levels(x)


def _row(domain: Any, levels: Tensor, like: Tensor) -> Tensor:
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
    """Entry of each level of each column, (columns, most levels), and which of them exist."""
    level = torch.arange(max(groups))
    real = level < torch.tensor(groups)[:, None]
    first = _offsets(groups, torch.device("cpu"))[0]
    return torch.where(real, first[:, None] + level, 0).to(device), real.to(device)
