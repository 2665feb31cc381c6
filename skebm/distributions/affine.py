"""Distributions after an affine change of units."""

from __future__ import annotations

import torch
from torch import Tensor

from skebm.base import Clamp, Conditional, Real
from skebm.distributions.base import Distribution
from skebm.distributions.bounded import TruncatedGaussian, Uniform


class Affine(Distribution):
    r"""A distribution of real rows after a change of units, :math:`z = (x - c) / s` with x from q.

    .. math:: \log q_z(z) = \log q(s \odot z + c) + \textstyle\sum_i \log s_i

    Parameters
    ----------
    distribution : Distribution
        q, on unbounded real rows.
    centre, scale : Tensor of shape (d,)
        c and s > 0, in the units of x.

    Raises
    ------
    TypeError
        Where the rows of q are not real.
    ValueError
        Where q is bounded, or a scale is not positive.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Affine, Gaussian
    >>> q = Gaussian(torch.tensor([3.0]), 2.0)
    >>> z = Affine(q, torch.tensor([3.0]), torch.tensor([2.0]))  # a standard normal distribution
    >>> z.log_prob(torch.zeros(1, 1))
    tensor([-0.9189])
    """

    def __init__(self, distribution: Distribution, centre: Tensor, scale: Tensor):
        if not isinstance(distribution.domain, Real):
            raise TypeError(f"Only real rows have units to change, not {distribution.domain}.")
        if isinstance(distribution, TruncatedGaussian | Uniform) or distribution.domain != Real(
            distribution.domain.shape
        ):
            raise ValueError("The units of a bounded distribution cannot be changed.")
        if not (scale > 0).all():
            raise ValueError("scale must be positive.")
        self.distribution, self.domain = distribution, distribution.domain
        self.centre, self.scale = centre, scale

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Affine:
        moved = super().to(device, dtype)
        moved.distribution = self.distribution.to(device, dtype)
        return moved

    def _inverse(self, z: Tensor) -> Tensor:
        return z * self.scale + self.centre

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return (self.distribution.sample(n, generator) - self.centre) / self.scale

    def log_prob(self, x: Tensor) -> Tensor:
        return self.distribution.log_prob(self._inverse(x)) + self.scale.log().sum()

    def score(self, x: Tensor) -> Tensor:
        return self.distribution.score(self._inverse(x)) * self.scale

    @property
    def has_convolved(self) -> bool:
        return self.distribution.has_convolved

    @property
    def has_given(self) -> bool:
        return self.distribution.has_given

    def convolved(self, sigma: Tensor | float) -> Affine:
        return Affine(self.distribution.convolved(sigma * self.scale), self.centre, self.scale)

    def given(self, clamp: Clamp) -> Conditional:
        value = torch.where(clamp.mask, self._inverse(clamp.value), 0)
        return _AffineConditional(self, self.distribution.given(Clamp(clamp.mask, value)))


class _AffineConditional(Conditional):
    def __init__(self, units: Affine, inner: Conditional):
        self.units, self.inner = units, inner

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return (self.inner.mean - self.units.centre) / self.units.scale

    def sample(self, generator: torch.Generator) -> Tensor:
        return (self.inner.sample(generator) - self.units.centre) / self.units.scale
