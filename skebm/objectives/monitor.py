"""How good a model is while it is trained, and when its training has run away."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Domain, Energy, Real
from skebm.base.bridge import bridge
from skebm.base.objective import effective_count, weighted_mean, weighted_variance
from skebm.distributions import Distribution

# Draws of the base by which log Z is watched.
N_DRAWS = 1000
# A sampler that accepts less than this has collapsed.
LEAST_ACCEPTANCE = 0.01
# Nats that a single step may change the energies of rows against each other.
LARGEST_CHANGE = 3.0
# Largest energy gap, in standard deviations of the rows' energies and a nat more.
LARGEST_GAP = 10.0
# Nats a row that a model may fall below its base, as far as that is known.
LEAST_GAIN = -0.5


class LogPartitionMonitor:
    """Draws of the base that an energy corrects, or of a box, which log Z is estimated from."""

    def __init__(self, base: Distribution | None, domain: Domain):
        self.base, self.domain = base, domain
        self._draws: Tensor | None = None

    @classmethod
    def of(cls, energy: Energy) -> LogPartitionMonitor | None:
        """None where there is nothing to draw from."""
        base, domain = getattr(energy, "base", None), energy.domain
        endless = isinstance(domain, Real) and None in (domain.lower, domain.upper)
        return None if base is None and endless else cls(base, domain)

    def draws(self, like: Tensor) -> Tensor:
        """Rows, always the same: the base does not change."""
        if self._draws is None:
            generator = torch.Generator(like.device).manual_seed(0)
            if self.base is None:
                self._draws = self.domain.uniform(N_DRAWS, generator, dtype=like.dtype)
            else:
                self._draws = self.base.sample(N_DRAWS, generator).to(like.dtype)
        return self._draws

    def log_partition(self, energy: Energy, chains: Tensor | None) -> tuple[Tensor, float]:
        """log Z relative to the base, and its error: a bridge from its draws to the chains.

        Consistent with chains that are draws of the model; by the base alone it is low on average.
        """
        like = next(energy.parameters())
        draws = self.draws(like)
        if chains is None:
            return log_mean(-energy.correction(draws).double())
        log_w = -energy.correction(torch.cat([draws, chains])).double()
        if not log_w.isfinite().all():
            return log_w.sum(), math.inf  # not finite either
        found = bridge(log_w[len(draws) :].cpu(), log_w[: len(draws)].cpu())
        return log_w.new_tensor(found.value), found.std_error


def log_mean(log_w: Tensor) -> tuple[Tensor, float]:
    """Logarithm of the mean of weights, and its error as far as the draws know; low on average."""
    value = log_w.logsumexp(0) - math.log(len(log_w))
    return value, float((log_w - value).detach().exp().std() / math.sqrt(len(log_w)))


def gains(f: Tensor, log_z: Tensor, error: float, weight: Tensor | None) -> dict[str, Tensor]:
    """Mean of -f - log Z over rows, nats above the base, with the error of both."""
    spread = weighted_variance(f, weight) / effective_count(f, weight)
    return {
        "gain_over_base": -weighted_mean(f + log_z, weight),
        "gain_error": (spread + error**2).sqrt(),
    }


def why_diverged(
    logs: dict[str, float], before: dict[str, float], n_rows: int, rejects: bool
) -> str | None:
    """Why training with sampled negatives has run away, or None.

    Chains that no longer move; chains and data that are of different energy by far more than rows
    of data are; a model less likely than its base; a step so large that chains cannot follow.
    """
    share = logs.get("acceptance", 1.0)
    if rejects and share < LEAST_ACCEPTANCE:
        return f"the sampler accepts {share:.2g} of its steps"
    if n_rows < 10:  # few rows may just be rare ones
        return None
    gap, limit = logs["energy_gap"], LARGEST_GAP * (1 + logs["energy_spread"])
    if abs(gap) > max(limit, abs(before.get("energy_gap", 0.0))):
        return f"energy gap {gap:.3g} nats"
    gain = logs.get("gain_over_base", 0.0)
    if gain < min(before.get("gain_over_base", 0.0), 0.0) + LEAST_GAIN:
        return f"{-gain:.3g} nats a row less likely than the base"
    change = logs.get("energy_change", 0.0)
    if change > LARGEST_CHANGE:
        return f"one step changed the rows' energies by {change:.3g} nats"
    return None
