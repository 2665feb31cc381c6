"""Tables: conversion of the columns of X to rows of an energy, and back."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skebm._validation import MinMax, column_ranges, warn
from skebm.base import Binary, Categorical, Domain, Real, Sampler
from skebm.base.domains import parts_of
from skebm.training.mapped import MappedArray, array_blocks, mapped_moments
from skebm.training.rows import Rows

# Mean of a column, in standard deviations, above which it should not be left as it is.
LARGE_MEAN = 10_000
# Squares of numbers between its inverse and itself neither overflow nor underflow.
EXTREME = 1e100
# Standard deviations between its inverse and itself are not what makes training diverge.
USUAL_SCALE = 100.0


class Table(abc.ABC):
    """Fitted conversion of validated input to rows of the energy.

    Attributes
    ----------
    domain : Domain
        Domain of the rows of the energy.
    log_volume : float
        Log volume, in the units of the data, of a unit cube in the units of the energy.
    """

    domain: Domain
    log_volume: float = 0.0

    @property
    def copies_are_one(self) -> bool:
        """Whether equal rows are copies of one: where there are numbers.

        Rows of bits and levels recur, as there are few of them, and each says as much.
        """
        return any(isinstance(part, Real) for part in parts_of(self.domain))

    @abc.abstractmethod
    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        """Rows of the energy for validated X."""

    @abc.abstractmethod
    def invert(self, x: Tensor) -> np.ndarray:
        """Rows of the energy in the units and the shape of the data."""

    @abc.abstractmethod
    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        """Energies of a block of rows, (n,), up to `log_volume`; infinite outside the domain."""

    def energies(self, mapped: Callable[..., Tensor], *, likely: bool = False) -> np.ndarray:
        """Energies in the units of the data, (n,); `mapped` applies a function to all rows.

        With `likely`, warn of rows that have an energy but no likelihood.
        """
        found = mapped(self.row_energy).double().numpy()
        found += self.log_volume
        return found

    def prepare(self, rows: Rows) -> None:
        """Complete rows for training; `ValueError` for rows that cannot be used.

        By default all rows can be used, and none has missing entries.
        """
        return

    def log_volumes(self, known: np.ndarray) -> np.ndarray:
        """`log_volume` of the known columns alone, (n,); `known` (n, d) in rows of the energy."""
        return np.zeros(len(known))

    @property
    def groups(self) -> tuple[int, ...]:
        """Number of entries that each column of X has in a row of the energy."""
        return (1,) * self.domain.n_columns

    def divergence_advice(self, rows: Rows) -> str:
        """What in these rows may have made training diverge, and the remedy; by default nothing."""
        return ""

    def check_finite(self, found: np.ndarray, rows: Rows, what: str) -> np.ndarray:
        """Return the numbers found for each row; `ValueError` naming a row where one is not finite.

        An energy may be infinite far away, but a difference or a ratio of infinities is not
        defined.
        """
        wrong = ~np.isfinite(found.reshape(len(found), -1)).all(1)
        if wrong.any():
            row = int(wrong.argmax())
            self.refuse_row(rows.block(row, row + 1), row, f"{what} cannot be computed")
        return found

    def refuse_row(self, x: Tensor, row: int, what: str) -> NoReturn:
        """Raise the `ValueError` for row number `row` of X, x as a row of the energy (1, d)."""
        if not is_far(x).item():
            raise ValueError(
                f"Row {row} of X: {what}, although its entries are of ordinary size. The network "
                "or the base returns numbers there that are not finite."
            )
        flat = int(x.abs().nan_to_num(0.0, posinf=torch.inf).argmax())
        dtype = str(x.dtype).removeprefix("torch.")
        wider = ' or pass dtype="float64"' if x.dtype == torch.float32 else " or rescale X"
        raise ValueError(
            f"Row {row} of X: {what}, because its column {self.column_at(flat)} "
            f"lies too far from the training rows for {dtype}. Correct or drop the row,{wider}."
        )

    def column_at(self, entry: int) -> Any:
        """Number, place or name of the column of an entry of a row of the energy."""
        return entry


# ------------------------------------------------------------------------------
# Columns in [0, 1]
# ------------------------------------------------------------------------------


BETWEEN = (
    "Values between 0 and 1 are taken as probabilities of bits: log-likelihoods of such rows are "
    "lower bounds on the means of their random binarisations, not likelihoods of their own."
)


def has_only_bits(X: Any) -> bool:
    """Whether all known values are 0 or 1."""
    return all(bool(entries_are_bits(block).all()) for _, block in array_blocks(X))


def entries_are_bits(X: np.ndarray) -> np.ndarray:
    """Which entries are 0 or 1, or missing."""
    return np.isnan(X) | (X == 0) | (X == 1)


def check_known(X: Any, names: list[str] | None) -> None:
    """Raise `ValueError` that names a column without known values."""
    missing = np.flatnonzero(np.isnan(column_ranges(X)[0]))
    if len(missing):
        name = missing[0] if names is None else repr(names[missing[0]])
        raise ValueError(f"Column {name} is missing in all rows: drop it.")


class UnitIntervalTable(Table):
    """Binary columns or probabilities in [0, 1]; other columns are min-max scaled.

    Parameters
    ----------
    scaling : MinMax
        Scaling of the columns with values outside [0, 1].
    domain : Binary
    rescale : "auto" or False
        Whether columns with values outside [0, 1] are scaled and clipped, or raise an error.
    names : list of str or None
        Names of the columns, for messages.
    """

    def __init__(self, scaling: MinMax, domain: Binary, rescale: Any, names: list[str] | None):
        self.scaling, self.domain, self.rescale, self.names = scaling, domain, rescale, names
        self.said = False  # that values are taken as probabilities

    @classmethod
    def learn(cls, X: Any, rescale: Any, names: Any = None, advice: str = "") -> UnitIntervalTable:
        """Learn the ranges of the columns; warn of those that are scaled, with advice."""
        found = cls.of_ranges(X, rescale, names)
        warn_of_scaling([found], advice)
        return found

    @classmethod
    def of_ranges(cls, X: Any, rescale: Any, names: Any = None) -> UnitIntervalTable:
        """Learn the ranges of the columns; `ValueError` if some must be scaled and may not."""
        names = None if names is None else [str(name) for name in names]
        check_known(X, names)
        found = cls(MinMax.fit(*column_ranges(X)), Binary((X.shape[1],)), rescale, names)
        if len(found.scaling.columns):
            if not rescale:
                raise ValueError(
                    f"X: columns {found._shown(found.scaling.columns)} have values outside [0, 1], "
                    "and rescale=False. Binarise or scale them to [0, 1], or pass "
                    'rescale="auto".'
                )
            found.said = not sp.issparse(X) and not all(
                has_only_bits(found.scaling.apply(block)) for _, block in array_blocks(X)
            )
        return found

    def check_range(self, X: Any) -> None:
        """Warn of values outside the range of the training data, which are clipped, or raise."""
        outside = self.scaling.outside(*column_ranges(X))
        if not len(outside):
            return
        what = f"columns {self._shown(outside)} have values outside the range of the training data"
        if not self.rescale:
            raise ValueError(f"X: {what} ([0, 1]), and rescale=False.")
        warn(f"X: {what}; they are clipped to it.", UserWarning)

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        self.check_range(X)
        return Rows.of(X, self.scaling.apply, dtype=dtype, device=device, weight=weight)

    def prepare(self, rows: Rows) -> None:
        rows.complete(self.groups)

    def invert(self, x: Tensor) -> np.ndarray:
        return self.scaling.invert(x.detach().cpu().double().numpy())

    def filled(self, X: Any, x: Tensor) -> np.ndarray:
        """Validated X with its nan replaced by the entries of rows x of the energy."""
        X = X.toarray() if sp.issparse(X) else X
        found: np.ndarray = np.where(np.isnan(X), self.invert(x), X).astype(X.dtype)
        return found

    def column_at(self, entry: int) -> Any:
        """Number or name of a column."""
        return entry if self.names is None else repr(self.names[entry])

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        value: Tensor = energy(x)
        return value

    def energies(self, mapped: Callable[..., Tensor], *, likely: bool = False) -> np.ndarray:
        if not likely:
            return super().energies(mapped)

        def both(energy: Any, x: Tensor) -> Tensor:  # in one pass over the rows
            value = energy(x)
            return torch.stack([value, energy.domain.contains(x).to(value)], 1)

        value, inside = mapped(both).double().numpy().T
        if not inside.all() and not self.said:
            warn(
                f"{int((inside == 0).sum())} of {len(value)} rows are not binary. {BETWEEN}",
                UserWarning,
            )
        return value

    def _shown(self, columns: np.ndarray) -> str:
        """Names or numbers of the first ten columns, for a message."""
        shown = [str(i) if self.names is None else repr(self.names[i]) for i in columns[:10]]
        return ", ".join(shown) + (f" and {len(columns) - 10} more" if len(columns) > 10 else "")


def warn_of_scaling(tables: Sequence[UnitIntervalTable], advice: str = "") -> None:
    """Warn once of the columns that tables scale to [0, 1], with advice."""
    shown = [t._shown(t.scaling.columns) for t in tables if len(t.scaling.columns)]
    if shown:
        warn(
            f"Bits take values in [0, 1], but columns {', '.join(shown)} have values outside "
            f"[0, 1]: they are min-max scaled{advice}."
            + (f" {BETWEEN}" if any(t.said for t in tables) else ""),
            UserWarning,
        )


class SpinTable(UnitIntervalTable):
    """Columns of spins, -1 and 1, as bits 0 and 1."""

    @classmethod
    def learn_spins(cls, X: Any, names: Any = None) -> SpinTable:
        """A table of as many columns as X; rows are checked where they are used."""
        d = X.shape[1]
        names = None if names is None else [str(name) for name in names]
        scaling = MinMax(np.arange(d), np.full(d, -1.0), np.full(d, 1.0))
        return cls(scaling, Binary((d,)), False, names)

    def check_range(self, X: Any) -> None:
        """Raise for values other than -1 and 1; missing ones are left to others."""
        values = X.toarray() if sp.issparse(X) else X
        wrong = ~(np.isnan(values) | (np.abs(values) == 1)).all(0)
        if wrong.any():
            raise ValueError(
                f"X: columns {self._shown(np.flatnonzero(wrong))} have values other than -1 and 1, "
                'which are spins. Pass coding="binary" to `fit` bits.'
            )


def holds_spins(X: Any) -> bool:
    """Whether all values are -1 or 1, and some are -1."""
    if sp.issparse(X):
        return False
    known = X[~np.isnan(X)]
    return bool((np.abs(known) == 1).all() and (known < 0).any())


# ------------------------------------------------------------------------------
# Standardised columns, bits, one-hot columns, images
# ------------------------------------------------------------------------------


class Units(NamedTuple):
    """Standardisation of columns, (x - centre) / scale, and the domain of the result."""

    centre: np.ndarray
    scale: np.ndarray
    domain: Domain

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Units of the data to those of the energy; float64 in between."""
        return (x.astype(np.float64) - self.centre) / self.scale

    def invert(self, z: np.ndarray) -> np.ndarray:
        """Back to the units of the data."""
        return z * self.scale + self.centre

    @property
    def log_volume(self) -> float:
        """Log volume, in the units of the data, of a unit cube in the units of the energy."""
        return float(np.log(self.scale).sum())


