"""Tables of any columns as numbers, for densities of numbers."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.impute import KNNImputer
from sklearn.preprocessing import StandardScaler

from skebm._validation import (
    Interval,
    StrOptions,
    check_columns,
    check_container,
    check_is_fitted,
    check_two_dimensions,
    column_of,
    column_ranges,
    fit_context,
    is_frame,
    mask_as_missing,
    validate_data,
)
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic
from skebm.estimators.tables.columns import Coding, column_names
from skebm.estimators.tables.units import extreme_factors
from skebm.training.streams import SourceMixin

# Value of a column for levels that did not occur in fit; the column is 0 in all rows of fit, and
# densities take one that does not vary to have a standard deviation of 1.
UNSEEN = 10.0


class OneHot(NamedTuple):
    """One-hot columns of a categorical column.

    Attributes
    ----------
    names : list of str
        Of the one-hot columns, that of unseen levels last.
    codes : ndarray of shape (n_levels + 1, n_columns)
        Row of each level; the last one is that of unseen levels, code -1.
    """

    names: list[str]
    codes: np.ndarray

    @classmethod
    def learn(cls, name: str, levels: tuple[Any, ...], codes: np.ndarray, most: int) -> OneHot:
        """A column for each level that occurs, up to `most`; rarer levels are directions in these.

        If all rare levels were one point, it would hold most rows of a column of many levels, and
        the commonest levels would be the abnormal ones. Random directions are points of their own,
        about as far from each other and from the common levels as these are from each other, so
        that no level has the probability of others. Levels that are declared but do not occur are
        unseen ones.
        """
        counts = np.bincount(codes[codes >= 0].astype(int), minlength=len(levels))
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] > 0]
        n_own = len(order) if len(order) <= most else most - 1
        own, rare = order[:n_own], order[n_own:]
        n = n_own + (len(rare) > 0)
        found = np.zeros((len(levels) + 1, n + 1))
        found[:, n] = UNSEEN
        found[order, n] = 0.0
        found[own, np.arange(n_own)] = 1.0
        directions = np.random.RandomState(0).normal(size=(len(rare), n))
        found[rare, :n] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        names = [f"{name}_{levels[code]}" for code in own]
        names += [f"{name}_rare"] * (len(rare) > 0) + [f"{name}_unseen"]
        return cls(names, found)

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Rows of the levels, nan where missing."""
        missing = np.isnan(codes)
        found = self.codes[np.where(missing, 0, codes).astype(int)]
        found[missing, :-1], found[missing, -1] = np.nan, 0.0
        return found


