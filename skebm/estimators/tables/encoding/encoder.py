"""Tables of any columns as numbers, for densities of numbers."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import StandardScaler

from skebm._validation import (
    Interval,
    StrOptions,
    check_columns,
    check_is_fitted,
    column_of,
    column_ranges,
    fit_context,
    is_frame,
    validate_data,
)
from skebm.base.processes import TasksMixin
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic
from skebm.estimators.tables.columns import Coding, column_names
from skebm.estimators.tables.encoding.dates import DATES, DURATIONS, Times, read_times
from skebm.estimators.tables.encoding.donors import complete_by_donors
from skebm.estimators.tables.encoding.levels import LevelCodes, by_frequency, one_hot
from skebm.estimators.tables.encoding.notes import (
    WIDE,
    Note,
    WithTable,
    html_table,
    say,
    text_note,
)
from skebm.estimators.tables.encoding.numbers import (
    Deviation,
    Feature,
    date_pairs,
    deviations_from_levels,
    features_of_dates,
    is_row_number,
    repeated_dates,
    scale_of_log,
)
from skebm.estimators.tables.units import extreme_factors
from skebm.training.streams import SourceMixin


class TableEncoder(DocLinkMixin, SourceMixin, TasksMixin, TransformerMixin, BaseEstimator):
    """Encode a table with columns of any kind as standardised numbers, for densities of numbers.

    `columns_` says what became of each column:

    - Numbers and durations are standardised, and booleans count as the numbers 0 and 1.
    - Dates, also those that are text, are numbers of days. New rows may go on after those of `fit`,
      or before them, for as long as these last: their days count as the middle of these. To the
      days come the time of day and the weekday, where some are commoner than others, and for each
      pair of dates the time between them and whether they are in their usual order.
    - Categories and text of few levels become one-hot columns; a level that did not occur in `fit`
      is ten standard deviations from all others. Of many levels, the rarity becomes a number, and
      numbers whose means in the levels explain most of their variance are also compared with these.
    - Texts of which most occur once and numbers of rows are left out, with one warning if something
      is lost by it: where texts recur, or are numbers for the most part.

    A missing entry is replaced by that of the nearest row of `fit` (among at most 2,000), as
    measured by the known columns. A mean would lie between levels, where there are no rows. This is
    the first step of the default estimator of :class:`EnergyOutlierDetector`.

    Parameters
    ----------
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories: names, numbers or a boolean mask. ``"from_dtype"``: columns that hold
        text other than dates, are of a categorical type, or hold other objects than numbers. None:
        no column.
    max_levels : int, default=20
        Maximum number of levels of a category that becomes one-hot columns. Of more levels, the
        rarity becomes a column: 0 for frequent ones, and otherwise the log of the ratio of
        frequencies, with either sign, in steps of a factor of two or more, so that rarer levels are
        less likely. The commonest levels have one-hot columns beside, while all later ones together
        are rarer than each of them. Unseen levels count as half an occurrence; if levels that occur
        once are less than a hundredth of the rows, unseen ones are also ten standard deviations
        away.
    log_scale : bool, default=False
        Whether numbers, durations and times between dates become signed logarithms where held-out
        rows are clearly more likely on that scale, as with counts and money. The default density of
        the detector has an expert on that scale anyway.
    verbose : int, default=0
        1 prints what became of each column.

    Attributes
    ----------
    columns_ : pandas.DataFrame
        For each column its name, its kind, what it becomes, and why.
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
    >>> encoder.columns_["becomes"].tolist()
    ['a column for each level', 'standardised']
    """

    _parameter_constraints: dict = {
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
        "max_levels": [Interval(Integral, 2, None, closed="left")],
        "log_scale": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self, categorical_features="from_dtype", *, max_levels=20, log_scale=False, verbose=0
    ):
        self.categorical_features = categorical_features
        self.max_levels = max_levels
        self.log_scale = log_scale
        self.verbose = verbose

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
        given = X
        # Text is dates only where nothing else is asked of it.
        X, times = read_times(X, None if self.categorical_features == "from_dtype" else ())
        self._text_dates = times.text
        self._coding = Coding.learn(X, self.categorical_features)
        codes = self._codes(X, reset=True)
        if header is not None:
            check_columns(self, header, reset=True)
        self._names = column_names(X)
        empty = np.flatnonzero(np.isnan(codes).all(0))
        if len(empty):
            raise ValueError(f"Column {self._names[empty[0]]!r} is missing in all rows: drop it.")
        self._notes: list[Note] = []
        self._learn_columns(given, codes, times)
        z = self._numeric(codes, times.local)
        donors = z
        # Rows among which the neighbours of a row with missing entries are found.
        most_donors = 2000
        if len(z) > most_donors:
            donors = z[np.random.RandomState(0).permutation(len(z))[:most_donors]]
        # Kept for rows with holes, also where no row of fit has one.
        self._donors = donors
        return z

    def _learn_columns(self, X: Any, codes: np.ndarray, times: Times) -> None:
        """What becomes of each column, and the scales of those that are numbers."""
        self._features: list[Feature | Deviation] = []
        self._levels: dict[int, LevelCodes] = {}
        levels = {} if self._coding is None else self._coding.levels
        for j in range(codes.shape[1]):
            note = (
                self._learn_levels(X, j, levels[j], codes[:, j])
                if j in levels
                else self._learn_numbers(X, j, codes[:, j], times.kinds.get(j, "numbers"))
            )
            self._notes.append(note)
        self._learn_relations(codes, times)
        if not self._features and not self._levels:
            raise ValueError(
                "No column is left: " + " ".join(note.sentence() for note in self._notes)
            )
        say(self._notes, self.verbose)
        self._scaler = None
        if self._features:
            numbers = np.column_stack([f.values(codes, times.local) for f in self._features])
            factor = extreme_factors(*column_ranges(numbers))
            self._factor = np.ones(numbers.shape[1]) if factor is None else factor
            self._scaler = StandardScaler().fit(numbers * self._factor)

    def _learn_relations(self, codes: np.ndarray, times: Times) -> None:
        """What is made of dates beside their days, and of numbers beside wide categories."""
        own = [
            f
            for f in self._features
            if isinstance(f, Feature) and times.kinds.get(f.columns[0]) != DATES
        ]
        pairs = date_pairs(codes, times.dates)
        of_dates = features_of_dates(self._names, codes, times, pairs, self._scale_of)
        own += [f for f in of_dates if f.kind == "difference"]
        wide = {
            j: len(level.codes) - 1
            for j, level in self._levels.items()
            if self._notes[j].kind == WIDE
        }
        repeated = repeated_dates(codes, pairs)
        for j, earlier in repeated.items():
            why = f"its days are nearly those of {self._names[earlier]!r}"
            self._notes[j] = self._notes[j]._replace(becomes="compared with other dates", why=why)
        self._features = [f for f in self._features if f.columns[0] not in repeated]
        made: list[Feature | Deviation] = [*of_dates]
        made += deviations_from_levels(self._names, own, wide, codes)
        for feature in made:
            for j in feature.columns:
                self._notes[j] = self._notes[j].with_feature(feature)
        self._features += made

    def _learn_levels(self, X: Any, j: int, levels: tuple[Any, ...], codes: np.ndarray) -> Note:
        """Learn the columns of a categorical column; what is to be said of it."""
        name, known = self._names[j], codes[codes >= 0].astype(int)
        counts = np.bincount(known, minlength=len(levels))
        n_levels = int((counts > 0).sum())
        if n_levels <= self.max_levels:
            self._levels[j] = one_hot(name, levels, counts)
            return Note(name, "categories", "a column for each level", f"{n_levels} levels")
        found = by_frequency(name, levels, counts, self.max_levels - 1)
        if found is not None:
            self._levels[j] = found
        elif self._coding is not None:  # its texts are not stored
            self._coding.levels[j] = ()
        return text_note(name, levels, counts, found)

    def _learn_numbers(self, X: Any, j: int, x: np.ndarray, kind: str) -> Note:
        """Learn the scale of a column of numbers; what is to be said of it."""
        name = self._names[j]
        if kind == "numbers" and is_frame(X) and is_row_number(column_of(X, j), x):
            why = "whole numbers that all differ, without large gaps"
            return Note(name, "row numbers", "left out", why)
        known = x[~np.isnan(x)]
        constant = not np.ptp(known)
        scale = 0.0 if constant or kind == DATES else self._scale_of(known)
        span = (float(known.min()), float(known.max())) if kind == DATES else None
        names = [name + "_log" * bool(scale)]
        self._features.append(Feature("number", names, (j,), scale, span=span))
        made = "signed logarithm, standardised" if scale else "standardised"
        why = "constant" * constant or "likelier on this scale" * bool(scale)
        return Note(name, kind, "days, " * (kind in (DATES, DURATIONS)) + made, why)

    def _scale_of(self, x: np.ndarray) -> float:
        """The scale of the signed logarithm of a column, 0 if it stays linear."""
        return scale_of_log(x) if self.log_scale else 0.0

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

    def _numeric(self, codes: np.ndarray, local: dict[int, np.ndarray]) -> np.ndarray:
        """Standardised numbers and columns of levels; nan where missing."""
        blocks = [level.rows(codes[:, j]) for j, level in self._levels.items()]
        if self._scaler is not None:
            numbers = np.column_stack([f.values(codes, local) for f in self._features])
            blocks.insert(0, self._scaler.transform(numbers * self._factor))
        return np.concatenate(blocks, 1)

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
        X, times = read_times(X, self._text_dates)
        return self._impute(self._numeric(self._codes(X, reset=False), times.local))

    def _impute(self, z: np.ndarray) -> np.ndarray:
        """Rows whose missing entries are those of their nearest row."""
        return complete_by_donors(z, self._donors) if np.isnan(z).any() else z

    def __sklearn_is_fitted__(self) -> bool:
        return "_donors" in self.__dict__

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
        names = [name for feature in self._features for name in feature.names]
        for level in self._levels.values():
            names += level.names
        return np.asarray(names, dtype=object)

    def open_columns(self) -> list[int]:
        """Numbers of the columns of :meth:`transform` in which a new value is no news.

        Those are dates, which go on, and the columns that say that a level is unseen, which are as
        large as this is rare.
        """
        check_is_fitted(self)
        found: list[int] = []
        n = 0
        for feature in self._features:
            if isinstance(feature, Feature) and feature.span is not None:
                found += range(n, n + len(feature.names))
            n += len(feature.names)
        for level in self._levels.values():
            n += len(level.names)
            found.append(n - 1)
        return found

    # ---------------------------------------------------------------- what became of the columns

    @property
    def columns_(self) -> Any:
        """What became of each column and why, a data frame."""
        import pandas as pd

        check_is_fitted(self)
        return pd.DataFrame(
            [note[:4] for note in self._notes], columns=["column", "kind", "becomes", "why"]
        )

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """The table of fitted attributes in scikit-learn's diagram, and that of the columns."""
        return self._with_columns(super()._get_fitted_attr_html(doc_link))

    def _with_columns(self, attributes: Any) -> WithTable:
        """A table of fitted attributes of a diagram, and that of the columns."""
        return WithTable(attributes, html_table(self._notes))
