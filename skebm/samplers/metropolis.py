"""Metropolis-Hastings sampling without gradients: random walks, and proposals of a distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from skebm.base import (
    Binary,
    Categorical,
    ChainState,
    Clamp,
    Domain,
    Energy,
    Mixed,
    Real,
    Sampler,
    StepInfo,
)
from skebm.base.domains import columns_of
from skebm.samplers._adaptation import (
    ADAPT_CONSTRAINTS,
    STEP_CONSTRAINTS,
    adaptation_step,
    initial_settings,
    scale_noise,
    settings,
)
from skebm.samplers._moves import (
    evaluate_energy,
    metropolis,
    reject_outside,
    standard_normal,
    start,
    tempers_joint,
)


class MetropolisHastings(Sampler):
    r"""Random-walk Metropolis sampling of real rows, without gradients: exact.

    The proposal :math:`x' = x + \epsilon s z` with :math:`z \sim N(0, I)` and scale :math:`s` is
    accepted with probability :math:`\min(1, e^{-\beta (E(x') - E(x))})`. Proposals outside the
    bounds of the energy's domain are rejected. A step costs one energy. The autocorrelation time is
    of the order of d steps in d dimensions: use :class:`MALA` or :class:`HMC` where there is a
    gradient.

    Parameters
    ----------
    step_size : float, default=0.5
        :math:`\epsilon` > 0, in units of x (of `scale` where one is given).
    adapt : bool, default=False
        Adapt the step size to `target_acceptance` during the warm-up, in which draws are biased.
    target_acceptance : float in (0, 1), default=0.234
        Target of the adaptation; the default is optimal in many dimensions [2]_, 0.44 in one.
    scale : None, "auto", "dense" or array-like of the shape of a row, default=None
        :math:`s`, the standard deviation of each entry. ``"auto"`` is that of the rows that chains
        start from, and with `adapt` of the chains during the warm-up; ``"dense"`` is their
        covariance, for correlated columns without bounds.

    References
    ----------
    .. [1] Metropolis et al. (1953), "Equation of state calculations by fast computing machines".
    .. [2] Roberts, Gelman and Gilks (1997), "Weak convergence and optimal scaling of random walk
       Metropolis algorithms", Annals of Applied Probability 7(1).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import MetropolisHastings
    >>> class Gaussian(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 2
    >>> generator = torch.Generator().manual_seed(0)
    >>> sampler = MetropolisHastings(adapt=True)
    >>> state, info = sampler.run(Gaussian(), torch.zeros(500, 2), 200, generator)
    >>> state.x.std(0).round(decimals=1), round(float(info.acceptance), 1)
    (tensor([1., 1.]), 0.2)
    """

    domains = (Real,)
    _parameter_constraints = STEP_CONSTRAINTS | ADAPT_CONSTRAINTS

    def __init__(
        self,
        step_size: float = 0.5,
        *,
        adapt: bool = False,
        target_acceptance: float = 0.234,
        scale: Any = None,
    ):
        self.step_size = step_size
        self.adapt = adapt
        self.target_acceptance = target_acceptance
        self.scale = scale

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies."""
        return start(energy, x, with_grad=False)._replace(aux=initial_settings(self, energy, x))

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose a random-walk step, and accept or reject it."""
        h, s = settings(self, state, clamp)
        z = standard_normal(state.x, generator, clamp)
        x, outside = reject_outside(energy.domain, state.x + h * scale_noise(s, z), state.x)
        proposal = ChainState(x, evaluate_energy(energy, x))
        ratio = beta * (state.energy - proposal.energy)
        new, acceptance = metropolis(ratio, state, proposal, generator, outside)
        return adaptation_step(new, acceptance, self.target_acceptance), StepInfo(acceptance)


class IndependenceSampler(Sampler):
    r"""Independence sampling of some columns given the others, without gradients: exact.

    A step draws a block B of columns at random, between one and all of them, the same for all
    chains, and proposes its entries from a tractable distribution q near the model, given those
    of the other columns. The proposal is accepted with probability

    .. math:: \min\Bigl(1, \frac{e^{-\beta E(x')}\, q(x)}{e^{-\beta E(x)}\, q(x')}\Bigr) ,

    as :math:`q(x'_B | x_{-B}) / q(x_B | x_{-B}) = q(x') / q(x)`. It is for energies that correct q
    by a function without a useful gradient, such as a sum of trees: log q is then evaluated at
    proposals only, once. A step costs one energy and one conditional distribution.

    Parameters
    ----------
    proposal : Distribution or None, default=None
        q, which must cover the model; with exact conditionals (``has_given``), unless blocks are
        whole rows. None is the ``base`` of the energy.
    whole_rows : bool, default=False
        Propose all columns at once, which needs no conditionals.

    References
    ----------
    .. [1] Tierney (1994), "Markov chains for exploring posterior distributions", Annals of
       Statistics 22(4), section 2.3.2.
    .. [2] Liu (1996), "Metropolized independent sampling with comparisons to rejection sampling and
       importance sampling", Statistics and Computing 6(2).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Real
    >>> from skebm.distributions import Gaussian
    >>> from skebm.energies import NeuralEnergy, TreeSum
    >>> from skebm.samplers import IndependenceSampler
    >>> base = Gaussian(torch.zeros(2), 1.0)
    >>> energy = NeuralEnergy(TreeSum(), Real((2,)), base)  # without trees it is the base
    >>> generator = torch.Generator().manual_seed(0)
    >>> state, info = IndependenceSampler().run(energy, torch.zeros(500, 2), 5, generator)
    >>> round(float(info.acceptance), 2)
    1.0
    """

    domains = (Real, Binary, Categorical, Mixed)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"whole_rows": ["boolean"]}

    def __init__(self, proposal: Any = None, *, whole_rows: bool = False):
        self.proposal = proposal
        self.whole_rows = whole_rows

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy of other rows, or without a distribution to draw from."""
        super().check(energy)
        if self._proposal_for(energy) is None:
            raise TypeError(
                f"IndependenceSampler has nothing to propose from, as {type(energy).__name__} has "
                "no base: pass a distribution near it as proposal=."
            )

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, with their energies."""
        return start(energy, x, with_grad=False)

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: Any,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Propose the entries of a block, and accept or reject them."""
        q, x = self._proposal_for(energy), state.x
        known = self._known(energy.domain, x, generator)
        if clamp is not None:
            known = known | clamp.mask
        if known.any():
            proposed = q.given(Clamp(known, x)).sample(generator)
        else:
            proposed = q.sample(len(x), generator).to(x)
        proposal = ChainState(proposed, evaluate_energy(energy, proposed))
        change = state.energy - proposal.energy
        ratio = beta * change + self._log_ratio_of_proposals(energy, state, proposal)
        new, acceptance = metropolis(ratio.to(x.dtype), state, proposal, generator)
        return new, StepInfo(acceptance)

    def _log_ratio_of_proposals(self, energy: Any, old: Any, new: Any) -> Tensor:
        """log q(x) - log q(x'), (n,); from the energies, if these correct q."""
        q = self._proposal_for(energy)
        if not energy.corrects(q):
            return q.log_prob(old.x) - q.log_prob(new.x)
        change = energy.correction(old.x) - energy.correction(new.x)
        return change - (old.energy - new.energy)

    def _proposal_for(self, energy: Energy) -> Any:
        return getattr(energy, "base", None) if self.proposal is None else self.proposal

    def _known(self, domain: Domain, x: Tensor, generator: torch.Generator) -> Tensor:
        """Entries that a step keeps, (n, ...): those outside of a block of random size."""
        sizes = columns_of(domain)
        k = len(sizes)
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        if self.whole_rows or k == 1:
            return torch.zeros_like(x, dtype=torch.bool)
        # Powers of two: blocks of few columns are as frequent as those of many.
        powers = math.ceil(math.log2(k)) + 1
        size = min(k, 2 ** int(torch.randint(powers, (), **kind)))
        drawn = torch.randperm(k, **kind)[:size]
        kept = torch.ones(k, dtype=torch.bool, device=x.device)
        kept[drawn.to(x.device)] = False
        entries = kept.repeat_interleave(torch.tensor(sizes, device=x.device))
        return entries.view(1, *x.shape[1:]).expand_as(x)
