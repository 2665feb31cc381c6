"""Samples and imputations of a fitted neural density, from chains that start near the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import Categorical, Clamp, Domain, Energy, Sampler
from skebm.base.energy import check_temperature
from skebm.distributions import Distribution
from skebm.distributions._fitting import draw_index
from skebm.partition.checks import check_proper
from skebm.partition.importance import log_weights
from skebm.samplers import AnnealedLangevin

# Rows sampled at a time; fewer if means over the chains are computed, as all draws are stored.
BLOCK, MEAN_BLOCK = 4096, 256
# Draws of the proposal for each sample, which are resampled by importance weights.
N_PROPOSALS = 20
# Effective sample size below which the proposal is too far from the model to start from.
LEAST_ESS = 10
# Minimum number of chains, which adapt a sampler together.
LEAST_CHAINS = 64


class Chains(NamedTuple):
    """Sampler and starting points of the chains of a fitted model.

    Attributes
    ----------
    sampler : Sampler
    proposal : Distribution or None
        A tractable distribution near the model, whose draws are resampled by importance weights.
    known : Tensor of shape (m, d)
        Rows to start from if the proposal is far from the model.
    weights : callable or None
        ``weights(known) -> (m,)``, probabilities of these rows; None for equal ones.
    temperature : float
        Temperature by which the energy is divided.
    """

    sampler: Sampler
    proposal: Distribution | None
    known: Tensor
    weights: Callable[[Tensor], Tensor] | None = None
    temperature: float = 1.0

    def run(
        self,
        energy: Any,
        start: Tensor,
        n_steps: int,
        generator: torch.Generator,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """Rows after `n_steps` steps of the sampler at the temperature."""
        sampler, beta = clone(self.sampler), 1 / self.temperature
        return sampler.run(energy, start, n_steps, generator, beta=beta, clamp=clamp)[0].x


def chains_at_temperature(chains: Chains, energy: Energy, temperature: float) -> Chains:
    """Chains of an energy at a temperature; `ValueError` where it has no density there."""
    check_temperature(temperature)
    if temperature > 1:  # tails are heavier
        check_proper(energy / temperature)
    return chains._replace(temperature=temperature)


def draw_by_chains(
    energy: Any, chains: Chains, n: int, generator: torch.Generator, n_steps: int
) -> Tensor:
    """Rows drawn from an energy, (n, d); exact in the limit of many proposals and steps."""
    blocks = []
    for done in range(0, n, BLOCK):
        start = starts(energy, chains, min(BLOCK, n - done), generator)
        blocks.append(chains.run(energy, start, n_steps, generator))
    return torch.cat(blocks)


def starts(energy: Any, chains: Chains, n: int, generator: torch.Generator) -> Tensor:
    """Rows from which chains start, (n, d)."""
    if energy.noise_levels is not None:
        return _down_the_levels(energy, n, generator, chains.temperature)
    if chains.proposal is not None:
        proposal = _at_temperature(chains.proposal, chains.temperature)
        proposals = proposal.sample(N_PROPOSALS * n, generator)
        weight = _log_weights(energy, proposal, proposals, chains.temperature).softmax(0)
        if float(weight.square().sum()) * LEAST_ESS < 1:
            return proposals[_indices_by_weight(weight, n, generator)]
    known = chains.known.to(next(energy.parameters()))
    if chains.weights is None:
        weight = torch.ones(len(known), dtype=torch.float64, device=known.device)
    else:
        weight = chains.weights(known)
    return known[_indices_by_weight(weight, n, generator)]


def _at_temperature(proposal: Distribution, temperature: float) -> Distribution:
    """The distribution near a power of the proposal, if it has one; else the proposal."""
    if temperature == 1 or not proposal.has_tempered:
        return proposal
    return proposal.tempered(temperature).distribution


def _down_the_levels(energy: Any, n: int, generator: torch.Generator, temperature: float) -> Tensor:
    """Rows annealed through the noise levels of an energy, from Gaussian noise."""
    low, high = energy.noise_levels
    like = next(energy.parameters())
    kind = {"dtype": like.dtype, "device": like.device}
    x = torch.randn(n, energy.domain.n_columns, generator=generator, **kind)
    x = x * math.hypot(1, high) * math.sqrt(temperature)
    # Levels and steps of the annealed sampler of a model with several noise levels.
    ladder_levels, ladder_steps = 20, 200
    ladder = AnnealedLangevin(sigma_max=high, sigma_min=low, n_levels=ladder_levels)
    return ladder.run(energy, x, ladder_steps, generator, beta=1 / temperature)[0].x


def impute_rows(
    energy: Any, chains: Chains, x: Tensor, generator: torch.Generator, n_steps: int
) -> Tensor:
    """Rows with NaN replaced by draws given the other entries, (n, d)."""
    known = ~x.isnan()
    clamp = Clamp(known, torch.nan_to_num(x))
    start = _imputation_starts(energy, chains, clamp, generator)
    return chains.run(energy, start, n_steps, generator, clamp)


def _imputation_starts(
    energy: Any, chains: Chains, clamp: Clamp, generator: torch.Generator
) -> Tensor:
    """Draws of the base given the known entries, resampled by importance weights."""
    n, T = len(clamp.mask), chains.temperature
    base = None if energy.base is None else _at_temperature(energy.base, T)
    if base is None or not base.has_given or energy.noise_levels is not None:
        return clamp.apply(starts(energy, chains, n, generator))
    # All draws of a row at once, as conditioning on its known entries is then done once.
    repeated = Clamp(*(part.repeat_interleave(N_PROPOSALS, 0) for part in clamp))
    draws = base.given(repeated).sample(generator)
    log_w = _log_weights(energy, base, draws, T).view(n, N_PROPOSALS)
    picked = _indices_by_weight(log_w.softmax(1), n, generator)
    return draws.unflatten(0, (n, N_PROPOSALS))[torch.arange(n), picked]


def _log_weights(energy: Any, proposal: Distribution, x: Tensor, temperature: float) -> Tensor:
    """Log density ratio of the model to a proposal, up to a constant, (n,) in float64."""
    kind: dict[str, Any] = {"corrected": energy.corrects(proposal), "temperature": temperature}
    return log_weights(energy, proposal, x, BLOCK, **kind)


def _indices_by_weight(weight: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Indices of n draws with weights (k,), or of one draw per row with weights (n, k)."""
    u = torch.rand(n, generator=generator, dtype=weight.dtype, device=weight.device)
    return draw_index(weight, u)


class FlippedPosterior(Energy):
    """Energy of clean discrete rows given noisy ones, whose columns changed independently."""

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

    Estimated over the second half of chains from the noisy rows, after their burn-in.
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
    """Log-odds that an entry is unchanged, (d,)."""
    odds = math.log((1 - level) / level)
    if not isinstance(domain, Categorical):
        return torch.full((domain.n_columns,), odds)
    others = torch.cat([torch.full((k,), k - 1.0) for k in domain.groups])
    return others.clamp_min(1).log() + odds
