"""Abnormality of rows by any estimator that scores them, and the threshold of the estimator."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_outlier_detector

from skebm._validation import check_is_fitted, n_rows
from skebm.estimators import EnergyOutlierDetector, RowSurprise
from skebm.estimators.queries.densities import is_energy_based, last_step, relative_log_density


class Abnormality(NamedTuple):
    """One number per row, higher for more abnormal rows; may be infinite."""

    values: np.ndarray
    name: str


def abnormality(estimator: Any, X: Any, *, name: str = "X") -> Abnormality:
    """Minus the decision function of a detector of skebm, else the energy: -log p + constant."""
    if hasattr(estimator, "fit"):
        check_is_fitted(estimator)
    if not n_rows(X):
        raise ValueError(f"{name} has no rows.")
    if _ends_in_detector(estimator):
        values = -np.asarray(estimator.decision_function(X), dtype=float)
        what = "minus decision_function"
    else:
        values = -np.asarray(relative_log_density(estimator, X), dtype=float)
        energy = is_energy_based(last_step(estimator)[1])
        what = "energy, nats" if energy else "minus score_samples"
    if lost := int(np.isnan(values).sum()):
        raise ValueError(
            f"{type(estimator).__name__} gives nan for {lost} of the {len(values)} rows of {name}."
        )
    return Abnormality(values, what)


def threshold_of(estimator: Any, X: Any, values: np.ndarray) -> float | None:
    """Abnormality where `decision_function` is 0; None where they differ by more than a shift."""
    if _ends_in_detector(estimator):
        return 0.0
    if not (_is_outlier_detector(estimator) and hasattr(estimator, "decision_function")):
        return None
    decision = np.asarray(estimator.decision_function(X), dtype=float)
    if decision.shape != values.shape:
        return None
    finite = np.isfinite(values) & np.isfinite(decision)
    if not finite.any():
        return None
    shift = values[finite] + decision[finite]
    middle = float(np.median(shift))
    rounding = 1e-4 * (1 + abs(middle) + float(np.abs(decision[finite]).max()))
    return middle if np.ptp(shift) <= rounding else None


def outlier_mask(estimator: Any, X: Any) -> np.ndarray | None:
    """Rows that `predict` calls outliers; None where the estimator is no outlier detector."""
    if not (_is_outlier_detector(estimator) and hasattr(estimator, "predict")):
        return None
    return np.asarray(estimator.predict(X)) == -1


def finite_ranks(values: np.ndarray) -> np.ndarray:
    """Finite ranks, also of infinities and equal for equal values; they give the same ROC curve."""
    return np.unique(values, return_inverse=True)[1].astype(float)


def _is_outlier_detector(estimator: Any) -> bool:
    return hasattr(estimator, "__sklearn_tags__") and is_outlier_detector(estimator)


def _ends_in_detector(estimator: Any) -> bool:
    _, last = last_step(estimator, into_detectors=False)
    return isinstance(last, EnergyOutlierDetector | RowSurprise)
