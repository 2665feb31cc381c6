"""Statistics that discriminate normal rows from outliers; higher values are more normal."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import get_tags

from skebm._validation import as_numbers, n_rows
from skebm.estimators.outlier.logits import LogitEnergy, check_has_logits
from skebm.estimators.outlier.surprise import RowSurprise
from skebm.estimators.queries.densities import last_step, relative_log_density, score_function
from skebm.training.streams import map_blocks, some_rows


def negative_score_norm(estimator: Any, X: Any) -> np.ndarray:
    """Minus the Euclidean norm of grad log p, as the last step of a pipeline sees the row."""
    return -np.linalg.norm(score_function(estimator, X), axis=1)


def max_proba(estimator: Any, X: Any) -> np.ndarray:
    """Probability of the most likely class (Hendrycks and Gimpel 2017)."""
    return np.max(estimator.predict_proba(X), axis=1)


def negative_surprise(estimator: Any, X: Any) -> np.ndarray:
    """Minus the surprise of the row in nats (:class:`RowSurprise`)."""
    return np.asarray(estimator.score_samples(X))


def default_statistic(estimator: Any) -> str:
    """What ``statistic="auto"`` is for an estimator."""
    return "surprise" if is_surprise(estimator) else "log_density"


def is_surprise(estimator: Any) -> bool:
    """Whether an estimator, or the last step of a pipeline, is a :class:`RowSurprise`."""
    return isinstance(last_step(estimator, into_detectors=False)[1], RowSurprise)


STATISTICS: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "log_density": relative_log_density,
    "score_norm": negative_score_norm,
    "max_proba": max_proba,
    "logit_energy": LogitEnergy(),
    "surprise": negative_surprise,
}


# The method that a statistic needs, and which estimators have it.
NEEDED = {
    "log_density": (
        "score_samples",
        "a density, such as RBMEstimator, GaussianMixture or "
        "KernelDensity, an outlier detector, or statistic=a function of the estimator and X",
    ),
    "max_proba": (
        "predict_proba",
        "a classifier that gives probabilities; for a density use statistic='log_density'",
    ),
}


def needs_classes(estimator: Any) -> bool:
    """Whether an estimator is fitted to targets; pipelines and searches do not say it by a tag."""
    return bool(get_tags(estimator).target_tags.required) or is_classifier(estimator)


def check_offers(statistic: Any, estimator: Any) -> None:
    """Raise `TypeError` for an estimator without the method that the statistic needs.

    An estimator of sequences, from which single rows cannot be held out, raises it as well, and so
    does a pipeline that makes rows of a series.
    """
    steps = [step for _, step in estimator.steps] if hasattr(estimator, "steps") else [estimator]
    last = steps[-1]
    series = next((step for step in steps if getattr(step, "_needs_neighbours", False)), None)
    if series is not None:
        raise TypeError(
            f"{type(series).__name__} makes rows of a series, from which no row can be held out "
            "or changed alone: put it before the detector, as in make_pipeline(Windows(), "
            "EnergyOutlierDetector(...)), or use SequenceOutlierDetector, which holds out blocks."
        )
    if "lengths" in inspect.signature(last.fit).parameters:
        raise TypeError(
            f"{type(last).__name__} takes sequences, whose frames are not exchangeable: use "
            "SequenceOutlierDetector, which holds out whole sequences."
        )
    if statistic == "surprise" and not is_surprise(estimator):
        raise TypeError(
            f"statistic='surprise' needs RowSurprise, not {type(last).__name__}: pass "
            "estimator=RowSurprise(density), or statistic='log_density'."
        )
    if statistic == "logit_energy" or isinstance(statistic, LogitEnergy):
        check_has_logits(estimator)
    method, whom = NEEDED.get(statistic, ("", "")) if isinstance(statistic, str) else ("", "")
    if method and not hasattr(estimator, method):
        raise TypeError(
            f"statistic={statistic!r} needs an estimator with {method}, which "
            f"{type(estimator).__name__} does not have. Pass {whom}."
        )


def check_is_classifier(estimator: Any) -> None:
    """Raise `TypeError` for an estimator that gives rows no class."""
    if not is_classifier(estimator):
        raise TypeError(
            f"by_class=True compares rows with those that a classifier gives the same class, and "
            f"{type(estimator).__name__} is none: pass a classifier, or by_class=False."
        )


def class_numbers(estimator: Any, X: Any) -> np.ndarray:
    """Number of the class among ``classes_`` that a classifier gives to each row, (n,)."""
    found = np.asarray(estimator.predict(X))
    if found.ndim != 1:
        raise ValueError(
            f"{type(estimator).__name__} gives each row several labels, shape {found.shape}, where "
            "by_class=True needs one class: pass by_class=False."
        )
    given, place = np.unique(found, return_inverse=True)
    names = np.asarray(estimator.classes_).tolist()
    unknown = [label for label in given.tolist() if label not in names]
    if unknown:
        raise ValueError(
            f"{type(estimator).__name__} gives rows the class {unknown[0]!r}, which is none of its "
            "classes_, so that they cannot be compared with others: pass by_class=False."
        )
    return np.array([names.index(label) for label in given.tolist()], dtype=np.int64)[place]


def measure(statistic: Any, estimator: Any, X: Any, rows: np.ndarray | None = None) -> np.ndarray:
    """Statistic of each row, or of the given rows, (n,) in float64.

    For a large memory map it is computed one block after the other. Raises `ValueError` for wrong
    shapes and nan.
    """
    X = X if rows is None else some_rows(X, rows)
    return map_blocks(X, functools.partial(_measure_rows, statistic, estimator))


def _measure_rows(statistic: Any, estimator: Any, X: Any) -> np.ndarray:
    named = isinstance(statistic, str)
    function = STATISTICS[statistic] if named else statistic
    what = f"statistic={statistic!r} of {type(estimator).__name__}"
    values = as_numbers(what, function(estimator, X))
    if values.shape != (n_rows(X),):
        raise ValueError(
            f"{what} has shape {values.shape} for {n_rows(X)} rows: it needs one number per row, "
            "higher for more normal rows."
        )
    missing = np.isnan(values)
    if missing.any():
        raise ValueError(
            f"{what} is nan for {int(missing.sum())} of {len(values)} rows, the first of them row "
            f"{int(missing.argmax())}: such rows cannot be compared with others."
        )
    return values
