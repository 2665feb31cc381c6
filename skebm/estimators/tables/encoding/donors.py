"""Missing entries of rows, taken from the nearest row that has them."""

from __future__ import annotations

import numpy as np

# Squared distances that differ by less, relative to the smallest, are equal: by rounding, which
# depends on the other rows of a batch. Of equal donors the first one gives.
TIES = 1e-9
# Numbers of distances that are held at a time.
MOST_PAIRS = 2_000_000


def complete_by_donors(z: np.ndarray, donors: np.ndarray) -> np.ndarray:
    """Rows (n, d) whose missing entries, nan, are those of the nearest donor that has them.

    The squared distance of a row to a donor is the mean over the columns that both have. Where a
    row has no column in common with a donor that has an entry, the entry is the mean of the donors,
    and 0 where no donor has it.
    """
    found = z.copy()
    rows = np.flatnonzero(np.isnan(z).any(1))
    step = max(1, MOST_PAIRS // len(donors))
    groups = donors_by_column(donors)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        part = z[some]
        distance = _distances(part, donors)
        for having, columns in groups:
            if not len(having):
                part[:, columns] = np.nan_to_num(part[:, columns])
                continue
            here = distance[:, having]
            least = here.min(1, keepdims=True)
            first = (here <= least + TIES * (1 + least)).argmax(1)
            given = donors[np.ix_(having, columns)]
            values = np.where(np.isinf(least), given.mean(0), given[first])
            part[:, columns] = np.where(np.isnan(part[:, columns]), values, part[:, columns])
        found[some] = part
    return found


def donors_by_column(donors: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers of donors that have an entry, and of the columns of which they are all that do."""
    masks, member = np.unique(~np.isnan(donors), axis=1, return_inverse=True)
    return [
        (np.flatnonzero(masks[:, k]), np.flatnonzero(member.ravel() == k))
        for k in range(masks.shape[1])
    ]


def _distances(z: np.ndarray, donors: np.ndarray) -> np.ndarray:
    """Mean squared differences over common columns, infinite where there are none, (n, m)."""
    has, have = (~np.isnan(z)).astype(float), (~np.isnan(donors)).astype(float)
    x, y = np.where(has, z, 0.0), np.where(have, donors, 0.0)
    total = np.square(x) @ have.T - 2 * x @ y.T + has @ np.square(y).T
    common = has @ have.T
    mean: np.ndarray = np.maximum(total, 0.0) / np.maximum(common, 1.0)
    return np.where(common == 0, np.inf, mean)
