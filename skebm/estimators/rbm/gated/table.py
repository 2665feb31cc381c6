"""Pairs of rows x and y, side by side, as rows of an energy of y given x."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skebm._validation import warn
from skebm.base import DataWarning
from skebm.estimators.tables.blocks import (
    ColumnBlock,
    NumberBlock,
    ProbabilityBlock,
    in_unit_interval,
    warn_of_scaling,
)
from skebm.estimators.tables.table import Table, shown_names
from skebm.estimators.tables.units import learn_units


class Pairs(NamedTuple):
    """Rows x (n, dx) and y (n, dy) or (n,) as users pass them."""

    X: Any
    y: Any


def pair_table(
    X: np.ndarray, n_given: int, weight: np.ndarray | None, visible: str, names: Any
) -> Table:
    """The table of validated pairs X (n, dx + dy), each half of bits or of standardised numbers."""
    y = X[:, n_given:]
    of_y = [f"y[{j}]" for j in range(y.shape[1])]
    blocks = [
        _half(X[:, :n_given], shown_names(names, n_given), 0, weight, visible),
        _half(y, of_y, n_given, weight, visible),
    ]
    warn_of_scaling(blocks)
    constant = np.flatnonzero((y == y[0]).all(0)).tolist()
    if constant and isinstance(blocks[1], NumberBlock):
        warn(
            f"Columns {constant} of y are constant. They are modelled as normal around their "
            "value, with a standard deviation of 0.01 to 1: drop them if they cannot vary.",
            DataWarning,
        )
    return Table(blocks, n_given=1, merges_copies=False)


def _half(
    X: np.ndarray, names: list[str], first: int, weight: np.ndarray | None, visible: str
) -> ColumnBlock:
    """Columns X of pairs, of which number `first` is the first."""
    if visible == "bernoulli" or (visible == "auto" and in_unit_interval(X)):
        return ProbabilityBlock.learn(X, names=names, first=first)
    columns = range(first, first + X.shape[1])
    return NumberBlock(columns, learn_units(X, weight, True, None), names)


def with_any_y(X: np.ndarray, table: Table) -> np.ndarray:
    """Rows x (n, dx) with any y beside them, where y is unknown and not used."""
    (target,) = table.targets
    y = target.to_units(np.zeros((1, target.domain.n_columns)))
    return np.hstack([X, np.tile(y, (len(X), 1))])
