"""Columns of numbers: on which scale, and what dates say beside their day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skebm.estimators.tables.encoding.dates import DATES, Times
from skebm.estimators.tables.encoding.levels import UNSEEN

# Fewest distinct values of a column whose scale is chosen, and fewest known rows.
FEWEST_DISTINCT, FEWEST_ROWS = 8, 50
# Least gain of a log scale, in nats a row and in its standard errors.
LEAST_GAIN, ERRORS = 0.1, 3.0
# Columns of dates of which all pairs have a difference; of more, those next to each other in time.
MOST_DATES = 4
# Rows by which the order of two dates counts as usual, and largest fraction of exceptions.
FEWEST_FOR_RULE, MOST_EXCEPTIONS = 20, 0.05
# Weekdays and times of day say something if they are that much likelier than all being equal.
LEAST_PATTERN = 0.02
HOURS, WEEK = 1.0, 7.0
# Range of the numbers of rows, in rows, up to which they may count these.
MOST_SPARSE = 2


class Feature(NamedTuple):
    """A number, or two, that is made of one or two columns.

    Attributes
    ----------
    kind : {"number", "cycle", "difference", "order"}
        ``"cycle"``: cosine and sine of the part of a period; ``"order"``: 0, or `UNSEEN` where the
        second column of dates is before the first.
    names : list of str
    columns : tuple of int
    scale : float
        0, or the scale of the signed logarithm, sign(x) log(1 + abs(x) / scale).
    period : float
        Of a cycle, in days.
    """

    kind: str
    names: list[str]
    columns: tuple[int, ...]
    scale: float = 0.0
    period: float = 0.0

    def values(self, codes: np.ndarray, local: dict[int, np.ndarray]) -> np.ndarray:
        """The numbers of rows, (n, len(names)); nan where missing."""
        if self.kind == "cycle":
            angle = 2 * np.pi * (local[self.columns[0]] % self.period) / self.period
            return np.column_stack([np.cos(angle), np.sin(angle)])
        found = codes[:, self.columns[0]]
        if self.kind == "number":
            return signed_log(found, self.scale)[:, None]
        difference = codes[:, self.columns[1]] - found
        if self.kind == "order":
            return np.where(difference < 0, UNSEEN, 0.0)[:, None]
        return signed_log(difference, self.scale)[:, None]


def signed_log(x: np.ndarray, scale: float) -> np.ndarray:
    """Numbers on a log scale whose zero stays zero; as they are if the scale is 0."""
    if not scale:
        return x
    found: np.ndarray = np.sign(x) * np.log1p(np.abs(x) / scale)
    return found


def scale_of_log(x: np.ndarray) -> float:
    """The scale of the signed logarithm in which a column is likelier, or 0 if it is in none.

    Held-out rows decide: a normal distribution is fitted to the column and to its logarithms on
    half of the rows, and the other half is scored, with the derivative of the logarithm, so that
    both likelihoods are of the column in its own units.
    """
    x = x[np.isfinite(x)]
    size = np.abs(x[x != 0])
    if len(x) < FEWEST_ROWS or len(np.unique(x[:1000])) < FEWEST_DISTINCT:
        return 0.0
    x = x / size.max()
    plain = _held_out(x)
    best, chosen = 0.0, 0.0
    for scale in np.unique(np.quantile(size / size.max(), [0.05, 0.5])):
        with np.errstate(over="ignore"):
            gain = _held_out(signed_log(x, scale)) - np.log(scale + np.abs(x)) - plain
        mean = float(gain.mean())
        if mean > max(best, LEAST_GAIN, ERRORS * float(gain.std()) / len(x) ** 0.5):
            best, chosen = mean, float(scale * size.max())
    return chosen


def _held_out(x: np.ndarray) -> np.ndarray:
    """Log density of each row under the normal distribution of the other half of the rows."""
    found = np.empty(len(x))
    for start in (0, 1):
        other = x[1 - start :: 2]
        scale = max(float(other.std()), 1e-12 * float(np.abs(x).max()), 1e-300)
        found[start::2] = -0.5 * ((x[start::2] - other.mean()) / scale) ** 2 - np.log(scale)
    return found


# ------------------------------------------------------------------------------
# Dates
# ------------------------------------------------------------------------------


def features_of_dates(
    names: list[str], codes: np.ndarray, times: Times, scale_of: Callable[[np.ndarray], float]
) -> list[Feature]:
    """What dates say beside their day: the time of day, the weekday, and time from one to another.

    A time of day or weekday is left out where all parts of the day or week are about as frequent.
    """
    dates = [j for j, kind in times.kinds.items() if kind == DATES]
    found = []
    for j in dates:
        for period, what in ((HOURS, "hour"), (WEEK, "weekday")):
            if _has_pattern(times.local[j], period):
                parts = [f"{names[j]}_{what}_{part}" for part in ("cos", "sin")]
                found.append(Feature("cycle", parts, (j,), period=period))
    for start, end in date_pairs(codes, dates):
        between = codes[:, end] - codes[:, start]
        known = between[~np.isnan(between)]
        if not len(known):
            continue
        name = f"{names[end]}_minus_{names[start]}"
        if np.ptp(known) > 0:
            found.append(Feature("difference", [name], (start, end), scale_of(known)))
        if len(known) >= FEWEST_FOR_RULE and (known < 0).mean() <= MOST_EXCEPTIONS:
            rule = f"{names[end]}_before_{names[start]}"
            found.append(Feature("order", [rule], (start, end)))
    return found


def date_pairs(codes: np.ndarray, dates: list[int]) -> list[tuple[int, int]]:
    """Pairs of columns of dates, the earlier one first by medians: all, or neighbours of many."""
    medians = {j: float(np.nanmedian(codes[:, j])) for j in dates}
    order = sorted(dates, key=lambda j: medians[j])
    if len(order) > MOST_DATES:
        return list(zip(order, order[1:], strict=False))
    return [(a, b) for k, a in enumerate(order) for b in order[k + 1 :]]


def _has_pattern(local: np.ndarray, period: float) -> bool:
    """Whether some hours of the day, or days of the week, are clearly commoner than others."""
    known = local[~np.isnan(local)]
    if len(known) < FEWEST_FOR_RULE:
        return False
    n_parts = 24 if period == HOURS else 7
    counts = np.bincount((known % period / period * n_parts).astype(int), minlength=n_parts)
    if (counts > 0).sum() < 2:
        return False
    share = counts / len(known)
    entropy = -np.sum(share[share > 0] * np.log(share[share > 0]))
    # Nats by which an independent sample of as many equally frequent parts would seem to differ.
    by_chance = (n_parts - 1) / (2 * len(known))
    return bool(np.log(n_parts) - entropy > LEAST_PATTERN + 2 * by_chance)


def is_row_number(column: Any, x: np.ndarray) -> bool:
    """Whether a column of a frame counts its rows: whole numbers that all differ, with few gaps."""
    if "int" not in str(column.dtype).lower() or len(x) < FEWEST_ROWS or np.isnan(x).any():
        return False
    return bool(len(np.unique(x)) == len(x) and np.ptp(x) < MOST_SPARSE * len(x))
