"""Gross values of a table: so far from all others of their column that they are no part of it.

A sentinel such as -999999 that stands for a missing entry, or a unit that was mistaken. One such
row in a hundred sets the mean, the standard deviation and the components for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import column_ranges, warn
from skebm.base import DataWarning

# Largest fraction of the known values of a column that are gross.
MOST = 0.05
# Order statistics by which the tail of the other values is judged, and fewest distinct ones.
TAIL, FEWEST_DISTINCT = 20, 40
# Minus log10 of the probability of the gap before gross values, if the tail went on as it is; less
# is enough for values that are all repeated, which tails are not.
EVIDENCE, EVIDENCE_OF_REPEATED = 8.0, 2.0
# How many times farther from the median than all others gross values must be; those that lie
# together, and may be a cluster; and those of columns of few distinct values.
APART, TOGETHER, OF_FEW = 2.0, 10.0, 1000.0
# A value is repeated if it has so many times the weight of others.
REPEATED = 3.0
# Largest fraction of the rows that are left out of a fit.
MOST_ROWS = 0.5
# Rows that are compared at once, which fit into a cache.
N_ROWS = 256


class Gross(NamedTuple):
    """Gross values of a column: which entries, the commonest value, and whether it is repeated."""

    entries: np.ndarray
    value: float
    repeated: bool


def gross_of(column: np.ndarray, weight: np.ndarray | None = None) -> Gross | None:
    """Gross values of a column of numbers, nan where missing; None if there are none.

    A gap separates them from all others that is very improbable if the tail of these goes on as it
    is: as a power law, with the exponent by Hill's estimator. Heavy tails, many zeros, a few values
    that differ from a constant, and values beside bits are not gross. Copies of all rows and the
    unit of weights change nothing.

    References
    ----------
    Hill (1975), "A simple general approach to inference about the tail of a distribution", Annals
    of Statistics 3(5).
    """
    known = ~np.isnan(column) if weight is None else ~np.isnan(column) & (weight > 0)
    # Halves of numbers that are at most 1: no difference of two overflows, or underflows.
    values = column[known].astype(np.float64)
    largest = np.abs(values).max(initial=0.0)
    if len(values) < 1 / MOST or not 0 < largest < np.inf:
        return None
    values = values / largest
    if weight is None and not _has_gap(values):
        return None
    distinct, member = np.unique(values, return_inverse=True)
    share = np.bincount(member, None if weight is None else weight[known])
    reached = np.cumsum(share)
    far = np.abs(distinct - distinct[np.searchsorted(reached, reached[-1] / 2)])
    order = np.argsort(-far, kind="stable")
    distinct, far, share = distinct[order], far[order], share[order]
    # Beside bits nothing is gross.
    most = min(int((np.cumsum(share) <= MOST * share.sum() * (1 + 1e-9)).sum()), len(far) - 3)
    for k in range(most, 0, -1):
        if _is_gap(distinct, far, share, k):
            entries = np.zeros(len(column), dtype=bool)
            entries[known] = np.isin(values, distinct[:k])
            commonest = int(share[:k].argmax())
            at = np.flatnonzero(values == distinct[commonest])[0]
            repeated = bool(share[commonest] >= REPEATED * np.median(share[k:]))
            return Gross(entries, float(column[known][at]), repeated)
    return None


def _has_gap(values: np.ndarray) -> bool:
    """Whether there is a gap that may be one before gross values: most columns have none."""
    n = len(values)
    far = np.abs(values - np.partition(values, n // 2)[n // 2])
    first = n - int(MOST * n) - 2
    far = np.sort(np.partition(far, first)[first:])
    return bool((far[1:] >= APART * far[:-1]).any())


def _is_gap(values: np.ndarray, far: np.ndarray, share: np.ndarray, k: int) -> bool:
    """Whether the k values farthest from the median, the first ones, are gross."""
    if not far[k - 1] >= APART * far[k] > 0:
        return False
    ratio = far[k - 1] / far[k]
    if len(far) - k < FEWEST_DISTINCT:
        return bool(ratio >= OF_FEW)
    usual = np.median(share[k:])
    repeated = (share[:k] >= REPEATED * usual).all()
    if ratio < TOGETHER and not repeated:
        above = values[:k] > values[k]
        sides = [side for side in (values[:k][above], values[:k][~above]) if len(side)]
        if all(np.ptp(side) < far[k - 1] for side in sides):
            return False
    tail = far[k : k + TAIL + 1]
    if not tail[-1] > 0:
        return False
    exponent = TAIL / np.log(tail[:-1] / tail[-1]).sum()
    evidence = np.log10(ratio) * exponent * share[:k].sum() / usual
    return bool(evidence >= (EVIDENCE_OF_REPEATED if repeated else EVIDENCE))


def gross_rows(
    columns: Iterable[tuple[Any, np.ndarray]], n_rows: int, weight: np.ndarray | None = None
) -> np.ndarray | None:
    """Rows with gross values, (n_rows,) of bool, which a warning names; None if there are none.

    Parameters
    ----------
    columns : iterable of (name, ndarray)
        Columns of numbers; a name is shown as its ``repr``.
    n_rows : int
    weight : ndarray of shape (n_rows,) or None
        Positive weights.
    """
    if n_rows < 1 / MOST:
        return None
    rows, said, n_columns = np.zeros(n_rows, dtype=bool), "", 0
    for name, column in columns:
        found = gross_of(column, weight)
        if found is None:
            continue
        rows, n_columns = rows | found.entries, n_columns + 1
        if not said:
            n = int(found.entries.sum())
            what = f"the value {found.value:.7g}" if found.repeated else "values"
            like = "" if found.repeated else f" such as {found.value:.7g}"
            said = f"Column {name!r} has {what}{like} in {n} of {n_rows} rows"
    if not said:
        return None
    if n_columns > 1:
        said += (
            f", and {n_columns - 1} more {'columns have' if n_columns > 2 else 'column has'} such"
        )
    said += ", far outside of the others: replace it by nan if it stands for a missing entry."
    if rows.mean() > MOST_ROWS:
        warn(f"{said} They are in more than half of the rows, and are fitted with.", DataWarning)
        return None
    n = int(rows.sum())
    warn(
        f"{said} {f'The {n} rows are' if n > 1 else 'The row is'} left out of the fit.",
        DataWarning,
    )
    return rows


def gross_rows_of(estimator: Any, X: np.ndarray, weight: np.ndarray | None) -> np.ndarray | None:
    """Rows of validated X with gross values, named as the estimator names its columns.

    Columns of categories have none. Those beyond its own are the targets of pairs.
    """
    known = vars(estimator)
    coding, names = known.get("_coding"), known.get("feature_names_in_")
    d = min(known.get("n_features_in_", X.shape[1]), X.shape[1])
    names = [f"x{j}" for j in range(d)] if names is None else list(map(str, names))
    names += [f"y[{j}]" for j in range(X.shape[1] - len(names))]
    varied = np.flatnonzero(~has_two_values(X))
    numbers = [j for j in varied if coding is None or j not in coding.levels]
    return gross_rows(((names[j], X[:, j]) for j in numbers), len(X), weight)


def has_two_values(X: np.ndarray) -> np.ndarray:
    """Columns of X (n, d) with at most two values, besides missing ones, (d,): none is gross."""
    low, high = column_ranges(X)
    two = np.ones(X.shape[1], dtype=bool)
    for start in range(0, len(X), N_ROWS):
        block = X[start : start + N_ROWS]
        two &= ((block == low) | (block == high) | (block != block)).all(0)
        if not two.any():
            break
    return two


def without_gross_rows(
    estimator: Any, X: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Validated X and its weights without rows that hold gross values, with a warning."""
    gross = gross_rows_of(estimator, X, weight)
    if gross is None:
        return X, weight
    return X[~gross], None if weight is None else weight[~gross]
