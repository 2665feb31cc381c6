"""Units of columns of numbers: standardisation, bounds, and the domain of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import column_ranges, warn
from skebm.base import DataWarning, Domain, Real
from skebm.training.mapped import MappedArray, array_blocks, moments_of_map

# Squares of numbers between its inverse and itself neither overflow nor underflow.
EXTREME = 1e100


class Units(NamedTuple):
    """Standardisation of columns, (x - centre) / scale, and the domain of the result."""

    centre: np.ndarray
    scale: np.ndarray
    domain: Domain

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Units of the data to those of the energy; float64 in between.

        Rounding errors of a constant column, whose scale is 1, become 0: a density would be a spike
        at each of them.
        """
        off = (x.astype(np.float64) - self.centre) / self.scale
        for j in np.flatnonzero((self.scale == 1) & (self.centre != 0)):
            off[..., j][np.abs(off[..., j]) <= _rounding_errors(x.dtype, self.centre[j])] = 0.0
        return off

    def invert(self, z: np.ndarray) -> np.ndarray:
        """Back to the units of the data."""
        return z * self.scale + self.centre

    @property
    def log_volume(self) -> float:
        """Log volume, in the units of the data, of a unit cube in the units of the energy."""
        return float(np.log(self.scale).sum())


def learn_units(
    X: np.ndarray | MappedArray,
    weight: np.ndarray | None,
    standardize: bool,
    bounds: Any,
    names: Sequence[str] | None = None,
) -> Units:
    """Weighted centres and scales of columns; bounds become 0, or 0 and 1.

    Constant columns have a scale of 1. Computed in float64, whatever the type of X, over the known
    values.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        factor = extreme_factors(*column_ranges(X))
        if isinstance(X, MappedArray):
            mean, scale = moments_of_map(X, weight, factor)
        else:
            x = X.astype(np.float64) if factor is None else X.astype(np.float64) * factor
            mean = _mean_of_known(x, weight)
            scale = _mean_of_known(np.square(x - mean), weight)
        scale = np.sqrt(scale)
        if factor is not None:
            mean, scale = mean / factor, scale / factor
    if not np.isfinite(scale).all():
        raise ValueError(
            f"The range of columns {list_columns(~np.isfinite(scale), names)} overflows a float: "
            "divide them by their largest absolute value first."
        )
    constant = _is_constant(X, mean, scale)
    if not standardize and bounds is None:
        _warn_of_large_means(mean, np.where(constant, np.inf, scale), names)
    scale = np.where(constant, 1.0, scale)
    lower, upper = check_bounds(X, bounds, names)
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
    rounding = _rounding_errors(X.dtype, mean)
    # Large numbers may be coarse and vary nevertheless: timestamps in float32 are rounded to two
    # minutes. As their scale would stay what it is, what varies by much never counts as constant.
    narrow = scale <= np.minimum(rounding, 1e-3)
    low, high = column_ranges(X)
    return (low == high) | narrow


def _rounding_errors(dtype: Any, mean: np.ndarray) -> np.ndarray:
    """Sizes of the rounding errors of numbers of a type around means."""
    own = np.finfo(dtype).eps if np.dtype(dtype).kind == "f" else 0.0
    found: np.ndarray = max(100 * np.finfo(np.float64).eps, own) * np.abs(mean)
    return found


def _mean_of_known(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Weighted means of the columns over their known values."""
    known = ~np.isnan(x)
    if known.all():
        return np.average(x, axis=0, weights=weight)
    share = known if weight is None else known * weight[:, None]
    total: np.ndarray = (share * np.where(known, x, 0.0)).sum(0) / share.sum(0)
    return total


def list_columns(which: np.ndarray, names: Sequence[str] | None) -> list[Any]:
    """The columns of a mask (d,) by their names, or by their numbers where they have none."""
    numbers: list[int] = np.flatnonzero(which).tolist()
    return numbers if names is None else [str(names[j]) for j in numbers]


def _warn_of_large_means(mean: np.ndarray, scale: np.ndarray, names: Sequence[str] | None) -> None:
    """Warn of columns that a network cannot tell from constants, as they are not standardised."""
    # Mean of a column, in standard deviations, above which it should not be left as it is.
    large_mean = 10_000
    columns = list_columns(np.abs(mean) > large_mean * scale, names)
    if columns:
        warn(
            f"Columns {columns} have means of more than {large_mean:,} times their standard "
            "deviations, and standardize=False leaves them so: training is likely to diverge.",
            DataWarning,
            ("Use standardize=True, or subtract the means first.", "standardize"),
            ("Subtract the means first.",),
        )


def check_bounds(
    X: Any, bounds: Any, names: Sequence[str] | None = None
) -> tuple[np.ndarray | None, np.ndarray | None]:
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
                f"Columns {list_columns(out, names)} have values {side} bound: widen `bounds`, "
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
