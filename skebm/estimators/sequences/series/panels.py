"""Panels: several series below each other, in a table with a column that says which is which."""

from __future__ import annotations

from collections.abc import Hashable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import check_container, is_frame, mask_as_missing, no_column
from skebm.estimators.sequences.series.stamps import Grid, Stamps, is_series, without_stamps
from skebm.estimators.tables.columns import is_present


class Panel(NamedTuple):
    """A table of one or several series.

    Attributes
    ----------
    table : {array-like, frame} of shape (n_samples, n_features)
        Without time stamps, and without the column that names the series.
    stamps : Stamps or None
    rows : dict of hashable to ndarray of int, or slice
        Numbers of the rows of each series in the order of time; None is the name of the only one.
    """

    table: Any
    stamps: Stamps | None
    rows: dict[Any, Any]

    @classmethod
    def read(cls, X: Any, column: Any, only: str | None = None) -> Panel:
        """The panel of a table.

        Parameters
        ----------
        X : Series, {array-like, frame} of shape (n_samples, n_features)
        column : str, int or None
            Column that names the series of each row; None is one series.
        only : str or None
            Name of the column that a Series becomes.
        """
        check_container(X)
        names = None
        if column is not None:
            if is_series(X):
                raise ValueError("A Series is one series: leave out sequence_column.")
            names, X = names_of_sequences(X, column), without_column(X, column)
        table, stamps = without_stamps(X, only)
        order = None if stamps is None else np.argsort(stamps.instant, kind="stable")
        if names is None:
            return cls(table, stamps, {None: slice(None) if order is None else order})
        rows: dict[Any, list[int]] = {}
        for row in range(len(names)) if order is None else order.tolist():
            rows.setdefault(names[row], []).append(row)
        return cls(table, stamps, {name: np.array(some) for name, some in rows.items()})

    def grid(self) -> Grid | None:
        """The grid of the time stamps of all series; None without time stamps."""
        if self.stamps is None:
            return None
        number = np.repeat(np.arange(len(self.rows)), [len(some) for some in self.rows.values()])
        return Grid.learn(self.stamps.take(np.concatenate([*self.rows.values()])), number)


def names_of_sequences(X: Any, column: Any) -> list[Any]:
    """Name of the sequence of each row, the values of a column; `ValueError` if one is missing."""
    if is_frame(X):
        if column not in X.columns:
            if column in getattr(getattr(X, "index", None), "names", ()):
                raise ValueError(
                    f"sequence_column={column!r} is a level of the index: pass X.reset_index()."
                )
            raise no_column("sequence_column", column, X.columns)
        names = X[column].to_list()
    else:
        X = np.asarray(mask_as_missing(X))
        d = X.shape[1] if X.ndim == 2 else 0
        whole = isinstance(column, Integral) and not isinstance(column, bool)
        if not whole or not -d <= column < d:
            raise ValueError(
                f"sequence_column={column!r} must be the number of one of the {d} columns of an "
                "array, or a name of a column of a frame."
            )
        names = X[:, column].tolist()
    if not all(is_present(name) for name in names):
        raise ValueError(
            f"sequence_column={column!r} has missing entries: drop these frames, or fill in to "
            "which sequence they belong."
        )
    if not all(isinstance(name, Hashable) for name in names):
        raise ValueError(
            f"sequence_column={column!r} holds lists or other objects that name no sequence: make "
            "them text or numbers."
        )
    return names


def without_column(X: Any, column: Any) -> Any:
    """A table without one of its columns."""
    if is_frame(X):
        return X.drop(columns=[column]) if hasattr(X, "iloc") else X.drop(column)
    return np.delete(np.asarray(mask_as_missing(X)), column, axis=1)
