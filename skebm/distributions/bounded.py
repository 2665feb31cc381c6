"""Distributions on bounded domains: truncated normal and uniform."""

from __future__ import annotations

import math
from numbers import Real as RealNumber
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.special import log_ndtr

from skebm.base import Clamp, Domain, Mixed, Real
from skebm.distributions._fitting import (
    moments,
    positive,
    positive_weight_rows,
    usable_scale,
    varies,
)
from skebm.distributions.base import Distribution
from skebm.distributions.conditionals import Given, IndependentGiven

LOG_SQRT_TAU = math.log(math.tau) / 2  # log sqrt(2 pi)

# An interval whose width times |middle| is below this uses an expansion around its middle.
NARROW = 1e-2

# Nodes of the quadrature, and the log-density relative to the mode, in nats, where it ends.
N_NODES, DEPTH = 128, 40.0

# Most Newton steps of a fit.
MAX_STEPS = 100

# Largest scale of a fit, in standard deviations of the column.
LARGEST_SCALE = 30.0


def log_mass(a: Tensor, b: Tensor) -> Tensor:
    r"""log(Phi(b) - Phi(a)) for a < b, either of which may be infinite."""
    flip = a > -b
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)  # more to the left
    top, bottom = log_ndtr(high), log_ndtr(low)
    wide = top + torch.log(-torch.expm1(bottom - top))
    # The difference of nearly equal numbers cancels: expand phi about the middle instead.
    width, middle = b - a, (a + b) / 2
    narrow = width * middle.abs().clamp(min=1) < NARROW
    middle, width = torch.where(narrow, middle, 0.0), torch.where(narrow, width, 1.0)
    curved = torch.log1p((middle.square() - 1) * width.square() / 24)
    expanded = width.log() + curved - middle.square() / 2 - LOG_SQRT_TAU
    return torch.where(narrow, expanded, wide)


def inverse_log_ndtr(y: Tensor) -> Tensor:
    """The z with log Phi(z) = y, for y < 0."""
    largest = 1 - torch.finfo(y.dtype).eps / 2
    near = torch.special.ndtri(y.exp().clamp(max=largest))
    # Where exp(y) underflows: Newton's method from the leading term of log Phi.
    far = y < -500
    target = torch.where(far, y, -600.0)
    z = -(-2 * target - (-4 * math.pi * target).log()).sqrt()
    for _ in range(4):
        value = log_ndtr(z)
        z = z - (value - target) * (value + z.square() / 2 + LOG_SQRT_TAU).exp()
    return torch.where(far, z, near)


def truncated_mean(a: Tensor, b: Tensor) -> Tensor:
    """Mean of a standard normal variable truncated to [a, b]."""
    return quadrature(torch.zeros_like(a), torch.ones_like(a), a, b)[1]


