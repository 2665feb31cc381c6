"""Fitting of a detector's models: which rows they are fitted to, and which calibrate them."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn import get_config
from sklearn.model_selection import KFold, check_cv
from sklearn.pipeline import make_pipeline

from skebm._validation import n_rows, take_fit_params, take_rows
from skebm.base.processes import Workers, fit_of, progress_bar
from skebm.estimators.outlier.surprise import RowSurprise
from skebm.estimators.outlier.trimming import WEIGHT_OF_BULK, ContaminatedShare, far_rows
from skebm.estimators.queries.densities import last_step
from skebm.estimators.tables.encoding import TableEncoder
from skebm.training.distributed import shows_progress
from skebm.training.streams import some_rows

# Minimum number of calibration rows with "auto", in units of 1 / level: the rate of false alarms of
# one fit then has a standard deviation of about a third of the level.
ENOUGH = 10
# Rows that an estimator is fitted to, at least.
LEAST_ROWS = 2


def default_estimator(
    verbose: int = 0, n_jobs: int | None = None, trim: float | str | None = None
) -> Any:
    """A table encoder, and how surprising rows of its columns are."""
    bulk = WEIGHT_OF_BULK if trim == "auto" else 0
    surprise = RowSurprise(bulk=bulk, n_jobs=n_jobs, verbose=verbose)
    if get_config()["enable_metadata_routing"]:
        surprise.set_fit_request(sample_weight=True)
    return make_pipeline(TableEncoder(), surprise)


def params_of_default(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `fit` for the default estimator, whose density takes the weights of rows."""
    if "sample_weight" not in params or get_config()["enable_metadata_routing"]:
        return params
    others = {name: value for name, value in params.items() if name != "sample_weight"}
    return others | {"rowsurprise__sample_weight": params["sample_weight"]}


def for_each_model(
    calls: list[tuple[Any, ...]], what: str, n_jobs: int | None, verbose: int
) -> list[Any]:
    """Results of a step of `fit` for each model, with a progress bar over them if `verbose`."""
    shown = {"desc": f"EnergyOutlierDetector: {what}", "unit": "model"}
    with progress_bar(total=len(calls), disable=not shows_progress(verbose), **shown) as bar:
        # A single model has the workers to itself.
        return Workers(n_jobs if len(calls) > 1 else 1, bar).results(calls)


class Split(NamedTuple):
    """Indices of the rows that a model is fitted to and of those held out; None is all rows."""

    train: np.ndarray | None
    held_out: np.ndarray | None


def n_calibration_rows(fraction: float | str, n: int, level: float) -> int:
    """How many of `n` rows are held out for the calibration."""
    if fraction == "auto":
        return min(max(math.ceil(n / 4), math.ceil(ENOUGH / level)), n // 2)
    return round(float(fraction) * n)


class Copies(NamedTuple):
    """Which rows of a table are equal; a model that is fitted to one of them knows the others."""

    first: np.ndarray
    member: np.ndarray

    def split(self, train: Any, held_out: Any) -> Split:
        """A split by numbers of distinct rows: all copies are fitted, one of each is held out."""
        chosen = np.zeros(len(self.first), dtype=bool)
        chosen[train] = True
        return Split(np.flatnonzero(chosen[self.member]), np.sort(self.first[held_out]))

    def weights(self, weight: np.ndarray) -> np.ndarray:
        """The weight of all copies of each row, (n,)."""
        found: np.ndarray = np.bincount(self.member, weights=weight)[self.member]
        return found


def random_split(n: int, n_held: int, random: np.random.RandomState) -> Split:
    """Split `n` rows at random, each part in the order of the table."""
    if not 0 < n_held <= n - LEAST_ROWS:
        raise ValueError(
            f"n_samples={n}: holding {n_held} out for the calibration (method='conformal') leaves "
            f"{n - n_held} to fit the estimator to. It needs at least 1 row for the calibration "
            f"and {LEAST_ROWS} for the fit, {LEAST_ROWS + 1} in all. Give more rows, another "
            "calibration_fraction, or method='quantile'."
        )
    order = random.permutation(n)
    return Split(np.sort(order[n_held:]), np.sort(order[:n_held]))


def fold_splits(cv: Any, n: int, random: np.random.RandomState) -> list[Split]:
    """A split for each fold; every row is held out once."""
    count = isinstance(cv, Integral)
    if count and cv > 1 and (n < cv or n - math.ceil(n / cv) < LEAST_ROWS):
        raise ValueError(
            f"n_samples={n}: method='cross-conformal' with cv={cv} fits the estimator without each "
            f"of {cv} folds, which takes at least {max(cv, LEAST_ROWS + 1)} rows. Give more rows, "
            "a smaller cv, or use method='quantile'."
        )
    splitter = KFold(cv, shuffle=True, random_state=random) if count else check_cv(cv)
    splits = [Split(*pair) for pair in splitter.split(np.zeros((n, 1)))]
    held_out = np.concatenate([held for _, held in splits])
    if len(held_out) != n or len(np.unique(held_out)) != n:
        raise ValueError(
            f"cv={cv!r} leaves {len(held_out)} rows out where X has {n}: cross-conformal p-values "
            "need a splitter, such as KFold, that leaves every row out exactly once."
        )
    return splits


def fit_model(
    task: Any,
    model: Any,
    X: Any,
    y: Any,
    params: dict[str, Any],
    rows: np.ndarray | None,
    trim: float | str | None,
    seed: int | None,
) -> tuple[Any, tuple[int, ContaminatedShare] | None]:
    """Fit a model to the given rows, or to all if they are None, without those that are trimmed.

    Returns the model and, with `trim`, the number of trimmed rows and the estimated share of
    anomalies; `seed` is that by which they are found. `y` is passed unless it is None.
    """
    trimmed = None
    if trim is not None:
        assert seed is not None
        rows = np.arange(n_rows(X)) if rows is None else rows
        far, share = far_rows(take_rows(X, rows), trim, seed)
        rows, trimmed = rows[~far], (int(far.sum()), share)
    if rows is not None:
        # Arrays with a value for each row of X are split like X.
        params = take_fit_params(X, params, rows)
        X = some_rows(X, rows)
        y = None if y is None else take_rows(y, rows)
    with fit_of(task, model):
        fitted = model.fit(X, **params) if y is None else model.fit(X, y, **params)
    ignore_open_columns(fitted)
    return fitted, trimmed


def ignore_open_columns(model: Any) -> None:
    """Where surprise is that of encoded columns, let dates go on."""
    before, last = last_step(model, into_detectors=False)
    if isinstance(last, RowSurprise) and before and isinstance(before[-1][-1], TableEncoder):
        last.ignore_new_values(before[-1][-1].open_columns())
