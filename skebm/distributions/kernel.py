"""Kernel density estimates."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.base.energy import check_temperature
from skebm.base.sampler import whole_number
from skebm.base.torchtools import exp_of_shifted_
from skebm.distributions import _fitting
from skebm.distributions._fitting import (
    draw_index,
    log_integrals_at_temperature,
    moments,
    positive,
    positive_weight_rows,
    varies,
    weighted_quantiles,
    weights_at_temperature,
)
from skebm.distributions.base import Distribution, Envelope
from skebm.distributions.conditionals import Given, KernelGiven, ScalesGiven
from skebm.distributions.gaussian import ledoit_wolf
from skebm.distributions.mixture import _positive_definite

# Least variance of a kernel relative to that of the columns.
VARIANCE_FLOOR = 1e-5

# Prior rows that shrink a covariance towards a multiple of the identity, and each mixing weight
# towards 1 / M.
SHRINKAGE_ROWS = 10.0
MIXING_ROWS = 1.0

# A scale responsible for less than this of a row is not updated.
MIN_COUNT = 1e-6

# Stages of EM: rows that are left out in turn, and most steps.
STAGES = ((500, 20), (2000, 8))

# A stage ends when a step adds less than this to the log-likelihood per row, in nats.
TOLERANCE = 2e-3

# Most pairs of a row and a centre in a step, and those computed at once (of each scale).
MAX_PAIRS = 40_000_000
PAIRS = 2**18


class Kernels(NamedTuple):
    """Kernels around m centres, with the factors of their log-densities precomputed."""

    inverse_tril: Tensor  # inverse Cholesky factors (M, d, d), or inverse bandwidths (d,)
    origin: Tensor  # (d,), mean of the centres, which is subtracted
    centres: Tensor  # (m, d)
    right: Tensor  # (M, d + 2, m)
    sharpness: Tensor | None = None  # (m,), inverse squares of the factors of the bandwidths

    def whiten(self, rows: Tensor) -> Tensor:
        """Rows (n, d) times the inverse Cholesky factor of each scale, (M, n, d)."""
        if self.inverse_tril.dim() == 1:
            return (rows * self.inverse_tril)[None]
        return torch.matmul(rows, self.inverse_tril.transpose(1, 2))

    def logits(self, rows: Tensor) -> Tensor:
        """Logarithms of w_j a_m N(x_i; c_j, S_m), (M, n, m)."""
        z = self.whiten(rows)
        half = z.square().sum(2, keepdim=True) / -2
        return torch.bmm(torch.cat([z, torch.ones_like(half), half], 2), self.right)

    def weighted_sum(self, differences: Tensor) -> Tensor:
        """sum_m S_m^-1 v_m of vectors v (M, n, d): (n, d)."""
        inverse = self.inverse_tril
        if inverse.dim() == 1:
            return differences[0] * inverse.square()
        return torch.bmm(torch.bmm(differences, inverse.transpose(1, 2)), inverse).sum(0)


def prepare(
    centres: Tensor,
    weight: Tensor,
    inverse_tril: Tensor,
    log_mixing: Tensor,
    factors: Tensor | None = None,
) -> Kernels:
    """Kernels around centres (m, d) of weights (m,), normalised, and log mixing weights (M,).

    `factors` (m,) multiply the bandwidths of the kernels at each centre.
    """
    weight = weight / weight.sum()
    origin = weight @ centres
    centres = centres - origin
    single = inverse_tril.dim() == 1
    diagonal = inverse_tril[None] if single else inverse_tril.diagonal(dim1=1, dim2=2)
    constant = log_mixing + diagonal.log().sum(1) - centres.shape[1] / 2 * math.log(math.tau)
    kernels = Kernels(inverse_tril, origin, centres, inverse_tril)
    c = kernels.whiten(centres)
    squares = c.square().sum(2) / 2
    ones = torch.ones_like(squares)
    if factors is not None:
        sharpness = factors.square().reciprocal()
        kernels = kernels._replace(sharpness=sharpness)
        squares = squares * sharpness + centres.shape[1] * factors.log()
        c, ones = c * sharpness[:, None], ones * sharpness
    offset = constant[:, None] + weight.log() - squares
    right = torch.cat([c, offset[..., None], ones[..., None]], 2)
    return kernels._replace(right=right.transpose(1, 2))


def inverses(scale_tril: Tensor) -> Tensor:
    """Inverses of lower triangular matrices, (M, d, d)."""
    identity = torch.eye(scale_tril.shape[1], dtype=scale_tril.dtype, device=scale_tril.device)
    return torch.linalg.solve_triangular(scale_tril, identity.expand_as(scale_tril), upper=False)


def evaluate_kernels(
    kernels: Kernels,
    x: Tensor,
    score: bool,
    without: Tensor | None = None,
    log_others: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Log-densities (n,) and, with `score`, scores (n, d), in the precision of x.

    `without` (n,) is a centre that each row leaves out, which keeps the fraction exp(`log_others`)
    (m,) of the total weight.
    """
    size = max(1, min(_fitting.CHUNK, PAIRS) // kernels.right[:, 0].numel())

    def values_of(number: int, rows: Tensor) -> tuple[Tensor, ...]:
        centred = rows.double() - kernels.origin
        logits = kernels.logits(centred)
        if without is not None and log_others is not None:
            out = without[number * size : number * size + len(rows)]
            at = torch.arange(len(rows), device=rows.device)
            logits[:, at, out] = -math.inf
            logits -= log_others[out][:, None]
        return tuple(value.to(x.dtype) for value in _sums(kernels, centred, logits, score))

    parts = itertools.starmap(values_of, enumerate(x.split(size)))
    joined: tuple[Tensor, ...] = _fitting.join_parts(parts, len(x))
    return joined


def _sums(kernels: Kernels, rows: Tensor, logits: Tensor, score: bool) -> tuple[Tensor, ...]:
    """The log-sum-exp over all kernels, and its gradient with respect to the rows."""
    top = logits.detach().amax(2).amax(0)
    weight = exp_of_shifted_(logits.sub_(top[:, None]))
    if not score:
        return (top + weight.sum(2).sum(0).log(),)
    d = rows.shape[1]
    centres = torch.nn.functional.pad(kernels.centres, (0, 1), value=1.0)
    if kernels.sharpness is not None:
        centres = torch.cat([centres * kernels.sharpness[:, None], centres[:, d:]], 1)
    sums = torch.mm(weight.flatten(0, 1), centres).view(*weight.shape[:2], centres.shape[1])
    total = sums[..., -1:].sum(0)
    scores = kernels.weighted_sum(sums[..., :d] - sums[..., d : d + 1] * rows) / total
    return top + total[:, 0].log(), scores


# ------------------------------------------------------------------------------
# Covariances of several scales, by expectation-maximisation
# ------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """Sufficient statistics of a step of EM, each row left out of the kernels in turn."""

    log_likelihood: float  # in nats per row
    amount: Tensor  # (M,), rows assigned to each scale
    scatter: Tensor  # (M, d, d), of rows around centres


def fit_scales(
    z: Tensor, w: Tensor, n_scales: int, factor: float | None
) -> tuple[Tensor, Tensor, list[float]]:
    """Covariances (M, d, d) and mixing weights (M,) for standardised rows z (n, d), weights w (n,).

    The initial covariances are multiples of the shrunk correlation matrix of the columns; EM runs
    on rows whitened by that matrix. The iterate of the largest likelihood is returned, followed by
    the leave-one-out log-likelihoods of all iterates, in nats per row.
    """
    scale_tril = _correlation_tril(z, w)
    z = torch.linalg.solve_triangular(scale_tril, z.t(), upper=False).t().contiguous()
    if factor is None:
        factor = best_factor(z, w, STAGES[0][0])
    # The smallest and the largest initial scale, relative to the single bandwidth of largest
    # likelihood. That bandwidth is closer to the largest: it has to cover rows far from all others.
    initial_scales = (0.25, 2.5)
    low, high = (math.log(factor * end) for end in initial_scales)
    sizes = torch.linspace(low, high, n_scales, dtype=z.dtype, device=z.device).exp()
    covariances = torch.diag_embed(sizes.square()[:, None].expand(-1, z.shape[1]))
    mixing_weights = torch.full_like(sizes, 1 / n_scales)
    path: list[float] = []
    for n_rows, n_steps in STAGES:
        index, count = rows_to_leave_out(w, max(min(n_rows, MAX_PAIRS // len(z)), 1))
        if len(z) < 2 or not z.shape[1]:
            break
        best, current = -math.inf, (covariances, mixing_weights)
        for _ in range(n_steps):
            expected = expected_statistics(z, w, index, count, *current)
            path.append(expected.log_likelihood)
            gain = expected.log_likelihood - best
            if gain > 0:  # because of the prior a step may lower the likelihood
                best, (covariances, mixing_weights) = expected.log_likelihood, current
            if gain < TOLERANCE:
                break
            current = update(expected, *current)
    return scale_tril @ covariances @ scale_tril.t(), mixing_weights, path


def _correlation_tril(z: Tensor, w: Tensor) -> Tensor:
    """Lower Cholesky factor of the shrunk correlations of standardised rows."""
    if not z.shape[1]:
        return z.new_zeros(0, 0)
    correlation = (z * w[:, None]).t() @ z / w.sum()
    # With two rows all correlations are +-1, for which the estimate is no shrinkage.
    shrinkage = max(ledoit_wolf(z, w, correlation), 1 / float(w.sum()))
    correlation = correlation * (1 - shrinkage)
    correlation.diagonal().fill_(1.0)
    return torch.linalg.cholesky(correlation)


def expected_statistics(
    z: Tensor,
    w: Tensor,
    index: Tensor,
    count: Tensor,
    covariances: Tensor,
    mixing_weights: Tensor,
) -> Statistics:
    """Expected statistics of the rows `index`, weighted by `count`; all rows are centres."""
    kernels = prepare(z, w, inverses(torch.linalg.cholesky(covariances)), mixing_weights.log())
    log_others = (1 - w[index] / w.sum()).log()
    ones = torch.nn.functional.pad(kernels.centres, (0, 1), value=1.0)
    n_scales, d = len(mixing_weights), z.shape[1]
    value, amount = 0.0, z.new_zeros(n_scales)
    scatter, centre_weight = torch.zeros_like(covariances), z.new_zeros(n_scales, len(z))
    for part in torch.arange(len(index), device=z.device).split(max(1, PAIRS // len(z))):
        rows = kernels.centres[index[part]]
        logits = kernels.logits(rows)
        logits[:, torch.arange(len(part), device=z.device), index[part]] = -math.inf
        top = logits.amax(2).amax(0)
        weight = exp_of_shifted_(logits.sub_(top[:, None]))
        sums = torch.mm(weight.flatten(0, 1), ones).view(n_scales, len(part), d + 1)
        total = sums[..., d].sum(0)
        value += float(count[part] @ (top + total.log() - log_others[part]))
        scale = count[part] / total
        centre_weight += torch.matmul(scale, weight)
        sums *= scale[:, None]
        amount += sums[..., d].sum(1)
        cross = torch.matmul(rows.t(), sums[..., :d] - rows * sums[..., d:] / 2)
        scatter -= cross + cross.transpose(1, 2)
    for m, column in enumerate(centre_weight):
        scatter[m] += (kernels.centres.t() * column) @ kernels.centres
    return Statistics(value / float(count.sum()), amount, scatter)


def update(
    expected: Statistics,
    covariances: Tensor,
    mixing_weights: Tensor,
    shrinkage_rows: float = SHRINKAGE_ROWS,
    mixing_rows: float = MIXING_ROWS,
    floor: float = VARIANCE_FLOOR,
) -> tuple[Tensor, Tensor]:
    """The M-step: covariances and mixing weights given the statistics and the prior rows."""
    count, d = expected.amount, expected.scatter.shape[1]
    identity = torch.eye(d, dtype=count.dtype, device=count.device)
    safe = count.clamp_min(MIN_COUNT)[:, None, None]
    trace = expected.scatter.diagonal(dim1=1, dim2=2).sum(1).clamp_min(0)[:, None, None]
    centre = trace / (d * safe) * identity
    shrunk = (expected.scatter + shrinkage_rows * centre) / (safe + shrinkage_rows)
    regularised = (shrunk + shrunk.transpose(1, 2)) / 2 + floor * identity
    covariances = torch.where((count > MIN_COUNT)[:, None, None], regularised, covariances)
    mixing_weights = (count + mixing_rows) / (count.sum() + len(count) * mixing_rows)
    return covariances, mixing_weights


# ------------------------------------------------------------------------------
# One bandwidth, by leave-one-out likelihood
# ------------------------------------------------------------------------------

# The grid of factors before the line search: each twice the one before.
FACTORS = tuple(0.01 * 2**k for k in range(9))

# Most rows that are left out in turn, and the largest weight of one, in medians.
MAX_ROWS, MOST_WEIGHT = 2000, 3.0


def best_factor(z: Tensor, w: Tensor, max_rows: int | None = None) -> float:
    """Bandwidth of largest leave-one-out likelihood within `FACTORS`, for standardised rows (n, d).

    Rows are distinct, and have the weights w (n,), of mean 1.
    """
    index, count = rows_to_leave_out(w, max_rows)
    if len(z) < 2 or not z.shape[1]:
        return 1.0
    scores = _grid_scores(z, w, index, count)
    return _line_search(scores, lambda factor: log_likelihood(z, w, index, count, factor))


def _line_search(scores: Sequence[float], likelihood: Callable[[float], float]) -> float:
    """The factor of largest likelihood, by a line search around the best of `FACTORS`."""
    top = max(range(len(FACTORS)), key=scores.__getitem__)
    low, high = FACTORS[max(top - 1, 0)], FACTORS[min(top + 1, len(FACTORS) - 1)]
    # Tolerance of the logarithm of the factor.
    bandwidth_tolerance = 0.02
    optimum = minimize_scalar(
        lambda log_factor: -likelihood(math.exp(log_factor)),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": bandwidth_tolerance},
    )
    return math.exp(optimum.x)


def squared_distances(z: Tensor, squared: Tensor, part: Tensor) -> Tensor:
    """From the rows `part` to all rows of z, whose squared norms are `squared`, (k, n)."""
    return torch.addmm(squared, z[part], z.t(), alpha=-2).add_(squared[part][:, None])


def rows_to_leave_out(w: Tensor, max_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows to leave out and their weights: all, or some evenly spaced in cumulative weight.

    Weights are limited: a row of which there are a hundred copies would decide on the bandwidth
    alone, by how far it is from all others.
    """
    w = w.clamp(max=MOST_WEIGHT * float(w.median()))
    total, n = float(w.sum()), MAX_ROWS if max_rows is None else max_rows
    if len(w) <= n:
        return torch.arange(len(w), device=w.device), w
    place = (torch.arange(n, dtype=w.dtype, device=w.device) + 0.5) * (total / n)
    chosen = torch.searchsorted(w.cumsum(0), place, right=True).clamp_(max=len(w) - 1)
    index, count = chosen.unique_consecutive(return_counts=True)
    return index, count.to(w.dtype)


def log_likelihood(z: Tensor, w: Tensor, index: Tensor, count: Tensor, factor: float) -> float:
    """Leave-one-out log-likelihood of the rows `index`, weighted by `count`, in nats."""
    total = 0.0
    for rows, distance, nearest in _distances(z, index):
        kernel = exp_of_shifted_(distance.mul_(-0.5 / factor**2))
        total += _score(kernel @ w, nearest, w, index[rows], count[rows], z, factor)
    return total


def _grid_scores(z: Tensor, w: Tensor, index: Tensor, count: Tensor) -> list[float]:
    """:func:`log_likelihood` at all `FACTORS`: halving the bandwidth takes the fourth power."""
    scores = [0.0] * len(FACTORS)
    for rows, distance, nearest in _distances(z, index):
        kernel = distance.mul_(-0.5 / FACTORS[-1] ** 2).exp_()
        for k in reversed(range(len(FACTORS))):
            scores[k] += _score(kernel @ w, nearest, w, index[rows], count[rows], z, FACTORS[k])
            kernel.square_().square_()
    return scores


def _distances(z: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Squared distances of chunks of rows to all rows, relative to the nearest one.

    Yields the rows, the distances less `nearest`, and `nearest` itself. The distance of a row to
    itself is infinite.
    """
    squared = z.square().sum(1)
    size = max(1, PAIRS // len(z))
    for start in range(0, len(index), size):
        rows = slice(start, start + size)
        part = index[rows]
        distance = squared_distances(z, squared, part)
        place = torch.arange(len(part), device=z.device)
        distance[place, part] = math.inf
        nearest = distance.amin(1).clamp_(min=0)
        yield rows, distance.sub_(nearest[:, None]), nearest


def _score(
    density: Tensor, nearest: Tensor, w: Tensor, index: Tensor, count: Tensor, z: Tensor, h: float
) -> float:
    others = w.sum() - w[index]
    value = density.log() - nearest / (2 * h**2) - others.log() - z.shape[1] * math.log(h)
    return float(count @ value)


# ------------------------------------------------------------------------------
# Bandwidths that differ from row to row
# ------------------------------------------------------------------------------


def neighbour_distances(z: Tensor, k: int) -> Tensor:
    """Distances of distinct rows z (n, d) to their k-th nearest others over their median, (n,).

    If all distances are 0, the result is 1 for every row.
    """
    squared, of_parts = z.square().sum(1), []
    place = min(k + 1, len(z)) - 1
    for part in torch.arange(len(z), device=z.device).split(max(1, PAIRS // len(z))):
        distance = squared_distances(z, squared, part)
        distance[torch.arange(len(part), device=z.device), part] = 0.0
        near = distance.clamp_(min=0).topk(place + 1, dim=1, largest=False).values
        of_parts.append(near[:, place].sqrt())
    distances = torch.cat(of_parts)
    away = distances > 0
    if not away.any():
        return torch.ones_like(distances)
    (middle,) = weighted_quantiles(distances[away], torch.ones_like(distances[away]), (0.5,))
    # Least distance to a neighbour, relative to the median of the rows.
    least_distance = 0.1
    return (distances / middle).clamp_(min=least_distance)


def best_common_factor(z: Tensor, w: Tensor, factors: Tensor) -> float:
    """What to multiply `factors` (n,) by for the largest leave-one-out likelihood of rows z."""
    # Rows that are left out in turn for the common factor of the bandwidths.
    max_local_rows = 500
    index, count = rows_to_leave_out(w, max_local_rows)
    if len(z) < 2 or not z.shape[1]:
        return 1.0
    distance = squared_distances(z, z.square().sum(1), index)
    place = torch.arange(len(index), device=z.device)
    distance.clamp_(min=0)[place, index] = 0.0
    distance *= factors.square().reciprocal() / -2
    log_weight = (w.log() - z.shape[1] * factors.log()).expand(len(index), -1).clone()
    log_weight[place, index] = -math.inf

    def likelihood(factor: float) -> float:
        logits = distance / factor**2 + log_weight
        top = logits.amax(1)
        inside = top + exp_of_shifted_(logits.sub_(top[:, None])).sum(1).log()
        return float(count @ inside) / float(count.sum()) - z.shape[1] * math.log(factor)

    return _line_search([likelihood(factor) for factor in FACTORS], likelihood)


class KernelDensity(Distribution):
    r"""A kernel density estimate: normal kernels of one bandwidth per column or of several scales.

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
        Weights of the centres, non-negative, not all zero; w is these divided by their sum. None:
        all equal.
    covariances : Tensor of shape (M, d, d) or None, default=None
        S, symmetric and positive definite, of a kernel of several scales. Pass either these or
        `bandwidth`.
    mixing_weights : Tensor of shape (M,) or None, default=None
        Weights of the scales, non-negative, not all zero; a is these divided by their sum. None:
        all equal.
    factors : Tensor of shape (m,) or None, default=None
        Factors f of the bandwidths at each centre, positive: the standard deviations of kernel j
        are f_j h_i. None: all one.

    Attributes
    ----------
    centres : Tensor of shape (m, d)
        Centres of positive weight.
    bandwidth : Tensor of shape (d,), or None
        As given.
    weights : Tensor of shape (m,)
        Normalised weights of the centres.
    scale_tril : Tensor of shape (M, d, d), or None
        Lower Cholesky factors of the covariances with a positive mixing weight.
    mixing_weights : Tensor of shape (M,), or None
        Normalised weights of the scales.
    factors : Tensor of shape (m,), or None
        Factors at the centres of positive weight.

    Notes
    -----
    A row costs M m d multiplications and M m exponentials. Distances are computed in float64 from
    products, relative to the mean of the centres: they are accurate to rounding where rows and
    centres are within 1e6 bandwidths of it.

    References
    ----------
    Parzen (1962), "On estimation of a probability density function and mode", Annals of
    Mathematical Statistics 33(3).

    Duin (1976), "On the choice of smoothing parameters for Parzen estimators of probability density
    functions", IEEE Transactions on Computers 25(11) (the bandwidth of a fit).

    Breiman, Meisel and Purcell (1977), "Variable kernel estimates of multivariate densities",
    Technometrics 19(2) (bandwidths by distances to neighbours).

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

    Two scales fit a peak and its tails:

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
        mixing_weights: Tensor | None = None,
        factors: Tensor | None = None,
    ):
        if not (isinstance(centres, Tensor) and centres.is_floating_point() and centres.dim() == 2):
            raise ValueError("centres must be a floating-point tensor of shape (m, d).")
        if len(centres) == 0 or not centres.isfinite().all():
            raise ValueError("centres must be at least one row, and finite.")
        if (bandwidth is None) == (covariances is None):
            raise ValueError("Pass either bandwidth or covariances.")
        if covariances is None and mixing_weights is not None:
            raise ValueError("mixing_weights belong to covariances: pass both, or a bandwidth.")
        if covariances is not None and factors is not None:
            raise ValueError("factors are of a bandwidth: pass no covariances with them.")
        weight = _non_negative(weights, len(centres), "weights", "centres").to(centres.device)
        self.domain = Real((centres.shape[1],))
        self.centres = centres.detach()[weight > 0].clone()
        self.weights = (weight / weight.sum())[weight > 0].to(centres)
        self.bandwidth: Any = None  # a tensor; for several scales instead:
        self.scale_tril: Tensor | None = None
        self.mixing_weights: Tensor | None = None
        self.factors: Tensor | None = None
        if covariances is None:
            self.bandwidth = positive(bandwidth, self.centres[0], "bandwidth")
            if factors is not None:
                factors = positive(factors, centres.new_ones(len(centres)), "factors")
                self.factors = factors[(weight > 0).to(factors.device)].to(self.centres)
            return
        mixing, covariances = _check_scales(covariances, mixing_weights, centres.shape[1])
        self.scale_tril = torch.linalg.cholesky(covariances).to(centres).contiguous()
        self.mixing_weights = mixing.to(centres)

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        bandwidth: float | str = "auto",
        *,
        n_scales: int = 1,
        unit: Tensor | None = None,
        n_neighbours: int | None = None,
    ) -> KernelDensity:
        r"""Place a kernel at each row and maximise the leave-one-out likelihood.

        The bandwidths are a factor times the standard deviations of the columns, and 1 for columns
        that vary by no more than rounding errors.

        The covariances and mixing weights of several scales maximise the penalised leave-one-out
        likelihood by expectation-maximisation:

        .. math:: S_m = \frac{C_m + \nu t_m R}{n_m + \nu} + \epsilon R,
            \qquad a_m = \frac{n_m + 1}{n + M}

        with :math:`C_m` the expected scatter matrix of rows around other rows in scale m and
        :math:`n_m` the expected number of its rows. The prior is worth :math:`\nu = 10` rows; its
        centre is the covariance R of all rows, shrunk as in :meth:`Gaussian.fit` (by at least 1/n),
        times :math:`t_m = \mathrm{tr}(R^{-1} C_m) / (d n_m)`, which gives it the size of
        :math:`C_m / n_m`. The initial covariances are R times squares of numbers from 1/4 to 5/2 of
        the factor. :math:`\epsilon = 10^{-5}` keeps the narrowest kernel at 0.003 standard
        deviations of the columns.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero: the importance of rows, on any scale. Equal rows are one row
            of their total weight.
        bandwidth : float > 0 or "auto", default="auto"
            The factor, in standard deviations. ``"auto"`` maximises the leave-one-out likelihood
            between 0.01 and 2.56. A row is left out with all its copies, and counts for at most
            three rows of median weight: what lies between rows does not depend on how often one of
            them was copied. Rows far from all others raise the factor. If there are more than 2,000
            distinct rows, only 2,000 of them, evenly spaced in their order, are left out in turn.
        n_scales : int >= 1, default=1
            M. One scale is a bandwidth for each column, without covariances. For more scales, up
            to 20 steps of EM leave out 500 rows in turn and up to 8 more leave out 2,000, or fewer
            if there are more than 20,000 rows; the factor is then relative to R.
        unit : Tensor of shape (d,) or None, default=None
            Numbers that are multiplied by the factor to obtain the bandwidths, positive where a
            column varies; for one scale only. None: the standard deviations.
        n_neighbours : int >= 1 or None, default=None
            If given, bandwidths differ from row to row, in proportion to the distance to the
            `n_neighbours`-th nearest other distinct row (in units of `unit`), or to a tenth of the
            median distance if that is larger; for one scale only. The factor maximises the
            leave-one-out likelihood of 500 rows. None: all equal.
        """
        whole_number("n_scales", n_scales, 1)
        if n_neighbours is not None:
            whole_number("n_neighbours", n_neighbours, 1)
            if n_scales > 1:
                raise ValueError("n_neighbours is for one scale.")
        rows, w = positive_weight_rows(x, weight)
        mean, variance = moments(rows, w)
        varying = varies(rows, x.dtype)
        units = variance.sqrt()
        if unit is not None:
            if n_scales > 1:
                raise ValueError("unit is for one scale: covariances have units of their own.")
            units = positive(torch.where(varying, unit.to(units), 1.0), mean, "unit")
        scale = units[varying]
        z = (rows - mean)[:, varying] / scale
        factor: float | None = None
        if isinstance(bandwidth, str) and bandwidth != "auto":
            raise ValueError(f'bandwidth must be "auto" or a positive factor, got {bandwidth!r}.')
        if bandwidth != "auto":
            factor = float(positive(bandwidth, mean.new_ones(()), "bandwidth"))
        if n_scales == 1:
            factors = None if n_neighbours is None else neighbour_distances(z, n_neighbours)
            if factor is None:
                factor = best_factor(z, w) if factors is None else best_common_factor(z, w, factors)
            h = torch.where(varying, factor * units, 1.0)
            factors = None if factors is None else factors.to(x.dtype)
            return cls(rows.to(x.dtype), h.to(x.dtype), w, factors=factors)
        standardised, mixing, _ = fit_scales(z, w, int(n_scales), factor)
        identity = torch.eye(len(varying), dtype=z.dtype, device=z.device)
        covariances = identity.repeat(n_scales, 1, 1)
        at = varying.nonzero()[:, 0]
        covariances[:, at[:, None], at] = standardised * torch.outer(scale, scale)
        # Factorised in float64: in single precision a matrix near the floor may be singular.
        fitted = cls(rows, None, w, covariances=covariances, mixing_weights=mixing)
        return fitted.to(x.device, x.dtype)

    # ---------------------------------------------------------------- the distribution

    @property
    def covariances(self) -> Tensor:
        """S, the covariances of the scales, (M, d, d); one diagonal matrix for a bandwidth."""
        return self.kernel_covariances.to(self.centres)

    @property
    def kernel_covariances(self) -> Tensor:
        """:attr:`covariances` in float64."""
        if self.scale_tril is None:
            return self.bandwidth.double().square().diag()[None]
        scale_tril = self.scale_tril.double()
        return scale_tril @ scale_tril.transpose(1, 2)

    def centres_in_bandwidths(self) -> tuple[Tensor, Tensor, Tensor]:
        """(centres - origin) / bandwidth, the origin and the bandwidth, in float64."""
        h, centres = self.bandwidth.double(), self.centres.double()
        origin = self.weights.double() @ centres
        return (centres - origin) / h, origin, h

    def with_broad_scale(self, covariance: Tensor, share: float) -> KernelDensity:
        """The kernels of several scales and one scale more, of the weight `share`.

        With the covariance (d, d) of the rows, no row is less likely than under one normal
        distribution of that covariance by more than d / 2 - log `share` nats.
        """
        if self.mixing_weights is None:
            raise ValueError("Only kernels of several scales take one more.")
        mixing = self.mixing_weights.double()
        return KernelDensity(
            self.centres,
            None,
            self.weights,
            covariances=torch.cat([self.covariances.double(), covariance.double()[None]]),
            mixing_weights=torch.cat([(1 - share) * mixing, mixing.new_tensor([share])]),
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(n, dtype=torch.float64, **kind).to(self.weights.device)
        chosen = draw_index(self.weights.double(), u)
        centres = self.centres[chosen]
        z = torch.randn(n, self.centres.shape[1], dtype=self.centres.dtype, **kind)
        z = z.to(centres.device)
        if self.scale_tril is None:
            factors = 1.0 if self.factors is None else self.factors[chosen, None]
            return centres + z * self.bandwidth * factors
        assert self.mixing_weights is not None
        v = torch.rand(n, dtype=torch.float64, **kind).to(self.weights.device)
        scale = draw_index(self.mixing_weights.double(), v)
        for m, scale_tril in enumerate(self.scale_tril):
            rows = (scale == m).nonzero()[:, 0]
            centres[rows] += z[rows] @ scale_tril.t()
        return centres

    def log_prob(self, x: Tensor, without: Tensor | None = None) -> Tensor:
        """Normalised log-density of each row in nats, (n,); exact.

        Parameters
        ----------
        x : Tensor of shape (n, d)
        without : integer Tensor of shape (n,) or None, default=None
            Number of the centre that is left out for each row, whatever its weight: the weights of
            the others are normalised again. For rows that are centres, or noisy copies of them.
        """
        return self._evaluate(x, without, score=False)[0]

    def score(self, x: Tensor, without: Tensor | None = None) -> Tensor:
        """Gradient of the log-density, sum_m r_m S_m^-1 (mean_m - x), of the shape of x.

        r_m is the responsibility of scale m at x, and mean_m the mean of the centres weighted by
        the responsibilities of their kernels; `without` is as in :meth:`log_prob`.
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
            inverse, log_mixing = self.bandwidth.double().reciprocal(), weights.new_zeros(1)
        else:
            assert self.mixing_weights is not None
            inverse = inverses(self.scale_tril.double())
            log_mixing = self.mixing_weights.double().log()
        factors = None if self.factors is None else self.factors.double()
        kernels = prepare(self.centres.double(), weights, inverse, log_mixing, factors)
        if without is None:
            return evaluate_kernels(kernels, x, score)
        self._check_without(x, without)
        return evaluate_kernels(
            kernels, x, score, without.long(), torch.log1p(-weights / weights.sum())
        )

    def _check_without(self, x: Tensor, without: Any) -> None:
        if (
            not isinstance(without, Tensor)
            or without.shape != x.shape[:1]
            or (without.is_floating_point() or without.dtype == torch.bool)
        ):
            raise ValueError("without must be integers of shape (n,), one for each row of x.")
        if not len(without):
            return
        if int(without.min()) < 0 or int(without.max()) >= len(self.weights):
            raise ValueError(f"without must be numbers of centres, 0 to {len(self.weights) - 1}.")
        if len(self.weights) == 1:
            raise ValueError("The only centre cannot be left out: no kernel would remain.")

    def tempered(self, temperature: float) -> Envelope:
        """The kernels at a temperature, weighted to lie above the power of the density."""
        check_temperature(temperature)
        log_weights, d = self.weights.double().log(), self.centres.shape[1]
        if self.scale_tril is not None:
            return self._scales_at_temperature(log_weights, temperature)
        volumes = torch.full_like(log_weights, _log_volume(self.bandwidth))
        if self.factors is not None:
            volumes = volumes + d * self.factors.double().log()
        bounds = log_integrals_at_temperature(volumes, d, temperature)
        weights, log_bound = weights_at_temperature(log_weights, bounds, temperature)
        h = math.sqrt(temperature) * self.bandwidth
        return Envelope(KernelDensity(self.centres, h, weights, factors=self.factors), log_bound)

    def _scales_at_temperature(self, log_weights: Tensor, temperature: float) -> Envelope:
        """The same for a kernel of several scales, each of which is there at every centre."""
        assert self.scale_tril is not None
        assert self.mixing_weights is not None
        diagonals = self.scale_tril.diagonal(dim1=1, dim2=2)
        volumes = log_weights.new_tensor([_log_volume(h) for h in diagonals])
        bounds = log_integrals_at_temperature(volumes, diagonals.shape[1], temperature)
        mixing, of_scales = weights_at_temperature(self.mixing_weights.log(), bounds, temperature)
        at_centres = torch.zeros_like(log_weights)
        weights, of_centres = weights_at_temperature(log_weights, at_centres, temperature)
        covariances = temperature * self.kernel_covariances
        wider = KernelDensity(
            self.centres, None, weights, covariances=covariances, mixing_weights=mixing
        )
        return Envelope(wider, of_scales + of_centres)

    def convolved(self, sigma: float | Tensor) -> KernelDensity:
        r"""The convolution with normal noise, which adds :math:`\sigma^2` to all variances.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of the noise in each column, non-negative, in the units of x.
        """
        if self.factors is not None:
            raise TypeError("Kernels whose bandwidths differ by factors have no common noise.")
        noise = positive(sigma, self.centres[0], "sigma", zero=True)
        convolved = copy.copy(self)
        if self.bandwidth is not None:
            convolved.bandwidth = torch.hypot(self.bandwidth, noise)
        else:
            covariances = self.kernel_covariances + noise.double().square().diag()
            convolved.scale_tril = torch.linalg.cholesky(covariances).to(noise).contiguous()
        return convolved

    @property
    def has_convolved(self) -> bool:
        """Whether :meth:`convolved` has a closed form: not if bandwidths differ by factors."""
        return self.factors is None

    def given(self, clamp: Clamp) -> Given:
        """Exact conditional distributions given the clamped entries, one for each row."""
        return KernelGiven(self, clamp) if self.scale_tril is None else ScalesGiven(self, clamp)

    def marginal(self, columns: Tensor) -> KernelDensity:
        """The marginal distribution of some columns."""
        centres = self.centres[:, columns]
        if self.bandwidth is not None:
            h = self.bandwidth[columns]
            return KernelDensity(centres, h, self.weights, factors=self.factors)
        covariances = self.kernel_covariances[:, columns[:, None], columns]
        mixing = self.mixing_weights
        return KernelDensity(
            centres, None, self.weights, covariances=covariances, mixing_weights=mixing
        )

    def __repr__(self) -> str:
        scales = "" if self.scale_tril is None else f", {len(self.scale_tril)} scales"
        n, d = self.centres.shape
        return f"KernelDensity({n} centres, {d} columns{scales})"


def _log_volume(scale: Tensor) -> float:
    """log det(2 pi Sigma) / 2 of a covariance, from the diagonal of its Cholesky factor."""
    return float(scale.double().log().sum()) + len(scale) / 2 * math.log(math.tau)


def _non_negative(numbers: Any, n: int, name: str, of: str) -> Tensor:
    """Non-negative numbers in float64, not all zero; ones for None."""
    if numbers is None:
        return torch.ones(n, dtype=torch.float64)
    if not isinstance(numbers, Tensor) or numbers.shape != (n,):
        raise ValueError(f"{name} must be a tensor of shape ({n},), one for each of the {of}.")
    number = numbers.detach().double()
    if not (number.isfinite() & (number >= 0)).all() or not number.any():
        raise ValueError(f"{name} must be finite and non-negative, and not all zero.")
    return number


def _check_scales(covariances: Any, mixing_weights: Any, d: int) -> tuple[Tensor, Tensor]:
    """Normalised mixing weights and covariances, in float64, of the scales of positive weight."""
    if (
        not isinstance(covariances, Tensor)
        or covariances.shape[1:] != (d, d)
        or not len(covariances)
    ):
        raise ValueError(f"covariances must be a tensor of shape (M, {d}, {d}).")
    matrices = _positive_definite(covariances.detach().double())
    mixing = _non_negative(mixing_weights, len(matrices), "mixing_weights", "covariances")
    mixing = mixing.to(matrices.device)
    return mixing[mixing > 0] / mixing.sum(), matrices[mixing > 0]
