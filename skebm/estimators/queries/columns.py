"""The distribution of one column given others, in the units of the data, in SciPy's words."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from skebm._validation import draw_seed
from skebm.base.sampler import number_in


class NumberDistribution(Protocol):
    """Distributions of one number for each of n rows."""

    @property
    def mean(self) -> Tensor: ...
    @property
    def mean_error(self) -> Tensor: ...
    @property
    def std(self) -> Tensor: ...
    def log_prob(self, x: Tensor) -> Tensor: ...
    def cdf(self, x: Tensor) -> Tensor: ...
    def ppf(self, u: Tensor) -> Tensor: ...
    def sample(self, n_draws: int, generator: torch.Generator) -> Tensor: ...


class ColumnConditional(abc.ABC):
    """The distribution of one column of each of n rows, given other columns.

    As with SciPy's distributions, values that methods take are broadcast: the last axis is that of
    the rows, so that ``pdf(x)`` of x of shape (m, 1) is of shape (m, n).

    Attributes
    ----------
    name : str
        Of the column.
    method : {"exact", "quadrature", "sampling"}
        How it was found: in closed form; by quadrature, with errors of probabilities of 1e-9, or
        1e-6 of energies in float32; or from draws.
    n_rows : int
    """

    name: str
    method: str
    n_rows: int

    @abc.abstractmethod
    def mean(self) -> np.ndarray:
        """Expectations, (n,)."""

    @abc.abstractmethod
    def mean_error(self) -> np.ndarray:
        """Standard errors of the means, (n,): 0 unless they are estimated from draws."""

    @abc.abstractmethod
    def std(self) -> np.ndarray:
        """Standard deviations, (n,)."""

    @abc.abstractmethod
    def mode(self) -> np.ndarray:
        """Most probable values, (n,)."""

    @abc.abstractmethod
    def pdf(self, x: Any) -> np.ndarray:
        """Densities, or probabilities of levels."""

    @abc.abstractmethod
    def cdf(self, x: Any) -> np.ndarray:
        """Probabilities of at most x."""

    @abc.abstractmethod
    def ppf(self, q: Any) -> np.ndarray:
        """Quantiles: the smallest values whose `cdf` is at least q."""

    @abc.abstractmethod
    def rvs(self, size: int | None = None, random_state: Any = None) -> np.ndarray:
        """Draws, (n,), or (size, n)."""

    def interval(self, confidence: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the interval with equal probabilities below and above, each (n,)."""
        tail = (1 - confidence) / 2
        return self.ppf(tail), self.ppf(1 - tail)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.n_rows} rows, {self.method})"


class NumberConditional(ColumnConditional):
    """The distribution of a column of numbers; densities are per unit of the column.

    Parameters
    ----------
    name : str
    found : NumberDistribution
        Of (x - centre) / scale.
    centre, scale : float
    method : str
    """

    def __init__(
        self, name: str, found: NumberDistribution, centre: float, scale: float, method: str
    ):
        self.name, self.method, self.n_rows = name, method, len(found.mean)
        self._found, self._centre, self._scale = found, centre, scale

    def mean(self) -> np.ndarray:
        return self._to_units(self._found.mean)

    def mean_error(self) -> np.ndarray:
        found: np.ndarray = self._found.mean_error.numpy() * self._scale
        return found

    def std(self) -> np.ndarray:
        found: np.ndarray = self._found.std.numpy() * self._scale
        return found

    def mode(self) -> np.ndarray:
        """Densest of 199 quantiles, (n,)."""
        x = self._found.ppf(torch.linspace(0.005, 0.995, 199).double().expand(self.n_rows, -1))
        best = self._found.log_prob(x).argmax(1, keepdim=True)
        return self._to_units(x.gather(1, best)[:, 0])

    def logpdf(self, x: Any) -> np.ndarray:
        """Log-densities."""
        return self._of_values(x, self._found.log_prob) - np.log(self._scale)

    def pdf(self, x: Any) -> np.ndarray:
        found: np.ndarray = np.exp(self.logpdf(x))
        return found

    def cdf(self, x: Any) -> np.ndarray:
        return self._of_values(x, self._found.cdf)

    def ppf(self, q: Any) -> np.ndarray:
        u, shape = self._laid_out(probabilities("q", q))
        return self._to_units(self._found.ppf(u).t().reshape(shape))

    def rvs(self, size: int | None = None, random_state: Any = None) -> np.ndarray:
        generator = torch.Generator().manual_seed(draw_seed(random_state))
        drawn = self._found.sample(1 if size is None else size, generator)
        return self._to_units(drawn[0] if size is None else drawn)

    def _to_units(self, z: Tensor) -> np.ndarray:
        found: np.ndarray = z.numpy() * self._scale + self._centre
        return found

    def _of_values(self, x: Any, method: Any) -> np.ndarray:
        z, shape = self._laid_out((np.asarray(x, dtype=np.float64) - self._centre) / self._scale)
        found: np.ndarray = method(z).t().reshape(shape).numpy()
        return found

    def _laid_out(self, x: np.ndarray) -> tuple[Tensor, tuple[int, ...]]:
        """Values of each row, (n, m), and the shape of the result."""
        shape = np.broadcast_shapes(x.shape, (self.n_rows,))
        full = np.broadcast_to(x, shape).reshape(-1, self.n_rows)
        return torch.tensor(full.T.copy()), shape


