"""Columns of arrays and data frames, and copies of a table with other values in one column."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from skebm._validation import (
    MOST_COPIES,
    column_of,
    distinct_numbers_of,
    is_frame,
    n_rows,
    take_rows,
)
from skebm.estimators.tables.columns import as_table, column_names, is_present, present_values
from skebm.estimators.tables.encoding import days_for_dates
from skebm.estimators.tables.encoding.dates import DATES, days_of_column, read_times
from skebm.training.mapped import is_large

# A numeric column with more distinct values than this is integrated over, not enumerated.
MAX_LEVELS = 20
# Maximum number of rows and of entries from which columns are summarised.
MAX_ROWS, MAX_ENTRIES = 1000, 1_000_000
MICROSECONDS_OF_A_DAY = 86_400_000_000
# Microseconds of what dates and durations may be whole numbers of: days, hours, minutes, seconds.
TIME_UNITS = (MICROSECONDS_OF_A_DAY, 3_600_000_000, 60_000_000, 1_000_000)


class Column(NamedTuple):
    """Summary of a column: its values, or their quantiles, and how often each occurs.

    Those of dates and durations, the `times`, are numbers of days; `unit` is that of which all of
    them are whole numbers, in microseconds.
    """

    name: str
    levels: np.ndarray
    counts: np.ndarray
    discrete: bool
    times: str = ""
    unit: int = 1

    def numbers_of(self, X: Any, j: int) -> np.ndarray:
        """Column `j` of a table as numbers; of dates and durations as days."""
        column = column_of(X, j)
        values = days_of_column(column, self.name) if self.times else None
        return np.asarray(column if values is None else values, dtype=float)

    def in_own_units(self, values: np.ndarray) -> np.ndarray:
        """Values as they are in the column: dates and durations, if it holds these."""
        if not self.times:
            return values
        found: np.ndarray = (values * MICROSECONDS_OF_A_DAY).round().astype("m8[us]")
        return found + np.datetime64(0, "us") if self.times == DATES else found

    def as_expected(self, values: np.ndarray) -> np.ndarray:
        """Means in the units of the column, those of dates of whole days by the day, and so on."""
        in_days = self.unit / MICROSECONDS_OF_A_DAY
        return self.in_own_units((values / in_days).round() * in_days if self.times else values)


def summarise_columns(X: Any, *, text_is_dates: bool) -> list[Column] | None:
    """Summaries of the columns of a table; None if X does not have two dimensions.

    With `text_is_dates`, columns of text where all entries are dates are dates.
    """
    shape = X.shape if hasattr(X, "shape") else np.shape(X)
    if len(shape) != 2:
        return None
    n, d = shape
    some = np.linspace(0, n - 1, min(n, MAX_ROWS, max(100, MAX_ENTRIES // max(1, d))))
    table, times = read_times(
        as_table(take_rows(X, some.astype(int))), None if text_is_dates else ()
    )
    names = column_names(table)
    found = []
    for j, name in enumerate(names):
        values = present_values(column_of(table, j))
        column = summarise_column(name, values)
        if j in times.kinds:
            column = column._replace(times=times.kinds[j], unit=time_unit(values))
        found.append(column)
    return found


def time_unit(in_days: np.ndarray) -> int:
    """Largest of TIME_UNITS, or a microsecond, of which times are whole numbers."""
    exact = (np.asarray(in_days, dtype=float) * MICROSECONDS_OF_A_DAY).round()
    return next((unit for unit in TIME_UNITS if not (exact % unit).any()), 1)


def numeric_columns(X: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of the columns of numbers and dates of a table, nan where missing.

    None of a large memory map, which would have to be read for each.
    """
    if is_large(X):
        return
    table = days_for_dates(as_table(X))
    for j, name in enumerate(column_names(table)):
        column = column_of(table, j)
        try:
            values = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):  # of text and categories
            continue
        yield name, values


