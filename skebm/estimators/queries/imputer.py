"""Imputation by a density, as a step of a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.impute import MissingIndicator

from skebm._validation import (
    StrOptions,
    check_columns,
    check_container,
    check_has_rows,
    check_is_fitted,
    check_random_state,
    fit_context,
    is_frame,
    mask_as_missing,
    names_compared,
    set_seeds,
    validate_data,
)
from skebm.base.processes import TasksMixin
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic
from skebm.estimators.queries.tractable import TractableDensity
from skebm.estimators.tables.columns import Coding

WITH_HOLES: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}


class DensityImputer(TransformerMixin, DocLinkMixin, TasksMixin, BaseEstimator):
    """Fill missing entries in by a density of the rows: by means, modes or draws given the known.

    Parameters
    ----------
    density : estimator or None, default=None
        A density whose `fit` takes missing entries and that has `impute`, such as
        :class:`TractableDensity` and :class:`RBMEstimator`. It is cloned. None is
        ``TractableDensity()``.
    how : {"mean", "mode", "draw"}, default="mean"
        As in `impute` of the density: means have the least squared error, and draws the right
        spread, as multiple imputation needs (with one imputer for each seed).
    add_indicator : bool, default=False
        Whether columns that say where entries were missing are added, of those columns that had
        missing entries in `fit`. The table must be all numbers.
    random_state : int, RandomState instance or None, default=None
        Of the fit and of draws.

    Attributes
    ----------
    density_ : estimator
    indicator_ : MissingIndicator or None
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import DensityImputer
    >>> x = np.random.default_rng(0).normal(size=(200, 1))
    >>> X = np.hstack([x, 2 * x])
    >>> X[0, 1] = np.nan
    >>> filled = DensityImputer(random_state=0).fit_transform(X)
    >>> bool(abs(filled[0, 1] - 2 * X[0, 0]) < 0.2)
    True
    """

    _parameter_constraints: dict = {
        "density": "no_validation",
        "how": [StrOptions({"mean", "mode", "draw"})],
        "add_indicator": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(self, density=None, *, how="mean", add_indicator=False, random_state=None):
        self.density = density
        self.how = how
        self.add_indicator = add_indicator
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None) -> DensityImputer:
        """Fit the density to rows, of which some entries may be missing.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        self : DensityImputer
        """
        X = self._validate_rows(X, reset=True)
        model = TractableDensity() if self.density is None else clone(self.density)
        if self.random_state is not None:
            set_seeds(model, check_random_state(self.random_state))
        self._has_levels = is_frame(X) and Coding.learn(X, "from_dtype") is not None
        if self.add_indicator and self._has_levels:
            raise ValueError(
                "add_indicator=True takes tables of numbers: encode the categories first, or use "
                "sklearn.impute.MissingIndicator beside."
            )
        self.density_ = model.fit(X)
        self.indicator_ = None
        if self.add_indicator:
            self.indicator_ = MissingIndicator(error_on_new=False).fit(X)
        return self

    def transform(self, X: Any) -> Any:
        """Rows without missing entries.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)

        Returns
        -------
        {ndarray, data frame} of shape (n_samples, n_features)
            Of a frame with categories a frame like X, otherwise an array.
        """
        check_is_fitted(self)
        X = self._validate_rows(X, reset=False)
        seed = 0 if self.random_state is None else self.random_state
        with names_compared():
            filled = self.density_.impute(X, seed if self.how == "draw" else 0, how=self.how)
        if self._has_levels:
            return filled
        found = np.asarray(filled, dtype=getattr(X, "dtype", np.float64))
        if self.indicator_ is None:
            return found
        return np.hstack([found, self.indicator_.transform(X).astype(found.dtype)])

    def _validate_rows(self, X: Any, *, reset: bool) -> Any:
        """Validated X, a frame as it is."""
        check_container(X)
        if is_frame(X):
            check_columns(self, X, reset=reset)
            check_has_rows(X, self)
            return X
        return validate_data(self, mask_as_missing(X), reset=reset, **WITH_HOLES)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns, and of indicators after them.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the columns of X; None is those of `fit`, or ``x0``, ``x1``, ...

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", None)
        if input_features is None:
            n = self.n_features_in_
            names = [f"x{j}" for j in range(n)] if known is None else list(known)
        else:
            names = [str(name) for name in input_features]
            if len(names) != self.n_features_in_ or (
                known is not None and names != [str(name) for name in known]
            ):
                raise ValueError("input_features is not equal to feature_names_in_")
        if self.indicator_ is not None:
            names += [f"missingindicator_{names[j]}" for j in self.indicator_.features_]
        return np.asarray(names, dtype=object)
