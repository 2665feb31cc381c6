"""Weighted chains that follow a moving model: Jarzynski's equality along training."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, ChainState, Energy, Sampler
from skebm.distributions import Distribution
from skebm.energies import annealing_path
from skebm.samplers._adaptation import StepSettings

# Effective share of the chains below which they are resampled.
LEAST_ESS = 0.5
# Steps from the noise to a model that is far from it.
START_STEPS = 1000


class Walkers(NamedTuple):
    r"""Importance weights of persistent chains, which make them samples of the present model.

    When the parameters move from :math:`\theta` to :math:`\theta'` a chain at x gains the weight
    :math:`\exp(E_\theta(x) - E_{\theta'}(x))`, then it moves by a kernel that leaves
    :math:`p_{\theta'}` invariant. Weighted means over the chains are consistent for any number of
    kernel steps, and the mean weight is an unbiased estimate of Z of the present model: its
    logarithm is on average below log Z, and far below once the chains have missed a mode.

    Attributes
    ----------
    log_weight : Tensor of shape (n_chains,), float64
        Weights since the last resampling.
    log_z : Tensor, scalar, float64
        log Z that the resamplings have collected.
    energy : Tensor of shape (n_chains,), float64
        Energies of the chains' rows under the parameters they moved by.

    References
    ----------
    Carbone, Hua, Coste and Vanden-Eijnden (2023), "Efficient training of energy-based models using
    Jarzynski equality", NeurIPS, algorithm 1. Jarzynski (1997), Physical Review Letters 78.
    """

    log_weight: Tensor
    log_z: Tensor
    energy: Tensor

    @classmethod
    def of(cls, energy: Energy, x: Tensor, noise: Distribution) -> Walkers:
        """Weights of rows drawn from `noise`: importance sampling of the first model."""
        level = energy(x).double()
        return cls(-level - noise.log_prob(x).double(), level.new_zeros(()), level)

    @classmethod
    def start(
        cls,
        energy: Energy,
        x: Tensor,
        noise: Distribution,
        sampler: Sampler,
        generator: torch.Generator,
    ) -> tuple[ChainState, Walkers]:
        """Chains and weights of rows x drawn from `noise`, the base of the energy.

        Where few of them would carry the weight, as under a model trained before, the chains
        follow the path from the base to the energy: annealed importance sampling.
        """
        chain, walkers = sampler.init(energy, x), cls.of(energy, x, noise)
        if not walkers.poor:
            return chain, walkers
        both = isinstance(energy, BipartiteEnergy)
        at: Any = energy.annealed if both else annealing_path(energy, noise).at
        walkers = cls.of(at(0.0), x, noise)
        for k in range(1, START_STEPS + 1):
            rung = at(k / START_STEPS)
            chain, walkers = walkers.follow(rung, sampler.refresh(rung, chain), generator)
            chain, _ = sampler.step(rung, chain, generator)
            walkers = walkers.moved(rung, chain)
        return sampler.refresh(energy, chain), walkers

    @property
    def share(self) -> Tensor:
        """Normalised weights, (n_chains,)."""
        return self.log_weight.softmax(0)

    @property
    def poor(self) -> Tensor:
        """Whether few chains carry the weight."""
        return self.share.square().sum() * len(self.log_weight) * LEAST_ESS > 1

    def log_partition(self, energy: Energy, x: Tensor) -> Tensor:
        """Estimate of log Z of `energy`, a model near the one that the chains x moved by."""
        log_w = self.log_weight + self.energy - energy(x).double()
        return self.log_z + log_w.logsumexp(0) - math.log(len(x))

    def follow(
        self, energy: Energy, chain: ChainState, generator: torch.Generator
    ) -> tuple[ChainState, Walkers]:
        """Weigh the chains under new parameters; resample them where few carry the weight.

        Their state is one of the new energy, as :meth:`Sampler.refresh` makes it. Systematic
        resampling; without a decision on the host, so that a GPU need not wait.
        """
        level = _levels(energy, chain)
        weighed = self._replace(log_weight=self.log_weight + self.energy - level, energy=level)
        log_w, poor, n = weighed.log_weight, weighed.poor, len(level)
        pick = weighed.drawn(generator)
        pick = torch.where(poor, pick, torch.arange(n, device=pick.device))
        gained = log_w.logsumexp(0) - math.log(n)
        walkers = Walkers(
            torch.where(poor, 0.0, log_w), self.log_z + torch.where(poor, gained, 0.0), level[pick]
        )
        value, grad = (None if part is None else part[pick] for part in (chain.energy, chain.grad))
        # What tunes a kernel is of all chains; a layer that was drawn was of its row.
        aux = chain.aux if isinstance(chain.aux, StepSettings) else None
        return ChainState(chain.x[pick], value, grad, aux), walkers

    def drawn(self, generator: torch.Generator) -> Tensor:
        """Numbers of as many chains, drawn by their weights: systematic resampling, (n_chains,)."""
        share, n = self.share, len(self.log_weight)
        u = torch.rand((), generator=generator, dtype=share.dtype, device=share.device)
        comb = (torch.arange(n, dtype=share.dtype, device=share.device) + u) / n
        return torch.searchsorted(share.cumsum(0), comb).clamp_(max=n - 1)

    def moved(self, energy: Energy, chain: ChainState) -> Walkers:
        """The same weights at the rows that the kernel has moved the chains to."""
        return self._replace(energy=_levels(energy, chain))


def _levels(energy: Energy, chain: ChainState) -> Tensor:
    """Energies of chains, which their state may know."""
    return (energy(chain.x) if chain.energy is None else chain.energy).double()
