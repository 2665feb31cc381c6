"""Outlier detection with any density or score, and conformal thresholds."""

from __future__ import annotations

import functools
from copy import deepcopy
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags, indexable
from sklearn.utils.metaestimators import available_if

from skebm._validation import (
    N_JOBS,
    HasMethods,
    Interval,
    StrOptions,
    check_columns,
    check_container,
    check_is_fitted,
    check_weight,
    draw_seed,
    fit_context,
    n_rows,
    set_seeds,
    warn,
)
from skebm.base import DataWarning, LikelihoodWarning
from skebm.base.processes import TasksMixin, begin_task, parts_of_fit, without_warnings
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import (
    ThresholdMixin,
    atomic,
    non_default_parameters,
    set_nested_params,
    warn_without_effect,
)
from skebm.estimators.outlier.columns import (
    Column,
    distinct_rows_of,
    numeric_columns,
    summarise_columns,
)
from skebm.estimators.outlier.fitting import (
    Copies,
    Split,
    default_estimator,
    fit_model,
    fold_splits,
    for_each_model,
    n_calibration_rows,
    params_of_default,
    random_split,
)
from skebm.estimators.outlier.reasons.contributions import (
    Statistic,
    explain_by_evidence,
    explain_by_imputation,
    explain_by_score,
)
from skebm.estimators.outlier.reasons.explanations import Explanation
from skebm.estimators.outlier.reasons.reference import encode_sample, sharp_density
from skebm.estimators.outlier.statistics import (
    STATISTICS,
    check_is_classifier,
    check_offers,
    class_numbers,
    default_statistic,
    measure,
    needs_classes,
)
from skebm.estimators.outlier.thresholds import (
    DEFAULT_LEVEL,
    ClassThresholds,
    ConformalThreshold,
    QuantileThreshold,
    Threshold,
    attainable_level,
    benjamini_hochberg,
    check_fdr,
    effective_rows,
    warn_of_raised_level,
)
from skebm.estimators.outlier.trimming import ContaminatedShare, mean_share
from skebm.estimators.queries.densities import (
    log_density,
    log_normaliser,
    pessimistic_log_likelihood,
    scores_are_nats,
)
from skebm.estimators.tables.encoding import TableEncoder
from skebm.estimators.tables.gross import gross_rows
from skebm.training.streams import SourceMixin, open_table, sample_of, table_or_header


def _takes_more_rows(detector: EnergyOutlierDetector) -> bool:
    if detector._param("method") == "cross-conformal":
        raise AttributeError(
            "A cross-conformal detector cannot take further rows, as each row must be left out of "
            "one fit: use method='conformal'."
        )
    return True


def _is_conformal(detector: EnergyOutlierDetector) -> bool:
    if detector._param("method") == "quantile":
        raise AttributeError(
            "method='quantile' compares rows with those the estimator was fitted to, which gives "
            "no p-values: use method='conformal' or 'cross-conformal'."
        )
    return True


def _has_likelihood(detector: EnergyOutlierDetector) -> bool:
    statistic = detector._param("statistic")
    if statistic not in OF_DENSITIES:
        raise AttributeError(
            f"statistic={statistic!r} is not a log-likelihood, so the detector has no score: pass "
            "scoring= to a search."
        )
    return True


# Statistics by which the estimator has a density.
OF_DENSITIES = ("auto", "log_density", "surprise")


