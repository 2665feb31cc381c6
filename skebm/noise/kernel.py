"""Kernel density estimates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.noise._bandwidth import best_factor
from skebm.noise._fitting import chunked, live_rows, moments, pick, positive, varies
from skebm.noise._given import Given, KernelGiven
from skebm.noise.base import Noise


class KernelDensity(Noise):
    r"""A normal density around each of some rows, with one bandwidth for each column.

    .. math:: q(x) = \sum_j w_j \prod_i N(x_i; c_{ji}, h_i^2)

    Parameters
    ----------
    centres : Tensor of shape (m, d)
        c, finite floating-point numbers; the density has their precision.
    bandwidth : float or Tensor of shape (d,)
        h, the standard deviation of the kernel in each column, positive.
    weights : Tensor of shape (m,) or None, default=None
        Non-negative, not all zero; w is these divided by their sum. None: all equal.

    Attributes
    ----------
    centres : Tensor of shape (m, d)
        Those of positive weight.
    bandwidth : Tensor of shape (d,)
    weights : Tensor of shape (m,)
        They sum to 1.

    Notes
    -----
    A row costs m d multiplications and m exponentials. Distances are float64, as products around
    the mean of the centres: they are exact to rounding where rows and centres stay within 1e6
    bandwidths of it.

    References
    ----------
    Parzen (1962), "On estimation of a probability density function and mode", Annals of
    Mathematical Statistics 33(3).

    Duin (1976), "On the choice of smoothing parameters for Parzen estimators of probability density
    functions", IEEE Transactions on Computers 25(11) (the bandwidth of a fit).

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
    """

    def __init__(self, centres: Tensor, bandwidth: Tensor | float, weights: Tensor | None = None):
        if not (isinstance(centres, Tensor) and centres.is_floating_point() and centres.dim() == 2):
            raise ValueError("centres must be a floating-point tensor of shape (m, d).")
        if len(centres) == 0 or not centres.isfinite().all():
            raise ValueError("centres must be finite, and at least one row.")
        weight = _checked_weights(weights, centres)
        self.domain = Real((centres.shape[1],))
        self.centres = centres.detach()[weight > 0].clone()
        self.weights = weight[weight > 0].to(centres)
        self.bandwidth = positive(bandwidth, self.centres[0], "bandwidth")

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls, x: Tensor, weight: Tensor | None = None, bandwidth: float | str = "auto"
    ) -> KernelDensity:
        """Put a kernel on each row.

        The bandwidths are a factor times the standard deviations of the columns, and 1 for columns
        that do not vary by more than rounding errors.

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
        """
        rows, w = live_rows(x, weight)
        mean, variance = moments(rows, w)
        live = varies(variance, mean, x.dtype)
        if bandwidth == "auto":
            factor = best_factor((rows - mean)[:, live] / variance[live].sqrt(), w)
        elif isinstance(bandwidth, str):
            raise ValueError(f'bandwidth must be "auto" or a positive factor, got {bandwidth!r}.')
        else:
            factor = float(positive(bandwidth, mean.new_ones(()), "bandwidth"))
        h = torch.where(live, factor * variance.sqrt(), 1.0)
        return cls(rows.to(x.dtype), h.to(x.dtype), w)

    # ---------------------------------------------------------------- the distribution

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
        return centres + z.to(centres.device) * self.bandwidth

    def log_prob(self, x: Tensor) -> Tensor:
        return self._map(x, lambda z, logits, _: self._value(z, logits.logsumexp(1)))

    def slope(self, x: Tensor) -> Tensor:
        """Gradient of the log-density, (weighted mean of the centres - x) / h^2."""

        def slope(z: Tensor, logits: Tensor, centres: Tensor) -> Tensor:
            return (logits.softmax(1) @ centres - z) / self.bandwidth.double()

        return self._map(x, slope)

    def log_prob_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one."""

        def both(z: Tensor, logits: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
            total = logits.logsumexp(1)
            share = (logits - total[:, None]).exp()
            return self._value(z, total), (share @ centres - z) / self.bandwidth.double()

        return self._map(x, both)

    def _value(self, z: Tensor, total: Tensor) -> Tensor:
        level = self.bandwidth.double().log().sum() + z.shape[1] / 2 * math.log(math.tau)
        return total - z.square().sum(1) / 2 - level

    def _map(self, x: Tensor, function: Any) -> Any:
        """function(z, logits, centres) by chunks: z in bandwidths, a logit for each centre.

        Half the square of z is missing from the logits.
        """
        centres, origin, h = self.scaled_centres()
        level = self.weights.double().log() - centres.square().sum(1) / 2

        def chunk(rows: Tensor) -> Any:
            z = (rows.double() - origin) / h
            found = function(z, torch.addmm(level, z, centres.t()), centres)
            if isinstance(found, Tensor):
                return found.to(x.dtype)
            return tuple(part.to(x.dtype) for part in found)

        return chunked(chunk, x, len(centres))

    def blurred(self, sigma: float | Tensor) -> KernelDensity:
        r"""The density of x + sigma z: bandwidths :math:`\sqrt{h^2 + \sigma^2}`.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of what is added to each column, non-negative.
        """
        noise = positive(sigma, self.bandwidth, "sigma", zero=True)
        return KernelDensity(self.centres, torch.hypot(self.bandwidth, noise), self.weights)

    def given(self, clamp: Clamp) -> Given:
        """Exact conditionals of the other entries, for each row of what is known."""
        return KernelGiven(self, clamp)

    def __repr__(self) -> str:
        return f"KernelDensity({len(self.centres)} centres, {self.centres.shape[1]} columns)"


def _checked_weights(weights: Any, centres: Tensor) -> Tensor:
    """Weights in float64 that sum to one."""
    if weights is None:
        weights = centres.new_ones(len(centres))
    if not isinstance(weights, Tensor) or weights.shape != centres.shape[:1]:
        raise ValueError("weights must be a tensor of shape (m,), one for each of the centres.")
    weight = weights.detach().double()
    if not (weight.isfinite() & (weight >= 0)).all() or not weight.any():
        raise ValueError("weights must be finite and non-negative, and not all zero.")
    return weight / weight.sum()
