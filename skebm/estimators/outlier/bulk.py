"""Where the bulk of a table is, and how far rows are from it: clusters of few rows do not count."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

# Most rows that the bulk is found of.
MOST_ROWS = 5000
# Partitions of half of the rows each, their clusters, and the share of rows in those that count.
N_PARTITIONS, N_CLUSTERS, LARGE = 20, 8, 0.75
# Share of the values of a column in a window, how many windows around a value are tried, and the
# width below which they are equal, in units of the column.
WINDOW, N_WINDOWS, RESOLUTION = 0.2, 9, 1e-2
# Share of rows that a covariance is of, how often they are chosen again, and the squared distance
# in medians up to which rows count in the end.
CORE, N_STEPS, BEYOND = 0.5, 3, 3.0
# Eigenvalues are raised by this share of their mean.
SHRINKAGE = 0.02
# Width of a column in interquartile ranges (as a standard deviation) at most, and where it ends.
MOST_WIDE, FARTHEST = 10.0, 1e3
TINY = 1e-12


class Bulk(NamedTuple):
    """Three descriptions of the bulk of a table, none of which sees a cluster of few rows.

    Attributes
    ----------
    centre, unit : ndarray of shape (d,)
        Of columns; a unit is a standard deviation, or what limits that of a column with gross ones.
    clusters : list of ndarray of shape (n_large, d)
        Centres of the largest clusters of each partition, which hold three quarters of the rows.
    columns : ndarray of shape (n, d)
        Values of each column, increasing.
    middle, axes : ndarray of shape (d,), (d, d)
        Mean of the core of the rows, and what makes its covariance the identity.
    """

    centre: np.ndarray
    unit: np.ndarray
    clusters: list[np.ndarray]
    columns: np.ndarray
    middle: np.ndarray
    axes: np.ndarray

    @property
    def n_distances(self) -> int:
        """Number of distances of a row."""
        return 3

    @classmethod
    def fit(cls, X: np.ndarray, random: np.random.RandomState) -> Bulk:
        """Of the rows of X, finite numbers, of which at most 5,000 are used."""
        if len(X) > MOST_ROWS:
            X = X[np.sort(random.permutation(len(X))[:MOST_ROWS])]
        d = X.shape[1]
        found = cls(*_units(X), [], X, np.zeros(d), np.eye(d))
        z = found.scaled(X)
        found = found._replace(clusters=_large_clusters(z, random), columns=np.sort(z, axis=0))
        start = nats_beyond(found._to_clusters(z)) + nats_beyond(found._widths(z))
        middle, axes = _core(z, start)
        return found._replace(middle=middle, axes=axes)

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """The rows in units of the columns, (n, d)."""
        with np.errstate(over="ignore"):
            found: np.ndarray = ((X - self.centre) / self.unit).clip(-FARTHEST, FARTHEST)
        return found

    def distances(self, X: np.ndarray) -> np.ndarray:
        """Logs of the distances of rows from clusters, windows and core, (n, 3)."""
        z = self.scaled(X)
        core = np.square((z - self.middle) @ self.axes).sum(1)
        return np.column_stack([self._to_clusters(z), self._widths(z), np.log(core + TINY)])

    def _to_clusters(self, z: np.ndarray) -> np.ndarray:
        """Log of the mean over partitions of the distance to the nearest large cluster, (n,)."""
        found, own = np.zeros(len(z)), np.square(z).sum(1)
        for centres in self.clusters:
            square = own[:, None] - 2 * z @ centres.T + np.square(centres).sum(1)
            found += np.sqrt(np.maximum(square.min(1), 0))
        return np.asarray(np.log(found / len(self.clusters) + TINY))

    def _widths(self, z: np.ndarray) -> np.ndarray:
        """Sum over columns of the log of the narrowest window around the value, (n,)."""
        n, found = len(self.columns), np.zeros(len(z))
        size, begins = windows_of(n)
        for column, x in zip(self.columns.T, z.T, strict=True):
            place, width = np.searchsorted(column, x), np.full(len(x), np.inf)
            for begin in begins:
                low = np.clip(place - begin, 0, n - size - 1)
                reach = np.maximum(x - column[low], column[low + size] - x)
                width = np.minimum(width, reach)
            found += np.log(width + RESOLUTION)
        return found


def windows_of(n: int) -> tuple[int, np.ndarray]:
    """How many values of n a window is long, and how many before a value its windows begin."""
    size = min(max(1, int(WINDOW * n)), n - 1)
    return size, np.unique(np.linspace(0, size, N_WINDOWS).astype(int))


def nats_beyond(values: np.ndarray) -> np.ndarray:
    """Minus the log of the share of the values that are at least as high, in nats, (n,)."""
    n = len(values)
    below = np.searchsorted(np.sort(values), values, side="left")
    found: np.ndarray = -np.log((n - below + 1) / (n + 1))
    return found


def mean_of_two_highest(nats: np.ndarray) -> np.ndarray:
    """Of the nats of three descriptions, (n, 3), two that agree: (n,)."""
    found: np.ndarray = np.sort(nats, axis=1)[:, -2:].mean(1)
    return found


def nats_from_bulk(distances: np.ndarray) -> np.ndarray:
    """How far rows are from the bulk beside each other, in nats, (n,), of `Bulk.distances`."""
    return mean_of_two_highest(np.column_stack([nats_beyond(one) for one in distances.T]))


def _units(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Of values near the largest numbers, squares would be infinite.
    largest = np.abs(X).max(0)
    largest = np.where(largest > 0, largest, 1.0)
    z = X / largest
    low, middle, high = np.quantile(z, [0.25, 0.5, 0.75], axis=0)
    unit, inner = z.std(0), MOST_WIDE * (high - low) / 1.349
    wide = (inner > 0) & (unit > inner)
    unit, centre = np.where(wide, inner, unit), np.where(wide, middle, z.mean(0))
    varies = np.ptp(z, axis=0) > 0
    return centre * largest, np.where(varies & (unit > 0), unit, 1.0) * largest


def _large_clusters(z: np.ndarray, random: np.random.RandomState) -> list[np.ndarray]:
    """Centres of the largest clusters of partitions of random halves."""
    found, n = [], len(z)
    for _ in range(N_PARTITIONS):
        half = z[random.permutation(n)[: max(min(n, 3 * N_CLUSTERS), n // 2)]]
        k = min(N_CLUSTERS, max(1, n // 3), len(np.unique(half, axis=0)))
        model = KMeans(k, n_init=1, max_iter=30, random_state=random.randint(2**31)).fit(half)
        share = np.bincount(model.predict(z), minlength=k) / n
        order = np.argsort(-share, kind="stable")
        n_large = int(np.searchsorted(np.cumsum(share[order]), LARGE)) + 1
        found.append(model.cluster_centers_[order[:n_large]])
    return found


def _core(z: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and axes of the core of rows, by the concentration steps of Rousseeuw's estimator.

    They start from rows that other descriptions find near. In the end all rows count that are not
    far from the core: half of them alone would say little of 30 columns.
    """
    size = max(1, int(CORE * len(z)))
    for _ in range(N_STEPS):
        mean, axes = _moments(z[np.argsort(distance, kind="stable")[:size]])
        distance = np.square((z - mean) @ axes).sum(1)
    return _moments(z[distance <= BEYOND * np.median(distance)])


def _moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = z.mean(0)
    values, axes = np.linalg.eigh((z - mean).T @ (z - mean) / len(z))
    values = values.clip(0)
    values += SHRINKAGE * values.mean()
    return mean, axes / np.sqrt(np.where(values > 0, values, 1.0))
