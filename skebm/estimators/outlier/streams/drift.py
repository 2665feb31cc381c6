"""Which columns of a table have changed: exact two-sample tests, column by column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import hypergeom, ks_2samp

from skebm._validation import column_of
from skebm.estimators.outlier.columns import MAX_LEVELS
from skebm.estimators.tables.columns import column_names, is_present

# Most pairs of rows for which p-values of Kolmogorov and Smirnov are exact; beyond it asymptotic.
MAX_EXACT = 1_000_000


@dataclass(frozen=True)
class ColumnDrift:
    """How the columns of recent rows differ from those of reference rows.

    It is returned by :meth:`skebm.StreamMonitor.drift`. Each entry is a test, those of the smallest
    p-values first; a column with missing entries has two, of its values and of their rate.

    Attributes
    ----------
    columns : list of str
        Name of the column of each test.
    what : list of str
        What the test compares: ``"median"`` of a column of numbers (all quantiles are compared),
        ``"rate of <level>"``, of the level that changed most, or ``"rate of missing entries"``.
    before, after : ndarray of shape (n_tests,)
        That median or rate among the reference rows and among the recent ones.
    p_values : ndarray of shape (n_tests,)
        Adjusted by Holm's method for the number of tests.
    level : float
        Bound on the probability that any column is named that has not changed.
    n_reference, n_recent : int
        Numbers of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import EnergyOutlierDetector, StreamMonitor
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(400, 3))
    >>> detector = EnergyOutlierDetector(
    ...     GaussianMixture(random_state=0), method="conformal", random_state=0
    ... ).fit(X)
    >>> monitor = StreamMonitor(detector, X, random_state=0)
    >>> update = monitor.update(random.normal(size=(200, 3)) + [0, 1, 0])
    >>> monitor.drift().moved
    ['x1']
    """

    columns: list[str]
    what: list[str]
    before: np.ndarray
    after: np.ndarray
    p_values: np.ndarray
    level: float
    n_reference: int
    n_recent: int

    @property
    def moved(self) -> list[str]:
        """Names of the columns that have changed, those with the smallest p-values first."""
        found = [c for c, p in zip(self.columns, self.p_values, strict=True) if p <= self.level]
        return list(dict.fromkeys(found))

    def to_frame(self) -> Any:
        """All tests as a data frame.

        Returns
        -------
        pandas.DataFrame
            With columns column, what, before, after, p_value and moved.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                "column": self.columns,
                "what": self.what,
                "before": self.before,
                "after": self.after,
                "p_value": self.p_values,
                "moved": self.p_values <= self.level,
            }
        )


class PlainColumns(NamedTuple):
    """The columns of a table as arrays, which any machine can store and read.

    Attributes
    ----------
    names : tuple of str
    columns : tuple of ndarray of shape (n,)
        Of numbers, or of objects with None where they are missing.
    """

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, X: Any) -> PlainColumns:
        """Of a frame or an array, whose columns are not copied; of such columns themselves."""
        if isinstance(X, cls):
            return X
        names = column_names(X)
        return cls(tuple(names), tuple(_plain(column_of(X, j)) for j in range(len(names))))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0])

    def last(self, n: int) -> PlainColumns:
        """Copies of the last rows, at most n of them."""
        start = max(self.n_rows - n, 0)
        return self._replace(columns=tuple(column[start:].copy() for column in self.columns))


def _plain(column: Any) -> np.ndarray:
    values = np.asarray(column)
    if values.dtype != object:
        return values
    found = np.empty(len(values), dtype=object)
    found[:] = [value if is_present(value) else None for value in values.tolist()]
    return found


class ColumnTest(NamedTuple):
    """A test of one column, before p-values are adjusted for their number."""

    column: str
    what: str
    before: float
    after: float
    p_value: float


def column_drift(reference: Any, blocks: list[Any], level: float) -> ColumnDrift:
    """Compare the columns of a table with those of further rows, given as tables of these columns.

    Tables are frames, arrays or :class:`PlainColumns`. Dates and durations are numbers of days in
    all of them.
    """
    tests: list[ColumnTest] = []
    before, after = PlainColumns.of(reference), [PlainColumns.of(block) for block in blocks]
    n_reference, n_recent = before.n_rows, sum(block.n_rows for block in after)
    for name, old, *new in zip(
        before.names, before.columns, *(block.columns for block in after), strict=True
    ):
        tests += column_tests(name, [old], new)
    adjusted = holm([test.p_value for test in tests])
    order = np.argsort(adjusted, kind="stable")
    tests = [tests[i] for i in order]
    return ColumnDrift(
        columns=[test.column for test in tests],
        what=[test.what for test in tests],
        before=np.array([test.before for test in tests]),
        after=np.array([test.after for test in tests]),
        p_values=adjusted[order],
        level=level,
        n_reference=n_reference,
        n_recent=n_recent,
    )