class EnergyOutlierDetector(
    DocLinkMixin, SourceMixin, TasksMixin, ThresholdMixin, MetaEstimatorMixin, BaseEstimator
):
    r"""Outlier detector from any density or score, with conformal p-values.

    Rows are ranked by a statistic, by default their log density, which is minus their energy up to
    a constant. The threshold is a quantile over the training rows, as in scikit-learn's detectors,
    or conformal: a new row is compared with held-out normal rows by its p-value,

    .. math::
        p(x) = \frac{1 + \#\{i : s(x_i) \le s(x)\}}{n + 1} ,

    and :math:`P(p(x) \le \alpha) \le \alpha` for a new normal row, whatever the distribution of
    the data and however poor the estimator.

    Parameters
    ----------
    estimator : estimator or None, default=None
        Model that scores the rows: any density with ``score_samples`` (:class:`RBMEstimator`,
        :class:`sklearn.mixture.GaussianMixture`, :class:`sklearn.neighbors.KernelDensity`), an
        outlier detector of scikit-learn, a classifier for ``statistic="max_proba"``, or a pipeline
        or search that ends in one. It is cloned. None is a pipeline of :class:`TableEncoder`, which
        accepts frames with numbers, categories, text, dates and missing entries, and
        :class:`RowSurprise`: how unlikely a row is by kernels in two metrics and a smooth mixture
        (:class:`ProductOfDensities`), how far the nearest training row is, and whether it has
        values that the table does not.
    statistic : str or callable, default="auto"
        Statistic that discriminates normal rows from outliers, higher for normal ones. ``"auto"``
        is ``"surprise"`` for the default estimator and ``"log_density"`` for all others.
        ``"surprise"`` is minus the surprise of :class:`RowSurprise`, in nats; ``"log_density"`` is
        ``score_samples`` (for estimators of skebm minus the energy, which needs no log Z);
        ``"score_norm"`` is minus the Euclidean norm of the score, grad log p, in the input units of
        the last step of a pipeline, for estimators with a ``score_function``, Gaussian mixtures and
        Gaussian kernel densities; ``"max_proba"`` is the probability of the most likely class
        and ``"logit_energy"`` how large the logits of a classifier are (:class:`LogitEnergy`);
        `fit` then takes the classes as `y`. A callable is a function ``(fitted estimator, X) ->
        (n_samples,)``.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of normal rows that `predict` classifies as outliers: of the training rows with
        ``"quantile"``; of new normal rows, on average over fits, with ``"conformal"``. ``"auto"``
        is 0.1 or, with a warning, the lowest attainable level above 0.1 if there are few
        calibration rows.
    method : {"quantile", "conformal", "cross-conformal"}, default="quantile"
        ``"quantile"`` fits the estimator to all rows and guarantees nothing: if the estimator
        overfits, it flags a larger fraction of new rows. ``"conformal"`` holds rows out, so that
        the rate of false alarms is at most `contamination`. ``"cross-conformal"`` fits a model for
        each fold and compares a new row with every training row by the model that was not fitted
        to that row. It uses all rows for fitting, but the proven bound is about twice the level
        (`false_alarm_bound_`); in practice the rate is mostly near the level or below.
    calibration_fraction : float in (0, 1) or "auto", default="auto"
        Fraction of the rows that ``"conformal"`` holds out. ``"auto"`` is a quarter, or more (at
        most a half) if that is fewer than ``10 / contamination`` rows, with `by_class` that number
        for each class.
    cv : int or cross-validation splitter, default=5
        Folds of ``"cross-conformal"``; a splitter must leave out every row once.
    trim : float in (0, 0.5), "auto" or None, default=None
        Fraction of the training rows that are left out when the estimator is fitted, for tables
        that contain anomalies, as most do that are fitted and scored themselves: those farthest
        from the bulk of the table, of which clusters of few rows are no part (columns are encoded
        by :class:`TableEncoder`). ``"auto"`` leaves out a twentieth and as many as seem to
        be anomalies (`contaminated_`), at most half of the rows, and gives the distance from the
        bulk half of the weight in the default estimator (``RowSurprise(bulk=0.5)``). Thresholds
        and calibration use all rows.
    prefit : bool, default=False
        Whether the estimator is already fitted. `fit` then only sets the threshold, with all rows
        given: with ``"conformal"``, the estimator must not have been fitted to these rows. A
        :class:`sklearn.frozen.FrozenEstimator` has the same effect.
    by_class : bool, default=False
        Whether ``"conformal"`` compares a row with those calibration rows alone to which the fitted
        classifier gives the same class, so that the rate of false alarms is at most `contamination`
        among the normal rows of each predicted class k, :math:`P(p(x) \le \alpha \mid
        \hat y(x) = k) \le \alpha`, and not on average over them alone (label-conditional or
        Mondrian conformal prediction, with the predicted class in place of the label [1]_). The
        calibration needs no `y`. Each class needs ``1 / contamination - 1`` calibration rows: with
        fewer, its rows cannot be outliers, which a warning says.
    random_state : int, RandomState instance or None, default=None
        Seed of the split, and of every ``random_state`` of the estimator that is None.
    n_jobs : int or None, default=None
        Number of models that are fitted, and that then score rows for the threshold, at the same
        time by the workers of :mod:`joblib`: those of the folds with ``"cross-conformal"``, the
        experts of the default estimator with the other methods; -1 is one for each processor. None
        is 1 outside of a :func:`joblib.parallel_config`. With a `random_state` the result does not
        depend on it.
    verbose : int, default=0
        1 shows progress bars over the models that are fitted and over those that then score rows
        for the threshold, and those of the default estimator. An estimator that is passed has a
        `verbose` of its own.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator; not available with ``"cross-conformal"``.
    estimators_ : list of estimators
        The fitted estimators: one, or one for each fold with ``"cross-conformal"``.
    offset_ : float, or ndarray of shape (n_classes,) with `by_class`
        Threshold of `predict` in the units of `score_samples`, -inf for a class without outliers.
    contamination_ : float
        The level in use: with a conformal threshold, `predict` calls rows outliers whose p-value is
        at most that.
    n_trimmed_ : int
        Number of training rows that were left out, summed over folds.
    contaminated_ : ContaminatedShare or None
        Estimated share of anomalies among the training rows, with `trim`: a named tuple of the
        `value`, which is mostly too low where anomalies are many, as those amid normal rows are not
        counted, and a `lower` and an `upper` bound, each with an error of 5 %; means over folds.
        The bounds suppose that normal rows have a tail that is at most exponential in the log of
        their distance from the bulk.
    n_calibration_ : int, or ndarray of shape (n_classes,) with `by_class`
        Number of rows with which new rows are compared; of each class of ``estimator_.classes_``.
    false_alarm_bound_ : float
        Proven bound on the probability, over fits and rows, that a new normal row is classified as
        an outlier, of any class with `by_class`; nan with ``"quantile"``, which has none.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    skebm.inspection.PValueDisplay : Whether p-values are calibrated.
    skebm.metrics : Scorers and errors of detection rates.

    Notes
    -----
    The guarantee holds for normal rows drawn from the distribution of the calibration rows,
    independently of them (exchangeability is enough), and for the rate averaged over fits; the rate
    of one fit varies around it with a standard deviation of about
    :math:`\sqrt{\alpha (1 - \alpha) / n}` for n calibration rows (a Beta distribution), those of a
    class with `by_class`. Anomalies
    among the calibration rows lower the rate of false alarms and the power of the detector. `y` is
    used only as the classes of a classifier; scorers such as ``"roc_auc"`` need labels that are
    higher for normal rows, as +1 and -1.

    Unequal sample weights state how many times more frequent a row is among new normal rows than
    among the given ones, up to a factor: :math:`w(x) \propto q(x) / p(x)` for calibration rows
    drawn from p and new ones from q. The p-value is then

    .. math::
        p(x) = \frac{w + \sum_{i : s(x_i) \le s(x)} w_i}{w + \sum_i w_i} , \qquad
        w = \max_i w_i ,

    and the guarantee, in place of the one above, is for new rows whose own weight is at most that
    of the heaviest calibration row (Tibshirani et al. 2019, lemma 3).

    References
    ----------
    .. [1] Vovk, Gammerman and Shafer (2005), "Algorithmic learning in a random world", section 4.5;
       Vovk (2013), "Conditional validity of inductive conformal predictors", Machine Learning 92.

    Laxhammar and Falkman (2010), "Conformal prediction for distribution-independent anomaly
    detection in streaming vessel data". Bates, Candès, Lei, Romano and Sesia (2023), "Testing for
    outliers with conformal p-values", Annals of Statistics 51. Barber, Candès, Ramdas and
    Tibshirani (2021), "Predictive inference with the jackknife+", theorem 4. Vovk and Wang (2020),
    "Combining p-values via averaging", Biometrika 107. Tibshirani, Barber, Candès and Ramdas
    (2019), "Conformal prediction under covariate shift", NeurIPS. Hendrycks and Gimpel (2017), "A
    baseline for detecting misclassified and out-of-distribution examples in neural networks", ICLR.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import EnergyOutlierDetector
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> normal, other = X[y < 2], X[y == 2]
    >>> detector = EnergyOutlierDetector(
    ...     GaussianMixture(covariance_type="diag", random_state=0),
    ...     method="conformal",
    ...     random_state=0,
    ... ).fit(normal)
    >>> detector.n_calibration_, round(detector.false_alarm_bound_, 3)
    (65, 0.091)
    >>> bool((detector.predict(other) == -1).mean() > 0.85)  # recall of the other cultivar
    True
    >>> detector.explain(other[:1]).to_frame(1)["feature"].item()
    'od280/od315_of_diluted_wines'
    """

    # Weights can be routed to `fit`, which takes them among its other arguments.
    __metadata_request__fit = {"sample_weight": None}

    estimators_: list[Any]
    _threshold: Threshold
    contaminated_: ContaminatedShare | None
    _columns: list[Column] | None
    # Rows, and the density that is fitted to them when reasons are first asked for.
    _reference: dict[str, Any] | None

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit", "get_params"]), None],
        "statistic": [StrOptions({"auto", *STATISTICS}), callable],
        "contamination": [Interval(Real, 0, 0.5, closed="right"), StrOptions({"auto"})],
        "method": [StrOptions({"quantile", "conformal", "cross-conformal"})],
        "calibration_fraction": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "cv": [Interval(Integral, 2, None, closed="left"), "cv_object"],
        "trim": [Interval(Real, 0, 0.5, closed="neither"), StrOptions({"auto"}), None],
        "prefit": ["boolean"],
        "by_class": ["boolean"],
        "random_state": ["random_state"],
        "n_jobs": N_JOBS,
        "verbose": ["verbose"],
    }
    _has_tasks = True

    def __init__(
        self,
        estimator=None,
        *,
        statistic="auto",
        contamination="auto",
        method="quantile",
        calibration_fraction="auto",
        cv=5,
        trim=None,
        prefit=False,
        by_class=False,
        random_state=None,
        n_jobs=None,
        verbose=0,
    ):
        self.estimator = estimator
        self.statistic = statistic
        self.contamination = contamination
        self.method = method
        self.calibration_fraction = calibration_fraction
        self.cv = cv
        self.trim = trim
        self.prefit = prefit
        self.by_class = by_class
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, ``estimator__<name>`` included."""
        set_nested_params(self, params)
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        estimator = default_estimator() if self.estimator is None else self.estimator
        inner = get_tags(estimator)
        # Pipelines do not pass all tags of their first step on.
        first = inner if self.estimator is not None else get_tags(estimator[0])
        tags.input_tags = deepcopy(first.input_tags)
        tags.target_tags.required = needs_classes(estimator)
        return tags

    # ---------------------------------------------------------------- fitting

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the estimator, unless it is fitted already, and set the threshold.

        A call that fails or is interrupted leaves the detector as it was before it.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            Normal rows, in any form that the estimator takes. If anomalies are among them, as they
            are where the rows that are fitted are also those to be judged, set ``trim="auto"``.
        y : array-like of shape (n_samples,), default=None
            Classes, if the estimator is a classifier; not used otherwise.
        **fit_params : dict
            Passed to the `fit` of the estimator; arrays with one value per row are split like the
            rows. ``sample_weight`` (also ``<step>__sample_weight``) also weights the quantile,
            and with ``"conformal"`` the calibration rows (see the notes); ``"cross-conformal"``
            accepts equal weights only. The default estimator leaves out rows of weight 0, and
            passes ``sample_weight`` to its density; the encoding of columns is not weighted.

        Returns
        -------
        self : EnergyOutlierDetector
        """
        X, header, y = open_table(X, y)
        check_container(X)
        (X,) = indexable(X)
        if n_rows(X) == 0:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        self._check_columns(X if header is None else header, reset=True)
        warn_without_effect(self._without_effect())
        random = self._common_random()
        weight = self._weight(fit_params, X)
        statistic = self._statistic()
        if self._takes_fitted:
            begin_task(0)
            models, held_out = [self._prefit_model(fit_params)], [None]
            self.n_trimmed_, self.contaminated_ = 0, None
        else:
            models, held_out = self._fit_models(X, y, fit_params, weight, random)
        scored = zip(models, held_out, strict=True)
        calls = [(measure, statistic, model, X, rows) for model, rows in scored]
        values = for_each_model(calls, "threshold", self.n_jobs, self.verbose)
        self.estimators_ = models
        self._columns = summarise_columns(X, text_is_dates=self.estimator is None)
        self._reference = None
        if self.estimator is None:
            n_fitted = sum(n_rows(X) - (0 if held is None else len(held)) for held in held_out)
            share = self.n_trimmed_ / n_fitted
            self._reference = encode_sample(models[0], X, weight, share, random)
        self._fitted_params = {
            name: getattr(self, name) for name in ("method", "contamination")
        } | {"statistic": statistic}
        self._set_threshold(self._fit_threshold(values, X, held_out[0], weight))
        return self

    def _fit_threshold(
        self, values: list[np.ndarray], X: Any, rows: np.ndarray | None, weight: np.ndarray | None
    ) -> Threshold:
        """The threshold by the statistic of the rows, of those held out if they are not None."""
        if self.method == "quantile":
            return QuantileThreshold.fit(values[0], self.contamination, weight)
        if weight is not None and rows is not None:
            weight = Copies(*distinct_rows_of(X)).weights(weight)[rows]
        if not self._is_by_class:
            return ConformalThreshold.fit(values, self.contamination, weight)
        (model,) = self.estimators_
        values = [*values, measure(class_numbers, model, X, rows)]
        return ClassThresholds.fit(values, len(model.classes_), self.contamination, weight)

    @property
    def _is_by_class(self) -> bool:
        """Whether the next `fit` sets a threshold for each class."""
        return self.by_class and self.method == "conformal"

    @property
    def _takes_fitted(self) -> bool:
        """Whether the estimator is fitted already."""
        return self.prefit or isinstance(self.estimator, FrozenEstimator)

    def _without_effect(self) -> dict[str, str]:
        """Parameters that the method does not use, each with the reason."""
        uses = {
            "cv": "cross-conformal",
            "calibration_fraction": "conformal",
            "by_class": "conformal",
        }
        found = {
            name: f'method="{self.method}" does not use it (method="{method}" does)'
            for name, method in uses.items()
            if name in non_default_parameters(self) and method != self.method
        }
        one = self.prefit or self.method != "cross-conformal" and self.estimator is not None
        if one and self.n_jobs not in (None, 1):
            found["n_jobs"] = "only one model is fitted"
        if self.trim is not None and self._takes_fitted:
            found["trim"] = "a fitted estimator is not fitted again"
        if self.prefit and self.method == "conformal" and self.calibration_fraction != "auto":
            found["calibration_fraction"] = "with prefit=True all rows are for the calibration"
        return found

    def _prefit_model(self, fit_params: dict[str, Any]) -> Any:
        if self.estimator is None:
            raise ValueError("prefit=True needs a fitted estimator, but estimator=None.")
        if self.method == "cross-conformal":
            raise ValueError(
                "method='cross-conformal' fits the estimator without each fold in turn, so it "
                "cannot take a fitted one: use method='conformal'."
            )
        unused = [name for name in fit_params if name != "sample_weight"]
        if unused:
            raise ValueError(f"A fitted estimator is not fitted again, so {unused} has no effect.")
        check_is_fitted(self.estimator)
        self._check_offers(self.estimator)
        return self.estimator

    def _check_offers(self, estimator: Any) -> None:
        """Raise `TypeError` for an estimator without the statistic, or without classes for it."""
        if self._is_by_class:
            check_is_classifier(estimator)
        check_offers(self._statistic(), estimator)

    def _fit_models(
        self,
        X: Any,
        y: Any,
        params: dict[str, Any],
        weight: np.ndarray | None,
        random: np.random.RandomState,
    ) -> tuple[list[Any], list[Any]]:
        """Fitted estimators, and for each the rows with which new rows are compared."""
        estimator = self._estimator()
        self._check_offers(estimator)
        if not needs_classes(estimator):
            y = None
        elif y is None:
            raise ValueError(
                f"{type(estimator).__name__} needs classes, but the target y is None: it requires "
                "y to be passed."
            )
        splits = self._splits(X, y, weight, random)
        counting = None  # rows that the default encoder of columns sees, where not all
        if self.estimator is None:
            params = params_of_default(params)
            counting = None if weight is None else np.flatnonzero(weight)
            gross = gross_rows(numeric_columns(X), n_rows(X), weight)
            if gross is not None:
                counting = np.flatnonzero(~gross if weight is None else ~gross & (weight > 0))
        calls: list[tuple[Any, ...]] = []
        tasks = parts_of_fit(["fit-estimator"] * len(splits))
        # All that is random is drawn here, before workers share the fits.
        for task, (rows, _) in zip(tasks, splits, strict=True):
            if counting is not None:
                rows = counting if rows is None else np.intersect1d(rows, counting)
            if self.estimator is None or self.trim is not None:
                rows = sample_of(X, random, rows)
            seed = None if self.trim is None else draw_seed(random)
            model = clone(estimator)
            if self.random_state is not None:
                set_seeds(model, random)
            calls.append((fit_model, task, model, X, y, params, rows, self.trim, seed))
        fitted = for_each_model(calls, "fit", self.n_jobs, self.verbose)
        trimmed = [found for _, found in fitted if found is not None]
        self.n_trimmed_ = sum(n_far for n_far, _ in trimmed)
        self.contaminated_ = mean_share([share for _, share in trimmed]) if trimmed else None
        return [model for model, _ in fitted], [held_out for _, held_out in splits]

    def _estimator(self) -> Any:
        """The estimator to be cloned, by default that of :func:`default_estimator`."""
        if self.estimator is not None:
            return self.estimator
        # Its fits have the workers where those of the folds do not.
        n_jobs = None if self.method == "cross-conformal" else self.n_jobs
        return default_estimator(self.verbose, n_jobs, self.trim)

    def _statistic(self) -> Any:
        """The statistic, by name if it is ``"auto"``."""
        if self.statistic != "auto":
            return self.statistic
        return default_statistic(self._estimator())

    def _splits(
        self, X: Any, y: Any, weight: np.ndarray | None, random: np.random.RandomState
    ) -> list[Split]:
        """Rows to fit to and to hold out; raises if the latter are too few for the level.

        Copies of a row are held out together, and are one row for the calibration: a splitter that
        is passed decides for itself.
        """
        if self.method == "quantile":
            return [Split(None, None)]
        copies = Copies(*distinct_rows_of(X))
        own = self.method == "cross-conformal" and not isinstance(self.cv, Integral)
        n = n_rows(X) if own else len(copies.first)
        if self.method == "conformal":
            level = DEFAULT_LEVEL if self.contamination == "auto" else self.contamination
            if self._is_by_class:
                level /= len(np.unique(np.asarray(y).astype(str)))  # labels of any kind
            n_calibration = n_calibration_rows(self.calibration_fraction, n, level)
            splits = [random_split(n, n_calibration, random)]
        else:
            n_calibration = n
            splits = fold_splits(self.cv, n, random)
        if not own:
            splits = [copies.split(*split) for split in splits]
        n_effective: float = n_calibration
        if weight is not None and self.method == "conformal":
            n_effective = effective_rows(copies.weights(weight)[splits[0].held_out])
        attainable_level(self.contamination, n_effective)  # before the fit, which may take long
        return splits

    def _weight(self, params: dict[str, Any], X: Any) -> np.ndarray | None:
        """Weights of the rows among the parameters of `fit`."""
        given = [value for name, value in params.items() if name.endswith("sample_weight")]
        weight = check_weight(given[0] if given else None, X)
        if self.method == "quantile" or weight is None:
            return weight
        if np.ptp(weight) == 0:
            return None
        if self.method == "cross-conformal":
            raise ValueError(
                "method='cross-conformal' takes equal weights only, as nothing is proven for "
                "others. Use method='conformal', or resample the rows."
            )
        return weight

    def _set_threshold(self, threshold: Threshold) -> None:
        """Set the threshold; warn if it is not at the requested level or not finite."""
        self._threshold, self.contamination_ = threshold, threshold.level
        asked, n = self._param("contamination"), np.max(threshold.n_rows)
        warn_of_raised_level("contamination", asked, threshold.level, f"{n} calibration rows")
        values = np.ravel(threshold.offset([0.0] * len(self.estimators_)))
        if isinstance(threshold, ClassThresholds):
            threshold.warn_of_few_rows(np.asarray(self.estimators_[0].classes_).tolist())
            values = values[threshold.have_outliers]
        infinite = values[~np.isfinite(values)]
        if len(infinite):
            warn(
                f"The threshold is {infinite[0]}: more than {threshold.level:.3g} of the rows "
                "compared with have that value, so they cannot be discriminated from outliers.",
                DataWarning,
            )

    @available_if(_takes_more_rows)
    @atomic
    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Add normal rows to those that set the threshold; the estimator is not refitted.

        With ``"conformal"`` they are added to the calibration rows, which keeps the guarantee. If
        the detector is not fitted, this method is the same as `fit`.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            Normal rows that the estimator was not fitted to.
        y : array-like of shape (n_samples,), default=None
            Classes for the first call, if the estimator is a classifier.

        Returns
        -------
        self : EnergyOutlierDetector
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        values = self._measure(open_table(X)[0])
        self._set_threshold(
            self._threshold.with_reference_rows(values, self._param("contamination"))
        )
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "_threshold" in self.__dict__

    # ---------------------------------------------------------------- fitted attributes

    def _param(self, name: str) -> Any:
        """A parameter as it was in the last `fit`; later changes take effect at the next one."""
        return self.__dict__.get("_fitted_params", {}).get(name, getattr(self, name))

    @property
    def estimator_(self) -> Any:
        """The fitted estimator; not available with ``"cross-conformal"``, which has several."""
        check_is_fitted(self)
        if len(self.estimators_) > 1:
            raise AttributeError("A cross-conformal detector has estimators_, one for each fold.")
        return self.estimators_[0]

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """The table of fitted attributes in scikit-learn's diagram, and that of the columns."""
        found = super()._get_fitted_attr_html(doc_link)
        first = getattr(self.estimators_[0], "steps", [(None, self.estimators_[0])])[0][1]
        return first._with_columns(found) if isinstance(first, TableEncoder) else found

    @property
    def _density(self) -> Any:
        """The density for `queries/densities.py`, if the statistic is a log density."""
        if self._param("statistic") != "log_density":
            raise AttributeError("The statistic is not a log density.")
        return self.estimator_

    @property
    def n_calibration_(self) -> int | np.ndarray:
        """Number of rows with which new rows are compared; with `by_class` that of each class."""
        check_is_fitted(self)
        return self._threshold.n_rows

    @property
    def false_alarm_bound_(self) -> float:
        """Proven bound on the probability that a new normal row is classified as an outlier."""
        check_is_fitted(self)
        return self._threshold.false_alarm_bound

    @property
    def offset_(self) -> float | np.ndarray:
        """Threshold of `predict` in the units of `score_samples`; with `by_class` of each class."""
        check_is_fitted(self)
        if self._param("statistic") != "log_density":
            return self._threshold.offset([0.0] * len(self.estimators_))
        with without_warnings(LikelihoodWarning):
            return self._threshold.offset([log_normaliser(model) for model in self.estimators_])

    # ---------------------------------------------------------------- rows

    def _check_rows(self, X: Any) -> None:
        """Raise unless the detector is fitted and X has its columns."""
        if not self.__sklearn_is_fitted__():
            check_is_fitted(self)
        columns = table_or_header(X)
        if columns is not None:
            self._check_columns(columns, reset=False)

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        if self.estimator is None and sp.issparse(X):
            raise ValueError(
                "The default estimator is a density of dense columns, which takes no sparse X: "
                "pass X.toarray(), or an estimator that takes sparse rows, such as "
                "estimator=RBMEstimator() for binary ones."
            )
        if getattr(X, "ndim", 2) > 1:  # the estimator has the better message for a vector
            check_columns(self, X, reset=reset, table=self.estimator is None)

    def _measure(self, X: Any) -> list[np.ndarray]:
        """What the threshold compares: the statistic of rows by each estimator, (n,) each."""
        self._check_rows(X)
        found = [measure(self._param("statistic"), model, X) for model in self.estimators_]
        if isinstance(self._threshold, ClassThresholds):
            found.append(measure(class_numbers, self.estimators_[0], X))
        return found

    def score_samples(self, X: Any) -> np.ndarray:
        """Statistic of each row, higher for more normal ones.

        For ``"surprise"`` it is minus the surprise in nats, for ``"log_density"`` it is
        ``score_samples`` of the estimator, in nats. With
        ``"cross-conformal"`` it is `decision_function` plus `offset_`, a value of the same order as
        the log densities under the models of the folds.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._statistics)

    def _statistics(self, X: Any) -> np.ndarray:
        self._check_rows(X)
        if len(self.estimators_) > 1:
            return self.decision_function(X) + self.offset_
        statistic = self._param("statistic")
        with without_warnings(LikelihoodWarning):  # log Z moves all rows alike
            return measure(
                log_density if statistic == "log_density" else statistic, self.estimators_[0], X
            )

    def decision_function(self, X: Any) -> np.ndarray:
        """Statistic minus the threshold: negative for outliers. Needs no log Z.

        With `by_class` the threshold is that of the predicted class, and the value is inf where no
        row of the class can be an outlier.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._margins)

    def _margins(self, X: Any) -> np.ndarray:
        values = self._measure(X)
        return self._threshold.margin(values)

    @available_if(_is_conformal)
    def p_values(self, X: Any) -> np.ndarray:
        """Conformal p-value of each row: small for outliers, at least ``1 / (n_calibration_ + 1)``.

        For a new normal row, P(p <= t) <= t for every t; with ``"cross-conformal"`` the bound is
        about 2 t (see `false_alarm_bound_`). With `by_class` it holds given the predicted class, of
        which `n_calibration_` is meant, and p is 1 where it has no calibration row. Ties increase
        the p-value, which is therefore conservative.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._p_values)

    def _p_values(self, X: Any) -> np.ndarray:
        values = self._measure(X)
        return cast(ConformalThreshold | ClassThresholds, self._threshold).p_values(values)

    @available_if(_is_conformal)
    def select(self, X: Any, *, fdr: float = 0.1) -> np.ndarray:
        """Select the outliers of a batch at a given false discovery rate.

        The procedure of Benjamini and Hochberg is applied to the p-values of the batch. With
        ``"conformal"``, the expected fraction of normal rows among those selected is at most `fdr`
        times their fraction in the batch (Bates et al. 2023, theorem 2), also with `by_class`, as
        p-values of rows of different predicted classes are independent given these; for
        ``"cross-conformal"`` and for unequal weights nothing is proven.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            The batch. The larger the fraction of outliers in it, the more are found.
        fdr : float in (0, 1), default=0.1
            False discovery rate.

        Returns
        -------
        ndarray of bool of shape (n_samples,)
            True for outliers.
        """
        self._check_rows(X)
        n = cast(ConformalThreshold | ClassThresholds, self._threshold).n_effective
        check_fdr(fdr, n)
        return benjamini_hochberg(self.p_values(X), n, fdr)

    @available_if(_has_likelihood)
    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows in nats, with the largest credible log Z.

        It is exact if the density is normalised, pessimistic if log Z is estimated, and a mean over
        folds with ``"cross-conformal"``. It is meant for searches without labels; with labels use
        ``scoring="roc_auc"``.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
        """
        self._check_rows(X)
        return float(np.mean([pessimistic_log_likelihood(m, X) for m in self.estimators_]))

    def explain(self, X: Any, *, method: str = "auto") -> Explanation:
        r"""Explain which columns make rows anomalous, and which contradict each other.

        ``"auto"``: the evidence in nats that the entry of column j is wrong, which is the log of
        the Bayes factor of two hypotheses, that it was replaced by a wrong entry, with density q,
        and that it belongs to the row,

        .. math::
            c_j(x) = \log q_j(x_j) - \log p(x_j \mid x_{-j}) .

        A wrong entry of a continuous column is as likely to be that of another row as to be from
        anywhere: q is half the density of the column alone, and half that of Student's t with two
        degrees of freedom around its median, so that a value out of range is evidence even if no
        other column says anything of it. In a discrete column (up to 20 distinct values) the true
        entry is another level u, which has been replaced by v according to the frequencies m of the
        levels, or in a tenth of the cases by a level that did not occur in `fit`,

        .. math::
            c_j(x) = \log 0.9 + \log \sum_{u \ne v} p(u \mid x_{-j}) \frac{m_v}{1 - m_u}
                - \log p(v \mid x_{-j}) ,

        where for two levels the last terms are the log odds of the other one. If one entry of a row
        is wrong, and each column is as likely to hold it, then :math:`e^{c_j}` is proportional to
        the probability that it is that of column j. Columns that are independent of the others, and
        have a usual value, have a contribution of about 0; agreement with the others makes it
        negative. Given a wrong entry, others are anomalous as well: if the evidence against one is
        more than 3 nats above that against the others, their contributions are those of the row
        with the most probable value in its place, for up to three entries one after the other.
        Two columns that contradict each other are both anomalous; they are found as a pair in
        `Explanation.pairs`, if with the most probable value in one of them the contribution of the
        other falls by half and by 2 nats. A missing entry has the contribution of
        ``"imputation"``. The conditional density is computed by enumeration for a discrete column,
        and by quadrature over the range of the training rows for other columns (beyond it for rows
        that lie outside). The density is that of the estimator. That of the default estimator is
        smooth, and its contributions are averaged with those of a :class:`TractableDensity` of the
        encoded columns, which is fitted to at most 2,000 training rows when reasons are first asked
        for, in some seconds.

        ``"imputation"``: the expected increase of the log density of a row, in nats, when column j
        is redrawn given the others,

        .. math::
            c_j(x) = \mathrm E_{p(v \mid x_{-j})}[\log p(v, x_{-j})] - \log p(x) .

        For a Gaussian this is (z^2 - 1) / 2, where z is the distance of x_j from its conditional
        mean in conditional standard deviations. If the statistic is not a log density (another one
        was chosen, or the estimator is an outlier detector of scikit-learn), ``"auto"`` is this
        method, and columns are drawn from their marginal distribution in the rows of `fit`.

        Both methods need one to 160 evaluations of a density per column and row, so explain only
        the rows that were flagged.

        ``"score"``: the squared components of grad log p, in the units of the input to the last
        step of a pipeline. They are cheap to compute, and their sum is the square of the norm that
        ``statistic="score_norm"`` uses.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            A few rows.
        method : {"auto", "imputation", "score"}, default="auto"

        Returns
        -------
        Explanation
            With contributions of shape (n_samples, n_features), higher for more anomalous columns,
            the expected values, and pairs; ``.to_frame(3)`` is a table of the three most anomalous
            columns of each row, ``.sentences()`` says it in words, ``.plot()`` draws bars.

        Notes
        -----
        Of normal rows of 18 sets of ADBench in which one entry was replaced by that of another row,
        `contributions` has the highest value in that column in 56 % (``"auto"``), and in 46 %
        (``"imputation"``).
        """
        if method not in ("auto", "imputation", "score"):
            raise ValueError(f"method={method!r} must be 'auto', 'imputation' or 'score'.")
        self._check_rows(X)
        if method == "score":
            return explain_by_score(self.estimators_, X)
        conditional = self._statistic_of_reasons() == "log_density" and all(
            map(scores_are_nats, self.estimators_)
        )
        if method == "auto" and conditional:
            return explain_by_evidence(self._log_densities_of_reasons(), X, self._columns)
        return explain_by_imputation(
            self._mean_statistic, X, self._columns, conditional=conditional
        )

    def _statistic_of_reasons(self) -> Any:
        """That of explanations: a density has conditional distributions, surprise has none."""
        statistic = self._param("statistic")
        return "log_density" if statistic == "surprise" else statistic

    def _mean_statistic(self, X: Any) -> np.ndarray:
        """Mean of the statistic of explanations over the estimators, (n,)."""
        statistic = self._statistic_of_reasons()
        return np.mean([measure(statistic, model, X) for model in self.estimators_], axis=0)

    def _log_densities_of_reasons(self) -> list[Statistic]:
        """The log density of the estimator, and a sharper one beside that of the default."""
        if self._reference is None:
            return [self._mean_statistic]
        sharp = sharp_density(self, self._reference, self.estimators_[0])
        return [self._mean_statistic, functools.partial(measure, "log_density", sharp)]
