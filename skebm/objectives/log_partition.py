"""Estimates of log Z during training, from draws of the base and from the chains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Domain, Energy, Real
from skebm.base.bridge import bridge
from skebm.base.objective import effective_count, weighted_mean, weighted_variance
from skebm.distributions import Distribution

# Draws of the base from which log Z is estimated.
N_DRAWS = 1000


class LogPartitionMonitor:
    """Estimator of log Z from draws of an energy's base, or uniform ones on a bounded domain."""

    def __init__(self, base: Distribution | None, domain: Domain):
        self.base, self.domain = base, domain
        self._draws: Tensor | None = None

    @classmethod
    def of(cls, energy: Energy) -> LogPartitionMonitor | None:
        """Monitor of an energy, or None if there is no distribution to draw from."""
        base, domain = getattr(energy, "base", None), energy.domain
        unbounded = isinstance(domain, Real) and None in (domain.lower, domain.upper)
        return None if base is None and unbounded else cls(base, domain)

    def draws(self, like: Tensor) -> Tensor:
        """Draws of the base, always the same ones, as the base does not change."""
        if self._draws is None:
            generator = torch.Generator(like.device).manual_seed(0)
            if self.base is None:
                self._draws = self.domain.uniform(N_DRAWS, generator, dtype=like.dtype)
            else:
                self._draws = self.base.sample(N_DRAWS, generator).to(like.dtype)
        return self._draws

    def log_partition(self, energy: Energy, chains: Tensor | None) -> tuple[Tensor, float]:
        """log Z relative to the base, and its standard error, by bridge sampling with the chains.

        The estimate is consistent if the chains are distributed as the model. Without chains it is
        that of importance sampling from the base, which is low on average.
        """
        like = next(energy.parameters())
        draws = self.draws(like)
        if chains is None:
            return log_mean_and_error(-energy.correction(draws).double())
        log_w = -energy.correction(torch.cat([draws, chains])).double()
        if not log_w.isfinite().all():
            return log_w.sum(), math.inf  # the sum is not finite either
        estimate = bridge(log_w[len(draws) :].cpu(), log_w[: len(draws)].cpu())
        return log_w.new_tensor(estimate.value), estimate.std_error

    def gains(self, energy: Energy, x: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        """Mean log-likelihood ratio of rows to the base, and its error, without chains.

        The ratio is high on average, because the estimate of log Z is low.
        """
        draws = self.draws(x)
        f = energy.correction(torch.cat([x, draws]))
        return gains(f[: len(x)], *log_mean_and_error(-f[len(x) :].double()), weight)


def log_mean_and_error(log_w: Tensor) -> tuple[Tensor, float]:
    """Logarithm of the mean weight, low on average, and its estimated standard error."""
    value = log_w.logsumexp(0) - math.log(len(log_w))
    return value, float((log_w - value).detach().exp().std() / math.sqrt(len(log_w)))


def gains(f: Tensor, log_z: Tensor, error: float, weight: Tensor | None) -> dict[str, Tensor]:
    """Mean log-likelihood ratio to the base, -f - log Z, and its standard error."""
    spread = weighted_variance(f, weight) / effective_count(f, weight)
    return {
        "gain_over_base": -weighted_mean(f + log_z, weight),
        "gain_error": (spread + error**2).sqrt(),
    }