def holm(p_values: list[float]) -> np.ndarray:
    """p-values adjusted for their number: those at most a level bound the family-wise error."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    found = np.empty(len(p))
    found[order] = np.minimum(1, adjusted)
    return found


def column_tests(name: str, old: list[Any], new: list[Any]) -> list[ColumnTest]:
    """Tests of the values of a column, and of the rate of its missing entries if it has any.

    Which tests are made depends on all values together, not on which rows are new, so that their
    levels are exact.
    """
    sizes = sum(map(len, old)), sum(map(len, new))
    numbers = _as_numbers([*old, *new])
    if numbers is None:
        entries = [value for part in (*old, *new) for value in np.asarray(part, object).tolist()]
        values = np.empty(len(entries), dtype=object)
        values[:] = entries
        present = np.array([is_present(value) for value in entries], dtype=bool)
    else:
        values, present = numbers, ~np.isnan(numbers)
    before, after = np.split(values, [sizes[0]])
    known = np.split(present, [sizes[0]])
    before, after = before[known[0]], after[known[1]]
    found = []
    if len(before) and len(after):
        found.append(_test_of_values(name, before, after))
    if not present.all():
        n_missing = sizes[0] - len(before), sizes[1] - len(after)
        p = rate_p_value(n_missing, sizes)
        rates = [k / n for k, n in zip(n_missing, sizes, strict=True)]
        found.append(ColumnTest(name, "rate of missing entries", rates[0], rates[1], p))
    return found


def _as_numbers(parts: list[Any]) -> np.ndarray | None:
    """A column in parts as numbers, nan where missing; None if it holds other things."""
    try:
        return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    except (TypeError, ValueError):  # of text and categories
        return None


def _test_of_values(name: str, before: np.ndarray, after: np.ndarray) -> ColumnTest:
    """The test of levels, of texts and of few numbers, or that of Kolmogorov and Smirnov."""
    together = np.concatenate([before, after])
    if together.dtype == object:
        return _test_of_levels(name, before, after, _keys(together))
    levels = np.unique(together)
    if len(levels) <= MAX_LEVELS:
        return _test_of_levels(name, before, after, levels.tolist())
    exact = len(before) * len(after) <= MAX_EXACT
    p = ks_2samp(before, after, method="exact" if exact else "asymp").pvalue
    return ColumnTest(name, "median", float(np.median(before)), float(np.median(after)), float(p))


def _keys(values: np.ndarray) -> list[Any]:
    """The most frequent levels, of equally frequent ones those first in the order of their text."""
    counts: dict[Any, int] = {}
    for value in values.tolist():
        counts[value] = counts.get(value, 0) + 1
    return sorted(counts, key=lambda value: (-counts[value], str(value)))[:MAX_LEVELS]


def _test_of_levels(
    name: str, before: np.ndarray, after: np.ndarray, levels: list[Any]
) -> ColumnTest:
    """The level whose rate changed most, with the p-value adjusted for the number of levels."""
    sizes = len(before), len(after)
    counts = [(int(np.sum(before == level)), int(np.sum(after == level))) for level in levels]
    p = [rate_p_value(count, sizes) for count in counts]
    first = int(np.argmin(p))
    # Of two levels one rate determines the other, of one there is nothing to test.
    n_tests = 1 if len(levels) == 2 else len(levels)
    shown = f"{levels[first]:g}" if isinstance(levels[first], float) else repr(levels[first])
    rates = [count / size for count, size in zip(counts[first], sizes, strict=True)]
    return ColumnTest(name, f"rate of {shown}", rates[0], rates[1], min(1.0, n_tests * p[first]))


def rate_p_value(counts: tuple[int, int], sizes: tuple[int, int]) -> float:
    """p-value that two rates are equal: Fisher's exact test, twice the smaller side."""
    n, total = sum(sizes), sum(counts)
    upper = hypergeom.sf(counts[1] - 1, n, total, sizes[1])
    lower = hypergeom.cdf(counts[1], n, total, sizes[1])
    p = float(2 * min(upper, lower))
    return min(1.0, p) if math.isfinite(p) else 1.0
