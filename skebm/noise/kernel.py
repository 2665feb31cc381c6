"""Kernel density estimates."""

from __future__ import annotations

import copy
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.noise import _scales
from skebm.noise._bandwidth import best_factor
from skebm.noise._fitting import live_rows, moments, pick, positive, varies
from skebm.noise._given import Given, KernelGiven, ScalesGiven
from skebm.noise.base import Noise
from skebm.noise.mixture import _positive_definite


class KernelDensity(Noise):
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
    >>> from skebm.noise import KernelDensity
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
        self.roots: Tensor | None = None
        self.shares: Tensor | None = None
        if covariances is None:
            self.bandwidth = positive(bandwidth, self.centres[0], "bandwidth")
            return
        share, covariances = _checked_scales(covariances, shares, centres.shape[1])
        self.roots = torch.linalg.cholesky(covariances).to(centres).contiguous()
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
        found, shares, _ = _scales.learn(z, w, int(n_scales), factor)
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
        if self.roots is None:
            return self.bandwidth.double().square().diag()[None]
        roots = self.roots.double()
        return roots @ roots.transpose(1, 2)

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
        if self.roots is None:
            return centres + z * self.bandwidth
        assert self.shares is not None
        v = torch.rand(n, dtype=torch.float64, **kind).to(self.weights.device)
        scale = pick(self.shares.double(), v)
        for m, root in enumerate(self.roots):
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
        return self._evaluate(x, without, slope=False)[0]

    def slope(self, x: Tensor, without: Tensor | None = None) -> Tensor:
        """Gradient of the log-density, sum_m S_m^-1 (share of m) (mean of its centres - x).

        Shares and means are those of the kernels at x; `without` is as in :meth:`log_prob`.
        """
        return self._evaluate(x, without, slope=True)[1]

    def log_prob_and_slope(self, x: Tensor, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one.

        `without` is as in :meth:`log_prob`.
        """
        value, slope = self._evaluate(x, without, slope=True)
        return value, slope

    def _evaluate(self, x: Tensor, without: Tensor | None, slope: bool) -> tuple[Tensor, ...]:
        weights = self.weights.double()
        if self.roots is None:
            maps, log_share = self.bandwidth.double().reciprocal(), weights.new_zeros(1)
        else:
            assert self.shares is not None
            maps, log_share = _scales.inverses(self.roots.double()), self.shares.double().log()
        kernels = _scales.prepare(self.centres.double(), weights, maps, log_share)
        if without is None:
            return _scales.evaluate(kernels, x, slope)
        self._check_without(x, without)
        counts = self.counts.double()
        stays = ((counts - 1).clamp(min=0) / counts).log()
        rest = (1 - counts.clamp(max=1) / counts.sum()).log()
        return _scales.evaluate(kernels, x, slope, without.long(), stays, rest)

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

    def blurred(self, sigma: float | Tensor) -> KernelDensity:
        r"""The density of x + sigma z: :math:`\sigma^2` is added to all variances.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of what is added to each column, non-negative.
        """
        noise = positive(sigma, self.centres[0], "sigma", zero=True)
        blurred = copy.copy(self)
        if self.bandwidth is not None:
            blurred.bandwidth = torch.hypot(self.bandwidth, noise)
        else:
            covariances = self.kernel_covariances + noise.double().square().diag()
            blurred.roots = torch.linalg.cholesky(covariances).to(noise).contiguous()
        return blurred

    def given(self, clamp: Clamp) -> Given:
        """Exact conditionals of the other entries, for each row of what is known."""
        return KernelGiven(self, clamp) if self.roots is None else ScalesGiven(self, clamp)

    def __repr__(self) -> str:
        scales = "" if self.roots is None else f", {len(self.roots)} scales"
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
