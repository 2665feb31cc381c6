"""A plane of two columns: their choice, values of the other columns, the grid and samples."""

from __future__ import annotations

import copy
import inspect
from statistics import mode
from typing import Any

import numpy as np

from skebm._validation import check_random_state, n_rows, take_rows
from skebm.base import Real
from skebm.estimators.outlier import columns as tables
from skebm.estimators.queries import densities

# Margin around the rows, relative to their range.
MARGIN = 0.15


def plane(estimator: Any, X: Any, columns: Any, given: Any) -> tuple[list[int], Any, dict]:
    """Numbers of the two columns, a row with the values of the others, and display attributes."""
    final, table = densities.last_step(estimator)[1], None
    if len(getattr(final, "row_shape_", ())) > 1 or getattr(X, "ndim", 2) > 2:
        raise ValueError("EnergyDisplay shows two columns of a table, not images.")
    names: Any = getattr(estimator, "feature_names_in_", None)
    if X is not None:
        table = tables.as_table(X)
        if not n_rows(table):
            raise ValueError("X has no rows.")
        same = names is not None and len(names) == table.shape[1]
        names = names if same else tables.column_names(table)
    elif names is None:
        names = [f"x{k}" for k in range(estimator.n_features_in_)]
    names = [str(name) for name in names]
    pair = _check_columns(columns, names)
    row, data = _reference_row(table, given, len(names)), None
    if table is not None:
        data = np.column_stack([_axis_values(table, k, names[k]) for k in pair])
        data = data[~np.isnan(data).any(1)]
    others = [k for k in range(len(names)) if k not in pair]
    fixed = {names[k]: np.asarray(tables.column_of(row, k)).tolist()[0] for k in others}
    shown = (names[pair[0]], names[pair[1]])
    return pair, row, {"names": shown, "data": data, "fixed": fixed or None}


def _check_columns(columns: Any, names: list[str]) -> list[int]:
    """Numbers of the two columns to draw."""
    d = len(names)
    if d == 1:
        raise ValueError("There is only one column: use EnergyHistogramDisplay.")
    if columns is None and d > 2:
        raise ValueError(
            f"There are {d} columns: pass two of them as columns=(i, j), by number or name. A "
            "slice is drawn, with the others fixed at their medians or at the row `given`."
        )
    pair = (0, 1) if columns is None else tuple(columns)
    numbers = [names.index(k) if k in names else k for k in pair]
    if len(set(numbers)) != 2 or len(numbers) != 2 or not all(k in range(d) for k in numbers):
        listed = ", ".join(map(repr, names[:20])) + ", ..." * (d > 20)
        raise ValueError(f"columns must be two of {listed}, or of 0 to {d - 1}, got {columns!r}.")
    return [int(k) for k in numbers]


def _axis_values(table: Any, k: int, name: str) -> np.ndarray:
    try:
        return np.asarray(tables.column_of(table, k), dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Column {name!r} is not numeric, so it cannot be an axis.") from error


def _reference_row(table: Any, given: Any, d: int) -> Any:
    """One row, `given` or of medians, as a table of the type of `table`."""
    if given is not None:
        values = np.ravel(np.asarray(given)).tolist()
    elif table is not None:
        values = [_typical(tables.present_values(tables.column_of(table, k))) for k in range(d)]
    elif d == 2:
        values = [0.0, 0.0]
    else:
        raise ValueError("Pass X, at whose medians the other columns are fixed, or a row `given`.")
    if len(values) != d:
        raise ValueError(f"given must be a row of {d} columns, got {len(values)}.")
    if not tables.is_frame(table):
        return np.array([values], dtype=float)
    row = take_rows(table, [0])
    for k, value in enumerate(values):
        kind = object if isinstance(value, str) else None
        row = tables.with_column(row, k, np.array([[value]], dtype=kind), keep_dtype=True)
    return row


def _typical(values: np.ndarray) -> Any:
    """The lower median, or the most frequent value of a column that is not numeric."""
    if values.dtype == object or not len(values):
        return mode(values.tolist() or [np.nan])
    return float(np.quantile(values, 0.5, method="lower"))


def repeat_row(row: Any, columns: list[int], x: np.ndarray, y: np.ndarray) -> Any:
    """A table of copies of the row with the values x and y in the two columns."""
    with_x = tables.with_column(row, columns[0], x[None], keep_dtype=False)
    return tables.with_column(with_x, columns[1], y[:, None], keep_dtype=False)


def grid_axes(estimator: Any, limits: Any, rows: Any, n: int) -> np.ndarray:
    """Values of both columns on the grid, (2, n)."""
    if limits is None:
        if rows is None or not len(rows):
            raise ValueError("Pass X, limits or n_samples, which determine the range of the grid.")
        final = densities.last_step(estimator)[1]
        bounded = densities.is_energy_based(final) and not isinstance(final.energy_.domain, Real)
        ends = np.stack([rows.min(0), rows.max(0)], 1)
        width = np.ptp(ends, axis=1, keepdims=True)
        limits = ends + np.where(width > 0, (0 if bounded else MARGIN) * width, 0.5) * [-1, 1]
    ends = np.asarray(limits, dtype=float)
    if ends.shape != (2, 2) or not np.isfinite(ends).all() or not (np.diff(ends) > 0).all():
        raise ValueError(f"limits must be two pairs of finite low < high, got {limits!r}.")
    return np.linspace(ends[:, 0], ends[:, 1], n).T


def draw_from_model(estimator: Any, unknown: Any, given: bool, random_state: Any) -> np.ndarray:
    """Rows drawn from the model; with `given`, conditionally on the entries that are not NaN."""
    before, final = densities.last_step(estimator)
    if given:
        return np.asarray(final.impute(unknown, random_state=random_state))
    if not hasattr(final, "sample"):
        raise TypeError(f"{type(final).__name__} has no method sample: leave n_samples at 0.")
    if "random_state" in inspect.signature(final.sample).parameters:
        x = final.sample(len(unknown), random_state=random_state)
    else:  # scikit-learn's mixtures use the random_state of their constructor
        final = copy.copy(final)
        final.random_state = check_random_state(random_state)
        x, _ = final.sample(len(unknown))
    for transformer in reversed(before):
        x = transformer.inverse_transform(x)
    return np.asarray(x)
