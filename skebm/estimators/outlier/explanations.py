"""Which columns make a row anomalous: contributions by imputation or by the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skebm._densities import input_of_last_step, last_step, score_function
from skebm.estimators.outlier.columns import (
    Column,
    as_table,
    column_names,
    column_of,
    with_column,
)
from skebm.estimators.outlier.thresholds import difference

# Points outside the range of a column, points that each round of refinement adds in the region of
# its conditional density, and maximum number of rounds.
N_OUTSIDE, N_ADDED, MAX_ROUNDS = 12, 24, 5
# Nats below the mode beyond which a conditional density is neglected.
DEPTH = 12.0
# Rows scored at a time.
MAX_ROWS = 50_000

Statistic = Callable[[Any], np.ndarray]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contributions of the columns to the anomaly of rows, as returned by `explain`.

    Attributes
    ----------
    contributions : ndarray of shape (n_samples, n_features)
        Higher is more anomalous, in `unit`.
    values : ndarray of shape (n_samples, n_features)
        Values of the rows.
    expected : ndarray of shape (n_samples, n_features) or None
        Values that the model expects given the other columns: the conditional mean of a continuous
        column, the most probable value of a discrete one. None for ``method="score"``.
    feature_names : list of str
        Names of the columns.
    unit : str
        Unit of the contributions; empty for a statistic of unknown units.

    See Also
    --------
    skebm.EnergyOutlierDetector.explain : Compute an explanation.
    skebm.inspection.ExplanationDisplay : Plot an explanation.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import EnergyOutlierDetector
    >>> x = np.random.default_rng(0).normal(size=(500, 1))
    >>> detector = EnergyOutlierDetector(random_state=0).fit(np.column_stack([x, x + 1, x**2]))
    >>> found = detector.explain([[0.5, 3.0, 0.3]])  # the second is not the first plus one
    >>> found.to_frame(1)["feature"].item()
    'x1'
    """

    contributions: np.ndarray
    values: np.ndarray
    expected: np.ndarray | None
    feature_names: list[str]
    unit: str

    def to_frame(self, n_features: int | None = None) -> Any:
        """Columns of each row, the most anomalous first, as a data frame.

        Parameters
        ----------
        n_features : int or None, default=None
            Number of columns for each row; None is all.

        Returns
        -------
        pandas.DataFrame
            With columns row, feature, value, expected (where known) and contribution.
        """
        import pandas as pd

        order = np.argsort(-self.contributions, axis=1, kind="stable")[:, :n_features]
        rows = np.arange(len(order))[:, None]
        found = {
            "row": np.broadcast_to(rows, order.shape).ravel(),
            "feature": np.asarray(self.feature_names, dtype=object)[order.ravel()],
            "value": self.values[rows, order].ravel(),
        }
        if self.expected is not None:
            found["expected"] = self.expected[rows, order].ravel()
        found["contribution"] = self.contributions[rows, order].ravel()
        return pd.DataFrame(found).infer_objects()


