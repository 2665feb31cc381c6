"""Columns of numbers: on which scale, and what dates say beside their day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skebm.estimators.tables.encoding.dates import Times
from skebm.estimators.tables.encoding.levels import UNSEEN

# Fewest distinct values of a column whose scale is chosen, and fewest known rows.
FEWEST_DISTINCT, FEWEST_ROWS = 8, 50
# Least gain of a log scale, in nats a row and in its standard errors.
LEAST_GAIN, ERRORS = 0.1, 3.0
# Columns of dates of which all pairs have a difference; of more, those next to each other in time.
MOST_DATES = 4
# Rows by which the order of two dates counts as usual, and largest fraction of exceptions.
FEWEST_FOR_RULE, MOST_EXCEPTIONS = 20, 0.05
# Nats by which weekdays or times of day are likelier than all being equal, to say something.
LEAST_PATTERN = 0.02
# Periods, in days.
DAY, WEEK = 1.0, 7.0
# A number is compared with its mean in a level of a wide category if these means explain at least
# this fraction of its variance; fewest rows of a level, and most such comparisons.
LEAST_EXPLAINED, FEWEST_OF_LEVEL, MOST_COMPARED = 0.5, 8, 8
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
    span : tuple of float or None
        First and last day of the rows of `fit`, of a number that is a date.
    """

    kind: str
    names: list[str]
    columns: tuple[int, ...]
    scale: float = 0.0
    period: float = 0.0
    span: tuple[float, float] | None = None

    def values(self, codes: np.ndarray, local: dict[int, np.ndarray]) -> np.ndarray:
        """The numbers of rows, (n, len(names)); nan where missing."""
        if self.kind == "cycle":
            angle = 2 * np.pi * (local[self.columns[0]] % self.period) / self.period
            return np.column_stack([np.cos(angle), np.sin(angle)])
        found = codes[:, self.columns[0]]
        if self.kind == "number":
            if self.span is not None:
                found = days_of_fit(found, *self.span)
            return signed_log(found, self.scale)[:, None]
        difference = codes[:, self.columns[1]] - found
        if self.kind == "order":
            return np.where(difference < 0, UNSEEN, 0.0)[:, None]
        return signed_log(difference, self.scale)[:, None]


def days_of_fit(days: np.ndarray, first: float, last: float) -> np.ndarray:
    """Days, of which those that go on before the first or after the last one are their middle.

    Rows that are scored mostly come after those of `fit`, and are none the odder for it; the last
    day itself is rare, so that it would make them odd. A day that is farther away than these reach,
    such as one of a wrong year, stays as it is.
    """
    reach = last - first
    goes_on = (days < first) & (days >= first - reach) | (days > last) & (days <= last + reach)
    return np.where(goes_on, (first + last) / 2, days)


