"""The interface of a tractable distribution: samples, exact log-probabilities, exact tilts."""

from __future__ import annotations

import abc
import copy
import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import Binary, Clamp, Conditional, Domain
from skebm.base.processes import own_modes
from skebm.base.torchtools import distinct_masks
from skebm.distributions.conditionals import Given


class Tilt(Conditional):
    r"""Distributions proportional to :math:`q(x)^\gamma e^{f^\top x}`, one for each row of f.

    Attributes
    ----------
    mean : Tensor of shape (n, d)
        Exact.
    log_normaliser : Tensor of shape (n,)
        Log of the sum over all x, in nats; exact.
    """

    log_normaliser: Tensor

    @abc.abstractmethod
    def given(self, clamp: Clamp) -> Tilt:
        """The tilt conditioned on known columns; `log_normaliser` sums over rows that agree."""


class Envelope(NamedTuple):
    r"""A distribution r above a power of another one: :math:`q(x)^{1/T} \le M r(x)`.

    Attributes
    ----------
    distribution : Distribution
        r.
    log_bound : float
        log M; infinite where the ratio has no bound.
    """

    distribution: Distribution
    log_bound: float


class Distribution(abc.ABC):
    """A distribution with exact independent draws and an exact log-probability.

    Its tensors are attributes; :meth:`to` moves them, and pickles store them as NumPy arrays.
    """

    domain: Domain

    @abc.abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent rows."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Normalised log-probability (density) of each row in nats, (n,); exact."""

    def tilted(self, field: Tensor, power: float = 1.0) -> Tilt:
        """Tilts proportional to q(x)^power exp(field' x), one for each row of `field`, (n, d)."""
        raise TypeError(f"{type(self).__name__} has no exact conditionals under unary fields.")

    @property
    def has_tilted(self) -> bool:
        """Whether :meth:`tilted` has exact conditionals."""
        return type(self).tilted is not Distribution.tilted

    @property
    def has_powers(self) -> bool:
        """Whether :meth:`tilted` takes other powers than 1, which tempering needs."""
        return self.has_tilted

    def tempered(self, temperature: float) -> Envelope:
        """A distribution near this one at a temperature, q(x)^(1 / temperature) normalised.

        For a normal distribution it is exactly that one, and the ratio equals the bound everywhere.
        """
        raise TypeError(f"{type(self).__name__} has no power in closed form, and no bound of one.")

    @property
    def has_tempered(self) -> bool:
        """Whether :meth:`tempered` has a distribution near the power."""
        return type(self).tempered is not Distribution.tempered

    def score(self, x: Tensor) -> Tensor:
        """Gradient of :meth:`log_prob` with respect to x, of the shape of x.

        It works under ``no_grad``. This default uses autograd and is detached; closed forms of
        subclasses are differentiable. For binary rows whose log-probability is a table, it is the
        difference of log q between the values 1 and 0 of each entry.
        """
        with torch.enable_grad():
            at = x.detach().requires_grad_(True)
            value = self.log_prob(at)
            if value.requires_grad:
                (score,) = torch.autograd.grad(value.sum(), at)
                return score
        own_flips = type(self).flip_log_ratio is not Distribution.flip_log_ratio
        if isinstance(self.domain, Binary) and own_flips:
            return (1 - 2 * x.detach()) * self.flip_log_ratio(x.detach())
        return torch.zeros_like(x)  # log q is constant where it is finite

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`log_prob` and :meth:`score`, cheaper together where they share work."""
        return self.log_prob(x), self.score(x)

    def convolved(self, sigma: float | Tensor) -> Distribution:
        """The convolution with normal noise: the distribution of x + sigma z, z standard normal.

        `sigma` is a noise level in the units of x, or one for each entry.
        """
        raise TypeError(
            f"{type(self).__name__} has no closed form under added normal noise: use Gaussian, "
            "GaussianMixture, LowRankMixture, KernelDensity or Stack."
        )

    @property
    def has_convolved(self) -> bool:
        """Whether :meth:`convolved` has a closed form."""
        return type(self).convolved is not Distribution.convolved

    @property
    def has_given(self) -> bool:
        """Whether :meth:`given` has exact conditionals."""
        return type(self).given is not Distribution.given or self._has_bits_given

    @property
    def _has_bits_given(self) -> bool:
        return isinstance(self.domain, Binary) and self.has_tilted

    def given(self, clamp: Clamp) -> Conditional:
        """Exact conditional distributions given the clamped entries, one for each of n rows.

        This default is for binary rows with exact tilts.
        """
        if self._has_bits_given:
            return TiltedGiven(self, clamp)
        raise TypeError(
            f"{type(self).__name__} has no exact conditionals given real entries: use Gaussian, "
            "GaussianMixture, LowRankMixture, KernelDensity, Stack or TruncatedGaussian."
        )

    def marginal(self, columns: Tensor) -> Distribution:
        """The exact marginal distribution of some columns of flat rows, in the given order.

        `columns` are distinct numbers of columns, (k,), at least one.
        """
        raise TypeError(f"{type(self).__name__} has no marginals in closed form.")

    @property
    def has_marginal(self) -> bool:
        """Whether :meth:`marginal` has a closed form."""
        return type(self).marginal is not Distribution.marginal

    @property
    def has_log_marginal(self) -> bool:
        """Whether :meth:`log_marginal` is exact."""
        return self.has_tilted or self.has_marginal

    def log_marginal(self, clamp: Clamp) -> Tensor:
        """Log-probability (density) of the known entries of each of n flat rows, (n,); exact.

        It is 0 where nothing is known.

        Parameters
        ----------
        clamp : Clamp
            Which entries are known, (n, d), all levels of a category or none, and their values.
        """
        mask, value = clamp.mask, torch.where(clamp.mask, clamp.value, 0.0)
        if bool(mask.all()):
            return self.log_prob(value)
        found = torch.zeros(len(value), dtype=value.dtype, device=value.device)
        some = mask.any(1)
        found[some] = self._log_marginal(Clamp(mask[some], value[some])).to(found)
        return found

    def _log_marginal(self, known: Clamp) -> Tensor:
        """:meth:`log_marginal` of rows of which something is known; other values are 0."""
        mask, value = known
        if self.has_tilted:
            return self.tilted(torch.zeros_like(value)).given(known).log_normaliser
        found = torch.zeros(len(value), dtype=value.dtype, device=value.device)
        patterns, member = distinct_masks(mask)
        for number, known_columns in enumerate(patterns):
            columns = known_columns.nonzero()[:, 0]
            rows = (member == number).nonzero()[:, 0]
            at = value[rows[:, None], columns]
            whole = len(columns) == mask.shape[1]
            found[rows] = (self if whole else self.marginal(columns)).log_prob(at)
        return found

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        """log q(x with entry i set to 1 - x_i) - log q(x), (n, d), for flat binary rows.

        Computed from the score, since log q of binary rows is linear in each entry.
        """
        return (1 - 2 * x.detach()) * self.score(x)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Any:
        """A copy on a device, its floating-point tensors in the given precision."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                real = dtype if value.is_floating_point() else value.dtype
                setattr(moved, name, value.to(device, real))
            elif isinstance(value, Distribution):
                setattr(moved, name, value.to(device, dtype))
        return moved

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.domain.n_columns} columns)"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.copy(self)
        for name, value in vars(self).items():
            setattr(copied, name, copy.deepcopy(value, memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in vars(self).items()}

    @own_modes()  # in which pickle may call it
    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            # A copy: arrays of a pickle may be read-only, as tensors cannot be.
            is_array = isinstance(value, np.ndarray | np.generic)
            setattr(self, name, torch.tensor(value) if is_array else value)


class TiltedGiven(Given):
    """Conditionals of binary rows, as tilts under zero fields."""

    def __init__(self, distribution: Distribution, clamp: Clamp):
        super().__init__(distribution, clamp)
        if not distribution.domain.contains(self.clamp.value).all():
            raise ValueError("Known values of binary rows must be 0 or 1.")

    @functools.cached_property
    def _tilt(self) -> Tilt:
        value = self.clamp.value
        return self.distribution.tilted(torch.zeros_like(value)).given(self.clamp)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.clamp.apply(self._tilt.mean.to(self.clamp.value))

    def sample(self, generator: torch.Generator) -> Tensor:
        return self.clamp.apply(self._tilt.sample(generator).to(self.clamp.value))
