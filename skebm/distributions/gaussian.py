"""Normal distributions."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.base.energy import check_temperature
from skebm.base.sampler import number_in
from skebm.base.torchtools import distinct_masks
from skebm.distributions._fitting import (
    check_row_weights,
    distinct_weights,
    log_integrals_at_temperature,
    positive,
    usable_scale,
    varies,
)
from skebm.distributions.base import Distribution, Envelope, Tilt
from skebm.distributions.conditionals import Given, IndependentGiven, MixtureGiven


class Gaussian(Distribution):
    r"""The normal distribution :math:`N(\mu, \Sigma)`, of independent entries or of flat rows.

    .. math:: \log q(x) = -\tfrac12 (x - \mu)^\top \Sigma^{-1} (x - \mu)
        - \tfrac12 \log\det(2 \pi \Sigma)

    Parameters
    ----------
    mean : Tensor of the shape of a row
        :math:`\mu`, finite floating-point numbers.
    scale : Tensor of the shape of a row, float or None, default=None
        Standard deviation of each entry, positive; the entries are independent.
    covariance : Tensor of shape (d, d) or None, default=None
        :math:`\Sigma`, symmetric and positive definite, for flat rows. Pass either `scale` or
        `covariance`.

    Attributes
    ----------
    mean : Tensor of the shape of a row
    scale : Tensor of the shape of a row, or None
        As given.
    scale_tril : Tensor of shape (d, d), or None
        Lower Cholesky factor of the covariance, where one was given.

    References
    ----------
    Ledoit and Wolf (2004), "A well-conditioned estimator for large-dimensional covariance
    matrices", Journal of Multivariate Analysis 88(2), section 3.3 (the shrinkage of a fit).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Gaussian
    >>> q = Gaussian(torch.zeros(2), scale=2.0)
    >>> q.log_prob(torch.zeros(1, 2))  # -2 log(2 sqrt(2 pi))
    tensor([-3.2242])
    >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).cumsum(1)
    >>> Gaussian.fit(x).covariance.round()
    tensor([[1., 1.],
            [1., 2.]])
    """

    # Whether it covers rows with heavy tails, so that no training is to make it narrower.
    covers_tails = False

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor | float | None = None,
        *,
        covariance: Tensor | None = None,
    ):
        if not (isinstance(mean, Tensor) and mean.is_floating_point() and mean.dim() > 0):
            raise ValueError("mean must be a floating-point tensor of the shape of a row.")
        if not mean.isfinite().all():
            raise ValueError("mean must be finite.")
        if (scale is None) == (covariance is None):
            raise ValueError("Pass either scale or covariance.")
        self.mean = mean.detach().clone()
        self.domain = Real(tuple(mean.shape))
        self.scale = None if scale is None else positive(scale, self.mean, "scale")
        self.scale_tril = None if covariance is None else _cholesky(covariance, self.mean)

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        shrinkage: float | str = "auto",
        diagonal: bool = False,
    ) -> Gaussian:
        r"""Estimate the mean and the covariance of rows, with shrunk correlations.

        .. math:: \hat\Sigma = D^{1/2} \bigl((1 - s) R + s I\bigr) D^{1/2}

        with D the diagonal matrix of the variances, which are not shrunk, and R the correlations,
        so that columns may have any units. A column that varies by no more than rounding errors
        gets the variance 1. Moments are divided by the total weight and computed in float64.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Finite rows; flat ones unless `diagonal`.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero. Equal rows are one row of their total weight, and all rows
            together count for at most the number of distinct ones.
        shrinkage : float in [0, 1] or "auto", default="auto"
            s. ``"auto"`` is the estimate of Ledoit and Wolf for the standardised columns, and at
            least 0.001, so that columns may be duplicates of each other.
        diagonal : bool, default=False
            Fit variances only (independent entries), for rows of any shape.
        """
        w = check_row_weights(x, weight)
        if not diagonal and x.dim() != 2:
            raise ValueError(
                f"A covariance needs flat rows, not rows of shape {tuple(x.shape[1:])}: pass "
                "diagonal=True."
            )
        flat = x.detach().flatten(1).double()[w > 0]
        index, w = distinct_weights(flat, w[w > 0])
        flat = flat[index]
        mean = w @ flat / w.sum()
        centred = flat - mean
        varying = varies(flat, x.dtype)
        scale = usable_scale(w @ centred.square() / w.sum(), varying)
        if diagonal:
            shape = x.shape[1:]
            return cls(mean.view(shape).to(x.dtype), scale.view(shape).to(x.dtype))
        z = torch.where(varying, centred / scale, 0.0)
        correlation = (z * w[:, None]).t() @ z / w.sum()
        if shrinkage == "auto":
            s = ledoit_wolf(z, w, correlation)
        else:
            s = number_in('shrinkage other than "auto"', shrinkage, "[0, 1]")
        correlation = (1 - s) * correlation
        correlation.diagonal().fill_(1.0)
        # Factorised in float64: in single precision the shrunk matrix may be singular again.
        fitted = cls(mean, covariance=correlation * torch.outer(scale, scale))
        return fitted.to(x.device, x.dtype)

    def with_covariance_times(self, factor: float) -> Gaussian:
        """The normal distribution with the covariance multiplied by `factor`."""
        wider = self.to(self.mean.device, self.mean.dtype)
        if self.scale is not None:
            wider.scale = self.scale * math.sqrt(factor)
        if self.scale_tril is not None:
            wider.scale_tril = self.scale_tril * math.sqrt(factor)
        return wider

    def tempered(self, temperature: float) -> Envelope:
        """The normal distribution at a temperature, by which the covariance is multiplied."""
        check_temperature(temperature)
        bound = log_integrals_at_temperature(
            self.log_volume().detach(), self.mean.numel(), temperature
        )
        return Envelope(self.with_covariance_times(temperature), float(bound))

    def convolved(self, sigma: float | Tensor) -> Gaussian:
        r"""The convolution with normal noise, which adds :math:`\sigma^2` to the variances.

        Parameters
        ----------
        sigma : float or Tensor of the shape of a row
            Standard deviation of the noise in each entry, non-negative, in the units of x.
        """
        noise = positive(sigma, self.mean, "sigma", zero=True).double()
        if self.scale_tril is None:
            assert self.scale is not None
            return Gaussian(self.mean, torch.hypot(self.scale.double(), noise).to(self.mean))
        _, _, covariance = self.components()
        return Gaussian(self.mean, covariance=covariance[0] + noise.square().diag())

    # ---------------------------------------------------------------- the distribution

    @property
    def expectation(self) -> Tensor:
        """The mean."""
        return self.mean

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weight (1,), mean (1, d) and covariance (1, d, d), as for a mixture, in float64."""
        mean = self.mean.double().flatten()[None]
        if self.scale_tril is None:
            covariance = self.covariance.double()
        else:
            covariance = self.scale_tril.double() @ self.scale_tril.double().t()
        return mean.new_zeros(1), mean, covariance[None]

    @property
    def covariance(self) -> Tensor:
        """Covariance of the flattened rows, (d, d)."""
        if self.scale_tril is not None:
            return self.scale_tril @ self.scale_tril.t()
        assert self.scale is not None
        return self.scale.flatten().square().diag()

    @property
    def log_normaliser(self) -> float:
        """log det(2 pi covariance) / 2, in float64."""
        return float(self.log_volume().detach())

    def log_volume(self) -> Tensor:
        """:attr:`log_normaliser` as a float64 tensor, differentiable where the scales are."""
        diagonal = self.scale if self.scale_tril is None else self.scale_tril.diagonal()
        assert diagonal is not None
        d = self.mean.numel()
        return diagonal.double().log().sum() + d / 2 * math.log(2 * math.pi)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.mean
        z = torch.randn(
            n, *like.shape, generator=generator, dtype=like.dtype, device=generator.device
        )
        if self.scale_tril is not None:
            return like + z @ self.scale_tril.t()
        assert self.scale is not None
        return like + z * self.scale

    def log_prob(self, x: Tensor) -> Tensor:
        z = x - self.mean.to(x)
        if self.scale_tril is None:
            assert self.scale is not None
            z.div_(self.scale.to(x))  # new memory would cost more than the division
        else:
            z = torch.linalg.solve_triangular(self.scale_tril.to(x), z.t(), upper=False).t()
        return -z.square().flatten(1).sum(1) / 2 - self.log_volume().to(z)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density, -covariance^-1 (x - mean)."""
        difference = self.mean.to(x) - x
        if self.scale_tril is None:
            assert self.scale is not None
            return difference / self.scale.to(x).square()
        return torch.cholesky_solve(difference.t(), self.scale_tril.to(x)).t()

    def given(self, clamp: Clamp) -> Given:
        """Exact conditional distributions given the clamped entries, one for each row."""
        return (
            IndependentGiven(self, clamp) if self.scale_tril is None else MixtureGiven(self, clamp)
        )

    def tilted(self, field: Tensor, power: float = 1.0) -> GaussianTilt:
        r"""Normal distributions :math:`N(\mu + \Sigma f / \gamma, \Sigma / \gamma)` of flat rows.

        A power of 0, for which there is no distribution, raises `ValueError`.
        """
        return GaussianTilt(self, field, power)

    def with_precision(self, log_factor: Tensor) -> Gaussian:
        """The distribution of x exp(-log_factor / 2), entry by entry.

        Precisions are multiplied by exp(log_factor), and correlations do not change. The result is
        differentiable with respect to `log_factor`, (d,), for flat rows.
        """
        gaussian, factor = copy.copy(self), (log_factor / 2).exp()
        gaussian.mean = self.mean / factor
        if self.scale is not None:
            gaussian.scale = self.scale / factor
        if self.scale_tril is not None:
            gaussian.scale_tril = self.scale_tril / factor[:, None]
        return gaussian

    def precision_score(self, x: Tensor) -> Tensor:
        """Derivative of the log-density by `log_factor` of :meth:`with_precision`, at 0, (n, d)."""
        return (1 + x * self.score(x)) / 2

    def marginal(self, columns: Tensor) -> Gaussian:
        """The marginal distribution of some columns of flat rows."""
        if self.scale is not None:
            return Gaussian(self.mean[columns], self.scale[columns])
        covariance = self.components()[2][0]
        return Gaussian(self.mean[columns], covariance=covariance[columns][:, columns])


class GaussianTilt(Tilt):
    r"""Normal distributions proportional to :math:`q(x)^\gamma e^{f^\top x}`, for each row of f.

    Parameters
    ----------
    distribution : Gaussian
        q, of flat rows.
    field : Tensor of shape (n, d)
    power : float
        :math:`\gamma`, positive.
    known : Clamp or None
        Entries that are known; the others are distributed given them.
    """

    def __init__(
        self, distribution: Gaussian, field: Tensor, power: float, known: Clamp | None = None
    ):
        if not power > 0:
            raise ValueError("At a power of 0 real rows have no distribution: anneal from q.")
        self.distribution, self.field, self.power, self.known = distribution, field, power, known

    def given(self, clamp: Clamp) -> GaussianTilt:
        """The tilt given known entries; `log_normaliser` integrates over the others."""
        return GaussianTilt(self.distribution, self.field, self.power, clamp)

    @functools.cached_property
    def _free_mean(self) -> Tensor:
        """Means without the known entries, (n, d)."""
        q = self.distribution
        if q.scale_tril is None:
            assert q.scale is not None
            return q.mean + q.scale.square() * self.field / self.power
        return q.mean + (self.field @ q.scale_tril) @ q.scale_tril.t() / self.power

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Exact means, (n, d), the known entries as they are."""
        if self.known is None:
            return self._free_mean
        if self.distribution.scale is not None:
            return self.known.apply(self._free_mean)
        known, x = self.known, self.known.apply(self._free_mean)
        for rows, on, gain, _ in self._patterns():
            difference = (known.value - self._free_mean)[rows[:, None], on]
            off = (~known.mask[rows[0]]).nonzero()[:, 0]
            x[rows[:, None], off] += difference @ gain
        return x

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        """log of the integral over all rows that agree with the known entries, (n,)."""
        q, power = self.distribution, self.power
        if q.scale_tril is None:
            assert q.scale is not None
            half = self.field * q.scale
        else:
            half = self.field @ q.scale_tril
        d, log_volume = q.mean.numel(), q.log_volume().to(half)
        constant = (1 - power) * log_volume - d / 2 * math.log(power)
        value = self.field @ q.mean + half.square().sum(1) / (2 * power) + constant
        return value if self.known is None else value + self._log_density_of_known()

    def _log_density_of_known(self) -> Tensor:
        """Log-density of the known entries under the tilt, normalised, (n,)."""
        assert self.known is not None
        q, (mask, x) = self.distribution, self.known
        difference = torch.where(mask, x - self._free_mean, 0.0)
        if q.scale is not None:
            scale = q.scale / math.sqrt(self.power)
            terms = (difference / scale).square() / -2 - scale.log() - math.log(2 * math.pi) / 2
            return torch.where(mask, terms, 0.0).sum(1)
        value = difference.new_zeros(len(x))
        for rows, on, _, tril in self._patterns():
            if not len(on):
                continue
            tril = tril / math.sqrt(self.power)
            white = torch.linalg.solve_triangular(
                tril, difference[rows[:, None], on].t(), upper=False
            )
            log_det = tril.diagonal().log().sum() + len(on) / 2 * math.log(2 * math.pi)
            value[rows] = white.square().sum(0) / -2 - log_det
        return value

    def _patterns(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For rows with the same known entries: their numbers, the known columns, the regression
        (k, d - k) of the others on these, and the Cholesky factor (k, k) of the known covariance.
        """
        assert self.known is not None
        covariance = self.distribution.covariance
        patterns, member = distinct_masks(self.known.mask)
        for number, known in enumerate(patterns):
            on, off = known.nonzero()[:, 0], (~known).nonzero()[:, 0]
            tril = torch.linalg.cholesky(covariance[on][:, on])
            gain = torch.cholesky_solve(covariance[on][:, off], tril)
            yield (member == number).nonzero()[:, 0], on, gain, tril

    def sample(self, generator: torch.Generator) -> Tensor:
        """One draw for each row, the known entries as they are."""
        q = self.distribution
        z = torch.empty_like(self._free_mean).normal_(generator=generator)
        z /= math.sqrt(self.power)
        if q.scale_tril is None:
            assert q.scale is not None
            x = self._free_mean + z * q.scale
            return x if self.known is None else self.known.apply(x)
        x = self._free_mean + z @ q.scale_tril.t()
        if self.known is None:
            return x
        # Matheron's rule: a joint draw, moved by the regression on what it missed.
        drawn, x = x, self.known.apply(x)
        for rows, on, gain, _ in self._patterns():
            off = (~self.known.mask[rows[0]]).nonzero()[:, 0]
            missed = (x - drawn)[rows[:, None], on]
            x[rows[:, None], off] = drawn[rows[:, None], off] + missed @ gain
        return x


def _cholesky(covariance: Tensor, mean: Tensor) -> Tensor:
    d = mean.numel()
    if mean.dim() != 1 or covariance.shape != (d, d):
        raise ValueError(
            "covariance must be of shape (d, d) for a mean of shape (d,), not "
            f"{tuple(covariance.shape)} for {tuple(mean.shape)}; pass scale for rows that are not "
            "flat."
        )
    covariance = covariance.detach().double()
    if not covariance.isfinite().all() or not torch.allclose(
        covariance, covariance.t(), rtol=1e-4, atol=1e-5 * float(covariance.abs().max())
    ):
        raise ValueError("covariance must be finite and symmetric.")
    scale_tril, failed = torch.linalg.cholesky_ex((covariance + covariance.t()) / 2)
    # The conditional variance of a column that others determine is nothing but rounding error.
    conditional = scale_tril.diagonal().square() / covariance.diagonal()
    if failed or not (conditional > 1e-13).all():
        raise ValueError(
            "covariance must be positive definite: some columns are linear combinations of others. "
            "Add to its diagonal, as Gaussian.fit does with `shrinkage`."
        )
    return scale_tril.to(mean)


def ledoit_wolf(z: Tensor, w: Tensor, correlation: Tensor) -> float:
    """Ledoit and Wolf's shrinkage towards the identity, for standardised rows of weights w."""
    n, varying = w.sum(), correlation.diagonal() > 0.5  # constant columns have no correlations
    z, correlation = z[:, varying], correlation[varying][:, varying]
    squared = correlation.square().sum()
    distance = squared - len(correlation)  # from the identity
    noise = (w @ z.square().sum(1).square() / n - squared) / n
    # Least automatic shrinkage, which keeps the covariance of duplicated columns invertible.
    min_shrinkage = 1e-3
    if distance <= 0:
        return min_shrinkage
    return float((noise / distance).clamp(min_shrinkage, 1.0))
