"""Time stamps of a series: where they stand in a table, and the grid on which its values lie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skebm._validation import check_container, column_of, is_frame, kind_of

DAY = 86_400_000_000_000  # nanoseconds
WEEK = 7 * DAY
# Deviation of a step, as a part of it, up to which time stamps are regular.
TOLERANCE = 0.02


class Stamps(NamedTuple):
    """Time stamps of the rows of a table.

    Attributes
    ----------
    instant : ndarray of datetime64[ns] of shape (n,)
        In UTC where they have a time zone.
    local : ndarray of datetime64[ns] of shape (n,)
        As a clock in their time zone shows them.
    place : str
        Where they stand, for messages.
    has_dates : bool
        Whether they are dates, or else durations since some event.
    """

    instant: np.ndarray
    local: np.ndarray
    place: str
    has_dates: bool

    def take(self, rows: np.ndarray) -> Stamps:
        """The time stamps of some rows."""
        return self._replace(instant=self.instant[rows], local=self.local[rows])


def without_stamps(X: Any, name: str | None = None) -> tuple[Any, Stamps | None]:
    """A table without its time stamps, and these; None where there are none.

    Time stamps are the index of a Series or frame of pandas, or else its one column of dates. A
    Series becomes a frame of one column, of that name or its own.

    Raises
    ------
    ValueError
        For a second column of time stamps, and for missing ones.
    """
    check_container(X)
    X = X.to_frame(name or X.name or "value") if is_series(X) else X
    if not is_frame(X):
        return X, None
    dates = [j for j in range(X.shape[1]) if kind_of(column_of(X, j)) in ("dates", "periods")]
    index = _index_of(X)
    if len(dates) + (index is not None) > 1:
        names = ", ".join(repr(str(X.columns[j])) for j in dates)
        beside = "" if index is None else " beside the index"
        raise ValueError(
            f"X has more than one time: columns {names}{beside} hold dates. Drop all but one, or "
            "make the others numbers, such as durations in hours."
        )
    if index is not None:
        return X, _stamps_of(index.to_series(), "the index")
    if not dates:
        return X, None
    name = X.columns[dates[0]]
    stamps = _stamps_of(column_of(X, dates[0]), f"column {str(name)!r}")
    return X.drop(columns=[name]) if hasattr(X, "iloc") else X.drop(name), stamps


def is_series(X: Any) -> bool:
    """Whether X is a Series, of pandas or polars."""
    is_one = hasattr(X, "to_frame") and len(getattr(X, "shape", ())) == 1
    return is_one and (hasattr(X, "iloc") or hasattr(X, "is_null"))


def _index_of(X: Any) -> Any:
    """The index of a frame of pandas where it holds times."""
    index = getattr(X, "index", None)
    kind = type(index).__name__
    if kind == "MultiIndex" and index is not None:
        _refuse_times_among_levels(index)
    return index if kind in ("DatetimeIndex", "PeriodIndex", "TimedeltaIndex") else None


def _refuse_times_among_levels(index: Any) -> None:
    """Raise `ValueError` for an index of several levels, one of which holds times."""
    if any(_index_of(level.to_frame()) is not None for level in index.levels):
        names = ", ".join(repr(name) for name in index.names)
        raise ValueError(
            f"The index of X has several levels, {names}, one of which holds times: pass "
            "X.reset_index(), and the column that names the series as sequence_column."
        )


def _stamps_of(column: Any, place: str) -> Stamps:
    """The time stamps of a column, of which none is missing."""
    if str(column.dtype).startswith("period"):
        column = column.dt.to_timestamp()
    if getattr(column.dtype, "tz", None) is not None:  # of pandas
        clocks = column.dt.tz_convert(None), column.dt.tz_localize(None)
    elif getattr(column.dtype, "time_zone", None) is not None:  # of polars
        clocks = column.dt.convert_time_zone("UTC"), column
        clocks = tuple(one.dt.replace_time_zone(None) for one in clocks)
    else:
        clocks = column, column
    instant, local = (_as_nanoseconds(one) for one in clocks)
    missing = np.flatnonzero(np.isnat(instant))
    if len(missing):
        raise ValueError(
            f"The time stamp of row {missing[0]} in {place} is missing: drop such rows."
        )
    dtype = str(column.dtype).lower()
    return Stamps(instant, local, place, not dtype.startswith(("timedelta", "duration")))


def _as_nanoseconds(column: Any) -> np.ndarray:
    values = np.asarray(column.to_numpy())
    if values.dtype.kind == "m":  # a time since some event
        values = values + np.datetime64(0, "ns")
    return values.astype("datetime64[ns]")


class Grid(NamedTuple):
    """Times at equal steps, on some of which there are values.

    Attributes
    ----------
    clock : {"workdays", "months", "instant", "local"}
        What is counted: days without those of weekends, months, time, or time as a clock shows it
        (days of 23 hours are days).
    step : int
        Between neighbours, in nanoseconds, days or months.
    """

    clock: str
    step: int

    @classmethod
    def learn(cls, stamps: Stamps, sequence: np.ndarray) -> Grid:
        """The grid of the time stamps of sequences, rows in the order of time.

        Parameters
        ----------
        stamps : Stamps
        sequence : ndarray of int of shape (n,)
            The sequence of each row, in order.

        Raises
        ------
        ValueError
            For a time that occurs twice in a sequence, and where steps are no multiples of one.
        """
        same = np.diff(sequence) == 0
        steps = np.diff(stamps.instant.view("int64"))[same]
        if (steps == 0).any():
            twice = stamps.local[1:][same][(steps == 0).argmax()]
            raise ValueError(
                f"The time {shown(twice)} occurs more than once in {stamps.place}. Average such "
                "rows, as by X.groupby(level=0).mean(), or drop all but one. If they are of "
                "several sequences, say which row is of which (sequence_column, lengths); if "
                "clocks were set back, pass times with their zone, as by X.tz_localize(zone, "
                'ambiguous="infer").'
            )
        for clock in ("workdays", "months", "instant", "local"):
            ticks = _ticks(clock, stamps)
            # Of a week or less, days at work do not show that there are none in weekends.
            if (
                ticks is None
                or clock == "workdays"
                and np.ptp(stamps.instant.view("int64")) <= WEEK
            ):
                continue
            between = np.diff(ticks)[same]
            step = int(np.median(between)) if len(between) else 1
            if step > 0 and np.all(np.abs(between / step - np.rint(between / step)) <= TOLERANCE):
                return cls(clock, step)
        low, high = _duration(int(steps.min())), _duration(int(steps.max()))
        raise ValueError(
            f"The times in {stamps.place} are irregular, with steps between {low} and "
            f"{high}. Make the series regular first, as by X.resample(...).mean(), or, "
            "if only the order counts, drop the times, as by X.reset_index(drop=True)."
        )

    def places(self, stamps: Stamps, sequence: np.ndarray) -> np.ndarray:
        """Number of the step of each row, in the order of time, counted from the first row.

        Raises
        ------
        ValueError
            For steps that are no multiples of that of the grid.
        """
        ticks = _ticks(self.clock, stamps)
        between = np.zeros(0) if ticks is None else np.diff(ticks) / self.step
        number = np.rint(between)
        same = np.diff(sequence) == 0
        off = np.abs(between - number)[same] > TOLERANCE if len(between) else ticks is None
        if np.any(off) or (number[same] < 1).any():
            raise ValueError(
                f"The times in {stamps.place} are not at the steps of fit, {self}: resample the "
                "series to these steps, or drop times that occur twice."
            )
        return np.concatenate([[0], np.cumsum(number)]).astype(int)

    def __str__(self) -> str:
        if self.clock in ("instant", "local"):
            return _duration(self.step)
        return _count(self.step, self.clock)

    @property
    def days(self) -> float:
        """Days of a step, about."""
        unit = {"workdays": 1.4, "months": 30.4}.get(self.clock)
        return self.step / DAY if unit is None else self.step * unit


def _ticks(clock: str, stamps: Stamps) -> np.ndarray | None:
    """Time stamps as numbers of what a clock counts; None where it does not count them."""
    if clock == "instant":
        return stamps.instant.view("int64")
    if clock == "local":
        return stamps.local.view("int64")
    days = stamps.local.astype("datetime64[D]")
    if len(np.unique(stamps.local - days)) > 1:  # times of day
        return None
    if clock == "workdays":
        if not np.is_busday(days).all():
            return None
        return np.busday_count(np.datetime64(0, "D"), days)
    months = days.astype("datetime64[M]")
    ends = (days + np.timedelta64(1, "D")).astype("datetime64[M]") > months
    if len(np.unique(days - months)) > 1 and not ends.all():
        return None
    return months.view("int64")


def shown(stamp: np.datetime64) -> str:
    """A time stamp without the zeros at its end."""
    return str(stamp).split(".")[0].replace("T", " ").removesuffix(" 00:00:00")


def _duration(step: int) -> str:
    """Nanoseconds in their largest unit."""
    second = 10**9
    units = {"days": DAY, "hours": 3600 * second, "minutes": 60 * second, "seconds": second}
    for name, unit in units.items():
        if step >= unit:
            return _count(step / unit, name)
    return _count(1000 * step / second, "milliseconds")


def _count(number: float, units: str) -> str:
    return f"{number:.4g} {units if number != 1 else units.removesuffix('s')}"
