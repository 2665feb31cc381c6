"""Merging of p-values that depend on each other in an unknown manner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from skebm._validation import as_numbers

# Means of several p-values, the last axis; each increases with each of them.
MEANS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda p: np.mean(p, axis=-1),
    "geometric": lambda p: np.exp(np.mean(np.log(p), axis=-1)),
    "harmonic": lambda p: 1 / np.mean(1 / p, axis=-1),
    "minimum": lambda p: np.min(p, axis=-1),
}


def harmonic_factor(n: int) -> float:
    """The smallest multiple of the harmonic mean of n p-values that is a p-value for small values.

    It is the minimum of log(1 + y) (n + y) / y, about log n + log log n + 1.
    """
    if n <= 2:
        return float(n)
    found = minimize_scalar(
        lambda log_y: np.log1p(np.exp(log_y)) * (n + np.exp(log_y)) / np.exp(log_y),
        bounds=(-5, 2 * np.log(n) + 5),
        method="bounded",
    )
    return float(found.fun)


FACTORS: dict[str, Callable[[int], float]] = {
    "mean": lambda n: 2.0,
    "geometric": lambda n: float(np.e),
    "harmonic": harmonic_factor,
    "minimum": float,
}


def merge_p_values(p_values: Any, method: str = "mean") -> np.ndarray:
    r"""One p-value for several p-values of the same row, however they depend on each other.

    A mean of p-values is no p-value, but a multiple of it is, whatever their dependence (Vovk and
    Wang 2020):

    ============== ==================================== =========================================
    `method`       p-value                              best where
    ============== ==================================== =========================================
    ``mean``       twice the mean                       all p-values are small
    ``geometric``  e = 2.72 times the geometric mean    most are small
    ``harmonic``   2.75 (of three) to 7.5 (of a         some are very small
                   hundred) times the harmonic mean
    ``minimum``    K times the smallest (Bonferroni)    one is very small
    ============== ==================================== =========================================

    Choose it before the p-values are seen. It is for detectors that were calibrated separately,
    with other rows or other columns; detectors with the same calibration rows need no factor in
    :class:`OutlierEnsemble`.

    Parameters
    ----------
    p_values : array-like of shape (n_samples, n_detectors)
        In [0, 1], those of one row in a row.
    method : {"mean", "geometric", "harmonic", "minimum"}, default="mean"

    Returns
    -------
    ndarray of shape (n_samples,)
        At most 1.

    References
    ----------
    Vovk and Wang (2020), "Combining p-values via averaging", Biometrika 107, propositions 3 and 4
    and section 4. Vovk, Wang and Wang (2022), "Admissible ways of merging p-values under arbitrary
    dependence", Annals of Statistics 50.

    Examples
    --------
    >>> from skebm.estimators import merge_p_values
    >>> merge_p_values([[0.01, 0.02, 0.06], [0.3, 0.9, 0.8]]).round(3)
    array([0.06, 1.  ])
    >>> merge_p_values([[0.01, 0.02, 0.06]], "minimum").round(3)
    array([0.03])
    """
    p = as_numbers("p_values", p_values)
    if method not in MEANS:
        raise ValueError(f"method={method!r} must be one of {', '.join(map(repr, MEANS))}.")
    if p.ndim != 2 or not p.shape[1]:
        raise ValueError(
            f"p_values has the shape {p.shape}: pass (n_samples, n_detectors), as by "
            "np.column_stack([one.p_values(X), other.p_values(X)])."
        )
    wrong = ~((p >= 0) & (p <= 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"p_values[{row}, {column}] is {p[row, column]:g}, but p-values lie between 0 and 1."
        )
    n = p.shape[1]
    with np.errstate(divide="ignore"):
        merged = MEANS[method](p)
    found: np.ndarray = np.minimum(1.0, (FACTORS[method](n) if n > 1 else 1.0) * merged)
    return found
