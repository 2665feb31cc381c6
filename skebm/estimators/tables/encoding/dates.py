"""Columns of dates and durations as numbers of days, and the time of day and weekday of dates."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from skebm._validation import (
    check_container,
    check_two_dimensions,
    column_of,
    is_frame,
    mask_as_missing,
)
from skebm.estimators.tables.columns import column_names, is_present

# Dates that are written as text, as in files of comma-separated values.
ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?")
DATES, DURATIONS = "dates", "durations"
ONE_DAY = np.timedelta64(1, "D")


class Times(NamedTuple):
    """The columns of dates and durations of a table.

    Attributes
    ----------
    kinds : dict of int to str
        ``"dates"`` or ``"durations"``, by the number of the column.
    text : tuple of int
        Columns of dates that are text.
    local : dict of int to ndarray of shape (n,)
        Days of columns of dates by the clocks of their time zones; nan where missing.
    """

    kinds: dict[int, str]
    text: tuple[int, ...]
    local: dict[int, np.ndarray]

    @property
    def dates(self) -> list[int]:
        """Numbers of the columns of dates."""
        return [j for j, kind in self.kinds.items() if kind == DATES]


def days_for_dates(X: Any) -> Any:
    """A table whose columns of dates and durations are numbers of days, nan where missing."""
    return read_times(X)[0]


def days_of_column(column: Any, name: str) -> np.ndarray | None:
    """A column of dates or durations as numbers of days, nan where missing; None for others."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "Mm":
        return days(column)
    read = _times_of(column, name, None)
    return None if read is None else days(read[0])


def read_times(X: Any, text: Iterable[int] | None = None) -> tuple[Any, Times]:
    """A table whose dates and durations are numbers of days since 1970 in UTC, and which they are.

    Parameters
    ----------
    X : {array-like, frame} of shape (n_samples, n_features)
    text : iterable of int or None
        Columns whose text is dates. None: those where each entry is a date of ISO 8601.
    """
    check_container(X)
    if sp.issparse(X):
        raise ValueError("Sparse X: pass X.toarray().")
    check_two_dimensions(X)
    if not is_frame(X):
        X = np.asarray(mask_as_missing(X))
    if isinstance(X, np.ndarray) and X.dtype.kind != "O":
        if X.dtype.kind not in "Mm":
            return X, Times({}, (), {})
        kind = DATES if X.dtype.kind == "M" else DURATIONS
        X = days(X)
        columns = range(X.shape[1])
        return X, Times(
            dict.fromkeys(columns, kind), (), {j: X[:, j] for j in columns if kind == DATES}
        )
    kinds: dict[int, str] = {}
    found, local = {}, {}
    names, of_text = column_names(X), []
    for j, name in enumerate(names):
        read = _times_of(column_of(X, j), name, None if text is None else j in set(text))
        if read is None:
            continue
        instants, on_clock, is_text = read
        found[j] = days(instants)
        kinds[j] = DATES if instants.dtype.kind == "M" else DURATIONS
        if kinds[j] == DATES:
            local[j] = found[j] if on_clock is None else days(on_clock)
        if is_text:
            of_text.append(j)
    return _with_columns(X, found), Times(kinds, tuple(of_text), local)


def _with_columns(X: Any, columns: dict[int, np.ndarray]) -> Any:
    """A table with other values in some of its columns."""
    if not columns:
        return X
    if isinstance(X, np.ndarray):
        X = X.copy()
        for j, values in columns.items():
            X[:, j] = values
        return X
    if hasattr(X, "iloc"):
        X = X.copy(deep=False)
        for j, values in columns.items():
            X.isetitem(j, values)
        return X
    import polars as pl

    return X.with_columns([pl.Series(X.columns[j], values) for j, values in columns.items()])


