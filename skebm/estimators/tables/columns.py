"""Columns of frames and arrays: their names, and categories as codes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array

from skebm._validation import (
    advice_for,
    check_container,
    check_has_rows,
    check_two_dimensions,
    column_of,
    dense_columns,
    is_frame,
    kind_of,
    mask_as_missing,
    no_column,
    warn,
)
from skebm.base import DataWarning
from skebm.estimators.tables.dtypes import dtype_of, plain_dtype

# Levels that occur, as a fraction of the rows, from which on a column is one of identifiers, and
# fewest rows of which that is said.
IDENTIFIERS, FEWEST_OF_THEM = 0.9, 20

# ------------------------------------------------------------------------------
# Any table
# ------------------------------------------------------------------------------


def as_table(X: Any) -> Any:
    """Dense frames and arrays unchanged, anything else as a two-dimensional dense table."""
    if is_frame(X):
        return dense_columns(X)
    check_two_dimensions(X)
    return X.toarray() if sp.issparse(X) else np.asarray(mask_as_missing(X))


def column_names(X: Any) -> list[str]:
    """Names of the columns, or ``x0``, ``x1``, ... if they have none."""
    if is_frame(X):
        return [str(name) for name in X.columns]
    return [f"x{j}" for j in range(X.shape[1])]


def column_numbers(argument: str, asked: Any, names: Sequence[str] | None, d: int) -> list[int]:
    """Numbers of the columns that an argument lists, in its order; `ValueError` if it is invalid.

    Parameters
    ----------
    argument : str
        Its name, for messages.
    asked : int, str, or array-like of such or of d booleans
    names : sequence of str or None
        Names of the d columns, where they have any.
    d : int
    """
    several = [asked] if isinstance(asked, str) or not np.iterable(asked) else list(asked)
    if len(several) == d and all(isinstance(part, bool | np.bool_) for part in several):
        return [j for j in range(d) if several[j]]
    found = []
    for part in several:
        if isinstance(part, str):
            if names is None or part not in list(names):
                raise no_column(argument, part, names)
            found.append(list(names).index(part))
            continue
        number = isinstance(part, int | np.integer) and not isinstance(part, bool)
        if not number or not -d <= part < d:
            raise ValueError(
                f"{argument}={asked!r} must hold names or numbers of columns of X, which has "
                f"n_features={d}, or be a mask of as many booleans."
            )
        found.append(int(part) % d)
    return found


def present_values(column: Any) -> np.ndarray:
    """Values of a column without the missing ones: floats, or objects if it is not numeric."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        values = values.astype(float)
        return values[~np.isnan(values)]
    # A missing entry is None, pandas.NA (whose comparisons are NA) or not equal to itself.
    return np.array([v for v in values.tolist() if is_present(v)], dtype=object)


def is_present(value: Any) -> bool:
    """Whether a value is not missing: neither None, nor nan, nor that of pandas."""
    if isinstance(value, np.ndarray):  # a list in a cell, which compares entry by entry
        return True
    same = value == value
    return value is not None and isinstance(same, (bool, np.bool_)) and bool(same)


# ------------------------------------------------------------------------------
# Categories
# ------------------------------------------------------------------------------