class FlatTable(Table):
    """Real columns, optionally standardised, binary or one-hot columns; images as flat rows.

    Parameters
    ----------
    units : Units
    row_shape : tuple of int
        Shape of a row of the data; images have more than one dimension.
    bounded : bool
        Whether the user gave bounds.
    """

    def __init__(self, units: Units, row_shape: tuple[int, ...], bounded: bool):
        self.units, self.row_shape, self.bounded = units, row_shape, bounded
        self.domain, self.log_volume = units.domain, units.log_volume

    @classmethod
    def learn(
        cls,
        X: Any,
        weight: np.ndarray | None,
        *,
        domain: Domain | None = None,
        bounds: Any = None,
        standardize: bool = True,
    ) -> FlatTable:
        """Scales and bounds of real columns; a discrete `domain` is checked."""
        shape, bounded = X.shape[1:], bounds is not None
        if domain is not None and not isinstance(domain, Real):
            check_states(X, domain)
            n = X.shape[1]
            return cls(Units(np.zeros(n), np.ones(n), domain), shape, bounded)
        flat = _flatten(X)
        units = learn_units(flat, weight, standardize, bounds)
        if len(shape) == 1:  # pixels cannot be dropped
            _warn_of_constants(flat)
        return cls(units, shape, bounded)

    @property
    def discrete(self) -> bool:
        """Whether rows are binary or one-hot."""
        return not isinstance(self.domain, Real)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Shape of an image, or None for flat rows."""
        return self.row_shape if len(self.row_shape) > 1 else None

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Shape in which a network takes a row."""
        return self.row_shape

    def column_at(self, entry: int) -> Any:
        """Number of a column, or place of a pixel."""
        place = tuple(int(i) for i in np.unravel_index(entry, self.row_shape))
        return place[0] if len(place) == 1 else place

    def filled(self, X: np.ndarray, x: Tensor) -> np.ndarray:
        """Validated X with its nan replaced by the entries of rows x of the energy."""
        found: np.ndarray = np.where(np.isnan(X), self.invert(x), X).astype(X.dtype)
        return found

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        if X.shape[1:] != self.row_shape:
            raise ValueError(
                f"X has rows of shape {X.shape[1:]}, but the model was fitted on rows of shape "
                f"{self.row_shape}."
            )
        if self.discrete:
            check_states(X, self.domain)
        kind: dict[str, Any] = {"dtype": dtype, "device": device, "weight": weight}
        if sp.issparse(X):
            return Rows.of(X, _as_is, **kind)
        return Rows.of(_flatten(X), self.units.apply, **kind)

    def prepare(self, rows: Rows) -> None:
        """Raise `ValueError` for rows outside the bounds, or with values that are too large."""
        outside = ~rows.map(self.domain.contains)
        if outside.any():
            where = f"{int(outside.sum())} rows of X, first row {int(outside.nonzero()[0, 0])}, "
            if not self.bounded:
                raise ValueError(f"{where}have values that are too large.")
            raise ValueError(f"{where}lie outside `bounds`: drop them, or refit with wider bounds.")

    def divergence_advice(self, rows: Rows) -> str:
        """Point to `standardize` where the energy sees columns of very different scales."""
        if self.discrete or (self.units.scale != 1).any():
            return ""
        scale = rows.sampled(0).block(0, len(rows)).double().std(0)
        low, high = float(scale[scale > 0].min()), float(scale.max())
        if low > 1 / USUAL_SCALE and high < USUAL_SCALE:
            return ""
        return (
            f"The columns have standard deviations between {low:.2g} and {high:.2g}; "
            "standardize=True scales them to 1."
        )

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        value: Tensor = energy(x)
        value = value.masked_fill(~self.domain.contains(x), torch.inf)
        # NaN from inf - inf where powers of x overflow counts as an infinite energy.
        return value.masked_fill(value.isnan() & is_far(x), torch.inf)

    def invert(self, x: Tensor) -> np.ndarray:
        domain = self.domain
        low, high = (domain.lower, domain.upper) if isinstance(domain, Real) else (None, None)
        inside = x.detach() if low is high is None else x.detach().clamp(low, high)
        found = self.units.invert(inside.cpu().double().numpy())
        return found.reshape(len(found), *self.row_shape)


