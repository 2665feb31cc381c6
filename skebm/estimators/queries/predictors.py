"""Regression and classification by a density of rows and targets together."""

from __future__ import annotations

import abc
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import scipy.special
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array

from skebm._validation import (
    Interval,
    StrOptions,
    check_columns,
    check_container,
    check_has_rows,
    check_is_fitted,
    check_labels,
    check_random_state,
    check_target,
    check_weight,
    dense_columns,
    fit_context,
    holds_only_numbers,
    is_frame,
    mask_as_missing,
    n_rows,
    names_compared,
    set_seeds,
    take_rows,
    validate_data,
)
from skebm.base.processes import TasksMixin
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic
from skebm.estimators.queries.columns import ColumnConditional, ends_of_interval, one_or_each
from skebm.estimators.queries.densities import fit_weighted
from skebm.estimators.queries.tractable import TractableDensity

# Name of the target among the columns of a frame, with as many underscores as make it new.
TARGET = "target"
# Fewest rows of a class for which it gets a density of its own.
FEWEST_OF_CLASS = 10
# Densities among which held-out rows choose, by the likelihood of the target given the rest, and
# the fraction that is held out; fewest rows of a choice.
CANDIDATES = ("stack", "mixture", "gaussian")
HELD_OUT, FEWEST_ROWS = 0.2, 50
# Exponents of the densities of classes.
POWERS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.05)
NUMBERS_WITH_HOLES: dict[str, Any] = {"dtype": "numeric", "ensure_all_finite": "allow-nan"}


class JointEstimator(DocLinkMixin, TasksMixin, BaseEstimator, abc.ABC):
    """A density of the columns of X and of one more, the target."""

    density: Any
    random_state: Any

    @abc.abstractmethod
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the density."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _new_density(self, distribution: str = "stack") -> Any:
        model = TractableDensity(distribution) if self.density is None else clone(self.density)
        if self.random_state is not None:
            set_seeds(model, check_random_state(self.random_state))
        return model

    def _choose(
        self, X: Any, y: np.ndarray, loss: Callable[[str, np.ndarray, np.ndarray], float]
    ) -> str:
        """The distribution of least loss on held-out rows, a fifth of the distinct ones.

        ``loss(distribution, train, held_out)`` is that of a model of rows with numbers `train`.
        Copies of a row stay together, and the order of rows changes nothing.
        """
        if self.density is not None or not holds_only_numbers(X):
            return CANDIDATES[0]
        numbers = check_array(dense_columns(X), dtype=np.float64, ensure_all_finite="allow-nan")
        table = np.column_stack([np.nan_to_num(numbers, nan=np.inf), y])  # nan differs from itself
        _, member = np.unique(table, axis=0, return_inverse=True)
        n = int(member.max()) + 1
        if n < FEWEST_ROWS:
            return CANDIDATES[0]
        held_out = np.random.RandomState(0).permutation(n)[: round(HELD_OUT * n)]
        out = np.isin(member.ravel(), held_out)
        rows, judges = np.flatnonzero(~out), np.flatnonzero(out)
        losses = [loss(name, rows, judges) for name in CANDIDATES]
        return CANDIDATES[int(np.argmin(losses))]

    def _check_rows(self, X: Any) -> Any:
        """New rows, a frame as it is."""
        check_is_fitted(self)
        return self._validate_rows(X, reset=False)

    def _validate_rows(self, X: Any, *, reset: bool) -> Any:
        """Validated X, a frame as it is."""
        check_container(X)
        if _has_names(X):
            check_columns(self, X, reset=reset)
            check_has_rows(X, self)
            return X
        return validate_data(self, mask_as_missing(X), reset=reset, **NUMBERS_WITH_HOLES)

    def _with_target(self, X: Any, y: np.ndarray) -> Any:
        """X with the target as its last column."""
        if not is_frame(X):
            return np.column_stack([np.asarray(X, dtype=np.float64), y.astype(np.float64)])
        if hasattr(X, "iloc"):
            found = X.copy()
            found[self._target_name] = y
            return found
        import polars as pl

        return X.with_columns(pl.Series(self._target_name, y.tolist()))

    def _name_target(self, X: Any) -> None:
        """Name the target so that no column of X has its name."""
        name = TARGET
        while is_frame(X) and name in [str(column) for column in X.columns]:
            name += "_"
        self._target_name = name

    @property
    def _target_column(self) -> Any:
        return self.n_features_in_


