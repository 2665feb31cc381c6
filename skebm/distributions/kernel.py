"""Kernel density estimates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.distributions import _fitting
from skebm.distributions._fitting import live_rows, moments, pick, positive, varies
from skebm.distributions.base import Distribution
from skebm.distributions.conditionals import Given, KernelGiven, ScalesGiven
from skebm.distributions.gaussian import _ledoit_wolf
from skebm.distributions.mixture import _positive_definite

# The first and the last of the scales at the start, in units of the one bandwidth of largest
# likelihood. It lies above the middle: it has to reach rows that are far from all others.
START = (0.25, 2.5)

# Variance that each kernel has at least, as a share of that of the columns.
FLOOR = 1e-5

# Rows by which a covariance is shrunk to a multiple of the identity, and each of the shares.
SHRINKAGE_ROWS = 10.0
SHARE_ROWS = 1.0

# A scale that holds less than this of a row stays what it is.
LEAST_COUNT = 1e-6

# Rows that are left out in turn and most steps: some rows for the way, more for the end.
STAGES = ((500, 20), (2000, 8))

# A stage ends when a step adds less than this to the log-likelihood a row, in nats.
TOLERANCE = 2e-3

# Pairs of a row and a centre in a step, and those at once (of each scale).
MAX_PAIRS = 40_000_000
PAIRS = 2**18


class Kernels(NamedTuple):
    """Kernels around m centres, ready for products.

    `maps` whitens: (M, d, d) of inverse Cholesky factors, or (d,) of inverse bandwidths.
    """

    maps: Tensor
    origin: Tensor  # (d,), zero of the centres
    centres: Tensor  # (m, d)
    right: Tensor  # (M, d + 2, m)

    def whiten(self, rows: Tensor) -> Tensor:
        """(M, n, d)."""
        if self.maps.dim() == 1:
            return (rows * self.maps)[None]
        return torch.matmul(rows, self.maps.transpose(1, 2))

    def logits(self, rows: Tensor) -> Tensor:
        """Logarithms of w_j a_m N(x_i; c_j, S_m), (M, n, m)."""
        z = self.whiten(rows)
        half = z.square().sum(2, keepdim=True) / -2
        return torch.bmm(torch.cat([z, torch.ones_like(half), half], 2), self.right)

    def precisions(self, off: Tensor) -> Tensor:
        """sum_m S_m^-1 off_m of (M, n, d)."""
        if self.maps.dim() == 1:
            return off[0] * self.maps.square()
        return torch.bmm(torch.bmm(off, self.maps.transpose(1, 2)), self.maps).sum(0)


def prepare(centres: Tensor, weight: Tensor, maps: Tensor, log_share: Tensor) -> Kernels:
    """Kernels of weights (m,), made to sum to 1, around centres (m, d), of log-shares (M,)."""
    weight = weight / weight.sum()
    origin = weight @ centres
    centres = centres - origin
    diagonal = maps[None] if maps.dim() == 1 else maps.diagonal(dim1=1, dim2=2)
    level = log_share + diagonal.log().sum(1) - centres.shape[1] / 2 * math.log(math.tau)
    found = Kernels(maps, origin, centres, maps)
    c = found.whiten(centres)
    height = level[:, None] + weight.log() - c.square().sum(2) / 2
    right = torch.cat([c, height[..., None], torch.ones_like(height)[..., None]], 2)
    return found._replace(right=right.transpose(1, 2))


def inverses(scale_tril: Tensor) -> Tensor:
    """Inverses of lower triangular matrices, (M, d, d)."""
    identity = torch.eye(scale_tril.shape[1], dtype=scale_tril.dtype, device=scale_tril.device)
    return torch.linalg.solve_triangular(scale_tril, identity.expand_as(scale_tril), upper=False)


def evaluate(
    kernels: Kernels,
    x: Tensor,
    score: bool,
    without: Tensor | None = None,
    stays: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Log-densities (n,) and, if asked for, slopes (n, d), in the precision of x.

    A row may do `without` a centre, of which log-shares `stays` (m,) of its weight stay, and `rest`
    (m,) of all weights.
    """
    size = max(1, min(_fitting.CHUNK, PAIRS) // kernels.right[:, 0].numel())
    parts = []
    for number, rows in enumerate(x.split(size)):
        here = rows.double() - kernels.origin
        logits = kernels.logits(here)
        if without is not None and stays is not None and rest is not None:
            out = without[number * size : number * size + len(rows)]
            at = torch.arange(len(rows), device=rows.device)
            logits[:, at, out] = logits[:, at, out] + stays[out]
            logits -= rest[out][:, None]
        found = _sums(kernels, here, logits, score)
        parts.append(tuple(part.to(x.dtype) for part in found))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _sums(kernels: Kernels, rows: Tensor, logits: Tensor, score: bool) -> tuple[Tensor, ...]:
    top = logits.detach().amax(2).amax(0)
    share = logits.sub_(top[:, None]).exp_()
    if not score:
        return (top + share.sum(2).sum(0).log(),)
    centres = torch.nn.functional.pad(kernels.centres, (0, 1), value=1.0)
    sums = torch.mm(share.flatten(0, 1), centres).view(*share.shape[:2], rows.shape[1] + 1)
    count = sums[..., -1:]
    total = count.sum(0)
    scores = kernels.precisions(sums[..., :-1] - count * rows) / total
    return top + total[:, 0].log(), scores


# ------------------------------------------------------------------------------
# Learning
# ------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """What a step needs of rows that are each left out of the kernels in turn."""

    log_likelihood: float  # in nats a row
    amount: Tensor  # (M,), rows of each scale
    scatter: Tensor  # (M, d, d), of rows around centres


def learn(
    z: Tensor, w: Tensor, n_scales: int, factor: float | None
) -> tuple[Tensor, Tensor, list[float]]:
    """Covariances (M, d, d) and shares (M,) for standardised rows z (n, d) counted by w (n,).

    They start as multiples of the correlations of the columns, shrunk so that these have an
    inverse, and are learned where these are the identity. The likeliest on the way are kept. Third
    come the log-likelihoods of the rows there, in nats a row.
    """
    # Weights that are no counts but shares weigh as many rows as there are, against the prior.
    unit = max(1.0, len(w) / float(w.sum()))
    root = _root(z, w * unit)
    z = torch.linalg.solve_triangular(root, z.t(), upper=False).t().contiguous()
    if factor is None:
        factor = best_factor(z, w, STAGES[0][0])
    low, high = (math.log(factor * end) for end in START)
    sizes = torch.linspace(low, high, n_scales, dtype=z.dtype, device=z.device).exp()
    covariances = torch.diag_embed(sizes.square()[:, None].expand(-1, z.shape[1]))
    shares = torch.full_like(sizes, 1 / n_scales)
    path: list[float] = []
    for n_rows, n_steps in STAGES:
        index, count = left_out(w, max(min(n_rows, MAX_PAIRS // len(z)), 1))
        usable = w.sum() - w[index].clamp(max=1) > 0
        index, count = index[usable], count[usable] * unit
        if not len(index) or not z.shape[1]:
            break
        best, here = -math.inf, (covariances, shares)
        for _ in range(n_steps):
            found = statistics(z, w, index, count, *here)
            path.append(found.log_likelihood)
            gain = found.log_likelihood - best
            if gain > 0:  # the prior may lower what the rows alone would raise
                best, (covariances, shares) = found.log_likelihood, here
            if gain < TOLERANCE:
                break
            here = update(found, *here)
    return root @ covariances @ root.t(), shares, path


def _root(z: Tensor, w: Tensor) -> Tensor:
    """Lower Cholesky factor of the shrunk correlations of standardised rows."""
    if not z.shape[1]:
        return z.new_zeros(0, 0)
    correlation = (z * w[:, None]).t() @ z / w.sum()
    # Two rows seem to agree perfectly, so that nothing would be shrunk.
    shrinkage = max(_ledoit_wolf(z, w, correlation), 1 / float(w.sum()))
    correlation = correlation * (1 - shrinkage)
    correlation.diagonal().fill_(1.0)
    return torch.linalg.cholesky(correlation)


def statistics(
    z: Tensor, w: Tensor, index: Tensor, count: Tensor, covariances: Tensor, shares: Tensor
) -> Statistics:
    """Those of the rows `index`, each counted `count` times; all rows are centres."""
    kernels = prepare(z, w, inverses(torch.linalg.cholesky(covariances)), shares.log())
    stays = ((w[index] - 1).clamp(min=0) / w[index]).log()
    others = (1 - w[index].clamp(max=1) / w.sum()).log()
    ones = torch.nn.functional.pad(kernels.centres, (0, 1), value=1.0)
    n_scales, d = len(shares), z.shape[1]
    value, amount = 0.0, z.new_zeros(n_scales)
    scatter, reached = torch.zeros_like(covariances), z.new_zeros(n_scales, len(z))
    for part in torch.arange(len(index), device=z.device).split(max(1, PAIRS // len(z))):
        rows = kernels.centres[index[part]]
        logits = kernels.logits(rows)
        logits[:, torch.arange(len(part), device=z.device), index[part]] += stays[part]
        top = logits.amax(2).amax(0)
        share = logits.sub_(top[:, None]).exp_()
        sums = torch.mm(share.flatten(0, 1), ones).view(n_scales, len(part), d + 1)
        total = sums[..., d].sum(0)
        value += float(count[part] @ (top + total.log() - others[part]))
        scale = count[part] / total
        reached += torch.matmul(scale, share)
        sums *= scale[:, None]
        amount += sums[..., d].sum(1)
        cross = torch.matmul(rows.t(), sums[..., :d] - rows * sums[..., d:] / 2)
        scatter -= cross + cross.transpose(1, 2)
    for m, column in enumerate(reached):
        scatter[m] += (kernels.centres.t() * column) @ kernels.centres
    return Statistics(value / float(count.sum()), amount, scatter)


def update(
    found: Statistics,
    covariances: Tensor,
    shares: Tensor,
    shrinkage_rows: float = SHRINKAGE_ROWS,
    share_rows: float = SHARE_ROWS,
    floor: float = FLOOR,
) -> tuple[Tensor, Tensor]:
    """Covariances and shares of largest likelihood given the statistics, and the prior rows."""
    count, d = found.amount, found.scatter.shape[1]
    identity = torch.eye(d, dtype=count.dtype, device=count.device)
    safe = count.clamp_min(LEAST_COUNT)[:, None, None]
    trace = found.scatter.diagonal(dim1=1, dim2=2).sum(1).clamp_min(0)[:, None, None]
    centre = trace / (d * safe) * identity
    shrunk = (found.scatter + shrinkage_rows * centre) / (safe + shrinkage_rows)
    wider = (shrunk + shrunk.transpose(1, 2)) / 2 + floor * identity
    covariances = torch.where((count > LEAST_COUNT)[:, None, None], wider, covariances)
    shares = (count + share_rows) / (count.sum() + len(count) * share_rows)
    return covariances, shares


# Factors that are looked at first: each twice the one before.
FACTORS = tuple(0.01 * 2**k for k in range(9))

# Rows that are left out in turn.
MAX_ROWS = 2000

# Pairs of rows at once: few enough for the processor's cache.

# The factor is found to two percent.
BANDWIDTH_TOLERANCE = 0.02


def best_factor(z: Tensor, w: Tensor, max_rows: int | None = None) -> float:
    """Bandwidth, from the least to the largest of `FACTORS`, for standardised rows z (n, d).

    Rows are counted by their weights w (n,): one of weight 2 leaves a copy in place.
    """
    index, count = left_out(w, max_rows)
    usable = w.sum() - w[index].clamp(max=1) > 0
    index, count = index[usable], count[usable]
    if not len(index) or not z.shape[1]:  # a single row, or no column
        return 1.0
    scores = _grid(z, w, index, count)
    top = max(range(len(FACTORS)), key=scores.__getitem__)
    low, high = FACTORS[max(top - 1, 0)], FACTORS[min(top + 1, len(FACTORS) - 1)]

    def score(log_factor: float) -> float:
        return log_likelihood(z, w, index, count, math.exp(log_factor))

    return math.exp(_golden(score, math.log(low), math.log(high)))


def left_out(w: Tensor, max_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows to leave out and how often each: all, or some evenly spaced over the weights."""
    total, n = float(w.sum()), MAX_ROWS if max_rows is None else max_rows
    if max(total, len(w)) <= n:
        return torch.arange(len(w), device=w.device), w
    place = (torch.arange(n, dtype=w.dtype, device=w.device) + 0.5) * (total / n)
    chosen = torch.searchsorted(w.cumsum(0), place, right=True).clamp_(max=len(w) - 1)
    index, count = chosen.unique_consecutive(return_counts=True)
    return index, count.to(w.dtype)


def log_likelihood(z: Tensor, w: Tensor, index: Tensor, count: Tensor, factor: float) -> float:
    """Sum over the rows of `count` times the log-density under the kernels of all others."""
    total = 0.0
    for rows, distance, nearest, own in _distances(z, w, index):
        kernel = distance.mul_(-0.5 / factor**2).exp_()
        total += _score(kernel @ w + own, nearest, w, index[rows], count[rows], z, factor)
    return total


def _grid(z: Tensor, w: Tensor, index: Tensor, count: Tensor) -> list[float]:
    """The same for all of `FACTORS`: half the bandwidth is the kernel to the fourth power."""
    scores = [0.0] * len(FACTORS)
    for rows, distance, nearest, own in _distances(z, w, index):
        kernel = distance.mul_(-0.5 / FACTORS[-1] ** 2).exp_()
        for k in reversed(range(len(FACTORS))):
            scores[k] += _score(
                kernel @ w + own, nearest, w, index[rows], count[rows], z, FACTORS[k]
            )
            kernel.square_().square_()
    return scores


def _distances(
    z: Tensor, w: Tensor, index: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Chunks of rows: squared distances to all less that to the nearest, and what is left of each.

    A row is infinitely far from itself; the copies that stay are counted apart, `own`.
    """
    squared = z.square().sum(1)
    size = max(1, PAIRS // len(z))
    for start in range(0, len(index), size):
        rows = slice(start, start + size)
        part = index[rows]
        distance = torch.addmm(squared, z[part], z.t(), alpha=-2).add_(squared[part][:, None])
        here = torch.arange(len(part), device=z.device)
        distance[here, part] = math.inf
        own = (w[part] - 1).clamp_(min=0)
        nearest = torch.where(own > 0, 0.0, distance.amin(1).clamp_(min=0))
        yield rows, distance.sub_(nearest[:, None]), nearest, own


def _score(
    density: Tensor, nearest: Tensor, w: Tensor, index: Tensor, count: Tensor, z: Tensor, h: float
) -> float:
    others = w.sum() - w[index].clamp(max=1)
    value = density.log() - nearest / (2 * h**2) - others.log() - z.shape[1] * math.log(h)
    return float(count @ value)


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one maximum is largest, by golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > BANDWIDTH_TOLERANCE:
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return (low + high) / 2


class KernelDensity(Distribution):
    r"""A normal density around each of some rows, of one bandwidth a column or of several scales.

    .. math:: q(x) = \sum_j w_j \prod_i N(x_i; c_{ji}, h_i^2)
        \qquad\text{or}\qquad
        q(x) = \sum_j w_j \sum_{m=1}^{M} a_m N(x; c_j, S_m)

    Parameters
    ----------
    centres : Tensor of shape (m, d)
        c, finite floating-point numbers; the density has their precision.
    bandwidth : float, Tensor of shape (d,) or None, default=None
        h, the standard deviation of the kernel in each column, positive.
    weights : Tensor of shape (m,) or None, default=None
        Non-negative, not all zero; w is these divided by their sum. None: all equal. They count
        rows where a centre is left out, see :meth:`log_prob`.
    covariances : Tensor of shape (M, d, d) or None, default=None
        S, symmetric and positive definite, of a kernel of several scales. Pass these or
        `bandwidth`.
    shares : Tensor of shape (M,) or None, default=None
        Non-negative, not all zero; a is these divided by their sum. None: all equal.

    Attributes
    ----------
    centres : Tensor of shape (m, d)
        Those of positive weight.
    bandwidth : Tensor of shape (d,), or None
    weights : Tensor of shape (m,)
        They sum to 1.
    counts : Tensor of shape (m,)
        The weights as they were given.
    roots : Tensor of shape (M, d, d), or None
        Lower Cholesky factors of the covariances, those of positive share.
    shares : Tensor of shape (M,), or None
        They sum to 1.

    Notes
    -----
    A row costs M m d multiplications and M m exponentials. Distances are float64, as products
    around the mean of the centres: they are exact to rounding where rows and centres stay within
    1e6 bandwidths of it.

    References
    ----------
    Parzen (1962), "On estimation of a probability density function and mode", Annals of
    Mathematical Statistics 33(3).

    Duin (1976), "On the choice of smoothing parameters for Parzen estimators of probability density
    functions", IEEE Transactions on Computers 25(11) (the bandwidth of a fit).

    Leiva-Murillo and Artes-Rodriguez (2012), "Algorithms for maximum-likelihood bandwidth selection
    in kernel density estimators", Pattern Recognition Letters 33(13) (covariances by leave-one-out
    expectation-maximisation).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import KernelDensity
    >>> q = KernelDensity(torch.tensor([[0.0], [9.0]]), bandwidth=0.5)
    >>> q.log_prob(torch.tensor([[0.0]]))  # log(1 / 2 / (0.5 sqrt(2 pi)))
    tensor([-0.9189])
    >>> x = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> 0.1 < float(KernelDensity.fit(x).bandwidth) < 0.5
    True

    Two scales describe a peak and its tails, and tell where they end.

    >>> x[::2] *= 0.05
    >>> several = KernelDensity.fit(x, n_scales=2)
    >>> several
    KernelDensity(500 centres, 1 columns, 2 scales)
    >>> fresh = torch.randn(500, 1, generator=torch.Generator().manual_seed(1))
    >>> fresh[::2] *= 0.05
    >>> bool(several.log_prob(fresh).mean() > KernelDensity.fit(x).log_prob(fresh).mean())
    True
    """

    def __init__(
        self,
        centres: Tensor,
        bandwidth: Tensor | float | None = None,
        weights: Tensor | None = None,
        *,
        covariances: Tensor | None = None,
        shares: Tensor | None = None,
    ):
        if not (isinstance(centres, Tensor) and centres.is_floating_point() and centres.dim() == 2):
            raise ValueError("centres must be a floating-point tensor of shape (m, d).")
        if len(centres) == 0 or not centres.isfinite().all():
            raise ValueError("centres must be finite, and at least one row.")
        if (bandwidth is None) == (covariances is None):
            raise ValueError("Pass either bandwidth or covariances.")
        if covariances is None and shares is not None:
            raise ValueError("shares are those of covariances: pass both, or a bandwidth.")
        weight = _checked(weights, len(centres), "weights", "centres").to(centres.device)
        self.domain = Real((centres.shape[1],))
        self.centres = centres.detach()[weight > 0].clone()
        self.counts = weight[weight > 0].to(centres)
        self.weights = (weight / weight.sum())[weight > 0].to(centres)
        self.bandwidth: Any = None  # a tensor, or of several scales:
        self.scale_tril: Tensor | None = None
        self.shares: Tensor | None = None
        if covariances is None:
            self.bandwidth = positive(bandwidth, self.centres[0], "bandwidth")
            return
        share, covariances = _checked_scales(covariances, shares, centres.shape[1])
        self.scale_tril = torch.linalg.cholesky(covariances).to(centres).contiguous()
        self.shares = share.to(centres)

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        bandwidth: float | str = "auto",
        *,
        n_scales: int = 1,
    ) -> KernelDensity:
        r"""Put a kernel on each row.

        The bandwidths are a factor times the standard deviations of the columns, and 1 for columns
        that do not vary by more than rounding errors.

        Several scales have covariances and shares that raise the likelihood of rows under the
        kernels of the other rows, by expectation-maximisation:

        .. math:: S_m = \frac{C_m + \nu t_m R}{n_m + \nu} + \epsilon R,
            \qquad a_m = \frac{n_m + 1}{n + M}

        with :math:`C_m` the scatter matrix of rows around other rows in scale m, :math:`n_m` the
        number of its rows and :math:`\nu = 10` rows of the covariance R of all, as
        :meth:`Gaussian.fit` shrinks it (by 1/n at least), times what makes it as large as
        :math:`C_m / n_m`, :math:`t_m = \mathrm{tr}(R^{-1} C_m) / (d n_m)`. They start as R times
        squares of numbers from 1/4 of the factor to 5/2 of it. Where rows occur twice,
        :math:`\epsilon = 10^{-5}` keeps the narrowest kernel at 0.003 standard deviations of the
        columns.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero. A row of weight 2 is the row twice.
        bandwidth : float > 0 or "auto", default="auto"
            The factor. ``"auto"`` is the one from 0.01 to 2.56 of the largest likelihood of rows
            under the kernels of the other rows; a row of weight 2 leaves one copy in place. Rows
            that occur twice draw the factor to zero: 0.01 is where that ends. Rows far from all
            others draw it up. Of more than 2,000 rows, 2,000, evenly spaced in the order of the
            rows, are left out in turn.
        n_scales : int >= 1, default=1
            M. One is a bandwidth for each column, no covariance. For more, 500 rows are left out in
            turn in up to 20 steps, then 2,000, or fewer where there are more than 20,000, in up to
            8; the factor is one of the square root of R.
        """
        if not isinstance(n_scales, Integral) or isinstance(n_scales, bool) or n_scales < 1:
            raise ValueError(f"n_scales must be an integer of at least 1, got {n_scales!r}.")
        rows, w = live_rows(x, weight)
        mean, variance = moments(rows, w)
        live = varies(variance, mean, x.dtype)
        scale = variance[live].sqrt()
        z = (rows - mean)[:, live] / scale
        factor: float | None = None
        if isinstance(bandwidth, str) and bandwidth != "auto":
            raise ValueError(f'bandwidth must be "auto" or a positive factor, got {bandwidth!r}.')
        if bandwidth != "auto":
            factor = float(positive(bandwidth, mean.new_ones(()), "bandwidth"))
        if n_scales == 1:
            factor = best_factor(z, w) if factor is None else factor
            h = torch.where(live, factor * variance.sqrt(), 1.0)
            return cls(rows.to(x.dtype), h.to(x.dtype), w)
        found, shares, _ = learn(z, w, int(n_scales), factor)
        covariances = torch.eye(len(live), dtype=z.dtype, device=z.device).repeat(n_scales, 1, 1)
        at = live.nonzero()[:, 0]
        covariances[:, at[:, None], at] = found * torch.outer(scale, scale)
        # In float64 up to the end: single precision would lose what the floor has saved.
        made = cls(rows, None, w, covariances=covariances, shares=shares)
        return made.to(x.device, x.dtype)

    # ---------------------------------------------------------------- the distribution

    @property
    def covariances(self) -> Tensor:
        """S, the covariances of the scales, (M, d, d); one diagonal matrix of a bandwidth."""
        return self.kernel_covariances.to(self.centres)

    @property
    def kernel_covariances(self) -> Tensor:
        """The same in float64."""
        if self.scale_tril is None:
            return self.bandwidth.double().square().diag()[None]
        scale_tril = self.scale_tril.double()
        return scale_tril @ scale_tril.transpose(1, 2)

    def scaled_centres(self) -> tuple[Tensor, Tensor, Tensor]:
        """(centres - origin) / bandwidth, the origin and the bandwidth, in float64."""
        h, centres = self.bandwidth.double(), self.centres.double()
        origin = self.weights.double() @ centres
        return (centres - origin) / h, origin, h

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(n, dtype=torch.float64, **kind).to(self.weights.device)
        centres = self.centres[pick(self.weights.double(), u)]
        z = torch.randn(n, self.centres.shape[1], dtype=self.centres.dtype, **kind)
        z = z.to(centres.device)
        if self.scale_tril is None:
            return centres + z * self.bandwidth
        assert self.shares is not None
        v = torch.rand(n, dtype=torch.float64, **kind).to(self.weights.device)
        scale = pick(self.shares.double(), v)
        for m, root in enumerate(self.scale_tril):
            rows = (scale == m).nonzero()[:, 0]
            centres[rows] += z[rows] @ root.t()
        return centres

    def log_prob(self, x: Tensor, without: Tensor | None = None) -> Tensor:
        """Normalised log-density of each row in nats, (n,); exact.

        Parameters
        ----------
        x : Tensor of shape (n, d)
        without : integer Tensor of shape (n,) or None, default=None
            Number of a centre that is left out, for each row: its weight falls by one, or to zero
            from less, and all are divided by their sum. A centre of weight 2 stays with 1. For
            rows that are centres, or noisy copies of such.
        """
        return self._evaluate(x, without, score=False)[0]

    def score(self, x: Tensor, without: Tensor | None = None) -> Tensor:
        """Gradient of the log-density, sum_m S_m^-1 (share of m) (mean of its centres - x).

        Shares and means are those of the kernels at x; `without` is as in :meth:`log_prob`.
        """
        return self._evaluate(x, without, score=True)[1]

    def log_prob_and_score(self, x: Tensor, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one.

        `without` is as in :meth:`log_prob`.
        """
        value, score = self._evaluate(x, without, score=True)
        return value, score

    def _evaluate(self, x: Tensor, without: Tensor | None, score: bool) -> tuple[Tensor, ...]:
        weights = self.weights.double()
        if self.scale_tril is None:
            maps, log_share = self.bandwidth.double().reciprocal(), weights.new_zeros(1)
        else:
            assert self.shares is not None
            maps, log_share = inverses(self.scale_tril.double()), self.shares.double().log()
        kernels = prepare(self.centres.double(), weights, maps, log_share)
        if without is None:
            return evaluate(kernels, x, score)
        self._check_without(x, without)
        counts = self.counts.double()
        stays = ((counts - 1).clamp(min=0) / counts).log()
        rest = (1 - counts.clamp(max=1) / counts.sum()).log()
        return evaluate(kernels, x, score, without.long(), stays, rest)

    def _check_without(self, x: Tensor, without: Any) -> None:
        if (
            not isinstance(without, Tensor)
            or without.shape != x.shape[:1]
            or (without.is_floating_point() or without.dtype == torch.bool)
        ):
            raise ValueError("without must be integers of shape (n,), one for each row of x.")
        if not len(without):
            return
        if int(without.min()) < 0 or int(without.max()) >= len(self.counts):
            raise ValueError(f"without must be numbers of centres, 0 to {len(self.counts) - 1}.")
        if len(self.counts) == 1 and float(self.counts[0]) <= 1:
            raise ValueError("without leaves nothing: the only centre has a weight of one or less.")

    def convolved(self, sigma: float | Tensor) -> KernelDensity:
        r"""The density of x + sigma z: :math:`\sigma^2` is added to all variances.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of what is added to each column, non-negative.
        """
        noise = positive(sigma, self.centres[0], "sigma", zero=True)
        convolved = copy.copy(self)
        if self.bandwidth is not None:
            convolved.bandwidth = torch.hypot(self.bandwidth, noise)
        else:
            covariances = self.kernel_covariances + noise.double().square().diag()
            convolved.scale_tril = torch.linalg.cholesky(covariances).to(noise).contiguous()
        return convolved

    def given(self, clamp: Clamp) -> Given:
        """Exact conditionals of the other entries, for each row of what is known."""
        return KernelGiven(self, clamp) if self.scale_tril is None else ScalesGiven(self, clamp)

    def __repr__(self) -> str:
        scales = "" if self.scale_tril is None else f", {len(self.scale_tril)} scales"
        n, d = self.centres.shape
        return f"KernelDensity({n} centres, {d} columns{scales})"


def _checked(numbers: Any, n: int, name: str, of: str) -> Tensor:
    """Non-negative numbers in float64, not all zero; ones where there are none."""
    if numbers is None:
        return torch.ones(n, dtype=torch.float64)
    if not isinstance(numbers, Tensor) or numbers.shape != (n,):
        raise ValueError(f"{name} must be a tensor of shape ({n},), one for each of the {of}.")
    number = numbers.detach().double()
    if not (number.isfinite() & (number >= 0)).all() or not number.any():
        raise ValueError(f"{name} must be finite and non-negative, and not all zero.")
    return number


def _checked_scales(covariances: Any, shares: Any, d: int) -> tuple[Tensor, Tensor]:
    """Shares that sum to one and covariances, in float64, of the scales of positive share."""
    if (
        not isinstance(covariances, Tensor)
        or covariances.shape[1:] != (d, d)
        or not len(covariances)
    ):
        raise ValueError(f"covariances must be a tensor of shape (M, {d}, {d}).")
    found = _positive_definite(covariances.detach().double())
    share = _checked(shares, len(found), "shares", "covariances").to(found.device)
    return share[share > 0] / share.sum(), found[share > 0]