def summarise_column(name: str, values: np.ndarray) -> Column:
    """All distinct values of a column, or quantiles of a numeric column with many."""
    if values.dtype == object:
        # Not sorted: the objects of one column may have different types.
        levels = np.array(list(dict.fromkeys(values.tolist())), dtype=object)
        counts = np.array([np.sum(values == level) for level in levels], dtype=float)
        return Column(name, levels, counts, True)
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) <= MAX_LEVELS:
        return Column(name, levels, counts.astype(float), True)
    # Number of quantiles that are stored of such a column.
    n_quantiles = 25
    return Column(
        name, np.quantile(values, np.linspace(0, 1, n_quantiles)), np.ones(n_quantiles), False
    )


def distinct_rows_of(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the first of each set of equal rows, and for each row which set it is.

    Rows that are no dense two-dimensional table in memory are taken to differ, and so are those
    whose columns have few values each, and those that occur very often beside the rarest ones: they
    are values that recur, also among new rows.
    """
    n, shape = n_rows(X), X.shape if hasattr(X, "shape") else np.shape(X)
    if sp.issparse(X) or len(shape) != 2 or is_large(X):
        return np.arange(n), np.arange(n)
    table = as_table(X)
    codes = table
    if is_frame(table) or table.dtype.kind not in "biuf":
        codes = np.column_stack([_codes(column_of(table, j)) for j in range(shape[1])])
    # Rows of bits and levels recur without being copies.
    if all(len(np.unique(column)) <= MAX_LEVELS for column in codes.T):
        return np.arange(n), np.arange(n)
    first, member = distinct_numbers_of(codes)
    count = np.bincount(member)
    recurs = (count > MOST_COPIES * count.min())[member]
    if recurs.any():
        each = np.where(recurs, len(first) + np.arange(n), member)
        _, first, member = np.unique(each, return_index=True, return_inverse=True)
    return first, member


def _codes(column: Any) -> np.ndarray:
    """Numbers that are equal where the values of a column are; NaN where one is missing."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values.astype(float)
    seen: dict[Any, float] = {}
    found = np.empty(len(values))
    for i, value in enumerate(values.tolist()):
        if not is_present(value):
            found[i] = np.nan
            continue
        key = value if isinstance(value, Hashable) else (i, "no copy of another value")
        found[i] = seen.setdefault(key, float(len(seen)))
    return found


def with_column(X: Any, j: int, values: np.ndarray, *, keep_dtype: bool) -> Any:
    """Repeat each row for `m` values of column `j`, given as (n, m).

    With `keep_dtype`, integer and boolean columns of a frame keep their dtype.
    """
    n, m = values.shape
    wide = take_rows(X, np.repeat(np.arange(n), m))
    flat = values.ravel()
    if not is_frame(X):
        # Values may be fractions in integer columns, and strings may be longer than those of X.
        other = {"b": float, "i": float, "u": float, "U": object, "S": object}
        wide = np.array(wide, dtype=other.get(wide.dtype.kind))
        wide[:, j] = flat
        return wide
    old = column_of(wide, j)
    if hasattr(X, "iloc"):
        new = type(old)(flat, index=wide.index)
        if getattr(old.dtype, "tz", None) is not None and flat.dtype.kind == "M":
            new = new.dt.tz_localize("UTC").dt.tz_convert(old.dtype.tz)
        keep = keep_dtype and getattr(old.dtype, "kind", "O") in "biu"
        wide = wide.copy()
        wide.isetitem(j, new.astype(old.dtype) if keep else new)
        return wide
    new = type(old)(old.name, flat.tolist())
    if getattr(old.dtype, "time_zone", None) is not None and flat.dtype.kind == "M":
        new = new.dt.replace_time_zone("UTC").dt.convert_time_zone(old.dtype.time_zone)
    keep = keep_dtype and (old.dtype.is_integer() or str(old.dtype) == "Boolean")
    return wide.with_columns(new.cast(old.dtype) if keep else new)
