"""Copies of rows: which rows of a table are equal, exactly, and samples that keep its variation."""

from __future__ import annotations

from typing import Any

import numpy as np

# Copies of a row, relative to the rarest ones, beyond which rows recur for another reason.
MOST_COPIES = 5
# Odd constants of the finaliser of SplitMix64.
STEP, MIX_ONE, MIX_TWO = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


def distinct_numbers_of(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the first of each set of equal rows, ascending, and for each row which set it is.

    Equality is that of numbers: 0.0 and -0.0 are equal, and so are missing entries (NaN). Rows are
    sorted by a hash of 64 bits, and rows of equal hash are compared with each other.

    Parameters
    ----------
    X : array of shape (n, ...)
        Numbers or bools.

    Returns
    -------
    first : ndarray of shape (n_distinct,)
    member : ndarray of shape (n,)
        ``X[first][member]`` equals X.
    """
    rows = np.asarray(X)
    rows = rows.reshape(len(rows), -1)
    code = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        code = _mixed(code, _bits(column))
    first, member = _of_keys(code)
    if len(first) == len(rows) or _same(rows, rows[first][member]):
        return first, member
    return _by_columns(rows)  # two rows of one hash: compare all columns


def distinct_rows(
    X: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The distinct rows of X in the order of the table, and the sums of their weights.

    Without weights, and where all rows occur equally often, the weights are None.
    """
    first, member = distinct_numbers_of(X)
    if len(first) == len(X):
        return X, weight
    total = np.bincount(member, weights=weight)
    return X[first], None if weight is None and np.ptp(total) == 0 else total.astype(float)


def merged_copies(
    X: np.ndarray, y: np.ndarray | None, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Distinct pairs of rows and targets, and the sums of their weights, as in a table of numbers.

    Rows that occur very often are not copies but the values that a few columns can have, which
    training and held-out rows take in the numbers in which they come.
    """
    flat = X.reshape(len(X), -1)
    pairs = flat if y is None else np.column_stack([flat, y])
    first, member = distinct_numbers_of(pairs)
    if len(first) == len(X):
        return X, y, weight
    count = np.bincount(member)
    if len(X) > MOST_COPIES * len(first) * count.min():
        return X, y, weight
    total = np.bincount(member, weights=weight)
    alike = weight is None and np.ptp(count) == 0
    return X[first], None if y is None else y[first], None if alike else total.astype(float)


def sample_that_varies(
    X: np.ndarray, weight: np.ndarray, some: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of sampled rows and of :func:`that_vary`, and their weights.

    A row that was added has the weight that its like have in a sample on average.
    """
    added = that_vary(X, some)
    fraction = float(weight[some].sum() / weight.sum())
    return np.concatenate([some, added]), np.concatenate([weight[some], weight[added] * fraction])


def that_vary(X: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Numbers of the fewest further rows by which all columns that vary in X vary among `some`.

    A rare level or flag of which a sample has no row would otherwise be a constant of the sample.
    One row is added for each column that needs one, and does not have it from an earlier one.
    """
    if not len(some):
        return some[:0]
    rows = X.reshape(len(X), -1)
    chosen = rows[some]
    value = chosen[0].copy()
    constant = np.flatnonzero(((chosen == value) | ((chosen != chosen) & (value != value))).all(0))
    added: list[int] = []
    for j in constant:
        column = rows[:, j]
        other = (
            (column != value[j]) & ~np.isnan(column) if value[j] == value[j] else column == column
        )
        if other.any() and not other[added].any():
            added.append(int(other.argmax()))
    return np.array(added, dtype=some.dtype)


def _bits(column: np.ndarray) -> np.ndarray:
    """Numbers as 64 bits that are equal where the numbers are."""
    if column.dtype.kind in "biu":
        return column.astype(np.int64).view(np.uint64)
    value = column.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    value[np.isnan(value)] = np.nan
    return value.view(np.uint64)


def _mixed(code: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """A hash of an earlier one and further bits."""
    z = (code ^ bits) + STEP
    z = (z ^ (z >> np.uint64(30))) * MIX_ONE
    z = (z ^ (z >> np.uint64(27))) * MIX_TWO
    return z ^ (z >> np.uint64(31))


def _of_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First positions of distinct keys, in the order of the rows, and the number of each row's."""
    _, first, member = np.unique(keys, return_index=True, return_inverse=True)
    order = first.argsort()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[member.ravel()]


def _by_columns(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same column by column: pairs of numbers of earlier columns and of this one."""
    member = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        _, own = np.unique(_bits(column), return_inverse=True)
        _, member = np.unique(member * len(rows) + own.ravel(), return_inverse=True)
        member = member.ravel()
    return _of_keys(member)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tables have the same numbers, missing ones included."""
    if one.dtype.kind in "biu":
        return bool(np.array_equal(one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())