def quadrature(
    tilt: Tensor, precision: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Integral of exp(tilt y - precision y^2 / 2) over [low, high], by Gauss-Legendre quadrature.

    All arguments are (d,). Returns the logarithm of the integral (d,), and under the normalised
    density the mean of y (d,) and the covariance matrix of (y, -y^2 / 2), (d, 2, 2). The moments
    are sums of positive terms, which do not cancel where the untruncated mean is far outside.
    """
    mode = torch.clamp(tilt / precision, low, high)
    gradient = (tilt - precision * mode).abs()  # at the mode; zero unless the mode is at a bound
    reach = 2 * DEPTH / (gradient + (gradient.square() + 2 * DEPTH * precision).sqrt())
    start, stop = torch.maximum(low, mode - reach), torch.minimum(high, mode + reach)
    node, node_weight = (tilt.new_tensor(v) for v in np.polynomial.legendre.leggauss(N_NODES))
    # t = y - mode, because y itself loses digits far from zero.
    middle, half = ((start - mode) + (stop - mode)) / 2, (stop - start) / 2
    t = middle[:, None] + half[:, None] * node
    gradient = tilt - precision * mode
    log_density = gradient[:, None] * t - precision[:, None] * t.square() / 2
    p = log_density.exp() * node_weight * half[:, None]
    total = p.sum(1)
    p = p / total[:, None]
    mean = (p * t).sum(1)
    centred = t - mean[:, None]
    # -y^2 / 2 relative to its value at the mean of y, then centred.
    quadratic = -centred * (t + mean[:, None] + 2 * mode[:, None]) / 2
    quadratic = quadratic - (p * quadratic).sum(1, keepdim=True)
    mixed = (p * centred * quadratic).sum(1)
    entries = (p * centred.square()).sum(1), mixed, mixed, (p * quadratic.square()).sum(1)
    log_total = total.log() + tilt * mode - precision * mode.square() / 2
    return log_total, mode + mean, torch.stack(entries, 1).view(-1, 2, 2)


def tilt_and_precision(low: Tensor, high: Tensor, largest_scale: float) -> tuple[Tensor, Tensor]:
    """Maximum-likelihood tilt and precision of columns of mean 0 and variance 1 on [low, high].

    All are (d,). The negative log-likelihood per row, F = log integral exp(t y - p y^2 / 2) +
    p / 2, is convex in the tilt t and the precision p. Newton steps are halved until F decreases,
    with p between 1 / largest_scale^2 and 1, because truncation does not increase a variance.
    """
    theta = torch.stack([torch.zeros_like(low), torch.ones_like(low)], 1)
    least = largest_scale**-2
    value, gradient, hessian = _objective(theta, low, high)
    for _ in range(MAX_STEPS):
        # Where the bound on the precision is active, only the tilt changes.
        at_bound = (theta[:, 1] <= least) & (gradient[:, 1] > 0)
        at_bound |= (theta[:, 1] >= 1) & (gradient[:, 1] < 0)
        step = _newton(gradient, hessian, at_bound)
        decrease = -(gradient * step).sum(1)
        active = decrease > 1e-14
        if not active.any():
            break
        size = torch.where(active, 1.0, 0.0).to(theta)
        for _ in range(60):
            trial = theta + size[:, None] * step
            trial[:, 1].clamp_(least, 1.0)
            new = _objective(trial, low, high)
            worse = active & ~(new[0] <= value + 1e-13 * (1 + value.abs()))
            if not worse.any():
                break
            size = torch.where(worse, size / 2, size)
        theta, (value, gradient, hessian) = trial, new
    return theta[:, 0], theta[:, 1]


def _objective(theta: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tilt, precision = theta.unbind(1)
    log_total, mean, hessian = quadrature(tilt, precision, low, high)
    square = hessian[:, 0, 0] + mean.square()
    return log_total + precision / 2, torch.stack([mean, (1 - square) / 2], 1), hessian


def _newton(gradient: Tensor, hessian: Tensor, at_bound: Tensor) -> Tensor:
    """Newton steps (d, 2); of the tilt alone where the precision is at a bound."""
    a, b, c = hessian[:, 0, 0], hessian[:, 0, 1], hessian[:, 1, 1]
    b = torch.where(at_bound, 0.0, b)
    # The Hessian is a covariance matrix; rounding must not make its determinant negative.
    determinant = (a * c - b.square()).clamp_min(1e-12 * a * c)
    tilt = -(c * gradient[:, 0] - b * gradient[:, 1]) / determinant
    precision = -(a * gradient[:, 1] - b * gradient[:, 0]) / determinant
    return torch.stack(
        [torch.where(at_bound, -gradient[:, 0] / a, tilt), torch.where(at_bound, 0.0, precision)], 1
    )


class TruncatedGaussian(Distribution):
    r"""Independent columns, each a normal distribution truncated to an interval.

    .. math:: \log q(x) = \sum_i \log N(x_i; \mu_i, \sigma_i^2)
        - \log\bigl(\Phi(\tfrac{u_i - \mu_i}{\sigma_i}) - \Phi(\tfrac{l_i - \mu_i}{\sigma_i})\bigr)

    inside all intervals, and minus infinity outside.

    Parameters
    ----------
    mean : Tensor of shape (d,)
        :math:`\mu`, finite floating-point numbers: the mean before truncation, inside the interval
        or outside.
    scale : Tensor of shape (d,) or float
        :math:`\sigma`, the standard deviation before truncation, positive.
    lower, upper : float, Tensor of shape (d,) or None, default=None
        l and u; None and infinite bounds leave a column unbounded on that side.

    Attributes
    ----------
    mean : Tensor of shape (d,)
    scale : Tensor of shape (d,)
        As given.
    lower, upper : Tensor of shape (d,)
        Infinite where there is no bound; always float64.
    domain : Real
        It has the bounds of the columns if all share them, and otherwise the narrowest single pair
        of bounds that contains all intervals.

    References
    ----------
    Cohen (1950), "Estimating the mean and variance of normal populations from singly truncated and
    doubly truncated samples", Annals of Mathematical Statistics 21(4).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import TruncatedGaussian
    >>> q = TruncatedGaussian(torch.zeros(1), 1.0, lower=0.0)
    >>> q.log_prob(torch.tensor([[0.0], [-1.0]]))  # log(2 / sqrt(2 pi)), nothing below the bound
    tensor([-0.2258,    -inf])
    >>> q.expectation  # sqrt(2 / pi)
    tensor([0.7979])
    >>> x = q.sample(20000, torch.Generator().manual_seed(0))
    >>> TruncatedGaussian.fit(x, lower=0.0).scale.round(decimals=1)
    tensor([1.])
    """

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor | float,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
    ):
        if not (isinstance(mean, Tensor) and mean.is_floating_point() and mean.dim() == 1):
            raise ValueError("mean must be a floating-point tensor of shape (d,).")
        if not mean.isfinite().all():
            raise ValueError("mean must be finite.")
        self.mean = mean.detach().clone()
        self.scale = positive(scale, self.mean, "scale")
        self.lower, self.upper = _bounds(lower, upper, self.mean)
        self.domain = _box(self.lower, self.upper)
        # Relative to the mode within the interval, so that squares of distant means do not cancel.
        self._mode = torch.clamp(self.mean.double(), self.lower, self.upper)
        z, a, b = self._z_scores(self._mode)
        log_density = -z.square() / 2 - log_mass(a, b) - self.scale.double().log()
        self._z_mode = z.to(mean)
        self._log_prob_mode = (log_density - math.log(math.tau) / 2).to(mean)

    def _z_scores(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z-scores of x and of the bounds, in float64."""
        mean, scale = self.mean.double(), self.scale.double()
        return (x - mean) / scale, (self.lower - mean) / scale, (self.upper - mean) / scale

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
    ) -> TruncatedGaussian:
        r"""Maximise the likelihood of rows, column by column.

        The log-likelihood is concave in :math:`\mu / \sigma^2` and :math:`1 / \sigma^2`, and
        Newton's method finds its maximum. :math:`\sigma` is at most 30 standard deviations of the
        column: for a column with an exponential or heavier tail, or with most mass near both
        bounds, the estimate would be infinite, with a mean infinitely far outside. A column that
        varies by no more than rounding errors gets its value as the mean and a standard deviation
        of 1.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows within the bounds.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero: the importance of rows, on any scale. Equal rows are one row
            of their total weight.
        lower, upper : float, Tensor of shape (d,) or None, default=None
            The bounds, as for the class.
        """
        rows, w = positive_weight_rows(x, weight)
        low, high = _bounds(lower, upper, rows[0])
        outside = ((x < low.to(x.dtype)) | (x > high.to(x.dtype))).any(1)
        if outside.any():
            raise ValueError(
                f"x must be within the bounds, but row {int(outside.nonzero()[0])} is not: clip "
                "the rows or widen the bounds."
            )
        mean, variance = moments(rows, w)
        varying = varies(rows, x.dtype)
        scale = usable_scale(variance, varying)
        a, b = (low - mean) / scale, (high - mean) / scale
        tilt, precision = tilt_and_precision(a[varying], b[varying], LARGEST_SCALE)
        mean[varying] += scale[varying] * tilt / precision
        scale[varying] /= precision.sqrt()
        return cls(mean.to(x.dtype), scale.to(x.dtype), low, high)

    # ---------------------------------------------------------------- the distribution

    @property
    def expectation(self) -> Tensor:
        """Mean of the truncated distribution, (d,)."""
        _, a, b = self._z_scores(self._mode)
        value = self.mean.double() + self.scale.double() * truncated_mean(a, b)
        return torch.clamp(value, self.lower, self.upper).to(self.mean)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(n, len(self.mean), dtype=torch.float64, **kind).to(self.mean.device)
        _, a, b = self._z_scores(self._mode)
        # Reflected where most of the mass is above the mean, because Phi is accurate in its lower
        # tail only.
        flip = a > -b
        a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
        z = inverse_log_ndtr(
            torch.logaddexp(log_ndtr(a), u.clamp_min(1e-300).log() + log_mass(a, b))
        )
        x = self.mean.double() + self.scale.double() * torch.where(flip, -z, z)
        x = torch.clamp(x, self.lower, self.upper).to(self.mean.dtype)
        return torch.clamp(x, self.lower.to(x.dtype), self.upper.to(x.dtype))

    def log_prob(self, x: Tensor) -> Tensor:
        t = (x - self._mode.to(x)) / self.scale.to(x)
        value = (self._log_prob_mode.to(x) - t * (t / 2 + self._z_mode.to(x))).sum(1)
        return value.masked_fill(~self._inside(x), -math.inf)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density, (mean - x) / scale^2; zero outside the bounds."""
        score = (self.mean.to(x) - x) / self.scale.to(x).square()
        return score * self._inside(x)[:, None]

    def _inside(self, x: Tensor) -> Tensor:
        # With the bounds rounded to the precision of x, in which rows at a bound were rounded too.
        return ((x >= self.lower.to(x)) & (x <= self.upper.to(x))).all(1)

    def given(self, clamp: Clamp) -> Given:
        """Conditionals given the clamped entries; the columns are independent of each other."""
        return IndependentGiven(self, clamp)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> TruncatedGaussian:
        """A copy on a device, in the given precision; the bounds stay in float64."""
        moved = super().to(device, dtype)
        moved.lower, moved.upper = self.lower.to(device), self.upper.to(device)
        moved._mode = self._mode.to(device)
        return moved


def _bounds(lower: Any, upper: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of each column in float64, infinite where there are none."""
    bounds = []
    for name, value, none in (("lower", lower, -math.inf), ("upper", upper, math.inf)):
        value = none if value is None else value
        if isinstance(value, RealNumber):
            value = torch.full_like(like, float(value), dtype=torch.float64)
        if not isinstance(value, Tensor) or value.shape != like.shape or value.isnan().any():
            raise ValueError(
                f"{name} must be None, a number or a tensor of shape {tuple(like.shape)}, one "
                "for each column, and not NaN."
            )
        bounds.append(value.detach().to(like.device, torch.float64).clone())
    low, high = bounds
    if not (low < high).all():
        raise ValueError("lower must be below upper in each column.")
    if (low == math.inf).any() or (high == -math.inf).any():
        raise ValueError("lower must be below infinity, and upper above minus infinity.")
    return low, high


