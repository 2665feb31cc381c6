"""Reweighting of persistent chains during training, by Jarzynski's equality."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, ChainState, Energy, Sampler
from skebm.distributions import Distribution
from skebm.energies import annealing_path
from skebm.samplers._adaptation import StepSettings

# Effective sample size, as a fraction of the chains, below which they are resampled.
LEAST_ESS = 0.5
# Annealing steps from the base to a model that is far from it.
START_STEPS = 1000


class Walkers(NamedTuple):
    r"""Importance weights of persistent chains with respect to the current model.

    When the parameters move from :math:`\theta` to :math:`\theta'`, the weight of a chain at x is
    multiplied by :math:`\exp(E_\theta(x) - E_{\theta'}(x))`; then the chain moves by a kernel that
    leaves :math:`p_{\theta'}` invariant. Weighted means over the chains are consistent for any
    number of kernel steps, and the mean weight is an unbiased estimate of Z of the current model.
    Its logarithm is on average below log Z, and far below once the chains have missed a mode.

    Attributes
    ----------
    log_weight : Tensor of shape (n_chains,), float64
        Log weights since the last resampling.
    log_z : Tensor, scalar, float64
        Contribution to log Z of all resamplings so far.
    energy : Tensor of shape (n_chains,), float64
        Energies of the chains under the parameters with which they last moved.

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
        """Weights of rows drawn from `noise`, by importance sampling."""
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

        If their effective sample size is low, as under a model that has been trained already, the
        chains follow the path from the base to the energy by annealed importance sampling.
        """
        chain, walkers = sampler.init(energy, x), cls.of(energy, x, noise)
        if not walkers.degenerate:
            return chain, walkers
        both = isinstance(energy, BipartiteEnergy)
        at: Any = energy.annealed if both else annealing_path(energy, noise).at
        walkers = cls.of(at(0.0), x, noise)
        for k in range(1, START_STEPS + 1):
            bridge = at(k / START_STEPS)
            chain, walkers = walkers.follow(bridge, sampler.refresh(bridge, chain), generator)
            chain, _ = sampler.step(bridge, chain, generator)
            walkers = walkers.after_move(bridge, chain)
        return sampler.refresh(energy, chain), walkers

    @property
    def share(self) -> Tensor:
        """Normalised weights, (n_chains,)."""
        return self.log_weight.softmax(0)

    @property
    def degenerate(self) -> Tensor:
        """Whether the effective sample size is too low."""
        return self.share.square().sum() * len(self.log_weight) * LEAST_ESS > 1

    def log_partition(self, energy: Energy, x: Tensor) -> Tensor:
        """Estimate of log Z of `energy`, a model near the one with which the chains x moved."""
        log_w = self.log_weight + self.energy - energy(x).double()
        return self.log_z + log_w.logsumexp(0) - math.log(len(x))

    def follow(
        self, energy: Energy, chain: ChainState, generator: torch.Generator
    ) -> tuple[ChainState, Walkers]:
        """Reweight the chains for new parameters; resample them if the weights are degenerate.

        The state of the chains must belong to the new energy; :meth:`Sampler.refresh` ensures this.
        Resampling is systematic and is decided on the device, so that a GPU need not wait.
        """
        level = _energies(energy, chain)
        weighted = self._replace(log_weight=self.log_weight + self.energy - level, energy=level)
        log_w, resample, n = weighted.log_weight, weighted.degenerate, len(level)
        pick = weighted.indices_by_weight(generator)
        pick = torch.where(resample, pick, torch.arange(n, device=pick.device))
        collected = torch.where(resample, log_w.logsumexp(0) - math.log(n), 0.0)
        walkers = Walkers(torch.where(resample, 0.0, log_w), self.log_z + collected, level[pick])
        value, grad = (None if part is None else part[pick] for part in (chain.energy, chain.grad))
        # Step settings are shared by all chains; a drawn hidden layer belongs to its row.
        aux = chain.aux if isinstance(chain.aux, StepSettings) else None
        return ChainState(chain.x[pick], value, grad, aux), walkers

    def indices_by_weight(self, generator: torch.Generator) -> Tensor:
        """Indices of chains drawn by their weights with systematic resampling, (n_chains,)."""
        share, n = self.share, len(self.log_weight)
        u = torch.rand((), generator=generator, dtype=share.dtype, device=share.device)
        comb = (torch.arange(n, dtype=share.dtype, device=share.device) + u) / n
        return torch.searchsorted(share.cumsum(0), comb).clamp_(max=n - 1)

    def after_move(self, energy: Energy, chain: ChainState) -> Walkers:
        """The same weights after the kernel has moved the chains."""
        return self._replace(energy=_energies(energy, chain))


def _energies(energy: Energy, chain: ChainState) -> Tensor:
    """Energies of the chains, from their state if it has them."""
    return (energy(chain.x) if chain.energy is None else chain.energy).double()
