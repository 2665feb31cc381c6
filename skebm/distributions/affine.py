"""A distribution in other units."""

from __future__ import annotations

import torch
from torch import Tensor

from skebm.base import Clamp, Conditional, Real
from skebm.distributions.base import Distribution
from skebm.distributions.truncated import TruncatedGaussian
from skebm.distributions.uniform import Uniform


class Affine(Distribution):
    r"""A distribution of real rows after a change of units, :math:`z = (x - c) / s` with x from q.

    .. math:: \log q_z(z) = \log q(s \odot z + c) + \textstyle\sum_i \log s_i

    Parameters
    ----------
    noise : Distribution
        q, on unbounded real rows.
    centre, scale : Tensor of shape (d,)
        c and s > 0.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Affine, Gaussian
    >>> q = Gaussian(torch.tensor([3.0]), 2.0)
    >>> z = Affine(q, torch.tensor([3.0]), torch.tensor([2.0]))  # a standard normal distribution
    >>> z.log_prob(torch.zeros(1, 1))
    tensor([-0.9189])
    """

    def __init__(self, noise: Distribution, centre: Tensor, scale: Tensor):
        if not isinstance(noise.domain, Real):
            raise TypeError(f"Units are those of real rows, not of {noise.domain}.")
        if isinstance(noise, TruncatedGaussian | Uniform) or noise.domain != Real(
            noise.domain.shape
        ):
            raise ValueError("A distribution inside walls cannot change its units.")
        if not (scale > 0).all():
            raise ValueError("scale must be positive.")
        self.noise, self.centre, self.scale, self.domain = noise, centre, scale, noise.domain

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Affine:
        moved = super().to(device, dtype)
        moved.noise = self.noise.to(device, dtype)
        return moved

    def _there(self, z: Tensor) -> Tensor:
        return z * self.scale + self.centre

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return (self.noise.sample(n, generator) - self.centre) / self.scale

    def log_prob(self, x: Tensor) -> Tensor:
        return self.noise.log_prob(self._there(x)) + self.scale.log().sum()

    def score(self, x: Tensor) -> Tensor:
        return self.noise.score(self._there(x)) * self.scale

    @property
    def has_convolved(self) -> bool:
        return self.noise.has_convolved

    @property
    def has_given(self) -> bool:
        return self.noise.has_given

    def convolved(self, sigma: Tensor | float) -> Affine:
        return Affine(self.noise.convolved(sigma * self.scale), self.centre, self.scale)

    def given(self, clamp: Clamp) -> Conditional:
        value = torch.where(clamp.mask, self._there(clamp.value), 0)
        return _Moved(self, self.noise.given(Clamp(clamp.mask, value)))


class _Moved(Conditional):
    def __init__(self, owner: Affine, inner: Conditional):
        self.owner, self.inner = owner, inner

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return (self.inner.mean - self.owner.centre) / self.owner.scale

    def sample(self, generator: torch.Generator) -> Tensor:
        return (self.inner.sample(generator) - self.owner.centre) / self.owner.scale