class Deviation(NamedTuple):
    """How far a number is from its mean in the level of a wide category.

    Attributes
    ----------
    name : str
    feature : Feature
        The number.
    category : int
        Its column.
    means : ndarray of shape (n_levels + 1,)
        nan for levels of few rows, and for unseen ones, the last.
    """

    name: str
    feature: Feature
    category: int
    means: np.ndarray

    @property
    def names(self) -> list[str]:
        """The name, as a list."""
        return [self.name]

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns that the deviation is of."""
        return (*self.feature.columns, self.category)

    def values(self, codes: np.ndarray, local: dict[int, np.ndarray]) -> np.ndarray:
        """The deviations, (n, 1); nan where the number or the mean is not known."""
        level = codes[:, self.category]
        mean = self.means[np.where(np.isnan(level), -1, level).astype(int)]
        return self.feature.values(codes, local) - mean[:, None]


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


def deviations_from_levels(
    names: list[str], features: list[Feature], sizes: dict[int, int], codes: np.ndarray
) -> list[Deviation]:
    """Comparisons of numbers with their means in the levels of wide categories that explain them.

    A density does not know which levels go with which numbers, as rarity is all that is left of
    such levels. Each row is predicted by the other rows of its level.

    Parameters
    ----------
    names : list of str
        Of the columns.
    features : list of Feature
    sizes : dict of int to int
        Number of levels of each wide category, by the number of its column.
    codes : ndarray of shape (n, d)
    """
    found = []
    for column, n_levels in sizes.items():
        level = codes[:, column]
        for feature in features:
            x = feature.values(codes, {})[:, 0]
            known = ~np.isnan(x) & (level >= 0)
            code, value = level[known].astype(int), x[known]
            count = np.bincount(code, minlength=n_levels + 1)
            total = np.bincount(code, weights=value, minlength=n_levels + 1)
            often = count[code] >= FEWEST_OF_LEVEL
            if often.sum() < max(FEWEST_ROWS, len(x) / 2):
                continue
            code, value = code[often], value[often]
            others = (total[code] - value) / (count[code] - 1)
            explained = 1 - np.square(value - others).mean() / max(value.var(), 1e-300)
            if explained >= LEAST_EXPLAINED:
                enough = count >= FEWEST_OF_LEVEL
                means = np.where(enough, total / np.maximum(count, 1), np.nan)
                name = f"{feature.names[0]}_given_{names[column]}"
                found.append((explained, Deviation(name, feature, column, means)))
    found.sort(key=lambda pair: -pair[0])
    return [deviation for _, deviation in found[:MOST_COMPARED]]


# ------------------------------------------------------------------------------
# Dates
# ------------------------------------------------------------------------------


def features_of_dates(
    names: list[str],
    codes: np.ndarray,
    times: Times,
    pairs: list[tuple[int, int]],
    scale_of: Callable[[np.ndarray], float],
) -> list[Feature]:
    """What dates say beside their day: the time of day, the weekday, and time from one to another.

    A time of day or weekday is left out where all parts of the day or week are about as frequent,
    and where it is nearly that of another date.
    """
    between = {(a, b): codes[:, b] - codes[:, a] for a, b in pairs}
    found = []
    for j in times.dates:
        later = [value for (_, b), value in between.items() if b == j]
        for period, what in ((DAY, "hour"), (WEEK, "weekday")):
            if _has_pattern(times.local[j], period) and not any(
                _repeats(value, period) for value in later
            ):
                parts = [f"{names[j]}_{what}_{part}" for part in ("cos", "sin")]
                found.append(Feature("cycle", parts, (j,), period=period))
    for (a, b), value in between.items():
        known = value[~np.isnan(value)]
        if not len(known):
            continue
        if np.ptp(known) > 0:
            name = f"{names[b]}_minus_{names[a]}"
            found.append(Feature("difference", [name], (a, b), scale_of(known)))
        if len(known) >= FEWEST_FOR_RULE and (known < 0).mean() <= MOST_EXCEPTIONS:
            found.append(Feature("order", [f"{names[b]}_before_{names[a]}"], (a, b)))
    return found


def repeated_dates(codes: np.ndarray, pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Columns of dates whose days are nearly those of an earlier one, each with that one.

    Together with the time between them they would say the same twice, and count twice in distances.
    """
    found: dict[int, int] = {}
    for start, end in pairs:
        between = codes[:, end] - codes[:, start]
        known = codes[~np.isnan(between), start]
        if start in found or not len(known):
            continue
        spread = float(np.subtract(*np.quantile(known, [0.9, 0.1])))
        if spread and _repeats(between - np.nanmedian(between), spread):
            found.setdefault(end, start)
    return found


def date_pairs(codes: np.ndarray, dates: list[int]) -> list[tuple[int, int]]:
    """Pairs of columns of dates, the earlier one first by medians: all, or neighbours of many."""
    medians = {j: float(np.nanmedian(codes[:, j])) for j in dates}
    order = sorted(dates, key=lambda j: medians[j])
    if len(order) > MOST_DATES:
        return list(zip(order, order[1:], strict=False))
    return [(a, b) for k, a in enumerate(order) for b in order[k + 1 :]]


def _repeats(between: np.ndarray, period: float) -> bool:
    """Whether the time between two dates is mostly a small part of the period."""
    known = np.abs(between[~np.isnan(between)])
    return len(known) > 0 and bool((known < period / 8).mean() > 0.9)


def _has_pattern(local: np.ndarray, period: float) -> bool:
    """Whether some hours of the day, or days of the week, are clearly commoner than others."""
    known = local[~np.isnan(local)]
    if len(known) < FEWEST_FOR_RULE:
        return False
    n_parts = 24 if period == DAY else 7
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
