"""What a report is of: a fitted model, and the rows that it is shown with."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_outlier_detector, is_regressor

from skebm._validation import check_is_fitted, n_rows, take_rows
from skebm.estimators.queries.densities import (
    draw_rows,
    input_of_last_step,
    last_step,
    leaves_out_log_z,
    log_density,
    scores_are_nats,
)
from skebm.inspection.reports.page import NotSaidError

# Rows that are looked at, at most: of the test rows, and of the training rows.
MOST_TEST, MOST_TRAIN = 2000, 5000
# Draws: as many as take so many seconds at most, or else few.
MOST_DRAWS, FEW_DRAWS, MOST_SECONDS = 1000, 200, 6.0
# What a model raises that cannot do what it is asked, or not with these rows.
REFUSALS = (TypeError, ValueError, AttributeError, NotImplementedError)


def ask(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a method of the model returns; `NotSaidError` with its reason where it refuses."""
    try:
        return method(*args, **kwargs)
    except REFUSALS as error:
        raise NotSaidError(str(error).split("\n")[0]) from error


class Subject:
    """A fitted model, and the rows that it is shown with.

    Parameters
    ----------
    model : fitted estimator
        Also a pipeline, a search or a detector around it.
    X_train, X_test : data of shape (n_samples, n_features) or None
    y : array-like of shape (n_samples,) or None
        Of the test rows.
    seed : int
        Of the rows that are looked at, and of draws.

    Attributes
    ----------
    final : estimator
        The innermost model, which sees rows as the `steps` before it return them.
    """

    def __init__(self, model: Any, X_train: Any, X_test: Any, y: Any, seed: int):
        check_is_fitted(model)
        self.model, self.seed = model, seed
        self.steps, self.final = last_step(model)
        self.X_train = self._some("X_train", X_train, MOST_TRAIN, seed)
        self.X_test = self._some("X_test", X_test, MOST_TEST, seed)
        self._check_width("X_train", X_train)
        self._check_width("X_test", X_test)
        self.y = self._labels(X_test, y)
        self.n_train, self.n_test = (0 if X is None else n_rows(X) for X in (X_train, X_test))

    # ---------------------------------------------------------------- kinds of models

    @property
    def name(self) -> str:
        """Class of the model."""
        return type(self.model).__name__

    @property
    def is_classifier(self) -> bool:
        """Whether the model has probabilities of classes."""
        return bool(is_classifier(self.model)) and hasattr(self.model, "predict_proba")

    @property
    def is_regressor(self) -> bool:
        """Whether the model predicts a number."""
        return bool(is_regressor(self.model))

    @property
    def is_detector(self) -> bool:
        """Whether the model itself calls rows anomalies, by a threshold that it was fitted for."""
        outer = last_step(self.model, into_detectors=False)[1]
        holds_density = outer is not self.final
        return bool(is_outlier_detector(outer)) and (holds_density or not self.has_density)

    @property
    def has_density(self) -> bool:
        """Whether `score_samples` of the innermost model is a log-likelihood in nats."""
        if not hasattr(self.final, "score_samples") or leaves_out_log_z(self.final):
            return False
        return bool(scores_are_nats(self.final))

    @property
    def draws_rows(self) -> bool:
        """Whether the innermost model draws rows, without conditions."""
        if not hasattr(self.final, "sample"):
            return False
        names = inspect.signature(self.final.sample).parameters
        return next(iter(names), "") in ("n_samples", "n")

    # ---------------------------------------------------------------- rows

    @property
    def is_test(self) -> bool:
        """Whether the `rows` are test rows; without these some training rows, which it knows."""
        return self.X_test is not None

    @functools.cached_property
    def rows(self) -> Any:
        """Rows to judge it by, as the innermost model sees them."""
        return ask(input_of_last_step, self.steps, self.outer_rows)

    @functools.cached_property
    def outer_rows(self) -> Any:
        """The same as the model itself takes them."""
        if self.X_test is not None:
            return self.X_test
        if self.X_train is not None:
            return random_rows(self.X_train, MOST_TEST, self.seed)
        raise NotSaidError("it needs rows: pass X_test=, rows that the model was not fitted to")

    @functools.cached_property
    def train(self) -> Any:
        """Training rows as the innermost model sees them."""
        if self.X_train is None:
            raise NotSaidError("it needs the training rows: pass X_train=")
        return ask(input_of_last_step, self.steps, self.X_train)

    @functools.cached_property
    def log_prob(self) -> np.ndarray:
        """Log-likelihoods of `rows` by the innermost model, (n,)."""
        return np.asarray(ask(log_density, self.final, self.rows), dtype=float).ravel()

    @functools.cached_property
    def draws(self) -> Any:
        """Rows drawn from the model: 1,000, or 200 where those would take long."""
        start = time.perf_counter()
        found = self._draw(FEW_DRAWS)
        is_slow = (time.perf_counter() - start) * MOST_DRAWS > MOST_SECONDS * FEW_DRAWS
        return found if is_slow else self._draw(MOST_DRAWS)

    def _draw(self, n: int) -> Any:
        if "random_state" in inspect.signature(self.final.sample).parameters:
            found = ask(self.final.sample, n, random_state=self.seed)
        else:
            found = ask(draw_rows, self.final, n, np.random.RandomState(self.seed))
        like = self.rows
        named = hasattr(like, "iloc") and isinstance(found, np.ndarray)
        return type(like)(found, columns=like.columns) if named else found

    def _some(self, name: str, X: Any, most: int, seed: int) -> Any:
        """At most so many rows at random, in their order."""
        if X is None:
            return None
        if not hasattr(X, "shape") and not hasattr(X, "__len__"):
            raise TypeError(
                f"{name} must be an array or a frame, got {type(X).__name__}: pass some rows of it."
            )
        X = X if hasattr(X, "shape") else np.asarray(X)
        if n_rows(X) == 0:
            raise ValueError(f"{name} has no rows.")
        return random_rows(X, most, seed)

    def _check_width(self, name: str, X: Any) -> None:
        """Raise `ValueError` where rows have another number of columns than those of the fit."""
        width = getattr(self.model, "n_features_in_", None)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if width is not None and len(shape) == 2 and shape[1] != width:
            raise ValueError(
                f"{name} has {shape[1]} columns, but {self.name} was fitted to {width}."
            )

    def _labels(self, X_test: Any, y: Any) -> np.ndarray | None:
        """Labels of the rows of `X_test` that are looked at."""
        if y is None:
            return None
        if X_test is None:
            raise ValueError("y are labels of test rows: pass X_test= with them.")
        labels = np.asarray(y)
        n = n_rows(X_test)
        if labels.shape != (n,):
            raise ValueError(f"y must have one label for each of {n} rows, got {labels.shape}.")
        found: np.ndarray = random_rows(labels, MOST_TEST, self.seed)
        return found


def random_rows(X: Any, most: int, seed: int) -> Any:
    """At most so many rows at random, in their order: tables may be sorted."""
    n = n_rows(X)
    if n <= most:
        return X
    return take_rows(X, np.sort(np.random.RandomState(seed).choice(n, most, replace=False)))
