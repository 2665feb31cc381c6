"""The detector as one of PyOD."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from pyod.models.base import BaseDetector
except ImportError as error:
    raise ImportError('skebm.integrations.pyod needs PyOD: pip install "skebm[pyod]".') from error

from skebm._validation import check_is_fitted
from skebm.estimators import EnergyOutlierDetector, Explanation


class EnergyDetector(BaseDetector):  # type: ignore[misc, unused-ignore]
    r"""Outlier detector of PyOD, from any density or score.

    :class:`skebm.EnergyOutlierDetector` with the conventions of PyOD: labels are 0 for inliers and
    1 for outliers, scores are higher for outliers, and the rows that are fitted are those that are
    judged. It can be used wherever PyOD takes a detector, such as in `FeatureBagging` and `LSCP`.
    `predict`, `predict_proba`, `predict_confidence` and `predict_with_rejection` are those of PyOD.

    Parameters
    ----------
    estimator : estimator or None, default=None
        Model that scores the rows, as for :class:`skebm.EnergyOutlierDetector`. None takes frames
        with numbers, categories, text, dates and missing entries.
    contamination : float in (0, 0.5] or thresholder of PyThresh, default=0.1
        Fraction of the rows of `fit` that are labelled outliers.
    statistic : str or callable, default="auto"
        As for :class:`skebm.EnergyOutlierDetector`.
    trim : float in (0, 0.5), "auto" or None, default=None
        Fraction of the rows that the estimator is not fitted to: those farthest from the bulk of
        the table. ``"auto"`` leaves out as many as seem to be anomalies, and is worth setting if
        more than a few of the rows are (see :class:`skebm.EnergyOutlierDetector`).
    random_state : int, RandomState instance or None, default=None
        Seed of what is random in the estimator.
    n_jobs : int or None, default=None
        Number of models that are fitted at the same time, as for
        :class:`skebm.EnergyOutlierDetector`.

    Attributes
    ----------
    decision_scores_ : ndarray of shape (n_samples,)
        Scores of the rows of `fit`, higher for outliers, in nats for a density.
    threshold_ : float
        The score above which a row is labelled an outlier.
    labels_ : ndarray of shape (n_samples,)
        Labels of the rows of `fit`: 0 for inliers, 1 for outliers.
    detector_ : EnergyOutlierDetector
        The fitted detector, for what PyOD has no name for.

    See Also
    --------
    skebm.EnergyOutlierDetector : With p-values and a rate of false alarms for new rows.

    References
    ----------
    Zhao, Nasrullah and Li (2019), "PyOD: A Python toolbox for scalable outlier detection", JMLR 20.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.integrations.pyod import EnergyDetector
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> X[:5] += 6
    >>> detector = EnergyDetector(contamination=0.05, random_state=0).fit(X)
    >>> detector.labels_[:5], int(detector.labels_.sum())
    (array([1, 1, 1, 1, 1]), 10)
    """

    def __init__(
        self,
        estimator=None,
        contamination=0.1,
        *,
        statistic="auto",
        trim=None,
        random_state=None,
        n_jobs=None,
    ):
        super().__init__(contamination=contamination)
        self.estimator = estimator
        self.statistic = statistic
        self.trim = trim
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> EnergyDetector:
        """Fit the estimator to the rows, score them and label them.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            In any form that the estimator takes.
        y : None
            Not used, with a warning of PyOD; present by convention.

        Returns
        -------
        self : EnergyDetector
        """
        detector = EnergyOutlierDetector(
            self.estimator,
            statistic=self.statistic,
            trim=self.trim,
            random_state=self.random_state,
            n_jobs=self.n_jobs,
        ).fit(X)
        # A call that fails leaves the detector as it was.
        scores = _abnormality(detector, X)
        self._set_n_classes(y)
        self.detector_, self.decision_scores_ = detector, scores
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Score of each row, higher for outliers.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_is_fitted(self, ["decision_scores_", "threshold_", "labels_"])
        return _abnormality(self.detector_, X)

    def explain(self, X: Any, *, method: str = "auto") -> Explanation:
        """Explain which columns make rows anomalous.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            A few rows.
        method : {"auto", "imputation", "score"}, default="auto"
            As in :meth:`skebm.EnergyOutlierDetector.explain`.

        Returns
        -------
        Explanation
        """
        check_is_fitted(self, ["decision_scores_", "threshold_", "labels_"])
        return self.detector_.explain(X, method=method)


def _abnormality(detector: EnergyOutlierDetector, X: Any) -> np.ndarray:
    """Minus the statistic of the rows, up to a constant: needs no log Z."""
    return -detector.decision_function(X)
