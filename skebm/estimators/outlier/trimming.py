"""Training rows that are far from most others, by an isolation forest."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest

from skebm._validation import n_rows
from skebm.estimators.tables.encoding import TableEncoder

N_TREES = 200
FEWEST_ROWS = 20


def far_rows(X: Any, trim: float | str, seed: int) -> np.ndarray:
    """Which rows of a table are left out of a fit, (n,) of bool.

    They are found by an isolation forest. Its trees are built on 256 rows each, which contain few
    anomalies even if these form a cluster in the table. The detector's own densities take such
    clusters to be normal.

    Parameters
    ----------
    X : {array-like, frame} of shape (n_samples, n_features)
    trim : float or "auto"
        Fraction of the rows, or ``"auto"``: those that the forest predicts to be outliers, at most
        half of the rows.
    seed : int
        Of the forest.

    References
    ----------
    Liu, Ting and Zhou (2008), "Isolation forest", ICDM.
    """
    n = n_rows(X)
    if n < FEWEST_ROWS:
        raise ValueError(
            f"n_samples={n}: trim={trim!r} takes at least {FEWEST_ROWS} rows. Give more rows, or "
            "trim=None."
        )
    z = TableEncoder().fit_transform(X)
    forest = IsolationForest(n_estimators=N_TREES, random_state=seed).fit(z)
    score = forest.score_samples(z)
    if trim == "auto":  # all rows may be predicted to be outliers where they differ in little
        return np.asarray(score < min(forest.offset_, np.median(score)))
    far = np.zeros(n, dtype=bool)
    far[np.argsort(score, kind="stable")[: int(float(trim) * n)]] = True
    return far