class TableEncoder(DocLinkMixin, SourceMixin, TransformerMixin, BaseEstimator):
    """Encode a table with columns of any kind as standardised numbers, for densities of numbers.

    Numbers are standardised; booleans count as the numbers 0 and 1, dates and durations as numbers
    of days. Categories and text become one-hot columns; a level that did not occur in `fit` is ten
    standard deviations from all others. A missing entry is replaced by that of the nearest row of
    `fit` (among at most 2,000), as measured by the known columns. A mean would lie between levels,
    where there are no rows. This is the first step of the default estimator of
    :class:`EnergyOutlierDetector`.

    Parameters
    ----------
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories: names, numbers or a boolean mask. ``"from_dtype"``: columns that hold
        text, are of a categorical type, or hold other objects than numbers. None: no column.
    max_levels : int, default=20
        Maximum number of columns for a column of categories, not counting that of unseen levels.
        If there are more levels, the commonest have a column each, and rarer ones are random
        directions of length one in all of these.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    Examples
    --------
    >>> import pandas as pd
    >>> from skebm import TableEncoder
    >>> X = pd.DataFrame({"city": ["Rome", "Oslo", "Rome"], "rain": [10.0, 30.0, None]})
    >>> encoder = TableEncoder().fit(X)
    >>> encoder.get_feature_names_out().tolist()
    ['rain', 'city_Rome', 'city_Oslo', 'city_unseen']
    >>> encoder.transform(pd.DataFrame({"city": ["Bonn"], "rain": [20.0]})).tolist()
    [[0.0, 0.0, 0.0, 10.0]]
    """

    _parameter_constraints: dict = {
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
        "max_levels": [Interval(Integral, 2, None, closed="left")],
    }

    def __init__(self, categorical_features="from_dtype", *, max_levels=20):
        self.categorical_features = categorical_features
        self.max_levels = max_levels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> TableEncoder:
        """Learn scales and levels from the rows of a table, and store rows for missing entries.

        Parameters
        ----------
        X : {array-like, frame} of shape (n_samples, n_features)
            Infinite numbers, and columns that are missing in all rows, raise a `ValueError` that
            names the column.
        y : None
            Not used; present by convention.

        Returns
        -------
        self : TableEncoder
        """
        self._fit(*self._in_memory(X))
        return self

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit to the rows of a table, and return them as numbers.

        Parameters
        ----------
        X : {array-like, frame} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        ndarray of shape (n_samples, n_columns)
        """
        rows, header = self._in_memory(X)
        z = self._fit(rows, header)
        # Of a stream or a large array there are more rows than it is fitted to.
        return self._impute(z) if rows is X else self.transform(X)

    def _fit(self, X: Any, header: Any) -> np.ndarray:
        """The rows as numbers, nan where missing."""
        X = days_for_dates(X)
        self._coding = Coding.learn(X, self.categorical_features)
        codes = self._codes(X, reset=True)
        if header is not None:
            check_columns(self, header, reset=True)
        names = column_names(X)
        empty = np.flatnonzero(np.isnan(codes).all(0))
        if len(empty):
            raise ValueError(f"Column {names[empty[0]]!r} is missing in all rows: drop it.")
        self._names = names
        levels = {} if self._coding is None else self._coding.levels
        self._numbers = [j for j in range(len(names)) if j not in levels]
        self._levels = {
            j: OneHot.learn(names[j], levels[j], codes[:, j], self.max_levels) for j in levels
        }
        self._scaler = None
        if self._numbers:
            factor = extreme_factors(*column_ranges(codes[:, self._numbers]))
            self._factor = np.ones(len(self._numbers)) if factor is None else factor
            self._scaler = StandardScaler().fit(self._numbers_of(codes))
        z = self._numeric(codes)
        donors = z
        # Rows among which the neighbours of a row with missing entries are found.
        most_donors = 2000
        if len(z) > most_donors:
            donors = z[np.random.RandomState(0).permutation(len(z))[:most_donors]]
        # Kept for rows with holes, also where no row of fit has one.
        self._imputer = KNNImputer(n_neighbors=1, keep_empty_features=True).fit(donors)
        return z

    def _codes(self, X: Any, *, reset: bool) -> np.ndarray:
        """Validated numbers and codes of levels, float64: nan is missing, -1 unseen."""
        if self._coding is None:
            found = validate_data(self, X, dtype=np.float64, ensure_all_finite=False, reset=reset)
        else:
            check_columns(self, X, reset=reset)
            found = self._coding.codes(X, "TableEncoder")
            if not len(found):
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        infinite = np.flatnonzero(np.isinf(found).any(0))
        if len(infinite):
            name = column_names(X)[infinite[0]]
            raise ValueError(f"Input X contains infinity, in column {name!r}: drop such rows.")
        return found

    def _numeric(self, codes: np.ndarray) -> np.ndarray:
        """Standardised numbers and one-hot columns; nan where missing."""
        blocks = [level.rows(codes[:, j]) for j, level in self._levels.items()]
        if self._scaler is not None:
            blocks.insert(0, self._scaler.transform(self._numbers_of(codes)))
        return np.concatenate(blocks, 1)

    def _numbers_of(self, codes: np.ndarray) -> np.ndarray:
        """Columns of numbers, those of extreme size over their largest one in `fit`."""
        numbers = codes if self._coding is None else codes[:, self._numbers]
        return numbers if (self._factor == 1).all() else numbers * self._factor

    def transform(self, X: Any) -> np.ndarray:
        """Rows of a table as numbers.

        Parameters
        ----------
        X : {array-like, frame} of shape (n_samples, n_features)
            A table with the columns of `fit`; it may have missing entries and unseen levels.

        Returns
        -------
        ndarray of shape (n_samples, n_columns)
            Float64, without missing entries.
        """
        check_is_fitted(self)
        return self._over_blocks(X, self._encode)

    def _encode(self, X: Any) -> np.ndarray:
        return self._impute(self._numeric(self._codes(days_for_dates(X), reset=False)))

    def _impute(self, z: np.ndarray) -> np.ndarray:
        """Rows whose missing entries are those of their nearest row."""
        holes = np.isnan(z).any(1)
        if holes.any():
            z[holes] = self._imputer.transform(z[holes])
        return z

    def __sklearn_is_fitted__(self) -> bool:
        return "_imputer" in self.__dict__

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`.

        Parameters
        ----------
        input_features : None
            Not used; present by convention.

        Returns
        -------
        ndarray of str of shape (n_columns,)
        """
        check_is_fitted(self)
        names = [self._names[j] for j in self._numbers]
        for level in self._levels.values():
            names += level.names
        return np.asarray(names, dtype=object)


def days_for_dates(X: Any) -> Any:
    """A table whose columns of dates and durations are numbers of days, nan where missing."""
    check_container(X)
    if sp.issparse(X):
        raise ValueError("Sparse X: pass X.toarray().")
    check_two_dimensions(X)
    if not is_frame(X):
        X = np.asarray(mask_as_missing(X))
        return days(X) if X.dtype.kind in "Mm" else X
    found = {}
    for j in range(X.shape[1]):
        column = column_of(X, j)
        name = str(column.dtype).lower()
        if name.startswith("period"):  # of pandas: months, for example, by their starts
            column = column.dt.to_timestamp()
        if name.startswith(("datetime", "date", "timedelta", "duration", "period")):
            found[j] = days(_instants(column, "m" if name[:2] in ("ti", "du") else "M"))
    if not found:
        return X
    if hasattr(X, "iloc"):
        X = X.copy(deep=False)
        for j, values in found.items():
            X.isetitem(j, values)
        return X
    import polars as pl

    return X.with_columns([pl.Series(X.columns[j], values) for j, values in found.items()])


def _instants(column: Any, kind: str) -> np.ndarray:
    """A column of dates or durations as an array of them; dates with a time zone in UTC."""
    if getattr(column.dtype, "tz", None) is not None:  # of pandas
        column = column.dt.tz_convert(None)
    return np.asarray(column.to_numpy(), dtype=f"{kind}8[ns]")


def days(x: np.ndarray) -> np.ndarray:
    """Dates and durations as numbers of days; those that are missing as nan."""
    since = x if x.dtype.kind == "m" else x - np.datetime64(0, "D")
    return np.where(np.isnat(x), np.nan, since / np.timedelta64(1, "D"))
