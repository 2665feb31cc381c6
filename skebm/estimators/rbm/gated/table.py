"""Pairs of rows x and y, side by side, as rows of an energy of y given x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import Mixed, Real
from skebm.estimators.tables.columns import in_unit_interval
from skebm.estimators.tables.table import (
    BETWEEN,
    FlatTable,
    Table,
    UnitIntervalTable,
    is_far,
    learn_units,
    warn_of_scaling,
)
from skebm.training.rows import Rows

Half = UnitIntervalTable | FlatTable


class Pairs(NamedTuple):
    """Rows x (n, dx) and y (n, dy) or (n,) as users pass them."""

    X: Any
    y: Any


class PairTable(Table):
    """Pairs of which each half is bits, or standardised numbers.

    Parameters
    ----------
    given, target : UnitIntervalTable or FlatTable
        Of x and of y.
    """

    domain: Mixed

    @property
    def copies_are_one(self) -> bool:
        """Not here, as pairs are seen as they come."""
        return False

    def __init__(self, given: Half, target: Half):
        self.given, self.target = given, target
        self.domain = Mixed((given.domain, target.domain))
        self.log_volume = target.log_volume

    @classmethod
    def learn(
        cls, X: np.ndarray, n_given: int, weight: np.ndarray | None, visible: str, names: Any
    ) -> PairTable:
        """Learn scales and kinds of the halves of validated pairs X (n, dx + dy)."""
        x, y = X[:, :n_given], X[:, n_given:]
        names = [f"x{j}" for j in range(n_given)] if names is None else names
        of_y = [f"y[{j}]" for j in range(y.shape[1])]
        found = cls(_half(x, names, weight, visible), _half(y, of_y, weight, visible))
        halves = (found.given, found.target)
        warn_of_scaling([half for half in halves if isinstance(half, UnitIntervalTable)])
        constant = np.flatnonzero((y == y[0]).all(0)).tolist()
        if constant and isinstance(found.target, FlatTable):
            warn(
                f"Columns {constant} of y are constant. They are modelled as normal around their "
                "value, with a standard deviation of 0.01 to 1: drop them if they cannot vary.",
                UserWarning,
            )
        return found

    @property
    def n_given(self) -> int:
        """Number of columns of x."""
        return self.given.domain.n_columns

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        for half, block in self._halves(X):
            if isinstance(half, UnitIntervalTable):
                half.check_range(block)
        return Rows.of(X, self.convert, dtype=dtype, device=device, weight=weight)

    def _halves(self, X: np.ndarray) -> list[tuple[Half, np.ndarray]]:
        return [(self.given, X[:, : self.n_given]), (self.target, X[:, self.n_given :])]

    def convert(self, X: np.ndarray) -> np.ndarray:
        """Pairs (n, dx + dy) in the units of the energy."""
        return np.hstack(
            [
                half.scaling.apply(block)
                if isinstance(half, UnitIntervalTable)
                else half.units.apply(block)
                for half, block in self._halves(X)
            ]
        )

    def alone(self, X: np.ndarray) -> np.ndarray:
        """Rows x (n, dx) with any y beside them, where y is unknown and not used."""
        return np.hstack([X, np.tile(self.target.invert(self.nothing), (len(X), 1))])

    @property
    def nothing(self) -> Tensor:
        """A row of zeros for y, (1, dy)."""
        return torch.zeros(1, self.target.domain.n_columns, dtype=torch.float64)

    def prepare(self, rows: Rows) -> None:
        """Raise `ValueError` for rows with values that are too large."""
        far = rows.map(is_far)
        if far.any():
            row = int(far.nonzero()[0, 0])
            self.refuse_row(rows.block(row, row + 1), row, "it cannot be trained on")

    def column_at(self, entry: int) -> Any:
        """Number or name of a column of x, or the number of one of y."""
        if entry >= self.n_given:
            return f"y[{entry - self.n_given}]"
        return self.given.column_at(entry)

    def invert(self, x: Tensor) -> np.ndarray:
        """Rows y of the energy, (n, dy), in the units of the data."""
        return self.target.invert(x)

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        value: Tensor = energy(x)
        return value.masked_fill(value.isnan() & is_far(x), torch.inf)

    def energies(self, mapped: Callable[..., Tensor], *, likely: bool = False) -> np.ndarray:
        found = super().energies(mapped)
        if likely and isinstance(self.target.domain, Real):
            return found
        if likely and not self.target_is_said:
            inside = mapped(lambda energy, x: energy.target_domain.contains(energy.split(x)[1]))
            if not inside.all():
                n = int((~inside).sum())
                warn(f"{n} of {len(found)} rows of y are not binary. {BETWEEN}", UserWarning)
        return found

    @property
    def target_is_said(self) -> bool:
        """Whether a warning said that values of y are taken as probabilities."""
        return isinstance(self.target, UnitIntervalTable) and self.target.said


def _half(X: np.ndarray, names: Any, weight: np.ndarray | None, visible: str) -> Half:
    if visible == "bernoulli" or (visible == "auto" and in_unit_interval(X)):
        return UnitIntervalTable.of_ranges(X, "auto", names)
    return FlatTable(learn_units(X, weight, True, None), X.shape[1:], False)