class LevelConditional(ColumnConditional):
    """The distribution of a column of levels.

    Parameters
    ----------
    name : str
    levels : ndarray of shape (k,)
        Values of the column, such as text or 0 and 1.
    probabilities : ndarray of shape (n, k)
    method : str
    log_error : ndarray of shape (n, k) or None
        Standard errors of the logarithms of unnormalised probabilities; None is 0.

    Attributes
    ----------
    levels, probabilities : ndarray
    """

    def __init__(
        self,
        name: str,
        levels: np.ndarray,
        probabilities: np.ndarray,
        method: str,
        log_error: np.ndarray | None = None,
    ):
        self.name, self.method, self.n_rows = name, method, len(probabilities)
        self.levels, self.probabilities = levels, probabilities
        self._log_error = np.zeros_like(probabilities) if log_error is None else log_error

    @property
    def _numbers(self) -> np.ndarray:
        """The levels as numbers; `ValueError` where they are none."""
        if not all(isinstance(level, int | float | np.number) for level in self.levels.tolist()):
            raise ValueError(
                f"Column {self.name!r} has levels and no numbers: ask for mode(), "
                "probabilities or pdf(level)."
            )
        return self.levels.astype(np.float64)

    def mean(self) -> np.ndarray:
        found: np.ndarray = self.probabilities @ self._numbers
        return found

    def mean_error(self) -> np.ndarray:
        off = self._numbers - self.mean()[:, None]
        found: np.ndarray = np.linalg.norm(self.probabilities * off * self._log_error, axis=1)
        return found

    def std(self) -> np.ndarray:
        numbers = self._numbers
        square = self.probabilities @ np.square(numbers) - self.mean() ** 2
        found: np.ndarray = np.sqrt(square.clip(0))
        return found

    def mode(self) -> np.ndarray:
        found: np.ndarray = self.levels[self.probabilities.argmax(1)]
        return found

    def pdf(self, x: Any) -> np.ndarray:
        """Probabilities of levels, 0 of values that are none."""
        values = np.asarray(x, dtype=self.levels.dtype if self.levels.dtype != object else object)
        shape = np.broadcast_shapes(values.shape, (self.n_rows,))
        full = np.broadcast_to(values, shape)
        found = np.zeros(shape)
        for level, p in zip(self.levels, self.probabilities.T, strict=True):
            found = np.where(full == level, p, found)
        return found

    def cdf(self, x: Any) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)[..., None]
        found: np.ndarray = np.where(self._numbers <= x, self.probabilities, 0.0).sum(-1)
        return found

    def ppf(self, q: Any) -> np.ndarray:
        order = np.argsort(self._numbers, kind="stable")
        below = self.probabilities[:, order].cumsum(1)[:, :-1]
        found: np.ndarray = self._numbers[order][(below < probabilities("q", q)[..., None]).sum(-1)]
        return found

    def rvs(self, size: int | None = None, random_state: Any = None) -> np.ndarray:
        random = np.random.default_rng(draw_seed(random_state))
        u = random.random((1 if size is None else size, self.n_rows))
        place = (self.probabilities.cumsum(1)[:, :-1] < u[..., None]).sum(-1)
        found: np.ndarray = self.levels[place]
        return found[0] if size is None else found


class ByRows:
    """Distributions of some rows each, put together.

    Parameters
    ----------
    parts : sequence of (Tensor, NumberDistribution)
        Numbers of rows, and their distributions.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, NumberDistribution]]):
        self._parts = [found for _, found in parts]
        self._rows = [rows for rows, _ in parts]
        self._order = torch.cat(self._rows).argsort()

    @property
    def mean(self) -> Tensor:
        """Means, (n,)."""
        return torch.cat([part.mean for part in self._parts])[self._order]

    @property
    def mean_error(self) -> Tensor:
        """Standard errors of the means, (n,)."""
        return torch.cat([part.mean_error for part in self._parts])[self._order]

    @property
    def std(self) -> Tensor:
        """Standard deviations, (n,)."""
        return torch.cat([part.std for part in self._parts])[self._order]

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-densities, (n, m)."""
        return self._of_values(x, "log_prob")

    def cdf(self, x: Tensor) -> Tensor:
        """Probabilities of at most x, (n, m)."""
        return self._of_values(x, "cdf")

    def ppf(self, u: Tensor) -> Tensor:
        """Quantiles, (n, m)."""
        return self._of_values(u, "ppf")

    def _of_values(self, x: Tensor, method: str) -> Tensor:
        pairs = zip(self._parts, self._rows, strict=True)
        return torch.cat([getattr(part, method)(x[rows]) for part, rows in pairs])[self._order]

    def sample(self, n_draws: int, generator: torch.Generator) -> Tensor:
        """Draws, (n_draws, n)."""
        parts = [part.sample(n_draws, generator) for part in self._parts]
        return torch.cat(parts, 1)[:, self._order]


