"""Members of an ensemble: which estimators score rows, and with which sign."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.base import is_outlier_detector
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm.estimators.outlier.columns import Column
from skebm.estimators.outlier.fitting import default_estimator
from skebm.estimators.outlier.reasons.contributions import explain_by_evidence
from skebm.estimators.outlier.reasons.explanations import Explanation
from skebm.estimators.outlier.statistics import STATISTICS, default_statistic, measure
from skebm.estimators.queries.densities import last_step, scores_are_nats
from skebm.estimators.queries.tractable import TractableDensity
from skebm.estimators.tables.encoding import TableEncoder


def default_members() -> list[tuple[str, Any]]:
    """Three views of a frame with any columns: surprise, clusters and neighbours."""
    neighbours = Pipeline(
        [
            ("tableencoder", TableEncoder()),
            ("standardscaler", StandardScaler()),
            ("localoutlierfactor", StorableNeighbours(novelty=True)),
        ]
    )
    return [
        ("surprise", default_estimator()),
        ("mixture", make_pipeline(TableEncoder(), TractableDensity("mixture"))),
        ("neighbours", neighbours),
    ]


class StorableNeighbours(LocalOutlierFactor):  # type: ignore[misc, unused-ignore]
    """Local outlier factors, stored as rows without the tree over them.

    The nodes of a tree are numbers of rows, which scikit-learn does not check when it reads them:
    :func:`skebm.load` accepts none. The same rows make the same tree again.
    """

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_tree"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_fit_X" in state:
            within = NearestNeighbors(
                algorithm=self._fit_method,
                leaf_size=self.leaf_size,
                metric=self.effective_metric_,
                p=self.p,
                metric_params=self.effective_metric_params_,
            )
            self._tree = within.fit(self._fit_X)._tree


def is_pyod_detector(estimator: Any) -> bool:
    """Whether this derives from the base class of PyOD, whose scores are higher for outliers."""
    return any(
        kind.__name__ == "BaseDetector" and kind.__module__.split(".")[0] == "pyod"
        for kind in type(estimator).__mro__
    )


def normality(estimator: Any, X: Any) -> np.ndarray:
    """Score of each row by a density or a detector of any package, higher for normal ones, (n,).

    It is minus the surprise (:class:`RowSurprise`), log p(x) up to a constant, the `score_samples`
    or the `decision_function` of a detector of scikit-learn, or minus the `decision_function` of
    one of PyOD.
    """
    _, final = last_step(estimator, into_detectors=False)
    if is_pyod_detector(final):
        return -np.asarray(estimator.decision_function(X))
    if hasattr(estimator, "score_samples"):
        return STATISTICS[default_statistic(estimator)](estimator, X)
    return np.asarray(estimator.decision_function(X))


def check_scores_rows(name: str, estimator: Any) -> None:
    """Raise `TypeError` for a member of an ensemble that does not score new rows."""
    _, final = last_step(estimator, into_detectors=False)
    if is_pyod_detector(final) or hasattr(estimator, "score_samples"):
        return
    if is_outlier_detector(final) and hasattr(estimator, "decision_function"):
        return
    remedy = (
        "pass LocalOutlierFactor(novelty=True), which does"
        if isinstance(final, LocalOutlierFactor)
        else "pass a density with score_samples, or an outlier detector of scikit-learn, PyOD or "
        "skebm"
    )
    raise TypeError(
        f"The member {name!r}, {type(final).__name__}, does not score new rows: {remedy}."
    )


def explain_by_member(member: Any, X: Any, columns: list[Column] | None) -> Explanation | None:
    """Contributions of columns in nats by a member, None by one that is no density."""
    if hasattr(member, "explain"):
        found: Explanation = member.explain(X)
        return found if found.unit == "nats" else None
    _, final = last_step(member, into_detectors=False)
    if is_pyod_detector(final) or not hasattr(member, "score_samples"):
        return None
    if not scores_are_nats(member):
        return None
    log_density = functools.partial(measure, "log_density", member)
    return explain_by_evidence([log_density], X, columns)
