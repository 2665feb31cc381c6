"""The distribution of one column of numbers given other columns: mixtures of normal ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from skebm.distributions._fitting import draw_index

# Components that have less weight in all are left out.
LEAST_WEIGHT = 1e-9
# Halvings of an interval that contains a quantile, after which it is one number.
MOST_STEPS = 100
# Numbers that are computed at once: a few arrays of these stay in the cache of a core.
CHUNK = 100_000
# Standard deviations, beyond which a normal distribution has 1e-13 in all.
FAR = 7.4
# Largest z-scores: products of smaller densities are subnormal numbers, which take ten times as
# long. Densities of less than the smallest are sums of logarithms.
MOST_Z = {torch.float32: 10.0, torch.float64: 26.0}
SMALLEST = 1e-140


class NormalMixtures:
    """A mixture of normal distributions of one number for each of n rows.

    Results are in float64, in which components are computed as well (but for :meth:`to`).

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

    @classmethod
    def _normalised(cls, log_weight: Tensor, means: Tensor, scales: Tensor) -> NormalMixtures:
        """Mixtures of log-weights that are normalised already."""
        found = cls.__new__(cls)
        found.log_weight, found.means, found.scales = log_weight, means, scales
        return found

    def of_rows(self, rows: Tensor | slice) -> NormalMixtures:
        """Those of some rows."""
        return self._normalised(self.log_weight[rows], self.means[rows], self.scales[rows])

    def to(self, dtype: torch.dtype) -> NormalMixtures:
        """The same with components in another precision."""
        parts = (self.log_weight, self.means, self.scales)
        return self._normalised(*(part.to(dtype) for part in parts))

    def in_units(self, centre: Tensor | float, scale: Tensor | float) -> NormalMixtures:
        """The distributions of (x - centre) / scale."""
        means, scales = (self.means - centre) / scale, self.scales / scale
        return self._normalised(self.log_weight, means, scales)

    def without_small_weights(self, least: float = LEAST_WEIGHT) -> NormalMixtures:
        """The same without components that have less than a weight in all, in fewer columns."""
        kept = self.log_weight > math.log(least / self.log_weight.shape[1])
        counts = kept.sum(1)
        n_kept = int(counts.max()) if len(counts) else 0
        if n_kept == kept.shape[1]:
            return self
        source = kept.flatten().nonzero()[:, 0]
        row = torch.arange(len(kept), device=kept.device).repeat_interleave(counts)
        column = torch.arange(len(source), device=kept.device)
        place = row * n_kept + column - (counts.cumsum(0) - counts)[row]

        def packed(x: Tensor, value: float) -> Tensor:
            found = x.new_full((len(kept) * n_kept,), value)
            found[place] = x.flatten()[source]
            return found.view(len(kept), n_kept)

        parts = ((self.log_weight, -math.inf), (self.means, 0.0), (self.scales, 1.0))
        return NormalMixtures(*(packed(x, value) for x, value in parts))

    # ---------------------------------------------------------------- moments

    @property
    def mean(self) -> Tensor:
        """Means, (n,)."""
        return (self.log_weight.exp() * self.means).sum(1)

    @property
    def mean_error(self) -> Tensor:
        """Standard errors of the means, (n,): none."""
        return torch.zeros_like(self.mean)

    @property
    def std(self) -> Tensor:
        """Standard deviations, (n,)."""
        off = (self.means - self.mean[:, None]).square() + self.scales.square()
        return (self.log_weight.exp() * off).sum(1).sqrt()

    # ---------------------------------------------------------------- densities

    def log_prob(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Log-densities of m numbers of each row, or of each of some rows, (n, m)."""
        density = self._sums_over_components(x, _density, self._heights, rows)
        found = density.log()
        some = (density < SMALLEST).any(1).nonzero()[:, 0]
        if len(some):
            own = some if rows is None else rows[some]
            found[some] = self.of_rows(own)._log_sums(x[some])
        return found

    def _log_sums(self, x: Tensor) -> Tensor:
        """Log-densities as sums of logarithms, slower and right where they are very small."""
        found = torch.empty(x.shape, dtype=torch.float64, device=x.device)
        constant = (self.log_weight - self.scales.log() - math.log(math.tau) / 2)[:, None]
        size = max(1, CHUNK // max(1, len(x) * self.means.shape[1]))
        for columns in torch.arange(x.shape[1], device=x.device).split(size):
            z = (x[:, columns].double()[..., None] - self.means[:, None]) / self.scales[:, None]
            found[:, columns] = (constant - z.square() / 2).logsumexp(2)
        return found

    def cdf(self, x: Tensor) -> Tensor:
        """Probabilities of at most x, (n, m)."""
        return self._sums_over_components(x, _probability, self._weights).clamp(0, 1)

    @functools.cached_property
    def _weights(self) -> Tensor:
        return self.log_weight.exp()

    @functools.cached_property
    def _heights(self) -> Tensor:
        """Densities of the components at their means, times their weights."""
        return self._weights / self.scales / math.tau**0.5

    @functools.cached_property
    def _extent(self) -> Tensor:
        """Number of the last component of each row that is no padding, (n,), from 1."""
        numbers = torch.arange(1, self.means.shape[1] + 1, device=self.means.device)
        return (self.log_weight.isfinite() * numbers).amax(1)

    def _sums_over_components(
        self,
        x: Tensor,
        term: Callable[[Tensor], Tensor],
        factor: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Sums of factors (n, K) times what is made, in place, of the z-scores (n, m, K)."""
        found = self.means.new_empty(x.shape)
        extent = self._extent if rows is None else self._extent[rows]
        for some, width in _in_blocks(extent, x.shape[1]):
            own, at = some if rows is None else rows[some], x[some].to(self.means)[..., None]
            means, scales = self.means[own, None, :width], self.scales[own, None, :width]
            inverse, share = scales.reciprocal(), factor[own, :width, None]
            size = max(1, CHUNK // width)
            for part in range(0, x.shape[1], size):
                z = (at[:, part : part + size] - means).mul_(inverse)
                found[some, part : part + size] = torch.bmm(term(z), share)[..., 0]
        return found.double()

    def ppf(self, u: Tensor, tolerance: float = 1e-13) -> Tensor:
        """Quantiles, (n, m), of probabilities in [0, 1].

        By Newton's steps on the CDF that stay in an interval which contains the quantile, each at
        most half as long as the last one, and by halving the interval otherwise; it starts between
        the smallest and the largest quantile of the components, and ends at steps of at most
        `tolerance` standard deviations.
        """
        size = max(1, 10 * CHUNK // max(1, self.means.shape[1]))
        rows = torch.arange(len(u), device=u.device).split(size)
        found = [self.of_rows(part)._ppf(u[part].double(), tolerance) for part in rows]
        return torch.cat(found) if len(u) else u.double()

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

    def spread(self, n_cells: int) -> Tensor:
        """Increasing numbers, (n, n_cells + 1), between which there is all but 1e-13 of each row.

        Between the first and the last one they divide the means of the components by weight.
        """
        possible = self.log_weight.isfinite()
        low = (self.means - FAR * self.scales).masked_fill(~possible, math.inf).amin(1)
        high = (self.means + FAR * self.scales).masked_fill(~possible, -math.inf).amax(1)
        means, order = self.means.masked_fill(~possible, math.inf).sort(1)
        below = self._weights.gather(1, order).cumsum(1)
        u = torch.linspace(0, 1, n_cells + 1, dtype=torch.float64, device=low.device)[1:-1]
        place = torch.searchsorted(below, u.expand(len(means), -1).contiguous())
        place = torch.minimum(place, possible.sum(1, keepdim=True) - 1)
        return torch.cat([low[:, None], means.gather(1, place), high[:, None]], 1)

    def sample(self, n_draws: int, generator: torch.Generator) -> Tensor:
        """Independent draws of each row, (n_draws, n)."""
        n, there = len(self.means), generator.device
        u = torch.rand(n_draws, n, generator=generator, dtype=torch.float64, device=there)
        z = torch.randn(n_draws, n, generator=generator, dtype=torch.float64, device=there)
        u, z = u.to(self.means.device), z.to(self.means.device)
        weight, rows = self.log_weight.exp(), torch.arange(n, device=self.means.device)
        chosen = torch.stack([draw_index(weight, one) for one in u])
        return self.means[rows, chosen] + self.scales[rows, chosen] * z


def _density(z: Tensor) -> Tensor:
    """exp(-z^2 / 2), in place of z."""
    end = MOST_Z[z.dtype]
    return z.clamp_(-end, end).square_().mul_(-0.5).exp_()


def _probability(z: Tensor) -> Tensor:
    """Normal probabilities of at most z, in place of it."""
    return z.mul_(-(0.5**0.5)).erfc_().mul_(0.5)


def _in_blocks(extent: Tensor, m: int) -> Iterator[tuple[Tensor, int]]:
    """Rows of similar numbers of components in blocks of m numbers each, and the largest number."""
    order = extent.argsort()
    start = 0
    while start < len(order):
        size = max(1, CHUNK // max(1, int(extent[order[start]]) * m))
        rows = order[start : start + size]
        yield rows, int(extent[rows[-1]])
        start += size
