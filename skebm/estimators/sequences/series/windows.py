"""Windows of series: a row for each time stamp, which any density or detector takes."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from skebm._validation import (
    Interval,
    StrOptions,
    as_series_output,
    check_has_rows,
    check_is_fitted,
    column_of,
    column_ranges,
    fit_context,
    is_frame,
    kind_of,
    validate_data,
)
from skebm.base.processes import TasksMixin
from skebm.base.processes.searches import first_of
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic
from skebm.estimators.sequences.series.forecast import Forecast, calendar_parts
from skebm.estimators.sequences.series.panels import Panel
from skebm.estimators.sequences.series.stamps import Grid, Stamps, is_series, shown
from skebm.estimators.tables.columns import column_names
from skebm.estimators.tables.units import extreme_factors

# Number of lags of a series without a season, and the most that "auto" means.
USUAL_LAGS, MOST_LAGS = 24, 150
# Parts of a series of few values that "auto" lags may be.
LEAST_PERIODS = 5
# Autocorrelation of the steps of a series from which on it has a season.
SEASONAL = 0.2
# Steps without a value for each one with a value, beyond which a series is refused.
MOST_EMPTY = 20


class Windows(DocLinkMixin, TasksMixin, TransformerMixin, BaseEstimator):
    r"""Turn a series into rows, one for each time stamp, that any density or detector takes.

    A row describes a value beside the `lags` values before it. By default it holds what is new in
    them: the residual :math:`e_t` of a linear forecast from the `lags` values before and the
    calendar, and its means over the last 3 values, a quarter, a half, and all of the lags,

    .. math::
        z_t^{(s)} = \frac{1}{\sqrt s} \sum_{k=0}^{s-1} e_{t-k}, \qquad s = 1, 3, L/4, L/2, L .

    They do not depend on the level of the series and have a standard deviation of about 1 where the
    forecast is right: a single wrong value shows in the first, a shift of the level and a wrong
    season in the others. With ``features="values"`` a row is the window itself.

    Parameters
    ----------
    lags : int or "auto", default="auto"
        Number of values before each value that its row is made of, L; best a season.  ``"auto"``:
        the values of a day, if steps are ten minutes apart or more and less than a day,
        of a week for days, of a year for months; else the period of up to 100 steps with the
        greatest autocorrelation, or 24; at most a fifth of the (shortest) series.
    features : {"residuals", "values"}, default="residuals"
        ``"residuals"``: residuals of forecasts, in standard deviations. ``"values"``: the value,
        its lags, and with `calendar` sine and cosine of the time of day, the day of the week and
        the time of the year.
    calendar : bool, default=True
        Whether hours, days of the week and months are used, if there are time stamps.
    sequence_column : str, int or None, default=None
        Column of a panel that says of which series a row is. Windows do not cross from one series
        to another, and each has a forecast of its own.

    Attributes
    ----------
    lags_ : int
        Number of lags in use.
    step_ : str or None
        Time between neighbours, such as "1 hour"; None without time stamps.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    SequenceOutlierDetector : p-values for frames of sequences.
    TemporalRBM : Density of frames of bits, numbers and categories given those before.

    Notes
    -----
    **Time stamps** are the index of a Series or frame of pandas, or else its one column of dates.
    Without them, rows are at equal steps, in their order. With them, rows may be in any order,
    results are in the order of X, and missing steps are gaps. Weekdays without weekends, months,
    and days of 23 hours are equal steps, too. Irregular time stamps are an error, as are steps
    other than in `fit`.

    **Missing values**, and those of gaps, are interpolated where they are the past of others, and
    taken as expected where they would be scored. No entry of the result is missing.

    **The first values** of a series lack a past: those with less than half of their lags known have
    the row of the value `lags` steps later, whose window begins with them. Scores at the beginning
    of a series therefore depend on what follows, and later ones on the past alone. To score new
    values, pass them with at least `lags` values before.

    **Panels** are several series below each other, with a column that names them, or the number of
    that column in an array. All have the same steps, and each may have its own times. The rows of a
    series are those that it has alone. Series that did not occur in `fit` have no forecast, and
    are an error, unless rows are windows of values.

    Rows of neighbours overlap. Thresholds from held-out rows that are drawn at random
    (``method="conformal"`` of :class:`EnergyOutlierDetector`) have no guarantee for them:
    :class:`SequenceOutlierDetector` holds out blocks.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from sklearn.pipeline import make_pipeline
    >>> from skebm import EnergyOutlierDetector, Windows
    >>> hours = pd.date_range("2024-01-01", periods=500, freq="h")
    >>> rng = np.random.default_rng(0)
    >>> load = pd.Series(np.sin(np.arange(500) * np.pi / 12) + 0.1 * rng.normal(size=500), hours)
    >>> load["2024-01-20 09:00"] += 0.8
    >>> model = make_pipeline(Windows(24), EnergyOutlierDetector(random_state=0)).fit(load)
    >>> scores = pd.Series(model.score_samples(load), load.index)
    >>> scores.idxmin()
    Timestamp('2024-01-20 09:00:00')
    """

    # Whether rows are made of other rows, so that none can be left out alone.
    _needs_neighbours = True
    _parameter_constraints: dict = {
        "lags": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "features": [StrOptions({"residuals", "values"})],
        "calendar": ["boolean"],
        "sequence_column": [str, Integral, None],
    }

    def __init__(self, lags="auto", *, features="residuals", calendar=True, sequence_column=None):
        self.lags = lags
        self.features = features
        self.calendar = calendar
        self.sequence_column = sequence_column

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Windows:
        """Learn the steps between time stamps, the number of lags, and the forecast.

        Parameters
        ----------
        X : Series, {array-like, frame} of shape (n_samples, n_features)
            Columns of numbers, and time stamps (see the notes of the class).
        y : None
            Not used; present by convention.

        Returns
        -------
        self : Windows
        """
        panel = Panel.read(X, self.sequence_column)
        check_has_rows(panel.table)
        values = self._numbers(panel.table, reset=True)
        self._names = column_names(panel.table if is_frame(panel.table) else values)
        self._grid = panel.grid()
        has_dates = panel.stamps is not None and panel.stamps.has_dates
        self._has_calendar = bool(self.calendar) and has_dates
        self.step_ = None if self._grid is None else str(self._grid)
        factor = extreme_factors(*column_ranges(values))
        self._factor = np.ones(values.shape[1]) if factor is None else factor
        series = self._series_of(panel, values)
        self.lags_ = self._number_of_lags(series.values())
        for name, one in series.items():
            if not one.has_past(self.lags_).any():
                raise _too_short(name, len(one.places), self.lags_)
        self._sequences = list(series)
        self._forecasts = None
        if self.features == "residuals":
            self._forecasts = [self._forecast_of(name, one) for name, one in series.items()]
        return self

    def _series_of(self, panel: Panel, values: np.ndarray) -> dict[Any, Series]:
        """The series of a panel by their names, in units in which squares are finite."""
        return {
            name: Series.of(
                name, values[rows] * self._factor, self._grid, _take_stamps(panel.stamps, rows)
            )
            for name, rows in panel.rows.items()
        }

    def _number_of_lags(self, series: Collection[Series]) -> int:
        if self.lags != "auto":
            return int(self.lags)
        longest = max(series, key=lambda one: len(one.x))
        season = _season_of_calendar(self._grid) or _season_of(longest.x) or USUAL_LAGS
        shortest = min(len(one.places) for one in series)
        return max(1, min(season, MOST_LAGS, shortest // LEAST_PERIODS))

    def _forecast_of(self, name: Any, series: Series) -> Forecast:
        """The forecast of a series, fitted to its known values that have a past."""
        is_known = series.known[series.places].all(1)
        rows = np.flatnonzero(series.has_past(self.lags_) & is_known)
        if not len(rows):
            raise _too_short(name, len(series.places), self.lags_)
        stamps = _take_stamps(series.stamps, rows) if self._has_calendar else None
        return Forecast.fit(series.x, series.places[rows], self.lags_, self._grid, stamps)

    def _numbers(self, table: Any, *, reset: bool) -> np.ndarray:
        """Validated numbers, nan where missing."""
        _check_columns(table)
        values: np.ndarray = validate_data(
            self, table, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset
        )
        empty = np.flatnonzero(np.isnan(values).all(0))
        if len(empty):
            name = column_names(table if is_frame(table) else values)[empty[0]]
            raise ValueError(f"Column {name!r} is missing in all rows: drop it.")
        return values

    def transform(self, X: Any) -> np.ndarray:
        """The row of each time stamp.

        Parameters
        ----------
        X : Series, {array-like, frame} of shape (n_samples, n_features)
            More than `lags_` values, at the steps of `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_columns)
            Float64, in the order of X, without missing entries.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        only = None if names is None or len(names) > 1 else names[0]
        panel = Panel.read(X, self.sequence_column, only)
        values = self._numbers(panel.table, reset=False)
        if (panel.stamps is None) != (self._grid is None):
            said = "has no time stamps, and that of fit had them"
            if self._grid is None:
                said = "has time stamps, and that of fit had none"
            raise ValueError(
                f"X {said}: pass series of one kind, with times in the index or in a column of "
                "dates, or without."
            )
        forecasts = self._forecasts_of(panel.rows)
        result = np.empty((len(values), len(self.get_feature_names_out())))
        for name, series in self._series_of(panel, values).items():
            source = _sources(name, series, self.lags_)
            if name in forecasts:
                made = self._residual_means(series, forecasts[name])
            else:
                made = self._lag_columns(series)
            result[panel.rows[name]] = made[source]
        return as_series_output(self, X, result) if is_series(X) else result

    def _forecasts_of(self, names: Collection[Any]) -> dict[Any, Forecast]:
        """The forecasts of series, if there are any; `ValueError` for one that has none."""
        if self._forecasts is None:
            return {}
        known = dict(zip(self._sequences, self._forecasts, strict=True))
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise ValueError(
                f"Series {unknown!r} did not occur in fit, so that it has no forecast: fit with "
                'it, or with features="values". Series of fit: '
                f"{first_of([repr(name) for name in known])}."
            )
        return known

    def _residual_means(self, series: Series, forecast: Forecast) -> np.ndarray:
        """Residuals and their means over several spans, (n, n_columns)."""
        ready = series.has_past(self.lags_)
        rows = np.flatnonzero(ready)
        stamps = _take_stamps(series.stamps, rows) if self._has_calendar else None
        places = series.places[rows]
        residual = np.zeros_like(series.x)
        count = np.zeros_like(series.x)
        residual[places] = forecast.residuals(series.x, places, self._grid, stamps)
        count[places] = series.known[places]
        residual *= count  # a missing value is the expected one
        total, number = (np.cumsum(np.pad(one, ((1, 0), (0, 0))), 0) for one in (residual, count))
        made = []
        for span in spans(self.lags_):
            begin = np.maximum(series.places + 1 - span, 0)
            many = number[series.places + 1] - number[begin]
            made.append((total[series.places + 1] - total[begin]) / np.sqrt(np.maximum(many, 1)))
        return np.concatenate(made, 1)

    def _lag_columns(self, series: Series) -> np.ndarray:
        """Values, their lags and the calendar, (n, n_columns)."""
        place = np.maximum(series.places[:, None] - np.arange(self.lags_ + 1), 0)
        made = (series.x[place] / self._factor).reshape(len(place), -1)
        if not self._has_calendar:
            return made
        assert self._grid is not None
        assert series.stamps is not None
        angles = _angles(self._grid, series.stamps).values()
        return np.column_stack([made, *(f(angle) for angle in angles for f in (np.sin, np.cos))])

    def __sklearn_is_fitted__(self) -> bool:
        return "_forecasts" in self.__dict__

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
        if self._forecasts is not None:
            ends = ["" if span == 1 else f"_mean_{span}" for span in spans(self.lags_)]
            return np.array(
                [f"{name}_residual{end}" for end in ends for name in self._names], object
            )
        ends = ["" if lag == 0 else f"_lag_{lag}" for lag in range(self.lags_ + 1)]
        names = [f"{name}{end}" for end in ends for name in self._names]
        if self._has_calendar:
            assert self._grid is not None
            names += [f"{part}_{f}" for part in _cycles(self._grid) for f in ("sin", "cos")]
        return np.array(names, dtype=object)


class Series(NamedTuple):
    """Values at equal steps, those of missing steps included.

    Attributes
    ----------
    x : ndarray of shape (m, d)
        Missing values are interpolated.
    known : ndarray of bool of shape (m, d)
        Which ones are not missing.
    places : ndarray of int of shape (n,)
        Numbers of the steps that were given.
    stamps : Stamps or None
        Time stamps of the latter.
    """

    x: np.ndarray
    known: np.ndarray
    places: np.ndarray
    stamps: Stamps | None

    @classmethod
    def of(cls, name: Any, values: np.ndarray, grid: Grid | None, stamps: Stamps | None) -> Series:
        """The series of values (n, d) in the order of time; its name is that of errors."""
        places = np.arange(len(values))
        if grid is not None and stamps is not None:
            places = grid.places(stamps, np.zeros(len(values), dtype=int))
        m = int(places[-1]) + 1
        if stamps is not None and m > MOST_EMPTY * (len(values) + USUAL_LAGS):
            gap = int(np.diff(places).argmax())
            raise ValueError(
                f"{_of(name)}There are values at {len(values)} of {m} steps of {grid} only; the "
                f"longest gap is after {shown(stamps.local[gap])}. Pass what is before or after it "
                "alone, or resample the series to longer steps."
            )
        x = np.full((m, values.shape[1]), np.nan)
        x[places] = values
        known = ~np.isnan(x)
        for column, here in zip(x.T, known.T, strict=True):
            if not here.any():
                column[:] = 0.0  # of rows that are transformed
            elif not here.all():
                at = np.flatnonzero(here)
                column[~here] = np.interp(np.flatnonzero(~here), at, column[at])
        return cls(x, known, places, stamps)

    def has_past(self, lags: int) -> np.ndarray:
        """Whether at least half of the lags of each given step are known, in all columns, (n,)."""
        total = np.cumsum(np.pad(self.known, ((1, 0), (0, 0))), 0)
        begin = np.maximum(self.places - lags, 0)
        many = (total[self.places] - total[begin]).min(1)
        enough: np.ndarray = (self.places >= lags) & (2 * many >= lags)
        return enough


def _check_columns(table: Any) -> None:
    """Raise `ValueError` for a table without columns, and for columns that hold no numbers."""
    if not is_frame(table):
        return
    if not table.shape[1]:
        raise ValueError("X has no column beside its time stamps: pass one of numbers.")
    for j, name in enumerate(table.columns):
        what = kind_of(column_of(table, j))
        if what is not None:
            raise ValueError(
                f"Column {str(name)!r} holds {what}, and Windows takes numbers. Turn text that "
                "holds times into dates (pandas.to_datetime), encode categories as columns of 0 "
                "and 1 (pandas.get_dummies), drop it, or, if it names the series of each row, "
                f"pass sequence_column={str(name)!r}."
            )


def spans(lags: int) -> list[int]:
    """Numbers of residuals over which means are taken."""
    return sorted({1, min(3, lags), max(1, round(lags / 4)), max(1, round(lags / 2)), lags})


def _sources(name: Any, series: Series, lags: int) -> np.ndarray:
    """Number of the row that stands for each, (n,): itself if it has a past."""
    ready = np.flatnonzero(series.has_past(lags))
    if not len(ready):
        raise _too_short(name, len(series.places), lags)
    source = np.arange(len(series.places))
    without = np.setdiff1d(source, ready)
    later = np.searchsorted(series.places[ready], series.places[without] + lags)
    source[without] = ready[np.minimum(later, len(ready) - 1)]
    return source


def _of(name: Any) -> str:
    return "" if name is None else f"Series {name!r}: "


def _too_short(name: Any, n: int, lags: int) -> ValueError:
    return ValueError(
        f"{_of(name)}n_samples={n}: no value has lags={lags} values before it of which half are "
        "known. Pass more than that many values, those before the ones of interest included, or "
        "fit with fewer lags."
    )


def _take_stamps(stamps: Stamps | None, rows: np.ndarray) -> Stamps | None:
    return None if stamps is None else stamps.take(rows)


def _season_of_calendar(grid: Grid | None) -> int | None:
    """Steps of a day, a week or a year, for steps of less than a day, of a day, and of months."""
    if grid is None:
        return None
    if grid.clock == "workdays":
        return 5 if grid.step == 1 else None
    if grid.clock == "months":
        return 12 // grid.step if grid.step <= 6 else None
    if 0.0069 < grid.days <= 0.5:
        return round(1 / grid.days)
    return 7 if abs(grid.days - 1) < 0.1 else None


def _season_of(x: np.ndarray) -> int | None:
    """The period with the greatest autocorrelation of steps of the series; None if all are low."""
    most = min(len(x) // LEAST_PERIODS, 100)
    if most < 3:
        return None
    steps = np.diff(x, axis=0)
    steps = steps - steps.mean(0)
    power = np.square(np.abs(np.fft.rfft(steps, 2 * len(steps), axis=0)))
    covariance = np.fft.irfft(power, axis=0)[: most + 1]
    largest = np.where(covariance[0] > 0, covariance[0], 1.0)
    correlation = (covariance / largest).mean(1)
    middle = correlation[2:most]
    peak = (middle >= correlation[1 : most - 1]) & (middle >= correlation[3 : most + 1])
    periods = np.flatnonzero(peak & (middle > SEASONAL)) + 2
    if not len(periods):
        return None
    high = correlation[periods]
    return int(periods[high > 0.9 * high.max()][0])  # not a multiple of it


def _cycles(grid: Grid) -> list[str]:
    """Parts of the calendar that steps of a grid go through."""
    return [
        *(["hour"] if grid.days <= 0.5 else []),
        *(["weekday"] if grid.days < 2 else []),
        *(["month"] if grid.days >= 1 else []),
    ]


def _angles(grid: Grid, stamps: Stamps) -> dict[str, np.ndarray]:
    """Places of time stamps in the cycles of the calendar, in radians."""
    hour, weekday, month = calendar_parts(stamps)
    cycles = {"hour": hour / 24, "weekday": weekday / 7, "month": month / 12}
    return {name: 2 * np.pi * cycles[name] for name in _cycles(grid)}
