"""Independent columns."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from skebm.base import Binary, Clamp
from skebm.base.numerics import softplus
from skebm.noise.base import Noise, Tilt


def log_sum(logits: Tensor, known: Clamp | None) -> Tensor:
    """log of the sum of exp(logits' x) over the binary x that agree with what is known, (n,)."""
    terms = softplus(logits)
    if known is not None:
        terms = torch.where(known.mask, logits * known.value, terms)
    return terms.sum(1)


class IndependentTilt(Tilt):
    """Independent columns of log-odds `logits` (n, d), relative to a normaliser."""

    def __init__(self, logits: Tensor, log_normaliser: Tensor, known: Clamp | None = None):
        self.logits, self.offset, self.known = logits, log_normaliser, known

    def given(self, clamp: Clamp) -> IndependentTilt:
        """The other columns do not care."""
        return IndependentTilt(self.logits, self.offset, clamp)

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Probability of a one, (n, d)."""
        return self.logits.sigmoid()

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        """log of the sum over all x that agree with what is known, (n,)."""
        return log_sum(self.logits, self.known) - self.offset

    def sample(self, generator: torch.Generator) -> Tensor:
        p = self.mean
        return torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device).lt_(p)


class IndependentBernoulli(Noise):
    r"""Independent binary columns, :math:`q(x) = \prod_i \sigma(a_i)^{x_i} \sigma(-a_i)^{1-x_i}`.

    Parameters
    ----------
    logits : Tensor of shape (d,)
        Log-odds a of each column; zeros give the uniform distribution.

    Examples
    --------
    >>> import torch
    >>> from skebm.noise import IndependentBernoulli
    >>> q = IndependentBernoulli.fit(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    >>> q.mean
    tensor([0.1667, 0.5000])
    """

    def __init__(self, logits: Tensor):
        self.logits = logits
        self.domain = Binary(tuple(logits.shape))

    @classmethod
    def fit(
        cls, x: Tensor, weight: Tensor | None = None, pseudo_count: float = 1.0
    ) -> IndependentBernoulli:
        """Take the columns' means, each smoothed by `pseudo_count` rows of one half.

        The smoothing keeps the log-odds of constant columns finite.
        """
        n = x.shape[0] if weight is None else weight.double().sum()
        ones = x.double().sum(0) if weight is None else weight.double() @ x.double()
        half = pseudo_count / 2
        # A difference of logarithms: a rounded mean of 1 would have infinite log-odds.
        return cls((torch.log(ones + half) - torch.log(n - ones + half)).to(x.dtype))

    @property
    def mean(self) -> Tensor:
        """Probability of a one in each column, (d,)."""
        return self.logits.sigmoid()

    @property
    def log_normaliser(self) -> Tensor:
        """log sum_x exp(a' x), a scalar."""
        return softplus(self.logits).sum()

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        a = self.logits
        u = torch.rand(n, len(a), generator=generator, dtype=a.dtype, device=a.device)
        return u.lt_(self.mean)

    def log_prob(self, x: Tensor) -> Tensor:
        # Not a product of matrices: a column that is never on has log-odds of minus infinity.
        never = self.logits.isinf() & (x == 0)
        return torch.where(never, 0.0, x * self.logits).sum(1) - self.log_normaliser

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        return (1 - 2 * x) * self.logits

    def tilted(self, field: Tensor, power: float = 1.0) -> IndependentTilt:
        """Independent columns again, of log-odds power * a + field."""
        return IndependentTilt(power * self.logits + field, power * self.log_normaliser)
