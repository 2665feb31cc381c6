"""Labels of classifiers: their codes, those of unlabelled rows, and weights of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from skebm._validation import as_numbers, check_labels
from skebm.objectives.joint import UNKNOWN
from skebm.training.rows import Rows


def encoded(estimator: Any, X: Any, y: Any, on: bool, classes: Any = None) -> np.ndarray:
    """Indices of the labels among the classes, -1 for unlabelled rows; sets `classes_`.

    Parameters
    ----------
    estimator : object
        With the parameter `unlabeled`, the label of rows whose class is unknown or None.
    X : array-like of shape (n_samples, n_features)
        Validated rows.
    y : array-like of shape (n_samples,)
    on : bool
        Whether the fit goes on with the classes of the one before.
    classes : array-like or None, default=None
        All classes; None takes those of y.

    Returns
    -------
    ndarray of shape (n_samples,)

    Raises
    ------
    ValueError
        If all rows are unlabelled, there are fewer than two classes, or a label is none of them.
    """
    found = check_labels(estimator, X, y)
    known = np.ones(len(found), dtype=bool)
    mark = estimator.unlabeled
    if mark is not None:
        if np.ndim(mark):
            raise ValueError(f"unlabeled must be one label, got {mark!r}.")
        known = np.array([label != mark for label in found.tolist()])
        if not known.any():
            raise ValueError(
                f"All rows are unlabelled (unlabeled={mark!r}): a classifier needs labels. For "
                f"p(x) alone use {estimator._density_alone}."
            )
    labels = found[known]
    check_classification_targets(labels)
    if not on:
        estimator.classes_ = all_classes(labels, classes, estimator._density_alone)
    elif classes is not None and not np.array_equal(np.unique(classes), estimator.classes_):
        raise ValueError(
            f"classes={np.unique(classes).tolist()} are not those of the first call, "
            f"{estimator.classes_.tolist()}."
        )
    names = estimator.classes_.tolist()
    place = {label: number for number, label in enumerate(names)}
    new = sorted({label for label in labels.tolist() if label not in place}, key=str)
    if new:
        raise ValueError(
            f"y contains classes {new}, which are not among {names}: pass all of them as classes= "
            "in the first call of partial_fit, or clone the estimator to start anew."
        )
    codes = np.full(len(found), UNKNOWN, dtype=np.int64)
    codes[known] = [place[label] for label in labels.tolist()]
    return codes


def all_classes(labels: np.ndarray, named: Any, density: str) -> np.ndarray:
    """Sorted classes: those given, or those of the labels; `density` models p(x) alone."""
    classes = np.unique(labels if named is None else named)
    if len(classes) < 2:
        raise ValueError(
            f"y contains {len(classes)} class, {classes.tolist()}, but a classifier needs at least "
            f"two. For p(x) alone use {density}."
        )
    return classes


def codes_of(y: Any, n: int, classes: np.ndarray) -> np.ndarray:
    """Indices of labels among the classes, one for each of n rows or one for all."""
    labels = np.asarray(y)
    if labels.shape not in ((), (n,)):
        raise ValueError(f"y must be a label, or one for each of {n} rows, got {y!r}.")
    names = classes.tolist()
    asked = np.broadcast_to(labels, (n,)).tolist()
    unknown = sorted({label for label in asked if label not in names}, key=str)
    if unknown:
        raise ValueError(f"y contains {unknown}, but the classes are {names}.")
    return np.array([names.index(label) for label in asked])


def class_weights(asked: Any, classes: np.ndarray, rows: Rows) -> tuple[float, ...] | None:
    """Weights of the classes in the cross-entropy, so that it is a mean over labelled rows.

    None if all are 1.
    """
    assert rows.y is not None
    y, counts = rows.y.cpu().numpy(), rows.counts.cpu().numpy()
    labelled = y != UNKNOWN
    of_class = np.bincount(y[labelled], weights=counts[labelled], minlength=len(classes))
    found = np.ones(len(classes))
    if isinstance(asked, dict):
        names = classes.tolist()
        unknown = [label for label in asked if label not in names]
        if unknown:
            raise ValueError(f"class_weight contains {unknown}, but the classes are {names}.")
        found = as_numbers("class_weight", [asked.get(label, 1.0) for label in names])
        if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
            raise ValueError(
                f"class_weight must be finite, not negative and not all zero, got {asked!r}."
            )
    elif asked == "balanced":
        found = of_class.sum() / (len(classes) * np.maximum(of_class, 1e-12))
        found[of_class == 0] = 0.0
    # Batch means are over all rows, also those without labels.
    found = found * counts.sum() / of_class.sum()
    return None if np.allclose(found, 1) else tuple(found.tolist())
