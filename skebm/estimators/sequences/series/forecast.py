"""Linear forecasts of the next value of a series, by its past and the calendar."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from skebm.estimators.sequences.series.stamps import DAY, Grid, Stamps
from skebm.estimators.tables.regression import Ridge, ridge

# Values, spread over a series, that a forecast is fitted to at most.
MOST_ROWS = 20_000
# Residuals, in robust standard deviations, beyond which values are gross, and left out of the fit.
GROSS = 5.0
# Interquartile ranges beyond the quartiles to which the values of a fit are clipped.
FARTHEST = 3.0
# Standard deviation of a normal variable whose median absolute value is 1.
NORMAL = 1.4826


class Forecast(NamedTuple):
    """Ridge regression of the values at a time on those before it, and on the calendar.

    Attributes
    ----------
    lags : ndarray of shape (n_lags, d, d)
        Effect of the value one step before, two steps before, and so on.
    calendar : {"none", "parts", "hour of week"}
        What is used of the calendar; parts are hours and days of the week, or months.
    effects : ndarray of shape (n_indicators, d)
    intercept : ndarray of shape (d,)
    scale : ndarray of shape (d,)
        Robust standard deviations of residuals.
    """

    lags: np.ndarray
    calendar: str
    effects: np.ndarray
    intercept: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(
        cls, x: np.ndarray, times: np.ndarray, n_lags: int, grid: Grid | None, stamps: Stamps | None
    ) -> Forecast:
        """Fit to some times of a series; held-out errors choose what is used of the calendar.

        Parameters
        ----------
        x : ndarray of shape (m, d)
            Values at equal steps, without missing ones.
        times : ndarray of int of shape (n,)
            Numbers of steps whose values are targets, at least `n_lags`.
        n_lags : int
        grid, stamps : Grid, Stamps or None
            The grid of the steps, and the time stamps of `times`; None without a calendar.
        """
        if len(times) > MOST_ROWS:
            some = np.linspace(0, len(times) - 1, MOST_ROWS).astype(int)
            times, stamps = times[some], None if stamps is None else stamps.take(some)
        x = _within_range(x)
        past = x[times[:, None] - np.arange(1, n_lags + 1)].reshape(len(times), -1)
        made = {}
        for calendar in _calendars(grid, stamps):
            Z = np.concatenate([past, indicators(calendar, grid, stamps, len(times))], 1)
            made[calendar] = Z, _regression(Z, x[times])
        calendar = min(made, key=lambda name: float(made[name][1].error.log().sum()))
        Z, chosen = made[calendar]
        scale = _robust_scale(_residuals(chosen, Z, x[times]))
        usual = (np.abs(_residuals(chosen, Z, x[times])) <= GROSS * scale).all(1)
        if not usual.all():
            chosen = _regression(Z[usual], x[times][usual])
            scale = _robust_scale(_residuals(chosen, Z, x[times]))
        weight, n_past = chosen.weight.numpy(), past.shape[1]
        return cls(
            weight[:n_past].reshape(n_lags, x.shape[1], x.shape[1]),
            calendar,
            weight[n_past:],
            chosen.intercept.numpy(),
            scale * chosen.inflation,
        )

    def residuals(
        self, x: np.ndarray, times: np.ndarray, grid: Grid | None, stamps: Stamps | None
    ) -> np.ndarray:
        """Residuals at some times in standard deviations, (n, d); parameters as in :meth:`fit`.

        A gross value is replaced by what was expected of it where it is the past of others, so that
        a single one does not spoil the forecasts of all values after it. A second one in a row is
        the new level.
        """
        known = indicators(self.calendar, grid, stamps, len(times))
        rest: np.ndarray = x[times] - self.intercept - known @ self.effects
        for k, weight in enumerate(self.lags, 1):
            rest -= x[times - k] @ weight
        rest /= self.scale
        row = np.full(len(x) + len(self.lags), len(times))
        row[times] = np.arange(len(times))
        rest = np.concatenate([rest, np.zeros((1, rest.shape[1]))])  # of steps without a row
        gross, t = (np.abs(rest) > GROSS).any(1), 0
        while gross[t:-1].any():
            step = int(gross[t:].argmax())
            t += step
            if step or t == 0:
                change = np.where(np.abs(rest[t]) > GROSS, rest[t], 0.0) * self.scale
                later = row[times[t] + 1 : times[t] + 1 + len(self.lags)]
                rest[later] += change @ self.lags / self.scale
                rest[-1] = 0.0
                gross[later] = (np.abs(rest[later]) > GROSS).any(1)
            t += 1
        return rest[:-1]


def _regression(Z: np.ndarray, Y: np.ndarray) -> Ridge:
    """Ridge regression on standardised columns, with weights for the columns as they are."""
    scale = Z.std(0)
    scale[scale == 0] = 1.0
    made = ridge(torch.from_numpy(Z / scale), torch.from_numpy(Y))
    return made._replace(weight=made.weight / torch.from_numpy(scale)[:, None])


def _residuals(made: Ridge, Z: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.asarray(Y - Z @ made.weight.numpy() - made.intercept.numpy())


def _within_range(x: np.ndarray) -> np.ndarray:
    """Columns without gross values, which would be all that a regression sees of the past."""
    low, high = np.percentile(x, [25, 75], axis=0)
    width = np.where(high > low, FARTHEST * (high - low), np.inf)
    return np.clip(x, low - width, high + width)


def _robust_scale(residuals: np.ndarray) -> np.ndarray:
    """Standard deviation of most residuals of each column; 1 where all are 0."""
    scale = NORMAL * np.median(np.abs(residuals), 0)
    scale = np.where(scale > 0, scale, np.sqrt(np.square(residuals).mean(0)))
    return np.asarray(np.where(scale > 0, scale, 1.0))


def indicators(calendar: str, grid: Grid | None, stamps: Stamps | None, n: int) -> np.ndarray:
    """Indicators of hours, days of the week or months at n times, (n, n_indicators)."""
    if calendar == "none" or grid is None or stamps is None:
        return np.zeros((n, 0))
    hour, weekday, month = calendar_parts(stamps)
    if calendar == "hour of week":
        return np.eye(168)[24 * weekday + hour]
    if grid.days >= 2:
        return np.eye(12)[month]
    days = np.eye(7)[weekday]
    return days if grid.days > 0.5 else np.concatenate([np.eye(24)[hour], days], 1)


def _calendars(grid: Grid | None, stamps: Stamps | None) -> list[str]:
    """What may be used of the calendar: what a series shows more than once."""
    if grid is None or stamps is None:
        return ["none"]
    span = float(np.ptp(stamps.instant.view("int64"))) / DAY
    made = ["none"]
    if span >= 2 * (365 if grid.days >= 2 else 7):
        made.append("parts")
    if span >= 28 and grid.days <= 0.5:
        made.append("hour of week")
    return made


def calendar_parts(stamps: Stamps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hour of the day, day of the week (0 is Monday) and month (0 is January), each (n,)."""
    days = stamps.local.astype("datetime64[D]")
    hour = ((stamps.local - days) // np.timedelta64(1, "h")).astype(int)
    weekday = (days.view("int64") + 3) % 7
    return hour, weekday, stamps.local.astype("datetime64[M]").view("int64") % 12
