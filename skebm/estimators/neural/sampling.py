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
# Effective sample size below which the proposal is too far from the model to start from, and share
# of the proposals from which it is so near that chains move by proposals, not by the sampler.
LEAST_ESS, LEAST_SHARE = 10, 0.2
# Entries of proposals that are held at a time.
MOST_ENTRIES = 20_000_000
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
    is_default : bool
        Whether the sampler was left to the fit: then it is for proposals far from the model.
    """

    sampler: Sampler
    proposal: Distribution | None
    known: Tensor
    weights: Callable[[Tensor], Tensor] | None = None
    temperature: float = 1.0
    is_default: bool = False

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
        if chains.is_default and start.share >= LEAST_SHARE:
            blocks.append(_move_by_proposals(energy, chains, start, n_steps, generator))
        else:
            blocks.append(chains.run(energy, start.x, n_steps, generator))
    return torch.cat(blocks)


class Starts(NamedTuple):
    """Rows from which chains start.

    Attributes
    ----------
    x : Tensor of shape (n, d)
    log_weights : Tensor of shape (n,) or None
        Log density ratios of the model to the proposal, up to a constant, if they are from it.
    share : float
        Effective share of the proposals among which they were chosen; 0 if they are not from it.
    """

    x: Tensor
    log_weights: Tensor | None = None
    share: float = 0.0


def starts(energy: Any, chains: Chains, n: int, generator: torch.Generator) -> Starts:
    """Rows from which n chains start."""
    if energy.noise_levels is not None:
        return Starts(_down_the_levels(energy, n, generator, chains.temperature))
    if chains.proposal is not None:
        proposal = _at_temperature(chains.proposal, chains.temperature)
        proposals = proposal.sample(N_PROPOSALS * n, generator)
        log_w = _log_weights(energy, proposal, proposals, chains.temperature)
        weight = log_w.softmax(0)
        ess = 1 / float(weight.square().sum())
        if ess > LEAST_ESS:
            picked = _indices_by_weight(weight, n, generator)
            return Starts(proposals[picked], log_w[picked], ess / len(proposals))
    known = chains.known.to(next(energy.parameters()))
    if chains.weights is None:
        weight = torch.ones(len(known), dtype=torch.float64, device=known.device)
    else:
        weight = chains.weights(known)
    return Starts(known[_indices_by_weight(weight, n, generator)])


def _move_by_proposals(
    energy: Any, chains: Chains, start: Starts, n_steps: int, generator: torch.Generator
) -> Tensor:
    """Rows after `n_steps` of independence sampling, which proposes whole rows.

    A step costs a correction of the base, in place of gradients of it and of the base, and crosses
    between modes. Some steps' proposals are drawn at once. Draws of the model itself stay.
    """
    if start.share > 1 - 1e-9:
        return start.x
    assert chains.proposal is not None
    assert start.log_weights is not None
    proposal = _at_temperature(chains.proposal, chains.temperature)
    x, log_w, n = start.x, start.log_weights, len(start.x)
    at_once = max(1, BLOCK // n)
    for done in range(0, n_steps, at_once):
        k = min(at_once, n_steps - done)
        proposals = proposal.sample(k * n, generator)
        ratios = _log_weights(energy, proposal, proposals, chains.temperature).view(n, k)
        x, log_w = _move_among(x, log_w, proposals.unflatten(0, (n, k)), ratios, generator)
    return x


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
    T = chains.temperature
    base = None if energy.base is None else _at_temperature(energy.base, T)
    if base is None or not base.has_given or energy.noise_levels is not None:
        start = clamp.apply(starts(energy, chains, len(x), generator).x)
        return chains.run(energy, start, n_steps, generator, clamp)
    found = torch.empty_like(clamp.value)
    for some in _blocks_of_proposals(x, n_steps):
        part = Clamp(clamp.mask[some], clamp.value[some])
        found[some] = _imputed_from_base(energy, chains, base, part, generator, n_steps)
    return found


def _blocks_of_proposals(x: Tensor, n_steps: int) -> tuple[Tensor, ...]:
    """Numbers of rows whose proposals are held at a time."""
    size = max(1, MOST_ENTRIES // (max(N_PROPOSALS, n_steps) * x.shape[1]))
    return torch.arange(len(x), device=x.device).split(size)


def _imputed_from_base(
    energy: Any,
    chains: Chains,
    base: Distribution,
    clamp: Clamp,
    generator: torch.Generator,
    n_steps: int,
) -> Tensor:
    """Draws of the base given known entries, resampled and moved, by proposals where it is near."""
    n, T = len(clamp.mask), chains.temperature
    draws, log_w = _proposals_given(energy, base, clamp, N_PROPOSALS, T, generator)
    weight = log_w.softmax(1)
    picked = _indices_by_weight(weight, n, generator)
    row = torch.arange(n, device=picked.device)
    x = draws[row, picked]
    near = (1 / weight.square().sum(1)) / N_PROPOSALS >= LEAST_SHARE
    near &= chains.is_default
    for here, move in ((near, True), (~near, False)):
        if not bool(here.any()):
            continue
        part = Clamp(clamp.mask[here], clamp.value[here])
        if not move:
            x[here] = chains.run(energy, x[here], n_steps, generator, part)
        elif n_steps:
            ratios = log_w[row, picked][here]
            steps = _proposals_given(energy, base, part, n_steps, T, generator)
            x[here] = _move_among(x[here], ratios, *steps, generator)[0]
    return x


def _proposals_given(
    energy: Any,
    base: Distribution,
    clamp: Clamp,
    k: int,
    temperature: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """k draws of the base for each row given its known entries, (n, k, d), and log ratios (n, k).

    All draws of a row are made at once, as conditioning on its known entries is then done once.
    """
    repeated = Clamp(*(part.repeat_interleave(k, 0) for part in clamp))
    draws = base.given(repeated).sample(generator)
    log_w = _log_weights(energy, base, draws, temperature)
    return draws.unflatten(0, (len(clamp.mask), k)), log_w.view(-1, k)


def _move_among(
    x: Tensor, log_w: Tensor, proposals: Tensor, ratios: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Rows (n, d) after a step of independence sampling for each of their proposals (n, k, d).

    Returned with their log ratios (n,); `ratios` (n, k) are those of the proposals.
    """
    u = torch.rand(ratios.shape, generator=generator, dtype=ratios.dtype, device=ratios.device)
    for step in range(ratios.shape[1]):
        accepted = u[:, step].log() < ratios[:, step] - log_w
        x = torch.where(accepted[:, None], proposals[:, step], x)
        log_w = torch.where(accepted, ratios[:, step], log_w)
    return x, log_w


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
