"""An ensemble of densities and detectors of any package, with one exact p-value for each row."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import Bunch, get_tags, indexable

from skebm._validation import (
    N_JOBS,
    Interval,
    StrOptions,
    check_columns,
    check_container,
    check_is_fitted,
    fit_context,
    n_rows,
    set_seeds,
)
from skebm.base.processes import TasksMixin, parts_of_fit
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import NamedEstimators, ThresholdMixin, atomic
from skebm.estimators.outlier.columns import distinct_rows_of, summarise_columns
from skebm.estimators.outlier.ensembles.members import (
    check_scores_rows,
    default_members,
    explain_by_member,
    normality,
)
from skebm.estimators.outlier.ensembles.merging import MEANS
from skebm.estimators.outlier.ensembles.ranks import RankCalibration
from skebm.estimators.outlier.fitting import (
    LEAST_ROWS,
    Copies,
    Split,
    fit_model,
    for_each_model,
    n_calibration_rows,
    random_split,
)
from skebm.estimators.outlier.reasons.contributions import explain_by_imputation
from skebm.estimators.outlier.reasons.explanations import Explanation
from skebm.estimators.outlier.statistics import measure
from skebm.estimators.outlier.thresholds import (
    DEFAULT_LEVEL,
    attainable_level,
    warn_of_raised_level,
)
from skebm.training.streams import SourceMixin, open_table, table_or_header


class OutlierEnsemble(
    DocLinkMixin,
    SourceMixin,
    TasksMixin,
    ThresholdMixin,
    MetaEstimatorMixin,
    NamedEstimators,
    BaseEstimator,
):
    r"""Ensemble of any densities and outlier detectors, with one exact conformal p-value per row.

    All members are fitted to the same rows and score the same held-out ones. Each member ranks a
    new row among the n held-out rows, whatever its scores mean, the ranks are merged by a mean M,
    and the row is compared with the held-out rows by it:

    .. math::
        p(x) = \frac{\#\{i \le n + 1 : M(r_{i1}, \dots, r_{iK}) \le M(r_1(x), \dots, r_K(x))\}}
        {n + 1},

    with the ranks of all n + 1 rows, x itself included, among each other. For a new normal row
    :math:`P(p(x) \le \alpha) \le \alpha`, however members depend on each other and however poor
    they are: no factor is needed, as means of ranks are exchangeable if rows are.

    Parameters
    ----------
    estimators : list of (str, estimator) or None, default=None
        The members, by name: densities with `score_samples`, outlier detectors of scikit-learn
        (``novelty=True`` for local outlier factors), of PyOD (any that derives from its
        `BaseDetector`) and of skebm, and pipelines that end in one. They are cloned; their
        parameters are set as ``<name>__<parameter>``. A :class:`sklearn.frozen.FrozenEstimator` is
        used as it is, and must not have been fitted to these rows. None, for any frame: that of
        :class:`EnergyOutlierDetector`, ``"surprise"``, and after :class:`TableEncoder` a Gaussian
        mixture, ``"mixture"``, and local outlier factors of columns in units of their standard
        deviations, ``"neighbours"``.
    merge : {"geometric", "mean", "harmonic", "minimum"}, default="geometric"
        The mean of a row's ranks. The smallest rank, and nearly so the harmonic mean, find what one
        member alone finds; the mean what all of them find.
    level : float in (0, 0.5] or "auto", default="auto"
        Rate of normal rows that `predict` classifies as outliers. ``"auto"`` is 0.1 or, with a
        warning, the lowest attainable level above 0.1 if there are few held-out rows.
    calibration_fraction : float in (0, 1) or "auto", default="auto"
        Fraction of the rows that are held out, as for :class:`EnergyOutlierDetector`.
    random_state : int, RandomState instance or None, default=None
        Seed of the split, and of every ``random_state`` of the members that is None.
    n_jobs : int or None, default=None
        Number of members that are fitted at the same time by the workers of :mod:`joblib`; -1 is
        one for each processor. With a `random_state` the result does not depend on it.

    Attributes
    ----------
    members_ : Bunch
        The fitted members by name.
    level_ : float
        The level in use: `predict` calls rows outliers whose p-value is at most that.
    n_calibration_ : int
        Number of rows with which new rows are compared.
    offset_ : float
        Threshold of `predict` in the units of `score_samples`.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    merge_p_values : For detectors that were calibrated separately.
    ProductOfDensities : Combines densities, not ranks.

    Notes
    -----
    Of copies of a row, one is held out. A new row takes about 30 microseconds besides the scores of
    the members. Merging functions of p-values that depend on each other in an unknown manner cost a
    factor of 2 and more; merging by order, which would cost none for exchangeable p-values
    (Gasparin, Wang and Ramdas 2024), is for repetitions of one random detector, which members of
    different kinds are not.

    References
    ----------
    Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World", section 2.2. Vovk
    and Wang (2020), "Combining p-values via averaging", Biometrika 107. Linusson, Johansson and
    Boström (2020), "Efficient conformal predictor ensembles", Neurocomputing 397.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.ensemble import IsolationForest
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import OutlierEnsemble
    >>> X, y = load_wine(return_X_y=True)
    >>> members = [("forest", IsolationForest()), ("mixture", GaussianMixture())]
    >>> ensemble = OutlierEnsemble(members, random_state=0).fit(X[y < 2])
    >>> ensemble.n_calibration_
    65
    >>> bool((ensemble.predict(X[y == 2]) == -1).mean() > 0.9)
    True
    """

    _parameter_constraints: dict = {
        "estimators": [list, None],
        "merge": [StrOptions(set(MEANS))],
        "level": [Interval(Real, 0, 0.5, closed="right"), StrOptions({"auto"})],
        "calibration_fraction": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "random_state": ["random_state"],
        "n_jobs": N_JOBS,
    }
    _has_tasks = True
    _fitted_names = "members_"
    _default_estimators = staticmethod(default_members)

    def __init__(
        self,
        estimators=None,
        *,
        merge="geometric",
        level="auto",
        calibration_fraction="auto",
        random_state=None,
        n_jobs=None,
    ):
        self.estimators = estimators
        self.merge = merge
        self.level = level
        self.calibration_fraction = calibration_fraction
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Pipelines do not pass all tags of their first step on.
        firsts = [getattr(one, "steps", [("", one)])[0][1] for _, one in self._list_of_members()]
        inner = [get_tags(first).input_tags for first in firsts]
        for name in ("allow_nan", "sparse", "string", "categorical"):
            setattr(tags.input_tags, name, all(getattr(one, name) for one in inner))
        return tags

    # ---------------------------------------------------------------- fitting

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None) -> OutlierEnsemble:
        """Fit the members to some of the rows, and rank the others by all of them.

        A call that fails or is interrupted leaves the ensemble as it was before it.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            Normal rows, in any form that all members take.
        y : None
            Not used; present by convention.

        Returns
        -------
        self : OutlierEnsemble
        """
        X, header, _ = open_table(X)
        check_container(X)
        (X,) = indexable(X)
        if n_rows(X) == 0:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        self._check_members()
        if getattr(X, "ndim", 2) > 1:  # members have the better message for a vector
            check_columns(self, X if header is None else header, reset=True, table=False)
        random = self._common_random()
        split = self._split(X, DEFAULT_LEVEL if self.level == "auto" else self.level, random)
        members = self._list_of_members()
        names = [name for name, _ in members]
        calls: list[tuple[Any, ...]] = []
        tasks = parts_of_fit([f"fit-{name}" for name in names])
        # All that is random is drawn here, before workers share the fits.
        for task, (_, estimator) in zip(tasks, members, strict=True):
            member = clone(estimator)
            if self.random_state is not None:
                set_seeds(member, random)
            calls.append((fit_model, task, member, X, None, {}, split.train, None, None))
        fitted = [model for model, _ in for_each_model(calls, "fit", self.n_jobs, verbose=0)]
        scores = [measure(normality, model, X, split.held_out) for model in fitted]
        self.members_ = Bunch(**dict(zip(names, fitted, strict=True)))
        self._columns = summarise_columns(X, text_is_dates=False)
        self._calibration = RankCalibration.fit(np.stack(scores, axis=1), self.merge)
        n = self._calibration.n_rows
        self.level_ = attainable_level(self.level, n)
        warn_of_raised_level("level", self.level, self.level_, f"{n} held-out rows")
        return self

    def _list_of_members(self) -> list[tuple[str, Any]]:
        """The members, not yet cloned."""
        return default_members() if self.estimators is None else self.estimators

    def _check_members(self) -> None:
        """Raise for members that are no list of names and estimators that score rows."""
        if self.estimators is None:
            return
        pairs = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in self.estimators)
        if not self.estimators or not pairs:
            raise ValueError(
                f"estimators={self.estimators!r} must be a list of at least one (name, estimator), "
                'such as [("mixture", GaussianMixture()), ("forest", IsolationForest())].'
            )
        self._validate_names([name for name, _ in self.estimators])
        for name, member in self.estimators:
            check_scores_rows(name, member)

    def _split(self, X: Any, level: float, random: np.random.RandomState) -> Split:
        """Rows to fit to, and rows to compare with; raises if the latter are too few."""
        copies = Copies(*distinct_rows_of(X))
        n = len(copies.first)
        n_held = n_calibration_rows(self.calibration_fraction, n, level)
        if not 0 < n_held <= n - LEAST_ROWS:
            raise ValueError(
                f"n_samples={n}: holding {n_held} distinct rows out leaves {n - n_held} to fit the "
                f"members to. At least 1 must be held out and {LEAST_ROWS} be fitted: give more "
                "rows, or another calibration_fraction."
            )
        attainable_level(self.level, n_held, "level", "held-out rows", "a larger level")
        return copies.split(*random_split(n, n_held, random))

    def __sklearn_is_fitted__(self) -> bool:
        return "_calibration" in self.__dict__

    # ---------------------------------------------------------------- rows

    @property
    def n_calibration_(self) -> int:
        """Number of rows with which new rows are compared."""
        check_is_fitted(self)
        return self._calibration.n_rows

    @property
    def offset_(self) -> float:
        """Threshold of `predict` in the units of `score_samples`."""
        check_is_fitted(self)
        n = self.n_calibration_
        most = math.floor(self.level_ * (n + 1) + 1e-9)  # 0.29 * 100 is below 29
        # Rows whose p-value is larger are above the logarithm of this one.
        return float(np.nextafter(np.log(most) - np.log(n + 1), np.inf))

    def _scores(self, X: Any) -> np.ndarray:
        """Scores by all members, (n, K)."""
        if not self.__sklearn_is_fitted__():
            check_is_fitted(self)
        columns = table_or_header(X)
        if columns is not None and getattr(columns, "ndim", 2) > 1:
            check_columns(self, columns, reset=False, table=False)
        found = [measure(normality, member, X) for member in self.members_.values()]
        return np.stack(found, axis=1)

    def p_values(self, X: Any) -> np.ndarray:
        """p-value of each row: small for outliers, at least ``1 / (n_calibration_ + 1)``.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._p_values)

    def _p_values(self, X: Any) -> np.ndarray:
        scores = self._scores(X)  # checks that the ensemble is fitted
        found: np.ndarray = self._calibration.n_at_or_below(scores)
        return found / (self.n_calibration_ + 1)

    def member_p_values(self, X: Any) -> np.ndarray:
        """p-value of each row by each member alone.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_members)
        """
        return self._over_blocks(X, self._member_p_values)

    def _member_p_values(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        found: np.ndarray = self._calibration.own_ranks(scores)
        return found / (self.n_calibration_ + 1)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log p-value of each row, whose ties are broken, higher for more normal rows.

        A row whose p-value is k / (n + 1) is above log((k - 1) / (n + 1)) and at most at its log
        p-value, by a mean of interpolated ranks. Rows that are more abnormal than all calibration
        rows are ordered by how far the members' scores are beyond these, in units of the mean
        excess of the lowest tenth.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._log_p_values)

    def _log_p_values(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        return self._calibration.log_p_values(scores)

    def explain(self, X: Any) -> Explanation:
        """Explain which columns make rows anomalous, by the members that can.

        These are the densities among them, by the expected rise of the log density when a column is
        drawn anew given the others, and detectors of skebm that explain rows in nats; contributions
        are their means, see :meth:`EnergyOutlierDetector.explain`. If there are none, it is the
        expected rise of the ensemble's log p-value when a column is drawn from its marginal
        distribution in the rows of `fit`.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            A few rows.

        Returns
        -------
        Explanation
            With expected values if one member explains the rows.
        """
        self._scores(X)  # checks that the ensemble is fitted, and the columns
        parts = [explain_by_member(one, X, self._columns) for one in self.members_.values()]
        found = [part for part in parts if part is not None]
        if not found:
            return explain_by_imputation(
                lambda rows: self._calibration.log_continuous(self._scores(rows)),
                X,
                self._columns,
                conditional=False,
            )
        if len(found) == 1:
            return found[0]
        contributions = np.mean([part.contributions for part in found], axis=0)
        return replace(found[0], contributions=contributions, expected=None)