def is_far(x: Tensor) -> Tensor:
    """Rows with an entry whose powers overflow, (n,); NaN, which is unknown, counts for nothing."""
    return x.abs().nan_to_num(0.0, posinf=torch.inf).amax(1) > torch.finfo(x.dtype).max ** 0.25


def _as_is(x: np.ndarray) -> np.ndarray:
    return x


def _flatten(X: Any) -> Any:
    """Flat rows in C order, as another memory layout would change the rounding."""
    if isinstance(X, MappedArray):
        return X.flat()
    return np.ascontiguousarray(X.reshape(len(X), -1))


def learn_units(
    X: np.ndarray | MappedArray,
    weight: np.ndarray | None,
    standardize: bool,
    bounds: Any,
    names: list[str] | None = None,
) -> Units:
    """Weighted centres and scales of columns; bounds become 0, or 0 and 1.

    Constant columns have a scale of 1. Computed in float64, whatever the type of X, over the known
    values.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        factor = extreme_factors(*column_ranges(X))
        if isinstance(X, MappedArray):
            mean, scale = mapped_moments(X, weight, factor)
        else:
            x = X.astype(np.float64) if factor is None else X.astype(np.float64) * factor
            mean = _known_mean(x, weight)
            scale = _known_mean(np.square(x - mean), weight)
        scale = np.sqrt(scale)
        if factor is not None:
            mean, scale = mean / factor, scale / factor
    if not np.isfinite(scale).all():
        columns = np.flatnonzero(~np.isfinite(scale)).tolist()
        shown = columns if names is None else ", ".join(names[j] for j in columns)
        raise ValueError(
            f"The range of columns {shown} overflows a float: divide them by their largest "
            "absolute value first."
        )
    constant = _is_constant(X, mean, scale)
    if not standardize and bounds is None:
        _warn_of_large_means(mean, np.where(constant, np.inf, scale))
    scale = np.where(constant, 1.0, scale)
    lower, upper = check_bounds(X, bounds)
    shape = mean.shape
    if not standardize:
        sides = map(_same_for_all, (lower, upper))
        return Units(np.zeros_like(mean), np.ones_like(mean), Real(shape, *sides))
    if lower is not None and upper is not None:
        return Units(lower, upper - lower, Real(shape, 0.0, 1.0))
    if lower is not None:
        return Units(lower, scale, Real(shape, lower=0.0))
    if upper is not None:
        return Units(upper, scale, Real(shape, upper=0.0))
    return Units(mean, scale, Real(shape))


def extreme_factors(low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """What columns are to be multiplied by before they are squared, (d,); None if by nothing.

    It makes the largest absolute value 1 where squares of deviations would overflow or underflow,
    or nearly so where the inverse of that value would overflow, and is 1 otherwise.
    """
    low, high = low.astype(np.float64), high.astype(np.float64)
    largest = np.fmax(np.abs(low), np.abs(high))
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = (high > low) & (high - low < 1 / EXTREME)
        extreme = (largest > EXTREME) | ((largest > 0) & (largest < 1 / EXTREME)) | narrow
        if not extreme.any():
            return None
        inverse = np.minimum(1 / np.where(extreme, largest, 1.0), 2.0**1023)
    found: np.ndarray = np.where(extreme, inverse, 1.0)
    return found


def _is_constant(X: Any, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Columns whose values are all equal, or differ by rounding errors of a small number."""
    doubles, own = np.finfo(np.float64).eps, np.finfo(X.dtype).eps
    rounding = max(100 * doubles, own) * np.abs(mean)
    # Large numbers may be coarse and vary nevertheless: timestamps in float32 are rounded to two
    # minutes. As their scale would stay what it is, what varies by much never counts as constant.
    narrow = scale <= np.minimum(rounding, 1e-3)
    low, high = column_ranges(X)
    return (low == high) | narrow


