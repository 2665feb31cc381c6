"""Rows of a deep machine: columns of X with the hidden layers beside them, which are missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.energies.deep import HIDDEN_LOGIT
from skebm.estimators.tables.columns import ColumnTable
from skebm.estimators.tables.table import Table, UnitIntervalTable
from skebm.training.rows import Rows

# Mean of hidden units before anything is known of them: that of untrained ones.
FIRST_MEAN = 1 / (1 + math.exp(-HIDDEN_LOGIT))


class LayeredTable(Table):
    """A table whose training rows have entries for h2, h4, ..., which are always missing.

    Parameters
    ----------
    visible : UnitIntervalTable or ColumnTable
        Of the columns of X.
    n_beside : int
        Number of these hidden units.

    Attributes
    ----------
    completes : bool
        Whether columns of X are missing in the rows that were prepared last.
    """

    def __init__(self, visible: UnitIntervalTable | ColumnTable, n_beside: int):
        self.visible, self.n_beside = visible, n_beside
        self.domain, self.log_volume = visible.domain, visible.log_volume
        self.completes = False

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        return self.visible.rows(X, device=device, dtype=dtype, weight=weight)

    def prepare(self, rows: Rows) -> None:
        """Complete missing columns by values of other rows, and add the hidden units."""
        self.visible.prepare(rows)
        self.completes = rows.known is not None
        self.extend(rows)

    def extend(self, rows: Rows) -> None:
        """Add the hidden units to rows, in place."""
        if not self.n_beside:
            return
        x = rows.x if isinstance(rows.x, Tensor) else rows.block(0, len(rows))
        size, d = (len(rows), rows.n_columns + self.n_beside), rows.n_columns
        full, known = x.new_full(size, FIRST_MEAN), x.new_zeros(size, dtype=torch.bool)
        full[:, :d] = x
        known[:, :d] = True if rows.known is None else rows.known.to(x.device)
        rows.x, rows.known, rows.convert, rows.n_columns = full, known, None, size[1]

    def without(self, rows: Rows) -> Rows:
        """Rows of the columns of X alone, which share their memory."""
        d = self.domain.n_columns
        if rows.n_columns == d:
            return rows
        assert isinstance(rows.x, Tensor)
        weight = None if rows.weight is None else rows.counts
        found = Rows(rows.x[:, :d], weight, dtype=rows.dtype, device=rows.device)
        if self.completes and rows.known is not None:
            found.known = rows.known[:, :d]
        found.n_copies = rows.n_copies
        return found

    def invert(self, x: Tensor) -> Any:
        return self.visible.invert(x[:, : self.domain.n_columns])

    def filled(self, X: Any, x: Tensor) -> Any:
        """Validated X with its nan replaced by the entries of rows x of the energy."""
        return self.visible.filled(X, x[:, : self.domain.n_columns])

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        return self.visible.row_energy(energy, x)

    def energies(self, mapped: Callable[..., Tensor], *, likely: bool = False) -> np.ndarray:
        return self.visible.energies(mapped, likely=likely)

    def log_volumes(self, known: np.ndarray) -> np.ndarray:
        return self.visible.log_volumes(known[:, : self.domain.n_columns])

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of entries of the columns of X, then 1 for each hidden unit of the row."""
        return (*self.visible.groups, *(1,) * self.n_beside)

    def divergence_advice(self, rows: Rows) -> str:
        return self.visible.divergence_advice(rows)

    def column_at(self, entry: int) -> Any:
        return self.visible.column_at(entry)