class Coding(NamedTuple):
    """The categorical columns of a table and their levels.

    Attributes
    ----------
    levels : dict of int to tuple
        Levels of each categorical column, by its number; codes are their places.
    names : list of str
        Names of all columns, for messages.
    dtypes : list
        Of the columns, as plain values.
    kind : {"pandas", "polars", "array"}
        Of the table that was fitted; samples are such tables.
    booleans : list of int
        Columns of other types that hold booleans, and may have missing entries.
    ranges : dict of int to tuple of float
        Smallest and largest value of each column of integers in `fit`; draws stay between them, as
        counts of -1 or 256 would be no values of such a column, or of its type.
    """

    levels: dict[int, tuple[Hashable, ...]]
    names: list[str]
    dtypes: list[Any]
    kind: str
    booleans: list[int]
    ranges: dict[int, tuple[float, float]]

    @classmethod
    def learn(cls, X: Any, categorical_features: Any) -> Coding | None:
        """The categorical columns of a table; None where there are none.

        `ValueError` for columns with one level or none, and for numbers of columns out of range.
        """
        check_container(X)
        check_has_rows(X)
        if sp.issparse(X):
            if categorical_features not in (None, "from_dtype"):
                raise ValueError(
                    "Sparse X has no categorical columns: pass a dense array or frame."
                )
            return None
        X = X if is_frame(X) else np.asarray(X)
        if not is_frame(X) and X.ndim != 2:
            return None  # validation says what is wrong
        names = column_names(X)
        picked = _categorical(X, names, categorical_features)
        if not picked:
            return None
        levels = {j: _levels_of_column(column_of(X, j), names[j]) for j in picked}
        kind = "pandas" if hasattr(X, "iloc") else "polars" if is_frame(X) else "array"
        dtypes = [
            plain_dtype(t, kind) for t in (X.dtypes if is_frame(X) else [X.dtype] * len(names))
        ]
        booleans = [
            j
            for j in range(len(names))
            if j not in levels and dtypes[j][0].lower() == "object" and _is_boolean(column_of(X, j))
        ]
        integers = [
            j
            for j in range(len(names))
            if j not in levels and re.match(r"u?int\d", dtypes[j][0].lower())
        ]
        values = {j: present_values(column_of(X, j)).astype(float) for j in integers}
        ranges = {j: (float(v.min()), float(v.max())) for j, v in values.items() if len(v)}
        return cls(levels, names, dtypes, kind, booleans, ranges)

    def within_ranges(self, x: np.ndarray, columns: Sequence[int]) -> np.ndarray:
        """Draws of some columns, (n, d), with those of integers within what `fit` has seen."""
        x = x.copy()
        for place, j in enumerate(columns):
            if j in self.ranges:
                x[:, place] = x[:, place].clip(*self.ranges[j])
        return x

    def codes(self, X: Any, estimator: str = "RBMEstimator") -> np.ndarray:
        """Numbers and codes of levels, (n, d) float64.

        nan is missing, -1 a level that did not occur in `fit`.
        """
        X = as_table(X)
        found = np.empty(X.shape)
        for j in range(X.shape[1]):
            column = column_of(X, j)
            if j not in self.levels:
                found[:, j] = _as_numbers(column, self.names[j], estimator)
                continue
            place = {level: code for code, level in enumerate(self.levels[j])}
            found[:, j] = [
                place.get(_plain(v, self.names[j]), -1) if is_present(v) else np.nan
                for v in _objects(column)
            ]
        return found

    def encode(self, X: Any, min_samples: int = 1, estimator: str = "RBMEstimator") -> np.ndarray:
        """Columns as numbers, categories as codes, (n, d) float64; nan where missing.

        Levels that did not occur in `fit` are missing, too, with a warning. `ValueError` for
        infinite numbers.
        """
        found, unseen = self.codes(X, estimator), []
        for j in self.levels:
            new = found[:, j] < 0
            if new.any():
                unseen.append(self.names[j])
                found[new, j] = np.nan
        if unseen:
            warn(
                f"Columns {unseen} have levels that did not occur in fit: they count as missing.",
                DataWarning,
            )
        infinite = np.isinf(found).any(0)
        if infinite.any():
            raise ValueError(
                f"Input X contains infinity, in column {self.names[int(infinite.argmax())]!r}."
            )
        check_array(
            found,
            ensure_all_finite="allow-nan",
            ensure_min_samples=min_samples,
            estimator=estimator,
            input_name="X",
        )
        return found

    def check_values(self, argument: str, X: Any) -> None:
        """Raise `ValueError` for entries of X that its columns cannot have.

        They are levels that did not occur in `fit`, and fractions in columns of integers.
        """
        X, codes = as_table(X), self.codes(X)
        fraction = np.zeros(codes.shape, dtype=bool)
        for j in self.ranges:
            fraction[:, j] = np.isfinite(codes[:, j]) & (codes[:, j] % 1 != 0)
        wrong = fraction.copy()
        for j in self.levels:
            wrong[:, j] = codes[:, j] < 0
        if not wrong.any():
            return
        row, j = (int(place) for place in np.argwhere(wrong)[0])
        value = _objects(column_of(X, j))[row]
        known = "it holds integers" if fraction[row, j] else f"its levels are {self.levels[j]}"
        raise ValueError(
            f"{argument} has the value {value!r} of column {self.names[j]!r}, which it cannot "
            f"have: {known}."
        )

    def warn_of_identifiers(self, codes: np.ndarray) -> None:
        """Warn of columns of the rows of `fit` in which nearly every row has its own level."""
        found, numeric = [], []
        for j in self.levels:
            known = codes[~np.isnan(codes[:, j]), j]
            n_levels = len(np.unique(known))
            if len(known) >= FEWEST_OF_THEM and n_levels >= IDENTIFIERS * len(known):
                found.append(f"{self.names[j]!r} ({n_levels} levels in {len(known)} rows)")
                if 2 * sum(map(is_number, self.levels[j])) > len(self.levels[j]):
                    numeric.append(self.names[j])
        if found:
            convert = f" Make numbers of {numeric[0]!r}, by pandas.to_numeric." if numeric else ""
            warn(
                f"Columns {', '.join(found)} have levels that occur once, which say nothing of new "
                f"rows and cost a number each: drop such columns.{convert}",
                DataWarning,
            )

    def decode(self, x: np.ndarray) -> Any:
        """Numbers and codes as a table of the kind that was fitted."""
        columns = [
            _object_array([self.levels[j][round(code)] for code in x[:, j]])
            if j in self.levels
            else x[:, j].round().astype(bool).astype(object)
            if j in self.booleans
            else x[:, j].round()
            if j in self.ranges
            else x[:, j]
            for j in range(x.shape[1])
        ]
        if self.kind == "pandas":
            import pandas as pd

            frame = pd.DataFrame(dict(enumerate(columns)))
            for j, dtype in enumerate(dtype_of(t, self.kind) for t in self.dtypes):
                if j in self.levels:
                    frame[j] = frame[j].astype(dtype)
                elif getattr(dtype, "kind", "O") in "biuf":
                    frame[j] = (frame[j] if dtype.kind == "f" else frame[j].round()).astype(dtype)
            frame.columns = self.names
            return frame
        if self.kind == "polars":
            import polars as pl

            made = [
                pl.Series(name, column.tolist())
                for name, column in zip(self.names, columns, strict=True)
            ]
            dtypes = [dtype_of(t, self.kind) for t in self.dtypes]
            return pl.DataFrame(made).cast(dict(zip(self.names, dtypes, strict=True)))
        rows, dtype = np.stack([c.astype(object) for c in columns], 1), np.dtype(self.dtypes[0][0])
        return rows.astype(dtype) if dtype.kind in "biuf" else rows