class WeightedDraws:
    """A distribution of one number for each of n rows, by draws with weights.

    Parameters
    ----------
    x : Tensor of shape (n, m)
    log_weight : Tensor of shape (n, m)
        Up to a constant for each row.
    expected : Tensor of shape (n,) or None
        Expectation of the unweighted draws, where it is known. It takes what the draws are off by
        out of the mean (a control variate).
    log_prob : callable
        ``log_prob(x (n, k)) -> (n, k)``.
    """

    def __init__(self, x: Tensor, log_weight: Tensor, expected: Tensor | None, log_prob: Any):
        order = x.double().argsort(1)
        self._x = x.double().gather(1, order)
        self._weight = log_weight.gather(1, order).softmax(1)
        self._below = self._weight.cumsum(1)
        self._expected, self.log_prob = expected, log_prob

    @property
    def mean(self) -> Tensor:
        """Means, (n,)."""
        plain = (self._weight * self._x).sum(1)
        if self._expected is None:
            return plain
        off = self._x - self._x.mean(1, keepdim=True)
        influence = self._weight * (self._x - plain[:, None])
        return plain - self._coefficient(influence, off) * (self._x.mean(1) - self._expected)

    @property
    def std(self) -> Tensor:
        """Standard deviations, (n,)."""
        off = self._x - (self._weight * self._x).sum(1, keepdim=True)
        return (self._weight * off.square()).sum(1).sqrt()

    @property
    def mean_error(self) -> Tensor:
        """Standard errors of the means, (n,)."""
        off = self._x - (self._weight * self._x).sum(1, keepdim=True)
        return self._without_control(self._weight * off).square().sum(1).sqrt()

    def _without_control(self, influence: Tensor) -> Tensor:
        """What each draw moves the mean by, less what the control variate takes out of it."""
        if self._expected is None:
            return influence
        off = self._x - self._x.mean(1, keepdim=True)
        return influence - self._coefficient(influence, off)[:, None] * off / off.shape[1]

    @staticmethod
    def _coefficient(influence: Tensor, off: Tensor) -> Tensor:
        return (influence * off).sum(1) / off.square().mean(1).clamp_min(1e-300)

    def cdf(self, x: Tensor) -> Tensor:
        """Shares of the draws that are at most x, (n, m)."""
        place = torch.searchsorted(self._x, x.double().contiguous(), right=True)
        padded = torch.nn.functional.pad(self._below, (1, 0))
        return padded.gather(1, place).clamp(0, 1)

    def ppf(self, u: Tensor) -> Tensor:
        """Smallest draws that at least a share u is no larger than, (n, m)."""
        place = torch.searchsorted(self._below, u.double().contiguous())
        return self._x.gather(1, place.clamp_max(self._x.shape[1] - 1))

    def sample(self, n_draws: int, generator: torch.Generator) -> Tensor:
        """Resampled draws, (n_draws, n)."""
        u = torch.rand(len(self._x), n_draws, generator=generator, dtype=torch.float64)
        return self.ppf(u).t()


def probabilities(argument: str, asked: Any) -> np.ndarray:
    """Probabilities as an array; `ValueError` for other values."""
    try:
        found = np.asarray(asked, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument} must be probabilities, got {asked!r}.") from error
    if not ((found >= 0) & (found <= 1)).all():
        raise ValueError(f"{argument} must be probabilities, from 0 to 1, got {asked!r}.")
    return found


def ends_of_interval(coverage: Any) -> list[float]:
    """Probabilities below the ends of an interval with equal tails."""
    number = number_in("coverage", coverage, "(0, 1)")
    return [(1 - number) / 2, (1 + number) / 2]


def one_or_each(argument: str, asked: Any, n_rows: int) -> np.ndarray:
    """A number, or one for each row, nan where it is missing; `ValueError` for other values."""
    try:
        found = np.asarray(asked, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument} must be numbers: {error}.") from error
    if found.shape not in ((), (n_rows,)):
        raise ValueError(
            f"{argument} must be a number, or one for each of the {n_rows} rows of X, got an array "
            f"of shape {found.shape}."
        )
    return found


def as_levels(values: Sequence[Any]) -> np.ndarray:
    """Levels as an array: of numbers if all are, else of objects."""
    numbers = all(isinstance(v, int | float | np.number) for v in values)
    if numbers and not any(isinstance(v, bool | np.bool_) for v in values):
        return np.asarray(values, dtype=np.float64)
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found
