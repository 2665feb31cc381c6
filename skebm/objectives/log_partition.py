"""Estimates of log Z during training, from draws of the base and from the chains."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from skebm.base import Domain, Energy, Real
from skebm.base.bridge import bridge
from skebm.base.objective import effective_count, weighted_mean, weighted_variance
from skebm.distributions import Distribution

# Draws of the base from which log Z is estimated.
N_DRAWS = 1000
# How many times as far from the mean of the base further draws of it are moved, to look for modes
# that it never reaches, and how many draws each time.
TIMES_AS_FAR, N_FAR = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0), 32
# Nats by which an estimate from those is above that from the base if it is believed. It is unbiased
# for Z, so that it is that much too high with probability exp(-10) at most (Markov's inequality).
BELIEVED = 10.0


class LogPartitionMonitor:
    """Estimator of log Z from draws of an energy's base, or uniform ones on a bounded domain."""

    def __init__(self, base: Distribution | None, domain: Domain):
        self.base, self.domain = base, domain
        self._draws: Tensor | None = None
        self._far: tuple[Tensor, Tensor] | None = None

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
            return self.from_draws(-energy.correction(draws), lambda x: -energy.correction(x))
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
        log_z, error = self.from_draws(-f[len(x) :], lambda rows: -energy.correction(rows))
        return gains(f[: len(x)], log_z, error, weight)

    def from_draws(
        self, log_w: Tensor, log_ratio: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """log Z from log weights of the draws, or from afar where that is more; and its error."""
        log_z, error = log_mean_and_error(log_w.double())
        far = self.log_partition_far(log_ratio)
        return (log_z, error) if far <= log_z + BELIEVED else (log_z.new_tensor(far), error)

    def log_partition_far(self, log_ratio: Callable[[Tensor], Tensor]) -> float:
        """Largest of the estimates of log Z relative to the base from ever wider bases.

        A network that grows may have nearly all mass where neither rows nor draws of the base lie.

        Parameters
        ----------
        log_ratio : callable
            Log of the ratio of the model to the base, without Z, of rows (n, ...), (n,).

        Returns
        -------
        float
            Minus infinity where there is no base, or not on all of space, or there are no draws.
        """
        if self.base is None or not isinstance(self.domain, Real) or self._draws is None:
            return -math.inf
        if (self.domain.lower, self.domain.upper) != (None, None):
            return -math.inf
        if self._far is None:
            self._far = self._wider_draws(self.base, self._draws)
        wide, log_base_ratio = self._far
        log_weight = (log_ratio(wide).double() + log_base_ratio).view(len(TIMES_AS_FAR), N_FAR)
        found = float((log_weight.logsumexp(1) - math.log(N_FAR)).max())
        return found if found == found else math.inf

    @staticmethod
    def _wider_draws(base: Distribution, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Draws of wider bases, and log ratios of the density of the base to theirs."""
        centre, some = draws.mean(0), draws[: N_FAR * len(TIMES_AS_FAR)]
        times = some.new_tensor(TIMES_AS_FAR).repeat_interleave(N_FAR)[: len(some)]
        wide = centre + times.view(-1, *[1] * (some.ndim - 1)) * (some - centre)
        # The density of a wider base at its draw is that of the base at its own, over the volume.
        volume = some[0].numel() * times.double().log()
        return wide, base.log_prob(wide).double() - base.log_prob(some).double() + volume


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