def _times_of(
    column: Any, name: str, is_text: bool | None
) -> tuple[np.ndarray, np.ndarray | None, bool] | None:
    """Instants of a column in UTC, those on local clocks where they differ, and whether it is text.

    None for a column of other things. `is_text` is None where the entries decide.
    """
    dtype = str(column.dtype).lower()
    if dtype.startswith("period"):  # of pandas: months, for example, by their starts
        column, dtype = column.dt.to_timestamp(), "datetime"
    if dtype.startswith(("timestamp", "date32", "date64")):  # of Arrow, in pandas
        zone = getattr(column.dtype.pyarrow_dtype, "tz", None)
        dtype = "datetime64[us]" if zone is None else f"datetime64[us, {zone}]"
        column = column.astype(dtype)
    if dtype.startswith(("datetime", "date", "timedelta", "duration")):
        kind = "m" if dtype[:2] in ("ti", "du") else "M"
        return _instants(column, kind), _on_clock(column, kind), False
    if is_text or dtype.startswith(("object", "str", "large_string", "utf8")):
        return _times_of_objects(column, name, is_text)
    return None


def _instants(column: Any, kind: str) -> np.ndarray:
    """A column of dates or durations as an array of them; dates with a time zone in UTC."""
    if getattr(column.dtype, "tz", None) is not None:  # of pandas
        column = column.dt.tz_convert(None)
    return np.asarray(column.to_numpy(), dtype=f"{kind}8[us]")


def _on_clock(column: Any, kind: str) -> np.ndarray | None:
    """A column of dates with a time zone, by the clocks there; None without one."""
    if getattr(column.dtype, "tz", None) is not None:  # of pandas
        return _instants(column.dt.tz_localize(None), kind)
    if getattr(column.dtype, "time_zone", None) is not None:  # of polars
        return _instants(column.dt.replace_time_zone(None, ambiguous="earliest"), kind)
    return None


def _times_of_objects(
    column: Any, name: str, is_text: bool | None
) -> tuple[np.ndarray, np.ndarray | None, bool] | None:
    """Dates and durations that are objects of Python, or text; None if it holds other things."""
    values = list(column.to_list() if hasattr(column, "to_list") else column.tolist())
    present = [i for i, v in enumerate(values) if is_present(v)]
    some = [values[i] for i in present]
    instants = np.full(len(values), np.datetime64("NaT", "us"), dtype="M8[us]")
    if some and all(isinstance(v, datetime.timedelta | np.timedelta64) for v in some):
        durations = np.full(len(values), np.timedelta64("NaT", "us"), dtype="m8[us]")
        durations[present] = np.array(some, dtype="m8[us]")
        return durations, None, False
    if some and all(isinstance(v, datetime.date | np.datetime64) for v in some):
        has_zone = _has_zone(some, name)
        instants[present] = [_plain_date(v) for v in some]
        local = None
        if has_zone:
            local = instants.copy()
            local[present] = [np.datetime64(v.replace(tzinfo=None), "us") for v in some]
        return instants, local, False
    if is_text is False:
        return None
    dated = [isinstance(v, str) and ISO.fullmatch(v.strip()) is not None for v in some]
    if not is_text and not (some and all(dated)):
        return None
    if not all(dated):
        wrong = some[dated.index(False)]
        raise ValueError(
            f"Column {name!r} held dates in fit, and holds {wrong!r} now, which is none of the "
            "form 2024-12-31 or 2024-12-31 23:59. Replace it by None if it is missing."
        )
    try:
        read = [datetime.datetime.fromisoformat(v.strip()) for v in some]
    except ValueError:  # such as a thirtieth of February, in a column of codes
        if not is_text:
            return None
        raise
    _has_zone(read, name)
    instants[present] = [_plain_date(v) for v in read]
    return instants, None, True


def _has_zone(dates: list[Any], name: str) -> bool:
    """Whether dates have a time zone; `ValueError` if only some of them have one."""
    aware = {getattr(one, "tzinfo", None) is not None for one in dates}
    if len(aware) > 1:
        raise ValueError(
            f"Column {name!r} mixes dates with and without a time zone. Convert it first, as by "
            "pandas.to_datetime(column, utc=True)."
        )
    return aware == {True}


def _plain_date(value: Any) -> np.datetime64:
    """A date of Python, pandas or NumPy as one of NumPy, in UTC."""
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")


def days(x: np.ndarray) -> np.ndarray:
    """Dates and durations as numbers of days; those that are missing as nan."""
    since = x if x.dtype.kind == "m" else x - np.datetime64(0, "D")
    return np.where(np.isnat(x), np.nan, since / ONE_DAY)
