"""Uniform distributions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Domain, Mixed, Real
from skebm.distributions.base import Distribution


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
        Where the domain is unbounded.

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
