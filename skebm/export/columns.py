"""Columns of rows as numbers: what tables and codes of categories are in a graph."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from skebm.estimators.tables.blocks import (
    BitBlock,
    ColumnBlock,
    LevelBlock,
    NumberBlock,
    ProbabilityBlock,
    SpinBlock,
    StateBlock,
)
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.table import Table
from skebm.export.graph import ExportError, Graph, Node

# Types of levels that a file of any language holds.
PLAIN = (str, bool, int, float)


class InputColumns:
    """Columns of rows: those of users, read when they are asked for, or those of a step before.

    Parameters
    ----------
    graph : Graph
    n_columns : int
    names : list of str or None
        Names of the columns; without them rows are one array of numbers.
    rows : Node or None
        What a step before makes of rows, (n, n_columns), without missing entries.
    mask : Node or None
        Which rows these are of those of users; None is all of them.
    """

    def __init__(
        self,
        graph: Graph,
        n_columns: int,
        names: list[str] | None = None,
        rows: Node | None = None,
        mask: Node | None = None,
    ):
        self.graph, self.n_columns, self.names = graph, n_columns, names
        self._rows, self._mask = rows, mask
        graph.n_columns = graph.n_columns or n_columns

    def _array(self) -> Node:
        if self._rows is None:
            self._rows = self._select(self.graph.matrix(self.n_columns))
        return self._rows

    def _select(self, x: Node) -> Node:
        return x if self._mask is None else self.graph.apply("compress", x, self._mask)

    def numbers(self, j: int) -> Node:
        """Column j as numbers, (n,); NaN where missing."""
        if self.names is None or self._rows is not None:
            return self._array().column(j)
        return self._select(self.graph.column(self.names[j], j))

    def times(self, j: int, what: str) -> Node:
        """Days of dates and durations of column j, (n,); NaN where missing (`Graph.column`)."""
        if self.names is None or self._rows is not None:
            raise ExportError("Dates of a step before have no translation.")
        return self._select(self.graph.column(self.names[j], j, time=what))

    def codes(self, j: int, levels: Any, *, unseen: bool) -> Node:
        """Places of the levels of column j, (n,); NaN where missing, -1 for others if `unseen`."""
        if self.names is None or self._rows is not None:
            raise ExportError("Categories of a step before have no translation.")
        for level in levels:
            if not isinstance(level, PLAIN):
                raise ExportError(
                    f"Column {self.names[j]!r} has levels of type {type(level).__name__}, which no "
                    "file holds: make them text before the fit."
                )
        column = self.graph.column(self.names[j], j, levels=list(levels), unseen=unseen)
        found = self._select(column)
        return found if unseen else self.graph.apply("where", found < 0.0, np.nan, found)

    def several(self, columns: list[int], coding: Coding | None) -> Node:
        """Columns as numbers and codes, side by side, (n, k); NaN where missing."""
        levels = {} if coding is None else coding.levels
        if not levels and (self.names is None or self._rows is not None):
            return self._array().columns(columns)
        found = [
            self.codes(j, levels[j], unseen=False) if j in levels else self.numbers(j)
            for j in columns
        ]
        return self.graph.side_by_side(found)


class EnergyRows(NamedTuple):
    """Rows of an energy, (n, d), NaN where missing, and which of them have no probability, (n,).

    Values of columns of bits that are none are refused by models; a graph can only say that log p
    is minus infinity. None is no such columns.
    """

    x: Node
    impossible: Node | None


def rows_of_table(
    graph: Graph, table: Table, coding: Coding | None, frame: InputColumns
) -> EnergyRows:
    """Rows of the energy for the columns of a frame."""
    if table.image_shape is not None:
        raise ExportError("Images have no columns: pass flat rows to a network that takes them.")
    parts, wrong = [], []
    for block in table.blocks:
        columns = frame.several(block.columns, coding)
        parts.append(_entries(graph, block, columns))
        outside = _outside(block, columns)
        if outside is not None:
            wrong.append(outside.reduce("any"))
    x = parts[0] if len(parts) == 1 else graph.apply("concat", *parts, axis=1)
    return EnergyRows(x, functools.reduce(operator.or_, wrong) if wrong else None)


def _entries(graph: Graph, block: ColumnBlock, x: Node) -> Node:
    """Entries of a block, (n, k)."""
    if isinstance(block, NumberBlock):
        if not block.units.centre.any() and (block.units.scale == 1).all():
            return x
        return (x - block.units.centre) / block.units.scale
    if isinstance(block, LevelBlock):
        return _one_hot(graph, block, x)
    if isinstance(block, ProbabilityBlock):
        low, high, width = _ends(block)
        inside = graph.apply("minimum", graph.apply("maximum", x, low), high)
        return (inside - low) / width if len(block.scaling.columns) else inside
    if isinstance(block, BitBlock | StateBlock):
        return x
    raise ExportError(
        f"Columns of {type(block).__name__} cannot be exported: score them in Python."
    )


def _outside(block: ColumnBlock, x: Node) -> Node | None:
    """Entries that a column cannot have, (n, k); None where it may have all."""
    bits = isinstance(block, BitBlock) and not block.is_condition
    if bits or isinstance(block, StateBlock):
        return ~(x.isnan() | x.equals(0.0) | x.equals(1.0))
    if isinstance(block, SpinBlock):
        return ~(x.isnan() | x.equals(-1.0) | x.equals(1.0))
    if isinstance(block, ProbabilityBlock) and not block.scales:
        low, high, _ = _ends(block)
        tolerance = 1e-6  # of values of single precision
        return (x < low - tolerance) | (x > high + tolerance)
    return None


def _ends(block: ProbabilityBlock) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lowest and highest value of each column, and the width of those that are scaled."""
    scaling, n = block.scaling, len(block.columns)
    low, high, width = np.zeros(n), np.ones(n), np.ones(n)
    low[scaling.columns], high[scaling.columns] = scaling.low, scaling.high
    width[scaling.columns] = scaling.width
    return low, high, width


def _one_hot(graph: Graph, block: LevelBlock, codes: Node) -> Node:
    parts = []
    for place, size in enumerate(block.sizes):
        own = graph.apply("unsqueeze", codes.column(place), axis=1)
        one = own.equals(np.arange(size, dtype=float)).cast("f")
        parts.append(graph.apply("where", own.isnan(), np.nan, one))
    return parts[0] if len(parts) == 1 else graph.apply("concat", *parts, axis=1)