def _object_array(values: list[Any]) -> np.ndarray:
    """Values as an array of objects, of one dimension also where they are sequences themselves."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _categorical(X: Any, names: list[str], asked: Any) -> list[int]:
    """Numbers of the categorical columns."""
    d = len(names)
    if asked is None:
        return []
    if isinstance(asked, str):
        if is_frame(X):
            return [j for j in range(d) if _is_categorical(column_of(X, j))]
        if X.dtype.kind in "US":
            return list(range(d))
        return [j for j in range(d) if X.dtype == object and _holds_levels(X[:, j])]
    return sorted(set(column_numbers("categorical_features", asked, names, d)))


def _is_categorical(column: Any) -> bool:
    """Whether a column of a frame holds text or categories, or other objects than numbers."""
    if str(column.dtype).lower() == "object":
        return _holds_levels(column)
    return kind_of(column) in ("text", "categories", "intervals")


def _is_boolean(column: Any) -> bool:
    """Whether a column of objects holds booleans besides missing entries."""
    return all(isinstance(v, bool | np.bool_) for v in _objects(column) if is_present(v))


def _holds_levels(column: Any) -> bool:
    """Whether a column of objects holds levels: no numbers, dates or durations.

    Of a day, another one says nothing as a level; as a number it does.
    """
    return kind_of(column) not in (None, "complex numbers", "dates", "durations")


def is_number(level: Any) -> bool:
    """Whether a level is a number, or text that is read as one."""
    try:
        float(level)
    except (TypeError, ValueError):
        return False
    return True


def _objects(column: Any) -> list[Any]:
    return list(column.to_list() if hasattr(column, "to_list") else column.tolist())


def _plain(value: Any, name: str) -> Hashable:
    """A level of a column of that name that compares and hashes alike in arrays and in frames."""
    value = value.item() if isinstance(value, np.generic) else value
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(
            f"Column {name!r} holds values that are no levels of a category: the argument must be "
            f"a string or a number, not {type(value).__name__!r}. Make columns of their entries "
            "first, or drop it."
        ) from error
    return value


def _levels_of_column(column: Any, name: str) -> tuple[Hashable, ...]:
    """Levels of a column: those a category declares, or those that occur, in order."""
    categories = getattr(getattr(column, "cat", None), "categories", None)
    found = dict.fromkeys(_plain(v, name) for v in _objects(column) if is_present(v))
    declared = (
        [] if categories is None or callable(categories) else [_plain(v, name) for v in categories]
    )
    levels = list(dict.fromkeys([*declared, *found]))
    if not found:
        raise ValueError(f"Column {name!r} is missing in all rows: drop it.")
    if not declared:
        # By type and value, so that numbers and strings may be mixed.
        try:
            levels.sort(key=lambda v: (type(v).__name__, v) if not isinstance(v, bool) else ("", v))
        except TypeError:  # members of an enumeration, for example, have no order
            levels.sort(key=lambda v: (type(v).__name__, repr(v)))
    return tuple(levels)


def _as_numbers(column: Any, name: str, estimator: str) -> np.ndarray:
    """A column as float64, nan where missing; `ValueError` that names one with text."""
    what = kind_of(column) if hasattr(column, "dtype") and hasattr(column, "name") else None
    if what not in (None, "text", "categories"):
        raise ValueError(f"Column {name!r} holds {what}. {advice_for(what, estimator)}")
    try:
        return np.array([float(v) if is_present(v) else np.nan for v in _objects(column)])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Column {name!r} holds values that are no numbers ({error}): list it in "
            "categorical_features, or convert it."
        ) from error
