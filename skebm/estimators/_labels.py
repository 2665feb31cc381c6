"""Labels of a classifier as numbers, and what it says in their terms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets

from skebm._validation import check_labels
from skebm.objectives.joint import UNKNOWN


class Labels(NamedTuple):
    """Labels of rows, and the classes that there are, where they are named."""

    y: Any
    classes: Any = None


class Labelled(BaseEstimator):
    """Reads the labels of rows; mixed into a classifier."""

    unlabeled: Any
    classes_: np.ndarray

    def _targets(self, X: Any, y: Any, *, going_on: bool) -> np.ndarray:
        """Places of the labels among the classes, -1 for rows that have none."""
        found = check_labels(self, X, y.y)
        known = np.ones(len(found), dtype=bool)
        if self.unlabeled is not None:
            known = np.array([label != self.unlabeled for label in found.tolist()])
            if not known.any():
                raise ValueError(
                    f"All rows are unlabelled (unlabeled={self.unlabeled!r}): a classifier needs "
                    "labels. For p(x) alone there is ContrastiveDivergenceDensity."
                )
        labels = found[known]
        check_classification_targets(labels)
        if not going_on:
            self.classes_ = self._all_classes(labels, y.classes)
        elif y.classes is not None and not np.array_equal(np.unique(y.classes), self.classes_):
            raise ValueError(
                f"classes={np.unique(y.classes).tolist()} are not those of the first call, "
                f"{self.classes_.tolist()}."
            )
        place = {label: number for number, label in enumerate(self.classes_.tolist())}
        new = sorted({label for label in labels.tolist() if label not in place}, key=str)
        if new:
            raise ValueError(
                f"y holds classes {new} that the model was not made for, {self.classes_.tolist()}: "
                "name all of them as classes= in the first call of partial_fit, or clone the "
                "estimator to start anew."
            )
        codes = np.full(len(found), UNKNOWN, dtype=np.int64)
        codes[known] = [place[label] for label in labels.tolist()]
        return codes

    def _all_classes(self, labels: np.ndarray, named: Any) -> np.ndarray:
        classes = np.unique(labels if named is None else named)
        if len(classes) < 2:
            raise ValueError(
                f"y holds {len(classes)} class, {classes.tolist()}, and a classifier needs two at "
                "least. For p(x) alone there is ContrastiveDivergenceDensity."
            )
        return classes

    def _codes(self, y: Any, n: int) -> np.ndarray:
        """Places of labels that are asked for, of each of n rows or of all."""
        labels = np.asarray(y)
        if labels.shape not in ((), (n,)):
            raise ValueError(f"y must be a label, or one for each of {n} rows, got {y!r}.")
        names = self.classes_.tolist()
        asked = np.broadcast_to(labels, (n,)).tolist()
        strange = sorted({label for label in asked if label not in names}, key=str)
        if strange:
            raise ValueError(f"y holds {strange}, and the classes are {names}.")
        return np.array([names.index(label) for label in asked])
