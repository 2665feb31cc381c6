"""Training rows that are far from the bulk of a table, and how many of them are anomalies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import beta

from skebm._validation import n_rows, warn
from skebm.base import DataWarning
from skebm.estimators.outlier.bulk import Bulk, nats_from_bulk
from skebm.estimators.tables.encoding import TableEncoder

FEWEST_ROWS = 20
# Share of rows that "auto" leaves out beside the estimated one, and that it does at most.
LEAST, MOST = 0.05, 0.5
# Weight of the bulk in the default estimator with "auto".
WEIGHT_OF_BULK = 0.5
# Distances beyond the median at which rows are counted, in units of that of the lower quartile from
# it: normal rows halve in number every 1.1 of them on most tables. Upper bounds count from the
# first.
BEYOND, HALVED, FIRST = np.arange(2.0, 9.0), 1.1, 1.0
# The lower bound takes units of twice the distance of a percentile above if this is larger, as it
# is where normal rows have heavy tails, and normal rows to halve every one of them.
ABOVE, HALVED_AT_MOST = 0.65, 1.0
# Errors of each bound; share of anomalies from which on a fit warns.
ERROR, MANY = 0.05, 0.25


class ContaminatedShare(NamedTuple):
    """The share of training rows that are anomalies, estimated without labels.

    Attributes
    ----------
    value : float
        Rows that are farther from the bulk of the table than its tail explains. Anomalies amid
        normal rows are not counted, so that it is mostly too low where these are many; normal rows
        of heavy tails are counted.
    lower : float
        A bound that is above that share in at most 5 % of samples.
    upper : float
        Bound from above with the same error on the share of all rows that are not near the bulk,
        which a cluster of more than about a tenth of the rows seems to be part of.
    """

    value: float
    lower: float
    upper: float


def far_rows(X: Any, trim: float | str, seed: int) -> tuple[np.ndarray, ContaminatedShare]:
    """Which rows of a table are left out of a fit, (n,) of bool, and the share of anomalies.

    Rows are ranked by their distances from the bulk of the table (:class:`Bulk`), of which clusters
    of few rows are no part. The detector's own densities take such clusters to be normal.

    Parameters
    ----------
    X : {array-like, frame} of shape (n_samples, n_features)
    trim : float or "auto"
        Fraction of the rows, or ``"auto"``: a twentieth and the estimated share of anomalies, at
        most half of the rows.
    seed : int
        Of the partitions of rows.
    """
    n = n_rows(X)
    if n < FEWEST_ROWS:
        raise ValueError(
            f"n_samples={n}: trim={trim!r} takes at least {FEWEST_ROWS} rows. Give more rows, or "
            "trim=None."
        )
    z = np.asarray(TableEncoder().fit_transform(X), dtype=np.float64)
    distances = Bulk.fit(z, np.random.RandomState(seed)).distances(z)
    share = contaminated_share(distances)
    fraction = min(LEAST + share.value, MOST) if trim == "auto" else float(trim)
    far = np.zeros(n, dtype=bool)
    nats = nats_from_bulk(distances)
    far[np.argsort(-nats, kind="stable")[: int(fraction * n)]] = True
    return far, share


def contaminated_share(distances: np.ndarray) -> ContaminatedShare:
    """The share of anomalies among rows, of their log distances from the bulk, (n, 3).

    Beyond the median, normal rows are taken to decrease exponentially, in units of the distance of
    the lower quartile from it: that side of the median has few anomalies. More rows than that are
    anomalies. Each description of the bulk gives a share; the median is returned.
    """
    found = np.median([_share_beyond_tail(values) for values in distances.T], axis=0)
    return ContaminatedShare(*map(float, found))


def _share_beyond_tail(values: np.ndarray) -> tuple[float, float, float]:
    """Value, lower and upper bound of the share by one distance."""
    n = len(values)
    quartile, median, above = np.quantile(values, [0.25, 0.5, ABOVE])
    unit = median - quartile
    if unit <= 1e-9 * max(abs(median), 1.0):  # rows that differ in little
        return 0.0, 0.0, 1.0
    beyond = values - median
    value = _excess((beyond[:, None] > unit * BEYOND).mean(0), HALVED)
    heavy = max(unit, 2 * (above - median))
    count = (beyond[:, None] > heavy * BEYOND).sum(0)
    # Clopper and Pearson's bounds, at seven distances (Bonferroni).
    some = np.maximum(count, 1)
    least = np.where(count > 0, beta.ppf(ERROR / len(BEYOND), some, n - some + 1), 0.0)
    lower = _excess(least, HALVED_AT_MOST)
    n_off = int((beyond > unit * FIRST).sum())
    upper = float(beta.ppf(1 - ERROR, n_off + 1, n - n_off)) if n_off < n else 1.0
    return max(value, lower), lower, max(upper, value)


def _excess(beyond: np.ndarray, halved: float) -> float:
    """The largest share of rows that a tail does not explain, of those beyond distances."""
    tail = 0.5 * 2.0 ** (-BEYOND / halved)
    return float(np.max((beyond - tail) / (1 - tail), initial=0.0))


def mean_share(found_by: list[ContaminatedShare]) -> ContaminatedShare:
    """That of all fits of a detector; warns if many of the rows are anomalies."""
    found = ContaminatedShare(*map(float, np.mean(found_by, axis=0)))
    if found.value > MANY:
        warn(
            f"About {found.value:.0%} of the training rows seem to be anomalies; were it half, "
            "which half is normal could not be known.\nFit to rows that are known to be normal, or "
            f"set trim={min(round(found.value, 2), 0.49):g} if the others are.",
            DataWarning,
        )
    return found