def _has_names(X: Any) -> bool:
    """Whether X is a frame whose columns have names, beside which the target gets one."""
    return is_frame(X) and all(isinstance(name, str) for name in X.columns)


class DensityRegressor(RegressorMixin, JointEstimator):
    r"""Regression by a density of X and y: predictions, quantiles and intervals of y given x.

    .. math:: p(y \mid x) = \frac{p(x, y)}{\int p(x, y')\, dy'}

    The target becomes one more column of the table, whose conditional distribution answers all
    questions: its mean is the prediction, its quantiles are intervals. Rows may have missing
    entries; these are integrated out.

    Parameters
    ----------
    density : estimator or None, default=None
        A density with `conditional`, such as :class:`TractableDensity`, :class:`BoostedDensity` or
        :class:`RBMEstimator`. It is cloned. None is a
        :class:`TractableDensity`; of numbers, the likelihood of y given x of a fifth of the rows
        chooses from its stack, a mixture and one normal distribution.
    conformal : float in (0, 1) or None, default=None
        Fraction of the rows that are held out to calibrate :meth:`predict_interval`: whatever the
        data, an interval then holds a new y with the stated probability [1]_. None fits the density
        to all rows, and intervals are those of the density.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    density_ : estimator
        The fitted density; the target is its last column.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    References
    ----------
    .. [1] Chernozhukov, Wuthrich and Zhu (2021), "Distributional conformal prediction", PNAS
       118(48), equation 3: ranks of y within its distribution, not residuals, are calibrated.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skebm import DensityRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DensityRegressor(random_state=0).fit(X[:300, 2:5], y[:300])
    >>> model.predict_interval(X[300:, 2:5], coverage=0.8).shape
    (142, 2)
    """

    _parameter_constraints: dict = {
        "density": "no_validation",
        "conformal": [Interval(Real, 0, 1, closed="neither"), None],
        "random_state": ["random_state"],
    }

    def __init__(self, density=None, *, conformal=None, random_state=None):
        self.density = density
        self.conformal = conformal
        self.random_state = random_state

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DensityRegressor:
        """Fit the density to the rows of X with y as one more column.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries; text and categories of frames if the density takes them.
        y : array-like of shape (n_samples,)
            Numbers.
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        self : DensityRegressor
        """
        X, y = self._check_both(X, y)
        weight = check_weight(sample_weight, X)
        self._name_target(X)
        rows, judges = np.arange(len(y)), np.zeros(0, dtype=int)
        if self.conformal is not None:
            random = check_random_state(self.random_state)
            order = random.permutation(len(y))
            n = min(len(y) - 1, max(1, round(float(self.conformal) * len(y))))
            rows, judges = np.sort(order[n:]), np.sort(order[:n])
        table = self._with_target(take_rows(X, rows), y[rows])
        weight = None if weight is None else weight[rows]

        def loss(name: str, train: np.ndarray, held_out: np.ndarray) -> float:
            own = None if weight is None else weight[train]
            model = fit_weighted(self._new_density(name), take_rows(table, train), own)
            given = list(range(self.n_features_in_))
            found = model.log_conditional(take_rows(table, held_out), given)
            return -float(np.average(found, weights=None if weight is None else weight[held_out]))

        name = self._choose(take_rows(X, rows), y[rows], loss)
        self.density_ = fit_weighted(self._new_density(name), table, weight)
        self._ranks = np.zeros(0)
        if len(judges):
            ranks = self.conditional(take_rows(X, judges)).cdf(y[judges])
            self._ranks = np.sort(np.abs(ranks - 0.5))
        return self

    def _check_both(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        X = self._validate_rows(X, reset=True)
        check_target(y, of_numbers=True)
        try:
            return X, np.asarray(check_labels(self, X, y), dtype=np.float64)
        except (TypeError, ValueError) as error:
            if "convert" not in str(error):
                raise
            raise ValueError(
                f"y holds values that are no numbers ({error}): for classes use DensityClassifier."
            ) from error

    # ---------------------------------------------------------------- predictions

    def conditional(self, X: Any) -> ColumnConditional:
        """Distribution of y given the known entries of each row of X.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)

        Returns
        -------
        ColumnConditional
            With ``mean()``, ``std()``, ``pdf(y)``, ``cdf(y)``, ``ppf(q)`` and ``rvs(size)``.
        """
        table = self._asked(X)
        with names_compared():
            found: ColumnConditional = self.density_.conditional(table, self._target_column)
        return found

    def _asked(self, X: Any) -> Any:
        X = self._check_rows(X)
        return self._with_target(X, np.full(len(X), np.nan))

    def predict(self, X: Any) -> np.ndarray:
        """Expectation of y given the known entries of each row.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        table = self._asked(X)
        with names_compared():
            found = self.density_.predict_column(table, self._target_column)
        return np.asarray(found, dtype=np.float64)

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of y given the known entries of each row, by the density.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
        q : float or sequence of k floats, default=(0.05, 0.5, 0.95)

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, k)
        """
        table = self._asked(X)
        with names_compared():
            found: np.ndarray = self.density_.quantile(table, self._target_column, q)
        return found

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Interval that holds y with a probability, with equal tails.

        With `conformal`, the probability holds on average over new rows, whatever the data. An
        interval is infinite if too few rows were held out for its coverage.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
        coverage : float in (0, 1), default=0.9

        Returns
        -------
        ndarray of shape (n_samples, 2)
        """
        check_is_fitted(self)
        ends_of_interval(coverage)
        half, n = coverage / 2, len(self._ranks)
        if n:
            place = int(np.ceil((n + 1) * coverage)) - 1
            half = self._ranks[place] if place < n else np.inf
        if half > 0.5:
            return np.tile([-np.inf, np.inf], (len(self._check_rows(X)), 1))
        return self.predict_quantiles(X, [0.5 - half, 0.5 + half])

    def log_likelihood(self, X: Any, y: Any) -> np.ndarray:
        """Log p(y given x) of each row, in nats.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        X = self._check_rows(X)
        y = np.broadcast_to(one_or_each("y", y, n_rows(X)), n_rows(X))
        table = self._with_target(X, y)
        given = list(range(self.n_features_in_))
        with names_compared():
            found: np.ndarray = self.density_.log_conditional(table, given)
        return found


class DensityClassifier(ClassifierMixin, JointEstimator):
    r"""Classification by a density of rows and classes, which takes missing entries.

    .. math:: p(y \mid x) \propto p(x, y)

    Parameters
    ----------
    density : estimator or None, default=None
        A density with `log_conditional` and `log_marginal`. It is cloned. None is a
        :class:`TractableDensity`; of numbers, the likelihood of the classes given x of a fifth of
        the rows chooses from its stack, a mixture and one normal distribution for each class.
    label : {"auto", "column", "separate"}, default="auto"
        ``"column"``: the class is one more column, of levels; the density has to take categories,
        as :class:`RBMEstimator` does. ``"separate"``: a density for each class, which need not.
        ``"auto"`` is ``"separate"`` for :class:`TractableDensity` if each class has ten rows, and
        ``"column"`` otherwise.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    density_ : estimator or None
        The density of rows and classes, with ``"column"``.
    densities_ : list of estimators or None
        Those of the classes, with ``"separate"``.
    class_prior_ : ndarray of shape (n_classes,)
        Shares of the classes, with ``"separate"``.
    power_ : float
        Exponent of the densities of the classes, p(y given x) proportional to p(y) p(x given
        y)^power: chosen by the rows that choose the distribution, as densities of many columns are
        too sure of classes; otherwise 1.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_wine
    >>> from skebm import DensityClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> model = DensityClassifier(random_state=0).fit(X[::2, :5], y[::2])
    >>> bool(model.score(X[1::2, :5], y[1::2]) > 0.8)
    True
    >>> model.predict_proba([[13.0, np.nan, np.nan, np.nan, 100.0]]).shape
    (1, 3)
    """

    _parameter_constraints: dict = {
        "density": "no_validation",
        "label": [StrOptions({"auto", "column", "separate"})],
        "random_state": ["random_state"],
    }

    def __init__(self, density=None, *, label="auto", random_state=None):
        self.density = density
        self.label = label
        self.random_state = random_state

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DensityClassifier:
        """Fit a density to rows and classes, or one to the rows of each class.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries; text and categories of frames if the density takes them.
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        self : DensityClassifier
        """
        X = self._validate_rows(X, reset=True)
        labels = check_labels(self, X, y)
        check_classification_targets(labels)
        weight = check_weight(sample_weight, X)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y contains {len(self.classes_)} class, {self.classes_.tolist()}, but a "
                "classifier needs at least two."
            )
        self._name_target(X)
        share = np.bincount(codes, weight)
        self.class_prior_ = share / share.sum()
        self.density_ = self.densities_ = None
        self.power_ = 1.0
        if self._separates(codes):
            powers = dict.fromkeys(CANDIDATES, 1.0)

            def loss(name: str, train: np.ndarray, held_out: np.ndarray) -> float:
                if np.bincount(codes[train], minlength=len(self.classes_)).min() < 2:
                    return 0.0  # the first one
                own = None if weight is None else weight[train]
                models = self._of_classes(name, take_rows(X, train), codes[train], own)
                share = None if weight is None else weight[held_out]
                losses = []
                for power in POWERS:
                    found = self._log_probabilities(models, take_rows(X, held_out), power)
                    of_class = found[np.arange(len(held_out)), codes[held_out]]
                    losses.append(-float(np.average(of_class, weights=share)))
                powers[name] = POWERS[int(np.argmin(losses))]
                return min(losses)

            name = self._choose(X, codes, loss)
            self.power_ = powers[name]
            self.densities_ = self._of_classes(name, X, codes, weight)
            return self
        model = self._new_density()
        if not is_frame(X):
            self._check_takes_categories(model)
            model.set_params(categorical_features=[self.n_features_in_])
        table = self._with_target(X, self._class_column(X, codes))
        self.density_ = fit_weighted(model, table, weight)
        return self

    def _of_classes(
        self, name: str, X: Any, codes: np.ndarray, weight: np.ndarray | None
    ) -> list[Any]:
        """A density for each class."""
        found = []
        for k in range(len(self.classes_)):
            rows = np.flatnonzero(codes == k)
            own = None if weight is None else weight[rows]
            model = self._new_density(name)
            found.append(fit_weighted(model, take_rows(X, rows), own))
        return found

    def _log_probabilities(self, models: list[Any], X: Any, power: float) -> np.ndarray:
        """Log-probabilities of the classes by a density for each, (n, n_classes)."""
        with names_compared():
            joint = np.stack([one.log_marginal(X).log_prob for one in models], 1)
        return log_softmax(power * joint + np.log(self.class_prior_), self.class_prior_)

    def _separates(self, codes: np.ndarray) -> bool:
        if self.label != "auto":
            return bool(self.label == "separate")
        plain = self.density is None or isinstance(self.density, TractableDensity)
        return plain and int(np.bincount(codes).min()) >= FEWEST_OF_CLASS

    def _check_takes_categories(self, model: Any) -> None:
        if "categorical_features" not in model.get_params(deep=False):
            raise ValueError(
                f'{type(model).__name__} takes no categories: pass label="separate", or a density '
                "that does, such as RBMEstimator."
            )

    def _class_column(self, X: Any, codes: np.ndarray) -> np.ndarray:
        """The classes as numbers, or in a frame as text, which is a category."""
        if not is_frame(X):
            return codes
        return np.array([f"class {code:05d}" for code in codes], dtype=object)

    # ---------------------------------------------------------------- predictions

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Log-probabilities of the classes given the known entries of each row.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        X = self._check_rows(X)  # checks that the model is fitted
        if self.densities_ is not None:
            return self._log_probabilities(self.densities_, X, self.power_)
        assert self.density_ is not None
        tables = [
            self._with_target(X, self._class_column(X, np.full(len(X), k)))
            for k in range(len(self.classes_))
        ]
        given = list(range(self.n_features_in_))
        with names_compared():  # without log Z, which is the same for all classes
            joint = np.stack([self.density_.log_conditional(t, given) for t in tables], 1)
        return log_softmax(joint, self.class_prior_)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes given the known entries of each row.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        found: np.ndarray = np.exp(self.predict_log_proba(X))
        return found

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        place = self.predict_log_proba(X).argmax(1)
        found: np.ndarray = self.classes_[place]
        return found


def log_softmax(joint: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, k) of log-densities; those of the prior where all densities are 0."""
    lost = ~np.isfinite(joint).any(1, keepdims=True)
    found: np.ndarray = scipy.special.log_softmax(np.where(lost, np.log(prior), joint), axis=1)
    return found