def _box(lower: Tensor, upper: Tensor) -> Real:
    low, high = float(lower.min()), float(upper.max())
    return Real(
        tuple(lower.shape),
        low if math.isfinite(low) else None,
        high if math.isfinite(high) else None,
    )


class Uniform(Distribution):
    """The uniform distribution over a bounded domain; log q is minus infinity outside.

    Parameters
    ----------
    domain : Domain
        `Real` with both bounds, `Binary`, `Categorical`, or a `Mixed` of those.
    dtype : torch.dtype, default=torch.float32
        Precision of draws.
    device : torch.device or str, default="cpu"
        Device of draws.

    Raises
    ------
    ValueError
        If the domain is unbounded.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Real
    >>> from skebm.distributions import Uniform
    >>> q = Uniform(Real((2,), lower=0.0, upper=4.0))
    >>> q.log_prob(torch.tensor([[1.0, 3.0], [1.0, 5.0]])).exp()  # 1 / 16 inside
    tensor([0.0625, 0.0000])
    """

    def __init__(
        self,
        domain: Domain,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.log_volume = log_volume(domain)
        self.domain = domain
        self._like = torch.empty(0, dtype=dtype, device=device)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.domain.uniform(n, generator, dtype=self._like.dtype).to(self._like.device)

    def log_prob(self, x: Tensor) -> Tensor:
        inside = self.domain.contains(x)
        value = torch.full_like(inside, -self.log_volume, dtype=x.dtype)
        return value.masked_fill(~inside, -math.inf)

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def log_volume(domain: Any) -> float:
    """Log of the volume of a bounded domain, or of its number of states; else `ValueError`."""
    if not isinstance(domain, Domain):
        raise TypeError(f"Uniform takes a skebm.base.Domain, not {type(domain).__name__}.")
    if isinstance(domain, Mixed):
        return sum(log_volume(part) for part in domain.parts)
    if not isinstance(domain, Real):
        return domain.log_n_states
    lower, upper = domain.lower, domain.upper
    if lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        raise ValueError(
            f"There is no uniform distribution over {domain}: give it both bounds, or use "
            "skebm.distributions.Gaussian."
        )
    if not lower < upper:
        raise ValueError(f"The lower bound must be below the upper one, but not in {domain}.")
    return domain.n_columns * math.log(upper - lower)