def explain_by_imputation(
    statistic: Statistic, X: Any, columns: list[Column] | None, *, conditional: bool
) -> Explanation:
    """Expected rise of the statistic when a column is drawn anew given the others.

    With `conditional` the statistic is a log density, which determines the conditional distribution
    of the column. Otherwise the column is drawn from its marginal distribution in the rows of
    `fit`.
    """
    X = as_table(X)
    if columns is None:
        raise ValueError("explain needs a detector that was fitted to a two-dimensional table.")
    own = statistic(X)
    contributions = np.empty((len(own), len(columns)))
    expected = np.empty((len(own), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        grid = ConditionalGrid(statistic, X, j, column, weighted=conditional)
        contributions[:, j] = difference(grid.mean_statistic(), own)
        expected[:, j] = as_objects(column.as_expected(grid.expected()))
    values = [as_objects(np.asarray(column_of(X, j))) for j in range(len(columns))]
    return Explanation(
        contributions,
        as_floats(np.column_stack(values)),
        as_floats(expected),
        [column.name for column in columns],
        "nats" if conditional else "",
    )


def explain_by_score(models: list[Any], X: Any) -> Explanation:
    """Squared components of grad log p, averaged over models, in the input of their last step."""
    score = np.mean([score_function(model, X) for model in models], axis=0)
    before, final = last_step(models[0])
    seen = input_of_last_step(before, X)
    names = list(getattr(final, "feature_names_in_", [])) or _names_of_last_step(before, seen)
    return Explanation(np.square(score), np.asarray(seen), None, names, "squared gradient of log p")


def _names_of_last_step(before: list[Any], X: Any) -> list[str]:
    """Names of the input columns of the last step."""
    if before and hasattr(before[-1], "get_feature_names_out"):
        return [str(name) for name in before[-1].get_feature_names_out()]
    return column_names(X)


def as_objects(values: np.ndarray) -> np.ndarray:
    """Values as objects of Python; dates in microseconds, as others would be whole numbers."""
    if values.dtype.kind in "Mm":
        values = values.astype(f"{values.dtype.kind}8[us]")
    return values.astype(object)


def as_floats(values: np.ndarray) -> np.ndarray:
    """Values as floats if every entry is a number, otherwise unchanged."""
    try:
        return values.astype(float)
    except (TypeError, ValueError):
        return values


class ConditionalGrid:
    """Conditional distribution of a column on a grid: points, statistic and log weights."""

    def __init__(
        self, statistic: Statistic, X: Any, j: int, column: Column, *, weighted: bool
    ) -> None:
        self.statistic, self.X, self.j, self.column = statistic, X, j, column
        levels, self.discrete = column.levels, column.discrete
        if len(levels) == 0:
            raise ValueError(f"Column {column.name} has no values to impute from.")
        self.points = np.broadcast_to(levels, (X.shape[0], len(levels)))
        if weighted and not self.discrete:
            self.points = np.sort(np.column_stack([self.points, self._outside(levels)]), axis=1)
        self.value = self._evaluate(self.points)
        if not weighted:
            self.log_weight = np.broadcast_to(np.log(column.counts), self.points.shape)
        elif self.discrete:
            self.log_weight = self.value
        else:
            self._refine()

    def _outside(self, levels: np.ndarray) -> np.ndarray:
        """Points towards and beyond a row's own value if it lies outside the levels.

        Given other anomalous columns, the conditional density may be high there; otherwise the grid
        has to extend to where the density vanishes.
        """
        own = self.column.numbers_of(self.X, self.j)
        own = np.where(np.isfinite(own), own, levels[0])[:, None]
        edge = own.clip(levels[0], levels[-1])
        return edge + 1.5 * (own - edge) * 0.5 ** np.arange(N_OUTSIDE)

    def _evaluate(self, points: np.ndarray) -> np.ndarray:
        """Statistic of the rows with the column at each point, (n, m)."""
        step = max(1, MAX_ROWS // points.shape[1])
        found = []
        for start in range(0, len(points), step):
            rows = slice(start, start + step)
            values = self.column.in_own_units(points[rows])
            table = with_column(self.X[rows], self.j, values, keep_dtype=self.discrete)
            found.append(self.statistic(table))
        return np.concatenate(found).reshape(points.shape)

    def _refine(self) -> None:
        """Add points where a continuous column's density is high; trapezoidal weights."""
        for done in range(MAX_ROUNDS):
            log_weight = self.value + log_width(self.points)
            kept = log_weight >= log_weight.max(1, keepdims=True) - DEPTH
            if done and kept.sum(1).min() >= N_ADDED / 2:
                break
            last = kept.shape[1] - 1
            first = np.maximum(kept.argmax(1) - 1, 0)
            final = np.minimum(last - kept[:, ::-1].argmax(1) + 1, last)
            rows = np.arange(len(kept))
            ends = self.points[rows, first], self.points[rows, final]
            added = np.linspace(*ends, N_ADDED + 2, axis=1)[:, 1:-1]
            points = np.concatenate([self.points, added], axis=1)
            value = np.concatenate([self.value, self._evaluate(added)], axis=1)
            order = np.argsort(points, axis=1, kind="stable")
            self.points = np.take_along_axis(points, order, 1)
            self.value = np.take_along_axis(value, order, 1)
        self.log_weight = self.value + log_width(self.points)

    def _weights(self) -> np.ndarray:
        """Probabilities of the points; nan if all of them have probability zero."""
        top = self.log_weight.max(1, keepdims=True)
        with np.errstate(invalid="ignore"):
            weight = np.exp(self.log_weight - top)
            return weight / weight.sum(1, keepdims=True)

    def mean_statistic(self) -> np.ndarray:
        """Mean of the statistic over the conditional distribution of the column, (n,)."""
        weight = self._weights()
        with np.errstate(invalid="ignore"):
            mean = np.where(weight > 0, weight * self.value, 0.0).sum(1)
        return np.where(np.isnan(weight).any(1), self.log_weight.max(1), mean)

    def expected(self) -> np.ndarray:
        """Mean of a continuous column, most probable value of a discrete one, (n,)."""
        if self.discrete:
            return self.points[np.arange(len(self.points)), self.log_weight.argmax(1)]
        return (self._weights() * self.points).sum(1)


def log_width(points: np.ndarray) -> np.ndarray:
    """Log of the weights of sorted points in the trapezoidal rule."""
    gap = np.diff(points, axis=1)
    edge = np.zeros((len(points), 1))
    width = (np.concatenate([edge, gap], axis=1) + np.concatenate([gap, edge], axis=1)) / 2
    with np.errstate(divide="ignore"):
        return np.log(width)
