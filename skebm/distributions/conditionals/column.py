"""The distribution of one column of numbers given other columns: mixtures of normal ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from skebm.distributions._fitting import draw_index

# Components that have less weight in all are left out.
LEAST_WEIGHT = 1e-9
# Halvings of an interval that contains a quantile, after which it is one number.
MOST_STEPS = 100
# Numbers that are computed at once.
CHUNK = 4_000_000


class NormalMixtures:
    """A mixture of normal distributions of one number for each of n rows, in float64.

    Parameters
    ----------
    log_weight, mean, scale : Tensor of shape (n, K)
        Log-weights, up to a constant for each row; minus infinity for none. Means, and standard
        deviations, positive.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions.conditionals.column import NormalMixtures
    >>> two = NormalMixtures(torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2))
    >>> float(two.cdf(torch.zeros(1, 1)))
    0.5
    """

    def __init__(self, log_weight: Tensor, mean: Tensor, scale: Tensor):
        shape = log_weight.shape
        self.log_weight = log_weight.double().log_softmax(1)
        self.means, self.scales = (part.double().expand(shape) for part in (mean, scale))

    @classmethod
    def together(cls, parts: Sequence[NormalMixtures], log_share: Tensor) -> NormalMixtures:
        """The mixture of several for the same rows, with log-weights (n, number of parts)."""
        weights = [part.log_weight + log_share[:, m, None] for m, part in enumerate(parts)]
        return cls(
            torch.cat(weights, 1),
            torch.cat([part.means for part in parts], 1),
            torch.cat([part.scales for part in parts], 1),
        )

    @classmethod
    def one_below_the_other(cls, parts: Sequence[NormalMixtures]) -> NormalMixtures:
        """Those of further rows below those of the first ones."""
        width = max(part.means.shape[1] for part in parts)

        def padded(x: Tensor, value: float) -> Tensor:
            return torch.nn.functional.pad(x, (0, width - x.shape[1]), value=value)

        return cls(
            torch.cat([padded(part.log_weight, -math.inf) for part in parts]),
            torch.cat([padded(part.means, 0.0) for part in parts]),
            torch.cat([padded(part.scales, 1.0) for part in parts]),
        )

    def of_rows(self, rows: Tensor | slice) -> NormalMixtures:
        """Those of some rows."""
        return NormalMixtures(self.log_weight[rows], self.means[rows], self.scales[rows])

    def in_units(self, centre: Tensor | float, scale: Tensor | float) -> NormalMixtures:
        """The distributions of (x - centre) / scale."""
        return NormalMixtures(self.log_weight, (self.means - centre) / scale, self.scales / scale)

    def without_small_weights(self) -> NormalMixtures:
        """The same without components whose weights are negligible, in fewer columns."""
        kept = self.log_weight > math.log(LEAST_WEIGHT / self.log_weight.shape[1])
        n_kept = int(kept.sum(1).max())
        if n_kept == kept.shape[1]:
            return self
        log_weight, order = self.log_weight.topk(n_kept, 1)
        means, scales = self.means.gather(1, order), self.scales.gather(1, order)
        return NormalMixtures(log_weight, means, scales)

    # ---------------------------------------------------------------- moments

    @property
    def mean(self) -> Tensor:
        """Means, (n,)."""
        return (self.log_weight.exp() * self.means).sum(1)

    @property
    def std(self) -> Tensor:
        """Standard deviations, (n,)."""
        off = (self.means - self.mean[:, None]).square() + self.scales.square()
        return (self.log_weight.exp() * off).sum(1).sqrt()

    # ---------------------------------------------------------------- densities

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-densities of m numbers of each row, (n, m)."""
        return self._of_components(
            x,
            lambda z, scale: -z.square() / 2 - scale.log() - math.log(math.tau) / 2,
            lambda terms, log_weight: (terms + log_weight).logsumexp(2),
        )

    def cdf(self, x: Tensor) -> Tensor:
        """Probabilities of at most x, (n, m)."""
        found = self._of_components(
            x,
            lambda z, scale: torch.special.ndtr(z),
            lambda terms, log_weight: (terms * log_weight.exp()).sum(2),
        )
        return found.clamp(0, 1)

    def _of_components(
        self,
        x: Tensor,
        term: Callable[[Tensor, Tensor], Tensor],
        total: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Sums over components of what is computed of the z-scores (n, m, K)."""
        n, k = self.means.shape
        size = max(1, CHUNK // max(1, k * x.shape[1]))
        parts = []
        for rows in torch.arange(n, device=x.device).split(size):
            scale = self.scales[rows, None]
            z = (x[rows].double()[..., None] - self.means[rows, None]) / scale
            parts.append(total(term(z, scale), self.log_weight[rows, None]))
        return torch.cat(parts) if parts else x.double()

    def ppf(self, u: Tensor, tolerance: float = 1e-13) -> Tensor:
        """Quantiles, (n, m), of probabilities in [0, 1].

        By Newton's steps on the CDF that stay in an interval which contains the quantile, each at
        most half as long as the last one, and by halving the interval otherwise; it starts between
        the smallest and the largest quantile of the components, and ends at steps of at most
        `tolerance` standard deviations.
        """
        n, m = u.shape
        size = max(1, CHUNK // max(1, self.means.shape[1] * m))
        rows = torch.arange(n, device=u.device).split(size)
        found = [self.of_rows(part)._ppf(u[part].double(), tolerance) for part in rows]
        return torch.cat(found) if n else u.double()

    def _ppf(self, u: Tensor, tolerance: float) -> Tensor:
        z = torch.special.ndtri(u)[..., None]
        each = self.means[:, None] + self.scales[:, None] * z
        possible = self.log_weight[:, None].isfinite()
        low = each.masked_fill(~possible, math.inf).amin(2)
        high = each.masked_fill(~possible, -math.inf).amax(2)
        ends = low.isinf()  # of probabilities 0 and 1, whose bounds are equal
        low, high = low.masked_fill(ends, 0.0), high.masked_fill(ends, 0.0)
        x, length, least = (low + high) / 2, high - low, tolerance * self.std[:, None]
        rows = torch.arange(len(x), device=x.device)
        for _ in range(MOST_STEPS):
            some, at, last = self.of_rows(rows), x[rows], length[rows]
            error = some.cdf(at) - u[rows]
            low[rows] = torch.where(error < 0, at, low[rows])
            high[rows] = torch.where(error < 0, high[rows], at)
            step = at - error / some.log_prob(at).exp()
            inside = (step > low[rows]) & (step < high[rows]) & ((step - at).abs() <= last / 2)
            new = torch.where(inside, step, (low[rows] + high[rows]) / 2)
            # A quantile that is found is an end of its interval, so that it is not halved.
            near = least[rows] + 1e-14 * at.abs()
            found = (error == 0) | ((step - at).abs() <= near) | (last <= near)
            x[rows] = new = torch.where(found, at, new)
            length[rows] = (new - at).abs()
            rows = rows[~found.all(1)]
            if not len(rows):
                break
        return torch.where(ends, torch.where(u > 0.5, math.inf, -math.inf), x)

    def sample(self, n_draws: int, generator: torch.Generator) -> Tensor:
        """Independent draws of each row, (n_draws, n)."""
        n, there = len(self.means), generator.device
        u = torch.rand(n_draws, n, generator=generator, dtype=torch.float64, device=there)
        z = torch.randn(n_draws, n, generator=generator, dtype=torch.float64, device=there)
        u, z = u.to(self.means.device), z.to(self.means.device)
        weight, rows = self.log_weight.exp(), torch.arange(n, device=self.means.device)
        chosen = torch.stack([draw_index(weight, one) for one in u])
        return self.means[rows, chosen] + self.scales[rows, chosen] * z