def _known_mean(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Weighted means of the columns over their known values."""
    known = ~np.isnan(x)
    if known.all():
        return np.average(x, axis=0, weights=weight)
    share = known if weight is None else known * weight[:, None]
    total: np.ndarray = (share * np.where(known, x, 0.0)).sum(0) / share.sum(0)
    return total


def _warn_of_large_means(mean: np.ndarray, scale: np.ndarray) -> None:
    """Warn of columns that a network cannot tell from constants, as they are not standardised."""
    columns = np.flatnonzero(np.abs(mean) > LARGE_MEAN * scale).tolist()
    if columns:
        warn(
            f"Columns {columns} have means of more than {LARGE_MEAN:,} times their standard "
            "deviations, and standardize=False leaves them so: training is likely to diverge. "
            "Use standardize=True, or subtract the means first.",
            UserWarning,
        )


def check_bounds(X: Any, bounds: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Bounds of each column; raises `ValueError` for invalid ones and for rows outside."""
    if bounds is None:
        return None, None
    if len(bounds) != 2:
        raise ValueError(f"bounds must be a pair (lower, upper), got {bounds!r}.")
    lower, upper = (_bound(side, X.shape[1]) for side in bounds)
    if lower is not None and upper is not None and not (lower < upper).all():
        raise ValueError("The lower bounds must be below the upper ones.")
    for bound, sign, side in ((lower, 1, "below the lower"), (upper, -1, "above the upper")):
        if bound is None:
            continue
        edge = sign * bound.astype(X.dtype)
        out = np.any([(sign * x < edge).any(0) for _, x in array_blocks(X)], axis=0)
        if out.any():
            raise ValueError(
                f"Columns {np.flatnonzero(out).tolist()} have values {side} bound: widen `bounds`, "
                "or drop those rows."
            )
    return lower, upper


def _bound(bound: Any, d: int) -> np.ndarray | None:
    """One side of the bounds, for each of d columns."""
    if bound is None:
        return None
    try:
        found = np.asarray(bound, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.full(d, np.nan)
    if found.ndim > 1 or (found.ndim == 1 and len(found) != d) or not np.isfinite(found).all():
        raise ValueError(
            f"A bound must be a finite number, or one for each of {d} columns, got {bound!r}. All "
            "columns have bounds on the same sides: use None for an unbounded side."
        )
    return np.broadcast_to(found, (d,)).copy()


def _same_for_all(bound: np.ndarray | None) -> float | None:
    if bound is None:
        return None
    if not (bound == bound[0]).all():
        raise ValueError("With standardize=False all columns must have the same bounds.")
    return float(bound[0])


def _warn_of_constants(X: Any) -> None:
    if isinstance(X, MappedArray):
        columns = np.flatnonzero(np.equal(*X.ranges)).tolist()
    else:
        columns = np.flatnonzero((X[0] == X).all(0)).tolist() if len(X) > 1 else []
    if columns:
        warn(
            f"Columns {columns} are constant. They are modelled as varying around their value by "
            "the training noise: drop them if they cannot vary in new rows.",
            UserWarning,
        )


def check_states(X: Any, domain: Domain) -> None:
    """Raise `ValueError` for entries that are not valid states; nan marks missing entries."""
    for place, block in array_blocks(X):
        _check_block(block, domain, place.start)


def _check_block(X: Any, domain: Domain, number: int) -> None:
    """`check_states` of rows from the given number on."""
    values = X.data if sp.issparse(X) else X
    known = ~np.isnan(values)
    wrong = known & (values != 0) & (values != 1)
    if wrong.any():
        columns = "" if sp.issparse(X) else f", first in column {int(wrong.any(0).argmax())}"
        kind = "Sparse X, which must be binary," if sp.issparse(X) else "X"
        raise ValueError(
            f"{kind} has {int(wrong.sum())} values other than 0 and 1{columns}, but the model is "
            f'for {type(domain).__name__.lower()} rows: binarise X, or use domain="real".'
        )
    if not isinstance(domain, Categorical):
        return
    first = 0
    for group, size in enumerate(domain.groups):
        part = X[:, first : first + size]
        first += size
        missing = np.isnan(part)
        invalid = (missing.any(1) & ~missing.all(1)) | (~missing.any(1) & (part.sum(1) != 1))
        if invalid.any():
            row = number + int(invalid.argmax())
            raise ValueError(
                f"Row {row} of X is not one-hot in group {group}, columns "
                f"{first - size} to {first - 1}: each group needs one 1, or nan throughout."
            )


def choose_domain(X: Any, domain: Any, sampler: Sampler | None, bounds: Any) -> Domain:
    """Domain of the rows of X: that given, or one chosen from the sampler and the values of X."""
    n = X.shape[1]
    if isinstance(domain, Domain):
        if isinstance(domain, Real) and domain != Real(domain.shape):
            raise ValueError(f"Pass the bounds of {domain} as bounds=, in units of X.")
        if domain.n_columns != n:
            raise ValueError(f"domain={domain} has {domain.n_columns} columns, X has {n}.")
        if isinstance(domain, Binary | Categorical | Real):
            return domain if not isinstance(domain, Binary) else Binary((n,))
        raise ValueError(f"domain={domain} is not supported: use real, binary or one-hot rows.")
    if domain == "binary" or sp.issparse(X):
        return Binary((n,))
    if domain == "real" or bounds is not None:
        return Real((n,))
    if sampler is not None:
        kinds = sampler.kernel.domains
        real, bits = (any(issubclass(k, d) for d in kinds) for k in (Real, Binary))
        if real != bits:
            return Real((n,)) if real else Binary((n,))
    return Binary((n,)) if has_only_bits(X) else Real((n,))
