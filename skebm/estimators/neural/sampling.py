"""Samples and imputations of a fitted neural density, by chains that start near the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import Categorical, Clamp, Domain, Energy, Sampler
from skebm.distributions import Distribution
from skebm.distributions._fitting import draw_index
from skebm.samplers import AnnealedLangevin

# Rows that chains hold at a time; of which the means of chains are taken, as all draws are held.
BLOCK, MEAN_BLOCK = 4096, 256
# Draws of the proposal for each row that is wanted, which are resampled by the model.
N_PROPOSALS = 20
# Effective sample size below which the proposal is too far from the model to start at.
LEAST_ESS = 10
# Chains that adapt a sampler together, at least.
LEAST_CHAINS = 64
# Levels and steps of the ladder by which a model of several noise levels is drawn from.
LADDER_LEVELS, LADDER_STEPS = 20, 200


class Chains(NamedTuple):
    """What chains of a fitted model move by, and where they start.

    Attributes
    ----------
    sampler : Sampler
    proposal : Distribution or None
        A tractable distribution near the model, whose draws are resampled by importance weights.
    known : Tensor of shape (m, d)
        Rows to start at where the proposal is far from the model.
    weights : callable or None
        ``weights(known) -> (m,)``, mixing weights of these rows; None for equal ones.
    """

    sampler: Sampler
    proposal: Distribution | None
    known: Tensor
    weights: Callable[[Tensor], Tensor] | None = None


def draw(energy: Any, chains: Chains, n: int, generator: torch.Generator, n_steps: int) -> Tensor:
    """Rows drawn from an energy, (n, d): approximate, exact as proposals and steps grow."""
    blocks = []
    for done in range(0, n, BLOCK):
        start = starts(energy, chains, min(BLOCK, n - done), generator)
        blocks.append(clone(chains.sampler).run(energy, start, n_steps, generator)[0].x)
    return torch.cat(blocks)


def starts(energy: Any, chains: Chains, n: int, generator: torch.Generator) -> Tensor:
    """Rows that chains start at, (n, d)."""
    if energy.noise_levels is not None:
        return _down_the_levels(energy, n, generator)
    if chains.proposal is not None:
        proposals = chains.proposal.sample(N_PROPOSALS * n, generator)
        weight = _log_weights(energy, chains.proposal, proposals).softmax(0)
        if float(weight.square().sum()) * LEAST_ESS < 1:
            return proposals[_picked(weight, n, generator)]
    known = chains.known.to(next(energy.parameters()))
    if chains.weights is None:
        weight = torch.ones(len(known), dtype=torch.float64, device=known.device)
    else:
        weight = chains.weights(known)
    return known[_picked(weight, n, generator)]


def _down_the_levels(energy: Any, n: int, generator: torch.Generator) -> Tensor:
    """Rows that came down the noise levels of an energy, from normal noise."""
    low, high = energy.noise_levels
    like = next(energy.parameters())
    kind = {"dtype": like.dtype, "device": like.device}
    x = torch.randn(n, energy.domain.n_columns, generator=generator, **kind)
    ladder = AnnealedLangevin(sigma_max=high, sigma_min=low, n_levels=LADDER_LEVELS)
    return ladder.run(energy, x * math.hypot(1, high), LADDER_STEPS, generator)[0].x


def impute(
    energy: Any, chains: Chains, x: Tensor, generator: torch.Generator, n_steps: int
) -> Tensor:
    """Rows whose NaN are drawn given the other entries, (n, d)."""
    known = ~x.isnan()
    clamp = Clamp(known, torch.nan_to_num(x))
    start = _imputation_starts(energy, chains, clamp, generator)
    return clone(chains.sampler).run(energy, start, n_steps, generator, clamp=clamp)[0].x


def _imputation_starts(
    energy: Any, chains: Chains, clamp: Clamp, generator: torch.Generator
) -> Tensor:
    """Draws of the base given the known entries, resampled by the model."""
    n = len(clamp.mask)
    exact = energy.base is not None and energy.base.has_given
    if not exact or energy.noise_levels is not None:
        return clamp.apply(starts(energy, chains, n, generator))
    # All of a row at once: what depends on which entries are known is then done once.
    repeated = Clamp(*(part.repeat_interleave(N_PROPOSALS, 0) for part in clamp))
    draws = energy.base.given(repeated).sample(generator)
    log_w = _log_weights(energy, energy.base, draws).view(n, N_PROPOSALS)
    picked = _picked(log_w.softmax(1), n, generator)
    return draws.unflatten(0, (n, N_PROPOSALS))[torch.arange(n), picked]


def _log_weights(energy: Any, proposal: Distribution, x: Tensor) -> Tensor:
    """log of the model over a proposal, up to a constant, (n,) in float64."""

    def log_weight(x: Tensor) -> Tensor:
        if proposal is energy.base:
            return -energy.correction(x).double()
        return -energy(x).double() - proposal.log_prob(x).double()

    with torch.no_grad():
        return torch.cat([log_weight(part) for part in x.split(BLOCK)])


def _picked(weight: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Numbers of n draws by their weights, (k,), or of one draw by each row's own, (n, k)."""
    u = torch.rand(n, generator=generator, dtype=weight.dtype, device=weight.device)
    return draw_index(weight, u)


class FlippedPosterior(Energy):
    """Energy of clean discrete rows, given noisy ones, in which each column changed on its own."""

    def __init__(self, energy: Energy, field: Tensor):
        super().__init__()
        self.energy, self.field, self.domain = energy, field, energy.domain

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """E(x) - field' x, (n,)."""
        return self.energy(x) - (self.field * x).sum(1)


def discrete_posterior_mean(
    energy: Any,
    sampler: Sampler,
    x: Tensor,
    level: float,
    generator: torch.Generator,
    n_steps: int,
) -> Tensor:
    """Mean of clean rows given noisy discrete ones, whose columns changed with probability `level`.

    Over the second half of chains from the noisy rows: unbiased up to their burn-in.
    """
    fields = _log_odds(energy.domain, level).to(x)
    sign = x if isinstance(energy.domain, Categorical) else 2 * x - 1
    means = []
    for part, field in zip(x.split(MEAN_BLOCK), (sign * fields).split(MEAN_BLOCK), strict=True):
        noisy = FlippedPosterior(energy, field)
        trace = sampler.trace(noisy, part, n_steps, generator, n_warmup=0)
        means.append(trace.x[n_steps // 2 :].mean(0))
    return torch.cat(means)


def _log_odds(domain: Domain, level: float) -> Tensor:
    """Log-odds that an entry is the clean one, (d,)."""
    odds = math.log((1 - level) / level)
    if not isinstance(domain, Categorical):
        return torch.full((domain.n_columns,), odds)
    others = torch.cat([torch.full((k,), k - 1.0) for k in domain.groups])
    return others.clamp_min(1).log() + odds
