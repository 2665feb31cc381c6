"""What methods return for rows: the types, and of frames the index and columns, of those rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from skebm._validation import column_of, is_frame


def frame_like(X: Any, rows: Any, *, means: bool = False) -> Any:
    """Rows as a frame with the index, the columns and the types of X, or as an array of its type.

    Parameters
    ----------
    X : array-like
        What a method was given, with a row for each row of the result.
    rows : ndarray or frame of shape (n, d)
        In the order of the columns of X.
    means : bool, default=False
        Whether numbers are means and probabilities: columns of integers and booleans are then of
        floats. Otherwise they are rounded.
    """
    if not is_frame(X):
        is_whole = isinstance(X, np.ndarray) and X.dtype.kind in "biu" and not means
        return np.rint(rows.astype(np.float64)).astype(X.dtype) if is_whole else rows
    columns = [_column(rows, j) for j in range(X.shape[1])]
    if hasattr(X, "iloc"):
        import pandas as pd

        found = [
            _as_pandas(values, dtype, X.index, means)
            for values, dtype in zip(columns, X.dtypes, strict=True)
        ]
        frame = pd.concat(found, axis=1) if found else pd.DataFrame(index=X.index)
        frame.columns = X.columns
        return frame
    import polars as pl

    made = [
        _as_polars(pl, name, values, dtype, means)
        for (name, dtype), values in zip(X.schema.items(), columns, strict=True)
    ]
    return pl.DataFrame(made)


def frame_beside(C: Any, rows: np.ndarray, names: list[str]) -> Any:
    """Numbers of other columns, (n, d), as a frame of the kind and with the index of C, if any."""
    if not is_frame(C):
        return rows
    if hasattr(C, "iloc"):
        import pandas as pd

        return pd.DataFrame(rows, index=C.index, columns=names)
    import polars as pl

    return pl.DataFrame(rows, schema=names)


def as_given(method: Callable[..., Any] | None = None, *, means: bool = False) -> Any:
    """Let a method that returns rows for rows of X return frames for frames; also lists of them."""
    if method is None:
        return functools.partial(as_given, means=means)

    @functools.wraps(method)
    def returning(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(self, X, *args, **kwargs)
        if isinstance(found, list):
            return [frame_like(X, rows, means=means) for rows in found]
        return frame_like(X, found, means=means)

    return returning


def _column(rows: Any, j: int) -> np.ndarray:
    """Column `j` as an array."""
    column = column_of(rows, j)
    return column.to_numpy() if is_frame(rows) else np.asarray(column)


def _as_pandas(values: np.ndarray, dtype: Any, index: Any, means: bool) -> Any:
    """A column of pandas of the type, or of the type of the values where it cannot hold them."""
    import pandas as pd

    kind = getattr(dtype, "kind", "O")
    if isinstance(dtype, pd.CategoricalDtype):
        levels = dict.fromkeys([*dtype.categories, *values.tolist()])
        if len(levels) > len(dtype.categories):  # levels of fit that X does not declare
            dtype = pd.CategoricalDtype(list(levels), ordered=dtype.ordered)
        return pd.Series(values, index=index, dtype=dtype)
    if kind == "O":  # text, and objects such as booleans beside missing entries
        return pd.Series(values.astype(object), index=index).astype(dtype)
    if _are_other_than_numbers(values):  # levels of a column that is empty in X
        return pd.Series(values, index=index)
    numbers = values.astype(np.float64)
    if kind in "biu":
        if means:
            return pd.Series(numbers, index=index)
        numbers = np.rint(numbers).astype(bool if kind == "b" else np.int64)
    return pd.Series(numbers, index=index).astype(dtype)


def _are_other_than_numbers(values: np.ndarray) -> bool:
    """Whether values hold texts or other objects than numbers."""
    kinds = int | float | bool | np.number | np.bool_
    return values.dtype == object and not all(isinstance(value, kinds) for value in values)


def _as_polars(pl: Any, name: str, values: np.ndarray, dtype: Any, means: bool) -> Any:
    """A column of polars of the type, or of the type of the values where it cannot hold them."""
    if dtype == pl.Null or dtype.is_numeric() and _are_other_than_numbers(values):
        return pl.Series(name, values.tolist())
    if dtype.is_integer() or dtype == pl.Boolean:
        numbers = values.astype(np.float64)
        if means:
            return pl.Series(name, numbers)
        whole = np.rint(numbers).astype(bool if dtype == pl.Boolean else np.int64)
        return pl.Series(name, whole).cast(dtype)
    if dtype.is_numeric():
        return pl.Series(name, values.astype(np.float64)).cast(dtype)
    return pl.Series(name, values.tolist()).cast(dtype)
